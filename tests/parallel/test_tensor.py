"""Tensor parallelism: two processes, each with some of the heads, compute what one computes."""

from __future__ import annotations

import re

import pytest
import tensor_cases
import torch
from processes import Pool

import headway as hw
from headway.heads import HeadShard
from headway.positions import ENCODINGS, PositionEncoding
from headway.positions._base import IN_ATTENTION

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-11
MIXING = {"dape", "dape-v2", "tra"}
"""Encodings that map the scores of all heads together, or by a function that has numbers of each head, as TRA's."""


def test_every_encoding(pool: Pool) -> None:
    """Output and gradients of the input and of each parameter, those of the encoding, the sink and norms included."""
    names = [name for name, kind in ENCODINGS.items() if kind.examples()[0].acts & IN_ATTENTION]
    for found in pool.run(2, tensor_cases.sweep, names):
        assert found.keys() == set(names)
        refused = {name for name, one in found.items() if isinstance(one, str)}
        assert refused == MIXING
        assert all("maps the scores of all heads" in str(found[name]) for name in refused)
        assert {name: one for name, one in found.items() if name not in refused and one > CLOSE} == {}


@pytest.mark.parametrize("case", ["layers", "models", "decoding"])
def test_is_one_process(pool: Pool, case: str) -> None:
    for found in pool.run(2, getattr(tensor_cases, case)):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", hw.parallel.METHODS)
def test_every_encoding_on_a_mesh_of_sequence_and_heads(pool: Pool, method: str) -> None:
    """Four processes; each has some of the heads of some of the tokens."""
    names = [name for name, kind in ENCODINGS.items() if kind.examples()[0].acts & IN_ATTENTION]
    names = names if method == "ring" else names[::4]
    for found in pool.run(4, tensor_cases.sweep_on_mesh, names, method):
        refused = {name: one for name, one in found.items() if isinstance(one, str)}
        assert refused.keys() >= MIXING.intersection(names)
        assert all(
            "function" in one or "maps the scores" in one or "do not divide by 2" in one for one in refused.values()
        ), refused
        assert len(refused) < len(names) / 3
        assert {name: one for name, one in found.items() if name not in refused and one > CLOSE} == {}


@pytest.mark.slow
def test_layers_on_a_mesh_of_sequence_and_heads(pool: Pool) -> None:
    for found in pool.run(4, tensor_cases.layers_on_mesh):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_what_does_not_divide_is_refused_with_what_does(pool: Pool) -> None:
    for found in pool.run(2, tensor_cases.refused):
        said = {
            "capture": "'1' computes heads [02] to [13] of 4, and capture counts those of whole layers",
            "ablate": "'1' computes heads [02] to [13] of 4, and ablate counts those of whole layers",
            "prepack": "q_proj.weight is sharded over processes",
            "heads": "num_heads is 3, which 2 processes do not divide: use 1, 3$",
            "keys": r"attention.num_kv_heads is 1, .* use 1$",
            "hidden": "hidden_dim is 9",
            "parts": "the layer has parts, which need all of its heads: leave them out",
            "across layers": "0 is a CrossLayerAttention, which needs all heads of the keys in a cache",
            "nothing": "a Linear has no MultiHeadAttention and no FeedForward",
            "twice": "parallelize it once",
            "another number": "ALiBi is built for 2 heads and head_shard has 4 in all: build it with num_heads=4",
            "mixes heads": "DAPE (ALiBi) is built for 4 heads",
        }
        assert found.keys() == said.keys()
        for name, pattern in said.items():
            assert re.search(pattern.replace("(", r"\(").replace(")", r"\)"), found[name]), (name, found[name])


def test_shards_of_heads_together_are_the_whole_call() -> None:
    """The argument alone, without processes: a bias, a sink, a mask and dropout by head."""
    q, k, v = (torch.randn(2, heads, 5, 8) for heads in (6, 3, 3))
    sink, mask = torch.randn(6), torch.rand(2, 6, 5, 5) < 0.7
    options = {"encoding": "alibi", "sink": sink, "mask": mask, "dropout": 0.3, "dropout_seed": 7}
    whole = hw.attention(q, k, v, **options)
    for first, count in ((0, 2), (2, 4)):
        kv = slice(first // 2, (first + count) // 2)
        shard = HeadShard(first, count, 6)
        part = hw.attention(q[:, first : first + count], k[:, kv], v[:, kv], head_shard=shard, **options)
        torch.testing.assert_close(part, whole[:, first : first + count])
    assert torch.isfinite(whole).all()


class Centered(PositionEncoding):
    """A user's encoding that subtracts the mean of all heads, or of each head's own numbers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_heads, self.dim = 4, dim

    def prepare(self, x: torch.Tensor, coordinates: hw.Coordinates) -> torch.Tensor:
        return x - x.mean(self.dim, keepdim=True)


def test_an_encoding_that_mixes_heads_is_refused() -> None:
    q = torch.randn(1, 4, 3, 8)
    apart = Centered(-1)
    whole = hw.attention(q, q, q, encoding=apart)
    part = hw.attention(q[:, :2], q[:, :2], q[:, :2], encoding=apart, head_shard=HeadShard(0, 2, 4))
    torch.testing.assert_close(part, whole[:, :2])
    with pytest.raises(hw.HeadwayError, match="Centered prepares a query of one head from those of other heads"):
        hw.attention(q[:, :2], q[:, :2], q[:, :2], encoding=Centered(1), head_shard=HeadShard(0, 2, 4))


def test_a_shard_that_does_not_fit_is_refused() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 3, 4)
    of_three = hw.terms.DistanceBias(hw.terms.Linear(torch.ones(3), torch.ones(3)))
    with pytest.raises(hw.HeadwayError, match="heads 3 to 4 are not among 4"):
        HeadShard(3, 2, 4)
    with pytest.raises(hw.HeadwayError, match=r"count is 0\.5: give a whole number"):
        HeadShard(0, 0.5, 4)
    with pytest.raises(hw.HeadwayError, match=r"head_shard is a tuple: give HeadShard\(first, count, total\)"):
        hw.attention(q, k, k, head_shard=(0, 2, 4))
    with pytest.raises(hw.HeadwayError, match="q has 2 heads but head_shard counts 3"):
        hw.attention(q, k, k, head_shard=HeadShard(0, 3, 6))
    with pytest.raises(hw.HeadwayError, match="cuts a group of 2 that share keys"):
        hw.attention(q, k, k, head_shard=HeadShard(1, 2, 4))
    with pytest.raises(hw.HeadwayError, match="sink has shape"):
        hw.attention(q, k, k, head_shard=HeadShard(0, 2, 4), sink=torch.zeros(2))
    with pytest.raises(hw.HeadwayError, match="DistanceBias is for 3 heads"):
        HeadShard(0, 2, 4).own_part(of_three, 1)
