"""Caches grow in doublings, and can be cropped and reordered; a memory keeps the last hidden states."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import headway
from headway import Coordinates, HeadwayError
from headway.masks import Causal, Chunked, Dilated, Documents, KeepFirst, Mask, Padding, Prefix, Window
from headway.models import Decoder, Stack, TransformerConfig
from headway.nn import Block, KeyValueCache, MultiHeadAttention, SegmentMemory, StackCache
from headway.nn._coordinates import continued
from headway.nn._retention import Retention, reads_others
from headway.nn._token_buffer import Slots, TokenBuffer
from headway.nn._transaction import transaction
from headway.positions import ENCODINGS, SHAPE, Compose, Interpolated, PositionEncoding, RoPE
from headway.positions._base import IN_ATTENTION


def filled(lengths: list[int]) -> tuple[KeyValueCache, torch.Tensor, torch.Tensor]:
    cache, n = KeyValueCache(), sum(lengths)
    keys, values = torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 5)
    past = None
    for k, v in zip(keys.split(lengths, dim=2), values.split(lengths, dim=2), strict=True):
        new = continued(past, None, k.shape[2], torch.device("cpu"))
        cache.append(k, v, coordinates=new)
        past = cache.coordinates
    return cache, keys, values


def test_append_gives_all() -> None:
    cache, keys, values = filled([3, 1, 1, 4, 1])
    assert len(cache) == 10
    torch.testing.assert_close(cache.keys, keys, rtol=0, atol=0)
    torch.testing.assert_close(cache.values, values, rtol=0, atol=0)
    assert cache.coordinates is not None
    assert cache.coordinates.index.tolist() == [list(range(10))]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["key-value", "stack", "memory"])
def test_a_forward_pass_computed_again_refuses_what_the_first_has_filled(name: str, reentrant: bool) -> None:
    build, held, layer = {
        "key-value": (KeyValueCache, "cache", MultiHeadAttention(8, 2)),
        "stack": (lambda: StackCache(1), "cache", Stack([Block(8, 2)])),
        "memory": (lambda: SegmentMemory(4), "memory", Stack([Block(8, 2)])),
    }[name]
    x = torch.randn(2, 3, 8)

    def two_calls(given: Any, x: Tensor) -> Tensor:
        own: Any = build() if given is None else given
        out: Tensor = layer(x, mask=Causal(), **{held: own}) + layer(2 * x, mask=Causal(), **{held: own})
        return out

    def gradient(call: Callable[[Tensor], Tensor]) -> Tensor:
        start = x.clone().requires_grad_()
        call(start).pow(3).sum().backward()
        assert start.grad is not None
        return start.grad

    again = partial(checkpoint, use_reentrant=reentrant)
    with pytest.raises(HeadwayError, match="is given to a forward pass that a backward pass computes again"):
        gradient(partial(again, partial(two_calls, build())))
    own_each_time = gradient(partial(again, partial(two_calls, None)))
    torch.testing.assert_close(own_each_time, gradient(partial(two_calls, None)))


def test_room_doubles() -> None:
    """1000 tokens one by one move to a new place 11 times, not 1000 times."""
    cache, places = KeyValueCache(), set()
    kept = []  # freed memory would be handed out again
    for _ in range(1000):
        keys, _values = cache.append(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
        places.add(keys.data_ptr())
        kept.append(keys)
    assert len(places) == 11


def test_what_is_handed_in_is_not_written_to() -> None:
    cache, given = KeyValueCache(), torch.randn(1, 1, 4, 4)
    before = given.clone()
    cache.append(given, given)
    cache.crop(2)
    cache.append(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    torch.testing.assert_close(given, before, rtol=0, atol=0)


def test_crop_forgets_the_last() -> None:
    cache, keys, _ = filled([4, 1, 1])
    cache.crop(3)
    assert len(cache) == 3
    torch.testing.assert_close(cache.keys, keys[:, :, :3], rtol=0, atol=0)
    after = continued(cache.coordinates, None, 2, torch.device("cpu"))
    assert after.index.tolist() == [[3, 4]]
    assert after.length == 5
    more = torch.randn(2, 3, 1, 4)
    cache.append(more, torch.randn(2, 3, 1, 5))
    torch.testing.assert_close(cache.keys, torch.cat([keys[:, :, :3], more], dim=2), rtol=0, atol=0)
    cache.crop(0)
    assert len(cache) == 0
    assert cache.coordinates is None
    for wrong in (-1, 1):
        with pytest.raises(HeadwayError, match=f"crop to {wrong} tokens but the cache holds 0"):
            cache.crop(wrong)


def test_keep_forgets_the_middle() -> None:
    cache, keys, values = filled([4, 3])
    cache.append(torch.zeros(2, 3, 0, 4), torch.zeros(2, 3, 0, 5), inputs=torch.arange(7.0).expand(2, 7).unsqueeze(-1))
    cache.keep(5, 2)  # all of them
    assert len(cache) == 7
    cache.keep(2, 3)
    kept = [0, 1, 4, 5, 6]
    torch.testing.assert_close(cache.keys, keys[:, :, kept], rtol=0, atol=0)
    torch.testing.assert_close(cache.values, values[:, :, kept], rtol=0, atol=0)
    assert cache.inputs is not None
    assert cache.inputs[0, :, 0].tolist() == kept
    at = cache.coordinates
    assert at is not None
    assert (at.index.tolist(), at.axis().tolist(), at.length) == ([kept], [kept], 7)
    assert (at.ordered, at.start) == (False, None)
    after = continued(at, None, 1, torch.device("cpu"))
    assert (after.index.item(), after.axis().item(), after.length) == (7, 7, 8)
    for first, last in ((-1, 2), (2, -1)):
        with pytest.raises(HeadwayError, match=f"keep the first {first} and the last {last} tokens: give at least 0"):
            cache.keep(first, last)
    cache.keep(0, 1)
    torch.testing.assert_close(cache.keys, keys[:, :, 6:], rtol=0, atol=0)
    KeyValueCache().keep(2, 3)


def test_keep_starts_each_row_at_its_own_first_token() -> None:
    """A row with fewer real tokens than are kept, keeps padding in front of them."""
    cache, n = KeyValueCache(), 8
    keys = torch.arange(3 * n).reshape(3, 1, n, 1).float()
    cache.append(keys, keys, coordinates=Coordinates.padded([8, 6, 3], n))
    cache.keep(2, 3)
    assert cache.keys[:, 0, :, 0].tolist() == [[0, 1, 5, 6, 7], [10, 11, 13, 14, 15], [19, 20, 21, 22, 23]]
    assert cache.coordinates is not None
    assert cache.coordinates.index.tolist() == [[0, 1, 5, 6, 7], [0, 1, 3, 4, 5], [-2, -1, 0, 1, 2]]
    assert cache.coordinates.length.tolist() == [[8], [6], [3]]  # type: ignore[union-attr]


def test_keep_takes_documents_and_their_lengths_along() -> None:
    cache, keys = KeyValueCache(), torch.randn(2, 1, 5, 4)
    cache.append(keys, keys, coordinates=Coordinates.packed([2, 3]))
    cache.keep(1, 2)
    at = cache.coordinates
    assert at is not None
    assert at.document is not None
    assert (at.document.tolist(), at.axis().tolist()) == ([[0, 1, 1]], [[0, 1, 2]])
    assert at.length.tolist() == [[2, 3, 3]]  # type: ignore[union-attr]


@torch.no_grad()
def test_a_storage_that_is_larger_than_twice_what_is_kept_is_freed() -> None:
    for last, room in ((6, 12), (5, 5)):
        cache = KeyValueCache()
        cache.append(*2 * (torch.randn(1, 1, 6, 2),))
        cache.append(*2 * (torch.randn(1, 1, 1, 2),))
        assert cache._keys.storage is not None
        assert cache._keys.storage.shape[-2] == 12
        cache.keep(0, last)
        assert cache._keys.storage.shape[-2] == room, last


@torch.no_grad()
@pytest.mark.parametrize("first", [0, 2])
def test_what_is_kept_after_each_step_stays_in_rooms_of_one_size(first: int) -> None:
    """The tokens move once in a room's length, and are those that were kept."""
    cache, places, kept = KeyValueCache(), set(), []
    keys = torch.arange(1000.0).reshape(1, 1, -1, 1)
    for one in [*keys[:, :, :300].split(300, dim=2), *keys[:, :, 300:].split(1, dim=2)]:
        held, _ = cache.append(one, one, coordinates=continued(cache.coordinates, None, one.shape[2], one.device))
        places.add(held.data_ptr() - 4 * cache._keys.start)
        kept.append(cache._keys.storage)  # freed memory would be handed out again
        stop = int(one[..., -1, 0]) + 1
        expected = [*range(first), *range(stop - 10 if stop > 10 + first else first, stop)]
        cache.keep(first, 10)
        assert cache.keys.flatten().tolist() == cache.values.flatten().tolist() == expected
        assert cache.coordinates is not None
        assert cache.coordinates.index[0].tolist() == expected
        assert cache._keys.storage is not None
        assert cache._keys.storage.shape[-2] <= 2 * (10 + first)
    assert (cache.coordinates.ordered, cache.coordinates.start) == ((False, None) if first else (True, 990))
    assert len(places) == pytest.approx(700 / (10 + first), abs=3)


