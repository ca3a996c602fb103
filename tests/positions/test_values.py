"""Encodings that transform values: T_j·v_j before the kernel, its inverse on the output after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway import HeadwayError
from headway import masks as M
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, attend_in_parts, cut
from headway.models import Stack
from headway.nn import Block, MultiHeadAttention, StackCache
from headway.positions import Compose, PartialRoPE, PositionEncoding, RoPE, RotaryValues, Sinusoidal
from headway.terms import Rotation
from headway.testing.inputs import Layer


class Growing(PositionEncoding):
    """Learned: dimension d of a value is multiplied by exp(a_d·p)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-0.4, 0.3, width, dtype=torch.float64))

    def _factor(self, at: Coordinates) -> Tensor:
        return (self.rate * at.axis()[..., None]).exp()[:, None]

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return (v * self._factor(coordinates)).to(v.dtype)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return (out / self._factor(coordinates)).to(out.dtype)


class Sheared(PositionEncoding):
    """Each value's first dimension gains p times its second: it does not commute with ``Growing``."""

    def _sheared(self, x: Tensor, p: Tensor) -> Tensor:
        first = x[..., :1] + (p[:, None, :, None] * x[..., 1:2]).to(x.dtype)
        return torch.cat([first, x[..., 1:]], dim=-1)

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return self._sheared(v, coordinates.axis())

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return self._sheared(out, -coordinates.axis())


class Later(PositionEncoding):
    """Positions twice as far apart, once both sides are known."""

    cache_prepared = False

    def relocate(self, q_at: Coordinates, k_at: Coordinates, *inputs: Any) -> tuple[Coordinates, Coordinates]:
        q_at, k_at = (at.placed_by(self, position=2 * at.position) for at in (q_at, k_at))
        return q_at, k_at


AT = torch.tensor([0, 1, 4, 6, 7])


def drawn(n: int = 5, m: int = 5, heads: int = 4, kv_heads: int = 2, v_dim: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n, 6), (2, kv_heads, m, 6), (2, kv_heads, m, v_dim)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def matrices(encoding: PositionEncoding, n: int, width: int = 8) -> Tensor:
    """T_j of every position, [n, width, width], from only the encoding's hook."""
    columns = torch.eye(width, dtype=torch.float64)[:, None, None].expand(-1, 1, n, -1)
    return encoding.prepare_value(columns, encoding.place(Coordinates.span(n)))[:, 0].permute(1, 2, 0)


def expected(weights: Tensor, v: Tensor, by_position: Tensor) -> Tensor:
    """Σ_j A_ij·T_i⁻¹·T_j·v_j; the queries are the last of the keys."""
    values = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    queries = by_position[by_position.shape[0] - weights.shape[2] :]
    each = torch.linalg.inv(queries)[:, None] @ by_position
    return torch.einsum("bhij,ijde,bhje->bhid", weights, each, values)


ENCODINGS = {
    "rotary": lambda: RotaryValues(8),
    "rotary, the last dimensions": lambda: RotaryValues(8, RoPE(4, layout="half")),
    "rotary, the first dimensions": lambda: RotaryValues(8, PartialRoPE(8, rotary_dim=6)),
    "learned": Growing,
    "composed": lambda: Compose(Growing(), Sheared(), RotaryValues(8)),
    "composed, the rotation first": lambda: Compose(RotaryValues(8, RoPE(4)), Growing(), Sheared()),
}
ROTATED = [name for name in ENCODINGS if name.startswith("rotary")]


