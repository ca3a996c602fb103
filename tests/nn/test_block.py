"""A block is its parts around residuals; a feed-forward is two maps around an activation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway
from headway import HeadwayError, masks
from headway.nn import Block, FeedForward, MultiHeadAttention, ParallelBlock
from headway.nn.feed_forward import ACTIVATIONS, GATED, Activation
from headway.nn.norm import NORMS, LayerNorm, RMSNorm, make_norm


def test_norm_first() -> None:
    block = Block(32, 4, feed_forward_dim=48)
    x = torch.randn(2, 5, 32)
    wanted = x + block.attention(block.attention_norm(x), mask=masks.Causal())
    wanted = wanted + block.feed_forward(block.feed_forward_norm(wanted))
    torch.testing.assert_close(block(x, mask=masks.Causal()), wanted)


def test_norm_behind() -> None:
    block = Block(32, 4, norm_first=False, norm="rms")
    x = torch.randn(2, 5, 32)
    wanted = block.attention_norm(x + block.attention(x))
    wanted = block.feed_forward_norm(wanted + block.feed_forward(wanted))
    torch.testing.assert_close(block(x), wanted)


def test_equals_torch() -> None:
    """The same weights in torch's encoder layer give the same."""
    for norm_first in (False, True):
        block = Block(32, 4, feed_forward_dim=64, norm_first=norm_first, activation="relu")
        twin = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
        own = block.attention
        assert isinstance(own, MultiHeadAttention)
        with torch.no_grad():
            attention = twin.self_attn
            attention.in_proj_weight.copy_(torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]))
        twin.self_attn.out_proj.load_state_dict(own.out_proj.state_dict())
        twin.linear1.load_state_dict(block.feed_forward.up_proj.state_dict())  # type: ignore[union-attr]
        twin.linear2.load_state_dict(block.feed_forward.down_proj.state_dict())  # type: ignore[union-attr]
        x = torch.randn(2, 5, 32)
        torch.testing.assert_close(block(x), twin(x))


def test_cross_attention_stands_between() -> None:
    block = Block(32, 4, cross_attention=True)
    x, context = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    padding = masks.Padding([7, 3])
    wanted = x + block.attention(block.attention_norm(x), mask=masks.Causal())
    assert isinstance(block.cross_attention, MultiHeadAttention)
    assert block.cross_attention_norm is not None
    wanted = wanted + block.cross_attention(block.cross_attention_norm(wanted), context, mask=padding)
    wanted = wanted + block.feed_forward(block.feed_forward_norm(wanted))
    out = block(x, mask=masks.Causal(), context=context, context_mask=padding)
    torch.testing.assert_close(out, wanted)
    with pytest.raises(HeadwayError, match="no context is given"):
        block(x)
    with pytest.raises(HeadwayError, match="cross_attention=True"):
        Block(32, 4)(x, context=context)


@pytest.mark.parametrize("norm_first", [True, False])
def test_memory_is_looked_at_and_does_not_look(norm_first: bool) -> None:
    block = Block(32, 4, norm_first=norm_first)
    whole = torch.randn(2, 9, 32)
    positions = headway.Coordinates.span(9)
    wanted = block(whole, mask=masks.Causal())[:, 4:]
    out = block(
        whole[:, 4:],
        memory=whole[:, :4],
        mask=masks.Causal(),
        positions=positions.rows(4, 9),
        key_positions=positions,
    )
    torch.testing.assert_close(out, wanted)


def test_parts_are_handed_in() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    attention = MultiHeadAttention(32, 8, num_kv_heads=2)
    block = Block(32, 4, attention=attention, feed_forward=Twice(), norm=lambda width: RMSNorm(width, eps=1.0))
    assert block.attention is attention
    x = torch.randn(1, 3, 32)
    after = x + attention(F.rms_norm(x, (32,), eps=1.0))
    torch.testing.assert_close(block(x), after + 2 * F.rms_norm(after, (32,), eps=1.0))


def test_options_reach_the_attention() -> None:
    block = Block(32, 4, num_kv_heads=2, head_dim=6, bias=False, scale=0.5, soft_cap=9.0, sink=0.0, dropout=0.25)
    own = block.attention
    assert isinstance(own, MultiHeadAttention)
    assert (own.num_kv_heads, own.head_dim, own.scale, own.soft_cap, own.dropout) == (2, 6, 0.5, 9.0, 0.25)
    assert isinstance(own.sink, nn.Parameter)
    assert own.q_proj.bias is None


def test_dropout_in_training_alone() -> None:
    block, x = Block(32, 4, dropout=0.5), torch.randn(2, 5, 32)
    assert not torch.equal(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), block(x), rtol=0, atol=0)


