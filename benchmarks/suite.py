"""Measures the tasks of docs/tasks.md for a while, and writes its tables in both languages from all rows there are.

    python benchmarks/suite.py --minutes 60             # measures what is missing, in the order of the suite
    python benchmarks/suite.py --minutes 0              # writes the pages alone
    python benchmarks/suite.py --pace                   # says how many core-hours the whole suite takes at most

The rows lie in results/suite, from which any machine goes on. A training that is stopped begins again there, since
checkpoints are not kept with the rows.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from page import between

from headway._common.files import LOCK, from_json, write_text
from headway._common.progress import ProgressListener
from headway._common.store import read_rows
from headway.study import ComparisonResults, FixedProtocol, store
from headway.study._suite_results import FEWEST_SEEDS
from headway.study.intervals import bootstrap, mean_and_half
from headway.study.models import build_transformer
from headway.study.suite import KEYS, ROW, SUITES, SuiteProtocol, SuiteResults, measure
from headway.study.tasks import sequence_task
from headway.study.train import thread_count, train

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results" / "suite"
PAGES = {"en": ROOT / "docs" / "tasks.md", "zh": ROOT / "docs" / "zh-CN" / "tasks.md"}
PAPER = SUITES["paper"]
PACE_STEPS = 20
CORE_HOURS = 43
"""What --pace said, beside much other work on the same cores."""
Cell = tuple[str, str]
"""A task and an encoding."""


@dataclass(frozen=True)
class Statement:
    """What a paper says: in each pair the first task and encoding is better than the second.

    Attributes:
        text: what is said.
        chinese: the same in Chinese.
        source: the paper.
        pairs: the pairs.
        beyond: whether it is said of longer lengths than the trained one, else of that.
    """

    text: str
    chinese: str
    source: str
    pairs: tuple[tuple[Cell, Cell], ...]
    beyond: bool = True


def over(better: Sequence[str], worse: Sequence[str], tasks: Sequence[str]) -> tuple[tuple[Cell, Cell], ...]:
    """The pairs that say that some encodings are better than others on tasks."""
    return tuple(((task, one), (task, other)) for task in tasks for one in better for other in worse)


KAZEMNEJAD = ("copy", "reverse", "sort", "addition")
RUOSS = ("reverse", "repeat-copy", "sort", "parity", "modular-counting")
STATEMENTS = (
    Statement(
        "Models without an encoding are better than those with ALiBi, RoPE or absolute positions",
        "不用编码的模型胜过用 ALiBi、RoPE 或绝对位置的模型",
        "Kazemnejad et al. 2023, arXiv:2305.19466",
        over(["none"], ["alibi", "rope", "sinusoidal"], KAZEMNEJAD),
    ),
    Statement(
        "T5 is better than ALiBi, and ALiBi than RoPE",
        "T5 胜过 ALiBi，ALiBi 胜过 RoPE",
        "Kazemnejad et al. 2023, arXiv:2305.19466",
        (*over(["t5"], ["alibi"], KAZEMNEJAD), *over(["alibi"], ["rope"], KAZEMNEJAD)),
    ),
    Statement(
        "Randomized positions are better than the encodings without them",
        "同样的编码，随机位置胜过不随机的位置",
        "Ruoss et al. 2023, arXiv:2305.16843",
        over(["randomized + sinusoidal"], ["sinusoidal", "rope", "alibi", "none"], RUOSS),
    ),
    Statement(
        "Digits that know their place make addition go further",
        "让每个数字知道自己的数位，加法就能推广到更长的数",
        "Zhou et al. 2023, arXiv:2310.16028",
        tuple((("marked-addition", name), ("addition", name)) for name in ("none", "rope", "alibi", "t5")),
    ),
    Statement(
        "PoPE is better than RoPE at indirect indexing",
        "在间接索引上，PoPE 胜过 RoPE",
        "Gopalakrishnan et al. 2025, arXiv:2509.10534",
        over(["pope"], ["rope"], ["indirect-indexing"]),
        beyond=False,
    ),
    Statement(
        "CoPE is better than RoPE and absolute positions at counting",
        "在计数上，CoPE 胜过 RoPE 和绝对位置",
        "Golovneva et al. 2024, arXiv:2405.18719",
        over(["cope"], ["rope", "sinusoidal"], ["token-count"]),
    ),
)

ON_A_TEXT = {
    "en": "On a text, ALiBi and KERPLE keep their loss beyond the trained length; RoPE's and that of sinusoids rises",
    "zh": "在文本上，ALiBi 和 KERPLE 在训练长度之外保持损失，RoPE 和正弦编码的损失上升",
}
OF_A_TEXT = "Press et al. 2022, arXiv:2108.12409; Chi et al. 2022, arXiv:2205.09921"
TEXTS = {"shakespeare": {"en": "Shakespeare", "zh": "莎士比亚"}, "chinese": {"en": "Chinese", "zh": "中文"}}
KEEP, RISE = ("alibi", "kerple-log"), ("rope", "sinusoidal")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0, help="After so long no further training begins.")
    options.add_argument("--jobs", type=int, default=1, help="Trainings at once.")
    options.add_argument("--pace", action="store_true", help="Say what the whole suite takes.")
    given = options.parse_args()
    if given.pace:
        print(f"{core_hours():.1f} core-hours, if every training goes to its last step")
        return
    if given.minutes > 0:
        measured_within(60 * given.minutes, given.jobs)
    for language, path in PAGES.items():
        write_text(path, page(path.read_text(encoding="utf-8"), language))


class Deadline(ProgressListener):
    """Stops the work, which the rows on the disk survive, once a time is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def progressed(self, doing: str, share: float) -> None:
        if time.monotonic() > self.end:
            raise TimeoutError


