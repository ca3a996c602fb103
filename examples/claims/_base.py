"""A claim, what was measured about it, and the pages that show all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

from lesson import Text

Pair = tuple[str, str]
"""The same in English and Chinese."""


class Verdict(Enum):
    """What the measurement makes of a claim."""

    HOLDS = ("holds", "成立")
    CONDITION = ("holds under a condition", "有条件成立")
    FAILS = ("does not hold", "不成立")

    def text(self, t: Text) -> str:
        return t(*self.value)


@dataclass(frozen=True)
class Claim:
    """One claim of the source documents.

    documents   which of them say so: "000, 003"
    says        the claim in our words
    verdict     what comes out
    lesson      the script whose numbers decide
    measured    from those numbers to what was measured, in words
    stands      whether the numbers still bear the verdict
    needs       the number that is None where something that the lesson reads is not on this machine, by its path
                ("trained.treebank"), and what to get
    timed       times are among its numbers: the page wants them to bear the verdict, the tests do not
    """

    documents: str
    says: Pair
    verdict: Verdict
    lesson: str
    measured: Callable[[Any], Pair]
    stands: Callable[[Any], bool]
    needs: tuple[str, Pair] | None = None
    timed: bool = False

    def lacks(self, found: Any) -> Pair | None:
        """What would have to be there for these numbers."""
        if self.needs:
            values = vars(found)
            for name in self.needs[0].split("."):
                if values[name] is None:
                    return self.needs[1]
                values = values[name]
        return None

    def check(self, found: Any) -> None:
        """Raises RuntimeError where the numbers no longer bear the verdict."""
        if not self.stands(found):
            raise RuntimeError(
                f"{self.lesson} no longer bears the verdict {self.verdict.value[0]!r} on the claim of {self.documents}: "
                f"{self.says[0]}\nmeasured: {self.measured(found)[0]}"
            )


Subject = tuple[Pair, Sequence[Claim]]
"""A heading, and the claims under it."""

EXPLAINED = (
    "Five short tutorials, in Chinese, stood at the beginning of headway; they are called 000 to 004 here, and their "
    "claims are told in our words. Each was measured by a lesson ([lessons.md](lessons.md)); the numbers are those of "
    "one machine. The verdict comes from the numbers: where they stop bearing it, the command that writes this page, "
    "`make claims`, fails. [coverage.md](coverage.md) has every statement of the documents, claim or not.",
    "headway 源于五篇中文教程，这里依次称为 000 到 004，各项说法用我们自己的话转述。"
    "每一条都由一课实验测量（见[课程](lessons.md)），数字来自同一台机器。结论由数字决定："
    "数字一旦不再支持结论，生成本页的命令 `make claims` 就会报错。"
    "文档中的每一句话（不论是否属于可检验的说法）见 [coverage.md](../coverage.md)（英文）。",
)


def page(subjects: Sequence[Subject], found: Mapping[str, Any], t: Text) -> str:
    """The page in one language; ``found`` has the numbers of each lesson by the script's name."""
    claims = [claim for _, group in subjects for claim in group]
    total = Counter(claim.verdict for claim in claims)
    holds, condition, fails = (total[verdict] for verdict in Verdict)
    lines = [t("# What the tutorials claim, measured", "# 教程里的说法，测一测"), "", t(*EXPLAINED), ""]
    lines += [
        t(
            f"Of {len(claims)} claims {holds} hold, {condition} hold under a condition, and {fails} do not hold:",
            f"共 {len(claims)} 条说法：{holds} 条成立，{condition} 条有条件成立，{fails} 条不成立。不成立的是：",
        ),
        "",
    ]
    lines += [f"- {t(*claim.says)}" for claim in claims if claim.verdict is Verdict.FAILS] + [""]
    number = 0
    for heading, group in subjects:
        lines += [f"## {t(*heading)}", ""]
        for claim in group:
            number += 1
            figures = found[claim.lesson]
            missing = claim.lacks(figures)
            if not missing:
                claim.check(figures)
            verdict = t("not measured here", "此处未测") if missing else claim.verdict.text(t)
            measured = t("It needs ", "需要") + t(*missing) + t(".", "。") if missing else t(*claim.measured(figures))
            several = "s" * ("," in claim.documents)
            source = t(f"document{several} {claim.documents}", f"文档 {claim.documents}".replace(", ", "、"))
            script = t(f"../examples/{claim.lesson}.py", f"../../examples/{claim.lesson}.py")
            shown = t(f"lesson {lesson_number(claim)}", f"第 {lesson_number(claim)} 课")
            lines += [
                f"### {number}. {t(*claim.says)}",
                "",
                f"**{verdict}** · {source} · [{shown}]({script})",
                "",
                measured,
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def lesson_number(claim: Claim) -> str:
    return claim.lesson.split("_")[1]


def numbers(values: Mapping[str, Any]) -> SimpleNamespace:
    """What a lesson wrote as JSON, by the names of its fields."""
    return SimpleNamespace(**values)
