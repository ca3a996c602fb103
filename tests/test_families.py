"""Architectures of transformers inside which headway gives what eager attention gives, as docs/models.md has them."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from headway._common.lines import read_lines

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/families.jsonl"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("half", range(2))
def test_ten_architectures_that_the_date_draws(half: int) -> None:
    seed = str(2 * int(date.today().strftime("%Y%m%d")) + half)
    done = subprocess.run(
        [sys.executable, "-m", "families", "--drawn", "5", "--seed", seed, "--jobs", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_says_what_is_kept() -> None:
    from families import page

    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert page.written(text, read_lines(GOLDEN, "")) == text, "run python -m families --write"


def test_nothing_kept_differs() -> None:
    rows = read_lines(GOLDEN, "")
    assert len({row["architecture"] for row in rows}) > 340
    assert not [row for row in rows if any(one.startswith("differs") for one in row["outcomes"].values())]


def test_a_fault_in_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a model can fail: keys one further than they are."""
    import transformers

    import headway as hw
    from families import checks
    from headway.integrations.transformers import _attention, register

    register()
    subject = checks.Subject(transformers.LlamaForCausalLM)
    assert checks.outcome(checks.left, subject) == checks.SAME
    monkeypatch.setattr(_attention, "attention", lambda q, k, v, **given: hw.attention(q, k.roll(1, 2), v, **given))
    for way in (checks.forward, checks.left, checks.training, checks.greedy, checks.static, checks.beams):
        assert checks.outcome(way, subject).startswith("differs"), way
