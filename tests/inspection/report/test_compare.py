"""Two captures side by side: in a table, and in one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from decoded import reports_of, scripts_of
from reports import Calls, seen

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import capture, compare_reports


def test_weights_that_move(tmp_path: Path) -> None:
    one, other = seen(40, mask=hw.masks.Causal()), seen(40, encoding="alibi")
    rows = one.compare(other, ["entropy", "first"])
    for row in rows:
        a, b = (x.weights(row["layer"], row["head"])[0].double() for x in (one, other))
        assert row["moved"] == pytest.approx(float((a - b).abs().sum(-1).mean() / 2), rel=1e-5)
        assert row["first"] == pytest.approx(float(a[:, 0].mean()), rel=1e-5)
        assert row["first of the other"] == pytest.approx(float(b[:, 0].mean()), rel=1e-5)
    assert len(rows) == 8
    assert all(row["moved"] == 0 for row in one.compare(one))


@pytest.mark.parametrize(
    ("other", "message"), [({"layers": 3}, "2 layers and the other 3"), ({"heads": 2}, "of one shape")]
)
def test_captures_that_do_not_fit(other: dict[str, int], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        seen(12).compare(seen(12, **other))


def test_two_reports_in_one_page(tmp_path: Path) -> None:
    one, other = seen(40, mask=hw.masks.Causal()), seen(40)
    path = compare_reports(one, other, tmp_path / "a.html", "1 MB", names=("causal", "both ways"))
    page = path.read_text(encoding="utf-8")
    assert len(page) <= 10**6
    top = json.loads(scripts_of(page)["headway-report"])
    assert (top["names"], top["aligned"], top["difference"]) == (["causal", "both ways"], True, None)
    assert [report["model"]["name"] for report in top["reports"]] == ["causal", "both ways"]
    for captured, report in zip((one, other), reports_of(page), strict=True):
        for number, head in enumerate(report.json["heads"]):
            true = captured.weights(head["layer"], head["head"])[0].double()
            assert (report.dense(number) - true).abs().max() <= report.json["exactness"]["dense"]


def test_two_texts_are_not_subtracted(tmp_path: Path) -> None:
    models = [Calls(5), Calls(6)]
    both = []
    for model in models:
        with torch.no_grad(), capture(model, keep="qk") as captured:
            model()
        both.append(captured)
    path = compare_reports(*both, tmp_path / "a.html")
    top = json.loads(scripts_of(path.read_text(encoding="utf-8"))["headway-report"])
    assert not top["aligned"]
    assert top["difference"] == "they read different texts"
