"""MultiHeadAttention: projections around the function, against torch's module and a loop over heads."""

import copy
import io
import pickle
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import Coordinates, HeadwayError, masks
from headway.nn import KeyValueCache, MultiHeadAttention
from headway.positions import PositionEncoding
from headway.terms import RelativeQueries, Term, TokenBias

M = TypeVar("M", bound=nn.Module)

ENCODINGS = ["none", "rope", "t5", "alibi", "shaw", "rotary-values", "rope + rotary-values + t5"]


def encoding_of(name: str, **sizes: int) -> PositionEncoding:
    """An encoding for 4 heads of 8, every parameter of the size of one."""
    return randomised(
        headway.encoding(name, num_heads=4, head_dim=8, embed_dim=32, max_length=64, bidirectional=True, **sizes)
    )


def randomised(module: M) -> M:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5)
    return module


def torch_twin(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's module with the weights of this one."""
    twin = nn.MultiheadAttention(
        layer.embed_dim, layer.num_heads, kdim=layer.key_dim, vdim=layer.value_dim, batch_first=True
    ).to(layer.q_proj.weight.dtype)
    weights = [layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]
    with torch.no_grad():
        if twin.in_proj_weight is not None:
            twin.in_proj_weight.copy_(torch.cat(weights))
        else:
            for own, given in zip((twin.q_proj_weight, twin.k_proj_weight, twin.v_proj_weight), weights, strict=True):
                own.copy_(given)
        twin.in_proj_bias.copy_(torch.cat([layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias]))
    twin.out_proj.load_state_dict(layer.out_proj.state_dict())
    return twin


# ---------------------------------------------------------------- against torch's module


def test_as_the_tutorials_use_it() -> None:
    layer = MultiHeadAttention(512, 8)
    x = torch.randn(2, 10, 512)
    out = layer(x, x, x)
    assert out.shape == x.shape
    torch.testing.assert_close(out, layer(x))
    torch.testing.assert_close(out, layer(x, x))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch(causal: bool) -> None:
    layer = randomised(MultiHeadAttention(32, 4).double())
    twin = torch_twin(layer)
    x = torch.randn(3, 9, 32, dtype=torch.float64, requires_grad=True)
    blocked = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    out, wanted = layer(x, mask=masks.Causal() if causal else None), twin(x, x, x, attn_mask=blocked)[0]
    torch.testing.assert_close(out, wanted)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, wanted))
    torch.testing.assert_close(ours, theirs)


def test_equals_torch_with_padding() -> None:
    layer = randomised(MultiHeadAttention(32, 4).double())
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    wanted = torch_twin(layer)(x, x, x, key_padding_mask=padding)[0]
    torch.testing.assert_close(layer(x, mask=masks.Padding([6, 4])), wanted)
    torch.testing.assert_close(layer(x, mask=~padding[:, None, None, :]), wanted)


def test_cross_attention_of_another_width_equals_torch() -> None:
    layer = randomised(MultiHeadAttention(32, 4, key_dim=20, value_dim=24).double())
    query, key, value = (torch.randn(2, n, width, dtype=torch.float64) for n, width in ((5, 32), (9, 20), (9, 24)))
    torch.testing.assert_close(layer(query, key, value), torch_twin(layer)(query, key, value)[0])


def test_value_has_the_width_of_the_key() -> None:
    layer = MultiHeadAttention(32, 4, key_dim=20)
    assert layer(torch.randn(2, 5, 32), torch.randn(2, 9, 20)).shape == (2, 5, 32)


# ---------------------------------------------------------------- what it is made of


