"""Masks, terms and coordinates compare by value; their tensors are checked by the dimensions that they name."""

import pydoc
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks, terms
from headway.coordinates import Coordinates
from headway.kernels.lowering.terms import PastSlopes
from headway.records import Divisible, Record, named

RECORDS = [
    kind
    for module in (masks, terms)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Record) and is_dataclass(kind)
] + [Coordinates]


def examples() -> list[Record]:
    ids, lengths = torch.tensor([0, 0, 1, 1]), torch.tensor([3, 4])
    table = terms.Rows(torch.arange(10.0).view(2, 5), terms.Clip(-2, 2))
    return [
        masks.Causal(),
        masks.Window(left=3),
        masks.Documents(ids),
        masks.Documents(ids, ids[None]),
        masks.Boolean(torch.eye(4, dtype=torch.bool)),
        masks.Padding(lengths),
        masks.Padding([1, 2], side="left"),
        masks.Prefix(lengths),
        masks.Causal() & masks.Documents(ids),
        masks.Causal() | masks.Documents(ids),
        table,
        terms.Bucketize(torch.tensor([1, 2, 5])),
        terms.DistanceBias(table),
        terms.DistanceBias(terms.Linear(torch.ones(2), torch.zeros(2))),
        terms.Sink(torch.zeros(2)),
        terms.DenseBias(len, (torch.ones(3),)),
        terms.SoftCap(30.0),
        Coordinates.span(4),
        Coordinates.packed([1, 3]),
        Coordinates.padded([2, 4], 4),
        Coordinates.span(4).placed_by("an encoding", {"cos": (torch.ones(4), torch.zeros(4))}),
    ]


@pytest.mark.parametrize("kind", RECORDS)
def test_no_record_has_the_equality_that_dataclass_writes(kind: type) -> None:
    assert kind.__eq__ is Record.__eq__
    assert kind.__hash__ is Record.__hash__


@pytest.mark.parametrize(("number", "one"), [*enumerate(examples())], ids=lambda x: getattr(type(x), "__name__", ""))
def test_a_record_equals_one_of_equal_values_and_no_other(number: int, one: Record) -> None:
    for place, other in enumerate(examples()):
        assert (one == other) == (place == number)
        if place == number:
            assert hash(one) == hash(other)


def test_tensors_of_another_shape_dtype_or_value_differ() -> None:
    ids = torch.tensor([0, 0, 1])
    for other in (ids[:2], ids.int(), torch.tensor([0, 1, 1]), ids[None]):
        assert masks.Documents(ids) != masks.Documents(other)
    assert masks.Documents(ids) != masks.Documents()
    assert masks.Documents(ids) != ids.tolist()


# ---------------------------------------------------------------- do the tensors fit

CALL = {"batch": 2, "heads": 4, "kv_heads": 3, "queries": 5, "keys": 7, "head_dim": 8, "v_dim": 6}
Shape = tuple[int, ...]


def bias(kind: type[terms.Part], **given: Any) -> Callable[..., terms.Part]:
    return lambda **tensors: terms.DistanceBias(kind(**tensors, **given))  # type: ignore[arg-type]


def rows(where: Any) -> Callable[[Tensor], terms.Part]:
    return lambda table: terms.DistanceBias(terms.Rows(table, where))


def classes(q_class: Tensor, k_class: Tensor) -> terms.Part:
    where = terms.Classes(q_class.long(), k_class.long(), 2)
    return terms.DistanceBias(terms.Rows(torch.ones(4, 12), terms.Grid((terms.Clip(-1, 1), where))))


def sinusoids(weight: Tensor, frequencies: Tensor) -> terms.Part:
    return terms.RelativeKeys(terms.Sinusoids(weight, frequencies))


def relative_keys(**tensors: Tensor) -> terms.Part:
    return terms.RelativeKeys(terms.Rows(torch.ones(1, 3, 8), terms.Clip(-1, 1)), **tensors)


