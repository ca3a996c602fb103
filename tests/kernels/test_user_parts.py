"""Terms, maps and masks of a user's own class: right in the reference kernel, and in no kernel taken for another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import Coordinates
from headway import masks as M
from headway import terms as T
from headway._torch import COMPILER_FOLLOWS_DICT
from headway.kernels import reference
from headway.kernels.lowering.masks import lower_mask
from headway.nn._retention import Retention
from headway.terms import Part

N = 6


class MirroredClip(T.Clip):
    """A subclass with another function: the rows in reverse."""

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.count - 1 - super().rows(q, k)


@dataclass(frozen=True)
class Scaled(T.Bucketize):
    """A subclass that is a dataclass with a field more."""

    factor: int = 1

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (super().rows(q, k) * self.factor) % self.count


class Parity(Part):
    """A map of its own that is not a dataclass."""

    def __init__(self, classes: int) -> None:
        self.count = classes

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (k.axis()[:, None, :] - q.axis()[:, :, None]) % self.count


@dataclass(frozen=True)
class ByKey(Part):
    """A map that holds something for each key."""

    row: Tensor
    count: int

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.row[:, None].expand(1, q.index.shape[1], -1)


class MyRows(T.Rows):
    """A subclass of what stands in a row."""


@dataclass(frozen=True)
class Clip(Part):
    """Has the name of headway's map, and neither its fields nor its function."""

    shift: int
    count: int

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (k.index[:, None, :] + q.index[:, :, None] + self.shift) % self.count


@dataclass(frozen=True)
class Slotted(Part):
    """A dataclass with slots, whose boundaries are cast with the rest."""

    __slots__ = ("count",)
    count: int

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (k.index[:, None, :] * q.index[:, :, None]) % self.count


class MyBias(T.DistanceBias):
    """A subclass of a term."""


TABLE = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
MAPS: dict[str, Any] = {
    "a subclass": MirroredClip(-3, 3),
    "a subclass with a field": Scaled(torch.arange(-3, 3), factor=3),
    "no dataclass": Parity(7),
    "by key": ByKey(torch.tensor([[5, 3, 0, 1, 2, 6]]), 7),
    "headway's name": Clip(2, 7),
    "slots": Slotted(7),
}


def qkv() -> list[Tensor]:
    return [torch.randn(2, 4, N, 8, requires_grad=True) for _ in range(3)]


