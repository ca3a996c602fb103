"""``torch.onnx.export`` of every encoding: the files compute the same in onnxruntime as when they were stored."""

import json
import re
from pathlib import Path

import pytest
import torch

from headway.positions import ENCODINGS
from onnx_exports import GOLDEN, WITHIN, difference, differences

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PAGE = Path(__file__).parents[1] / "docs" / "ways-of-running.md"
OUTCOMES: dict[str, str] = json.loads(GOLDEN.read_text(encoding="utf-8"))
GROUPS = 8


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_encodings_that_are_equal_in_the_golden_file_still_are(group: int) -> None:
    names = [name for name, outcome in OUTCOMES.items() if outcome == "equal"][group::GROUPS]
    assert {name: worst for name, worst in differences(names).items() if worst > WITHIN} == {}


@pytest.mark.parametrize("found", [[1.0, float("nan")], [1.0, 2.0, 3.0], [1.0, 2.5]])
def test_what_differs_is_not_equal(found: list[float]) -> None:
    assert difference(torch.tensor(found), torch.tensor([1.0, 2.0])) > WITHIN


def test_every_encoding_has_been_exported() -> None:
    """``python tests/onnx_exports.py --write`` exports them all; what cannot be exported stands on the page."""
    assert OUTCOMES.keys() == ENCODINGS.keys()
    refused = {name: why for name, why in OUTCOMES.items() if why != "equal"}
    assert all(why.startswith("aten.") for why in refused.values())
    told = re.search(r"ONNX lacks an operator for them: (.*?)\. Torch", PAGE.read_text(encoding="utf-8"))
    assert told is not None
    assert told[1] == ", ".join(f"`{name}` (`{why}`)" for name, why in refused.items())
