"""A call of attention whose tokens are divided among processes, and the facts about the whole that all of them know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..call import make_call
from ..coordinates import Coordinates, Placed
from ..kernels import Call, why_not_in_parts
from ..masks import Causal, Mask, looks_ahead
from ..positions import PositionEncoding
from ..positions._compose import Compose
from ..terms import Term
from ._group import Group
from ._scans import GroupScans, ScanBytes
from ._shards import Shards


@dataclass(frozen=True, eq=False)
class SharedCall:
    """The arguments of a call, checked. The mask and the coordinates are those of the whole sequence.

    Attributes:
        q: this rank's queries, [batch, heads, n, head_dim].
        k: this rank's keys.
        v: this rank's values.
        q_shards: which queries each rank has.
        k_shards: which keys each rank has.
        q_at: coordinates of all queries.
        k_at: coordinates of all keys; the same object if queries and keys are the same tokens.
        encoding: the encoding.
        mask: the mask of all queries, keys and heads, which hides padding.
        terms: further terms, of this rank's queries and keys.
        q_input: the layer's input for this rank's queries.
        k_input: that for its keys.
        options: scale, dropout, dropout_seed, sink, soft_cap and head_shard, as ``attention`` takes them.
        kernel: "auto", or the name of the kernel.
        wants_lse: whether the log-sum-exp is wanted.
        given_mask: the mask as it was given, under which facts about it are stored.
        seed: the seed of the encoding's random numbers in training, the same on every rank.
        layer: the name of the layer that calls; empty without one.
        number: how many contexts this process has entered, the layer's included; 0 outside of contexts.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_shards: Shards
    k_shards: Shards
    q_at: Coordinates
    k_at: Coordinates
    encoding: PositionEncoding | None = None
    mask: Mask | None = None
    terms: tuple[Term, ...] = ()
    q_input: Tensor | None = None
    k_input: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)
    kernel: str = "auto"
    wants_lse: bool = False
    given_mask: Any = None
    seed: int | None = None
    layer: str = ""
    number: int = 0

    @property
    def group(self) -> Group:
        """The processes that share the call."""
        return self.q_shards.group

    @property
    def has_all_keys(self) -> bool:
        """Whether every rank has all keys, but only its part of the queries."""
        return self.k_shards.group.size == 1 < self.group.size

    @property
    def itself(self) -> bool:
        """Whether queries and keys are the same tokens with the same coordinates."""
        return self.q_at is self.k_at and self.q_shards is self.k_shards

    def drawing(self) -> AbstractContextManager[None]:
        """Returns a context in which the encoding draws the same numbers on every rank."""
        return drawing_with(self.seed, self.q.device)

    def located(self) -> tuple[Coordinates, Coordinates]:
        """Returns where the encoding sees all queries and all keys, without tables."""
        if self.encoding is None or "locate" not in self.encoding.acts:
            return self.q_at, self.k_at
        with self.drawing():
            q_at = located_by(self.encoding, self.q_at)
        if self.q_at is self.k_at:
            return q_at, q_at
        with self.drawing():
            return q_at, located_by(self.encoding, self.k_at)

    def part_of_mask(self, queries: tuple[int, int], keys: tuple[int, int]) -> Mask | None:
        """Returns the mask of a run of queries and a run of keys.

        Args:
            queries: the slots of the queries, (start, stop).
            keys: those of the keys.
        """
        if self.mask is None:
            return None
        n, m = self.q_at.index.shape[1], self.k_at.index.shape[1]
        mask = self.mask.block(*queries, n)
        return mask if keys == (0, m) else mask.of_keys(*keys, queries[1] - queries[0], m)

    def mask_of_shard(self) -> Mask | None:
        """Returns the mask of this rank's queries and all keys."""
        if self.mask is None:
            return None
        n, runs = self.q_at.index.shape[1], self.q_shards.runs
        if len(runs) == 1:
            return self.mask.block(*runs[0], n)

        def of_runs(x: Tensor, words: tuple[str, ...]) -> Tensor:
            dim = words.index("queries")
            return torch.cat([x.narrow(dim, start, stop - start) for start, stop in runs], dim)

        # cut from the whole: the mask of a run of one query would look like one that all queries share
        return self.mask.block(0, n, n).along("queries", of_runs)

    def encoded(self) -> tuple[Call, bool]:
        """Returns the call of this rank's queries and keys, without a mask.

        What the encoding needs from earlier tokens comes from the processes that have them.

        Returns:
            The call, and whether positions depend on more than the coordinates, in which case other ranks do not know
            them.
        """
        q_at, k_at = self.located()
        q_side = self._shard(q_at, self.q_shards)
        k_side = q_side if self.itself else self._shard(k_at, self.k_shards)
        with self.drawing():
            call = make_call(
                self.q, self.k, self.v, encoding=self.encoding, terms=self.terms,
                mask=None if looks_ahead(self.mask) else Causal(), q_positions=q_side, k_positions=k_side,
                q_input=self.q_input, k_input=self.k_input, **self.options,
            )._with(mask=None)  # fmt: skip
        return call, _moves(call, q_side, k_side)

    def _shard(self, at: Coordinates, shards: Shards) -> Coordinates:
        side = at.take(shards.runs)
        assert side.shard is not None
        return side._with(shard=side.shard._with(scans=GroupScans(shards)))

    def why_not_apart(self) -> str | None:
        """Returns why ranks cannot encode their own queries and keys and exchange the results; None if they can."""
        call = self.probe()
        why = why_not_in_parts(call) or why_not_pairs(call.terms)
        if why is None and self.encoding is not None and (part := _undeclared(self.encoding)) is not None:
            return (
                f"{part} may depend on other tokens: its class does not declare across_shards = True, by which it "
                "says that it takes them through the functions that cross shards"
            )
        return why

    def probe(self) -> Call:
        """Returns the call of a few tokens with terms of the same kinds, after its rotations."""
        with torch.no_grad():
            return self._of_few(None)[0]

    def rehearsal(self) -> tuple[Call, bool, ScanBytes]:
        """Returns the call of a few tokens as ``encoded`` would make it of all, if all inputs required gradients.

        Returns:
            The call after its rotations, whether positions depend on more than the coordinates, and what its encoding
            sends.
        """
        scans = ScanBytes(self.q_shards)
        # torch.utils.checkpoint counts the tensors that are saved within it, and recomputes without this call
        with torch.enable_grad(), saved_tensors_hooks(_as_it_is, _as_it_is):
            return *self._of_few(scans), scans

    def _of_few(self, scans: ScanBytes | None) -> tuple[Call, bool]:
        """The call of a few tokens and whether it moves them; with ``scans`` they know the shards and have leaves."""

        def first(x: Tensor | None, dim: int, count: int) -> Tensor | None:
            if x is None:
                return None
            x = x.detach().narrow(dim, 0, count)
            return x.requires_grad_(scans is not None and x.is_floating_point())

        n, m = (min(2, x.shape[2]) for x in (self.q, self.k))
        count = min(n, m)
        q_at, k_at = (at.as_given().rows(0, count) for at in (self.q_at, self.k_at))
        q, k, v = (first(x, 2, count) for x in (self.q, self.k, self.v))
        options = {**self.options, "dropout_seed": None}
        sink = options.get("sink")
        if isinstance(sink, Tensor) and sink.ndim == 3:
            options["sink"] = sink[..., :count]
        draws = self.encoding is not None and self.encoding.training
        with drawing_with(0 if draws else None, self.q.device):
            assert q is not None
            assert k is not None
            assert v is not None
            if scans is not None and self.encoding is not None and "locate" in self.encoding.acts:
                q_at, k_at = (located_by(self.encoding, at) for at in (q_at, k_at))
            q_side = q_at if scans is None else scans.side(q_at)
            k_side = q_side if self.itself else k_at if scans is None else scans.side(k_at)
            call = make_call(
                q, k, v, encoding=self.encoding, mask=None if looks_ahead(self.mask) else Causal(),
                q_positions=q_side, k_positions=k_side, q_input=first(self.q_input, 1, count),
                k_input=first(self.k_input, 1, count), **options,
            )  # fmt: skip
        shard, terms = self.options.get("head_shard"), self.terms
        own = terms if shard is None else shard.own_terms(terms, self.k.shape[1], "the call")
        call = call._with(terms=(*call.terms, *own)).rotated(lambda x, rotation: rotation._of(x))
        return call, _moves(call, q_side, k_side)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _moves(call: Call, q_side: Coordinates, k_side: Coordinates) -> bool:
    """Whether a call has positions that differ from its coordinates or were computed from its inputs."""
    sides = ((call.q_coordinates, q_side), (call.k_coordinates, k_side))
    return any(now.position is not before.position or now.position.requires_grad for now, before in sides)