def test_keep_with_gradients_writes_over_nothing() -> None:
    keys = torch.randn(1, 1, 8, 4, requires_grad=True)
    cache, total = KeyValueCache(), torch.zeros(())
    for one in keys.split([5, 1, 1, 1], dim=2):
        held, _ = cache.append(one, one)
        total = total + (held**2).sum()
        cache.keep(1, 3)
    total.backward()
    assert keys.grad is not None
    times = keys.grad[0, 0, :, 0] / (2 * keys[0, 0, :, 0])
    torch.testing.assert_close(times, torch.tensor([4.0, 1, 2, 3, 4, 3, 2, 1]))


def test_reorder_chooses_rows() -> None:
    cache, keys, values = filled([2, 1])
    rows = torch.tensor([1, 1, 0])
    cache.reorder(rows)
    torch.testing.assert_close(cache.keys, keys[rows], rtol=0, atol=0)
    torch.testing.assert_close(cache.values, values[rows], rtol=0, atol=0)
    cache.append(torch.randn(3, 3, 1, 4), torch.randn(3, 3, 1, 5))
    assert len(cache) == 4


def test_another_batch_is_refused() -> None:
    cache, _, _ = filled([2])
    with pytest.raises(HeadwayError, match="the batch is 5 but the cache holds 2 rows"):
        cache.append(torch.randn(5, 3, 1, 4), torch.randn(5, 3, 1, 5))


def test_reading_nothing_is_refused() -> None:
    with pytest.raises(HeadwayError, match="the cache is empty"):
        _ = KeyValueCache().keys


def test_copies() -> None:
    cache, keys, _ = filled([2, 1])
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        cache.crop(1)
        torch.testing.assert_close(other.keys, keys, rtol=0, atol=0)


def test_stack_cache_does_it_for_every_layer() -> None:
    cache = StackCache(2)
    for layer in (*cache.layers, cache.context[0]):
        layer.append(torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4))
    cache.coordinates = Coordinates.padded([5, 3], 5)
    assert len(cache) == 5
    cache.crop(4)
    cache.reorder(torch.tensor([1]))
    assert [len(layer) for layer in (*cache.layers, *cache.context)] == [4, 4, 5, 0]
    assert cache.layers[1].keys.shape[0] == 1
    assert cache.coordinates.index.tolist() == [[-2, -1, 0, 1]]
    assert cache.coordinates.length.tolist() == [[2]]  # type: ignore[union-attr]


def test_stack_cache_keeps_in_every_layer_and_leaves_the_context() -> None:
    cache = StackCache(2)
    for layer in (*cache.layers, cache.context[0]):
        layer.append(torch.randn(2, 1, 6, 4), torch.randn(2, 1, 6, 4))
    cache.coordinates = Coordinates.padded([6, 4], 6)
    cache.keep(1, 2)
    assert [len(layer) for layer in (*cache.layers, *cache.context)] == [3, 3, 6, 0]
    assert cache.coordinates.index.tolist() == [[0, 4, 5], [0, 2, 3]]
    StackCache(2).keep(1, 2)


# ---------------------------------------------------------------- layers that hold what their mask shows


@pytest.mark.parametrize(
    ("mask", "held"),
    [
        (None, None),
        (Causal(), None),
        (Window(7), (0, 7)),
        (Window(0), (0, 1)),
        (Window(None, 3), None),
        (Chunked(8), (0, 7)),
        (Chunked(8, previous=2), (0, 23)),
        (Chunked(1), (0, 1)),
        (Window(7) | KeepFirst(4), (4, 7)),
        (Window(7) | KeepFirst(4) | KeepFirst(9), (9, 7)),
        (Window(7) | Prefix(5), (5, 7)),
        (Window(7) | Prefix(torch.tensor([5])), None),
        (Window(7) | Causal(), None),
        (Causal() & Window(7), (0, 7)),
        (Causal() & (Window(7) | KeepFirst(4)) & Padding(), (4, 7)),
        (Window(7) & Chunked(4), (0, 3)),
        (Causal() & Dilated(2), None),
    ],
)
def test_what_is_held_under_a_mask(mask: Mask | None, held: tuple[int, int] | None) -> None:
    assert Retention.under(mask) == held
    assert StackCache(2, [mask, None]).retention == [held, None]


