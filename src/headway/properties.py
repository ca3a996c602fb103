"""Measures the four properties of a position encoding by its effect on attention, pair by pair.

``PositionEncoding.properties`` calls ``measure``.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ._common.language import said, to_say
from .attention import attention_steps
from .biases import rows_of_pairs
from .call import Arguments, make_call
from .coordinates import Coordinates
from .errors import HeadwayError
from .kernels import KERNELS
from .masks import Causal
from .positions import PositionEncoding, Properties, Property
from .positions._base import IN_ATTENTION
from .terms import RelativeValues

YES, NO, NOT_ITS_JOB, UNKNOWN = "yes", "no", "not its job", "unknown"
SAME = 0.01
"""Differences up to this share of the largest value count as none."""
ROUNDING = 1e-12
"""Numbers up to this are rounding errors and count as zero."""
FARTHEST = 20
"""Growth is measured at positions and distances 1, 2, 4 … 2²⁰."""
MOST_READ = 512
"""The largest distance measured for an encoding that reads every token in between."""


def measure(encoding: PositionEncoding) -> Properties:
    """Measures the four properties of an encoding with its present parameters, in float64.

    An encoding of embeddings is measured by the vectors that it adds; a pair of positions is measured by the length of
    the difference of their vectors. An encoding in attention is measured by how it changes a value and the score of a
    query and a key, which are the same at every position. Parameters that are all zero are first drawn from N(0, 1),
    since they would hide the encoding.

    The measurement covers 1024 positions, pairs within 32 tokens at five places in sequences of 32 to 1024 tokens, and
    single positions and distances up to 2²⁰, or fewer if a table is shorter.

    Args:
        encoding: the encoding; it is copied, and not changed.

    Returns:
        The four properties, each with a verdict and the number behind it.

    Raises:
        HeadwayError: if the encoding cannot be applied to the shortest sequence.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        probe = _Probe(encoding)
        pairs = probe.everywhere()
        spread = _spread(pairs[0])
        return Properties(
            repr(encoding),
            _distinct(probe, pairs[0], spread),
            _distance(pairs[0]),
            _alike(pairs, probe.encoding.reads_input),
            _bounded(probe),
        )


# ---------------------------------------------------------------- measurements


