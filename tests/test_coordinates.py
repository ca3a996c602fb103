"""Where each token is: the four ways of saying it, and cutting, joining and choosing rows."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import Coordinates


def assert_same(a: Coordinates, b: Coordinates) -> None:
    for name in ("position", "index", "document", "length"):
        x, y = getattr(a, name), getattr(b, name)
        assert isinstance(x, Tensor) is isinstance(y, Tensor), name
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y, name
    assert (a.ordered, a.start, type(a)) == (b.ordered, b.start, type(b))


def test_span() -> None:
    found = Coordinates.span(3, start=4, length=10)
    assert found.position.tolist() == [[[4], [5], [6]]]
    assert found.index.tolist() == [[4, 5, 6]]
    assert (found.length, found.start, found.ordered, found.document) == (10, 4, True, None)
    assert Coordinates.span(3, start=4).length == 7
    assert Coordinates.span(0).position.shape == (1, 0, 1)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3), (2, 3, 2)])
def test_of_takes_three_shapes(shape: tuple[int, ...]) -> None:
    positions = torch.randn(shape)
    found = Coordinates.of(positions, 3, start=5)
    assert found.position.shape == (shape[0] if len(shape) > 1 else 1, 3, shape[2] if len(shape) > 2 else 1)
    assert torch.equal(found.position.flatten(), positions.flatten())
    assert found.index.tolist() == [[5, 6, 7]]  # the order of the slots, whatever the positions
    assert found.start == 5


def test_of_finds_the_length() -> None:
    assert Coordinates.of(torch.tensor([[4, 2, 9], [0, 1, 2]]), 3).length.tolist() == [[10], [3]]
    assert Coordinates.of(torch.tensor([4, 2, 9]), 3, length=50).length == 50
    assert Coordinates.of(torch.zeros(0), 0).length == 0


def test_of_passes_coordinates_through() -> None:
    where = Coordinates.span(3)
    assert Coordinates.of(where, 3) is where


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_small_integers_do_not_wrap_around(dtype: torch.dtype) -> None:
    where = Coordinates.of(torch.tensor([3, 120, 0], dtype=dtype), 3)
    delta = hw.terms.distance(where, where)
    assert delta[0, 1].tolist() == [-117, 0, -120]
    low = Coordinates.of(torch.tensor([100, -100]).to(torch.int8), 2)
    assert hw.terms.distance(low, low)[0, 0].tolist() == [0, -200]


def test_positions_of_16_bits_are_subtracted_in_more() -> None:
    where = Coordinates.of(torch.tensor([0.5, 256.0], dtype=torch.bfloat16), 2)
    assert hw.terms.distance(where, where)[0, 0, 1].item() == 255.5


def test_the_last_tokens_of_packed_documents() -> None:
    found = Coordinates.packed([3, 2, 4], last=[1, 0, 2])
    document, length = found.document, found.length
    assert document is not None
    assert isinstance(length, Tensor)
    assert found.position[0, :, 0].tolist() == [2, 2, 3]
    assert [x.tolist() for x in (found.index, document, length)] == [[[2, 7, 8]], [[0, 2, 2]], [[3, 4, 4]]]
    assert (found.documents_in_order, found.ordered, found.consecutive) == (True, False, False)
    same, whole = Coordinates.packed([3, 2, 4], last=[3, 2, 4]), Coordinates.packed([3, 2, 4])
    assert_same(replace(same, ordered=True, start=0), whole)
    for last in ([1, 0], [1, 0, 5], [1, -1, 2]):
        with pytest.raises(hw.HeadwayError, match="give one number for each, from 0 to its length"):
            Coordinates.packed([3, 2, 4], last=last)


@pytest.mark.parametrize("kernel", ["auto", "cpu", "sdpa", "reference"])
@pytest.mark.parametrize("encoding", [None, hw.encoding("rope", head_dim=16), hw.encoding("t5", num_heads=4)])
def test_queries_of_packed_documents_with_a_cache(kernel: str, encoding: hw.positions.PositionEncoding | None) -> None:
    """Each document alone, its queries aligned with its last keys, gives the same."""
    if isinstance(encoding, hw.positions.T5):
        encoding.requires_grad_(False).table.normal_()
    lengths, last = [6, 2, 10], [2, 2, 5]
    q, k, v = torch.randn(1, 4, 9, 16), torch.randn(1, 4, 18, 16), torch.randn(1, 4, 18, 16)
    found = hw.attention(
        q,
        k,
        v,
        encoding=encoding,
        mask=hw.masks.Causal() & hw.masks.Documents(),
        kernel=kernel,
        q_positions=Coordinates.packed(lengths, last=last),
        k_positions=Coordinates.packed(lengths),
    )
    sides = zip(q.split(last, 2), k.split(lengths, 2), v.split(lengths, 2), strict=True)
    alone = [hw.attention(*side, encoding=encoding, mask=hw.masks.Causal(), kernel="reference") for side in sides]
    torch.testing.assert_close(found, torch.cat(alone, 2))


def test_packed() -> None:
    found = Coordinates.packed([2, 0, 3])
    assert found.axis().tolist() == [[0, 1, 0, 1, 2]]
    assert found.index.tolist() == [[0, 1, 2, 3, 4]]
    assert found.document.tolist() == [[0, 0, 2, 2, 2]]
    assert found.length.tolist() == [[2, 2, 3, 3, 3]]
    empty = Coordinates.packed([])
    assert empty.index.shape == (1, 0)
    assert empty.index.dtype == torch.int64


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_padded(kind: Callable[[list[int]], list[int] | Tensor]) -> None:
    left = Coordinates.padded(kind([3, 1]), 4)
    assert left.index.tolist() == [[-1, 0, 1, 2], [-3, -2, -1, 0]]
    assert left.axis().tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert left.length.tolist() == [[3], [1]]
    right = Coordinates.padded(kind([3, 1]), 4, side="right")
    assert right.index.tolist() == [[0, 1, 2, 3]] * 2
    assert right.start is None  # the rows need not start together


def test_axis() -> None:
    where = Coordinates.of(torch.tensor([[[1, 7], [2, 8]]]), 2)
    assert where.axis(1).tolist() == [[7, 8]]
    with pytest.raises(hw.HeadwayError, match=r"reads axis 2 but positions have 2: give positions \[batch, n, axes\]"):
        where.axis(2)


MAKERS: dict[str, Callable[[], Coordinates]] = {
    "span": lambda: Coordinates.span(7, start=2, length=20),
    "plain": lambda: Coordinates.of(torch.randn(2, 7, 2), 7),
    "packed": lambda: Coordinates.packed([3, 4]),
    "padded": lambda: Coordinates.padded([7, 3], 7),
    "gaps": lambda: Coordinates(torch.arange(7)[None, :, None], torch.arange(7)[None] * 3 % 7, ordered=False),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rows(name: str) -> None:
    where = MAKERS[name]()
    part = where.rows(2, 5)
    assert torch.equal(part.position, where.position[:, 2:5])
    assert torch.equal(part.index, where.index[:, 2:5])
    assert part.start == (None if where.start is None else where.start + 2)
    if name == "packed":
        assert part.document.tolist() == [[0, 1, 1]]
        assert part.length.tolist() == [[3, 4, 4]]
    elif name == "padded":
        assert torch.equal(part.length, where.length)
    assert_same(where.rows(0, 7), where)


@pytest.mark.parametrize("name", ["span", "plain", "packed", "padded"])
def test_what_was_cut_can_be_joined(name: str) -> None:
    where = MAKERS[name]()
    joined = where.rows(0, 3).append(where.rows(3, 7))
    assert torch.equal(joined.position, where.position)
    assert torch.equal(joined.index, where.index)
    assert joined.ordered
    assert joined.start == where.start
    if where.document is not None:
        assert torch.equal(joined.document, where.document)
        assert torch.equal(joined.length, where.length)


def test_joining_what_does_not_follow_is_not_in_order() -> None:
    """Masks take ``ordered`` for a fact: slots after a gap are not a run of indices."""
    first = Coordinates.span(3)
    assert first.append(Coordinates.span(2, start=3)).ordered
    for other in (Coordinates.span(2, start=7), Coordinates.span(2), Coordinates.padded([2], 2)):
        joined = first.append(other)
        assert not joined.ordered
        assert joined.start is None
    gap = first.append(Coordinates.span(2, start=7))
    assert hw.masks.Window(1).interval(gap, gap) is None
    assert not first.append(replace(Coordinates.span(2, start=3), ordered=False)).ordered


def test_joining_takes_the_larger_batch() -> None:
    joined = Coordinates.span(2).append(Coordinates.of(torch.tensor([[5], [9]]), 1, start=2))
    assert joined.axis().tolist() == [[0, 1, 5], [0, 1, 9]]
    assert joined.index.tolist() == [[0, 1, 2]]
    assert joined.length.tolist() == [[6], [10]]


def test_select() -> None:
    where = Coordinates.padded([4, 2], 4)
    found = where.select(torch.tensor([1, 1, 0]))
    assert torch.equal(found.index, where.index[[1, 1, 0]])
    assert found.length.tolist() == [[2], [2], [4]]
    assert_same(Coordinates.span(3).select(torch.tensor([0, 0])), Coordinates.span(3))  # one row stands for all


def test_tables_stay_with_their_tokens() -> None:
    where = Coordinates.span(4).placed_by(owner := object(), "tables")
    assert (where.by, where.tables) == (owner, "tables")
    assert where.rows(0, 2).tables is None
    assert where.select(torch.tensor([0])).tables is None
    assert where.append(Coordinates.span(1, start=4).placed_by(owner, "others")).tables is None


def placed(at: Coordinates) -> tuple[hw.positions.PositionEncoding, Coordinates]:
    """Coordinates at a quarter of their positions, and who placed them."""
    encoding = hw.positions.Compose(hw.positions.Interpolated(4.0), hw.positions.RoPE(8))
    return encoding, encoding.place(at)


def test_another_encoding_takes_the_places_given() -> None:
    encoding, at = placed(Coordinates.span(4))
    assert at.axis().tolist() == [[0, 0.25, 0.5, 0.75]]
    assert hw.positions.RoPE(8).place(at).axis().tolist() == [[0, 1, 2, 3]]
    assert at.as_given().axis().tolist() == [[0, 1, 2, 3]]
    assert encoding.place(at) is at


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (lambda at: at.rows(1, 3), [1, 2]),
        (lambda at: at.select(torch.tensor([0])), [0, 1, 2, 3]),
        (lambda at: at.append(Coordinates.span(1, start=4)), [0, 1, 2, 3, 4]),
        (lambda at: Coordinates.span(4).append(at.rows(0, 1)), [0, 1, 2, 3, 0]),
    ],
    ids=["rows", "select", "append", "appended"],
)
def test_what_is_cut_and_joined_keeps_the_places_given(
    cut: Callable[[Coordinates], Coordinates], left: list[int]
) -> None:
    encoding, at = placed(Coordinates.span(4))
    assert cut(at).as_given().axis().tolist() == [left]
    assert encoding.place(cut(at)).axis().tolist() == [[p / 4 for p in left]]


def test_replaced_positions_are_no_other_encodings() -> None:
    encoding, at = placed(Coordinates.span(4))
    moved = replace(at, position=at.position * 2)
    assert encoding.place(moved).axis().tolist() == [[0, 0.5, 1, 1.5]]  # its own: located as it is
    cos = encoding.place(moved).tables[1][0]
    assert torch.equal(cos, hw.positions.RoPE(8).place(replace(Coordinates.span(4), position=moved.position)).tables[0])
    for given in (moved, moved.rows(0, 2)):
        with pytest.raises(hw.HeadwayError, match="positions were replaced after a Compose had placed"):
            hw.positions.RoPE(8).place(given)


def test_positions_written_into_after_placing_are_placed_anew() -> None:
    positions = torch.arange(4)
    encoding, at = placed(Coordinates.of(positions, 4))
    positions.add_(4)
    assert encoding.place(at).axis().tolist() == [[1, 1.25, 1.5, 1.75]]
    assert encoding.place(at.rows(0, 2)).axis().tolist() == [[1, 1.25]]


def test_prepared_keys_are_no_other_encodings() -> None:
    q = torch.randn(1, 2, 4, 8)
    one, other = hw.positions.RoPE(8), hw.positions.RoPE(8, base=100.0)
    for encoding, said in ((other, "with a RoPE, another object"), (None, "without an encoding")):
        with pytest.raises(hw.HeadwayError, match=f"prepared_by is a RoPE and this is a call {said}: give"):
            hw.attention(q, q, q, encoding=encoding, prepared_by=one)


def test_copies_know_who_placed_them() -> None:
    encoding, at = placed(Coordinates.span(4))
    alone = copy.deepcopy(at)
    assert encoding.place(alone) is alone
    for twin, theirs in (copy.deepcopy((encoding, at)), pickle.loads(pickle.dumps((encoding, at)))):
        assert twin.place(theirs) is theirs
        assert encoding.place(theirs).axis().tolist() == at.axis().tolist()
    stranger = copy.deepcopy(encoding)
    assert stranger.place(at).axis().tolist() == at.axis().tolist()


@pytest.mark.parametrize("name", MAKERS)
def test_copies_and_pickles(name: str) -> None:
    where = MAKERS[name]()
    assert_same(copy.deepcopy(where), where)
    assert_same(pickle.loads(pickle.dumps(where)), where)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Coordinates.of([0, 1], 2), r"positions is a list: give a tensor \[n\]"),
        (lambda: Coordinates.of(torch.ones(3, dtype=torch.bool), 3), r"positions are torch\.bool: give integers"),
        (lambda: Coordinates.of(torch.ones(3) * 1j, 3), r"positions are torch\.complex64"),
        (lambda: Coordinates.of(torch.ones(()), 1), r"positions have shape \(\): give \[n\]"),
        (lambda: Coordinates.of(torch.ones(1, 2, 3, 4), 2), r"shape \(1, 2, 3, 4\)"),
        (lambda: Coordinates.of(torch.ones(2, 3, 0), 3), r"shape \(2, 3, 0\)"),
        (
            lambda: Coordinates.of(torch.ones(4), 3, name="q_positions"),
            r"q_positions have shape \(4,\) but there are 3",
        ),
        (lambda: Coordinates.of(Coordinates.span(4), 3), r"positions hold 4 tokens but there are 3"),
        (lambda: Coordinates.padded([2], 4, side="middle"), r"side is 'middle': give 'left' or 'right'"),
    ],
)
def test_bad_input(make: Callable[[], object], message: str) -> None:
    with pytest.raises(hw.HeadwayError, match=message):
        make()


def test_an_index_with_gaps_is_taken_as_it_is() -> None:
    """Coordinates made by hand promise no order of their slots, so that a mask looks at each index."""
    index = torch.tensor([[0, 5, 2, 9]])
    hand = Coordinates(index[..., None], index)
    assert not hand.ordered
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    found = hw.attention(q, k, v, mask=hw.masks.Causal(), q_positions=hand, k_positions=hand)
    allowed = index[0][None, :] <= index[0][:, None]
    torch.testing.assert_close(found, hw.attention(q, k, v, mask=allowed))


def test_padding_to_rows_that_are_too_short() -> None:
    with pytest.raises(hw.HeadwayError, match=r"lengths go up to 9 but rows have 7 slots: give n = 9"):
        Coordinates.padded([3, 9], 7)


def test_positions_of_other_axes_are_not_joined() -> None:
    with pytest.raises(hw.HeadwayError, match="the positions before have 2 axes but the new ones 1: give as many"):
        Coordinates.span(3, axes=2).append(Coordinates.span(1, start=3))


def test_consecutive_is_a_fact_of_the_positions_it_was_made_with() -> None:
    span = Coordinates.span(6, start=3)
    assert span.consecutive
    assert span.rows(2, 5).consecutive
    assert span.rows(2, 5).start == 5
    assert not dataclasses.replace(span, position=2 * span.position).consecutive
    assert not span._with(start=None).consecutive
    assert not Coordinates.of(torch.arange(6), 6).consecutive
    assert not Coordinates.packed([2, 4]).consecutive
    assert span.append(Coordinates.span(2, start=9)).consecutive
    assert not span.append(Coordinates.span(2, start=10)).consecutive
    assert not span.append(Coordinates.of(torch.arange(9, 11), 2)).consecutive
    assert copy.deepcopy(span).consecutive
    assert pickle.loads(pickle.dumps(span)).consecutive


def test_documents_in_order_is_a_fact_of_the_documents_it_was_made_with() -> None:
    packed = Coordinates.packed([2, 4])
    assert packed.document is not None
    assert packed.documents_in_order
    assert packed.rows(1, 5).documents_in_order
    assert not dataclasses.replace(packed, document=packed.document.flip(1)).documents_in_order
    assert not packed.append(Coordinates.packed([3])).documents_in_order
    assert not Coordinates.span(6).documents_in_order


PLACES, ORDER = torch.zeros(2, 5, 1), torch.arange(5)[None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": [0, 1]}, r"position of type list: give a tensor \[batch, n, axes\]"),
        ({"position": torch.zeros(2, 5)}, r"position of shape \(2, 5\): give \[batch, n, axes\]"),
        ({"position": PLACES.bool()}, "position of torch.bool: give integers or floats"),
        ({"index": torch.arange(5)}, r"index of shape \(5,\): give \[batch, n\]"),
        ({"index": ORDER.float()}, "index of torch.float32: give int64"),
        ({"index": torch.arange(4)[None]}, r"index of shape \(1, 4\) but position holds 2 rows of 5"),
        ({"index": ORDER.expand(3, 5)}, r"index of shape \(3, 5\) but position holds 2 rows of 5: give \[2, 5\]"),
        ({"document": ORDER[0]}, r"document of shape \(5,\)"),
        ({"document": ORDER.float()}, "document of torch.float32: give whole numbers"),
        ({"length": torch.tensor([5, 5])}, r"length of shape \(2,\) .*: give \[2, 5\] or \[2, 1\]"),
        ({"length": 5.0}, "length 5.0: give an int, or a tensor"),
    ],
)
def test_facts_that_do_not_fit_are_refused_when_they_are_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises(hw.HeadwayError, match=f"Coordinates has {message}"):
        Coordinates(**{"position": PLACES, "index": ORDER, **fields})  # type: ignore[arg-type]


def test_positions_of_one_sequence_on_several_axes() -> None:
    """[n, axes], as torch.cartesian_prod gives the patches of an image."""
    at = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    assert_same(Coordinates.of(at, 49), Coordinates.of(at[None], 49))
    q = torch.randn(3, 2, 49, 8)
    encoding = hw.encoding("axial-rope", head_dim=8)
    found = hw.attention(q, q, q, encoding=encoding, q_positions=at)
    assert torch.equal(found, hw.attention(q, q, q, encoding=encoding, q_positions=at[None]))
    with pytest.raises(hw.HeadwayError, match="positions have 2 axes but RoPE reads 1"):
        hw.attention(q, q, q, encoding=hw.encoding("rope", head_dim=8), q_positions=at)
    assert Coordinates.of(torch.tensor([[0, 1], [3, 4]]), 2).position.shape == (2, 2, 1)  # [batch, n], as before
    with pytest.raises(hw.HeadwayError, match="have shape"):
        Coordinates.of(at, 48)


def test_rows_of_packed_documents() -> None:
    found = Coordinates.packed([[5, 10], [7, 8]])
    for row, lengths in enumerate([[5, 10], [7, 8]]):
        one = Coordinates.packed(lengths)
        assert_same(found.select(torch.tensor([row])), one)
    assert found.documents_in_order
    assert_same(Coordinates.packed(torch.tensor([[5, 10], [7, 8]])), found)
    assert Coordinates.packed([[3, 1, 2], [6]]).document.tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]  # type: ignore[union-attr]
    queries = Coordinates.packed([[5, 10], [7, 8]], last=[[2, 1], [0, 3]])
    assert queries.index.tolist() == [[3, 4, 14], [12, 13, 14]]


@pytest.mark.parametrize("name", ["rope", "alibi", "log-n"])
def test_rows_of_packed_documents_are_computed_one_by_one(name: str) -> None:
    encoding = hw.positions.ENCODINGS[name].examples()[0]
    q = torch.randn(2, encoding.sizes[0] or 4, 15, encoding.sizes[2] or 8)
    options = {"encoding": encoding, "mask": hw.masks.Causal() & hw.masks.Documents()}
    at = Coordinates.packed([[5, 10], [7, 8]])
    found = hw.attention(q, q, q, q_positions=at, k_positions=at, **options)  # type: ignore[arg-type]
    for row, lengths in enumerate([[5, 10], [7, 8]]):
        one = q[row : row + 1]
        alone = Coordinates.packed(lengths)
        expected = hw.attention(one, one, one, q_positions=alone, k_positions=alone, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(found[row : row + 1], expected)


@pytest.mark.parametrize(
    ("lengths", "last", "said"),
    [
        ([[5, 10], [7, 5]], None, r"rows have \[15, 12\] tokens: .*row 1 a document of 3 tokens more"),
        ([[5, 10], [7, 8]], [1, 2], "give a list for each row"),
        ([[5, 10], [7, 8]], [[1, 2], [1, 1]], r"rows have \[3, 2\] last tokens"),
        ([[5, -1], [7, 8]], None, "lengths are"),
    ],
)
def test_rows_that_do_not_fit(lengths: list[list[int]], last: object, said: str) -> None:
    with pytest.raises(hw.HeadwayError, match=said):
        Coordinates.packed(lengths, last=last)  # type: ignore[arg-type]


def test_what_coordinates_print() -> None:
    assert repr(Coordinates.span(5, start=3)) == "Coordinates(5 tokens; positions 3 … 7; length 8)"
    assert repr(Coordinates.packed([5, 10])) == (
        "Coordinates(15 tokens; positions 0 … 9; indices 0 … 14; documents of 5, 10 tokens)"
    )
    assert "2 rows of 15 tokens" in repr(Coordinates.packed([[5, 10], [7, 8]]))
    assert "documents of 5, 10 | 7, 8 tokens" in repr(Coordinates.packed([[5, 10], [7, 8]]))
    assert "padding on the left of rows of 3, 5 tokens" in repr(Coordinates.padded([3, 5], 5))
    of_floats = Coordinates.of(torch.tensor([[0.5, 2.25]]), 2)
    assert "positions (float32) 0.5 … 2.25" in repr(of_floats)
    assert "positions on 2 axes 0 … 6" in repr(Coordinates.of(torch.arange(7)[:, None].expand(7, 2), 7))
    placed = hw.encoding("rope", head_dim=8).place(Coordinates.span(3))
    assert repr(placed) == "Coordinates(3 tokens; positions 0 … 2; length 3; placed by RoPE)"
    assert repr(Coordinates.span(0)) == "Coordinates(0 tokens; positions; length 0)"
    assert "tensor" not in repr(Coordinates.span(3, device="meta"))