def measured_within(seconds: float, jobs: int) -> None:
    """Measures what is missing of the suite "paper" for a while.

    The task of the first picture comes first, and then what each statement says of its first task, with the fewest
    seeds that separate, one statement after the other, the cheapest first. What the statements say of their other
    tasks comes next, one task after the other, and then the other seeds of all of this. All tasks and encodings
    follow, seed by seed.
    """
    protocol, watch = SuiteProtocol(steps=PAPER.steps), Deadline(seconds)
    picture = (["majority"], SUITES["quick"].encodings)
    firsts = sorted(map(first_of, STATEMENTS), key=lambda part: len(part[0]) * len(part[1]))
    try:
        for tasks, encodings in (picture, *firsts, *by_task()):
            measure(tasks, encodings, protocol, seeds=range(FEWEST_SEEDS), out=FOLDER, jobs=jobs, watch=watch)
        for tasks, encodings in (*by_task(), (PAPER.tasks, PAPER.encodings)):
            measure(tasks, encodings, protocol, seeds=range(PAPER.seeds), out=FOLDER, jobs=jobs, watch=watch)
    except TimeoutError:
        pass
    finally:
        shutil.rmtree(FOLDER / "checkpoints", ignore_errors=True)
        (FOLDER / LOCK).unlink(missing_ok=True)


def core_hours() -> float:
    """Returns the time of the processor of the whole suite, if every training goes to its last step.

    It is that of some steps of each task and encoding. Each step draws a length, the same for all encodings.
    """
    protocol, total = SuiteProtocol(steps=PAPER.steps), 0.0
    with thread_count(1):
        for name in PAPER.tasks:
            task = sequence_task(name)
            training = replace(protocol.training(task), steps=PACE_STEPS)
            for spec in PAPER.encodings:
                model = build_transformer(spec, protocol.sizes(task), 0)
                train(model, task, replace(training, steps=2), 0)
                seconds = train(model, task, training, 0).processor_seconds / PACE_STEPS
                print(f"{name}, {spec}: {1000 * seconds:.1f} ms a step", flush=True)
                total += PAPER.seeds * PAPER.steps * seconds
    return total / 3600


def first_of(statement: Statement) -> tuple[list[str], list[str]]:
    """Returns the tasks of the first pair of a statement, and the encodings of all pairs of these tasks."""
    first = {task for task, _ in statement.pairs[0]}
    cells = [cell for pair in statement.pairs for cell in pair if cell[0] in first]
    return list(dict.fromkeys(task for task, _ in cells)), list(dict.fromkeys(name for _, name in cells))


def by_task() -> list[tuple[list[str], list[str]]]:
    """Returns each task of the statements, with the encodings that they compare there."""
    encodings: dict[str, list[str]] = {}
    for statement in STATEMENTS:
        for pair in statement.pairs:
            for task, name in pair:
                encodings.setdefault(task, []).append(name)
    return [([task], list(dict.fromkeys(names))) for task, names in encodings.items()]


