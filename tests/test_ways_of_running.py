"""Every way in which torch runs a module gives what the plain call gives, or an error that says what to do instead."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ways

PAGE = Path(__file__).parents[1] / "docs" / "ways-of-running.md"
CELLS = [
    pytest.param(way, module, id=f"{name}-{module}", marks=[pytest.mark.slow] if way.slow else [])
    for name, way in ways.WAYS.items()
    for module in ways.MODULES
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Torch warns of what it will do otherwise one day; threads stay as they were."""
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("way", "module"), CELLS)
def test_right_or_refused(way: ways.Way, module: str) -> None:
    if module == "Llama of transformers":
        pytest.importorskip("transformers")
    for package in way.needs:
        pytest.importorskip(package)
    if module in way.refused:
        with pytest.raises((ways.hw.HeadwayError, RuntimeError), match=way.refused[module]):
            way.run(*ways.made(module))
        return
    found, right = way.run(*ways.made(module)), way.against(*ways.made(module))
    assert found
    assert found.keys() <= right.keys()
    assert all(found[name].shape == right[name].shape for name in found)
    if way.within is not None:
        assert max(ways.differences(found, right).values()) <= way.within


def test_what_trains_has_every_gradient() -> None:
    """A way that gives no gradient of a parameter would compare nothing."""
    for name in ("activation checkpointing", "functional_call", "DistributedDataParallel", "FSDP2 (fully_shard)"):
        module, x = ways.made("MultiHeadAttention")
        right = ways.plainly(*ways.made("MultiHeadAttention"))
        assert ways.WAYS[name].run(module, x).keys() == right.keys(), name


def test_a_wrong_result_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ways.plainly(*ways.made("Decoder"))
    wrong = {name: value.clone() for name, value in right.items()}
    next(reversed(wrong.values()))[0] += 1e-3
    assert ways.differences(right, right) == {"output": 0, "gradients": 0}
    assert ways.differences(wrong, right)["gradients"] > 1e-5


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"<!-- ways -->\n\n(.*)\n\n<!-- end of ways -->", text, re.S)
    assert found is not None
    assert found[1] == ways.table(), "put tests/ways.py's table() there"
