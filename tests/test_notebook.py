"""What notebooks show: HTML of results, escaped; progress bars; and what caches print."""

from __future__ import annotations

import builtins
import re
import sys
import types
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway._common import notebook
from headway._common.progress import Telling, nobody, notebook_bar
from headway.coordinates import Coordinates
from headway.inspection._table import DataTable
from headway.masks import Boolean, Causal, Documents, KeepFirst, Mask, Window
from headway.positions import ENCODINGS

EVIL = "<script>alert('1')</script>&"


class Checked(HTMLParser):
    """Reads HTML, and notes its tags and text; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_everything_is_escaped() -> None:
    for html in (
        notebook.heading(EVIL),
        notebook.paragraph(EVIL),
        notebook.table([[EVIL, 1.0]], [EVIL, EVIL]),
        notebook.grid([[True, False]], EVIL, EVIL),
        DataTable([{EVIL: EVIL, "n": 2}])._repr_html_(),
    ):
        found = Checked(html)
        assert "script" not in found.tags
        assert EVIL in found.text


def test_a_table_has_its_rows_and_numbers_on_the_right() -> None:
    rows = DataTable([{"layer": "a", "entropy": 1.23456}, {"layer": "b", "entropy": 2.0, "more": 1}])
    html = rows._repr_html_()
    found = Checked(html)
    assert [found.tags.count(tag) for tag in ("table", "tr", "th", "td")] == [1, 3, 3, 6]
    assert "1.235" in found.text
    assert '<td style="text-align:right">1.235</td>' in html
    assert '<td style="text-align:left">a</td>' in html
    assert Checked(DataTable()._repr_html_()).tags.count("tr") == 0


def test_a_capture_and_an_explanation() -> None:
    layer = hw.nn.MultiHeadAttention(32, 4)
    with hw.capture(layer) as seen:
        layer(torch.randn(1, 9, 32))
    assert "entropy" in Checked(seen.table()._repr_html_()).text
    q = torch.randn(1, 4, 9, 8)
    found = hw.explain(q, q, q, mask=Causal())
    html = Checked(found._repr_html_())
    for line in str(found).splitlines():
        for said in re.split(r"^  (\w+): ", line):
            assert said in html.text
    assert f'<th style="text-align:left">{found.kernel}</th>' in found._repr_html_()


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding(name: str) -> None:
    for example in ENCODINGS[name].examples():
        found = Checked(example._repr_html_())
        assert repr(example) in found.text
        assert "learned numbers" in found.text


def dark(html: str) -> list[int]:
    """The dark cells, in the order of rows."""
    return [color == notebook.DARK for color in re.findall(r'<rect [^>]*fill="([^"]+)"', html)]  # type: ignore[misc]


@pytest.mark.parametrize(
    "mask", [Causal(), Causal() & Window(left=3), Causal() & (Window(left=1) | KeepFirst(2))], ids=repr
)
def test_a_mask_is_drawn(mask: Mask) -> None:
    at = Coordinates.span(16)
    html = mask._repr_html_()
    assert "svg" in Checked(html).tags
    assert dark(html) == mask.allowed(at, at).flatten().tolist()


def test_masks_of_tensors_are_drawn_at_their_size() -> None:
    seen = torch.rand(20, 30) < 0.5
    assert dark(Boolean(seen)._repr_html_()) == seen.flatten().tolist()
    ids = torch.arange(20) // 7
    assert dark(Documents(ids)._repr_html_()) == (ids[:, None] == ids).flatten().tolist()
    assert "svg" not in Checked(Documents()._repr_html_()).tags  # whose documents only a call knows
    assert "svg" not in Checked(Boolean(torch.ones(100, 100, dtype=torch.bool))._repr_html_()).tags


class OfOnesOwn(Mask):
    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        raise KeyError("a mask that cannot be drawn")


def test_a_mask_is_written_with_the_shapes_of_its_tensors() -> None:
    text = Checked((Causal() & (Window(left=3) | Boolean(torch.ones(3, 3, dtype=torch.bool))))._repr_html_()).text
    assert text.startswith("Causal() & (Window(left=3) | Boolean(values=[3, 3]))")


def test_a_mask_that_cannot_be_drawn_is_named() -> None:
    assert "OfOnesOwn" in Checked(OfOnesOwn()._repr_html_()).text


# ---------------------------------------------------------------- caches


def test_what_caches_print() -> None:
    layer = hw.nn.MultiHeadAttention(32, 4, num_kv_heads=2, encoding=hw.encoding("rope", head_dim=8))
    cache = hw.nn.KeyValueCache()
    assert repr(cache) == "KeyValueCache(empty)"
    with torch.no_grad():
        layer(torch.randn(3, 5, 32), mask=Causal(), cache=cache)
    assert repr(cache) == (
        "KeyValueCache(5 tokens; keys [3, 2, 5, 8], values [3, 2, 5, 8], float32 on cpu, 1.875 KiB; prepared by RoPE)"
    )
    config = hw.models.TransformerConfig(vocab_size=20, embed_dim=32, num_layers=2, num_heads=4)
    model = hw.models.Decoder(config)
    stack = model.new_cache()
    assert repr(stack) == "StackCache(2 layers; empty)"
    with torch.no_grad():
        model(torch.zeros(1, 6, dtype=torch.long), cache=stack)
    assert repr(stack) == "StackCache(2 layers; 1 row of 6 tokens, float32 on cpu, 3 KiB)"


# ---------------------------------------------------------------- progress


def test_without_a_notebook_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with notebook_bar() as tell:
        assert tell is nobody


def test_a_notebook_shows_a_bar_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the classes of IPython and ipywidgets by which rich knows and fills a notebook."""
    pytest.importorskip("rich.progress")

    class ZMQInteractiveShell:
        pass

    shown: list[Any] = []

    class Output:
        outputs: tuple[Any, ...] = ()

        def __enter__(self) -> Output:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def clear_output(self, *, wait: bool) -> None:
            pass

        def close(self) -> None:
            pass

    display = types.ModuleType("IPython.display")
    display.display = lambda *given, **_: shown.extend(given)  # type: ignore[attr-defined]
    widgets = types.ModuleType("ipywidgets")
    widgets.Output = Output  # type: ignore[attr-defined]
    for name, module in (
        ("IPython", types.ModuleType("IPython")),
        ("IPython.display", display),
        ("ipywidgets", widgets),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    told: list[Any] = []
    monkeypatch.setattr("rich.progress.Progress.update", lambda bar, task, **what: told.append(what))
    with notebook_bar() as tell:
        assert tell is not nobody
        watch = Telling(tell)
        watch.planned(["a setting"], 1, 4)
        watch.progressed("rope, seed 0: training", 0.375)
        watch.measured("rope, seed 0", [])
    assert any(isinstance(one, Output) for one in shown)
    assert told == [{"completed": 0.375, "description": "rope, seed 0: training"}]
