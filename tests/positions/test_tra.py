"""Threshold relative attention: the authors' numbers, keys that are dropped, distances that count the others."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from headway import attention, attention_weights
from headway.masks import Causal
from headway.positions import TRA


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def test_the_authors_numbers() -> None:
    """TRA of submission 96 in abhishekpanigrahi1996/MOSS, TRA_FFL.ipynb at 4487e47, in float64: tokens 0, 3 and 6 of 7,
    2 heads of 4, queries and keys normalized."""
    expected = torch.tensor(
        [
            [-1.0201568, 1.0692217, -0.17947629, -0.86785497, 0.0, 0.0, 0.0, 0.0],
            [-0.74842868, 0.092653362, 0.64447452, -0.81573349, 0.77227238, 0.31293855, -1.1233796, 0.94745797],
            [-0.50006202, 0.028013287, 0.468632, -0.55380363, 1.2474697, -0.06058234, -1.1794982, 1.3839422],
        ]
    )
    x = wave(1, 7, 8, a=0.7)
    q, k, v = ((x @ wave(8, 8, a=a).T).unflatten(-1, (2, 4)).transpose(1, 2) for a in (1.1, 0.9, 1.3))
    q, k = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) for y in (q, k))
    encoding = TRA(8, 2).double()
    encoding.weight.data.copy_(wave(2, 8, a=1.5))
    encoding.bias.data.copy_(wave(2, a=1.7))
    found = attention(q, k, v, encoding=encoding, mask=Causal(), q_input=x, k_input=x).detach()
    torch.testing.assert_close(found.transpose(1, 2).flatten(2)[0, [0, 3, 6]], expected.double(), atol=1e-6, rtol=0)


def test_dropped_keys_have_no_weight_and_do_not_count() -> None:
    encoding, x = TRA(4, 1).double(), torch.randn(1, 5, 4, dtype=torch.float64)
    q = torch.ones(1, 1, 5, 1, dtype=torch.float64)
    k = torch.tensor([1.0, -1.0, -2.0, 2.0, -3.0], dtype=torch.float64).view(1, 1, 5, 1)
    weights = attention_weights(q, k, k, encoding=encoding, mask=Causal(), scale=1.0, q_input=x, k_input=x)[0, 0, 4]
    decay = F.logsigmoid(x[0, 4] @ encoding.weight[0] + encoding.bias[0])
    expected = torch.stack([1.0 + 2 * decay, 2.0 + decay]).softmax(0)
    torch.testing.assert_close(weights[[0, 3]].detach(), expected.detach(), check_dtype=False)
    assert weights[[1, 2, 4]].tolist() == [0, 0, 0]


def test_a_query_that_keeps_nothing_has_an_output_of_zero_and_gradients_of_zero() -> None:
    encoding, x = TRA(4, 1), torch.randn(1, 3, 4)
    q = torch.ones(1, 1, 3, 2, requires_grad=True)
    k = torch.tensor([-1.0, -2.0, 1.0]).view(1, 1, 3, 1).expand(1, 1, 3, 2)
    out = attention(q, k, k, encoding=encoding, mask=Causal(), q_input=x, k_input=x)
    assert out[0, 0, :2].tolist() == [[0, 0], [0, 0]]
    assert out[0, 0, 2].tolist() == [1, 1]
    out.sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())
