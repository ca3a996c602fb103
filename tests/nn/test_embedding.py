"""Tokens into vectors and hidden states into logits."""

from typing import Any

import pytest
import torch
from torch import nn

from headway import HeadwayError
from headway.nn import Embedding, Head
from headway.nn.embedding import tied


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


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 3}, {"max_norm": 0.5, "norm_type": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}],
)
def test_from_pretrained_is_that_of_torch(freeze: bool, options: dict[str, Any]) -> None:
    ids = torch.tensor([[1, 3, 3], [0, 5, 1]])
    matrix = torch.randn(7, 4, dtype=torch.float64)
    ours = Embedding.from_pretrained(matrix.clone(), freeze, **options)
    theirs = nn.Embedding.from_pretrained(matrix.clone(), freeze, **options)
    assert type(ours) is Embedding
    assert ours.weight.requires_grad is not freeze
    assert (ours.num_embeddings, ours.embedding_dim) == (7, 4)
    torch.testing.assert_close(ours(ids), theirs(ids), rtol=0, atol=0)
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0)
    if not freeze:
        for embedding in (ours, theirs):
            embedding(ids).square().sum().backward()
        assert ours.weight.grad is not None
        assert theirs.weight.grad is not None
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=0)


def test_from_pretrained_shares_memory_and_takes_scale_and_types() -> None:
    matrix, state = torch.randn(7, 4), torch.get_rng_state()
    assert Embedding.from_pretrained(matrix).weight.data_ptr() == matrix.data_ptr()
    assert torch.equal(torch.get_rng_state(), state)
    embedding = Embedding.from_pretrained(matrix, scale=3.0, num_types=2)
    assert embedding.types is not None
    assert 0.1 < embedding.types.weight.std().item() < 10
    ids = torch.tensor([[1, 6]])
    torch.testing.assert_close(embedding(ids), 3 * matrix[ids] + embedding.types.weight[0])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0]], "embeddings is a list: give floats"),
        (torch.zeros(3), r"embeddings are torch.float32 of shape \(3,\): give floats \[vocab_size, embed_dim\]"),
        (torch.zeros(3, 2, dtype=torch.int64), r"embeddings are torch.int64 of shape \(3, 2\): give floats"),
    ],
)
def test_from_pretrained_refuses_other_than_a_matrix(matrix: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        Embedding.from_pretrained(matrix)


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


@pytest.mark.parametrize("kind", [Embedding, nn.Embedding])
def test_a_head_is_tied_to_an_embedding_of_any_class(kind: type[nn.Module]) -> None:
    embedding, x, bias = kind(11, 6), torch.randn(2, 3, 6), torch.randn(11)
    torch.testing.assert_close(tied(embedding)(x, bias), x @ embedding.weight.T + bias)
