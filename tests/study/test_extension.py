"""What is measured of a model that reads further than its window, and what is concluded from it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import headway
from headway import HeadwayError
from headway.study import extension
from headway.study.extension import METHODS, RESTARTED, Extension, extended, losses, measure

from ..checkpoints.small_llama import WINDOW, small, tokens

RESCALED = [name for name in METHODS if name != "none"]


def test_dynamic_changes_nothing_within_the_window() -> None:
    model, ids = small(), tokens(4 * WINDOW + 1)
    plain = losses(model, ids, WINDOW)
    with extended(model, "dynamic", 4.0):
        dynamic = losses(model, ids, WINDOW)
    assert torch.equal(plain[:WINDOW], dynamic[:WINDOW])
    assert not torch.allclose(plain[WINDOW:], dynamic[WINDOW:], atol=1e-3)


def test_losses_are_those_of_a_single_pass() -> None:
    model, ids = small(), tokens(3 * WINDOW + 6)
    expected = F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="none")
    torch.testing.assert_close(losses(model, ids, WINDOW), expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_restarts_reads_each_window_alone() -> None:
    model, ids = small(), tokens(2 * WINDOW + 1)
    alone = torch.cat([losses(model, ids[: WINDOW + 1], WINDOW), losses(model, ids[WINDOW:], WINDOW)])
    assert torch.equal(losses(model, ids, WINDOW, restart=True), alone)
    assert not torch.allclose(losses(model, ids, WINDOW)[WINDOW:], alone[WINDOW:], atol=1e-3)


def test_measured(tmp_path: Path) -> None:
    """Every method on the same tokens; each number is the mean of the losses at those positions."""
    model, text = small(), tokens(400).tolist()
    found = measure(model, text, factor=4.0, out=tmp_path, windows=2)
    assert found.methods == ["none", RESTARTED, *RESCALED]
    assert found.columns == [(0, 8), (8, 16), (16, 32), (32, 64)]
    windows = [torch.tensor(text[start : start + 65]) for start in (0, 65)]
    with extended(model, "yarn", 4.0):
        ours = torch.stack([losses(model, one, WINDOW) for one in windows])[:, 16:32].double().mean(1)
    value, error = found.perplexity("yarn", 16, 32)
    assert value == pytest.approx(ours.mean().exp().item(), rel=1e-4)
    assert error == pytest.approx(value * ours.std().item() / math.sqrt(2), rel=1e-3)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2 * len(found.methods)
    assert not headway.nn.prepacked.is_prepacked(model)


def test_the_token_that_begins_a_text_stands_before_each_window(tmp_path: Path) -> None:
    model, text = small(), tokens(200).tolist()
    found = measure(model, text, ["none"], factor=2.0, out=tmp_path, windows=2, first=[7])
    expected = losses(model, torch.tensor([7, *text[32:64]]), WINDOW)
    assert found.nats("none", 0, 32)[1] == pytest.approx(expected.mean().item(), rel=1e-4)


def test_it_goes_on_from_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = small(), tokens(400).tolist()
    given: dict[str, Any] = {"factor": 2.0, "out": tmp_path}
    done: list[str] = []
    real: Callable[..., Any] = extension._measured

    def stopped(model: Any, method: str, *rest: Any) -> Any:
        if method == "yarn" and "yarn" not in done:
            done.append(method)
            raise KeyboardInterrupt
        done.append(method)
        return real(model, method, *rest)

    monkeypatch.setattr(extension, "_measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(model, text, ["linear", "yarn"], **given)
    kept = (tmp_path / "results.jsonl").read_text()
    assert [json.loads(line)["method"] for line in kept.splitlines()] == ["none", RESTARTED, "linear"]
    found = measure(model, text, ["linear", "yarn"], **given)
    assert done == ["none", RESTARTED, "linear", "yarn", "yarn"]
    assert (tmp_path / "results.jsonl").read_text().startswith(kept)
    assert found.methods == ["none", RESTARTED, "linear", "yarn"]
    more = measure(model, text, ["yarn", "ntk"], windows=2, **given)
    assert done[5:] == ["none", RESTARTED, "yarn", "ntk", "ntk"]
    assert (more.windows, more.methods) == (2, ["none", RESTARTED, "yarn", "ntk"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"nats": [', '"nats": [1.0, '),
        ('"nats": [', '"nats": [900.0, '),
        ('"edges": [0', '"edges": [1'),
        ('"nats"', '"mats"'),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, before: str, after: str) -> None:
    def found() -> Extension:
        return measure(small(), list(range(40)), ["linear"], factor=2.0, out=tmp_path)

    found()
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(HeadwayError, match=r"results.jsonl (line 1 is damaged|has rows of other positions)"):
        found()


def test_another_model_or_text_is_refused(tmp_path: Path) -> None:
    model, text = small(), tokens(400).tolist()
    measure(model, text, ["none"], factor=2.0, out=tmp_path)
    with pytest.raises(HeadwayError, match="with tokens ="):
        measure(model, text[1:], ["none"], factor=2.0, out=tmp_path)
    with pytest.raises(HeadwayError, match=r"with factor = 2\.0, now factor = 4\.0"):
        measure(model, text, ["none"], factor=4.0, out=tmp_path)
    with torch.no_grad():
        model.stack.blocks[1].attention.q_proj.weight[0, 0] += 1
    with pytest.raises(HeadwayError, match="with weights ="):
        measure(model, text, ["none"], factor=2.0, out=tmp_path)


def test_a_text_too_short(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="the text has 64 tokens but a window takes 65"):
        measure(small(), tokens(64).tolist(), factor=4.0, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for wrong in ({"length": 0}, {"windows": 0}):
        with pytest.raises(HeadwayError, match="give at least 1"):
            measure(small(), tokens(64).tolist(), factor=4.0, out=tmp_path / "new", **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the report


def made(nats: dict[str, list[list[float]]], length: int = 32) -> Extension:
    rows = [
        {"method": name, "window": number, "length": length, "edges": list(range(0, length + 1, 2)),
         "nats": [inside] * 8 + [beyond] * (length // 2 - 8), "seconds": 1.0}
        for name, windows in nats.items()
        for number, (inside, beyond) in enumerate(windows)
    ]  # fmt: skip
    settings = {"quick": False, "model": "m", "text": "t", "window": WINDOW, "factor": 2.0, "dtype": "float32"}
    settings["lengths"] = [length]
    return Extension(rows, settings, list(nats))


def test_what_is_concluded() -> None:
    two, three, four, ten = map(math.log, (2, 3, 4, 10))
    found = made({"none": [[two, ten]], RESTARTED: [[two, four]], "yarn": [[three, three]]})
    said = " ".join(found.conclusions())
    assert "beyond" in said.lower()
    assert "has a perplexity of 10.00 beyond the window, and 2.00 within it" in said
    assert "restarted model has 4.00 beyond the window. Compared with that: yarn −25.0 %" in said
    assert "yarn +50.0 %" in said
    assert "one window of text" in said
    assert "| yarn | 3.00 | 3.00 | **3.00** | 1 |" in found.markdown()


def test_errors_are_of_differences_on_the_same_text() -> None:
    """Two windows of different difficulty; in both, one method is better by a tenth."""
    found = made({"none": [[1.0, 5.0], [1.0, 4.0]], "yarn": [[1.0, 5.0 + math.log(0.9)], [1.0, 4.0 + math.log(0.9)]]})
    assert found.against("yarn", "none", 16, 32) == "−10.0 ± 0.0 %"
    value, error = found.perplexity("none", 16, 32)
    assert value == pytest.approx(math.exp(4.5))
    assert error == pytest.approx(0.5 * value)


def test_the_report_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = made({"none": [[1.0, 9.0]], RESTARTED: [[1.0, 2.0]], "yarn": [[1.5, 1.5]]})
    found.write(tmp_path)
    assert (tmp_path / "extension.png").read_bytes()[:4] == b"\x89PNG"
    report = (tmp_path / "extension.md").read_text()
    assert "The lowest perplexity of each column is bold." in report
    assert "![Perplexity by position](extension.png)" in report
    for sentence in (*found.protocol(), *found.conclusions()):
        assert f"\n- {sentence}\n" in report


def test_a_window_that_eight_does_not_divide() -> None:
    assert extension._edges(27, 11)[-3:] == [24, 26, 27]
    assert {0, 11, 22, 27} <= set(extension._edges(27, 11))
