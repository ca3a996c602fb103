"""Lowering: masks as intervals of key slots, several terms as one, sinusoids as tables; on the call's own device."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import Coordinates
from headway import masks as M
from headway import terms as T
from headway.kernels import Call, _ops
from headway.kernels._problem import tensors_in, without_tables
from headway.kernels.lowering import lower, sinusoids
from headway.kernels.lowering.masks import lower_mask, slots
from headway.masks import Bounds, Slot
from headway.positions import RoPE
from headway.testing.kernels import build, mask_examples

BATCH, N, KEYS = 2, 7, 11

# ---------------------------------------------------------------- masks


def _span(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    return Coordinates.span(n, start=m - n), Coordinates.span(m)


def _far(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """Queries that are not the last of the keys."""
    return Coordinates.span(n, start=4), Coordinates.span(m, start=2)


def _unknown(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    q, k = _span(n, m)
    return replace(q, start=None), k


def _unknown_keys(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    q, k = _far(n, m)
    return q, replace(k, start=None)


def _padded(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    k = Coordinates.padded([m, m - 5], m, side="left")
    return k.rows(m - n, m), k


def _padded_queries(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """The queries lie in one row of the batch otherwise than in the other, the keys do not."""
    return Coordinates.padded([n, max(0, n - 2)], n, side="left"), Coordinates.span(m)


def _gaps(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """A number is known for the first slot, and the others are in no order."""
    index = ((torch.arange(m) * 5 + 2) % (m + 4))[None]
    k = Coordinates(index[..., None], index, start=2)
    return k.rows(m - n, m), k


def _gaps_in_queries(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    return _gaps(n, m)[0], Coordinates.span(m)


def _shuffled(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """Rows with padding, whose slots are in no order."""
    k = Coordinates.padded([m, m - 5], m, side="left").rows(0, m)._with(ordered=False)
    k = k._with(index=k.index.flip(1))
    return k.rows(m - n, m), k


def _packed(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    k = Coordinates.packed([m // 3, m - m // 3])
    return k.rows(m - n, m), k


PLACES = {place.__name__[1:]: place for place in (
    _span, _far, _unknown, _unknown_keys, _padded, _padded_queries, _gaps, _gaps_in_queries, _shuffled, _packed,
)}  # fmt: skip


def dense(mask: M.Mask | None, n: int, m: int, q: Coordinates, k: Coordinates) -> Tensor:
    return torch.ones(BATCH, 1, n, m, dtype=torch.bool) if mask is None else mask.allowed(q, k).expand(BATCH, 1, n, m)


def within(bounds: Bounds, n: int, m: int) -> Tensor:
    """The keys between two bounds [BATCH, 1, n, m], by what ``masks.Bound`` says of them."""
    start, stop = (torch.arange(n)[None] + bound.offset if isinstance(bound, Slot) else bound for bound in bounds)
    start, stop = (bound[:, None, :, None] if isinstance(bound, Tensor) else bound for bound in (start, stop))
    slot = torch.arange(m)
    seen = (slot >= (0 if start is None else start)) & (slot < (m if stop is None else stop))
    return seen.expand(BATCH, 1, n, m)


def lowered(found: tuple[Bounds, ...], rest: M.Mask | None, n: int, m: int, q: Coordinates, k: Coordinates) -> Tensor:
    seen = torch.full((BATCH, 1, n, m), not found)
    for bounds in found:
        seen = seen | within(bounds, n, m)
    return seen & dense(rest, n, m, q, k)


@dataclass(frozen=True, eq=False)
class Between(M.Mask):
    """A user's own mask, which says its interval: the slots that its bounds name."""

    bounds: Bounds

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return within(self.bounds, q.index.shape[1], k.index.shape[1])

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return self.bounds


