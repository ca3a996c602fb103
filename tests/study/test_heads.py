"""What heads do while a comparison trains them: written beside the results, without a change to any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway._common import training
from headway.inspection import read_head_log
from headway.models import Decoder, TransformerConfig
from headway.study import ComparisonResults, ProgressListener, compare, heads, report
from headway.study.heads import HeadWatch

WINDOWS = torch.randint(20, (6, 8), generator=torch.Generator().manual_seed(0))


def logs(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each log, by the name of the encoding in its file's."""
    return {path.name.partition("-")[0]: read_head_log(path) for path in sorted((out / "heads").iterdir())}


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda results, out: None)  # it draws pictures, which takes longest


class Stops(ProgressListener):
    """Interrupts as soon as this is done."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def progressed(self, doing: str, share: float) -> None:
        if self.doing in doing:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (600, [0, 75, 150, 225, 300, 375, 450, 525, 600]),
        (1000, [0, 125, 250, 375, 500, 625, 750, 875, 1000]),
        (149, [0, 149]),
        (4, [0, 4]),
    ],
)
def test_steps_that_are_logged(tmp_path: Path, steps: int, wanted: list[int]) -> None:
    model = Decoder(TransformerConfig(vocab_size=20, embed_dim=8, num_heads=2, num_layers=1))
    watch = HeadWatch(model, tmp_path / "heads.jsonl", WINDOWS, steps)
    for step in range(1, steps + 1):
        watch.after(step)
    assert list(dict.fromkeys(row["step"] for row in read_head_log(tmp_path / "heads.jsonl"))) == wanted


def test_transformers_have_a_log_and_numbers_stay(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**tiny, "baselines": ("lstm",), "recall_steps": 2}
    logged = compare(text_file, ["rope"], **settings, out=tmp_path)
    found = logs(tmp_path)
    assert list(found) == ["rope"]
    last = [row for row in found["rope"] if row["step"] == 4]
    assert len(found["rope"]) == 2 * len(last) == 4
    row = logged.any_row("rope")
    assert row["heads"] == {
        "normalized_entropy": pytest.approx(sum(one["normalized_entropy"] for one in last) / 2),
        "first": pytest.approx(sum(one["first"] for one in last) / 2),
        "previous_token": max(one["previous_token"] for one in last),
        "induction": max(one["induction"] for one in last),
    }
    assert logged.any_row("lstm (equal time)")["heads"] is None
    page = report.page(logged)
    assert f"<td>{row['heads']['induction']:.3f}</td>" in page.partition("What the heads do")[2]

    monkeypatch.setattr(HeadWatch, "after", lambda self, *given: None)
    plain = compare(text_file, ["rope"], **{**settings, "baselines": ()})
    for one, other in zip(plain.rows, logged.rows, strict=False):
        for name in ("encoding", "length", "bits_per_byte", "sliding_bits_per_byte", "recall", "train_loss_bits"):
            assert one[name] == other[name]
    assert plain.any_row("rope")["heads"] is None
    assert "What the heads do" not in report.page(plain)


@pytest.mark.parametrize("seconds", [0.0, 1e9])  # from the last checkpoint; from the start
def test_a_comparison_that_goes_on_doubles_no_steps(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(heads, "STEPS", 1)
    compare(text_file, ["rope"], **tiny, out=tmp_path / "whole")
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope"], **tiny, out=tmp_path / "out", watch=Stops("language model, step 3"))
    compare(text_file, ["rope"], **tiny, out=tmp_path / "out")
    assert logs(tmp_path / "out") == logs(tmp_path / "whole")
    assert [row["step"] for row in logs(tmp_path / "out")["rope"]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_checkpoint_has_the_log(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a training goes on elsewhere, where no file but the checkpoint is."""
    monkeypatch.setattr(heads, "STEPS", 1)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    compare(text_file, ["rope"], **tiny, out=tmp_path / "whole")
    for number, moment in enumerate(("language model, step 3", "measuring")):
        out = tmp_path / f"{number}"
        with pytest.raises(KeyboardInterrupt):
            compare(text_file, ["rope"], **tiny, out=out, watch=Stops(moment))
        (log,) = (out / "checkpoints").glob("*.heads.jsonl")
        log.unlink()
        compare(text_file, ["rope"], **tiny, out=out)
        assert logs(out) == logs(tmp_path / "whole")


def test_a_training_that_an_earlier_version_ended_has_no_numbers_of_its_end(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose checkpoint has no log."""
    monkeypatch.setattr(HeadWatch, "state_dict", lambda self: {})
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope"], **tiny, out=tmp_path, watch=Stops("measuring"))
    (log,) = (tmp_path / "checkpoints").glob("*.heads.jsonl")
    log.unlink()
    assert compare(text_file, ["rope"], **tiny, out=tmp_path).any_row("rope")["heads"] is None


def test_a_training_that_diverged_has_none(tmp_path: Path) -> None:
    model = Decoder(TransformerConfig(vocab_size=20, embed_dim=8, num_heads=2, num_layers=1))
    watch = HeadWatch(model, tmp_path / "heads.jsonl", WINDOWS, 1)
    with torch.no_grad():
        model.stack.blocks[0].attention.q_proj.weight.fill_(torch.nan)
    watch.after(1)
    assert watch.summary() == dict.fromkeys(("normalized_entropy", "first", "previous_token", "induction"))


def test_results_without_it_have_a_report(text_file: Path, tiny: dict[str, Any]) -> None:
    results = compare(text_file, ["none"], **tiny)
    assert "What the heads do" in report.page(results)
    for row in results.rows:
        row["heads"] = None
    assert "What the heads do" not in report.page(ComparisonResults(results.rows, results.protocol))