def load() -> SuiteResults:
    """Returns the results of all rows that there are."""
    settings = from_json((FOLDER / "settings.json").read_text(encoding="utf-8"))
    return SuiteResults(read_rows(FOLDER / "results.jsonl", KEYS, kind=ROW), settings, PAPER.encodings)


CHINESE = {
    "agree": "一致",
    "differ": "不一致",
    "differ in part": "部分不一致",
    "not separated": "分不开",
    "not measured yet": "尚未测量",
    "not learned": "没有学会",
    "no pair of which both learned the task": "没有哪一对模型都学会了这项任务",
    "one seed": "一个种子",
    "seeds": "个种子",
    "encoding": "编码",
    "learned": "学会",
    "steps": "步数",
    "tokens": "词元",
    "bytes": "字节",
    "bits per byte": "比特/字节",
}


def in_words(text: str, language: str) -> str:
    """Returns words of the tables in a language."""
    return CHINESE[text] if language == "zh" else text


def page(text: str, language: str = "en") -> str:
    """Returns a page with its tables written from the rows."""
    results = load()
    tables = "\n\n".join(f"**{task}**\n\n{scores(results, task, language)}" for task in results.tasks)
    text = between(text, "literature", literature(results, language))
    text = between(text, "state", state(results, language))
    return between(text, "scores", tables)


def scores(results: SuiteResults, task: str, language: str) -> str:
    """The table of a task."""
    text = results.table(task).markdown()
    if language == "en":
        return text
    titles, rest = text.split("\n", 1)
    for title in ("encoding", "learned", "tokens", "steps"):
        titles = titles.replace(f"| {title} ", f"| {CHINESE[title]} ")
    return titles + "\n" + re.sub(r"\| (\d+) of (\d+) \|", r"| \1/\2 |", rest)


def state(results: SuiteResults, language: str) -> str:
    """What has been measured of the suite."""
    done = sum(len(results.runs(task, name)) for task in results.tasks for name in results.encodings)
    learned = sum(len(results.learned(task, name)) for task in results.tasks for name in results.encodings)
    planned = len(PAPER.tasks) * len(PAPER.encodings) * PAPER.seeds
    # earlier rows have no time of the processor
    known = [row for row in results.rows if row["times"] == 1 and row.get("processor_seconds") is not None]
    each = 1000 * sum(row["processor_seconds"] for row in known) / max(1, sum(row["steps"] for row in known))
    tasks, encodings = len(results.tasks), len(results.encodings)
    if language == "zh":
        return (
            f"目前测完 {planned} 次训练里的 {done} 次，涉及 {len(PAPER.tasks)} 项任务里的 {tasks} 项、"
            f"{len(PAPER.encodings)} 种编码里的 {encodings} 种；{learned} 次学会了训练长度。"
            f"同时做许多别的事的机器上，1,000 步平均用处理器 {each:.0f} 秒；整个套件最多约 {CORE_HOURS} 个核时。"
        )
    return (
        f"Measured so far: {done} of {planned} trainings, {tasks} of {len(PAPER.tasks)} tasks and "
        f"{encodings} of {len(PAPER.encodings)} encodings; {learned} learned the trained length. On a "
        f"machine that did much other work, 1,000 steps took {each:.0f} seconds of a processor on average, and the "
        f"whole suite takes at most about {CORE_HOURS} core-hours."
    )


def literature(results: SuiteResults, language: str = "en") -> str:
    """The table of what papers say and what ours gives."""
    titles = {"en": "| what is said | source | what ours gives | |", "zh": "| 说法 | 来源 | 我们的结果 | |"}
    lines = [titles[language], "| --- | --- | --- | --- |"]
    for one in STATEMENTS:
        given, verdict = judged(one, results, language)
        text = one.chinese if language == "zh" else one.text
        lines.append(f"| {text} | {one.source} | {given} | {verdict} |")
    given, verdict = on_texts(language)
    lines.append(f"| {ON_A_TEXT[language]} | {OF_A_TEXT} | {given} | {verdict} |")
    return "\n".join(lines)