def literally(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
    score = q @ k.mT / 8**0.5 + bias
    return score.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", MAPS)
def test_a_map_of_a_users_own_with_gradients(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", 2 * 4 * N * N // blocks)
    inputs, table, at = qkv(), TABLE.clone().requires_grad_(), Coordinates.span(N)
    wanted = [*inputs, table]
    out = hw.attention(*inputs, terms=(T.DistanceBias(T.Rows(table, MAPS[name])),), mask=M.Causal(), kernel="reference")
    bias = table[:, MAPS[name].rows(at, at)[0]]
    expected = literally(*inputs, bias, torch.ones(N, N, dtype=torch.bool).tril())
    torch.testing.assert_close(out, expected)
    results = [torch.autograd.grad(x.square().sum(), wanted) for x in (out, expected)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("kernel", ["auto", "sdpa"])
def test_no_kernel_takes_a_map_for_another(kernel: str, name: str) -> None:
    q, k, v = (x.detach() for x in qkv())
    terms, at = (T.DistanceBias(T.Rows(TABLE, MAPS[name])),), Coordinates.span(N)
    expected = literally(q, k, v, TABLE[:, MAPS[name].rows(at, at)[0]], torch.ones(N, N, dtype=torch.bool))
    torch.testing.assert_close(hw.attention(q, k, v, terms=terms, kernel=kernel), expected)
    reasons = hw.explain(q, k, v, terms=terms).reasons["cpu"]
    assert f"it has no rows by {type(MAPS[name]).__name__}" in reasons


@pytest.mark.parametrize("term", [MyBias(T.Rows(TABLE, T.Clip(-3, 3))), T.DistanceBias(MyRows(TABLE, T.Clip(-3, 3)))])
def test_a_subclass_of_a_term_or_of_rows(term: Any) -> None:
    inputs = qkv()
    plain = T.DistanceBias(T.Rows(TABLE, T.Clip(-3, 3)))
    for kernel in ("reference", "auto"):
        found, expected = (hw.attention(*inputs, terms=(one,), kernel=kernel) for one in (term, plain))
        torch.testing.assert_close(found, expected)
    reasons = hw.explain(*inputs, terms=(term,)).reasons
    assert any("it has no" in reason for reason in reasons["cpu"])


@dataclass(frozen=True, eq=False)
class Shifted(T.Clip):
    """A subclass that holds something beside its fields."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shift", 1)

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (super().rows(q, k) + self.shift).clamp(max=self.count - 1)  # type: ignore[attr-defined]


@pytest.mark.skipif(not COMPILER_FOLLOWS_DICT, reason="torch 2.11 follows the fields of a dataclass alone")
def test_what_is_no_field_comes_along_under_the_compiler() -> None:
    q, table = torch.randn(1, 2, N, 8), torch.randn(2, 5)

    def run(q: Tensor, table: Tensor) -> Tensor:
        return hw.attention(q, q, q, terms=[T.DistanceBias(T.Rows(table, Shifted(-2, 2)))])

    found = torch.compile(run, fullgraph=True, backend="aot_eager")(q, table)
    torch.testing.assert_close(found, run(q, table))


def test_under_the_compiler() -> None:
    inputs, terms = qkv(), (T.DistanceBias(T.Rows(TABLE, MAPS["a subclass"])),)

    def run(*x: Tensor) -> Tensor:
        return hw.attention(*x, terms=terms, mask=M.Causal())

    torch.testing.assert_close(torch.compile(run, backend="aot_eager")(*inputs), run(*inputs))


def test_a_gradient_that_would_be_lost_is_refused() -> None:
    hidden = torch.randn(1, requires_grad=True)

    class Hiding(T.Rows):
        @property
        def table(self) -> Tensor:
            return TABLE * hidden

        @table.setter
        def table(self, value: Tensor) -> None:
            pass

    rows = object.__new__(Hiding)
    object.__setattr__(rows, "map", T.Clip(-3, 3))
    with pytest.raises(hw.HeadwayError, match="captures a tensor that requires a gradient"):
        hw.attention(*qkv(), terms=(T.DistanceBias(rows),), kernel="reference")


def test_a_bias_that_no_kernel_knows_is_refused() -> None:
    with pytest.raises(hw.HeadwayError, match=r"DistanceBias holds a Parity: give a bias of headway.terms"):
        hw.attention(*qkv(), terms=(T.DistanceBias(Parity(3)),))  # type: ignore[arg-type]
    with pytest.raises(hw.HeadwayError, match="a term holds rows of the class Parity"):
        hw.attention(*qkv(), terms=(T.RelativeValues(Parity(3)),))  # type: ignore[arg-type]


class MyNormalizer(T.Normalizer):
    """A subclass of what replaces the softmax."""


def test_a_sink_beside_a_subclass_of_normalizer_is_refused() -> None:
    own = MyNormalizer(lambda scores, allowed: scores.sigmoid())
    with pytest.raises(hw.HeadwayError, match="which replaces the softmax that a sink takes part in"):
        hw.attention(*qkv(), terms=(own,), sink=torch.zeros(4))


# ---------------------------------------------------------------- masks


class Strided(M.Causal):
    """Sees ahead, which Causal's own reach and interval would cut off."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return ((k.index[:, None, :] + q.index[:, :, None]) % 2 == 0)[:, None]


class Wide(M.Window):
    """Sees everything, whatever its window says."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return torch.ones(1, 1, q.index.shape[1], k.index.shape[1], dtype=torch.bool)


class Both(M.And):
    """Joins otherwise than And."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.masks[0].allowed(q, k) | self.masks[1].allowed(q, k)


MASKS = {
    "causal": Strided(),
    "window": Wide(1, 0),
    "joined": Both((M.Window(0, 0), M.KeepFirst(1))),
    "inside": M.Or((Strided(), M.Window(0, 0))),
}


@pytest.mark.parametrize("n", [1, N])
@pytest.mark.parametrize("kernel", ["auto", "cpu", "sdpa", "reference"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_a_users_own(name: str, kernel: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", 2 * 4 * N * 2)
    q, k, v = qkv()
    q = q[:, :, N - n :]
    allowed = MASKS[name].allowed(Coordinates.span(n, start=N - n), Coordinates.span(N))
    expected = literally(q, k, v, torch.zeros(()), allowed[0, 0])
    torch.testing.assert_close(hw.attention(q, k, v, mask=MASKS[name], kernel=kernel), expected)
    torch.testing.assert_close(hw.attention(q, k, v, mask=MASKS[name], kernel=kernel), expected)  # by a plan, if any


@pytest.mark.parametrize("name", MASKS)
def test_nothing_is_forgotten_under_a_mask_of_a_users_own(name: str) -> None:
    assert Retention.under(MASKS[name]) is None
    at = Coordinates.span(N)
    assert lower_mask(MASKS[name], at, at) == ((), MASKS[name])