@pytest.mark.parametrize("n", [5, 1])
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("name", ENCODINGS)
def test_grouped_heads_a_width_of_their_own_and_every_gradient(name: str, kernel: str, n: int) -> None:
    encoding = ENCODINGS[name]()
    dtype = torch.float32 if kernel == "cpu" else torch.float64
    results = []
    for literally in (False, True):
        leaves = drawn(n)
        q, k, v = leaves if literally else [x.to(dtype) for x in leaves]
        if literally:
            out = expected(hw.attention_weights(q, k, v, mask=M.Causal()), v, matrices(encoding, 5))
        else:
            out = hw.attention(q, k, v, encoding=encoding, mask=M.Causal(), kernel=kernel)
        results.append(
            [out.double(), *torch.autograd.grad(out.double().sin().sum(), [*leaves, *encoding.parameters()])]
        )
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4} if kernel == "cpu" else {"rtol": 1e-9, "atol": 1e-9}
    for found, exact in zip(*results, strict=True):
        torch.testing.assert_close(found, exact, **close)


def test_every_function_gives_the_restored_output() -> None:
    qkv, encoding = drawn(), RotaryValues(8)
    out = hw.attention(*qkv, encoding=encoding)
    torch.testing.assert_close(hw.attention_steps(*qkv, encoding=encoding).output, out)
    torch.testing.assert_close(hw.attention_with_lse(*qkv, encoding=encoding)[0], out)
    assert torch.equal(hw.attention_weights(*qkv, encoding=encoding), hw.attention_weights(*qkv))
    call = make_call(*qkv, encoding=encoding)
    parts = [cut(call, "keys", start, stop) for start, stop in ((0, 2), (2, 5))]
    torch.testing.assert_close(attend_in_parts(parts)[0], out)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_parts_of_the_keys_give_the_restored_output_and_every_gradient(name: str, kernel: str) -> None:
    encoding, dtype = ENCODINGS[name](), torch.float32 if kernel == "cpu" else torch.float64
    results = []
    for in_parts in (False, True):
        leaves = drawn()
        qkv = [x.to(dtype) for x in leaves]
        if in_parts:
            call = make_call(*qkv, encoding=encoding, mask=M.Causal())  # type: ignore[arg-type]
            out, _ = attend_in_parts([cut(call, "keys", a, b) for a, b in ((0, 2), (2, 3), (3, 5))], kernel)
            (alone,) = (KERNELS[kernel].run(part)[0] for part in [cut(call, "keys", 0, 2)])
            less = [x[:, :, :2] for x in qkv[1:]]
            where = {"q_positions": hw.Coordinates.span(5), "k_positions": hw.Coordinates.span(2)}
            expected = hw.attention(qkv[0], *less, encoding=encoding, mask=M.Causal(), **where)
            torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)
        else:
            out = hw.attention(*qkv, encoding=encoding, mask=M.Causal(), kernel=kernel)  # type: ignore[misc]
        assert out.dtype == dtype
        results.append([out, *torch.autograd.grad(out.sin().sum(), [*leaves, *encoding.parameters()])])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_restores_all_of_the_output_is_cut_along_the_keys_alone() -> None:
    call = make_call(*drawn(), encoding=Compose(RotaryValues(8), Growing()))
    assert call.restore is not None
    for axis in ("batch", "heads", "queries"):
        with pytest.raises(HeadwayError, match=f"the {axis} cannot be cut into parts: .*restore_output is a function"):
            cut(call, axis, 0, 2)
    assert cut(call, "keys", 0, 2).restore is call.restore


# ---------------------------------------------------------------- a rotation is data


@pytest.mark.parametrize("name", ROTATED)
def test_a_rotation_of_values_is_data_and_kernels_turn(name: str) -> None:
    (q, k, v), encoding, at = (x.detach().float() for x in drawn()), ENCODINGS[name](), Coordinates.span(5)
    call = make_call(q, k, v, encoding=Compose(RoPE(6), encoding))
    assert call.v is v
    assert call.restore is None
    assert call.v_rotation is not None
    assert call.out_rotation is not None
    out = torch.randn(2, 4, 5, 8)
    for kernel in KERNELS.values():
        rotated = kernel.rotated(call)
        assert rotated.q_rotation is rotated.k_rotation is rotated.v_rotation is None
        torch.testing.assert_close(rotated.v, encoding.prepare_value(v, at), msg=kernel.name)
        torch.testing.assert_close(kernel.restored(call, out), encoding.restore_output(out, at), msg=kernel.name)
        torch.testing.assert_close(kernel.restored(call, encoding.prepare_value(out, at)), out, msg=kernel.name)