class Layers:
    """Attention layers one upon another, as a stack has them."""

    def __init__(self, masks: list[Mask | None], encoding: PositionEncoding, embed_dim: int, num_heads: int, **sizes):
        self.masks, self.encoding = masks, encoding
        self.layers = [MultiHeadAttention(embed_dim, num_heads, **sizes).double().eval() for _ in masks]

    def __call__(self, x: Tensor, at: Coordinates, cache: StackCache | None = None) -> Tensor:
        with transaction(cache):
            return self._run(x, at, cache)

    def _run(self, x: Tensor, at: Coordinates, cache: StackCache | None) -> Tensor:
        keys = None if cache is None else cache.enter(at)
        for number, (layer, own) in enumerate(zip(self.layers, self.masks, strict=True)):
            mask = Causal() & Padding() if own is None else Causal() & Padding() & own
            options = {} if cache is None else {"key_positions": keys[number], "cache": cache.layers[number]}
            x = x + layer(x, mask=mask, positions=at, encoding=self.encoding, **options)
            if cache is not None:
                cache.settle(number)
        return x

    def step_by_step(self, x: Tensor, at: Coordinates, sizes: list[int], cache: StackCache) -> Tensor:
        """The first coordinates are given, those that follow come by themselves."""
        parts = [self(x[:, : sizes[0]], at.rows(0, sizes[0]), cache)]
        for part in x[:, sizes[0] :].split(sizes[1:], dim=1):
            parts.append(self(part, continued(cache.coordinates, None, part.shape[1], x.device), cache))
        return torch.cat(parts, dim=1)


FAMILIES = [
    [Window(3), None, Window(3)],
    [Window(3), Window(5)],
    [Window(3) | KeepFirst(2), Chunked(4), Window(6)],
    [Window(0), Window(1) | KeepFirst(1)],
]


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "shaw"])
@pytest.mark.parametrize("masks", FAMILIES)
def test_layers_with_a_window_hold_it_alone_and_decode_the_same(name: str, masks: list[Mask | None]) -> None:
    layers = Layers(masks, headway.encoding(name, num_heads=2, head_dim=8, embed_dim=16), 16, 2)
    lengths, n = [24, 20, 13], 24
    x, at = torch.randn(3, n, 16).double(), Coordinates.padded(lengths, n)
    cache = StackCache(len(masks), masks)
    with torch.no_grad():
        wanted = layers(x, at)
        found = layers.step_by_step(x, at, [14, 1, 1, 1, 3, 1, 1, 1, 1], cache)
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[row, n - length :], wanted[row, n - length :], rtol=0, atol=1e-12)
        # on and on, so that rooms show whether they stay
        for _ in range(20):
            layers(torch.randn(3, 1, 16).double(), continued(cache.coordinates, None, 1, x.device), cache)
    for mask, layer in zip(masks, cache.layers, strict=True):
        held = Retention.under(mask)
        assert layer._keys.storage is not None
        if held is None:
            assert len(layer) == n + 20
        else:
            assert len(layer) == sum(held)
            assert layer._keys.storage.shape[-2] <= 2 * sum(held)
    at = cache.coordinates
    assert at is not None
    assert at.index[:, -1].tolist() == [length + 19 for length in lengths]
    assert at.index.shape[1] == len(cache) == max(len(layer) for layer in cache.layers)


