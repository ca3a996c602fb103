"""docs/models.md is in step with the families."""

import re
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.checkpoints import FAMILIES
from headway.testing.checkpoints import CLOSE, cells
from weights import facts

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = {
    row[0]: row[1:]
    for line in DOCS.read_text(encoding="utf-8").splitlines()
    if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 5 and row[4].startswith("`")
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_row_of_a_family(name: str) -> None:
    title, encodings, architectures = cells(name)
    assert title in ROWS, "write the table anew: python -m headway.testing.checkpoints"
    assert ROWS[title][0] == encodings
    assert ROWS[title][3] == architectures
    if FAMILIES[name].oracle is None:
        assert all(float(figure) <= CLOSE for figure in ROWS[title][1:3])
    else:
        assert ROWS[title][1] == FAMILIES[name].oracle


def test_no_row_is_left_over() -> None:
    assert set(ROWS) == {cells(name)[0] for name in FAMILIES}


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines."""
    held: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0], held)
    return held


def test_sentences_are_as_alike_as_the_page_says(weights: Callable[[str], Path], page: dict[str, Any]) -> None:
    text, (cat, kitten, markets) = DOCS.read_text(encoding="utf-8"), facts("minilm")["sentences"]
    near, far = (page["alike"](weights("minilm"), cat, other) for other in (kitten, markets))
    assert f'"{cat}" and "{kitten}" alike by {near:.2f}, and "{markets}" by −{-far:.2f}.' in text


@pytest.mark.slow
def test_the_answer_of_the_page(weights: Callable[[str], Path], page: dict[str, Any]) -> None:
    (file,) = weights("smollm2").glob("*.gguf")
    said = page["answer"](file, "Name the capital of France.")
    assert f"```text\n{said}\n```" in DOCS.read_text(encoding="utf-8")


def test_the_transcript_of_the_page(weights: Callable[[str], Path], page: dict[str, Any]) -> None:
    with wave.open(str(weights("audio") / "beckett.wav")) as file:
        samples = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 32768
    said = page["transcript"](weights("whisper"), samples)
    assert f'"{said.strip()}"' in DOCS.read_text(encoding="utf-8")