def test_of_several_that_transform_values_the_last_alone_is_data() -> None:
    q, k, v = drawn()
    first, last, at = RotaryValues(8, RoPE(8, base=7.0)), RotaryValues(8, RoPE(4)), Coordinates.span(5)
    call = make_call(q, k, v, encoding=Compose(first, Sheared(), last))
    assert call.v_rotation is not None
    assert call.out_rotation is not None
    assert call.restore is not None
    torch.testing.assert_close(call.v, Sheared().prepare_value(first.prepare_value(v, at), at))
    torch.testing.assert_close(call.v_rotation.of(v), last.prepare_value(v, at))
    torch.testing.assert_close(call.out_rotation.of(v), last.restore_output(v, at))
    torch.testing.assert_close(call.restore(v), first.restore_output(Sheared().restore_output(v, at), at))
    call = make_call(q, k, v, encoding=Compose(first, Sheared()))
    assert call.v_rotation is call.out_rotation is None


class Louder(RotaryValues):
    """A user's, which changes both hooks and inherits the rotation."""

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return 2 * super().prepare_value(v, coordinates)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return 3 * super().restore_output(out, coordinates)


class LouderAsOne(Compose):
    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return 6 * super().prepare_value(v, coordinates)


@pytest.mark.parametrize("encoding", [Louder(8), LouderAsOne(RotaryValues(8))], ids=["own", "composed"])
def test_a_rotation_counts_only_where_the_hooks_of_values_are_its_own(encoding: PositionEncoding) -> None:
    qkv = drawn()
    call = make_call(*qkv, encoding=encoding)
    assert call.v_rotation is call.out_rotation is None
    torch.testing.assert_close(hw.attention(*qkv, encoding=encoding), 6 * hw.attention(*qkv, encoding=RotaryValues(8)))


class TurnsQueriesToo(RoPE):
    """q and k by the inherited rotation, values by hooks of its own: the one says nothing of the other."""

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return 2 * v

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return out / 2


def test_a_rotation_of_queries_and_keys_is_none_of_values() -> None:
    qkv = drawn()
    call = make_call(*qkv, encoding=TurnsQueriesToo(6))
    assert call.q_rotation is not None
    assert call.v_rotation is call.out_rotation is None
    torch.testing.assert_close(hw.attention(*qkv, encoding=TurnsQueriesToo(6)), hw.attention(*qkv, encoding=RoPE(6)))


