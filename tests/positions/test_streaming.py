"""Positions inside the cache, and decoding for ever with a bounded one."""

import cmath

import pytest
import torch
from torch import Tensor

from headway import Coordinates, HeadwayError
from headway.masks import Causal, Padding
from headway.models import Decoder, TransformerConfig
from headway.nn import KeyValueCache, MultiHeadAttention
from headway.positions import ALiBi, Compose, RoPE
from headway.positions._encodings.streaming import StreamingLLM

# mit-han-lab/streaming-llm, streaming_llm/kv_cache.py, commit 2e50426: the tokens in StartRecentKVCache(4, 6) at the
# steps 9, 10, 11 and 15, with evict_for_space before each; and after 14 tokens in two calls of 7
AUTHORS = {
    9: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    10: [0, 1, 2, 3, 5, 6, 7, 8, 9, 10],
    11: [0, 1, 2, 3, 6, 7, 8, 9, 10, 11],
    15: [0, 1, 2, 3, 10, 11, 12, 13, 14, 15],
}


def keys_at(index: list[list[int]], position: list[list[int]] | None = None) -> Coordinates:
    at = torch.tensor(index)
    return Coordinates((at.clamp(min=0) if position is None else torch.tensor(position))[..., None], at)


def relocated(q_at: Coordinates, k_at: Coordinates) -> tuple[list[list[int]], list[list[int]]]:
    q_at, k_at = StreamingLLM().relocate(q_at, k_at)
    return q_at.axis().tolist(), k_at.axis().tolist()


def test_a_position_is_the_rank_among_the_keys_that_are_there() -> None:
    kept = keys_at([[0, 1, 2, 3, 96, 97, 98, 99]])
    assert relocated(keys_at([[99]]), kept) == ([[7]], [[0, 1, 2, 3, 4, 5, 6, 7]])
    shuffled = keys_at([[98, 2, 0, 99]])
    assert relocated(shuffled, shuffled)[1] == [[2, 1, 0, 3]]


def test_where_nothing_was_evicted_positions_stay() -> None:
    gaps = Coordinates.of(torch.tensor([5, 40, 2, 7]), 4)
    q_at, k_at = StreamingLLM().relocate(gaps, keys_at([[0, 1, 2, 3]], [[5, 40, 2, 7]]))
    assert torch.equal(q_at.position, gaps.position)
    assert torch.equal(k_at.position, gaps.position)
    packed = Coordinates.packed([2, 3])
    assert StreamingLLM().relocate(packed, packed)[1] is packed
    for side in ("left", "right"):
        padded = Coordinates.padded([2, 4], 4, side=side)
        assert torch.equal(StreamingLLM().relocate(padded, padded)[0].position, padded.position)


def test_each_row_counts_its_own_keys_and_no_padding() -> None:
    kept = keys_at([[-1, 0, 1, 7], [0, 1, 8, 9]])
    assert relocated(kept, kept)[1] == [[0, 0, 1, 2], [0, 1, 2, 3]]


def literal(layer: MultiHeadAttention, x: Tensor, t: int, kept: list[int]) -> Tensor:
    """Attention of token t of one sequence to the kept tokens, keys turned by their rank: loops and complex numbers."""
    heads, d = layer.num_heads, layer.head_dim
    q, k, v = (proj(x).unflatten(-1, (heads, d)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = torch.zeros(heads, d, dtype=x.dtype)
    for h in range(heads):
        scores = []
        for rank, j in enumerate(kept):
            total = 0.0
            for c in range(d // 2):
                a, b = (complex(part[h, 2 * c], part[h, 2 * c + 1]) for part in (q[t], k[j]))
                total += (a.conjugate() * b * cmath.exp(1j * (rank - len(kept) + 1) * 10000 ** (-2 * c / d))).real
            scores.append(total / d**0.5)
        for weight, j in zip(torch.tensor(scores, dtype=x.dtype).softmax(0), kept, strict=True):
            out[h] += weight * v[j, h]
    return layer.out_proj(out.flatten())


def test_decoding_with_a_bounded_cache_is_attention_over_what_is_kept() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, encoding=Compose(StreamingLLM(), RoPE(8))).double().eval()
    x, cache = torch.randn(1, 16, 16, dtype=torch.float64), KeyValueCache()
    with torch.no_grad():
        for t in range(16):
            cache.keep(4, 5)
            out = layer(x[:, t : t + 1], mask=Causal(), cache=cache)
            assert cache.coordinates is not None
            kept = cache.coordinates.index[0].tolist()
            assert kept == AUTHORS.get(t, kept)
            assert len(kept) == min(t + 1, 10)
            torch.testing.assert_close(out[0, 0], literal(layer, x[0], t, kept), rtol=0, atol=1e-12)


def test_several_tokens_at_once_and_padded_rows_are_each_as_alone() -> None:
    torch.manual_seed(1)
    layer = MultiHeadAttention(16, 2, encoding=Compose(StreamingLLM(), RoPE(8))).double().eval()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    x[1, :3] = 0  # padding in front of the second row

    def decoded(x: Tensor, first: Coordinates) -> Tensor:
        cache = KeyValueCache()
        layer(x[:, :7], mask=Causal() & Padding(), positions=first, cache=cache)
        for t in range(7, 12):
            cache.keep(2, 3)
            out = layer(x[:, t : t + 1], mask=Causal() & Padding(), cache=cache)
        return out

    with torch.no_grad():
        both = decoded(x, Coordinates.padded([7, 4], 7))
        for row, cut in enumerate((0, 3)):
            cache = KeyValueCache()
            layer(x[row : row + 1, cut:7], mask=Causal(), cache=cache)
            for t in range(7, 12):
                cache.keep(2, 3)
                alone = layer(x[row : row + 1, t : t + 1], mask=Causal(), cache=cache)
            torch.testing.assert_close(both[row], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("reader", [RoPE(8), ALiBi(2)])
def test_a_model_decodes_for_ever(reader: RoPE | ALiBi) -> None:
    torch.manual_seed(2)
    config = TransformerConfig(vocab_size=11, embed_dim=16, num_heads=2, num_layers=2)
    decoder = Decoder(config, Compose(StreamingLLM(), reader)).eval()
    ids, cache, plain = torch.randint(0, 11, (2, 20)), decoder.new_cache(), decoder.new_cache()
    with torch.no_grad():
        for t in range(20):
            cache.keep(first=2, last=5)
            bounded = decoder(ids[:, t : t + 1], cache=cache)
            if t < 8:
                torch.testing.assert_close(bounded, decoder(ids[:, t : t + 1], cache=plain))
            assert len(cache) <= 8
    assert bounded.isfinite().all()
    assert cache.coordinates is not None
    assert cache.coordinates.index.tolist() == [[0, 1, 14, 15, 16, 17, 18, 19]]


def test_alone_it_is_refused() -> None:
    with pytest.raises(HeadwayError, match="StreamingLLM changes where tokens are and nothing here reads it"):
        MultiHeadAttention(8, 2, encoding=StreamingLLM())(torch.randn(1, 3, 8))
