"""``make gpu``, where there is no GPU: what it says, its sides, and the page that it writes."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
ROW: dict[str, Any] = {
    "encoding": "t5", "n": 4096, "head_dim": 64, "learned": True, "batch": 4, "heads": 16, "dtype": "bfloat16",
    "queries": 0, "kv_heads": 0,
    "ms": {
        "forward": {"headway": 2.0, "SDPA, cuDNN": 1.0, "SDPA, flash": 1.5, "SDPA, dense bias": 3.0},
        "backward": {"headway": 5.0},
    },
    "host": {"forward": {"headway": 0.11, "SDPA, cuDNN": 0.05, "SDPA, flash": 0.06}, "backward": {"headway": 0.4}},
    "says": {"FlexAttention, backward": "OutOfMemoryError: 9 GiB"},
    "apart": {"SDPA, dense bias": 0.5},
}  # fmt: skip
DECODING = ROW | {
    "n": 32768, "head_dim": 128, "learned": False, "batch": 8, "heads": 32, "queries": 1, "kv_heads": 8,
    "ms": {"forward": {"headway": 0.4, "a copy of the keys": 0.3}}, "says": {}, "apart": {},
}  # fmt: skip
TESTS = [
    {"test": "tests/a.py::test_one", "outcome": "passed"},
    {"test": "tests/a.py::test_two", "outcome": "failed", "why": "assert 1 == 2"},
    {"test": "tests/b.py::test_three", "outcome": "skipped", "why": "no such term"},
]


def test_the_page_shows_failures_reasons_and_ratios() -> None:
    from gpu import page

    said = page.text({"GPU": "one"}, TESTS, [ROW, DECODING], 60.0)
    for part in (
        "- GPU: one",
        "1 failed, 1 passed, 1 skipped",
        "- 1 failed in tests/a.py",
        "assert 1 == 2",
        "- 1 skipped: no such term",
        "| t5, learned, 4096 tokens, head_dim 64 | 2.000 |  |  | 1.000 (0.50×) | 3.000 (1.50×) |  |",
        "| decoding, t5, 8 × 32 heads on 8, 32768 keys, head_dim 128, 2684 GB/s | 0.400 |  | 0.300 (0.75×) |",
        "| t5, learned, 4096 tokens, head_dim 64 | 0.11 + 0.40 | 0.05 |  |  |",
        "- FlexAttention, backward: OutOfMemoryError: 9 GiB",
        "**computes other numbers**: SDPA, dense bias, 0.5",
    ):
        assert part in said
    nothing = page.text({}, [], [], 0.0)
    assert "None has run." in nothing
    assert "Nothing was measured." in nothing


def test_the_quick_cases_are_of_each_kind_and_length() -> None:
    from gpu.speed import cases

    found = cases()
    assert {case.n for case in found} == {1024, 4096, 16384, 32768}
    assert {case.head_dim for case in found} == {64, 128}
    assert len(found) == len(set(found)) == 29
    assert set(found) < set(cases(quick=False))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(
    ("encoding", "queries"),
    [
        *((name, 0) for name in ("none", "alibi", "t5", "kerple", "window", "documents")),
        *((name, 0) for name in ("fire", "transformer-xl", "rope")),
        *(("t5", 1), ("alibi", 1)),
    ],
)
def test_the_sides_compute_the_same(encoding: str, queries: int) -> None:
    """Those that a CPU can run: a dense bias, and FlexAttention as it is written, not compiled."""
    import headway as hw
    from gpu.speed import Case, Sides

    case = Case(encoding, 24, 8, batch=1, heads=2, dtype="float32", queries=queries, kv_heads=queries)
    sides = Sides(case, "cpu")
    for x in (sides.q, sides.k, sides.v):
        x.requires_grad_(False)
    at = {"q_positions": sides.q_at, "k_positions": sides.at}
    with torch.no_grad():
        given = {"mask": sides.mask(), "kernel": "reference", **at, **sides.given}
        expected = hw.attention(sides.q, sides.k, sides.v, **given)
        torch.testing.assert_close(sides.flex(compiled=False), expected)
        if sides.values is not None:
            torch.testing.assert_close(sides.dense(), expected)
        if encoding == "rope":
            torch.testing.assert_close(sides.sdpa(), expected)


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gpu", run_name="__main__")
    assert ended.value.code == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_rest_for_a_gpu_names_what_there_is() -> None:
    from gpu import rest

    steps = rest.steps("cuda")
    shares = [step.until for step in steps]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    for step in steps:
        for word in step.words:
            assert not word.startswith("tests/") or (ROOT / word).exists()
            assert not word.startswith("gpu.") or (ROOT / "tests" / f"{word.replace('.', '/')}.py").exists()


def test_the_rest_for_a_gpu_checks_one_dtype(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu import rest
    from headway.tuning import _right

    seen = []

    def verify(chosen: Any, **others: Any) -> _right.Verified:
        seen.extend(chosen)
        return _right.Verified(right={"plain"}, left=2)

    monkeypatch.setattr(_right, "verify", verify)
    assert rest.check("triton", "float16", "cuda", 9.0) == 0
    assert {one.case.dtype for one in seen} == {"float16"}
    assert seen[0].case.gradients == "all"
    assert '"left": 2' in capsys.readouterr().out
