"""A convolution along the keys: the authors' numbers in the last row, and why not in the others."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention_steps
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions import PositionEncoding
from headway.positions._encodings.dape import DAPE
from headway.positions._encodings.dape_v2 import DAPEv2


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def mapped(encoding: PositionEncoding, z: Tensor) -> Tensor:
    """The scores that come of scores z [1, heads, n, n] under a causal mask."""
    k = torch.eye(z.shape[-1], dtype=z.dtype).expand(z.shape)
    return attention_steps(z, k, k, encoding=encoding, mask=Causal(), scale=1.0).scaled


def filled() -> DAPEv2:
    encoding = DAPEv2(4, hidden=5).double()
    for parameter, a in (
        (encoding.into, 0.3),
        (encoding.into_bias, 0.5),
        (encoding.out, 0.8),
        (encoding.out_bias, 0.6),
    ):
        parameter.data.copy_(wave(*parameter.shape, a=a))
    return encoding


def test_the_authors_code() -> None:
    """Numbers of Alibi_DAPEV2, chuanyang-Zheng/DAPE megatron/model/positional_embeddings.py @ bde344a.

    Row 5 of 6, keys 2 and 5; row 3, keys 2 and 3, of 4 tokens and of 6: only what is the last row agrees, since theirs
    lets the first convolution write beyond the query where tokens follow.
    """
    z = wave(1, 4, 6, 6, a=1.3)
    found = mapped(filled(), z)
    last = [-1.034214, 1.069136, 1.602569, -0.287676, 1.726005, 1.756505, 1.554611, 0.478662]
    row_3_of_4 = [0.851282, 0.849943, 0.088991, -0.29606, 0.970715, 2.080894, 0.694486, 0.194482]
    row_3_of_6 = [0.851282, 0.50029, 0.088991, -0.557411, 0.970715, 1.989462, 0.694486, 0.301523]
    assert found[0, :, 5, [2, 5]].flatten().tolist() == pytest.approx(last, abs=2e-6)
    assert found[0, :, 3, [2, 3]].flatten().tolist() == pytest.approx(row_3_of_4, abs=2e-6)
    assert found[0, :, 3, [2, 3]].flatten().tolist() != pytest.approx(row_3_of_6, abs=1e-2)


def test_a_row_reads_two_convolutions_far_and_not_the_future() -> None:
    z, encoding = wave(1, 4, 9, 9, a=1.3), filled()
    for key, reached in ((3, {1, 2, 3, 4, 5}), (8, set())):
        other = z.clone()
        other[:, :, 7, key] += 1
        changed = (mapped(encoding, other) - mapped(encoding, z))[0, :, 7, :8].abs().amax(0) > 1e-9
        assert set(changed.nonzero().flatten().tolist()) == reached


def test_one_key_wide_it_is_the_first_version() -> None:
    wide, narrow = DAPEv2(4, width=1).double(), DAPE(4).double()
    narrow.load_state_dict(wide.state_dict())
    z = wave(1, 4, 6, 6, a=1.3)
    torch.testing.assert_close(mapped(wide, z), mapped(narrow, z))


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="width is 2"):
        DAPEv2(4, width=2)