# ---------------------------------------------------------------- feed-forward and norms


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_feed_forward(activation: str) -> None:
    layer, x = FeedForward(8, 20, activation).double(), torch.randn(3, 8, dtype=torch.float64)
    hidden = x @ layer.up_proj.weight.T + layer.up_proj.bias
    by_hand = {
        "relu": hidden.clamp(min=0),
        "gelu": hidden * (1 + torch.erf(hidden / 2**0.5)) / 2,
        "gelu_tanh": hidden * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3))) / 2,
    }[activation]
    torch.testing.assert_close(layer(x), by_hand @ layer.down_proj.weight.T + layer.down_proj.bias)


def test_swiglu() -> None:
    layer, x = FeedForward(8, 20, "swiglu", bias=False).double(), torch.randn(3, 8, dtype=torch.float64)
    assert layer.gate_proj is not None
    gate, up = x @ layer.gate_proj.weight.T, x @ layer.up_proj.weight.T
    torch.testing.assert_close(layer(x), (gate * torch.sigmoid(gate) * up) @ layer.down_proj.weight.T)
    assert set(layer.state_dict()) == {"up_proj.weight", "gate_proj.weight", "down_proj.weight"}


def test_feed_forward_refuses() -> None:
    with pytest.raises(HeadwayError, match="no activation 'xyz': give one of " + ", ".join(ACTIVATIONS)):
        FeedForward(8, 20, "xyz")
    with pytest.raises(HeadwayError, match="hidden_dim is 0: give at least 1"):
        FeedForward(8, 0)


def test_norms() -> None:
    assert isinstance(make_norm("layer", 8), LayerNorm)
    assert isinstance(make_norm("rms", 8), RMSNorm)
    assert isinstance(make_norm(nn.Identity, 8), nn.Identity)
    with pytest.raises(HeadwayError, match="norm is 'batch': give " + " or ".join(map(repr, NORMS))):
        make_norm("batch", 8)


def test_norms_on_both_sides() -> None:
    block = Block(32, 4, norm="rms", norm_after="rms")
    for norm in (block.attention_norm_after, block.feed_forward_norm_after):
        assert isinstance(norm, RMSNorm)
        nn.init.normal_(norm.weight)
    assert block.feed_forward_norm is not None
    x = torch.randn(2, 5, 32)
    wanted = x + block.attention_norm_after(block.attention(block.attention_norm(x)))  # type: ignore[misc]
    wanted = wanted + block.feed_forward_norm_after(block.feed_forward(block.feed_forward_norm(wanted)))  # type: ignore[misc]
    torch.testing.assert_close(block(x), wanted)
    with pytest.raises(HeadwayError, match="norm_after is given but norm_first is False"):
        Block(32, 4, norm_first=False, norm_after="rms")


@pytest.mark.parametrize("shared", [True, False])
def test_parallel_parts(shared: bool) -> None:
    block = ParallelBlock(32, 4, shared_norm=shared)
    nn.init.normal_(block.attention_norm.weight)  # type: ignore[arg-type]
    x = torch.randn(2, 5, 32)
    other = block.attention_norm if shared else block.feed_forward_norm
    assert other is not None
    wanted = x + block.attention(block.attention_norm(x), mask=masks.Causal()) + block.feed_forward(other(x))
    torch.testing.assert_close(block(x, mask=masks.Causal()), wanted)
    assert (block.feed_forward_norm is None) == shared


def test_parallel_parts_with_a_memory() -> None:
    block, x = ParallelBlock(32, 4), torch.randn(2, 9, 32)
    whole = block(x, mask=masks.Causal())
    places = headway.Coordinates.span(9)
    last = block(x[:, 4:], memory=x[:, :4], mask=masks.Causal(), positions=places.rows(4, 9), key_positions=places)
    torch.testing.assert_close(last, whole[:, 4:])


@pytest.mark.parametrize("given", [{"cross_attention": True}, {"norm_first": False}])
def test_what_parallel_parts_have_not(given: dict[str, bool]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(given))):
        ParallelBlock(32, 4, **given)


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - GATED))
def test_an_activation_as_a_module(name: str) -> None:
    x = torch.linspace(-3, 3, 7)
    assert torch.equal(Activation(name)(x), ACTIVATIONS[name](x))


@pytest.mark.parametrize("name", ["swiglu", "tahn"])
def test_no_such_activation_as_a_module(name: str) -> None:
    with pytest.raises(HeadwayError, match=f"there is no activation '{name}'"):
        Activation(name)
