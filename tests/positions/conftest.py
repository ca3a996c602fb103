"""What the tests of encodings share: one with parameters of size one against its own oracle, and a layer's cache."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.masks import Causal
from headway.nn import KeyValueCache, MultiHeadAttention
from headway.positions import Pair, PositionEncoding
from headway.properties import Pairs
from headway.testing.inputs import on_axes

Gap = Callable[..., float]
CheckCache = Callable[[MultiHeadAttention, int], None]


def as_coordinates(positions: Tensor | Coordinates | None, n: int) -> Coordinates:
    if isinstance(positions, Tensor):
        return Coordinates.of(positions, len(positions))
    return Coordinates.span(n) if positions is None else positions


def drawn(encoding: PositionEncoding) -> PositionEncoding:
    """The encoding in float64, its parameters drawn from N(0, 1): a table near zero would hide everything."""
    encoding = copy.deepcopy(encoding).double().requires_grad_(False)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


def size_of(encoding: PositionEncoding, name: str, otherwise: int) -> int:
    """A size that the encoding or a part of it holds, and is not None."""
    held = (getattr(part, name, None) for part in encoding.modules())
    return next((size for size in held if size is not None), otherwise)


@pytest.fixture
def score_gap() -> Gap:
    """The largest difference between what the hooks give a pair and what the oracle says, scores and values."""

    def gap(encoding: PositionEncoding, positions: Tensor | Coordinates | None = None, n: int = 7) -> float:
        encoding = drawn(encoding)
        at = on_axes(as_coordinates(positions, n), encoding.axes)
        n = at.index.shape[1]
        heads, head_dim = size_of(encoding, "num_heads", 4), size_of(encoding, "head_dim", 8)
        q, k, v = torch.randn(3, heads, n, head_dim, dtype=torch.float64)
        x = torch.randn(n, size_of(encoding, "embed_dim", heads * head_dim), dtype=torch.float64)
        pairs = Pairs(encoding, q, k, at, at, x[None], x[None])
        scores, added = pairs.scores(), sum(pairs.values(), torch.zeros(1, 1, 1, 1))
        added = added.expand(heads, n, n, head_dim)
        seen = pairs.transformed(v) + added
        scale, largest = encoding.default_scale(head_dim), 0.0
        for h in range(heads):
            for i in range(n):
                for j in range(i + 1 if encoding.causal_only else n):
                    pair = Pair(h, i, j, q, k, x, at, scale)
                    score, value = encoding.oracle(pair), encoding.oracle_value(pair, v)
                    largest = max(largest, abs(score - scores[h, i, j].item()))
                    largest = max(largest, (value - seen[h, i, j]).abs().max().item())
        return largest

    return gap


@pytest.fixture
def embed_gap() -> Gap:
    """The largest difference between ``embed`` and the oracle's."""

    def gap(encoding: PositionEncoding, positions: Tensor | Coordinates | None = None, n: int = 7) -> float:
        encoding = drawn(encoding)
        at = on_axes(as_coordinates(positions, n), encoding.axes)
        x = torch.randn(1, at.index.shape[1], size_of(encoding, "embed_dim", 6), dtype=torch.float64)
        return float((encoding.embed(x, at)[0] - encoding.oracle_embed(x[0], at)).detach().abs().max())

    return gap


@pytest.fixture
def check_cache() -> CheckCache:
    """Checks a layer in float64: steps with a cache give what a full pass gives, on an input of a width.

    One of two rows is padded in front, and a step has up to four tokens.
    """

    def check(layer: MultiHeadAttention, width: int) -> None:
        x, at = torch.randn(2, 9, width, dtype=torch.float64), Coordinates.padded([6, 9], 9)
        with torch.no_grad():
            full = layer(x, mask=Causal(), positions=at)
            cache, cuts = KeyValueCache(), ((0, 4), (4, 8), (8, 9))
            each = [layer(x[:, a:b], mask=Causal(), positions=at.rows(a, b), cache=cache) for a, b in cuts]
        steps = torch.cat(each, dim=1)
        torch.testing.assert_close(steps[1], full[1])
        torch.testing.assert_close(steps[0, 3:], full[0, 3:])

    return check
