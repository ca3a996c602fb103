"""The language of commands: one table, which has every sentence that the sources say, and no other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from string import Formatter
from types import ModuleType

import pytest

import headway
from headway._common import _chinese
from headway._common._chinese import CHINESE, REASONS
from headway._common.experiment import write_report
from headway._common.extras import PACKAGES
from headway._common.language import columns_of, listed, of_environment, padded, retold, said, speaking, wrapped
from headway.bench.targets import MODEL_TARGETS, PROCESSORS, TARGETS
from headway.cli import encodings, main
from headway.cli._diagnosis import CHECKS, VARIABLES
from headway.positions import EVIDENCE, KINDS
from headway.study import ComparisonResults, Protocol
from headway.study._word_vectors_results import COLUMNS
from headway.study.suite import SuiteProtocol, SuiteResults
from headway.study.tasks import SEQUENCE_TASKS
from headway.tuning import Tuned

SOURCES = Path(headway.__file__).parent
TABLES = {
    *encodings.PLACES.values(),
    *encodings.COLUMNS,
    *KINDS,
    *KINDS.values(),
    *EVIDENCE,
    *EVIDENCE.values(),
    *CHECKS,
    *VARIABLES.values(),
    *(package.needed_for for package in PACKAGES.values()),
    *(task.counts for task in SEQUENCE_TASKS.values()),
    *(target.what for target in (*TARGETS, *MODEL_TARGETS)),
    *(f"for {processor}" for processor in PROCESSORS.values()),
}
"""What ``said`` gets from tables."""
COLUMN_TITLES = {column.title for column in COLUMNS}
"""Titles; the names of test sets and units in them have no translation."""
SAID_BY_NAME = {
    *("Chinese", "English", "chinese", "english"),  # languages
    *("language model", "recall"),  # tasks of a comparison
    *("inference", "training"),  # directions of calls
    *("Chinese or Japanese",),  # scripts
    *("system", "processor", "cores", "threads", "float32 matmul precision", "file", "interface", "instruction set"),
    *("loaded", "compiler", "bounds", "cache of headway", "published weights", "weights there", "cache of the hub"),
    *("cache of the Hugging Face hub", "models there", "Chinese in pictures", "error"),  # facts of ``headway doctor``
    *("yes", "no", "not its job", "unknown"),  # verdicts on encodings
    *("isa", "met", "missed"),  # facts and verdicts of ``headway bench``
}
"""Values that are said by a name."""


def strings(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def sentences(path: Path) -> set[str]:
    """The first arguments of ``said`` and ``to_say`` in a file, and the strings that ``map`` hands to them."""
    found: set[str] = set()
    assigned: dict[str, set[str]] = {}
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.IfExp)):
            either = (node.value.body, node.value.orelse) if isinstance(node.value, ast.IfExp) else (node.value,)
            for name in node.targets:
                assigned.setdefault(getattr(name, "id", ""), set()).update(*map(strings, either))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("said", "to_say"):
                calls.append(node.args[0])
            if node.func.id == "map" and getattr(node.args[0], "id", "") in ("said", "to_say"):
                found |= strings(node.args[1]) if isinstance(node.args[1], (ast.Tuple, ast.IfExp)) else set()
    for asked in calls:
        if isinstance(asked, ast.Constant):
            found.add(str(asked.value))
        elif isinstance(asked, ast.IfExp):
            found |= strings(asked.body) | strings(asked.orelse)
        elif isinstance(asked, ast.Name):
            found |= assigned.get(asked.id, set())
    return found


def fields(sentence: str) -> set[str | None]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


def spoken() -> set[str]:
    every: set[str] = set().union(*(sentences(path) for path in SOURCES.rglob("*.py")))
    return every


def test_the_table_has_every_sentence_and_no_other() -> None:
    assert (spoken() | TABLES | SAID_BY_NAME) - CHINESE.keys() == set()
    assert CHINESE.keys() - spoken() - TABLES - SAID_BY_NAME - COLUMN_TITLES == set()
    assert all(fields(english) == fields(chinese) for english, chinese in CHINESE.items())


def test_the_viewer_counts_layers_and_heads_from_0() -> None:
    """层 2，头 8: an ordinal, 第 2 层, would count from 1."""
    said = (Path(__file__).parents[1] / "viewer/src/language.ts").read_text(encoding="utf-8")
    assert re.findall(r"第 ?\$\{", said) == []
    assert "`层 ${layer}，头 ${head}`" in said


def test_no_sentence_is_in_two_files_of_the_table() -> None:
    files = [vars(module)[name.upper()] for name, module in vars(_chinese).items() if isinstance(module, ModuleType)]
    counts = Counter(key for table in files for key in table)
    assert counts.keys() == CHINESE.keys() | REASONS.keys()
    assert [key for key, count in counts.items() if count > 1] == []


def skeleton(node: ast.AST) -> str | None:
    """A string of the sources with {} for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def test_reasons_are_those_of_the_sources() -> None:
    made = {skeleton(node) for path in SOURCES.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))}
    assert [one for one in REASONS if re.sub(r"\{\w+\}", "{}", one) not in made] == []
    assert all(fields(chinese) <= fields(english) for english, chinese in REASONS.items())