def judged(statement: Statement, results: SuiteResults, language: str = "en") -> tuple[str, str]:
    """What came out of the pairs of a statement, and whether it agrees."""
    found = [
        (pair, apart)
        for pair in statement.pairs
        if (apart := difference(results, statement, *pair, language)) is not None
    ]
    if not found:
        needed = {cell for pair in statement.pairs for cell in pair if cell[0] in first_of(statement)[0]}
        known = all(len(results.runs(*cell)) >= FEWEST_SEEDS for cell in needed)
        begun = any(results.runs(*cell) for pair in statement.pairs for cell in pair)
        given = in_words("no pair of which both learned the task", language) if begun else ""
        return given, in_words("not learned" if known else "not measured yet", language)
    differences = [(pair, words) for pair, (words, _) in found]
    return listed(differences, language), verdict_of([sign for _, (_, sign) in found], language)


def verdict_of(signs: Sequence[int], language: str = "en") -> str:
    """Returns whether the pairs agree with a statement: 1 for each that does, -1 for the opposite, 0 for neither."""
    agree, differ = signs.count(1), signs.count(-1)
    if not agree and not differ:
        return in_words("not separated", language)
    if agree and differ:
        return in_words("differ in part", language)
    word, count = ("agree", agree) if agree else ("differ", differ)
    if count == len(signs):
        return in_words(word, language)
    if language == "zh":
        return f"{len(signs)} 对中 {count} 对{CHINESE[word]}"
    return f"{word} in {count} of {len(signs)} pairs"


def listed(found: Sequence[tuple[tuple[Cell, Cell], str]], language: str = "en") -> str:
    """Returns the differences, with those that begin alike on one line."""
    minus, lines = (" 减" if language == "zh" else " minus"), dict[str, list[str]]()
    for (one, other), words in found:
        if one[0] == other[0]:
            title, name = f"{one[0]}, {one[1]}{minus}", other[1]
        else:
            title, name = f"{one[0]}{minus} {other[0]}", one[1]
        lines.setdefault(title, []).append(f"{name} {words}")
    colon = "：" if language == "zh" else ": "
    return "<br>".join(f"{title}{colon}{', '.join(parts)}" for title, parts in lines.items())


def on_texts(language: str = "en") -> tuple[str, str]:
    """What the comparisons on texts say of a loss beyond the trained length, with Student's intervals over seeds."""
    parts, signs = [], []
    for name, titles in TEXTS.items():
        folder = FOLDER.parent / f"comparison-{name}"
        protocol = FixedProtocol.from_settings(from_json((folder / "settings.json").read_text(encoding="utf-8")))
        results = ComparisonResults(read_rows(folder / "results.jsonl", store.KEYS, kind=store.ROW), protocol)
        near, far = (
            {one: results.by_seed(one, length, "bits_per_byte") for one in KEEP + RISE}
            for length in (protocol.train_length, protocol.lengths[-1])
        )
        words = []
        for one in KEEP + RISE:
            middle, half = mean_and_half([far[one][seed] - near[one][seed] for seed in sorted(near[one])])
            assert half is not None
            numbers = f"{middle:+.2f} ({middle - half:+.2f} … {middle + half:+.2f})".replace("-", "−")
            words.append(f"{one} {numbers}")
            signs.append(1 if (middle - half > 0) == (one in RISE) else -1)
        where = f"{protocol.lengths[-1]:,} − {protocol.train_length} {in_words('bytes', language)}"
        parts.append(f"{titles[language]}, {where}, {in_words('bits per byte', language)}: {', '.join(words)}")
    return "<br>".join(parts), verdict_of(signs, language)


def difference(
    results: SuiteResults, statement: Statement, one: Cell, other: Cell, language: str = "en"
) -> tuple[str, int] | None:
    """The difference in words, and its sign if the seeds separate it, else 0; None if no seed has both."""
    first, second = (results.beyond(*cell) if statement.beyond else results.by_seed(*cell, 1) for cell in (one, other))
    apart = [100 * (first[seed] - second[seed]) for seed in sorted(first.keys() & second.keys())]
    if not apart:
        return None
    interval, half = bootstrap(apart), mean_and_half(apart)[1]
    number = f"{mean(apart):+.0f}"
    if interval is None or half is None:
        return f"{number} ({in_words('one seed', language)})".replace("-", "−"), 0
    sure = len(apart) >= FEWEST_SEEDS and abs(mean(apart)) > half and interval.low * interval.high > 0
    words = f"{number} ({interval.low:+.0f} … {interval.high:+.0f}, {len(apart)} {in_words('seeds', language)})"
    return words.replace("-", "−"), (1 if mean(apart) > 0 else -1) if sure else 0


if __name__ == "__main__":
    main()
