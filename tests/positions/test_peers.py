"""The first encodings of the table against implementations by others; later ones have theirs in their own files."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.positions import T5, ALiBi, Learned, NoPE, RoPE, Shaw, Sinusoidal, TransformerXL
from headway.properties import Pairs

N, HEADS, HEAD_DIM = 7, 4, 8


def scores(encoding: hw.positions.PositionEncoding, q: Tensor, k: Tensor) -> Tensor:
    """What the encoding's hooks make of q and k [heads, n, head_dim] at 0 … n − 1."""
    at = Coordinates.span(q.shape[1])
    return Pairs(encoding, q, k, at, at).scores().detach()


def test_none_is_torchs_attention() -> None:
    q, k, v = torch.randn(3, 2, HEADS, N, HEAD_DIM, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(hw.attention(q, k, v, encoding=NoPE()), expected)


def test_sinusoidal_is_that_of_positional_encodings() -> None:
    package = pytest.importorskip("positional_encodings.torch_encodings")
    x = torch.zeros(1, 50, 32, dtype=torch.float64)
    torch.testing.assert_close(Sinusoidal(32).embed(x), package.PositionalEncoding1D(32)(x), atol=1e-5, rtol=0)


def test_sinusoidal_has_marians_columns_in_another_order() -> None:
    """Theirs has all sines first; the wavelengths are the paper's."""
    package = pytest.importorskip("transformers.models.marian.modeling_marian")
    theirs = package.MarianSinusoidalPositionalEmbedding(50, 32)
    theirs.weight = torch.nn.Parameter(theirs.create_weight())
    ours = Sinusoidal(32).embed(torch.zeros(1, 50, 32))[0]
    torch.testing.assert_close(torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1), theirs.weight.detach())


def test_learned_is_gpt2s() -> None:
    package = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = package.GPT2Config(vocab_size=5, n_positions=20, n_embd=8, n_layer=0, n_head=2, embd_pdrop=0.0)
    model = package.GPT2Model(config).eval()
    ours = Learned(20, 8, initial=model.wpe.weight)
    x = torch.randn(1, N, 8)
    expected = model(inputs_embeds=x).last_hidden_state
    torch.testing.assert_close(model.ln_f(ours.embed(x)), expected)


def test_shaw_is_that_of_vits_where_no_distance_is_cut() -> None:
    """VITS adds nothing beyond its window where Shaw has the last row: 4 tokens stay within it."""
    package = pytest.importorskip("transformers.models.vits.modeling_vits")
    width, n, window = HEADS * HEAD_DIM, 4, 4
    config = SimpleNamespace(
        hidden_size=width, num_attention_heads=HEADS, attention_dropout=0.0, window_size=window, use_bias=False
    )
    theirs = package.VitsAttention(config).double().eval()
    ours = Shaw(HEAD_DIM, max_distance=window).double()
    with torch.no_grad():
        ours.keys.copy_(theirs.emb_rel_k[0])
        ours.values.copy_(theirs.emb_rel_v[0])
    x = torch.randn(1, n, width, dtype=torch.float64)
    q, k, v = (
        linear(x).view(1, n, HEADS, HEAD_DIM).transpose(1, 2)
        for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    )
    found = theirs.out_proj(hw.attention(q, k, v, encoding=ours).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, theirs(x)[0])


def test_transformer_xl_is_that_of_xlnet() -> None:
    package = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    width = HEADS * HEAD_DIM
    config = package.XLNetConfig(d_model=width, n_head=HEADS, n_layer=1, d_inner=8, dropout=0.0)
    theirs = package.XLNetRelativeAttention(config).double()
    ours = TransformerXL(width, HEADS, HEAD_DIM).double()
    with torch.no_grad():
        for parameter in (*theirs.parameters(), *ours.parameters()):
            parameter.normal_()
        ours.u.copy_(theirs.r_w_bias)
        ours.v.copy_(theirs.r_r_bias)
    offsets = torch.arange(N, -N, -1, dtype=torch.float64)
    turns = offsets[:, None] * 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    waves = torch.cat([turns.sin(), turns.cos()], dim=-1)
    r = torch.einsum("ow,hdw->ohd", waves, ours.W_R)[:, None]
    q, k, v = torch.randn(3, N, 1, HEADS, HEAD_DIM, dtype=torch.float64)
    expected = theirs.rel_attn_core(q, k, v, r).permute(1, 2, 0, 3)
    found = hw.attention(*(x.permute(1, 2, 0, 3) for x in (q, k, v)), encoding=ours)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20)])
def test_t5_is_t5s(bidirectional: bool, buckets: int, farthest: int) -> None:
    package = pytest.importorskip("transformers.models.t5.modeling_t5")
    n = 300
    at = torch.arange(n)
    bucket = package.T5Attention._relative_position_bucket(
        at[None] - at[:, None], bidirectional=bidirectional, num_buckets=buckets, max_distance=farthest
    )
    ours = T5(HEADS, buckets, farthest, bidirectional).double()
    nothing = torch.zeros(HEADS, n, 1, dtype=torch.float64)
    torch.testing.assert_close(scores(ours, nothing, nothing), ours.table.detach()[:, bucket])


@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_is_that_of_mpt_and_bloom(heads: int) -> None:
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    nothing = torch.zeros(heads, N, 1)
    last = scores(ALiBi(heads), nothing, nothing)[:, -1:].float()
    torch.testing.assert_close(last, mpt.build_mpt_alibi_tensor(heads, N))
    theirs = bloom.build_alibi_tensor(torch.ones(1, N), heads, torch.float32)
    torch.testing.assert_close(last - last[..., :1], theirs - theirs[..., :1])


def test_rope_in_halves_is_llamas() -> None:
    package = pytest.importorskip("transformers.models.llama.modeling_llama")
    at = torch.tensor([[0, 1, 5, 900, 901, 902, 4000]])
    config = package.LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )
    q, k = torch.randn(2, 1, HEADS, N, HEAD_DIM)
    cos, sin = package.LlamaRotaryEmbedding(config)(q, at)
    expected = package.apply_rotary_pos_emb(q, k, cos, sin)
    rope, where = RoPE(HEAD_DIM, base=5e5, layout="half"), Coordinates.of(at, N)
    torch.testing.assert_close((rope.prepare(q, where), rope.prepare(k, where)), expected, atol=2e-4, rtol=0)


def test_rope_in_pairs_is_gptjs() -> None:
    package = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    sin, cos = package.create_sinusoidal_positions(N, HEAD_DIM).chunk(2, dim=-1)
    q = torch.randn(1, N, HEADS, HEAD_DIM)
    expected = package.apply_rotary_pos_emb(q, sin[None], cos[None]).transpose(1, 2)
    torch.testing.assert_close(RoPE(HEAD_DIM).prepare(q.transpose(1, 2), Coordinates.span(N)), expected)