FITTING: dict[str, list[tuple[Callable[..., Divisible], dict[str, tuple[Shape, Shape]]]]] = {
    "Bucketize": [
        (
            lambda boundaries: terms.DistanceBias(terms.Rows(torch.ones(4, 4), terms.Bucketize(boundaries))),
            {"boundaries": ((3,), (3,))},
        )
    ],
    "Classes": [(classes, {"q_class": ((2, 5), (1, 5)), "k_class": ((2, 7), (1, 7))})],
    "Rows": [
        (rows(terms.Clip(-1, 1)), {"table": ((4, 3), (1, 3))}),
        (lambda table: terms.RelativeKeys(rows(terms.Clip(-1, 1))(table).values), {"table": ((4, 3, 8), (1, 3, 8))}),
        (lambda table: terms.RelativeQueries(rows(terms.Clip(-1, 1))(table).values), {"table": ((4, 3, 8), (1, 3, 8))}),
        (lambda table: terms.RelativeValues(rows(terms.Clip(-1, 1))(table).values), {"table": ((4, 3, 6), (1, 3, 6))}),
    ],
    "Linear": [(bias(terms.Linear), {"past": ((4,), (1,)), "future": ((4,), (1,))})],
    "Log": [(bias(terms.Log), {"weight": ((4,), (1,)), "rate": ((4,), (1,))})],
    "Power": [(bias(terms.Power), {"weight": ((4,), (1,)), "exponent": ((4,), (1,))})],
    "Piecewise": [(bias(terms.Piecewise), {"knots": ((9,), (9,)), "values": ((4, 9), (1, 9))})],
    "Sinusoids": [(sinusoids, {"frequencies": ((9,), (9,)), "weight": ((4, 8, 18), (1, 8, 18))})],
    "Cosines": [(bias(terms.Cosines), {"frequencies": ((9,), (9,)), "weight": ((4, 9), (1, 9))})],
    "Stretched": [
        (
            bias(terms.Stretched),
            {
                "edges": ((9,), (9,)),
                "intercept": ((4, 10), (1, 10)),
                "slope": ((4, 10), (1, 10)),
                "rate": ((1,), (1,)),
                "stretch": ((2, 5), (1, 5)),
            },
        )
    ],
    "QueryScale": [(terms.QueryScale, {"factor": ((2, 4, 5), (1, 1, 1))})],
    "RelativeKeys": [
        (relative_keys, {"query_bias": ((4, 8), (1, 8))}),
        (relative_keys, {"query": ((2, 4, 5, 8), (2, 4, 5, 8)), "query_bias": ((4, 8), (1, 8))}),
    ],
    "RelativeQueries": [
        (
            lambda key: terms.RelativeQueries(terms.Rows(torch.ones(1, 3, 8), terms.Clip(-1, 1)), key),
            {"key": ((2, 3, 7, 8), (2, 3, 7, 8))},
        )
    ],
    "TokenBias": [(terms.TokenBias, {"queries": ((2, 4, 5), (1, 1, 5)), "keys": ((2, 4, 7), (1, 1, 7))})],
    "PastSlopes": [(partial(PastSlopes, axis=0), {"queries": ((2, 4, 5), (1, 1, 5)), "keys": ((2, 4, 7), (1, 1, 7))})],
    "DenseBias": [(terms.DenseBias, {"values": ((2, 4, 5, 7)[drop:], (1, 1, 1, 1)[drop:])}) for drop in range(5)],
    "Sink": [(terms.Sink, {"logits": ((4,), (4,))}), (terms.Sink, {"logits": ((2, 4, 5), (1, 1, 1))})],
    "Rotation": [(terms.Rotation, {"cos": ((2, 4, 9, 3), (1, 1, 9, 3)), "sin": ((2, 4, 9, 3), (1, 1, 9, 3))})],
    "LimitedRotation": [
        (
            partial(terms.LimitedRotation, 2.0),
            dict.fromkeys(("q_cos", "q_sin"), ((3, 2, 1, 5, 4), (3, 1, 1, 5, 4)))
            | dict.fromkeys(("k_cos", "k_sin"), ((2, 2, 1, 7, 4), (2, 1, 1, 7, 4))),
        )
    ],
    "HouseholderPath": [
        (
            terms.HouseholderPath,
            {
                "w": ((2, 3, 7, 8), (1, 3, 7, 8)),
                "beta": ((2, 3, 7), (1, 3, 7)),
                "q_sums": ((2, 4, 5), (1, 4, 5)),
                "k_sums": ((2, 4, 7), (1, 4, 7)),
            },
        )
    ],
    "ChannelDecay": [(terms.ChannelDecay, {"log_gates": ((2, 4, 7, 8), (1, 4, 7, 8))})],
    "ContentSlope": [
        (
            terms.ContentSlope,
            {
                "slope": ((4,), (4,)),
                "key_weight": ((4, 8), (4, 8)),
                "query_weight": ((4, 8), (4, 8)),
            },
        )
    ],
    "ContextualPositions": [(terms.ContextualPositions, {"vectors": ((4, 5, 8), (1, 1, 8))})],
    "GatedPath": [
        (
            terms.GatedPath,
            {
                "query": ((2, 4, 5, 3), (1, 4, 5, 3)),
                "path": ((2, 4, 7, 3), (1, 4, 7, 3)),
                "slope": ((4,), (4,)),
            },
        )
    ],
    "HeadNetwork": [
        (
            lambda **weights: terms.HeadNetwork(
                (terms.DistanceBias(terms.Linear(torch.ones(4), torch.ones(4))),), **weights
            ),
            {
                "into": ((3, 8, 5), (3, 8, 5)),
                "into_bias": ((3,), (3,)),
                "out": ((4, 3, 5), (4, 3, 5)),
                "out_bias": ((4,), (4,)),
            },
        )
    ],
    "Prefix": [(lambda length: masks.Prefix(length.long()), {"length": ((2,), (1,))})],
    "Documents": [
        (lambda ids: masks.Documents(ids.long()), {"ids": ((7,), (7,))}),
        (
            lambda ids, query_ids: masks.Documents(ids.long(), query_ids.long()),
            {"ids": ((2, 7), (1, 7)), "query_ids": ((2, 5), (1, 5))},
        ),
        (
            lambda ids, query_ids: masks.Documents(ids.long(), query_ids.long()),
            {"ids": ((7,), (7,)), "query_ids": ((5,), (5,))},
        ),
    ],
    "Padding": [(lambda lengths: masks.Padding(lengths.long()), {"lengths": ((2,), (2,))})],
    "Function": [
        (
            lambda rows, heads: masks.Function(torch.ge, rows.long(), heads.long()),
            {"rows": ((2,), (2,)), "heads": ((4,), (4,))},
        )
    ],
    "BlockFunction": [
        (
            lambda rows, heads, blocks, q_slots, k_slots: masks.BlockFunction(
                torch.ge,
                rows.long(),
                heads.long(),
                blocks=blocks,
                q_slots=q_slots,
                k_slots=k_slots,
                q_block=2,
                k_block=2,
            ),
            {
                "rows": ((2,), (2,)),
                "heads": ((4,), (4,)),
                "blocks": ((2, 4, 3, 4), (1, 1, 3, 4)),
                "q_slots": ((5,), (5,)),
                "k_slots": ((7,), (7,)),
            },
        )
    ],
    "Interval": [(masks.Interval, {"start": ((2, 5), (1, 1)), "stop": ((2, 5), (1, 1))})],
    "Bits": [(lambda bits: masks.Bits(bits.byte(), 7), {"bits": ((2, 4, 5, 1), (1, 1, 1, 1))})],
    "Boolean": [
        (lambda values: masks.Boolean(values > 0), {"values": ((5, 7), (1, 1))}),
        (lambda values: masks.Boolean(values > 0), {"values": ((2, 4, 5, 7), (1, 1, 1, 1))}),
    ],
}
"""Of each class with tensors, what makes a term or a mask of them, the shapes that they have and the least that fit."""

