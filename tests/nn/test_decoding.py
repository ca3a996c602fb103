"""Decoding with caches of fixed length, with caches that hold only a window, and with compiled steps."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import headway
from headway import Coordinates, HeadwayError
from headway.coordinates import KEPT, stream
from headway.masks import Causal, Chunked, KeepFirst, Mask, Window
from headway.models import Decoder, TransformerConfig
from headway.nn import KeyValueCache, MultiHeadAttention
from headway.nn._coordinates import continued, cropped, joined
from headway.positions import ENCODINGS, PositionEncoding, RoPE
from headway.positions._base import IN_ATTENTION

CPU = torch.device("cpu")
SIZES = [5, 1, 1, 2, 1, 1]
NAMES = sorted(name for name, kind in ENCODINGS.items() if kind._acts & IN_ATTENTION)


def layer_with(encoding: PositionEncoding | None, **options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(16, 2, encoding=encoding, **options).eval()


def same_bits(layer: MultiHeadAttention, x: Tensor, mask: Mask, *at: Coordinates) -> None:
    """``at``: the coordinates of the first calls; the others continue them."""
    static, growing = KeyValueCache(max_length=x.shape[1]), KeyValueCache()
    with torch.no_grad():
        for number, part in enumerate(x.split(SIZES, dim=1)):
            positions = at[number] if number < len(at) else None
            found, wanted = (layer(part, mask=mask, cache=one, positions=positions) for one in (static, growing))
            assert torch.equal(found, wanted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_static_cache_gives_the_bits_of_a_growing_one(name: str) -> None:
    encoding = ENCODINGS[name].examples()[0].eval()
    heads, head_dim, axes = encoding.sizes.num_heads or 4, encoding.sizes.head_dim or 8, encoding.axes or 1
    width = encoding.sizes.embed_dim or heads * head_dim
    x, ends = torch.randn(2, 11, width), list(itertools.accumulate(SIZES))
    at = [Coordinates.span(end, axes=axes).rows(end - n, end) for n, end in zip(SIZES, ends, strict=True)]
    layer = MultiHeadAttention(width, heads, head_dim=head_dim, encoding=encoding).eval()
    same_bits(layer, x, Causal(), *(at if axes > 1 else ()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(6), Causal() & (Window(3) | KeepFirst(2)), Chunked(4)])
def test_and_so_under_masks_with_grouped_heads_and_padding(mask: Mask, dtype: torch.dtype) -> None:
    layer = MultiHeadAttention(32, 4, num_kv_heads=2, encoding=headway.encoding("rope", head_dim=8), dtype=dtype).eval()
    x = torch.randn(2, sum(SIZES), 32, dtype=dtype)
    same_bits(layer, x, mask)
    same_bits(layer, x, mask, Coordinates.padded([5, 3], 5))


def test_its_storage_is_made_once() -> None:
    layer, x = layer_with(headway.encoding("rope", head_dim=8)), torch.randn(3, 19, 16)
    cache, addresses = KeyValueCache(max_length=30), set()
    with torch.no_grad():
        for part in x.split([11, 1, 1, 6], dim=1):
            layer(part, mask=Causal(), cache=cache)
            addresses.add(cache.keys.data_ptr())
        cache.crop(11)
        cache.reorder(torch.tensor([2, 0, 0]))
        layer(x, mask=Causal(), cache=cache)
        addresses.add(cache.keys.data_ptr())
    assert len(addresses) == 1
    assert cache._keys.storage is not None
    assert cache._keys.storage.shape[-2] == len(cache) == 30


def test_what_is_done_to_it_gives_what_a_growing_one_gives() -> None:
    layer, x = layer_with(headway.encoding("rope", head_dim=8)), torch.randn(3, 14, 16)
    caches = [KeyValueCache(max_length=20), KeyValueCache()]
    found = []
    with torch.no_grad():
        for cache in caches:
            layer(x[:, :8], mask=Causal(), cache=cache)
            cache.crop(6)
            cache.reorder(torch.tensor([1, 2, 0]))
            first = layer(x[:, 8:10], mask=Causal(), cache=cache)
            cache.reorder(torch.tensor([1, 1]))
            cache.keep(1, 3)
            cache = pickle.loads(pickle.dumps(copy.deepcopy(cache)))
            cache.prepared_by = layer.encoding
            found.append((first, layer(x[:2, 10:], mask=Causal(), cache=cache)))
            assert cache.max_length == (20 if cache._keys.capacity else None)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_exceeds_it_is_refused_before_any_work() -> None:
    layer, x, cache = layer_with(None), torch.randn(1, 6, 16), KeyValueCache(max_length=8)
    worked: list[object] = []
    with torch.no_grad():
        layer(x, mask=Causal(), cache=cache)
        layer.q_proj.register_forward_pre_hook(lambda *given: worked.append(given))
        with pytest.raises(HeadwayError, match=r"holds 6 tokens of at most max_length=8 and 3 follow"):
            layer(x[:, :3], mask=Causal(), cache=cache)
        decoder = Decoder(TransformerConfig(20, 16, 2, 2)).eval()
        decoder.stack.layers[0].register_forward_pre_hook(lambda *given: worked.append(given))
        with pytest.raises(HeadwayError, match=r"holds 0 tokens of at most max_length=4 and 5 follow"):
            decoder(torch.zeros(1, 5, dtype=torch.long), cache=decoder.new_cache(4))
        with pytest.raises(HeadwayError, match=r"max_length=8 and 3 follow"):
            cache.append(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
    assert not worked
    assert len(cache) == 6
    with pytest.raises(HeadwayError, match="max_length is 0: give at least 1"):
        KeyValueCache(0)
    with pytest.raises(HeadwayError, match="max_length is 4 and mask is given"):
        KeyValueCache(4, mask=Window(2))


def test_a_static_cache_of_a_model_keeps_all_tokens_and_decodes_the_same() -> None:
    masks = [Window(3), None]
    model = Decoder(TransformerConfig(20, 16, 2, 2), headway.encoding("rope", head_dim=8), masks).eval()
    ids, static, growing = torch.randint(20, (2, 12)), model.new_cache(12), model.new_cache()
    with torch.no_grad():
        for part in ids.split([6, 1, 1, 4], dim=1):
            torch.testing.assert_close(model(part, cache=static), model(part, cache=growing))
        torch.testing.assert_close(model(ids)[:, -1:], model.logits(model.hidden(ids))[:, -1:])
    assert [len(layer) for layer in static.layers] == [12, 12]
    static.crop(5)
    assert len(static) == 5


# ---------------------------------------------------------------- caches that hold a window alone


@pytest.mark.parametrize("name", ["none", "rope", "alibi"])
@pytest.mark.parametrize("mask", [Causal() & Window(6), Causal() & (Window(3) | KeepFirst(2))])
def test_a_cache_made_with_a_mask_holds_what_the_mask_shows(mask: Mask, name: str) -> None:
    encoding = headway.encoding(name, num_heads=2, head_dim=8)
    layer, x, cache = layer_with(encoding).double(), torch.randn(2, 60, 16).double(), KeyValueCache(mask=mask)
    held = sum(cache.retention or (0, 0))
    with torch.no_grad():
        found = [layer(part, mask=mask, cache=cache) for part in x.split([20, *[1] * 40], dim=1)]
    torch.testing.assert_close(torch.cat(found, 1), layer(x, mask=mask), rtol=0, atol=1e-12)
    assert len(cache) == held
    assert cache._keys.storage is not None
    assert cache._keys.storage.shape[-2] <= 2 * held


def test_such_a_cache_refuses_what_may_need_other_tokens() -> None:
    mask = Causal() & Window(6)
    layer, x, cache = layer_with(None), torch.randn(1, 20, 16), KeyValueCache(mask=mask)
    with torch.no_grad():
        layer(x[:, :5], mask=mask, cache=cache)
        cache.crop(4)  # nothing has been removed
        layer(x, mask=mask, cache=cache)
        layer(x[:, :1], mask=mask & Window(2), cache=cache)
        for wider in (Causal(), Causal() & Window(7), None, torch.ones(1, 7, dtype=torch.bool)):
            with pytest.raises(HeadwayError, match=r"first 0 and last 6 tokens.*the mask of this call may show others"):
                layer(x[:, :1], mask=wider, cache=cache)
        with pytest.raises(HeadwayError, match=r"crop to 3 tokens.*visible again: use KeyValueCache\(\)"):
            cache.crop(3)
        reading = layer_with(headway.encoding("forgetting", num_heads=2, embed_dim=16))
        with pytest.raises(HeadwayError, match=r"a \w+ reads tokens between others"):
            reading(x[:, :1], mask=mask, cache=cache)
        cache.crop(0)
        layer(x[:, :1], mask=mask, cache=cache)
        whole = KeyValueCache(mask=mask)
        reading(x, mask=mask, cache=whole)
    assert len(whole) == 20


# ---------------------------------------------------------------- coordinates of a stream


@pytest.mark.parametrize("start", [0, 5, KEPT - 12, KEPT + 3])
def test_coordinates_of_a_stream_are_those_that_are_joined(start: int) -> None:
    past = Coordinates.span(10, start=start)
    for n in (1, 3):
        new = continued(past, None, n, CPU)
        assert new == Coordinates.span(n, start=start + past.index.shape[1])
        joint = joined(past, new)
        assert joint == past.append(new)
        assert joint.consecutive
        assert cropped(joint, 4) == Coordinates.span(4, start=start)
        past = joint


def test_kept_coordinates_that_were_written_to_are_made_again() -> None:
    stream(3, 1, 4, CPU).index.add_(1)
    assert stream(3, 1, 4, CPU).index.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(("head_dim", "base"), [(8, 1e4), (64, 1e4), (128, 5e5)])
def test_angles_of_a_stream_are_those_of_its_positions(head_dim: int, base: float) -> None:
    encoding = RoPE(head_dim, base)
    block = (1 << 15) // (head_dim // 2)
    for start, n in ((0, 1), (7, 3), (block - 1, 1), (block - 1, 2), (block, 1), (3 * block + 5, 40), (0, block)):
        at = Coordinates.span(n, start=start)
        for found, wanted in zip(encoding.tables(at) or (), encoding.waves(at), strict=True):
            assert torch.equal(found, wanted)


# ---------------------------------------------------------------- compiled steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "none", "alibi", "t5", "window"])
def test_one_compilation_for_prompts_and_one_for_steps(name: str) -> None:
    masks = [Window(5)] if name == "window" else None
    encoding = headway.encoding("rope" if name == "window" else name, num_heads=2, head_dim=8)
    model = Decoder(TransformerConfig(20, 16, 1, 2), encoding, masks).eval()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="eager")
    with torch.no_grad():
        for prompt in (7, 12, 4):
            ids, caches = torch.randint(20, (1, prompt + 4)), [model.new_cache(24), model.new_cache(24)]
            for part in ids.split([prompt, 1, 1, 1, 1], dim=1):
                found, wanted = (one(part, cache=cache) for one, cache in zip((compiled, model), caches, strict=True))
                torch.testing.assert_close(found, wanted)
    assert counters["stats"]["unique_graphs"] == 2