def examples(n: int, m: int) -> dict[str, M.Mask | None]:
    """Every kind of mask with an interval, and those that testing has."""
    return {
        **mask_examples(BATCH, n, m),
        "padding by coordinates": M.Padding(),
        "keep first": M.KeepFirst(2),
        "by row": M.Prefix(torch.tensor([1, 6], dtype=torch.int32)),
        "chunks": M.Chunked(3, previous=1),
        "documents in order": M.Documents(torch.arange(m) // 3),
        "documents by row": M.Documents(torch.stack([torch.arange(m) // 3, torch.arange(m) // 4 - 1])),
        "documents that come again": M.Documents(torch.arange(m) % 3),
    }


def draw_bound(r: random.Random) -> M.Bound:
    """Any bound, beyond the keys too."""
    return r.choice([
        None,
        r.randint(-3, KEYS + 3),
        Slot(r.randint(-N - 3, KEYS + 3)),
        torch.tensor([[r.randint(-3, KEYS + 3) for _ in range(r.choice((1, N)))]] * r.choice((1, BATCH))),
    ])  # fmt: skip


def draw(r: random.Random, depth: int) -> M.Mask:
    if not depth or r.random() < 0.2:
        given = [mask for mask in examples(N, KEYS).values() if mask is not None]
        return Between((draw_bound(r), draw_bound(r))) if r.random() < 0.6 else r.choice(given)
    a, b = draw(r, depth - 1), draw(r, depth - 1)
    return a & b if r.random() < 0.5 else a | b


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", examples(N, KEYS))
def test_a_lowered_mask_allows_what_the_mask_allows(name: str, place: str) -> None:
    for n, m in ((N, KEYS), (KEYS, KEYS), (1, KEYS)):
        mask = examples(n, m)[name]
        q, k = PLACES[place](n, m)
        assert torch.equal(lowered(*lower_mask(mask, q, k), n, m, q, k), dense(mask, n, m, q, k))
        if n == m and mask is not None:
            assert torch.equal(lowered(*lower_mask(mask, k, k), n, m, k, k), dense(mask, n, m, k, k))


@pytest.mark.parametrize("place", PLACES)
def test_any_masks_joined(place: str) -> None:
    """Bounds of every kind meet bounds of every other kind, in masks of headway's and of a user's own."""
    q, k = PLACES[place](N, KEYS)
    r = random.Random(place)
    met = set()
    for _ in range(150):
        mask = draw(r, r.randint(1, 3))
        found, rest = lower_mask(mask, q, k)
        assert len(found) <= 2
        assert torch.equal(lowered(found, rest, N, KEYS, q, k), dense(mask, N, KEYS, q, k)), mask
        met |= {(type(a), type(b)) for a, b in found}
    assert {kind for pair in met for kind in pair} == {type(None), int, Slot, Tensor}


def test_bounds_as_tensors() -> None:
    """Numbers that fit no tensor and slots far beyond the keys mean what they say."""
    for place in PLACES.values():
        q, k = place(N, KEYS)
        for offset in (-(10**30), -N - 1, -2, 0, 3, KEYS, KEYS + 5, 10**30):
            literal = torch.tensor([[max(-100, min(offset, 100)) + i for i in range(N)]])
            found = slots(Slot(offset), q, k)
            assert found.shape[1] == N
            assert torch.equal(found.clamp(0, KEYS), literal.clamp(0, KEYS).expand_as(found))
            assert slots(offset, q, k).clamp(0, KEYS).tolist() == [[max(0, min(offset, KEYS))]]
        wide = M.Window(1 << 62, 0) & Between((None, torch.full((1, 1), 4)))
        assert torch.equal(lowered(*lower_mask(wide, q, k), N, KEYS, q, k), dense(wide, N, KEYS, q, k))
        for near in (Between((Slot(-1), torch.full((1, 1), 4))), Between((torch.full((1, 1), 1), Slot(2)))):
            both = near & Between((-(10**30), 10**30))
            assert torch.equal(lowered(*lower_mask(both, q, k), N, KEYS, q, k), dense(near, N, KEYS, q, k))


def test_rules_travel_as_rules() -> None:
    """Where the slots of both sides are known by a number, causal masks and windows hold no tensor."""
    causal, window = M.Causal(), M.Window(3, 1)
    for (q, k), ahead in ((_span(N, KEYS), KEYS - N), (_far(N, KEYS), 2)):
        assert lower_mask(causal, q, k) == (((None, Slot(ahead + 1)),), None)
        assert lower_mask(window, q, k) == (((Slot(ahead - 3), Slot(ahead + 2)),), None)
        assert lower_mask(causal & window, q, k) == (((Slot(ahead - 3), Slot(ahead + 1)),), None)
        assert lower_mask(causal & M.Window(2) & window, q, k) == (((Slot(ahead - 2), Slot(ahead + 1)),), None)
        two = ((None, Slot(ahead + 1)), (Slot(ahead - 3), Slot(ahead + 2)))
        assert lower_mask(causal | window, q, k) == (two, None)
    at = _padded(KEYS, KEYS)[1]
    assert lower_mask(window, at, at) == (((Slot(-3), Slot(2)),), None)  # of one and the same slots
    assert lower_mask(M.Padding(), *_span(N, KEYS)) == ((), None)
    assert lower_mask(M.Window() | causal, *_span(N, KEYS)) == ((), None)
    assert lower_mask(M.KeepFirst(3), *_far(N, KEYS)) == (((-2, 1),), None)
    for place in (_unknown, _unknown_keys, _padded, _padded_queries, _gaps_in_queries):
        [(_, stop)], _ = lower_mask(causal, *place(N, KEYS))
        assert isinstance(stop, Tensor)
    assert lower_mask(causal, *_gaps(N, KEYS)) == ((), causal)


def _late(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """The last of the keys, which begin later in the stream, as under a window."""
    return Coordinates.span(n, start=3 + m - n), Coordinates.span(m, start=3)


def test_an_operator_finds_the_rule_again() -> None:
    """It is not told where tokens begin, which varies with length, but that queries are the last of the keys."""
    q, k = torch.randn(1, 2, N, 4), torch.randn(1, 2, KEYS, 4)
    for place, aligned in ((_span, True), (_late, True), (_far, False)):
        where = place(N, KEYS)
        call = without_tables(Call(q, k, k, *where, mask=M.Causal(), aligned=aligned))
        assert call.q_coordinates.start is None
        found = lower(call)
        assert found.mask is None
        assert torch.equal(lowered(found.intervals, found.rest, N, KEYS, *where), dense(call.mask, N, KEYS, *where))
        assert isinstance(found.intervals[0][1], Slot if aligned else Tensor)


def _plain(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """Positions whose largest is not a number of tokens, though their length is."""
    k = Coordinates.of(torch.arange(m) // 4, m, start=3)
    return k.rows(m - n, m), k


def _padded_alone(n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """One row, with padding behind its tokens."""
    k = Coordinates.padded([m - 4], m, side="right")
    return k.rows(m - n, m), k


Place = Callable[[int, int], tuple[Coordinates, Coordinates]]


@pytest.mark.parametrize("place", [*PLACES.values(), _late, _plain, _padded_alone], ids=lambda place: place.__name__)
def test_what_an_operator_is_told_says_the_same_mask(place: Place) -> None:
    q, k = torch.randn(BATCH, 2, N, 4), torch.randn(BATCH, 2, KEYS, 4)
    where = place(N, KEYS)
    known = place in (_span, _late, _plain, _padded, _padded_alone, _packed)
    for (name, mask), aligned in product(examples(N, KEYS).items(), {False, known}):
        found = lower(without_tables(Call(q, k, k, *where, mask=mask, aligned=aligned)))
        seen = lowered(found.intervals, found.rest, N, KEYS, found.q_coordinates, found.k_coordinates)
        assert torch.equal(seen, dense(mask, N, KEYS, *where)), name


def test_the_structure_of_an_operator_holds_no_number_that_varies_with_length() -> None:
    def structure(start: int, n: int, m: int) -> str:
        q, k = torch.randn(1, 2, n, 4), torch.randn(1, 2, m, 4)
        at = RoPE(4).place(Coordinates.span(n, start=start + m - n)), Coordinates.span(m, start=start)
        mask = M.Causal() & M.Window(3) & M.Padding() & M.Documents()
        return _ops.write(_ops.flatten(without_tables(Call(q, k, k, *at, mask=mask)), []))

    assert structure(3, 1, 9) == structure(4, 2, 12)


def test_of_no_queries_and_of_no_keys() -> None:
    for n, m in ((0, 3), (3, 0), (0, 0)):
        for mask in (M.Causal() & M.Padding([1, 2]), M.Chunked(2), Between((None, 3))):
            assert lower_mask(mask, Coordinates.span(n), Coordinates.span(m)) == ((), None)


# ---------------------------------------------------------------- whose interval counts


class OfThree(M.Causal):
    """Says both: its interval is its own."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (torch.arange(k.index.shape[1]) < 3)[None, None, None]

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return None, 3


class Faster(OfThree):
    """Says what is allowed above it as another interval."""

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return 0, 3


class Below(Faster):
    """Says nothing itself."""


class Ahead(OfThree):
    """Allows something else than the interval above it."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return (torch.arange(k.index.shape[1]) >= 3)[None, None, None]


class Beside(M.Mask):
    """An interval and a reach of nothing that is allowed."""

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return None, 1

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        return 0, 1


class Mixed(Beside, OfThree):
    """The class that says the interval does not stand below the one that says what is allowed."""


@pytest.mark.parametrize(
    ("mask", "found"),
    [(OfThree(), ((None, 3),)), (Faster(), ((0, 3),)), (Below(), ((0, 3),)), (Ahead(), ()), (Mixed(), ())],
)
def test_an_interval_counts_for_its_own_allowed(mask: M.Mask, found: tuple[Bounds, ...]) -> None:
    q, k = _span(N, KEYS)
    assert lower_mask(mask, q, k) == (found, None if found else mask)
    assert mask.reach(0, N, N, KEYS) == (0, KEYS)
    for each in (mask, mask & M.Causal(), M.Window(1) | mask):
        assert torch.equal(lowered(*lower_mask(each, q, k), N, KEYS, q, k), dense(each, N, KEYS, q, k))


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (2.5, "a float"),
        (True, "a bool"),
        (torch.zeros(1, N), r"a tensor of shape \(1, 7\) and torch.float32"),
        (torch.zeros(1, N, dtype=torch.bool), r"a tensor of shape \(1, 7\) and torch.bool"),
        (torch.zeros(N, dtype=torch.long), r"a tensor of shape \(7,\) and torch.int64"),
        (torch.zeros(1, KEYS, dtype=torch.long), r"a tensor of shape \(1, 11\) and torch.int64"),
    ],
)
def test_bounds_of_a_users_own_that_are_none(bound: Any, message: str) -> None:
    for bounds in ((bound, None), (None, bound)):
        with pytest.raises(
            hw.HeadwayError, match=rf"Between\.interval returns {message}: return None, an int, a masks"
        ):
            lower_mask(M.Causal() & Between(bounds), *_span(N, KEYS))


# ---------------------------------------------------------------- documents


def test_documents_one_after_another_are_an_interval() -> None:
    at = Coordinates.packed([3, 4, 4])
    for q in (at, at.rows(4, KEYS)):
        n = q.index.shape[1]
        for documents in (M.Documents(), M.Documents(at.document), M.Documents.lengths([3, 4, 4])):
            mask = M.Causal() & documents
            [bounds], rest = lower_mask(mask, q, at)
            assert rest is None
            assert torch.equal(within(bounds, n, KEYS), dense(mask, n, KEYS, q, at))
    back = M.Documents(torch.tensor([0, 0, 1, 1, 0]))
    assert lower_mask(back, Coordinates.span(5), Coordinates.span(5)) == ((), back)


# ---------------------------------------------------------------- the call's own device


def on_meta(part: Any) -> Any:
    """The same with its tensors on a device that has no values: whoever reads one raises."""
    if isinstance(part, Tensor):
        return part.to("meta")
    if isinstance(part, tuple):
        return tuple(map(on_meta, part))
    if not hasattr(part, "_with"):
        return part
    return part._with(**{name: on_meta(value) for name, value in vars(part).items()})


def kinds(intervals: tuple[Bounds, ...]) -> list[type]:
    return [type(bound) for bounds in intervals for bound in bounds]


@pytest.mark.parametrize("name", ["none", "relative keys, sinusoids", "sink by query"])
@pytest.mark.parametrize("mask", [*mask_examples(BATCH, N, KEYS), "documents"])
def test_lowering_reads_values_on_a_processor_alone(name: str, mask: str) -> None:
    """A device with streams would have to wait for them."""
    documents = M.Causal() & M.Documents(torch.arange(KEYS) // 3)
    call, _ = build(name, "sink", "none" if mask == "documents" else mask, 0, torch.float32, torch.bfloat16)
    if mask == "documents":
        call = call._with(mask=documents)
    here, there = lower(call), lower(on_meta(call))
    assert all(x.device.type == "meta" for x in tensors_in((there.q, there.k, there.v, there.terms, there.rest)))
    assert all(x.device.type == "meta" for bounds in there.intervals for x in bounds if isinstance(x, Tensor))
    if mask == "documents":
        assert there.intervals == ((None, Slot(KEYS - N + 1)),)
        assert type(there.rest) is M.Documents
    else:
        assert kinds(there.intervals) == kinds(here.intervals)
        assert type(there.rest) is type(here.rest)
    assert not any(isinstance(term, T.RelativeKeys) and isinstance(term.rows, T.Sinusoids) for term in there.terms)


# ---------------------------------------------------------------- several terms as one


def test_several_temperatures_and_sinks_are_one() -> None:
    factors = [torch.rand(1, 4, 1) + 0.5, torch.rand(2, 1, N) + 0.5, torch.rand(1, 1, N).bfloat16() + 0.5]
    logits = [torch.randn(4), torch.randn(2, 4, N), torch.randn(4)]
    cap = T.SoftCap(5.0)
    terms = (*map(T.Sink, logits), *map(T.QueryScale, factors), cap)
    q, k = torch.randn(2, 4, N, 8), torch.randn(2, 4, KEYS, 8).bfloat16()
    call = Call(q, k, k, *_span(N, KEYS), terms=terms)
    found = lower(call)
    assert [type(term) for term in found.terms] == [T.QueryScale, T.SoftCap, T.Sink]
    temperature, _, sink = found.terms
    torch.testing.assert_close(temperature.factor, factors[0] * factors[1] * factors[2].float())
    by_query = torch.stack([x if x.ndim == 3 else x[:, None].expand(2, 4, N) for x in logits])
    torch.testing.assert_close(sink.logits, by_query.double().exp().sum(0).log().float())
    assert found.q.dtype == found.k.dtype == found.v.dtype == torch.float32  # of several dtypes
    of_a_part = lower(call._with(include_sink=False))
    assert [type(term) for term in of_a_part.terms] == [T.QueryScale, T.SoftCap]
    alone = (T.Sink(logits[0]), cap, T.QueryScale(factors[0]))
    assert lower(call._with(terms=alone)).terms is alone


# ---------------------------------------------------------------- sinusoids

RATES = torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)


@pytest.mark.parametrize(("steps", "kept"), [(3, 1 << 20), (2048, 1 << 20), (3, 0)])
@pytest.mark.parametrize("reach", [(-7, 0), (-7, 5), (-2, 9), (0, 0), (0, 6), (-9, -3), (2, 8), (1, 1)])
def test_table_of_sinusoids(reach: tuple[int, int], steps: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinusoids, "STEPS", steps)
    monkeypatch.setattr(sinusoids, "KEPT", kept)
    weight = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    rates = RATES.clone().requires_grad_()
    angle = -torch.arange(reach[0], reach[1] + 1).double()[:, None] * rates
    expected = torch.cat([angle.sin(), angle.cos()], -1) @ weight.mT
    found = sinusoids.SinusoidTable.apply(weight, rates, *reach)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    grads = (torch.autograd.grad(x, (weight, rates), upstream) for x in (found, expected))
    torch.testing.assert_close(*grads)


def test_sinusoids_are_computed_once_for_each_set_of_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compute = sinusoids._falling
    monkeypatch.setattr(sinusoids, "_falling", lambda steps, *rest: made.append(len(steps)) or compute(steps, *rest))
    weight = torch.randn(2, 4, 6)

    def table(rates: Tensor, low: int) -> Tensor:
        found: Tensor = sinusoids.SinusoidTable.apply(weight, rates, low, 0)
        return found

    rates = RATES * 1.25  # which no other test has
    first = table(rates, -100)
    assert torch.equal(table(rates.clone(), -100), first)
    assert torch.equal(table(rates, -40), first[:, 60:])
    assert made == [2048]
    assert not torch.equal(table(rates / 2, -100), first)
    table(rates, -2048)
    assert made == [2048, 2048, 4096]
    for _ in range(2):
        table(rates, -500_000)  # too many to be kept
    assert sum(made[3:]) == 2 * 500_001


@pytest.mark.parametrize(
    ("mask", "positions", "reach"),
    [
        (None, torch.arange(6), (-5, 5)),
        (M.Causal(), torch.arange(6), (-5, 0)),
        (M.Causal(), torch.arange(6).flip(0), (-5, 5)),
        (M.Window(2, 1), torch.arange(6) * 10, (-20, 10)),
        (M.Prefix(1) | M.Window(1, 0), torch.arange(6), (-5, 0)),
        (M.Dilated(2), torch.arange(6), (-5, 5)),
        (M.Padding([0, 0]), torch.arange(6), (0, 0)),
        (None, torch.arange(6) / 2, None),
    ],
)
def test_distances_in_sight(mask: M.Mask | None, positions: Tensor, reach: tuple[int, int] | None) -> None:
    where = Coordinates.of(positions, 6)
    intervals, _ = lower_mask(mask, where, where)
    assert sinusoids.distances(intervals, where, where, 0) == reach


def test_documents_that_coordinates_state_to_be_in_order_are_not_read() -> None:
    """On a device whose values cannot be read they are intervals all the same."""
    real = Coordinates.packed([2, 4])
    document, position, index = (x.to("meta") for x in (real.document, real.position, real.index))  # type: ignore[union-attr]
    packed = real._with(document=document, position=position, index=index, rising=document)
    intervals, rest = lower_mask(M.Documents(), packed, packed)
    assert len(intervals) == 1
    assert rest is None
    unknown = packed._with(rising=None)
    assert lower_mask(M.Documents(), unknown, unknown)[1] is not None
    for at in (real, real._with(rising=None)):
        ((start, stop),), _ = lower_mask(M.Documents(), at, at)
        assert start.tolist() == [[0, 0, 2, 2, 2, 2]]  # type: ignore[union-attr]
        assert stop.tolist() == [[2, 2, 6, 6, 6, 6]]  # type: ignore[union-attr]