ELSEWHERE = {
    ("Bucketize", "boundaries"): "table has shape",
    ("Rows", "table"): "table has shape",
    ("Piecewise", "knots"): "knots have shape",
    ("Piecewise", "values"): "knots have shape",
    ("Sinusoids", "frequencies"): "RelativeKeys has weight of shape",
    ("Cosines", "frequencies"): "DistanceBias has weight of shape",
    ("Stretched", "edges"): "DistanceBias has intercept of shape",
    ("RelativeKeys", "query"): "RelativeKeys has query_bias of shape",
    ("RelativeQueries", "key"): "RelativeQueries has table of shape",
    ("Rotation", "cos"): "Rotation has sin of shape",
    ("GatedPath", "query"): "GatedPath has path of shape",
    ("HeadNetwork", "into"): "HeadNetwork has into_bias of shape",
    ("HeadNetwork", "out"): "HeadNetwork has into of shape",
    ("Boolean", "values"): "mask has shape",
    ("BlockFunction", "blocks"): "the BlockMask is made for",
    ("BlockFunction", "q_slots"): "the BlockMask is made for",
    ("BlockFunction", "k_slots"): "the BlockMask is made for",
}
"""What is said where a tensor that is too long does not fit another, or is told when the record is made."""

ALSO_FIT: dict[str, set[Shape]] = {
    "DenseBias": {(4, 5, 7), (5, 7), (7,), (1,), ()},
    "Documents": {(5,), (7,)},
    "ContextualPositions": {(4, 6, 8)},
}
"""Tensors of fewer dimensions, or of another size where any will do, that fit too."""