def test_a_long_prompt_leaves_each_layer_as_soon_as_it_has_attended() -> None:
    cache = StackCache(2, [Window(3), None])
    for prompt in range(2):  # a second one that meets tokens, which a rollback would want back
        with transaction(cache):
            keys = cache.enter(continued(cache.coordinates, None, 500, torch.device("cpu")))
            assert keys[0].index.shape == (1, 503 if prompt else 500)
            cache.layers[0].append(torch.randn(1, 1, 500, 4), torch.randn(1, 1, 500, 4))
            cache.settle(0)
            rooms = [cache.layers[0].keys, *(tokens.before[0] for tokens in cache.layers[0]._parts if prompt)]
            assert all(room.untyped_storage().nbytes() <= 2 * 3 * 4 * 4 for room in rooms if room is not None)
            cache.layers[1].append(torch.randn(1, 1, 500, 4), torch.randn(1, 1, 500, 4))
            cache.settle(1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_decodes_the_same_behind_a_window(name: str) -> None:
    """Those that read other tokens than the two hold all, those that need not let go."""
    masks = [Window(4), Window(3) | KeepFirst(2)]
    for encoding in ENCODINGS[name].examples():
        if not encoding.acts & IN_ATTENTION:
            continue  # it only embeds
        heads, head_dim = encoding.sizes.num_heads or 4, encoding.sizes.head_dim or 8
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(torch.randn_like(parameter))
        width = encoding.sizes.embed_dim or heads * head_dim
        layers = Layers(masks, encoding.double().eval(), width, heads, head_dim=head_dim)
        cache = StackCache(2, masks, [encoding] * 2)
        assert (cache.retention == [None] * 2) == reads_others(encoding)
        x, n = torch.randn(2, 11, width).double(), 11
        at = Coordinates.span(n, axes=encoding.axes or 1)  # its parts know the total length too
        with torch.no_grad():
            parts = [layers(x[:, i : i + 1], at.rows(i, i + 1), cache) for i in range(n)]
            torch.testing.assert_close(torch.cat(parts, dim=1), layers(x, at), rtol=0, atol=1e-9)


def test_some_encodings_do_read_others() -> None:
    """A window that they were bound by would change what they decode: held in test_every_encoding_…"""
    reading = {name for name, kind in ENCODINGS.items() if reads_others(kind.examples()[0])}
    assert {"path", "forgetting", "dape-v2", "streaming-llm"} <= reading
    assert not {"rope", "alibi", "t5", "shaw", "deberta", "fire", "dynamic-ntk", "rerope", "xpos"} & reading
    assert not reads_others(None)


def test_a_window_that_has_forgotten_cannot_be_cropped() -> None:
    cache = StackCache(2, [Window(3), None])

    def enter(n: int) -> None:
        with transaction(cache):
            cache.enter(continued(cache.coordinates, None, n, torch.device("cpu")))
            for number in range(2):
                cache.layers[number].append(torch.randn(1, 1, n, 4), torch.randn(1, 1, n, 4))
                cache.settle(number)

    enter(3)
    cache.crop(2)
    enter(1)
    enter(2)
    assert [len(layer) for layer in cache.layers] == [3, 5]
    with pytest.raises(HeadwayError, match=r"crop to 4 tokens but layers with a window .* with StackCache\(2\)"):
        cache.crop(4)
    assert [len(layer) for layer in cache.layers] == [3, 5]
    cache.crop(0)
    enter(2)
    cache.crop(1)
    assert [len(layer) for layer in cache.layers] == [1, 1]


def test_a_cache_that_is_emptied_has_forgotten_nothing() -> None:
    """What it is used with may read other tokens again."""
    cache = KeyValueCache(mask=Window(2))
    for _ in range(2):
        with transaction(cache):
            at = continued(cache.coordinates, None, 3, torch.device("cpu"))
            cache.append(*2 * (torch.randn(1, 1, 3, 4),), coordinates=at)
    with pytest.raises(HeadwayError, match="crop to 1 tokens"):
        cache.crop(1)
    cache.crop(0)
    cache.need_mask(Causal(), headway.encoding("forgetting", num_heads=1, embed_dim=4))
    assert cache.retention is None


def test_keep_and_reorder_reach_layers_with_and_without_a_window() -> None:
    cache, at = StackCache(2, [Window(4), None]), Coordinates.padded([9, 7], 9)
    with transaction(cache):
        cache.enter(at)
        for number in range(2):
            cache.layers[number].append(torch.arange(18.0).reshape(2, 1, 9, 1), torch.zeros(2, 1, 9, 1))
            cache.settle(number)
    cache.keep(1, 2)
    cache.reorder(torch.tensor([1]))
    assert [layer.keys.flatten().tolist() for layer in cache.layers] == [[14, 16, 17], [11, 16, 17]]
    keys = cache.enter(continued(cache.coordinates, None, 1, torch.device("cpu")))
    assert [one.index.tolist() for one in keys] == [[[3, 5, 6, 7]], [[0, 5, 6, 7]]]


def test_an_error_before_the_first_layer_leaves_the_cache_as_it_was() -> None:
    cache = StackCache(1, [Window(2)])

    def interrupted() -> None:
        with transaction(cache):
            cache.enter(Coordinates.span(5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert cache.coordinates is None
    with transaction(cache):
        assert cache.enter(Coordinates.span(2))[0].index.tolist() == [[0, 1]]


# ---------------------------------------------------------------- a call that raises


def state(cache: KeyValueCache) -> list[Tensor]:
    """All that a cache holds, copied."""
    at = cache.coordinates
    if not len(cache):
        assert at is None
        return []
    held = [cache.keys, cache.values] + ([] if cache.inputs is None else [cache.inputs])
    assert {one.shape[-2] for one in held} == {len(cache)}
    return [one.detach().clone() for one in (*held, *(() if at is None else (at.index, at.position)))]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


class Stop(BaseException):
    """Like Ctrl-C, which is not an Exception."""


class Fails(Mask):
    """A mask of a user's that raises once it is looked at."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        raise Stop


def stop(*_: object) -> None:
    raise Stop


def after(part: torch.nn.Module, call: Callable[[], object]) -> None:
    """A call that is stopped behind a part of the layer."""
    hook = part.register_forward_hook(stop)
    try:
        call()
    finally:
        hook.remove()


WAYS: dict[str, Callable[[MultiHeadAttention, Tensor, KeyValueCache], object]] = {
    "mask": lambda layer, x, cache: layer(x, mask=torch.ones(7, 9, dtype=torch.bool), cache=cache),
    "mask raises": lambda layer, x, cache: layer(x, mask=Causal() & Fails(), cache=cache),
    "positions": lambda layer, x, cache: layer(x, positions=torch.arange(99), cache=cache),
    "rows": lambda layer, x, cache: layer(x, positions=torch.zeros(5, x.shape[1]), cache=cache),
    "key_positions": lambda layer, x, cache: layer(x, mask=Causal(), key_positions=torch.arange(99), cache=cache),
    "dtype": lambda layer, x, cache: layer(x.half(), cache=cache),
    "kernel": lambda layer, x, cache: layer.to(torch.float64)(x.double(), cache=cache),
    "v_proj": lambda layer, x, cache: after(layer.v_proj, lambda: layer(x, cache=cache)),
    "out_proj": lambda layer, x, cache: after(layer.out_proj, lambda: layer(x, mask=Causal(), cache=cache)),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_layer_that_raises_leaves_its_cache_as_it_was(name: str) -> None:
    encoding = ENCODINGS[name].examples()[0]
    if not encoding.acts & IN_ATTENTION:
        return  # it only embeds
    heads, head_dim = encoding.sizes.num_heads or 4, encoding.sizes.head_dim or 8
    width, axes = encoding.sizes.embed_dim or heads * head_dim, encoding.axes or 1
    layer = MultiHeadAttention(width, heads, head_dim=head_dim, encoding=encoding).eval()
    caches, x = [KeyValueCache(), KeyValueCache()], torch.randn(2, 8, width)
    at = Coordinates.span(8, axes=axes)
    with torch.no_grad():
        for start, stop in ((0, 3), (3, 4), (4, 6), (6, 8)):
            part, places = x[:, start:stop], at.rows(start, stop)
            before = state(caches[0])
            for way in ("mask", "mask raises", "rows", "out_proj"):
                with pytest.raises((HeadwayError, Stop)):
                    WAYS[way](layer, torch.randn_like(part), caches[0])
                assert same(state(caches[0]), before), way
            found, wanted = (layer(part, mask=Causal(), positions=places, cache=cache) for cache in caches)
            assert torch.equal(found, wanted)
    assert same(*map(state, caches))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_layer_raises_its_cache_is_as_it_was(way: str, grad: bool) -> None:
    """From the first token on, with room for more and without, with gradients and without."""
    layer, caches = MultiHeadAttention(16, 2).eval(), [KeyValueCache(), KeyValueCache()]
    found, wanted = [], []
    with torch.set_grad_enabled(grad):
        for number, part in enumerate(torch.randn(2, 14, 16).split([2, 1, 1, 3, 1, 1, 5], dim=1)):
            before, other = state(caches[0]), copy.deepcopy(layer)
            if way == "kernel":
                other.kernel = "cpu"
            with pytest.raises((HeadwayError, Stop, RuntimeError)):
                WAYS[way](other, torch.randn_like(part), caches[0])
            assert same(state(caches[0]), before)
            for cache, out in zip(caches, (found, wanted), strict=True):
                if number == 4:
                    cache.crop(5)
                    cache.keep(1, 3)
                    cache.reorder(torch.tensor([1, 1, 0]))
                out.append(layer(part if number < 4 else part[[0, 1, 1]], mask=Causal(), cache=cache))
            assert same(*map(state, caches))
    assert all(map(torch.equal, found, wanted))
    if grad:
        parameters = list(layer.parameters())
        both = [torch.autograd.grad(sum(one.square().sum() for one in out), parameters) for out in (found, wanted)]
        assert same(*both)


def test_what_failed_leaves_no_graph_behind() -> None:
    """Else a backward pass would go through a call that failed, whose numbers may be NaN."""
    layer, cache = MultiHeadAttention(16, 2), KeyValueCache()
    layer(torch.randn(1, 2, 16), cache=cache)
    wrong = torch.full((1, 1, 16), torch.nan, requires_grad=True)
    with pytest.raises(Stop):
        after(layer.out_proj, lambda: layer(wrong, cache=cache))
    layer(torch.randn(1, 1, 16), cache=cache).sum().backward()
    assert wrong.grad is None
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("part", ["attention", "cross_attention", "feed_forward", "feed_forward.down_proj"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_that_raises_leaves_both_caches_as_they_were(part: str, norm_first: bool) -> None:
    """A failed call forgets the context that it has read: the next call may bring another one."""
    block = Block(16, 2, cross_attention=True, norm_first=norm_first).eval()
    x, contexts = torch.randn(2, 5, 16), torch.randn(2, 2, 4, 16)
    caches = [[KeyValueCache(), KeyValueCache()] for _ in range(2)]

    def step(x: Tensor, context: Tensor, own: KeyValueCache, crossed: KeyValueCache) -> Tensor:
        return block(x, mask=Causal(), cache=own, context=context, context_cache=crossed)

    with torch.no_grad():
        for number, one in enumerate(x.split([3, 1, 1], dim=1)):
            before = [state(cache) for cache in caches[0]]
            failed = contexts[1] if number == 0 else contexts[0]
            with pytest.raises(Stop):
                after(block.get_submodule(part), lambda one=one, failed=failed: step(one, failed, *caches[0]))
            assert all(map(same, map(state, caches[0]), before))
            assert torch.equal(*(step(one, contexts[0], *pair) for pair in caches))


def test_an_append_that_raises_adds_nothing() -> None:
    cache, keys, _ = filled([2, 1])
    before = state(cache)
    with pytest.raises(RuntimeError):
        cache.append(torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 7), coordinates=Coordinates.span(1, start=3))
    assert same(state(cache), before)
    torch.testing.assert_close(cache.keys, keys, rtol=0, atol=0)


def test_an_emptied_cache_takes_another_batch() -> None:
    cache, _, _ = filled([2])
    cache.crop(0)
    cache.append(torch.randn(5, 3, 1, 4), torch.randn(5, 3, 1, 5))
    assert cache.keys.shape == (5, 3, 1, 4)


# ---------------------------------------------------------------- gradients


class Plain(TokenBuffer):
    """Tokens that are only ever copied, never written over."""

    def append(self, new: Tensor) -> Tensor:
        self.reset(new if self.storage is None else torch.cat([self.view(), new], dim=-2))
        return self.view()

    def keep(self, slots: Slots) -> None:
        if self.storage is not None:
            self.reset(slots.of(self._tokens(), -2))

    def crop(self, length: int) -> None:
        self.reset(self._tokens()[..., :length, :] if self.storage is not None and length else None)


FROZEN = {
    "nothing": (),
    "keys and values": ("k_proj", "v_proj", "k_norm"),
    "keys": ("k_proj", "k_norm"),
    "values": ("v_proj",),
    "all but the encoding": ("q_proj", "k_proj", "v_proj", "out_proj", "q_norm", "k_norm"),
    "all but the last": ("q_proj", "k_proj", "v_proj", "encoding", "q_norm", "k_norm"),
}


def partly_frozen(name: str, frozen: str) -> MultiHeadAttention:
    encoding = headway.encoding(name, num_heads=2, head_dim=8, embed_dim=16)
    layer = MultiHeadAttention(16, 2, encoding=encoding, qk_norm="rms").double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 4)
    for part in FROZEN[frozen]:
        layer.get_submodule(part).requires_grad_(False)
    return layer


def gradients(layer: MultiHeadAttention, out: list[Tensor], *inputs: Tensor) -> list[Tensor | None]:
    wanted = [one for one in (*layer.parameters(), *inputs) if one.requires_grad]
    return list(torch.autograd.grad(torch.cat(out, dim=1).square().sum(), wanted, allow_unused=True))


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("name", ["none", "rope", "t5", "shaw", "forgetting", "dynamic-ntk"])
def test_gradients_through_a_cache_are_those_of_one_pass(name: str, frozen: str, reads: bool) -> None:
    """Whatever is frozen, and whether or not the input wants a gradient."""
    layer, cache = partly_frozen(name, frozen), KeyValueCache()
    x = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=reads)
    if not any(one.requires_grad for one in (x, *layer.parameters())):
        return
    steps = [layer(part, mask=Causal(), cache=cache) for part in x.split([2, 1, 1, 1, 3, 1], dim=1)]
    whole = [layer(x, mask=Causal())]
    if not torch.cat(steps, dim=1).requires_grad:
        return  # what is left to learn does nothing here
    if layer.encoding is not None and layer.encoding.cache_prepared:  # else the length is another in each step
        for found, wanted in zip(gradients(layer, steps, x), gradients(layer, whole, x), strict=True):
            assert (found is None) == (wanted is None)
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    else:
        gradients(layer, steps, x)


@pytest.mark.parametrize("filled_in", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("frozen", ["keys and values", "nothing"])
@pytest.mark.parametrize("name", ["rope", "t5", "forgetting"])
def test_a_prompt_without_gradients_and_answers_with_them(name: str, frozen: str, filled_in: Callable[[], Any]) -> None:
    """The prompt's keys are constants: as in one pass whose first tokens are read without gradients."""
    layer, cache = partly_frozen(name, frozen), KeyValueCache()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    with filled_in():
        for part in x[:, :5].split([2, 1, 1, 1], dim=1):
            layer(part, mask=Causal(), cache=cache)
    steps = [layer(part, mask=Causal(), cache=cache) for part in x[:, 5:].split(1, dim=1)]
    found = gradients(layer, steps)
    other = KeyValueCache()
    with torch.no_grad():
        layer(x[:, :5], mask=Causal(), cache=other)
    wanted = gradients(layer, [layer(x[:, 5:], mask=Causal(), cache=other)])
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    with torch.no_grad():  # and on without, while a graph holds what was seen
        steps = [layer(part, mask=Causal(), cache=cache) for part in torch.randn_like(x).split(1, dim=1)]


@pytest.mark.parametrize("filled_in", [torch.no_grad, torch.inference_mode])
def test_a_context_without_gradients_and_queries_with_them(filled_in: Callable[[], Any]) -> None:
    layer, cache = partly_frozen("none", "keys and values"), KeyValueCache()
    layer.encoding = None
    x, context = torch.randn(2, 3, 16).double(), torch.randn(2, 6, 16).double()
    with filled_in():
        layer(x[:, :1], context, cache=cache)
    steps = [layer(x[:, i : i + 1], context, cache=cache) for i in range(3)]
    for found, wanted in zip(gradients(layer, steps), gradients(layer, [layer(x, context)]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("frozen", ["keys and values", "keys", "nothing"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_to_a_cache_gradients_are_those_of_copies(
    seed: int, frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any order of calls, failed calls, crop, keep and reorder: outputs and gradients of a cache that only copies."""

    def told() -> tuple[list[Tensor], list[Tensor | None]]:
        torch.manual_seed(seed)
        layer, cache = partly_frozen("forgetting", frozen), KeyValueCache()
        out: list[Tensor] = []
        for _ in range(25):
            rows = cache.keys.shape[0] if len(cache) else 2
            what, x = int(torch.randint(0, 8, ())), torch.randn(rows, 1 + seed % 3, 16, dtype=torch.float64)
            mode = int(torch.randint(0, 4, ()))
            if what == 0:
                cache.crop(int(torch.randint(0, len(cache) + 1, ())))
            elif what == 1:
                cache.keep(int(torch.randint(0, 3, ())), int(torch.randint(2, 5, ())))
            elif what == 2 and len(cache):
                cache.reorder(torch.randint(0, rows, (2,)))
            elif what == 3:
                with pytest.raises(Stop):
                    after(layer.out_proj, lambda x=x, layer=layer, cache=cache: layer(-x, mask=Causal(), cache=cache))
            else:
                with (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.enable_grad)[mode]():
                    one = layer(x, mask=Causal(), cache=cache)
                out += [one[:2].reshape(1, -1, 16)] if one.requires_grad else []
        return out, gradients(layer, out)

    found = told()
    monkeypatch.setattr(headway.nn.cache, "TokenBuffer", Plain)
    wanted = told()
    assert same(found[0], wanted[0])
    for one, two in zip(found[1], wanted[1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_without_gradients_a_cache_writes_in_place() -> None:
    """Crop and append again, as in speculative decoding: no token moves."""
    cache, places = KeyValueCache(), set()
    with torch.no_grad():
        cache.append(torch.randn(1, 1, 8, 4), torch.randn(1, 1, 8, 4))
        cache.append(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
        for _ in range(20):
            places.add(cache.append(torch.randn(1, 1, 4, 4), torch.randn(1, 1, 4, 4))[0].data_ptr())
            cache.crop(10)
    assert len(places) == 1


# ---------------------------------------------------------------- where what follows is


LENGTHS, TOKENS = [3, 6], 6
NEAR = Causal() & Window(left=1)

REUSED: dict[str, tuple[Mask | Tensor | None, Mask | None]] = {
    "nothing": (None, None),
    "causal": (Causal(), Causal()),
    "padding": (Padding(), None),
    "window": (Causal() & Window(left=3), Causal() & Window(left=3)),
    "chunks": (Causal() & Chunked(3), Causal() & Chunked(3)),
    "prefix": (NEAR | Prefix(2), NEAR | Prefix(2)),
    "prefix by row": (NEAR | Prefix(torch.tensor([2, 2])), NEAR | Prefix(2)),
    "dilated": (Causal() & Dilated(2), Causal() & Dilated(2)),
}
OUTDATED: dict[str, tuple[Mask | Tensor, str]] = {
    "lengths": (Causal() & Padding(torch.tensor(LENGTHS), "left"), r"Padding has lengths \[3, 6\] on the left.* give"),
    "documents": (Documents(torch.zeros(6).long()), r"Documents has ids of shape \(6,\): give"),
    "ids of queries": (Documents(torch.zeros(6).long(), torch.zeros(6).long()), "Documents has ids of shape"),
    "a tensor": (torch.ones(6, 6) > 0, r"mask has shape \(6, 6\): it must broadcast to \(2, 4, 1, 7\)"),
    "keys": ((torch.arange(6) > torch.tensor([[2], [-1]]))[:, None, None], r"mask has shape \(2, 1, 1, 6\)"),
}


def steps_after_left_padding(mask: Mask | Tensor | None, positions: Tensor | None) -> tuple[Any, Tensor, Tensor]:
    """A layer, the tokens of two rows, and what it computes of the last one under the mask of the first call."""
    layer = MultiHeadAttention(32, 4, encoding=headway.encoding("rope", head_dim=8)).double()
    x, cache = torch.randn(2, TOKENS + 1, 32, dtype=torch.float64), KeyValueCache()
    layer(x[:, :TOKENS], mask=mask, positions=Coordinates.padded(LENGTHS, TOKENS), cache=cache)
    return layer, x, layer(x[:, TOKENS:], mask=mask, positions=positions, cache=cache)


@pytest.mark.parametrize("positions", [None, torch.tensor([[3], [6]])], ids=["continued", "given"])
@pytest.mark.parametrize("name", REUSED)
def test_after_left_padding_the_mask_of_the_first_call_is_right_in_the_next(
    name: str, positions: Tensor | None
) -> None:
    mask, alone = REUSED[name]
    layer, x, found = steps_after_left_padding(mask, positions)
    for b, length in enumerate(LENGTHS):
        right = layer(x[b : b + 1, TOKENS - length :], mask=alone)[:, -1:]
        torch.testing.assert_close(found[b : b + 1], right)


@pytest.mark.parametrize("name", OUTDATED)
def test_a_mask_with_numbers_of_the_first_call_is_refused_in_the_next(name: str) -> None:
    mask, message = OUTDATED[name]
    with pytest.raises(HeadwayError, match=message):
        steps_after_left_padding(mask, None)


def test_positions_given_after_left_padding_do_not_end_the_row() -> None:
    """The number of tokens goes on from the cache, whatever the positions are."""
    layer = MultiHeadAttention(32, 4, encoding=headway.encoding("rope", head_dim=8)).double()
    x, cache = torch.randn(2, TOKENS + 1, 32, dtype=torch.float64), KeyValueCache()
    at = Coordinates.padded(LENGTHS, TOKENS)
    closer = replace(at, position=at.position / 4)
    layer(x[:, :TOKENS], mask=Padding(), positions=closer, cache=cache)
    found = layer(x[:, TOKENS:], mask=Padding(), positions=torch.tensor([[0.75], [1.5]]), cache=cache)
    for b, length in enumerate(LENGTHS):
        right = layer(x[b : b + 1, TOKENS - length :], positions=torch.arange(length + 1) / 4)[:, -1:]
        torch.testing.assert_close(found[b : b + 1], right)


@pytest.mark.parametrize("before", ["cache", "memory"])
@pytest.mark.parametrize("located", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_lengths_of_an_earlier_call_are_refused(side: str, located: bool, before: str) -> None:
    config = TransformerConfig(20, 32, 2, 4)
    decoder = Decoder(config, headway.encoding("rope", head_dim=8)).eval()
    ids, mask = torch.randint(20, (2, 7)), Padding(LENGTHS, side)
    held: Any = {"cache": decoder.new_cache(), "memory": SegmentMemory(8)}[before]
    at = Coordinates.padded(LENGTHS, TOKENS, side=side) if located else None
    decoder(ids[:, :TOKENS], mask=mask, positions=at, **{before: held})
    for _ in range(2):
        with pytest.raises(
            HeadwayError, match=r"(Padding has .* give .*Padding\(\))|ends in padding.* pad on the left"
        ):
            decoder(ids[:, TOKENS:], mask=mask, **{before: held})
    assert len(held) == TOKENS
    if side == "left":
        decoder(ids[:, TOKENS:], mask=Padding([one + 1 for one in LENGTHS], side), **{before: held})
    if before == "cache" and not located:
        held.crop(0)
        decoder(ids, mask=mask, cache=held)  # another prompt


def test_each_row_goes_on_after_its_last_token() -> None:
    device = torch.device("cpu")
    after = continued(Coordinates.padded([2, 4], 4), None, 2, device)
    assert after.index.tolist() == [[2, 3], [4, 5]]
    assert after.axis().tolist() == [[2, 3], [4, 5]]
    assert after.length.tolist() == [[4], [6]]  # type: ignore[union-attr]
    first = Coordinates.of(torch.tensor([0.0, 0.5, 2.5]), 3)
    after = continued(first, None, 1, device)
    assert (after.axis().item(), after.index.item()) == (3.5, 3)
    after = continued(first, torch.tensor([7.0, 8.0]), 2, device)
    assert (after.axis().tolist(), after.index.tolist()) == ([[7, 8]], [[3, 4]])


def test_documents_go_on() -> None:
    after = continued(Coordinates.packed([2, 3]), None, 2, torch.device("cpu"))
    assert after.document is not None
    assert (after.document.tolist(), after.axis().tolist(), after.index.tolist()) == (
        [[1, 1]],
        [[3, 4]],
        [[5, 6]],
    )


def test_a_grid_does_not_go_on_by_itself() -> None:
    grid = Coordinates.of(torch.zeros(1, 4, 2), 4)
    with pytest.raises(HeadwayError, match="have 2 axes: give the positions of the new tokens"):
        continued(grid, None, 1, torch.device("cpu"))


# ---------------------------------------------------------------- memory


def test_memory_keeps_the_last_without_gradients() -> None:
    memory = SegmentMemory(3)
    first, second = (torch.randn(2, n, 4, requires_grad=True) for n in (2, 4))
    memory.store([first], Coordinates.span(2))
    assert len(memory) == 2
    memory.store([second], Coordinates.span(6))
    assert len(memory) == 3
    assert not memory.states[0].requires_grad
    torch.testing.assert_close(memory.states[0], second[:, 1:].detach())
    assert memory.coordinates is not None
    assert memory.coordinates.index.tolist() == [[3, 4, 5]]
    memory.reorder(torch.tensor([1]))
    torch.testing.assert_close(memory.states[0], second[1:, 1:].detach())
    with pytest.raises(HeadwayError, match="memory length is 0: give at least 1"):
        SegmentMemory(0)


@pytest.mark.slow
def test_a_layer_with_a_cache_compiles_as_one_graph() -> None:
    """What a failed call would take back is Python that the compiler can follow."""
    layer = MultiHeadAttention(16, 2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    caches, x = [KeyValueCache(), KeyValueCache()], torch.randn(1, 3, 16)
    with torch.no_grad():
        for part in x.split([2, 1], dim=1):
            found, wanted = (one(part, cache=cache) for one, cache in zip((compiled, layer), caches, strict=True))
            torch.testing.assert_close(found, wanted)
    assert [len(cache) for cache in caches] == [3, 3]


@pytest.mark.parametrize("make", [KeyValueCache, lambda: StackCache(1), lambda: SegmentMemory(8)])
def test_what_is_remembered_of_places_is_facts(make: Callable[[], KeyValueCache | StackCache | SegmentMemory]) -> None:
    """Tokens may come placed; a cache keeps neither an encoding's tables nor what it learned."""
    encoding = Compose(Interpolated(4.0), RoPE(8))
    block, memory = Block(16, 2, head_dim=8), make()
    with torch.no_grad():
        for start in (0, 3):
            x, at = torch.randn(1, 3, 16), encoding.place(Coordinates.span(3, start=start))
            if isinstance(memory, KeyValueCache):
                block.attention(x, positions=at, cache=memory, encoding=encoding)
            elif isinstance(memory, StackCache):
                Stack([block], encoding)(x, positions=at, cache=memory)
            else:
                Stack([block], encoding)(x, positions=at, memory=memory)
            assert type(memory.coordinates) is Coordinates
            assert memory.coordinates.axis().tolist() == [list(range(start + 3))]


def test_lengths_that_were_raised_in_place_are_those_of_the_next_call() -> None:
    layer = MultiHeadAttention(32, 4).double()
    x, cache, lengths = torch.randn(2, TOKENS + 1, 32, dtype=torch.float64), KeyValueCache(), torch.tensor(LENGTHS)
    mask = Causal() & Padding(lengths, "left")
    layer(x[:, :TOKENS], mask=mask, cache=cache)
    lengths += 1
    found = layer(x[:, TOKENS:], mask=mask, cache=cache)
    for b, length in enumerate(LENGTHS):
        right = layer(x[b : b + 1, TOKENS - length :], mask=Causal())[:, -1:]
        torch.testing.assert_close(found[b : b + 1], right)


def test_rows_whose_padding_is_cropped_go_on() -> None:
    layer = MultiHeadAttention(32, 4, encoding=headway.encoding("rope", head_dim=8)).double()
    x, cache = torch.randn(2, 7, 32, dtype=torch.float64), KeyValueCache()
    layer(x[:, :6], mask=Causal(), positions=Coordinates.padded([4, 6], 6, side="right"), cache=cache)
    cache.crop(4)
    found = layer(x[:, 6:], mask=Causal(), cache=cache)
    expected = layer(torch.cat([x[:, :4], x[:, 6:]], 1), mask=Causal())[:, -1:]
    torch.testing.assert_close(found, expected)


def test_where_nothing_is_read_the_side_of_the_padding_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device with streams and under a compiler, whose rows may end in padding."""
    monkeypatch.setattr("headway.nn._coordinates.watched", lambda: True)
    continued(Coordinates.padded([2, 4], 4), None, 1, torch.device("cpu"))
    with pytest.raises(HeadwayError, match=r"a row of the earlier tokens ends in padding.*pad on the left"):
        continued(Coordinates.padded([2, 4], 4, side="right"), None, 1, torch.device("cpu"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cache_of_a_context_knows_its_padding(side: str) -> None:
    layer = MultiHeadAttention(32, 4).double()
    x, context = torch.randn(2, 2, 32, dtype=torch.float64), torch.randn(2, TOKENS, 32, dtype=torch.float64)
    at, cache = Coordinates.padded(LENGTHS, TOKENS, side=side), KeyValueCache()
    layer(x[:, :1], context, key_positions=at, cache=cache)
    found = layer(x[:, 1:], context, cache=cache)
    torch.testing.assert_close(found, layer(x[:, 1:], context, key_positions=at))
    for b, length in enumerate(LENGTHS):
        own = context[b : b + 1, TOKENS - length :] if side == "left" else context[b : b + 1, :length]
        torch.testing.assert_close(found[b : b + 1], layer(x[b : b + 1, 1:], own))


def test_positions_of_all_keys_after_left_padding_hide_it_still() -> None:
    layer = MultiHeadAttention(32, 4, encoding=headway.encoding("rope", head_dim=8)).double()
    x, cache = torch.randn(2, TOKENS + 2, 32, dtype=torch.float64), KeyValueCache()
    at = Coordinates.padded(LENGTHS, TOKENS)
    layer(x[:, :TOKENS], mask=Causal(), positions=at, cache=cache)
    for n in (TOKENS, TOKENS + 1):
        keys = torch.arange(n + 1)[None] - torch.tensor([[TOKENS - length] for length in LENGTHS])
        given = {"positions": keys[:, -1:], "key_positions": keys.clamp(min=0)}
        found = layer(x[:, n : n + 1], mask=Causal(), cache=cache, **given)
        for b, length in enumerate(LENGTHS):
            right = layer(x[b : b + 1, TOKENS - length : n + 1], mask=Causal())[:, -1:]
            torch.testing.assert_close(found[b : b + 1], right)


COUNTED: dict[str, Callable[[KeyValueCache], None]] = {
    "nothing": lambda cache: None,
    "crop": lambda cache: cache.crop(4),
    "crop to none": lambda cache: cache.crop(0),
    "keep": lambda cache: cache.keep(1, 3),
    "reorder": lambda cache: cache.reorder(torch.tensor([1, 0])),
    "set": lambda cache: setattr(cache, "coordinates", cache.coordinates),
}


@torch.no_grad()
@pytest.mark.parametrize("change", COUNTED)
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "dynamic-ntk", "streaming-llm"])
def test_tokens_that_are_counted_stand_where_given_ones_do(name: str, change: str) -> None:
    encoding = None if name == "none" else headway.encoding(name, head_dim=8, num_heads=4)
    if name == "streaming-llm":
        encoding = Compose(encoding, RoPE(8))
    layer, x = MultiHeadAttention(32, 4, encoding=encoding).eval(), torch.randn(2, 16, 32)

    def decode(counted: bool) -> tuple[Tensor, Coordinates]:
        cache, outs, at = KeyValueCache(), [], 0
        for number, n in enumerate((6, 1, 1, 2, 1, 1)):
            if number == 3:
                COUNTED[change](cache)
            past = cache.coordinates
            start = 0 if past is None else int(past.index[0, -1]) + 1
            given = None if counted else Coordinates.span(n, start=start, length=start + n)
            outs.append(layer(x[:, at : at + n], mask=Causal(), cache=cache, positions=given))
            at += n
        assert cache._counts == (counted and change not in ("keep", "set"))
        assert cache.coordinates is not None
        return torch.cat(outs, 1), cache.coordinates

    (found, place), (expected, expected_place) = decode(True), decode(False)
    assert torch.equal(found, expected)
    assert torch.equal(place.position, expected_place.position)
    facts = [(at.start, at.length, at.is_stream) for at in (place, expected_place)]
    assert facts[0] == facts[1]


def test_the_slots_that_are_kept_are_on_the_device_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, k = KeyValueCache(), torch.randn(2, 3, 6, 4, device="meta")
    cache.append(k, k)
    taken: list[Slots] = []
    monkeypatch.setattr(cache, "take", taken.append)
    cache.keep(1, 2)
    assert taken[0].first.is_meta


@torch.no_grad()
def test_a_stream_of_which_no_token_is_kept_goes_on() -> None:
    layer, x = MultiHeadAttention(32, 4, encoding=RoPE(8)), torch.randn(1, 6, 32)
    for positions in (None, Coordinates.span(6)):
        cache = KeyValueCache()
        layer(x, mask=Causal(), cache=cache, positions=positions)
        cache.keep(0, 0)
        layer(x[:, :2], mask=Causal(), cache=cache)
        assert cache.coordinates is not None
        assert cache.coordinates.position.flatten().tolist() == [6, 7]
        assert cache.coordinates.length == 8


@torch.no_grad()
def test_what_is_drawn_for_the_tokens_of_a_call_is_drawn_once_with_a_cache_too() -> None:
    layer, x = MultiHeadAttention(32, 4, encoding=Compose(SHAPE(500), RoPE(8))).train(), torch.randn(1, 6, 32)
    expected = MultiHeadAttention(32, 4, encoding=RoPE(8))  # which a shift of all tokens does not change
    expected.load_state_dict(layer.state_dict())
    found = layer(x, mask=Causal(), cache=KeyValueCache())
    torch.testing.assert_close(found, expected(x, mask=Causal()), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_positions_of_all_keys_are_not_forgotten_in_silence() -> None:
    layer, x, cache = MultiHeadAttention(32, 4, encoding=RoPE(8)), torch.randn(1, 5, 32), KeyValueCache()
    layer(x[:, :3], mask=Causal(), cache=cache)
    layer(x[:, 3:4], mask=Causal(), cache=cache, key_positions=torch.tensor([0, 2, 4, 9]))
    with pytest.raises(HeadwayError, match="give one for each token"):
        layer(x[:, 4:], mask=Causal(), cache=cache)


@torch.no_grad()
@pytest.mark.parametrize("width", [4, 16])
def test_keys_of_another_width_than_the_encoding_are_refused_by_name(width: int) -> None:
    layer, cache = MultiHeadAttention(32, 4, encoding=None), KeyValueCache()
    with pytest.raises(HeadwayError, match=f"built with head_dim={width} and is given a last dimension of 8"):
        layer(torch.randn(1, 5, 32), mask=Causal(), cache=cache, encoding=RoPE(width))
    assert len(cache) == 0


def test_a_call_that_fails_leaves_the_count_as_it_was() -> None:
    layer, x = MultiHeadAttention(32, 4, encoding=RoPE(8)), torch.randn(1, 3, 32)
    for first in ([], [None], [Coordinates.span(3)]):
        cache = KeyValueCache()
        for positions in first:
            layer(x, mask=Causal(), cache=cache, positions=positions)
        before = cache._counts, cache.coordinates
        for positions in (None, torch.arange(40, 43)):
            layer.attend, real = raising, layer.attend
            with pytest.raises(RuntimeError, match="on purpose"):
                layer(x, mask=Causal(), cache=cache, positions=positions)
            layer.attend = real
            assert (cache._counts, cache.coordinates) == before


def raising(*given: Any, **named: Any) -> Tensor:
    raise RuntimeError("on purpose")


@pytest.mark.slow
def test_a_decoding_step_is_one_graph() -> None:
    decoder = Decoder(TransformerConfig(20, 32, 2, 4), headway.encoding("rope", head_dim=8)).eval()
    ids, cache = torch.randint(20, (2, 7)), decoder.new_cache()
    with torch.no_grad():
        decoder(ids[:, :6], cache=cache)
        assert torch._dynamo.explain(decoder)(ids[:, 6:], cache=cache).graph_break_count == 0
