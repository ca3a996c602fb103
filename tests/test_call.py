"""What ``make_call`` makes of arguments: where rotations go, and what is left to kernels."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import terms as T
from headway.call import make_call, prepared_keys_and_values, seeded
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem
from headway.kernels._problem import without_tables
from headway.positions import ALiBi, Compose, PositionEncoding, RoPE, RotaryValues, XPos
from headway.positions._rotary import Rotary


def qkv(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 6, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]


def test_a_rotation_is_data_and_q_and_k_are_as_they_came() -> None:
    q, k, v = qkv()
    call = make_call(q, k, v, encoding=RoPE(8))
    assert call.q is q
    assert call.k is k
    assert call.q_rotation is not None
    assert call.k_rotation is not None
    torch.testing.assert_close(call.q_rotation.of(q), RoPE(8).prepare(q, Coordinates.span(6)))
    for name, kernel in KERNELS.items():
        if not kernel.why_not(Problem.of(call)):
            rotated = kernel.rotated(call)
            assert rotated.q_rotation is rotated.k_rotation is None
            torch.testing.assert_close(rotated.q, RoPE(8).prepare(q, Coordinates.span(6)), msg=name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_turns_q_and_k(kernel: str) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    call = make_call(q, k, v, encoding=RoPE(8))
    if reasons := KERNELS[kernel].why_not(Problem.of(call)):
        pytest.skip("; ".join(reasons))
    at = Coordinates.span(6)
    results = []
    for sides, encoding in (((q, k), RoPE(8)), ([RoPE(8).prepare(x, at) for x in (q, k)], None)):
        out = hw.attention(*sides, v, encoding=encoding, kernel=kernel)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_both_sides_may_be_turned_in_their_own_way() -> None:
    q, k, v = qkv()
    call = make_call(q, k, v, encoding=XPos(8), mask=hw.masks.Causal())
    assert call.q_rotation is not None
    assert call.k_rotation is not None
    assert not torch.equal(call.q_rotation.cos, call.k_rotation.cos)


def test_angles_that_want_a_gradient_are_applied_at_once() -> None:
    encoding = hw.encoding("mixed-rope", num_heads=4, head_dim=8, num_kv_heads=2)
    at = torch.randint(0, 9, (6, 2))[None]
    call = make_call(*qkv(), encoding=encoding, q_positions=at, k_positions=at)
    assert call.q_rotation is call.k_rotation is None
    assert call.q.requires_grad
    with torch.no_grad():
        call = make_call(*qkv(), encoding=encoding, q_positions=at, k_positions=at)
    assert call.q_rotation is not None


def test_cached_keys_have_their_rotation_behind_them() -> None:
    seen: list[Any] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, kernel: str = "auto", **arguments: Any) -> Tensor:
        seen.append(make_call(q, k, v, **arguments))
        return hw.attention(q, k, v, kernel=kernel, **arguments)

    layer = hw.nn.MultiHeadAttention(16, 2, encoding=RoPE(8), attend=attend)
    layer(torch.randn(1, 5, 16), cache=hw.nn.KeyValueCache())
    (call,) = seen
    assert call.q_rotation is not None
    assert call.k_rotation is None


class Doubled(RoPE):
    """A user's, which changes ``prepare`` and inherits the rotation."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return 2 * super().prepare(x, coordinates)


class Tripled(Compose):
    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        return 3 * super().prepare_query(q, coordinates)


@pytest.mark.parametrize(("encoding", "factor"), [(Doubled(8), 4), (Tripled(RoPE(8)), 3)])
def test_a_rotation_counts_only_where_prepare_is_its_own(encoding: Any, factor: float) -> None:
    q, k, v = qkv(torch.float64)
    call = make_call(q, k, v, encoding=encoding)
    assert call.q_rotation is None
    expected = hw.attention_steps(q, k, v, encoding=RoPE(8)).products * factor
    torch.testing.assert_close(hw.attention_steps(q, k, v, encoding=encoding).products, expected)


