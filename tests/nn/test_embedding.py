"""Tokens into vectors and hidden states into logits."""

from typing import Any

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
    "options",
    [
        {"padding_idx": 3},
        {"max_norm": 0.5},
        {"max_norm": 0.5, "norm_type": 1.0},
        {"scale_grad_by_freq": True},
        {"sparse": True},
    ],
    ids=str,
)
def test_options_of_torch_act_as_in_torch(options: dict[str, Any]) -> None:
    ids = torch.tensor([[1, 3, 3], [0, 5, 1]])
    ours = Embedding(7, 4, scale=2.0, num_types=2, **options)
    theirs = nn.Embedding(7, 4, _weight=ours.weight.detach().clone(), **options)
    assert ours.types is not None
    outputs = ours(ids), 2 * theirs(ids) + ours.types.weight[0]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    for weight in (ours.weight, theirs.weight):
        assert weight.grad is not None
        assert weight.grad.is_sparse == options.get("sparse", False)
    torch.testing.assert_close(ours.weight, theirs.weight)  # max_norm changes it
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad.to_dense())


def test_the_embedding_of_padding_begins_as_zero() -> None:
    embedding = Embedding(7, 4, num_types=2, padding_idx=3)
    assert not embedding.weight[3].any()
    assert embedding.weight[2].any()
    assert embedding.types is not None
    assert embedding.types.weight.any(1).all()


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