CASES = [(name, number) for name, cases in FITTING.items() for number in range(len(cases))]


def check(name: str, number: int, changed: dict[str, Shape]) -> Divisible:
    """Makes the term or mask of a case, in which some tensors have other shapes, and checks it against ``CALL``."""
    make, shapes = FITTING[name][number]
    one = make(**{field: torch.ones(changed.get(field, shape)) for field, (shape, _) in shapes.items()})
    if isinstance(one, masks.Mask):
        (masks.Causal() & one).check(CALL["batch"], CALL["heads"], CALL["queries"], CALL["keys"])
    elif isinstance(one, (terms.Rotation, PastSlopes)):
        one.check_tensors({**CALL, "tokens": 9})
    else:
        terms.check((one,), CALL)  # type: ignore[arg-type]
    return one


def kinds(base: type = Divisible) -> list[type]:
    """All of headway's classes whose tensors name their dimensions."""
    own = [kind for kind in base.__subclasses__() if kind.__module__.startswith("headway.")]
    return own + [kind for one in own for kind in kinds(one)]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if is_dataclass(kind)])
def test_every_tensor_names_its_dimensions(kind: type[Divisible]) -> None:
    tensors = {x.name for x in fields(kind) if "Tensor" in str(x.type).replace("Callable[..., Tensor]", "")}
    assert tensors == set(kind.axes), "give the class axes = named(…)"
    any_shape = {name for name, layouts in kind.axes.items() if not layouts}
    of_documents = {"q_offsets", "k_offsets"}
    assert any_shape - of_documents <= {"tensors"}, "only what a function of the user's reads may have any shape"
    tested = {name for _, shapes in FITTING.get(kind.__name__, []) for name in shapes}
    assert tested == tensors - any_shape, "give the class a row in FITTING"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_tensors_that_fit(name: str, number: int) -> None:
    _, shapes = FITTING[name][number]
    check(name, number, {})
    check(name, number, {field: least for field, (_, least) in shapes.items()})
    for field, (whole, least) in shapes.items():
        for place in range(len(whole)):
            check(name, number, {field: (*whole[:place], least[place], *whole[place + 1 :])})


@pytest.mark.parametrize(("name", "number"), CASES)
def test_tensors_that_do_not_fit(name: str, number: int) -> None:
    """One too long in any dimension, of size 1 where that does not stand for all, a dimension more and one fewer."""
    _, shapes = FITTING[name][number]
    for field, (whole, least) in shapes.items():
        wrong = [(*whole[:i], size + 1, *whole[i + 1 :]) for i, size in enumerate(whole)]
        wrong += [(*whole[:i], 1, *whole[i + 1 :]) for i in range(len(whole)) if least[i] > 1]
        wrong += [(*whole, 1), whole[:-1], whole[1:]]
        for shape in wrong:
            if shape in ALSO_FIT.get(name, ()):
                continue
            with pytest.raises(hw.HeadwayError) as caught:
                check(name, number, {field: shape})
            said = str(caught.value)
            assert f" has {field} of shape {shape}: give " in said or ELSEWHERE[name, field] in said, said


# ---------------------------------------------------------------- classes of a user's own


class OwnMap(terms.Part):
    """Says no types of what it holds."""

    axes = named(numbers=("keys", "1|batch keys"), others="things", more="1|things heads")
    count = 2

    def __init__(self, numbers: Tensor, others: Tensor, more: Tensor, *parts: terms.Part) -> None:
        self.numbers, self.others, self.more, self.parts = numbers, others, more, parts


@dataclass(frozen=True, slots=True)
class Slotted(terms.Part):
    axes = named(numbers="1|batch keys", several="queries")
    numbers: Tensor
    several: tuple[Tensor, ...] = ()
    held: Any = None
    count: int = 2


class SecondMap(OwnMap):
    """Below a class that is checked."""


class OwnMask(masks.Mask):
    axes = named(chosen="1|batch 1|heads keys", length="1|batch")
    whole = ("chosen",)

    def __init__(self, chosen: Tensor, length: Tensor) -> None:
        self.chosen, self.length = chosen, length

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.chosen[:, :, None] > 0