def test_a_reason_is_told_again_with_its_values() -> None:
    reason = "more than 200 different tokens: they have 171"
    assert retold(reason) == reason
    with speaking("zh"):
        assert retold(reason) == "多于 200 个不同的词元，而这里只有 171 个"
        assert retold("a reason of nobody {x}") == "a reason of nobody {x}"


def test_lists_and_columns() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    with speaking("zh"):
        assert listed(["a", "b", "c"]) == "a、b 和 c"
    assert columns_of("小猫 e\u0301") == 6
    assert padded("小猫", 6) == "小猫  "


def test_a_sentence_is_said_in_the_chosen_language() -> None:
    assert said("head {head}", head=3) == "head 3"
    with speaking("zh"):
        assert said("head {head}", head=3) == "头 3"
        assert said("a name without a translation") == "a name without a translation"
    assert said("head {head}", head=3) == "head 3"


@pytest.mark.parametrize(
    ("names", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "de_DE.UTF-8"}, "en"),
        ({"LANG": "", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, names: dict[str, str], language: str) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert of_environment() == language


def test_commands_speak_by_option_and_by_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["inspect", "小猫吃苹果。", "--roles", "broad"]
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert main(["--language", "zh", *asked]) == 0
    assert "中文小模型：角色由" in capsys.readouterr().out
    assert main(asked) == 0
    assert "small chinese model: roles measured on" in capsys.readouterr().out
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(asked) == 0
    assert "中文小模型" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert "roles measured on 400 planted sentences in Chinese" in capsys.readouterr().out
    assert main(["--language", "latin", *asked]) == 2
    assert "latin" in capsys.readouterr().err
    assert main([*asked, "--language", "zh"]) == 2
    assert "headway --language zh inspect" in capsys.readouterr().err


ENGLISH = re.compile(r"[A-Za-z]{2,}(?: [a-z]{2,}){2,}")
"""Three words of a sentence."""


@pytest.mark.parametrize(
    "asked",
    [
        ["encodings"],
        ["plan", "--tokens", "1M", "--heads", "32", "--head-dim", "128", "--ranks", "64", "--flops", "h100"],
        ["plan", "--tokens", "4k", "--heads", "6", "--head-dim", "64", "--ranks", "4"],
        ["compare", "--tasks", "help"],
    ],
    ids=" ".join,
)
def test_chinese_commands_print_no_english_sentence(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--language", "zh", *asked]) == 0
    shown = capsys.readouterr().out
    assert re.search("[\u4e00-\u9fff]", shown)
    assert ENGLISH.findall(shown) == []


@pytest.mark.parametrize("columns", [20, 47, 120])
def test_chinese_lines_are_full_and_lose_nothing(columns: int) -> None:
    text = "文本：book.txt，按字节读，sha256 71f2ff5d99bd。最后十分之一整段留出（什么都不凭它来选），"
    text += "长度为 1,024、2,048 字节。"
    lines = wrapped(text, columns).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(columns_of, lines)) <= columns + 4  # a sign that ends something stays on its line
    assert all(columns_of(line) > columns - 16 for line in lines[:-1])
    assert not any(line[0] in "，。；：、）”" for line in lines)


def compared(seeds: int, **fields: dict[str, float]) -> ComparisonResults:
    """Results of four encodings and a baseline, one of which hardly learned and one of which has no loss."""
    settings = Protocol(train_length=16, lengths=(16, 64), steps=6, learning_rates=(0.002, 0.005), recall_steps=2)
    protocol = settings.fixed("书.txt", "0" * 64)
    losses = {"rope": 2.0, "alibi": 2.1, "t5": 2.1, "none": 5.0, "broken": None, "lstm (equal time)": 2.2}
    rows = [
        {
            "encoding": name,
            "seed": seed,
            "length": length,
            "view_of": None,
            "baseline": name.startswith("lstm"),
            "steps": 6 + 10 * seed,
            "train_seconds": 6.0,
            "learning_rate": 0.005,
            "learning_rates": {"0.002": 3.0, "0.005": 2.0},
            "bits_per_byte": loss and loss + length / 100 + 0.01 * seed * (name == "alibi"),
            **{field: values.get(name) for field, values in fields.items()},
        }
        for name, loss in losses.items()
        for length in protocol.lengths
        for seed in range(seeds)
    ]
    return ComparisonResults(rows, protocol, settings={"counted": {"2-gram": 4.0, "5-gram": 2.2}})


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_what_a_comparison_says_is_chinese(seeds: int) -> None:
    found = compared(seeds, recall={"rope": 0.95, "alibi": 0.2})
    with speaking("zh"):
        said_there = [*found.protocol.text(), *found.summary(), *found.warnings(), *found.conclusions()]
    assert [english for sentence in said_there for english in ENGLISH.findall(sentence)] == []
    assert len(said_there) > 20
    assert "Encodings, trained for 6" in found.conclusions()[0]


@pytest.mark.parametrize("exact", [(1.0, 0.5), (1.0, 0.1), (0.2, 0.0)])
def test_what_a_suite_says_is_chinese(exact: tuple[float, float]) -> None:
    facts = {"trained": 8, "validation": exact[0], "learned": exact[0] > 0.9, "steps": 50, "accuracy": 1.0}
    rows = [
        {"task": "copy", "encoding": name, "seed": seed, "times": times, "length": 8 * times, "exact": value, **facts}
        for name, worse in {"rope": 0.0, "alibi": 0.05}.items()
        for seed in range(3)
        for times, value in zip((1, 2), (exact[0], exact[1] - worse * (1 + 0.1 * seed)), strict=True)
    ]
    found = SuiteResults(rows, {**vars(SuiteProtocol()), "times": [1, 2]}, ["rope", "alibi"])
    with speaking("zh"):
        said_there = [*found.protocol(), *found.summary(), *found.conclusions()]
    assert [english for sentence in said_there for english in ENGLISH.findall(sentence)] == []


def test_what_tune_found_is_chinese() -> None:
    case = {"direction": "training", "terms": "none", "dtype": "float32"}
    rows = [{"case": case, "times": {"cpu": 1.0, "sdpa": 1.5}}]
    rows.append({"case": {"product": "forward", "dtype": "float32"}, "times": {"onednn": 1.0, "torch": 1.1}})
    content = {"fits": {"name": "CPU"}, "verified": {"cpu": ["a"]}, "failed": {"cpu": {"b": "off"}}, "rows": rows}
    with speaking("zh"):
        shown = str(Tuned(Path("table.json"), content, left=2))
    assert "cpu：检查了 2 项，1 项正确" in shown
    assert ENGLISH.findall(shown) == []
    assert "cpu: right in 1 of 2 checked parts" in str(Tuned(Path("table.json"), content))


def test_files_of_reports_are_english(tmp_path: Path) -> None:
    with speaking("zh"):
        write_report({"report.md": lambda: said("one seed")}, tmp_path)
        assert said("one seed") == "一个种子"
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "one seed"


def test_doctor_speaks_chinese(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SOMETHING", "1")
    main(["--language", "zh", "doctor"])
    shown = capsys.readouterr().out
    kernels = "it runs on"  # reasons of `explain`, as errors
    assert [english for english in ENGLISH.findall(shown) if not re.match(kernels, english)] == []
    assert "设了 HEADWAY_SOMETHING，但 headway 不读它" in shown
    main(["--language", "zh", "doctor", "--json"])
    assert "HEADWAY_SOMETHING is set, and headway does not read it" in capsys.readouterr().out
