"""Masks, terms and coordinates compare by value, tensors included."""

from dataclasses import is_dataclass

import pytest
import torch

from headway import masks, terms
from headway.coordinates import Coordinates
from headway.records import Record

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
        terms.Steps(torch.tensor([1, 2, 5])),
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