class Turned(PositionEncoding):
    """A user's, with any rotation."""

    def __init__(self, sides: tuple[str, str], rotation: T.Rotation) -> None:
        super().__init__()
        self.sides, self.given = sides, rotation

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return x

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return v

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return out

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> T.Rotation | None:
        pairs = x.shape[3] // 2
        plain = torch.ones(1, 1, x.shape[2], pairs, dtype=torch.float64)
        return self.given if side in self.sides else T.Rotation(plain, 0 * plain)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


GOOD = ones(1, 1, 6, 4)
WRONG = {
    "one token": (T.Rotation(ones(1, 1, 1, 4), ones(1, 1, 1, 4)), "cos of shape (1, 1, 1, 4): give [1 or 2, 1 or"),
    "tokens before heads": (T.Rotation(ones(1, 6, 1, 4), GOOD), "cos of shape (1, 6, 1, 4): give [1 or 2, 1 or"),
    "no heads": (T.Rotation(ones(1, 6, 4), ones(1, 6, 4)), "cos of shape (1, 6, 4): give [1 or 2, 1 or"),
    "another sin": (T.Rotation(GOOD, ones(1, 1, 1, 4)), "sin of shape (1, 1, 1, 4): give [1 or 2, 1 or"),
    "fewer pairs of sin": (T.Rotation(GOOD, ones(1, 1, 6, 1)), "sin of shape (1, 1, 6, 1): give [1 or 2, 1 or"),
    "wide": (
        T.Rotation(ones(1, 1, 6, 5), ones(1, 1, 6, 5)),
        "start 0 and cos of shape (1, 1, 6, 5), so 5 pairs, but",
    ),
    "behind": (
        T.Rotation(GOOD, GOOD, start=2),
        "start 2 and cos of shape (1, 1, 6, 4), so 4 pairs, but head_dim is 8:",
    ),
    "before": (T.Rotation(ones(1, 1, 6, 2), ones(1, 1, 6, 2), start=-2), "start -2 and cos of shape (1, 1, 6, 2)"),
    "layout": (T.Rotation(GOOD, GOOD, "halves"), "layout 'halves': give 'interleaved' or 'half'"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("side", ["query", "key", "value", "output"])
def test_a_rotation_of_another_shape_is_refused(name: str, side: str) -> None:
    rotation, message = WRONG[name]
    for encoding in (Turned((side, side), rotation), Compose(Turned((side, side), rotation), RoPE(8))):
        with pytest.raises(hw.HeadwayError, match=re.escape(f"Rotation has {message}")):
            make_call(*qkv(), encoding=encoding)
    if side in ("key", "value"):
        with pytest.raises(hw.HeadwayError, match=re.escape(f"Rotation has {message}")):
            prepared_keys_and_values(Turned((side, side), rotation), *qkv()[1:], Coordinates.span(6))


@pytest.mark.parametrize("name", WRONG)
def test_a_rotation_by_hand_is_checked(name: str) -> None:
    rotation, message = WRONG[name]

    class Waves(RoPE):
        def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> T.Rotation:
            return rotation

    for rotate in (rotation.of, lambda x: Waves(8).prepare(x, Coordinates.span(6))):
        with pytest.raises(hw.HeadwayError, match=re.escape(f"Rotation has {message}")):
            rotate(qkv()[0])


@pytest.mark.parametrize("shape", [(1, 1, 6, 4), (2, 1, 6, 4), (1, 4, 6, 3), (2, 4, 6, 1)])
def test_a_rotation_of_every_shape_that_fits_is_taken(shape: tuple[int, ...]) -> None:
    q, k, v = qkv()
    rotation = T.Rotation(ones(*shape), ones(1, 1, *shape[2:]), start=8 - 2 * shape[3])
    call = make_call(q, k, v, encoding=Turned(("query", "output"), rotation))
    assert call.q_rotation is call.out_rotation is rotation


def test_of_several_that_prepare_the_last_alone_is_data() -> None:
    q, k, v = qkv(torch.float64)
    slow, fast = RoPE(8, base=100.0), RoPE(8, base=7.0)
    at = Coordinates.span(6)
    call = make_call(q, k, v, encoding=Compose(slow, ALiBi(4), fast))
    assert call.q_rotation is not None
    torch.testing.assert_close(call.q, slow.prepare(q, at))
    torch.testing.assert_close(call.q_rotation.of(call.q), fast.prepare(slow.prepare(q, at), at))
    doubled = make_call(q, k, v, encoding=Compose(slow, Doubled(8)))
    assert doubled.q_rotation is None
    torch.testing.assert_close(doubled.q, Doubled(8).prepare(slow.prepare(q, at), at))


class Relative(RoPE):
    """A rotation beside relative terms, which read q and k as they were."""

    def terms(self, *sides: Any) -> tuple[T.Term, ...]:
        table = torch.linspace(-1, 1, 5 * 8, dtype=torch.float64).view(1, 5, 8)
        return T.RelativeKeys(T.Rows(table, T.Clip(-2, 2))), T.RelativeQueries(T.Rows(table, T.Clip(-2, 2)))


def test_relative_terms_read_q_and_k_before_any_rotation() -> None:
    q, k, v = qkv(torch.float64)
    call = make_call(q, k, v, encoding=Relative(8))
    keys, queries = call.terms
    assert isinstance(keys, T.RelativeKeys)
    assert isinstance(queries, T.RelativeQueries)
    assert keys.query is q
    assert queries.key is k
    rotated = KERNELS["reference"].rotated(call)
    found = hw.attention_steps(q, k, v, encoding=Relative(8)).products
    table = torch.linspace(-1, 1, 5 * 8, dtype=torch.float64).view(5, 8)
    row = (torch.arange(6)[None] - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    grouped = [x.repeat_interleave(2, 1) for x in (rotated.k, k)]
    expected = rotated.q @ grouped[0].mT + torch.einsum("bhid,ijd->bhij", q, table[row])
    torch.testing.assert_close(found, expected + torch.einsum("bhjd,ijd->bhij", grouped[1], table[row]))


def test_every_rotary_encoding_gives_its_rotation() -> None:
    """Of the family all but the one that changes the basis too, and the one that turns within the product."""
    kinds = [kind for kind in hw.positions.ENCODINGS.values() if issubclass(kind, Rotary)]
    assert {kind.__name__ for kind in kinds if "prepare" not in kind._rotates} == {"CayleySTRING", "ReRoPE"}


def test_kernels_are_not_handed_what_is_done_to_the_output() -> None:
    call = without_tables(make_call(*qkv(), encoding=Compose(RotaryValues(8), RotaryValues(8, RoPE(4)))))
    assert call.v_rotation is not None
    assert call.out_rotation is call.restore is None


def test_a_seed_is_drawn_once_and_where_there_is_dropout() -> None:
    plain, dropping = make_call(*qkv()), make_call(*qkv(), dropout=0.5)
    assert seeded(plain) is plain
    first = seeded(dropping)
    assert first.seed is not None
    assert seeded(first) is first


def test_a_copy_checks_nothing_and_knows_every_field() -> None:
    call = make_call(*qkv())
    assert call._with(scale=2.0).scale == 2.0
    assert call._with(scale=2.0).q is call.q
    with pytest.raises(TypeError, match="Call has no field colour"):
        call._with(colour=1)


def test_a_call_has_every_field() -> None:
    call = make_call(*qkv())
    assert vars(call).keys() == {field.name for field in dataclasses.fields(Call)}


def test_prepared_keys_stand_where_the_encoding_sees_them_once_somebody_reads_that() -> None:
    """A term of the caller's own reads their positions, which the encoding located; else nothing places them."""
    (q, k, v), at = qkv(), Coordinates.span(6)
    encoding = Compose(hw.positions.Interpolated(4.0), RoPE(8))
    slopes = torch.tensor([0.5, 1.0, 2.0, 3.0])
    ramp = T.DistanceBias(T.Linear(slopes, slopes))
    prepared = encoding.prepare_key(k, at)
    for terms in ((), (ramp,)):
        found = make_call(q, prepared, v, encoding=encoding, terms=terms, prepared_by=encoding)
        expected = make_call(q, k, v, encoding=encoding, terms=terms)
        kernel = KERNELS["reference"]
        torch.testing.assert_close(kernel.run(found)[0], kernel.run(expected)[0])
    assert torch.equal(found.k_coordinates.position, at.position / 4)
    call = make_call(
        q, prepared, v, encoding=encoding, prepared_by=encoding, q_positions=Coordinates.span(6), k_positions=at
    )
    assert call.k_coordinates is at