def test_a_loop_over_heads_gives_the_same() -> None:
    """Every head by itself with its own Wq, Wk, Wv, then joined and multiplied by Wo."""
    heads, d_model = 8, 64
    d_k = d_model // heads
    layer = randomised(MultiHeadAttention(d_model, heads, bias=False).double())
    X = torch.randn(10, d_model, dtype=torch.float64)
    outputs = []
    for i in range(heads):
        rows = slice(i * d_k, (i + 1) * d_k)
        Q, K, V = (X @ projection.weight[rows].T for projection in (layer.q_proj, layer.k_proj, layer.v_proj))
        outputs.append(torch.softmax(Q @ K.T / d_k**0.5, dim=-1) @ V)
    torch.testing.assert_close(layer(X[None])[0], torch.cat(outputs, dim=-1) @ layer.out_proj.weight.T)


@pytest.mark.parametrize("name", ENCODINGS)
def test_it_is_projections_and_the_function(name: str) -> None:
    encoding = encoding_of(name)
    layer = randomised(MultiHeadAttention(32, 4, num_kv_heads=2, encoding=encoding))
    x, positions = torch.randn(2, 7, 32), torch.tensor([0, 1, 2, 5, 6, 9, 12])
    q, k, v = (
        projection(x).unflatten(-1, (-1, 8)).transpose(1, 2)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    out = headway.attention(
        q, k, v, encoding=encoding, mask=masks.Causal(), q_positions=positions, k_positions=positions
    )
    wanted = layer.out_proj(out.transpose(1, 2).reshape(2, 7, 32))
    if name == "none":
        torch.testing.assert_close(layer(x, mask=masks.Causal()), wanted)
    else:
        torch.testing.assert_close(layer(x, mask=masks.Causal(), positions=positions), wanted)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_grouped_heads_are_repeated_heads(kv_heads: int) -> None:
    grouped = randomised(MultiHeadAttention(64, 8, num_kv_heads=kv_heads))
    full = MultiHeadAttention(64, 8)
    state = grouped.state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            by_head = state[f"{name}.{part}"].unflatten(0, (kv_heads, 8))
            state[f"{name}.{part}"] = by_head.repeat_interleave(8 // kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 6, 64)
    torch.testing.assert_close(grouped(x), full(x))


def test_head_dim_of_its_own() -> None:
    layer = MultiHeadAttention(100, 8, head_dim=16)
    assert layer.q_proj.weight.shape == (128, 100)
    assert layer(torch.randn(1, 3, 100)).shape == (1, 3, 100)


def test_scale_and_soft_cap_reach_the_scores() -> None:
    x = torch.randn(2, 6, 32)
    plain, scaled, capped = (
        MultiHeadAttention(32, 4, **options) for options in ({}, {"scale": 1.0}, {"soft_cap": 0.5})
    )
    scaled.load_state_dict(plain.state_dict())
    capped.load_state_dict(plain.state_dict())
    with torch.no_grad():
        for layer in (plain, scaled, capped):
            layer.q_proj.weight.mul_(4)
    assert not torch.allclose(plain(x), scaled(x), atol=1e-3)
    assert not torch.allclose(plain(x), capped(x), atol=1e-3)
    with torch.no_grad():
        plain.q_proj.weight.mul_(8**0.5)
    torch.testing.assert_close(plain(x), scaled(x))


def test_sink_as_a_number_a_parameter_or_a_tensor() -> None:
    x = torch.randn(2, 6, 32)
    number = MultiHeadAttention(32, 4, sink=1.5)
    assert dict(number.named_parameters())["sink"].tolist() == [1.5] * 4
    parameter = MultiHeadAttention(32, 4, sink=nn.Parameter(torch.full((4,), 1.5)))
    fixed = MultiHeadAttention(32, 4, sink=torch.full((4,), 1.5))
    assert "sink" in dict(parameter.named_parameters())
    assert "sink" not in dict(fixed.named_parameters())
    for other in (parameter, fixed):
        other.load_state_dict(number.state_dict())
        torch.testing.assert_close(other(x), number(x))
    number(x).sum().backward()
    assert number.sink is not None
    assert number.sink.grad is not None
    assert number.sink.grad.abs().min() > 0
    without = MultiHeadAttention(32, 4)
    without.load_state_dict({key: value for key, value in number.state_dict().items() if key != "sink"})
    assert not torch.allclose(without(x), number(x), atol=1e-3)


def test_dropout_acts_in_training_alone() -> None:
    layer = MultiHeadAttention(32, 4, dropout=0.5)
    x = torch.randn(2, 6, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


def test_the_function_that_attends_is_a_part() -> None:
    """What is handed over as ``attend`` is called in place of attention, with a cache and without."""
    seen: list[Tensor] = []

    def recorder(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        seen.append(headway.attention_weights(q, k, v, **arguments))
        return headway.attention(q, k, v, **arguments)

    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    plain = MultiHeadAttention(16, 4, encoding=headway.encoding("rope", head_dim=4))
    layer = MultiHeadAttention(16, 4, encoding=headway.encoding("rope", head_dim=4), attend=recorder)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer(x, mask=masks.Causal()), plain(x, mask=masks.Causal()))
    layer(x, cache=KeyValueCache())
    assert [weights.shape for weights in seen] == [(2, 4, 5, 5)] * 2
    assert not seen[0].triu(1).any()


def test_a_kernel_that_is_not_known_is_refused_with_a_cache_too() -> None:
    layer, cache = (
        MultiHeadAttention(16, 4, encoding=headway.encoding("rope", head_dim=4), kernel="gpu"),
        KeyValueCache(),
    )
    with pytest.raises(
        HeadwayError, match="there is no kernel 'gpu': give one of auto, cpu, triton, sdpa, flex, reference"
    ):
        layer(torch.randn(2, 5, 16), cache=cache)
    assert len(cache) == 0


def test_an_encoding_of_its_own_is_registered_and_one_in_the_call_is_not() -> None:
    layer = MultiHeadAttention(32, 4, encoding=encoding_of("t5"))
    assert any(name.startswith("encoding.") for name in layer.state_dict())
    guest, other = MultiHeadAttention(32, 4), encoding_of("t5")
    guest.load_state_dict(layer.state_dict(), strict=False)
    assert not any(name.startswith("encoding.") for name in guest.state_dict())
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(guest(x, encoding=layer.encoding), layer(x))
    torch.testing.assert_close(layer(x, encoding=other), guest(x, encoding=other))
    assert not torch.allclose(layer(x, encoding=other), layer(x), atol=1e-3)


def test_cross_attention_starts_at_zero_on_both_sides() -> None:
    layer = MultiHeadAttention(32, 4, encoding=encoding_of("rope"))
    query, key = torch.randn(2, 3, 32), torch.randn(2, 8, 32)
    out = layer(query, key, positions=torch.arange(3), key_positions=torch.arange(8))
    torch.testing.assert_close(layer(query, key), out)
    assert not torch.allclose(layer(query, key, positions=torch.arange(5, 8)), out, atol=1e-3)


@pytest.mark.parametrize("n", [3, 8, 11])
def test_a_mask_in_cross_attention_starts_at_zero_whether_positions_are_given_or_not(n: int) -> None:
    layer = MultiHeadAttention(32, 4)
    query, key = torch.randn(2, n, 32), torch.randn(2, 8, 32)
    out = layer(query, key, mask=masks.Causal(), positions=torch.arange(n), key_positions=torch.arange(8))
    torch.testing.assert_close(layer(query, key, mask=masks.Causal()), out)
    torch.testing.assert_close(layer(query, key, mask=torch.ones(n, 8).tril() > 0), out)


# ---------------------------------------------------------------- with a cache


class EndsAtOne(PositionEncoding):
    """Multiplies keys by their position over the length of the stream, which changes with every token."""

    cache_prepared = False

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        length = coordinates.length
        assert length is not None
        return k * ((coordinates.axis() + 1) / length)[:, None, :, None]


class ReadsContent(PositionEncoding):
    """A bias for each key by what stands there."""

    reads_input = True

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        assert q_input is not None
        assert k_input is not None
        return (TokenBias(queries=None, keys=k_input[..., 0][:, None]),)


class ReadsContentAndTurns(ReadsContent):
    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return x * (1 + coordinates.axis())[:, None, :, None] / 8


def fresh(name: str) -> PositionEncoding:
    own = {"ends_at_one": EndsAtOne, "reads_content": ReadsContent, "reads_and_turns": ReadsContentAndTurns}
    return own[name]() if name in own else encoding_of(name)


@pytest.mark.parametrize("chunks", [[1] * 9, [5, 1, 1, 2], [9]])
@pytest.mark.parametrize("name", [*ENCODINGS, "reads_content", "reads_and_turns"])
def test_with_a_cache_equals_one_pass(name: str, chunks: list[int]) -> None:
    layer = randomised(MultiHeadAttention(32, 4, num_kv_heads=2, encoding=fresh(name))).eval()
    x = torch.randn(2, 9, 32)
    full, cache = layer(x, mask=masks.Causal()), KeyValueCache()
    with torch.no_grad():
        parts = [layer(part, mask=masks.Causal(), cache=cache) for part in x.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full)
    assert len(cache) == 9


def test_keys_that_depend_on_the_length_are_cached_as_projected() -> None:
    """Each step equals the last row of a full pass at that length."""
    layer = MultiHeadAttention(32, 4, encoding=EndsAtOne()).eval()
    x, cache = torch.randn(2, 6, 32), KeyValueCache()
    with torch.no_grad():
        for n in range(1, 7):
            step = layer(x[:, n - 1 : n], mask=masks.Causal(), cache=cache)
            torch.testing.assert_close(step, layer(x[:, :n], mask=masks.Causal())[:, -1:])
    torch.testing.assert_close(cache.keys, layer._heads(layer.k_proj(x)))


def test_a_cache_takes_values_of_another_source() -> None:
    layer, cache = MultiHeadAttention(32, 4, encoding=encoding_of("rope")).eval(), KeyValueCache()
    x, other = torch.randn(2, 2, 5, 32)
    with torch.no_grad():
        steps = [
            layer(a, a, b, mask=masks.Causal(), cache=cache)
            for a, b in zip(x.split(1, 1), other.split(1, 1), strict=True)
        ]
        torch.testing.assert_close(torch.cat(steps, dim=1), layer(x, x, other, mask=masks.Causal()))


@pytest.mark.parametrize("name", ["rotary-values", "rope + rotary-values"])
def test_a_cache_holds_values_as_prepared(name: str) -> None:
    encoding = encoding_of(name)
    layer, x, cache = MultiHeadAttention(32, 4, encoding=encoding).eval(), torch.randn(2, 5, 32), KeyValueCache()
    with torch.no_grad():
        for part in x.split([3, 1, 1], dim=1):
            layer(part, mask=masks.Causal(), cache=cache)
        at = encoding.place(Coordinates.span(5))
        torch.testing.assert_close(cache.keys, encoding.prepare_key(layer._heads(layer.k_proj(x)), at))
        values = layer._heads(layer.v_proj(x))
        torch.testing.assert_close(cache.values, encoding.prepare_value(values, at))
        assert not torch.allclose(cache.values, values)
    assert cache.prepared_by is encoding


class ValuesEndAtOne(PositionEncoding):
    """Values are multiplied by 1 + p/length, and the output divided by it."""

    cache_prepared = False

    @staticmethod
    def _factor(at: Coordinates) -> Tensor:
        assert at.length is not None
        return (1 + at.axis() / at.length)[:, None, :, None]

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return v * self._factor(coordinates)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return out / self._factor(coordinates)


def test_values_that_depend_on_the_length_are_cached_as_projected() -> None:
    layer = MultiHeadAttention(32, 4, encoding=ValuesEndAtOne()).eval()
    x, cache = torch.randn(2, 6, 32), KeyValueCache()
    with torch.no_grad():
        for n in range(1, 7):
            step = layer(x[:, n - 1 : n], mask=masks.Causal(), cache=cache)
            torch.testing.assert_close(step, layer(x[:, :n], mask=masks.Causal())[:, -1:])
    torch.testing.assert_close(cache.values, layer._heads(layer.v_proj(x)))
    assert cache.prepared_by is None


def test_cross_attention_prepares_the_values_of_a_context_in_each_call() -> None:
    layer = MultiHeadAttention(32, 4, encoding=encoding_of("rope + rotary-values")).eval()
    x, context, cache = torch.randn(2, 3, 32), torch.randn(2, 6, 32), KeyValueCache()
    at = torch.arange(3) + 2
    with torch.no_grad():
        expected = layer(x, context, positions=at)
        for _ in range(2):
            torch.testing.assert_close(layer(x, context, positions=at, cache=cache), expected)
    torch.testing.assert_close(cache.values, layer._heads(layer.v_proj(context)))


def test_relative_queries_refuse_prepared_keys() -> None:
    class NeedsRawKeys(ReadsContentAndTurns):
        def terms(self, q: Coordinates, k: Coordinates, *inputs: Tensor | None) -> tuple[Term, ...]:  # type: ignore[override]
            return (RelativeQueries(headway.terms.Rows(torch.ones(4, 3, 8), headway.terms.Clip(-1, 1))),)

    layer = MultiHeadAttention(32, 4, encoding=NeedsRawKeys())
    with pytest.raises(HeadwayError, match="cache_prepared = False"):
        layer(torch.randn(1, 2, 32), cache=KeyValueCache())


@pytest.mark.parametrize("name", ENCODINGS)
def test_left_padding_with_a_cache(name: str) -> None:
    layer = randomised(MultiHeadAttention(32, 4, encoding=encoding_of(name))).eval()
    lengths, n, more = [3, 6, 1], 6, 4
    rows = [torch.randn(1, length + more, 32) for length in lengths]
    x = torch.full((3, n, 32), 1e3)
    for row, length in enumerate(lengths):
        x[row, n - length :] = rows[row][0, :length]
    cache, padding = KeyValueCache(), masks.Causal() & masks.Padding()
    with torch.no_grad():
        out = [layer(x, positions=Coordinates.padded(lengths, n), mask=padding, cache=cache)]
        for step in range(more):
            token = torch.stack([row[0, length + step] for row, length in zip(rows, lengths, strict=True)])
            out.append(layer(token[:, None], mask=padding, cache=cache))
        whole = torch.cat(out, dim=1)
        for row, length in enumerate(lengths):
            alone = layer(rows[row], mask=masks.Causal())
            torch.testing.assert_close(whole[row, n - length :], alone[0])


def test_positions_go_on_from_those_given() -> None:
    layer = MultiHeadAttention(32, 4, encoding=encoding_of("t5")).eval()
    x, positions = torch.randn(1, 5, 32), torch.tensor([0, 2, 3, 7, 8])
    full, cache = layer(x, positions=positions), KeyValueCache()
    with torch.no_grad():
        layer(x[:, :2], positions=positions[:2], cache=cache)
        layer(x[:, 2:4], positions=positions[2:4], cache=cache)
        torch.testing.assert_close(layer(x[:, 4:], cache=cache), full[:, 4:])


def test_a_context_is_projected_once() -> None:
    layer = MultiHeadAttention(32, 4).eval()
    query, context, cache = torch.randn(2, 3, 32), torch.randn(2, 8, 32), KeyValueCache()
    full = layer(query, context)
    with torch.no_grad():
        steps = [layer(query[:, i : i + 1], context, cache=cache) for i in range(3)]
        torch.testing.assert_close(torch.cat(steps, dim=1), full)
        torch.testing.assert_close(layer(query, torch.zeros_like(context), cache=cache), full)
        with pytest.raises(HeadwayError, match="holds 8 tokens of a context but key has 5"):
            layer(query, context[:, :5], cache=cache)


def test_gradients_pass_through_a_cache() -> None:
    layer = MultiHeadAttention(32, 4, encoding=encoding_of("rope"))
    x, cache = torch.randn(2, 5, 32, requires_grad=True), KeyValueCache()
    steps = torch.cat([layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache) for i in range(5)], dim=1)
    ours = torch.autograd.grad(steps.square().sum(), x)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(layer(x, mask=masks.Causal()).square().sum(), x)[0])


def test_encodings_read_the_inputs_of_both_sides() -> None:
    layer = MultiHeadAttention(32, 4, encoding=ReadsContent()).double()
    query, key = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 5, 32, dtype=torch.float64)
    q, k, v = (
        layer._heads(projection(x))
        for projection, x in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, key))
    )
    weights = torch.softmax(q @ k.mT / 8**0.5 + key[..., 0][:, None, None], dim=-1)
    wanted = layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(query, key), wanted)


