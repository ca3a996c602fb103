"""Rotary positions of images against timm, whose own start would need torchvision: only two of its files are read."""

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions._encodings.axial_rope import AxialRoPE
from headway.positions._encodings.dinov3_rope import DINOv3RoPE
from headway.positions._encodings.interleaved_m_rope import InterleavedMRoPE
from headway.positions._encodings.mixed_rope import MixedRoPE
from headway.positions._encodings.sinusoidal import Sinusoidal

ROW_COLUMN = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])[None]


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """timm.layers.pos_embed_sincos, with empty packages around it."""
    found = importlib.util.find_spec("timm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("timm is not installed")
    root = found.submodule_search_locations[0]
    for name, where in (("timm", root), ("timm.layers", f"{root}/layers")):
        package = types.ModuleType(name)
        package.__path__ = [where]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        monkeypatch.setitem(sys.modules, name, package)
    before = set(sys.modules)
    yield importlib.import_module("timm.layers.pos_embed_sincos")
    for name in set(sys.modules) - before:
        if name.startswith("timm."):
            del sys.modules[name]


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_axial(timm: Any, layout: str, indexing: str) -> None:
    """Rows turn the first half of the pairs with "ij", columns with "xy"."""
    half, x = layout == "half", torch.randn(1, 2, 6, 16)
    theirs = timm.RotaryEmbeddingCat(
        16, in_pixels=False, temperature=100.0, rotate_half=half, grid_indexing=indexing
    ).get_embed([2, 3])
    places = ROW_COLUMN if indexing == "ij" else ROW_COLUMN.flip(-1)
    found = AxialRoPE(16, layout=layout).prepare(x, Coordinates.of(places, 6))
    torch.testing.assert_close(found, timm.apply_rot_embed_cat(x, theirs, half=half), atol=1e-6, rtol=0)


def test_mixed(timm: Any) -> None:
    x, ours = torch.randn(1, 2, 6, 16), MixedRoPE(2, 16)
    theirs = timm.RotaryEmbeddingMixed(32, depth=2, num_heads=2)
    ours.f.data = theirs.freqs.data[:, 1]
    found = ours.prepare(x, Coordinates.of(ROW_COLUMN.flip(-1), 6)).detach()
    expected = timm.apply_rot_embed_cat(x, theirs.get_embed([2, 3])[1]).detach()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_dinov3(timm: Any) -> None:
    x = torch.randn(1, 2, 6, 16)
    theirs = timm.RotaryEmbeddingDinoV3(16, temperature=100.0).get_embed([2, 3])
    found = DINOv3RoPE(16, grid=(2, 3)).prepare(x, Coordinates.of(ROW_COLUMN, 6))
    torch.testing.assert_close(found, timm.apply_rot_embed_cat(x, theirs, half=True), atol=2e-6, rtol=0)


def test_interleaved_m_rope(timm: Any) -> None:
    x = torch.randn(1, 2, 6, 16)
    theirs = timm.RotaryEmbeddingMRope(16, mrope_section=(2, 3, 3)).get_embed([2, 3])
    places = torch.cat([torch.zeros(1, 6, 1).long(), ROW_COLUMN], dim=-1)
    found = InterleavedMRoPE(16, (2, 3, 3), base=10000.0).prepare(x, Coordinates.of(places, 6))
    torch.testing.assert_close(found, timm.apply_rot_embed_cat(x, theirs, half=True), atol=1e-6, rtol=0)


@pytest.mark.parametrize("interleave", [False, True])
def test_sinusoids_on_two_axes(timm: Any, interleave: bool) -> None:
    """Theirs has rows first, and with interleave_sin_cos sine and cosine of one axis before those of the next."""
    theirs = timm.build_sincos2d_pos_embed([2, 3], 32, interleave_sin_cos=interleave)
    if not interleave:
        theirs = theirs.unflatten(1, (2, 2, 8)).transpose(1, 2).flatten(1)  # sine, axis → axis, sine
    ours = Sinusoidal(32, variant="concatenated", axes=2).embed(torch.zeros(1, 6, 32), ROW_COLUMN)[0]
    torch.testing.assert_close(ours, theirs)
