"""A claim with its measurement, and the pages of all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

from lesson import Text

Pair = tuple[str, str]
"""A text in English and in Chinese."""


DOCUMENTS: dict[str, Pair] = {
    "000": ("the tutorial in PyTorch", "PyTorch 教程"),
    "001": ("the course", "课程讲义"),
    "002": ("the article with example sentences", "例句讲解"),
    "003": ("the book", "书稿"),
    "004": ("the notes on waists and weights", "腰围与体重笔记"),
}
"""What the source documents are called, by their numbers in docs/coverage.md."""


class Verdict(Enum):
    """The result of the measurement of a claim."""

    HOLDS = ("holds", "成立")
    CONDITION = ("holds under a condition", "有条件成立")
    FAILS = ("does not hold", "不成立")

    def text(self, t: Text) -> str:
        return t(*self.value)


@dataclass(frozen=True)
class Claim:
    """One claim of the source documents.

    Args:
        statements: the rows of docs/coverage.md that make the claim, such as "000.15, 001.23".
        says: the claim in our words.
        verdict: the result.
        lesson: the script whose numbers determine the verdict.
        measured: from those numbers to a description of the measurement.
        stands: whether the numbers support the verdict.
        needs: the path of a number that is None if something that the lesson reads is not on this machine
            ("trained.treebank"), and what to get.
        timed: whether its numbers include times, which the page checks and the tests do not.
    """

    statements: str
    says: Pair
    verdict: Verdict
    lesson: str
    measured: Callable[[Any], Pair]
    stands: Callable[[Any], bool]
    needs: tuple[str, Pair] | None = None
    timed: bool = False

    @property
    def documents(self) -> list[str]:
        """The numbers of the documents that make the claim."""
        return sorted({statement.partition(".")[0] for statement in self.statements.split(", ")})

    def lacks(self, found: Any) -> Pair | None:
        """What is missing on this machine for these numbers, if anything."""
        if self.needs:
            values = vars(found)
            for name in self.needs[0].split("."):
                if values[name] is None:
                    return self.needs[1]
                values = values[name]
        return None

    def check(self, found: Any) -> None:
        """Raises RuntimeError if the numbers no longer support the verdict."""
        if not self.stands(found):
            raise RuntimeError(
                f"{self.lesson} no longer supports the verdict {self.verdict.value[0]!r} on the claim of {self.statements}: "
                f"{self.says[0]}\nmeasured: {self.measured(found)[0]}"
            )


Subject = tuple[Pair, Sequence[Claim]]
"""A heading and its claims."""

EXPLAINED = (
    "headway began with five short texts in Chinese: a tutorial in PyTorch, a chapter of a course, an article with example sentences, "
    "pages of a book, and notes that explain attention by people's waists and weights. Their claims are given in our words. Each was measured"
    " by a lesson ([lessons.md](lessons.md)); the numbers are those of "
    "one machine. The numbers determine the verdict: if they no longer support it, the command that writes this page, "
    "`make claims`, fails. [coverage.md](coverage.md) has every statement of the documents, including those that are not claims.",
    "headway 源于五篇中文教程：一篇 PyTorch 教程、一章课程讲义、一篇例句讲解、一本书的几页书稿，以及一份用腰围和体重讲注意力的笔记。各项说法用我们自己的话转述。"
    "每一条都由一课实验测量（见[课程](lessons.md)），数字来自同一台机器。结论由数字决定："
    "数字一旦不再支持结论，生成本页的命令 `make claims` 就会报错。"
    "文档中的每一句话（不论是否属于可检验的说法）见 [coverage.md](coverage.md)。",
)


def page(subjects: Sequence[Subject], found: Mapping[str, Any], t: Text) -> str:
    """Returns the page in one language; ``found`` has the numbers of each lesson by the name of its script."""
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
            source = t(", ", "、").join(t(*DOCUMENTS[document]) for document in claim.documents)
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
    """Returns the numbers that a lesson wrote as JSON, as attributes."""
    return SimpleNamespace(**values)
