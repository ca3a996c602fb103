"""Tokens into vectors and hidden states into logits."""

import pytest
import torch
from torch import nn

from headway import HeadwayError
from headway.nn import Embedding, Head


def test_the_sum_of_word_and_type() -> None:
    embedding = Embedding(11, 6, scale=3.0, num_types=2)
    assert embedding.types is not None
    ids, types = torch.tensor([[1, 10, 4]]), torch.tensor([[0, 1, 1]])
    wanted = 3 * embedding.weight[ids] + embedding.types.weight[types]
    torch.testing.assert_close(embedding(ids, types), wanted)
    torch.testing.assert_close(embedding(ids), embedding(ids, torch.zeros_like(ids)))


def test_first_values_have_the_size_of_one_vector() -> None:
    assert Embedding(500, 64).weight.norm(dim=1).mean().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("ids", "types", "message"),
    [
        (torch.zeros(1, 3), None, "ids are torch.float32"),
        (torch.zeros(3, dtype=torch.long), None, r"ids have shape \(3,\)"),
        ([[1]], None, "ids are list"),
        (torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3), "types are torch.float32"),
        (torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long), "give one type for each id"),
    ],
)
def test_wrong_ids(ids: torch.Tensor, types: torch.Tensor | None, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        Embedding(5, 4, num_types=2)(ids, types)


def test_types_where_there_are_none() -> None:
    ids = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(HeadwayError, match="the model has no types of tokens"):
        Embedding(5, 4)(ids, ids)


def test_head_of_its_own() -> None:
    head = Head(6, 11, bias=True, transform=nn.Linear(8, 6), scale=0.5, soft_cap=2.0)
    assert head.weight is not None
    assert head.bias is not None
    nn.init.normal_(head.bias)
    assert isinstance(head.transform, nn.Linear)
    x = 9 * torch.randn(2, 3, 8)
    raw = 0.5 * (head.transform(x) @ head.weight.T) + head.bias
    torch.testing.assert_close(head(x, torch.zeros(11, 6)), 2 * torch.tanh(raw / 2))


def test_tied_head() -> None:
    head, embeddings, x = Head(6, 11, tied=True), torch.randn(11, 6), torch.randn(2, 3, 6)
    assert not list(head.parameters())
    torch.testing.assert_close(head(x, embeddings), x @ embeddings.T)