def test_positions_have_their_gradient_through_values_and_output() -> None:
    (q, k, v), encoding, at = drawn(), RotaryValues(8), AT.double().requires_grad_()
    call = make_call(q, k, v, encoding=encoding, q_positions=at, k_positions=at)
    assert call.v_rotation is None, "angles that want a gradient are applied at once"
    weights = hw.attention_weights(q, k, v).detach()
    numbers = torch.view_as_complex(v.detach().repeat_interleave(2, 1).unflatten(-1, (4, 2)))
    frequencies = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turns = torch.exp(1j * (at - at[:, None])[..., None] * frequencies)
    literally = torch.view_as_real(
        torch.einsum("bhij,ijc,bhjc->bhic", weights.to(turns.dtype), turns, numbers)
    ).flatten(-2)
    whole = hw.attention(q, k, v, encoding=encoding, q_positions=at, k_positions=at)
    merged, _ = attend_in_parts([cut(call, "keys", 0, 2), cut(call, "keys", 2, 5)])
    for out in (whole, merged):
        torch.testing.assert_close(out, literally)
        torch.testing.assert_close(
            *(torch.autograd.grad(x.sin().sum(), at, retain_graph=True) for x in (out, literally))
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_values_and_the_output_are_rounded_once(dtype: torch.dtype) -> None:
    """To the last bit: values to their dtype, the output of the specification and of merged parts to q's."""
    q, k, v = (x.detach().to(dtype) for x in drawn())
    call = make_call(q, k, v, encoding=RotaryValues(8, RoPE(6)))
    assert call.v_rotation is not None
    assert call.out_rotation is not None
    turned = call.v_rotation.of(v.float()).to(dtype)
    assert torch.equal(call.v_rotation.of(v), turned)
    wide = hw.attention(q.float(), k.float(), turned.float(), kernel="reference")
    expected = call.out_rotation.of(wide).to(dtype)
    assert not torch.equal(call.out_rotation.of(wide.to(dtype)), expected)
    assert torch.equal(KERNELS["reference"].run(call)[0], expected)
    one, _ = attend_in_parts([cut(call, "keys", 0, 5)], "reference")
    assert torch.equal(one, expected)


def test_parts_of_an_encoding_are_restored_in_the_reverse_order() -> None:
    at, v = Coordinates.span(5), drawn()[2]
    both = Compose(Growing(), Sheared())
    first, second = both.each
    torch.testing.assert_close(both.prepare_value(v, at), second.prepare_value(first.prepare_value(v, at), at))
    assert not torch.allclose(both.prepare_value(v, at), first.prepare_value(second.prepare_value(v, at), at))
    torch.testing.assert_close(both.restore_output(both.prepare_value(v, at), at), v)


def test_values_from_a_cache_count_as_prepared() -> None:
    (q, k, v), encoding = drawn(), Compose(RoPE(6), RotaryValues(8))
    at = encoding.place(Coordinates.span(5))
    held: dict[str, Any] = {"q_positions": at, "k_positions": at, "prepared_by": encoding}
    found = hw.attention(q, encoding.prepare_key(k, at), encoding.prepare_value(v, at), encoding=encoding, **held)
    torch.testing.assert_close(found, hw.attention(q, k, v, encoding=encoding))
    call = make_call(q, encoding.prepare_key(k, at), encoding.prepare_value(v, at), encoding=encoding, **held)
    assert call.v_rotation is None
    assert call.out_rotation is not None


def test_a_stack_hands_it_to_its_layers_and_decodes_with_it() -> None:
    stack = Stack([Block(16, 2, head_dim=8)], RotaryValues(8), masks=[M.Window(3)]).double().eval()
    x, cache = torch.randn(1, 7, 16, dtype=torch.float64), StackCache(1, stack.masks)
    with torch.no_grad():
        whole = stack(x, mask=M.Causal())
        steps = [stack(part, mask=M.Causal(), cache=cache) for part in x.split([4, 1, 1, 1], dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
        bare = Stack(list(stack.blocks), None, masks=[M.Window(3)]).eval()
        assert not torch.allclose(bare(x, mask=M.Causal()), whole)


def test_beside_codes_and_relocated_positions_it_acts_within_attention() -> None:
    qkv, x = drawn(), torch.randn(2, 5, 32)
    coded = Compose(Sinusoidal(32), RotaryValues(8))
    torch.testing.assert_close(hw.attention(*qkv, encoding=coded), hw.attention(*qkv, encoding=RotaryValues(8)))
    assert MultiHeadAttention(32, 4, encoding=coded)(x).shape == x.shape
    assert Layer(coded, torch.Generator(), torch.float64).in_attention is coded
    doubled = hw.attention(*qkv, encoding=RotaryValues(8), q_positions=AT * 2, k_positions=AT * 2)
    later = Compose(Later(), RotaryValues(8))
    torch.testing.assert_close(hw.attention(*qkv, encoding=later, q_positions=AT, k_positions=AT), doubled)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["rotary, the last dimensions", "learned", "composed"])
def test_compiled_and_transformed_calls_restore_too(name: str) -> None:
    encoding = ENCODINGS[name]()
    q, k, v = drawn()

    def loss(v: Tensor) -> Tensor:
        return hw.attention(q, k, v, encoding=encoding, mask=M.Causal()).sin().sum()

    (gradient,) = torch.autograd.grad(loss(v), v)
    torch.testing.assert_close(torch.func.grad(loss)(v), gradient)
    torch.testing.assert_close(torch.func.jvp(loss, (v,), (torch.ones_like(v),))[1], gradient.sum())
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(v), loss(v))
    torch.testing.assert_close(torch.autograd.grad(compiled(v), v)[0], gradient)
    with torch.no_grad():
        torch.testing.assert_close(compiled(v), loss(v))


def test_autocast_and_half_keep_their_dtype() -> None:
    q, k, v = (x.detach().float() for x in drawn())
    encoding = RotaryValues(8)
    exact = hw.attention(q.double(), k.double(), v.double(), encoding=encoding)
    with torch.autocast("cpu", torch.bfloat16):
        found = hw.attention(q, k, v, encoding=encoding)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)
    found = hw.attention(q.half(), k.half(), v.half(), encoding=encoding)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), exact, rtol=0.003, atol=0.003)


