"""A picture of one encoding: its effect by distance, on all pairs of positions, and its wavelengths."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._common.pictures import BASELINE, COLOURS, DASHES, INK, SIGNED, colour_bar, style
from ..attention import attention
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Causal
from ..positions import PositionEncoding
from ..properties import Pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACH = 128
"""The largest distance drawn to each side."""
SHOWN = 64
"""Positions in a map of all pairs."""
HEADS = 4
"""The most heads that are drawn."""
FLAT = 1e-3
"""Scores that differ by less between all pairs are the same."""
FARTHEST = 20
"""A factor of scores that depends only on the query is drawn at positions 1, 2, 4 … 2²⁰."""
NOTHING = -999.0
"""Scores below stand for −∞."""
ACROSS = 3
"""The most panels side by side."""
SCORE = "score (1 by content alone)"


def portrait(encoding: PositionEncoding, name: str, untrained: bool = False) -> Figure:
    """Draws an encoding with its present parameters, for a query and a key that are the same at every position.

    The figure shows everything on which the encoding has an effect: scores by distance and for all pairs, what is added
    to embeddings, wavelengths, or positions. If it is ``untrained``, parameters that hide it, such as a table of zeros,
    are first drawn at random, with a fixed seed; the picture says so.

    Raises:
        HeadwayError: if the encoding does nothing.
    """
    from matplotlib.figure import Figure

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sitter = _Sitter(encoding)
        notes = sitter.settle(untrained)
        panels = sitter.panels()
        if not panels:
            raise HeadwayError(f"{name} does nothing, so there is nothing to draw")
        with style([name]):
            across = min(len(panels), ACROSS)
            down = -(-len(panels) // across)
            figure = Figure(figsize=(max(5.5, 4.3 * across + 0.4), 3.7 * down + 0.6), layout="constrained")
            figure.suptitle(name, x=0.01, ha="left", fontsize=13, fontweight="bold")
            all_axes = [*figure.subplots(down, across, squeeze=False).flat]
            for axes, panel in zip(all_axes, panels, strict=False):
                panel(axes)
                axes.tick_params(length=3)
            for axes in all_axes[len(panels) :]:
                axes.remove()
            if notes:
                said = "\n".join(line for note in notes for line in wrap(note, max(80, 66 * across)))
                figure.supxlabel(said, x=0.01, ha="left", fontsize=9, color=BASELINE)
    return figure


class _Sitter:
    """A float64 copy of an encoding, with inputs that are the same at every position, scaled so that s·⟨q, k⟩ is 1."""

    def __init__(self, encoding: PositionEncoding) -> None:
        self.encoding = copy.deepcopy(encoding).to("cpu", torch.float64).eval()
        self.heads, self.head_dim = encoding.sizes.num_heads or 1, encoding.sizes.head_dim or 64
        self.width = encoding.sizes.embed_dim or self.heads * self.head_dim
        self.limit = encoding.table_end or 1 << 20
        self.axes = self.encoding.axes or 1

        self.content = torch.ones(self.head_dim, dtype=torch.float64)

    def settle(self, untrained: bool) -> list[str]:
        """Draws random numbers for the parameters, if the encoding is untrained, and for the content of q and k."""
        notes, seed = [], "at random, as it is untrained (seed 0)"
        drawable = {n: p for n, p in self.encoding.named_parameters() if p.is_floating_point() and p.numel()}
        equal = [name for name, p in drawable.items() if p.numel() > 1 and bool((p == p.flatten()[0]).all())]
        if untrained and equal and self.hidden():
            for name in equal:
                drawable[name].add_(torch.randn_like(drawable[name]))
            more = f" and {len(equal) - 4} more" if len(equal) > 4 else ""
            notes.append(f"Drawn {seed}: {', '.join(equal[:4])}{more}, N(0, 1) around the initial value.")
        if self.flat():
            self.content = torch.randn(self.head_dim, dtype=torch.float64)
            if self.flat():
                self.content = torch.ones_like(self.content)
            else:
                notes.append("Queries and keys are one random vector, since it does not act on a vector of ones.")
        if untrained and drawable and (self.flat() or (self.encoding.reads_input and self.encoding.acts == {"locate"})):
            for parameter in drawable.values():
                parameter.add_(torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5)
            notes = [f"All parameters drawn {seed}."]
        return notes

    def hidden(self) -> bool:
        """Whether scores and embeddings show nothing of the encoding."""
        codes = "embed" in self.encoding.acts and bool(self.code(min(SHOWN, self.limit)).std(0).max() > FLAT)
        return not codes and (self.flat() or "embed" in self.encoding.acts)

    def flat(self) -> bool:
        """Whether scores are the same for all keys of a query."""
        if not self.encoding.acts & {"prepare", "terms"}:
            return False
        scores = self.scores(self.along(min(SHOWN, self.limit)))
        spread = scores.nan_to_num(-math.inf).amax(-1) - scores.nan_to_num(math.inf).amin(-1)
        return bool(spread.max() < FLAT)

    def panels(self) -> list[Any]:
        acts = self.encoding.acts
        if acts == {"locate"}:
            counts = type(self.encoding).relocate is not PositionEncoding.relocate
            return [self.places_in_the_layer if counts else self.places]
        panels: list[Any] = []
        if acts & {"prepare", "terms"}:
            if self.flat() and self.scaled():
                panels.append(self.by_query)
            elif self.flat() and self.sums().min() < 1 - FLAT:
                panels.append(self.share_of_keys)
            else:
                panels += [self.by_distance, self.grid if self.axes == 2 else self.map_of_scores]
        if "values" in acts:
            panels.append(self.values_by_distance)
        if "embed" in acts:
            panels.append(self.codes)
            if self.cosines()[1:, 1:].std() > FLAT:
                panels.append(self.map_of_codes)
        if acts & {"prepare"} and self.frequencies() is not None:
            panels.append(self.wavelengths)
        return panels

    # ------------------------------------------------------------ scores

    def scores(self, at: Coordinates) -> Tensor:
        """Scores [heads, n, n], NaN for pairs that the mask of the encoding hides."""
        n = at.index.shape[1]
        scores = self.pairs(at).scores().expand(self.heads, n, n)
        scores = scores.masked_fill(scores < NOTHING, math.nan)
        if not self.encoding.causal_only:
            return scores
        return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), math.nan)

    def pairs(self, at: Coordinates) -> Pairs:
        """The encoding between queries and keys that are all the same."""
        n = at.index.shape[1]
        scale = self.encoding.default_scale(self.head_dim)
        like = (self.content / (self.content.norm() * math.sqrt(scale))).expand(self.heads, n, -1)
        x = torch.randn(1, n, self.width, dtype=torch.float64)
        return Pairs(self.encoding, like, like, at, at, x, x)

    def along(self, n: int, axis: int | None = None) -> Coordinates:
        """n tokens along one axis, with the others at 0, or along all axes."""
        at = Coordinates.span(n, axes=self.axes)
        return at if axis is None else replace(at, position=at.position * (torch.arange(self.axes) == axis))

    def queries(self) -> tuple[Tensor, Tensor]:
        """Positions 1, 2, 4 …, and the score of a query there with itself, [heads, positions]."""
        places = 2 ** torch.arange(FARTHEST + 1)
        places = places[places < self.limit]
        at = Coordinates.of(places[None, :, None].expand(-1, -1, self.axes), len(places))
        return places, self.scores(at).diagonal(dim1=1, dim2=2)

    def scaled(self) -> bool:
        scores = self.queries()[1]
        return bool((scores - 1).abs().max() > FLAT)

    def by_query(self, axes: Axes) -> None:
        places, scores = self.queries()
        self.lines_of_heads(axes, places, scores)
        axes.set_xscale("log", base=2)
        _say(axes, "Score by the query's position", "query position", SCORE)

    def sums(self) -> Tensor:
        """The sum of a query's weights by the number of keys, [heads, keys]; it is 1 without a sink."""
        n = min(REACH, self.limit)
        at = self.along(n)
        pairs = self.pairs(at)
        ones = torch.ones(1, self.heads, n, self.head_dim, dtype=torch.float64)
        x = torch.randn(1, n, self.width, dtype=torch.float64) if self.encoding.reads_input else None
        given: Any = {"q_positions": at, "k_positions": at, "q_input": x, "k_input": x}
        return attention(pairs.q[None], pairs.k[None], ones, encoding=self.encoding, mask=Causal(), **given)[0, ..., 0]

    def share_of_keys(self, axes: Axes) -> None:
        sums = self.sums()
        self.lines_of_heads(axes, torch.arange(1, sums.shape[1] + 1), sums)
        axes.set(ylim=(0, 1.02))
        _say(axes, "Sum of a query's weights, scores the same", "keys that it sees", "sum of the weights")

    def lines_of_heads(self, axes: Axes, x: Tensor, rows: Tensor, labels: Sequence[str] = ()) -> None:
        """A line for each row, or one line if all rows are the same."""
        every, rows = len(rows), rows[:HEADS]
        same = not labels and bool((rows.nan_to_num() - rows[:1].nan_to_num()).abs().max() < 1e-9)
        for number, row in enumerate(rows[:1] if same else rows):
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
            label = labels[number] if labels else f"head {number}"
            axes.plot(x.numpy(), row.numpy(), **look, linewidth=1.5, label=label)
        if not same:
            axes.legend(
                fontsize=8, ncols=len(rows), handlelength=2, loc="upper center", bbox_to_anchor=(0.5, -0.17),
                columnspacing=1.2, title=f"the first {HEADS} of {every} heads" if every > HEADS else None,
                title_fontsize=8,
            )  # fmt: skip
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.grid(axis="y", linewidth=0.6)

    def by_distance(self, axes: Axes) -> None:
        reach = min(REACH, (self.limit - 1) // 2)
        query = 2 * reach if self.encoding.causal_only else reach
        distances = torch.arange(2 * reach + 1) - query
        if self.axes > 1:
            labels = [f"axis {axis + 1}" for axis in range(self.axes)]
            along = [self.scores(self.along(2 * reach + 1, axis))[:, query].mean(0) for axis in range(self.axes)]
            self.lines_of_heads(axes, distances, torch.stack(along), labels)
        else:
            self.lines_of_heads(axes, distances, self.scores(self.along(2 * reach + 1))[:, query])
        _say(axes, "Score by distance, content the same", "key position − query position", SCORE)

    def values_by_distance(self, axes: Axes) -> None:
        reach = min(SHOWN, (self.limit - 1) // 2)
        query = 2 * reach if self.encoding.causal_only else reach
        at = self.along(2 * reach + 1)
        v = torch.ones(self.heads, 2 * reach + 1, self.head_dim, dtype=torch.float64)
        seen = self.pairs(at).transformed(v)[0, query].T
        top = float(seen.abs().max())
        image = axes.imshow(
            seen.numpy(), cmap=SIGNED, vmin=-top, vmax=top, aspect="auto", interpolation="nearest",
            extent=(-query - 0.5, 2 * reach - query + 0.5, self.head_dim - 0.5, -0.5),
        )  # fmt: skip
        colour_bar(image, axes, "transformed value")
        _say(axes, "A value of ones, by distance", "key position − query position", "dimension")

    def map_of_scores(self, axes: Axes) -> None:
        n = min(SHOWN, self.limit)
        scores = self.scores(self.along(n)).mean(0)
        image = axes.imshow(scores.numpy(), cmap="viridis", interpolation="nearest")
        colour_bar(image, axes, "score")
        _say(axes, "Score of every pair, mean of the heads", "key position", "query position")

    def grid(self, axes: Axes) -> None:
        side = 15
        rows = torch.arange(side)
        position = torch.stack(torch.meshgrid(rows, rows, indexing="ij"), dim=-1).reshape(1, -1, 2)
        at = replace(Coordinates.span(side * side), position=position)
        middle = side * side // 2
        scores = self.scores(at)[:, middle].mean(0).view(side, side)
        image = axes.imshow(scores.numpy(), cmap="viridis", extent=(-7.5, 7.5, 7.5, -7.5), interpolation="nearest")
        colour_bar(image, axes, "score")
        _say(axes, "Score around a query, mean of the heads", "key − query, second axis", "key − query, first axis")

    # ------------------------------------------------------------ embeddings

    def code(self, n: int) -> Tensor:
        x = torch.zeros(1, n, self.width, dtype=torch.float64)
        return self.encoding.embed(x, self.along(n))[0]

    def codes(self, axes: Axes) -> None:
        code = self.code(min(REACH, self.limit))
        top = float(code.abs().max()) or 1.0
        image = axes.imshow(code.numpy(), cmap=SIGNED, vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        colour_bar(image, axes, "added number")
        _say(axes, "What is added to the embeddings", "dimension", "position")

    def cosines(self) -> Tensor:
        code = self.code(min(SHOWN, self.limit))
        length = code.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return (code / length) @ (code / length).T

    def map_of_codes(self, axes: Axes) -> None:
        image = axes.imshow(self.cosines().numpy(), cmap="viridis", vmax=1, interpolation="nearest")
        colour_bar(image, axes, "cosine")
        _say(axes, "Cosine of the codes of two positions", "position", "position")

    # ------------------------------------------------------------ frequencies and positions

    def frequencies(self) -> Tensor | None:
        """The angle per step of each pair of dimensions, from the phases of the first two positions."""
        phases = getattr(self.encoding, "phases", None)
        if phases is None or self.axes > 1 or self.encoding.reads_input:
            return None
        try:
            first, second = (phases(replace(self.along(2), length=2))[0, ..., t, :] for t in (0, 1))
        except (HeadwayError, TypeError, NotImplementedError):
            return None
        angles: Tensor = (second - first).abs()
        return angles if angles.ndim == 1 else angles[0]

    def wavelengths(self, axes: Axes) -> None:
        rates = self.frequencies()
        assert rates is not None
        turning = rates > 0
        pairs = torch.arange(len(rates))
        axes.semilogy(
            pairs[turning].numpy(), (2 * math.pi / rates[turning]).numpy(), "o", color=COLOURS[0], markersize=3
        )
        axes.grid(axis="y", linewidth=0.6)
        axes.set_xlim(-0.02 * len(rates), 1.02 * len(rates))
        still = int((~turning).sum())
        note = f"; {still} pairs do not turn" if still else ""
        _say(axes, f"Wavelengths{note}", "pair of dimensions", "tokens per turn")

    def places(self, axes: Axes) -> None:
        n = min(SHOWN, self.limit)
        for number, training in enumerate((True, True, True, False)):
            located = self.encoding.train(training).locate(self.along(n)).axis()[0]
            label = "evaluation" if not training else "training, three draws" if not number else None
            colour = INK if not training else COLOURS[number]
            axes.plot(range(n), located.numpy(), color=colour, linestyle=DASHES[number], linewidth=1.4, label=label)
        axes.legend(fontsize=8)
        _say(axes, "Positions that tokens get", "position given", "position read")

    def places_in_the_layer(self, axes: Axes) -> None:
        """Positions that depend on the layer's input, or on the keys that a cache still has."""
        n = min(SHOWN, self.limit)
        at, title = self.along(n), "Positions that tokens get, random content"
        if not self.encoding.reads_input:
            at, title = at.rows(0, 4).append(at.rows(n - 16, n)), f"Positions of keys, 4 … {n - 17} evicted"
        given = at.axis()[0]
        x = torch.randn(1, len(given), self.width, dtype=torch.float64)
        located = self.encoding.relocate(at, at, x, x)[1].axis()[0].expand(len(given))
        axes.plot(given.numpy(), located.numpy(), "o", color=COLOURS[0], markersize=3)
        axes.grid(axis="y", linewidth=0.6)
        _say(axes, title, "position given", "position read")


def _say(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10.5, pad=8)
    axes.set(xlabel=x, ylabel=y)
