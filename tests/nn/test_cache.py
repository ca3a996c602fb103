"""Caches grow in doublings, and can be cropped and reordered; a memory keeps the last hidden states."""

import copy
import pickle

import pytest
import torch

from headway import Coordinates, HeadwayError
from headway.nn import KeyValueCache, SegmentMemory, StackCache
from headway.nn.cache import continued


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