def why_not_pairs(terms: Sequence[Term]) -> str | None:
    """Returns the name of a term that holds a tensor of all pairs, which ranks cannot divide; None if there is none.

    Args:
        terms: the terms.
    """
    pairs = []

    def noted(x: Tensor, words: tuple[str, ...]) -> Tensor:
        if "keys" in words and x.shape[words.index("keys")] > 1:
            pairs.append(x)
        return x

    for term in terms:
        term.along("queries", noted)
        if pairs:
            return f"{type(term).__name__} holds a tensor of all pairs, which is not divided among the ranks"
    return None


@contextmanager
def drawing_with(seed: int | None, device: torch.device) -> Iterator[None]:
    """A context in which torch's generator draws from a seed; its state is restored afterwards.

    Args:
        seed: the seed; None to draw as outside of it.
        device: the device whose generator draws.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(
        [] if device.type == "cpu" else [device], device_type=device.type if device.type != "cpu" else "cuda"
    ):
        # on a CPU the generators of other devices are left alone, since they are not restored
        (torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed)(seed)
        yield


def located_by(encoding: PositionEncoding, at: Coordinates) -> Coordinates:
    """Returns where an encoding sees tokens, without its tables.

    Args:
        encoding: the encoding.
        at: where the tokens are.
    """
    if isinstance(at, Placed):
        if at.belongs_to(encoding):
            return at
        at = at.as_given()
    encoding.need_axes(at)
    return at.placed_by(encoding, position=encoding._located(at).position)


def _undeclared(encoding: PositionEncoding) -> str | None:
    """The name of a part of an encoding that may depend on other tokens and does not declare ``across_shards``."""
    for part in encoding.modules():
        if not isinstance(part, PositionEncoding) or isinstance(part, Compose):
            continue
        kind = type(part)
        moves = kind.relocate is not PositionEncoding.relocate
        own_terms = part.foreign and kind.terms is not PositionEncoding.terms
        if (moves or part.reads_input or own_terms) and not vars(kind).get("across_shards", False):
            return kind.__name__
    return None
