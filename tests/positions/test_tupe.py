"""TUPE: positions beside words, [CLS] apart."""

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import T5, Compose
from headway.positions._encodings.tupe import TUPE
from headway.properties import Pairs


def waves(*shape: int, at: float) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


def scores(encoding: TUPE, at: Coordinates, q: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    zeros = torch.zeros(encoding.num_heads, at.index.shape[1], encoding.head_dim, dtype=torch.float64)
    return Pairs(encoding, zeros if q is None else q, zeros if k is None else k, at, at).scores().detach()


def test_the_authors_numbers() -> None:
    """abs_pos_bias of guolinke/TUPE, fairseq/modules/transformer_sentence_encoder.py at 4c64ff7: 5 tokens, 2 heads.

    Their table has one row more, in front, for the scalars; biases of the projections are 0. Queries 1 to 4: the first
    key is [CLS]. The row of [CLS] is one number there (9.806 and 10.764) and 0 here: the same softmax.
    """
    expected = [
        [8.23955846, 8.10557136, 8.86477076, 9.88043275, 10.87115356],
        [8.23955846, 8.66870077, 9.50994156, 10.6356245, 11.73383113],
        [8.23955846, 9.42028268, 10.37137805, 11.64438263, 12.88651761],
        [8.23955846, 10.15229319, 11.21060765, 12.62740084, 14.01001334],
        [9.13071394, 8.99119276, 9.78373655, 10.84355747, 11.87707068],
        [9.13071394, 9.58766655, 10.45919836, 11.62489943, 12.76182424],
        [9.13071394, 10.3834074, 11.36065299, 12.66806114, 13.94339054],
        [9.13071394, 11.15821031, 12.23860076, 13.68427377, 15.0946466],
    ]
    encoding = TUPE(8, 2, 4, max_length=6).double()
    encoding.norm.weight.data, encoding.norm.bias.data = waves(8, at=0.0), waves(8, at=1.0)
    encoding.table.data = waves(7, 8, at=0.2)[1:]
    encoding.U_Q.data, encoding.U_K.data = (waves(2, 4, 8, at=at).mT.contiguous() for at in (0.4, 0.6))
    encoding.to_cls.data = torch.tensor([8.23955846, 9.13071394], dtype=torch.float64)
    found = scores(encoding, Coordinates.span(5))
    torch.testing.assert_close(
        found[:, 1:].flatten(0, 1), torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0
    )
    assert not found[:, 0].any()


def test_queries_and_keys_leave_twice_as_wide() -> None:
    encoding, at = TUPE(16, 4, 8, num_kv_heads=2), Coordinates.span(5)
    q, k = torch.randn(3, 4, 5, 8, dtype=torch.bfloat16), torch.randn(3, 2, 5, 8, dtype=torch.bfloat16)
    wide_q, wide_k = encoding.prepare_query(q, at), encoding.prepare_key(k, at)
    assert (wide_q.shape, wide_k.shape, wide_q.dtype) == ((3, 4, 5, 16), (3, 2, 5, 16), torch.bfloat16)
    assert torch.equal(wide_q[..., :8], q)
    assert not wide_q[:, :, 0, 8:].any()
    assert encoding.default_scale(8) == 16**-0.5


def test_grouped_keys_attend() -> None:
    encoding = TUPE(16, 4, 8, num_kv_heads=2).double()
    torch.nn.init.normal_(encoding.U_Q)
    torch.nn.init.normal_(encoding.U_K)
    q, k = torch.randn(1, 4, 5, 8, dtype=torch.float64), torch.randn(1, 2, 5, 8, dtype=torch.float64)
    whole = TUPE(16, 4, 8).double()
    whole.load_state_dict(encoding.state_dict() | {"U_K": encoding.U_K.repeat_interleave(2, 0)})
    repeated = k.repeat_interleave(2, 1)
    found, expected = hw.attention(q, k, k, encoding=encoding), hw.attention(q, repeated, repeated, encoding=whole)
    torch.testing.assert_close(found, expected)


def test_each_document_has_its_cls() -> None:
    encoding = TUPE(8, 2, 4, max_length=6).double()
    torch.nn.init.normal_(encoding.to_cls)
    packed = scores(encoding, Coordinates.packed([3, 2]))
    torch.testing.assert_close(packed[:, 3:, 3:], scores(encoding, Coordinates.span(2)))


def test_with_t5_it_is_tupe_r() -> None:
    encoding, buckets = TUPE(8, 2, 4, max_length=9, untie_cls=False).double(), T5(2).double()
    at = Coordinates.span(9)
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    zeros = torch.zeros(2, 9, 4, dtype=torch.float64)
    both = scores(encoding, at, q[0], k[0]) + Pairs(buckets, zeros, zeros, at, at).scores()
    found = hw.attention(q, k, v, encoding=Compose(encoding, buckets), scale=8**-0.5)
    torch.testing.assert_close(found, (both.softmax(-1) @ v[0])[None])


@pytest.mark.parametrize("positions", [[0, 6], [-1, 2]])
def test_positions_beyond_the_table_raise(positions: list[int]) -> None:
    with pytest.raises(HeadwayError, match="but the table from 0 to 5: build it with max_length="):
        TUPE(8, 2, 4, max_length=6).place(Coordinates.of(torch.tensor(positions), 2))


@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (1, 2, 5, 8)])
def test_queries_of_another_size_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(HeadwayError, match=f"x has {shape[1]} heads of {shape[3]} but the encoding 2 of 4"):
        TUPE(8, 2, 4).prepare_query(torch.zeros(shape), Coordinates.span(5))


@pytest.mark.parametrize("name", ["embed_dim", "num_heads", "head_dim", "max_length", "num_kv_heads"])
def test_sizes_below_one_raise(name: str) -> None:
    sizes = {"embed_dim": 8, "num_heads": 2, "head_dim": 4, name: 0}
    with pytest.raises(HeadwayError, match=f"{name} is 0: give at least 1"):
        TUPE(**sizes)
