"""Caches grow in doublings, and can be cropped and reordered; a memory keeps the last hidden states."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import headway
from headway import Coordinates, HeadwayError
from headway.masks import Causal, Chunked, Dilated, KeepFirst, Mask, Padding, Prefix, Window
from headway.nn import KeyValueCache, MultiHeadAttention, SegmentMemory, StackCache
from headway.nn.cache import Held, continued, reads_others
from headway.positions import ENCODINGS, PositionEncoding


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


@pytest.mark.parametrize("first", [0, 2])
def test_what_is_kept_after_each_step_stays_in_rooms_of_one_size(first: int) -> None:
    """The tokens move once in a room's length, and are those that were kept."""
    cache, places, kept = KeyValueCache(), set(), []
    keys = torch.arange(1000.0).reshape(1, 1, -1, 1)
    for one in [*keys[:, :, :300].split(300, dim=2), *keys[:, :, 300:].split(1, dim=2)]:
        held, _ = cache.append(one, one, coordinates=continued(cache.coordinates, None, one.shape[2], one.device))
        places.add(held.data_ptr() - 4 * cache._keys.start)
        kept.append(cache._keys.room)  # freed memory would be handed out again
        stop = int(one[..., -1, 0]) + 1
        expected = [*range(first), *range(stop - 10 if stop > 10 + first else first, stop)]
        cache.keep(first, 10)
        assert cache.keys.flatten().tolist() == cache.values.flatten().tolist() == expected
        assert cache.coordinates is not None
        assert cache.coordinates.index[0].tolist() == expected
        assert cache._keys.room is not None
        assert cache._keys.room.shape[-2] <= 2 * (10 + first)
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
    assert Held.under(mask) == held
    assert StackCache(2, [mask, None]).held == [held, None]


class Layers:
    """Attention layers one upon another, as a stack has them."""

    def __init__(self, masks: list[Mask | None], encoding: PositionEncoding, embed_dim: int, num_heads: int, **sizes):
        self.masks, self.encoding = masks, encoding
        self.layers = [MultiHeadAttention(embed_dim, num_heads, **sizes).double().eval() for _ in masks]

    def __call__(self, x: Tensor, at: Coordinates, cache: StackCache | None = None) -> Tensor:
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
        held = Held.under(mask)
        assert layer._keys.room is not None
        if held is None:
            assert len(layer) == n + 20
        else:
            assert len(layer) == sum(held)
            assert layer._keys.room.shape[-2] <= 2 * sum(held)
    at = cache.coordinates
    assert at is not None
    assert at.index[:, -1].tolist() == [length + 19 for length in lengths]
    assert at.index.shape[1] == len(cache) == max(len(layer) for layer in cache.layers)


def test_a_long_prompt_leaves_each_layer_as_soon_as_it_has_attended() -> None:
    cache = StackCache(2, [Window(3), None])
    keys = cache.enter(Coordinates.span(500))
    assert keys[0].index.shape == (1, 500)
    cache.layers[0].append(torch.randn(1, 1, 500, 4), torch.randn(1, 1, 500, 4))
    cache.settle(0)
    assert cache.layers[0].keys.untyped_storage().nbytes() <= 2 * 3 * 4 * 4


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_decodes_the_same_behind_a_window(name: str) -> None:
    """Those that read other tokens than the two hold all, those that need not let go."""
    masks = [Window(4), Window(3) | KeepFirst(2)]
    for encoding in ENCODINGS[name].examples():
        if not encoding.acts & {"prepare", "terms"}:
            continue  # it only embeds
        heads, head_dim = encoding.held("num_heads") or 4, encoding.held("head_dim") or 8
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(torch.randn_like(parameter))
        width = encoding.held("embed_dim") or heads * head_dim
        layers = Layers(masks, encoding.double().eval(), width, heads, head_dim=head_dim)
        cache = StackCache(2, masks, [encoding] * 2)
        assert (cache.held == [None] * 2) == reads_others(encoding)
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


def test_keep_and_reorder_reach_layers_with_and_without_a_window() -> None:
    cache, at = StackCache(2, [Window(4), None]), Coordinates.padded([9, 7], 9)
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
    cache.enter(Coordinates.span(5))
    assert cache.coordinates is None
    assert cache.enter(Coordinates.span(2))[0].index.tolist() == [[0, 1]]


# ---------------------------------------------------------------- where what follows is


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
