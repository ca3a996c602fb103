"""Gates along the path: which of them count, what is turned, the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention, attention_steps
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.alibi import ALiBi
from headway.positions._encodings.grape_ap import GRAPEAP


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def added(encoding: GRAPEAP, x: Tensor, **arguments: object) -> Tensor:
    q = torch.zeros(1, encoding.num_heads, x.shape[1], 4, dtype=x.dtype)
    steps = attention_steps(q, q, q, encoding=encoding, mask=Causal(), q_input=x, k_input=x, **arguments)  # type: ignore[arg-type]
    return steps.scaled


def test_the_authors_code() -> None:
    """Numbers of CausalSelfAttention, model-architectures/GRAPE model/llama-mha-grape-ap-v1.py @ f5b539f.

    Without its norm of q and k and with an output projection of 1; tokens 3 and 5.
    """
    encoding, x = GRAPEAP(8, 2, path_dim=4).double(), wave(1, 6, 8, a=0.6)
    encoding.weight.data.copy_(wave(8, 8, a=1.3))
    q, k, v = ((x @ wave(8, 8, a=a).T).unflatten(-1, (2, 4)).transpose(1, 2) for a in (0.7, 1.1, 1.9))
    out = attention(q, k, v, encoding=encoding, mask=Causal(), q_input=x, k_input=x)
    expected = [-0.075419, -0.160357, 0.355639, -0.461113, -0.206203, 0.250254, -0.231109, 0.153603]
    expected += [0.011287, 0.133006, -0.243712, 0.292874, 0.281962, -0.320403, 0.277935, -0.16528]
    assert out[0, :, [3, 5]].permute(1, 0, 2).flatten().tolist() == pytest.approx(expected, abs=5e-6)


def test_content_that_says_nothing_leaves_alibi() -> None:
    """Every gate is a half then: ln 2 for each step."""
    found = added(GRAPEAP(16, 6, path_dim=2), torch.zeros(1, 5, 16))
    q = torch.zeros(1, 6, 5, 4)
    torch.testing.assert_close(found.tril(), math.log(2) * attention_steps(q, q, q, encoding=ALiBi(6)).scaled.tril())


def test_the_querys_own_token_counts_and_the_keys_does_not() -> None:
    """A token in between changes what lies on its far side, for the queries from it on."""
    encoding, x = GRAPEAP(16, 2).double(), torch.randn(1, 6, 16, dtype=torch.float64)
    other = x.clone()
    other[:, 3] += 1
    changed = (added(encoding, x) - added(encoding, other)).abs().amax((0, 1)).tril() > 1e-9
    assert changed.tolist() == [[i >= 3 > j for j in range(6)] for i in range(6)]


def test_it_knows_where_and_not_only_how_far() -> None:
    encoding, x = GRAPEAP(16, 2).double(), torch.randn(1, 6, 16, dtype=torch.float64)
    moved = torch.arange(6) + 1
    assert not torch.allclose(added(encoding, x), added(encoding, x, q_positions=moved, k_positions=moved))


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="path_dim is 3"):
        GRAPEAP(16, 2, path_dim=3)
    with pytest.raises(HeadwayError, match="embed_dim"):
        added(GRAPEAP(16, 2), torch.zeros(1, 4, 15))