def test_one_without_the_other_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(HeadwayError, match="Half defines only prepare_value: define prepare_value and its inverse"):

        class Half(PositionEncoding):
            def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
                return v

    with pytest.raises(HeadwayError, match="OtherHalf defines only restore_output"):

        class OtherHalf(RoPE):
            def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
                return out

    class Whole(RotaryValues):
        def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
            return super().restore_output(out, coordinates)

    assert Whole(8).acts == {"values"}


def changed(hook: str, what: str, width: int = 8) -> PositionEncoding:
    """``RotaryValues`` as a user's own, with one hook that breaks a promise."""

    def broken(self: Any, x: Tensor, at: Coordinates) -> Tensor:
        if what == "width":
            return x[..., :-1]
        if what == "dtype":
            return x.float()
        (x if what == "x" else self.place(at).tables[0]).mul_(2)
        return x

    kind = type("Mine", (RotaryValues,), {hook: broken, "__module__": "mine"})
    return kind(width)  # type: ignore[no-any-return]


def alone_and_composed(hook: str, what: str) -> list[PositionEncoding]:
    first, last = Compose(changed(hook, what), RotaryValues(8)), Compose(RotaryValues(8), changed(hook, what))
    return [changed(hook, what), first, last]


@pytest.mark.parametrize("hook", ["prepare_value", "restore_output"])
def test_another_shape_or_dtype_is_refused(hook: str) -> None:
    with torch.no_grad():
        for encoding in (*alone_and_composed(hook, "width"), *alone_and_composed(hook, "dtype")):
            with pytest.raises(
                HeadwayError, match=f"Mine.* in {hook} of torch.float64 of shape .*return the given shape"
            ):
                hw.attention(*drawn(), encoding=encoding)


class WritesWhereItTurnsBack(RotaryValues):
    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        found = super().rotation(side, x, coordinates)
        if side == "output":
            self.place(coordinates).tables[1].mul_(2)
        return found


def test_a_rotation_of_the_output_that_writes_is_refused() -> None:
    with pytest.raises(HeadwayError, match=r"rotation of WritesWhereItTurnsBack.*writes into its arguments"):
        hw.attention(*drawn(), encoding=WritesWhereItTurnsBack(8))


@pytest.mark.parametrize("what", ["x", "table"])
@pytest.mark.parametrize("hook", ["prepare_value", "restore_output"])
def test_writing_into_what_is_given_is_refused(hook: str, what: str) -> None:
    with torch.no_grad():
        for encoding in alone_and_composed(hook, what):
            with pytest.raises(HeadwayError, match=f"{hook} of Mine.*writes into its arguments"):
                hw.attention(*drawn(), encoding=encoding)
