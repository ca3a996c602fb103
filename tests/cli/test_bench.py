import re
from dataclasses import replace
from pathlib import Path

import pytest

from headway import cli
from headway._common.language import speaking
from headway.bench import Case, Plan, run, verify
from headway.bench.cases import TABLE
from headway.bench.run import BenchResults
from headway.cli._console import console
from headway.cli.bench import conclude

TINY = Plan(
    lengths=(16,), dims=(8,), dtypes=("float32",), masks=("none",), encodings=("none", "t5"), parts=("attention",)
)
FAST = ["--seconds", "0", "--rounds", "1"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("headway.cli.bench.FULL", replace(TINY, flex_seconds=0.0))
    monkeypatch.setattr(verify, "term_names", lambda: ["none"])
    monkeypatch.setattr(verify, "mask_names", lambda: ["causal"])
    monkeypatch.chdir(tmp_path)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["bench", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_whole_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, printed, errors = bench(capsys, *FAST, "--out", "out")
    assert (code, errors) == (0, "")
    for said in ("none, full, 16 tokens", "× SDPA, dense bias", "kernel ", "out/bench.md"):
        assert said in printed
    assert "Targets" not in printed, "none of them is of 16 tokens"
    text = (tmp_path / "out" / "bench.md").read_text()
    assert "headway bench --seconds 0.0 --rounds 1 --out out\n" in text
    assert "| t5 | full | 8 |" in text
    code, printed, _ = bench(capsys, *FAST, "--out", "out")
    assert code == 0
    assert "4 cases, 4 of them measured before" in printed
    _, printed, _ = bench(capsys, *FAST, "--out", "out", "--fresh")
    assert "4 of them" not in printed


def test_what_is_measured_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    choice = ["--lengths", "8,12", "--dims", "4", "--dtypes", "bfloat16", "--masks", "causal", "--encodings", "alibi"]
    code, printed, _ = bench(capsys, *FAST, *choice, "--only", "forward", "--parts", "attention")
    assert code == 0
    assert "2 cases" in printed
    for n in (8, 12):
        assert f"alibi, causal, {n} tokens, 8 heads of 4, bfloat16, forward: " in printed


def test_an_encoding_of_ones_own_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from headway.positions import PositionEncoding\n"
        "from headway.terms import Clip, DistanceBias, Rows\n"
        "class Mine(PositionEncoding):\n"
        "    def __init__(self, num_heads):\n"
        "        super().__init__()\n"
        "        self.table = torch.nn.Parameter(torch.randn(num_heads, 9))\n"
        "    def terms(self, q, k, q_input=None, k_input=None):\n"
        "        return (DistanceBias(Rows(self.table, Clip(-4, 4))),)\n"
    )
    code, printed, _ = bench(capsys, *FAST, "--encodings", "mine.py:Mine", "--only", "backward")
    assert code == 0
    assert "× SDPA, dense bias with its gradient" in printed


def test_ctrl_c_says_how_to_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", interrupted)
    code, _, errors = bench(capsys, *FAST, "--out", "out")
    assert code == 130
    assert errors == "headway: stopped; the same command resumes from out\n"


def test_a_failed_check_is_an_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run, "failing", lambda cases, doing: ({run.kernel_of(case): "wrong" for case in cases}, "nothing")
    )
    code, printed, _ = bench(capsys, *FAST)
    assert code == 1
    assert "whose checks fail: wrong" in printed
    assert "no number" in printed
    assert " ms" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lengths", "16,x"], "lengths is '16,x'"),
        (["--lengths", "0"], "lengths has 0"),
        (["--dims", "x"], "dims is 'x'"),
        (["--dtypes", "float8"], "there is no dtype 'float8'"),
        (["--only", "sideways"], "there is no direction 'sideways'"),
        (["--parts", ","], "parts is empty"),
        (["--encodings", "rop"], "no encoding 'rop'"),
        (["--encodings", "sinusoidal"], "does nothing in attention"),
        (["--encodings", "learned("], "has a bracket or quote without its other half"),
        (["--rounds", "0"], "rounds is 0"),
        (["--seconds", "-1"], "seconds is -1.0"),
        (["--seconds", "long"], "--seconds"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    code, _, errors = bench(capsys, *arguments)
    assert code == 2
    assert said in errors
    assert errors.startswith("headway: ")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bench_speaks_chinese_and_writes_english(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["--language", "zh", "bench", *FAST, "--out", "out"]) == 0
    shown = capsys.readouterr().out
    assert "共 4 项\n" in shown
    assert "t5，无掩码，16 个词元，8 个头，每头 8 维，float32，反向：" in shown
    assert "速度是“SDPA（稠密偏置及其梯度）”的" in shown
    assert "测量之前检查了：" in shown
    assert re.findall(r"[a-z]{2,}(?: [a-z]{2,}){2,}", shown) == []
    for file in ("bench.md", "rows.jsonl"):
        assert re.findall("[\u4e00-\u9fff]", (tmp_path / "out" / file).read_text(encoding="utf-8")) == []
    assert cli.main(["--language", "zh", "bench", *FAST, "--out", "out", "--json"]) == 0
    assert re.findall("[\u4e00-\u9fff]", capsys.readouterr().out) == []


def test_targets_are_judged_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"case": Case(n=2048, dtype=dtype).fields(), "where": {"processor": "Zen 4"}, "kernel": "cpu", "says": {}}
        | {"ms": {"headway": 1.0, "SDPA": 3.0}}
        for dtype in ("float32", "bfloat16")
    ]
    with speaking("zh"):
        conclude(console(), BenchResults(rows), ["out/bench.md"])
    shown = capsys.readouterr().out
    assert "前向，无掩码，无偏置，与 SDPA 相比" in shown
    assert "只针对 Zen 5" in shown
    assert "[bold]" not in shown


def test_table_prints_markdown_of_the_cpu_kernel_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(TABLE, lengths=(16, 24), dims=(8,), cache_length=64, row_length=64, encodings=("none", "t5"))
    monkeypatch.setattr("headway.cli.bench.TABLE", tiny)
    code, printed, errors = bench(capsys, "--table", *FAST)
    assert code == 0
    assert printed.startswith("## Attention on ")
    assert "16 · 24 tokens" in printed
    assert "Kernels: cpu." in printed
    [line] = re.findall(r"^\| t5, full \| (.*) \|$", printed, re.MULTILINE)
    assert len(line.split(" | ")) == 4
    assert all(re.fullmatch(r"\d+\.\d\d · \d+\.\d\d×", cell) for cell in line.split(" | "))
    assert "| 64 | 16 | 4 | bfloat16 |" in printed
    assert "| packed | 8 of 8 tokens in 64 | t5 | float32 | backward |" in printed
    assert "t5, full, 16 tokens" in errors, "progress goes to standard error"


@pytest.mark.parametrize("other", [["--quick"], ["--json"], ["--models", "weights"]])
def test_table_refuses_options_that_contradict_it(capsys: pytest.CaptureFixture[str], other: list[str]) -> None:
    code, printed, errors = bench(capsys, "--table", *other)
    assert (code, printed) == (2, "")
    assert f"leave out {other[0]}" in errors