# ---------------------------------------------------------------- at home in torch


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["none", "rope", "shaw"])
def test_compiles_as_one_graph(name: str) -> None:
    layer = randomised(MultiHeadAttention(32, 4, encoding=encoding_of(name)))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(compiled(x, mask=masks.Causal()), layer(x, mask=masks.Causal()))
    torch.testing.assert_close(compiled(x, x, x), layer(x))
    torch.testing.assert_close(compiled(x, x[:, :4]), layer(x, x[:, :4]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ENCODINGS)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    layer = randomised(MultiHeadAttention(32, 4, encoding=encoding_of(name)))
    x = torch.randn(2, 9, 32)
    wanted = layer(x)
    out = layer.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    close = 1e-5 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close(out.float(), wanted, rtol=close, atol=close)


@pytest.mark.parametrize("name", ENCODINGS)
def test_autocast(name: str) -> None:
    layer = randomised(MultiHeadAttention(32, 4, encoding=encoding_of(name)))
    x, cache = torch.randn(2, 9, 32), KeyValueCache()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, mask=masks.Causal())
        with torch.no_grad():
            steps = [layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache) for i in range(9)]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, mask=masks.Causal()), rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(torch.cat(steps, dim=1), out, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", ENCODINGS)
def test_copies_after_a_call(name: str) -> None:
    layer = randomised(MultiHeadAttention(32, 4, encoding=encoding_of(name)))
    x = torch.randn(2, 5, 32)
    out = layer(x)
    out.sum().backward()
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    loaded = MultiHeadAttention(32, 4, encoding=encoding_of(name))
    loaded.load_state_dict(torch.load(buffer))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        torch.testing.assert_close(other(x), out)


def test_begins_on_the_meta_device() -> None:
    with torch.device("meta"):
        layer = MultiHeadAttention(32, 4, sink=0.0)
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}
    layer.to_empty(device="cpu").load_state_dict(MultiHeadAttention(32, 4, sink=0.0).state_dict())
    assert layer(torch.randn(1, 3, 32)).isfinite().all()


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embed_dim": 100, "num_heads": 8}, "embed_dim 100 .* num_heads 8: choose embed_dim = 96 or 104"),
        ({"embed_dim": 4, "num_heads": 8}, "embed_dim 4 .* num_heads 8: choose embed_dim = 8"),
        ({"embed_dim": 64, "num_heads": 8, "num_kv_heads": 3}, "num_kv_heads 3 .* choose one of 1, 2, 4, 8"),
        ({"embed_dim": 64, "num_heads": 0}, "num_heads is 0: give at least 1"),
        (
            {"embed_dim": 64, "num_heads": 8, "dropout": 1.0},
            "dropout is 1.0: give at least 0 and less than 1",
        ),
        (
            {"embed_dim": 64, "num_heads": 8, "sink": torch.zeros(3)},
            r"sink has shape \(3,\): give one .* 8 heads",
        ),
        ({"embed_dim": 64, "num_heads": 8, "encoding": 8}, "encoding is 8: give a name or an object"),
    ],
)
def test_wrong_sizes(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        MultiHeadAttention(**arguments)  # type: ignore[arg-type]


def test_an_encoding_that_only_embeds() -> None:
    sinusoidal = headway.encoding("sinusoidal", embed_dim=32)
    with pytest.raises(HeadwayError, match=r"\.embed"):
        MultiHeadAttention(32, 4, encoding=sinusoidal)
    with pytest.raises(HeadwayError, match=r"\.embed"):
        MultiHeadAttention(32, 4)(torch.randn(1, 3, 32), encoding=sinusoidal)


def test_wrong_input() -> None:
    layer = MultiHeadAttention(32, 4)
    x = torch.randn(2, 5, 32)
    wrong = [
        (lambda: layer(x[0]), r"query has shape \(5, 32\): give \[batch, tokens, 32\]"),
        (
            lambda: layer(x[..., :30]),
            r"query has shape \(2, 5, 30\): give \[batch, tokens, 32\], or build the layer",
        ),
        (lambda: layer(x, x[..., :30]), r"key has shape \(2, 5, 30\)"),
        (lambda: layer(x, x[:, :4], x[:, :3]), r"key has batch and tokens \(2, 4\) but value \(2, 3\)"),
        (lambda: layer(x, x[:1]), "query has a batch of 2 but key of 1"),
        (lambda: layer(x, encoding=encoding_of("rope"), positions=torch.arange(4)), "there are 5 tokens"),
        (lambda: layer(x, mask=torch.ones(4, 5, dtype=torch.bool)), r"mask has shape \(4, 5\)"),
    ]
    for call, message in wrong:
        with pytest.raises(HeadwayError, match=message):
            call()
    with pytest.raises(HeadwayError, match="positions are not given"):
        layer(x, x[:, :4], cache=KeyValueCache(), encoding=encoding_of("rope"))


# ---------------------------------------------------------------- biases of some projections, normed queries and keys


@pytest.mark.parametrize(("bias", "with_bias"), [(True, "qkvo"), (False, ""), ("qkv", "qkv"), ("qvo", "qvo"), ("", "")])
def test_which_projections_have_a_bias(bias: bool | str, with_bias: str) -> None:
    layer = MultiHeadAttention(32, 4, bias=bias)
    projections = {"q": layer.q_proj, "k": layer.k_proj, "v": layer.v_proj, "o": layer.out_proj}
    assert {letter for letter, one in projections.items() if one.bias is not None} == set(with_bias)


def test_no_such_bias() -> None:
    with pytest.raises(HeadwayError, match="bias is 'out': give True, False or letters of 'qkvo'"):
        MultiHeadAttention(32, 4, bias="out")


def test_queries_and_keys_are_normed_before_the_encoding() -> None:
    rope = headway.encoding("rope", head_dim=8)
    layer = MultiHeadAttention(32, 4, num_kv_heads=2, encoding=rope, qk_norm="rms")
    assert layer.q_norm is not None
    assert layer.k_norm is not None
    nn.init.normal_(layer.q_norm.weight)  # type: ignore[arg-type]
    nn.init.normal_(layer.k_norm.weight)  # type: ignore[arg-type]
    x = torch.randn(2, 5, 32)
    q, k, v = (proj(x).unflatten(-1, (-1, 8)).transpose(1, 2) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = headway.attention(layer.q_norm(q), layer.k_norm(k), v, encoding=rope)
    torch.testing.assert_close(layer(x), layer.out_proj(out.transpose(1, 2).flatten(2)))
    cache = KeyValueCache()
    steps = torch.cat([layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache) for i in range(5)], dim=1)
    torch.testing.assert_close(steps, layer(x, mask=masks.Causal()))
    context, crossed = torch.randn(2, 7, 32), KeyValueCache()
    at = torch.arange(5)
    first = layer(x, context, positions=at, cache=crossed)
    torch.testing.assert_close(first, layer(x, context, positions=at, key_positions=torch.arange(7)))


def test_a_sink_starts_again_where_it_started() -> None:
    layer = MultiHeadAttention(32, 4, sink=-1.5)
    assert layer.sink is not None
    nn.init.normal_(layer.sink)
    layer.reset_parameters()
    assert (layer.sink == -1.5).all()