class Pairs:
    """The dense scores and values of one encoding between the queries and the keys of one sequence.

    If the encoding is defined only for the past, queries attend to no later keys.

    Args:
        encoding: the encoding.
        q: queries, [heads, n, head_dim].
        k: keys, [heads, m, head_dim].
        q_at: the queries' coordinates.
        k_at: the keys' coordinates.
        q_input: the layer's input for the queries, [1, n, embed_dim], for encodings that read it.
        k_input: the layer's input for the keys, [1, m, embed_dim].
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        q: Tensor,
        k: Tensor,
        q_at: Coordinates,
        k_at: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> None:
        self.encoding, self.q, self.k = encoding, q, k
        self._arguments: Arguments = {
            "encoding": encoding if encoding.acts & IN_ATTENTION else None,
            "mask": Causal() if encoding.causal_only else None,
            "q_positions": q_at,
            "k_positions": k_at,
            "q_input": q_input,
            "k_input": k_input,
        }
        call = make_call(q[None], k[None], k[None], **self._arguments)
        self._call = call.rotated(lambda x, rotation: rotation.of(x))
        self.prepared_q, self.prepared_k = self._call.q[0], self._call.k[0]

    def content(self) -> Tensor:
        """Returns s·⟨q, k⟩ of the prepared queries and keys without any terms, [heads, n, m]."""
        return self._call.scale * self.prepared_q @ self.prepared_k.transpose(-1, -2)

    def scores(self) -> Tensor:
        """Returns the scores before the mask, [heads, n, m]."""
        return attention_steps(self.q[None], self.k[None], self.k[None], **self._arguments).scaled[0]

    def values(self) -> list[Tensor]:
        """Returns the contribution of the terms to the value of each pair, [heads or 1, n, m, head_dim]."""
        q_at, k_at = self._call.q_coordinates, self._call.k_coordinates
        return [rows_of_pairs(t.rows, q_at, k_at)[0] for t in self._call.terms if isinstance(t, RelativeValues)]

    def transformed(self, v: Tensor) -> Tensor:
        """Returns T_i⁻¹·T_j·v_j of every pair, [heads, n, m, head_dim], for ``v`` [heads, m, head_dim]."""
        prepared = self.encoding.prepare_value(v[None], self._call.k_coordinates)[0]
        each_key = prepared.transpose(0, 1)[:, :, None].expand(-1, -1, self.q.shape[1], -1)
        return KERNELS["reference"].restored(self._call, each_key).permute(1, 2, 0, 3)


class _Probe:
    """A float64 copy of an encoding, and inputs that are the same at every position."""

    def __init__(self, encoding: PositionEncoding) -> None:
        self.encoding = copy.deepcopy(encoding).to("cpu", torch.float64).eval()
        for parameter in self.encoding.parameters():
            if parameter.numel() and not parameter.any():
                parameter.normal_()
        heads, head_dim = self.encoding.sizes.num_heads or 4, self.encoding.sizes.head_dim or 16
        self.q, self.k = torch.randn(2, heads, 1, head_dim, dtype=torch.float64)
        self.x = torch.randn(1, 1, self.encoding.sizes.embed_dim or heads * head_dim, dtype=torch.float64)

    @property
    def acts_in_attention(self) -> bool:
        return bool(self.encoding.acts & IN_ATTENTION)

    def span(self, n: int, start: int, length: int) -> Coordinates:
        """n consecutive tokens, each with the same position on every axis that the encoding reads."""
        return Coordinates.span(n, start=start, length=length, axes=self.encoding.axes or 1)

    def codes(self, start: int, n: int, length: int) -> Tensor:
        """The vectors that ``embed`` adds at the positions start … start + n − 1: [n, embed_dim]."""
        x = self.x.expand(1, n, -1)
        return (self.encoding.embed(x, self.span(n, start, length)) - x)[0]

    def between(self, q_at: Coordinates, k_at: Coordinates) -> Pairs:
        """The encoding between the same query and the same key at every position."""
        n, m = q_at.index.shape[1], k_at.index.shape[1]
        q, k = self.q.expand(-1, n, -1), self.k.expand(-1, m, -1)
        return Pairs(self.encoding, q, k, q_at, k_at, self.x.expand(1, n, -1), self.x.expand(1, m, -1))

    def changes_of_values(self, pairs: Pairs) -> list[Tensor]:
        """The changes that the encoding makes to a value that is the same everywhere: [heads or 1, n, m, head_dim]."""
        found = pairs.values()
        if "values" in self.encoding.acts:
            v = pairs.k
            found.append(pairs.transformed(v) - v[:, None])
        return found

    def window(self, start: int, n: int, length: int) -> list[Tensor]:
        """The effects of the encoding on each pair of n positions, by kind: [n, n, features]."""
        found = []
        if "embed" in self.encoding.acts:
            codes = self.codes(start, n, length)
            found.append((codes[:, None] - codes).norm(dim=-1, keepdim=True))
        if self.acts_in_attention:
            at = self.span(n, start, length)
            pairs = self.between(at, at)
            plain = self.encoding.default_scale(self.q.shape[-1]) * (self.q @ self.k.transpose(-1, -2))
            change = _changed(pairs.scores(), plain)
            found.append((change.tril() if self.encoding.causal_only else change).movedim(0, -1))
            found += [values.movedim(0, 2).flatten(2) for values in self.changes_of_values(pairs)]
        return found or [torch.zeros(n, n, 1, dtype=torch.float64)]

    def sizes(self, far: int) -> dict[tuple[str, str], float]:
        """The largest values at position or distance ``far``, by (what, "position" or "distance")."""
        found: dict[tuple[str, str], float] = {}
        if "embed" in self.encoding.acts:
            found[to_say("value of a code"), to_say("position")] = float(self.codes(far, 1, far + 1).abs().max())
        if not self.acts_in_attention:
            return found
        if self.encoding.reads_input:  # such an encoding depends on every token in between
            if far > MOST_READ:
                raise HeadwayError(f"an encoding that reads the input is measured up to {MOST_READ} tokens")
            whole = self.span(far + 1, 0, far + 1)
            both = [self.between(whole, whole)]
        else:
            near, away = self.span(8, 0, far + 1), self.span(1, far, far + 1)
            both = [self.between(away, near)]
            both += [] if self.encoding.causal_only else [self.between(near, away)]
        if "terms" in self.encoding.acts:
            added = [_changed(pairs.scores(), pairs.content()) for pairs in both]
            added += [values for pairs in both for values in pairs.values()]
            found[to_say("change of a score"), to_say("distance")] = max(float(part.abs().max()) for part in added)
        if "values" in self.encoding.acts:
            changed = [values for pairs in both for values in self.changes_of_values(pairs)]
            found[to_say("change of a value"), to_say("distance")] = max(float(part.abs().max()) for part in changed)
        if "prepare" in self.encoding.acts:
            turned = [(p.prepared_q, self.q) for p in both] + [(p.prepared_k, self.k) for p in both]
            longer = max(float((after.norm(dim=-1) / before.norm(dim=-1)).max()) for after, before in turned)
            found[to_say("prepared query or key, of length 1 before"), to_say("position")] = longer
        return found

    def everywhere(self) -> list[Tensor]:
        """Windows at several places in sequences of several lengths, divided by the largest value of the first."""
        n = _largest((32, 16, 8, 4, 2), lambda size: self.window(0, size, size))
        first = self.window(0, n, n)
        units = [unit if (unit := float(kind.abs().max())) > ROUNDING else math.inf for kind in first]
        found = []
        for start, length in ((0, n), (0, 2 * n), (0, 32 * n), (n, 2 * n), (31 * n, 32 * n)):
            try:
                kinds = self.window(start, n, length)
            except HeadwayError:  # the table ends before
                continue
            found.append(torch.cat([kind / unit for kind, unit in zip(kinds, units, strict=True)], dim=-1))
        return found


def _changed(scores: Tensor, plain: Tensor) -> Tensor:
    """What an encoding changes of each score; 0 for a pair that it drops, whose score is −∞ at any position."""
    return torch.where(scores == -math.inf, 0.0, scores - plain)


def _largest(sizes: tuple[int, ...], attempt: Callable[[int], object]) -> int:
    """Returns the first of decreasing sizes that works; raises the error of the last if none does."""
    for size in sizes:
        try:
            attempt(size)
        except HeadwayError:
            if size == sizes[-1]:
                raise
        else:
            break
    return size


def _diagonals(*windows: Tensor) -> Iterator[Tensor]:
    """Yields, for each distance other than 0, the effects on all pairs at that distance: [features, pairs]."""
    n = windows[0].shape[0]
    for distance in range(1 - n, n):
        if distance:
            yield torch.cat([window.diagonal(distance) for window in windows], dim=-1)


def _spread(*windows: Tensor) -> float:
    """The largest difference between two pairs at the same distance."""
    return max(float((pairs.amax(-1) - pairs.amin(-1)).max()) for pairs in _diagonals(*windows))


# ---------------------------------------------------------------- the four properties


def _distinct(probe: _Probe, window: Tensor, spread: float) -> Property:
    demand = said("each position is distinct from every other")
    if "embed" in probe.encoding.acts:
        n = _largest((1024, 512, 256, 128, 64, 32, 16, 8, 4, 2), lambda size: probe.codes(0, size, size))
        codes = probe.codes(0, n, n)
        number = float(torch.pdist(codes).min() / codes.norm(dim=-1).max())
        what = said("smallest difference between the codes of {count} positions, the longest being 1", count=n)
    elif not window.any():
        return Property(demand, NO, 0.0, said("the encoding has no effect"))
    elif spread <= SAME:
        what = said("difference between places: scores depend on distance alone")
        return Property(demand, NOT_ITS_JOB, spread, what)
    else:
        half = window.shape[0] // 2
        rows = torch.stack([window[p, p : p + half].flatten() for p in range(half)])
        number = float(torch.pdist(rows).min())
        seen = "smallest difference between the scores seen from {count} positions, the largest being 1"
        what = said(seen, count=half)
    return Property(demand, YES if number > 1e-6 else NO, number, what)


def _distance(window: Tensor) -> Property:
    demand = said("the distance between two positions is visible")
    groups = list(_diagonals(window))
    total = torch.cat(groups, dim=-1)
    within = sum(float(((pairs - pairs.mean(-1, keepdim=True)) ** 2).sum()) for pairs in groups)
    whole = float(((total - total.mean(-1, keepdim=True)) ** 2).sum())
    differ = float((total.amax(-1) - total.amin(-1)).max()) > ROUNDING
    number = 1 - within / whole if differ else 0.0
    what = said("share of the differences between pairs that their distance explains")
    return Property(demand, YES if number > 0.5 else NO, number, what)


def _alike(windows: list[Tensor], reads_input: bool) -> Property:
    demand = said("a distance has the same effect everywhere")
    if not any(window.any() for window in windows):
        return Property(demand, NOT_ITS_JOB, 0.0, said("the encoding has no effect, so nothing can differ"))
    number = _spread(*windows)
    equal = said(", for equal tokens") if reads_input else ""
    what = said(
        "largest difference at one distance over {count} places and lengths{equal}, the largest value being 1",
        count=len(windows),
        equal=equal,
    )
    return Property(demand, YES if number <= SAME else NO, number, what)


def _bounded(probe: _Probe) -> Property:
    demand = said("the values stay bounded")
    looked: list[dict[tuple[str, str], float]] = []
    for exponent in range(FARTHEST + 1):
        try:
            looked.append(probe.sizes(2**exponent))
        except HeadwayError:  # the table ends before
            break
    if not looked[0]:
        return Property(demand, YES, 0.0, said("nothing is added"))
    for what, where in looked[0]:
        sizes = [found[what, where] for found in looked[1:]]
        # The largest up to 2⁴, 2⁸ … 2²⁰. Bounded values level off; even a logarithm grows by a quarter at the end.
        tops = [max(sizes[i : i + 4]) for i in range(0, len(sizes), 4)]
        if len(sizes) == FARTHEST and all(
            later > 0 and not later < 1.15 * sooner for sooner, later in itertools.pairwise(tops)
        ):
            measured = said(
                "largest {what}, at {where} {far}; at {near} it is {then:.6g}",
                what=said(what),
                where=said(where),
                far=2**FARTHEST,
                near=2 ** (FARTHEST - 4),
                then=tops[-2],
            )
            return Property(demand, NO, tops[-1], measured)
    what, where = first = next(iter(looked[0]))
    number = max(found[first] for found in looked)
    far = 2 ** (len(looked) - 1)
    measured = said("largest {what}, up to {where} {far}", what=said(what), where=said(where), far=far)
    if len(looked) <= FARTHEST and probe.encoding.reads_input:  # too few distances to tell a logarithm from a bound
        return Property(demand, UNKNOWN, number, measured + said(", the last measured"))
    return Property(demand, YES, number, measured)
