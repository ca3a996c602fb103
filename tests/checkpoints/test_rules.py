"""Changes between their tensors and ours read the same both ways, and know the shape of what they want."""

import pytest
import torch
from torch import nn

from headway.checkpoints._rules import (
    AS_IT_IS,
    TRANSPOSED,
    After,
    AsItIs,
    Change,
    Entry,
    Fused,
    Paired,
    Plus,
    outer_name,
    put,
)

SHAPES = {"one": [(8, 6)], "vector": [(8,)], "three": [(8, 6), (4, 6), (4, 6)], "equal": [(8, 6)] * 3}
CASES = [
    (AS_IT_IS, "one"),
    (AS_IT_IS, "vector"),
    (AsItIs(8, 6, 1), "one"),
    (AsItIs(2, 4, -1), "one"),
    (TRANSPOSED, "one"),
    (TRANSPOSED, "vector"),
    (Plus(1.0), "vector"),
    (After(2), "one"),
    (Fused(), "three"),
    (Fused(transposed=True), "three"),
    (Fused(groups=4), "equal"),
    (Fused(groups=4), "three"),
    (Fused(groups=2, transposed=True), "equal"),
    (Paired(2), "one"),
    (Paired(4), "vector"),
]


@pytest.mark.parametrize(("change", "shapes"), CASES)
def test_what_is_written_is_read_as_it_was(change: Change, shapes: str) -> None:
    ours = [torch.randint(-9, 9, shape).float() for shape in SHAPES[shapes]]
    theirs = change.write(ours)
    assert tuple(theirs.shape) == change.shape(SHAPES[shapes])
    again = change.read(theirs, SHAPES[shapes])
    assert all(torch.equal(a, b) for a, b in zip(again, ours, strict=True))


def test_groups_are_one_behind_the_other() -> None:
    """Of GPT-NeoX: head 0's query, key and value, then those of head 1."""
    q, k, v = (torch.arange(4.0)[:, None] + 10 * part for part in range(3))
    assert Fused(groups=2).write([q, k, v]).flatten().tolist() == [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23]


def test_halves_and_neighbours() -> None:
    """Of two heads with two rotary pairs each: (0, 2), (1, 3) here are (0, 1), (2, 3) there."""
    assert Paired(2).write([torch.arange(8.0)[:, None]]).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_of_two_copies_in_a_file_the_one_with_the_shorter_name_is_read() -> None:
    wanted = [Entry(name, (name,), AS_IT_IS) for name in ("a.weight", "b.weight")]
    names = [f"{before}{one}.weight" for before in ("ema.model.", "model.") for one in "ab"]
    assert outer_name(wanted, names) == (2, "model.")
    assert outer_name(wanted, [*names, "b.weight"]) == (2, "model."), "more tensors count first"


def test_tensors_that_are_put_into_a_model_are_frozen_as_before() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    put(model, {name: torch.ones_like(one) for name, one in model.named_parameters()})
    assert model.weight.requires_grad
    assert not model.bias.requires_grad
    assert model.bias.tolist() == [1, 1]