def o(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.long)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (OwnMap(o(7), o(3), o(3, 4)), None),
        (OwnMap(o(1, 7), o(3), o(1, 4)), None),
        (OwnMap(o(2, 7), o(3), o(3, 4), terms.Classes(o(2, 5), o(1, 7), 2)), None),
        (OwnMap(o(6), o(3), o(3, 4)), r"DistanceBias has numbers of shape \(6,\): give \[7\]"),
        (OwnMap(o(1, 1, 7), o(3), o(3, 4)), r"numbers of shape \(1, 1, 7\): give \[7\] or \[1 or 2, 7\]"),
        (OwnMap(o(7), o(3), o(2, 4)), r"more of shape \(2, 4\): give \[1 or 3, 4\]"),
        (OwnMap(o(7), o(3), o(3, 1)), r"more of shape \(3, 1\): give \[1 or 3, 4\]"),
        (OwnMap(o(7), o(3), o(3, 4), terms.Classes(o(2, 5), o(1, 6), 2)), r"has k_class of shape \(1, 6\)"),
        (SecondMap(o(7), o(2, 3), o(3, 4)), r"has others of shape \(2, 3\): give \[things\]"),
        (Slotted(o(1, 7), (o(5), o(5))), None),
        (Slotted(o(3, 7)), r"has numbers of shape \(3, 7\): give \[1 or 2, 7\]"),
        (Slotted(o(1, 7), (o(5), o(6))), r"has several of shape \(6,\): give \[5\]"),
        (Slotted(o(1, 7), held=Slotted(o(1, 6))), r"has numbers of shape \(1, 6\)"),
    ],
)
def test_a_part_of_a_users_own_is_checked(where: Any, message: str | None) -> None:
    term = terms.DistanceBias(terms.Rows(torch.ones(4, 2), where))
    if message is None:
        return terms.check((term,), CALL)
    with pytest.raises(hw.HeadwayError, match=message):
        terms.check((term,), CALL)
    return None


def test_a_mask_of_a_users_own_is_checked() -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8)
    assert hw.attention(q, k, k, mask=OwnMask(o(1, 4, 7), o(2))).shape == q.shape
    for chosen, length, message in (
        (o(2, 4, 6), o(1), r"OwnMask has chosen of shape \(2, 4, 6\): give one for each key, \[2, 4, 7\]"),
        (o(2, 4, 7), o(3), r"OwnMask has length of shape \(3,\): give one for each row, \[2\]"),
        (o(2, 4, 7).float(), o(1), r"OwnMask has chosen of torch\.float32: give whole numbers"),
    ):
        for mask in (OwnMask(chosen, length), masks.Causal() | OwnMask(chosen, length)):
            with pytest.raises(hw.HeadwayError, match=message):
                hw.attention(q, k, k, mask=mask)


def test_a_size_along_a_dimension() -> None:
    ids = torch.zeros(3, 7, dtype=torch.long)
    assert (masks.Causal() & (masks.Documents(ids) | masks.Padding([4]))).extent("batch") == 3
    assert (masks.Causal() & masks.Documents(ids[0])).extent("batch") == 1
    assert terms.DenseBias(torch.ones(4, 5, 7)).extent("heads") == 4
    assert terms.DenseBias(torch.ones(4, 5, 7)).extent("batch") == 1
    assert terms.DistanceBias(terms.Rows(torch.ones(4, 4), terms.Classes(ids, ids[:1], 2))).extent("batch") == 3


def test_layouts_of_as_many_dimensions_are_refused() -> None:
    with pytest.raises(hw.HeadwayError, match=r"x has layouts .*: give one for each number of dimensions"):
        named(x=("heads", "1|keys"))


def test_tensors_that_name_no_such_layout_cannot_be_cut() -> None:
    with pytest.raises(
        hw.HeadwayError, match=r"QueryScale has factor of shape \(4, 5\): give \[1 or batch, 1 or heads"
    ):
        terms.QueryScale(torch.ones(4, 5)).cut("heads", 0, 2)


@pytest.mark.parametrize("kind", [Record, Divisible, terms.Clip, Coordinates])
def test_help_has_no_private_names(kind: type) -> None:
    said = pydoc.plaintext.document(kind)
    assert kind.__name__ in said
    assert not re.findall(r"^ \|  _(?!_)\w+", said, re.M)


@dataclass(frozen=True, eq=False)
class Amounts(terms.Part):
    axes = named(either="1|heads", tensor="1|heads")
    either: "float | Tensor"
    tensor: "Tensor"


def test_a_number_is_refused_where_nothing_but_a_tensor_is_meant() -> None:
    Amounts(0.5, torch.ones(2)).check_tensors({"heads": 2})
    with pytest.raises(
        hw.HeadwayError, match=r"Amounts has tensor=0.5: give a tensor, such as torch.tensor\(\[0.5\]\)"
    ):
        Amounts(0.5, 0.5).check_tensors({"heads": 2})
