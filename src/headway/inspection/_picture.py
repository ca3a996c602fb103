"""Pictures of attention: a head as a map or as arrows between two lines of tokens, and all heads at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._common.fonts import drawable
from .._common.language import said
from .._common.pictures import AMOUNT, COLOURS, HIDDEN, INK, colour_bar, need_format, style
from .._common.pictures import BASELINE as GREY
from ..errors import HeadwayError
from ._numbers import index_of
from ._record import AttentionRecord
from .statistics import PooledMap, WeightMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("map", "arcs")
TOKENS = 200
"""The most tokens whose weights are drawn one by one; more are pooled."""
CELLS = 128
"""Cells on a side of the pooled map of a head."""
SMALL = 64
"""Cells on a side of a pooled map among others."""
ARCS = 80
"""The most tokens on a line of arrows."""
NUMBERED = 3
"""Arrows whose weights are written, the strongest ones."""
FAINTEST = 0.05
"""The smallest weight that has an arrow."""
LONGEST = 14
"""Columns of text that a token takes at most."""
TAKEN = 0.02
"""The least weight that sinks take of a query before they have a column."""

BLUE = COLOURS[0]


@dataclass(frozen=True)
class Options:
    """The options of ``Seen.plot`` that all pictures have."""

    tokens: Sequence[str] | None
    key_tokens: Sequence[str] | None
    example: int
    sinks: bool
    hide: Sequence[int]
    query: int | None


@dataclass(frozen=True, eq=False)
class View:
    """The weights of some heads on a grid."""

    weights: Tensor
    """[heads, R, C], NaN where a query sees no key of a cell."""
    queries: list[int]
    """The slots of the queries that are drawn."""
    keys: list[int]
    pooled: bool
    """Whether a cell holds several queries and keys."""
    sinks: bool
    """Whether the last column is that of sinks."""


def view_of(record: AttentionRecord, heads: Sequence[int], example: int, cells: int, sinks: bool) -> View:
    """The weights of some heads of a record, for one row of the batch; pooled where there are many tokens."""
    example = index_of(example, record.batch, "example", negative=True)
    if record._rows is not None:
        raise HeadwayError(f"{record.layer!r} has only some rows, and pictures show all: capture without rows=")
    if record._heads is not None and not set(heads) <= set(record._heads):
        kept = ", ".join(map(str, record._heads))
        raise HeadwayError(f"{record.layer!r} has only heads {kept}: draw one of them, or capture without heads=")
    queries = list(range(record.n))
    if record.padding is not None:
        queries = record.padding[example].nonzero()[:, 0].tolist()
    shared = record.kind == "self" and record.n == record.m
    keys = queries if shared else list(range(record.m))
    if not queries or not keys:
        raise HeadwayError(f"{record.layer!r} has no token in example {example}: choose another by example=")
    if max(len(queries), len(keys)) <= TOKENS and record._statistics is None:
        of_heads = record.weights()[example] if len(heads) > 1 else record.weights(heads[0])[[example]][0][None]
        of_heads = of_heads[list(heads)] if len(heads) > 1 else of_heads
        weights = of_heads.float()[:, queries][:, :, keys]
        return _with_sinks(weights, weights == 0, queries, keys, False, sinks)
    mass = _pooled(record, cells, queries, keys)[example][list(heads)].float()
    return _with_sinks(mass, mass == 0, queries, keys, True, sinks)


def _pooled(record: AttentionRecord, cells: int, queries: list[int], keys: list[int]) -> Tensor:
    """The mean weight of a query in each cell, [batch, heads, R, C], over all of its keys."""
    if record._weights is not None:
        weights = record.weights()[:, :, queries][:, :, :, keys].float()
        for axis in (2, 3):
            count = min(cells, weights.shape[axis])
            place = torch.arange(weights.shape[axis]) * count // weights.shape[axis]
            sizes = [count if size == axis else length for size, length in enumerate(weights.shape)]
            summed = torch.zeros(sizes).index_add_(axis, place, weights)
            weights = summed / place.bincount().view(-1, 1) if axis == 2 else summed
        return weights
    asked: Any = "pooled_map" if record._statistics is not None else PooledMap(cells, cells)
    try:
        pooled: WeightMap = record.statistics(asked).pooled_map
    except HeadwayError as error:
        raise HeadwayError(f"{error}; of statistics, plot draws 'pooled_map'") from None
    rows = (torch.tensor(queries) * pooled.mass.shape[2] // record.n).unique()
    columns = (torch.tensor(keys) * pooled.mass.shape[3] // record.m).unique()
    return pooled.mass[:, :, rows][:, :, :, columns].cpu()


def _with_sinks(
    weights: Tensor, hidden: Tensor, queries: list[int], keys: list[int], pooled: bool, sinks: bool
) -> View:
    hidden = hidden | weights.isnan()
    taken = 1 - weights.nan_to_num().sum(-1)
    taken = taken.masked_fill(hidden.all(-1), 0)
    weights = weights.masked_fill(hidden, torch.nan)
    has = sinks and bool((taken > TAKEN).any())
    if has:
        weights = torch.cat([weights, taken[..., None]], dim=-1)
    return View(weights.cpu(), queries, keys, pooled, has)


# ---------------------------------------------------------------- the pictures


def picture_of_head(record: AttentionRecord, head: int, kind: str, options: Options) -> Figure:
    """One head of a record, as a map or as arrows."""
    head = index_of(head, record.heads, "head")
    view = view_of(record, [head], options.example, CELLS, options.sinks)
    rows, columns = _labels(record, view, options)
    with style([_title(record, head), *rows, *columns]) as fonts:
        down, across = [_shown(x, fonts) for x in rows], [_shown(x, fonts) for x in columns]
        weights = _without(view, options.hide)
        if kind == "arcs":
            if view.pooled or max(len(down), len(across)) > ARCS:
                raise HeadwayError(
                    f"arcs over {max(len(view.queries), len(view.keys))} tokens cannot be read: give kind='map', or at "
                    f"most {ARCS} tokens"
                )
            return _arrows(weights[0], down, across, record, head, options.query)
        named = options.tokens is not None or options.key_tokens is not None
        return _map(weights[0], view, down, across, _title(record, head), options.hide, named=named)


def picture_of_heads(records: Sequence[AttentionRecord], model: str, options: Options) -> Figure:
    """All heads of the records: of one in a block, of several in a line each."""
    hide = options.hide
    views = [view_of(record, range(record.heads), options.example, SMALL, options.sinks) for record in records]
    if len(records) == 1:
        record, view = records[0], views[0]
        rows, columns = _labels(record, view, options)
        with style([said("head"), *rows, *columns, record.layer]) as fonts:
            down, across = [_shown(x, fonts) for x in rows], [_shown(x, fonts) for x in columns]
            shown = _without(view, hide)
            return _block(
                shown, view, record.layer or "attention", down, across, hide, named=options.tokens is not None
            )
    with style([said("head"), model, *(record.layer for record in records)]):
        return _lines(records, [_without(view, hide) for view in views], views, model, hide)


def check(kind: str, out: str | Path | None) -> None:
    """Raises HeadwayError for an unknown kind of picture or file, and if matplotlib is not installed."""
    if kind not in KINDS:
        raise HeadwayError(f"kind is {kind!r}: give {' or '.join(map(repr, KINDS))}")
    need_format(out)


# ---------------------------------------------------------------- one head


def _map(
    weights: Tensor, view: View, down: list[str], across: list[str], title: str, hide: Sequence[int], *, named: bool
) -> Figure:
    from matplotlib.figure import Figure

    rows, columns = weights.shape
    cell = min(0.3, 8.5 / max(rows, columns))
    width, height = max(2.6, columns * cell), max(2.2, rows * cell)
    figure = Figure(figsize=(width + 2.9, height + 1.9), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights.numpy(), cmap=_colours(), norm=_scale(weights), aspect="auto", interpolation="nearest")
    if view.pooled or not named:
        _numbers(axes, view, rows, columns)
    else:
        _name(axes, down, across, cell)
    if view.sinks:
        axes.axvline(columns - 1.5, color=INK, linewidth=0.8)
    axes.set_xlabel(said("key, which is attended to"), labelpad=8)
    axes.set_ylabel(said("query, which attends"), labelpad=8)
    axes.set_title(title, loc="left", fontsize=12, pad=10)
    _bar(image, axes, view, hide)
    return figure


def _arrows(
    weights: Tensor, down: list[str], across: list[str], record: AttentionRecord, head: int, query: int | None
) -> Figure:
    """Queries above, keys below, and arrows from each query to the keys that it attends to; the strongest have numbers.

    With ``query`` the arrows of the other queries are grey.
    """
    from matplotlib.figure import Figure

    told = None if query is None else index_of(query, len(down), "query")
    n = max(len(down), len(across))
    wide = max(_columns(x) for x in [*down, *across])
    upright = wide <= 5
    size = 10 if upright else 8.5
    gap = 0.11 * wide + 0.12 if upright else 0.34  # inches from token to token
    text = (0.24 if upright else 0.09 * wide + 0.06) / gap  # the height of the tokens, in such gaps
    height = max(3.0, n * 0.25)
    style: dict[str, Any] = {"ha": "center", "fontsize": size, "color": INK, "parse_math": False}
    figure = Figure(figsize=(max(6.8, min(24.0, n * gap + 1.0)), 1), layout="constrained")
    axes = figure.subplots()
    above, below = ([x * (n - 1) / max(len(line) - 1, 1) for x in range(len(line))] for line in (down, across))
    for at, token in zip(above, down, strict=True):
        axes.text(at, height + 0.15, token, va="bottom", rotation=_turn(token, upright), **style)
    for at, token in zip(below, across, strict=True):
        axes.text(at, -0.15, token, va="top", rotation=_turn(token, upright), **style)
    weights = weights.nan_to_num()
    pairs = [(i, j, float(weights[i, j])) for i, j in (weights >= FAINTEST).nonzero().tolist()]
    pairs.sort(key=lambda pair: (pair[0] == told, pair[2]))  # the strongest on top
    for i, j, weight in pairs:
        colour = BLUE if told in (None, i) else GREY
        look = {"arrowstyle": "-|>,head_width=0.18,head_length=0.4", "shrinkA": 0, "shrinkB": 0, "color": colour}
        look |= {"alpha": _alpha(weight) * (1 if colour == BLUE else 0.4), "linewidth": 0.4 + 3.2 * weight}
        axes.annotate("", xy=(below[j], 0), xytext=(above[i], height), arrowprops=look)
    paper: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
    numbered = [pair for pair in pairs if told in (None, pair[0])][-NUMBERED:]
    for place, (i, j, weight) in enumerate(reversed(numbered)):
        share = 0.15 + 0.1 * place  # near the query, since strong links often end in one key
        at = above[i] + share * (below[j] - above[i])
        axes.text(at, height * (1 - share), f"{weight:.2f}", ha="center", va="center", fontsize=8.5, bbox=paper)
    axes.set(xlim=(-0.8, n - 0.2), ylim=(-text - 0.3, height + text + 0.3))
    axes.axis("off")
    axes.set_title(_title(record, head), loc="left", fontsize=12, pad=10)
    figure.set_figheight((height + 2 * text + 0.6) * gap + 1.3)
    dropped = float(weights.sum() - sum(weight for *_, weight in pairs)) / max(len(down), 1)
    says = said("queries above, keys below: an arrow leads from each token to what it attends to")
    if told is not None:
        says += "\n" + said("in colour: the arrows of {token}", token=down[told])
    says_of_width = said(
        "width and colour: weight; below {least:g}, together {share:.0%} of a query's weight, not drawn",
        least=FAINTEST,
        share=dropped,
    )
    figure.supxlabel(f"{says}\n{says_of_width}", fontsize=8.5, color=GREY)
    return figure


# ---------------------------------------------------------------- many heads


def _block(
    weights: Tensor, view: View, title: str, down: list[str], across: list[str], hide: Sequence[int], *, named: bool
) -> Figure:
    """The heads of a layer side by side."""
    from matplotlib.figure import Figure

    heads, rows, columns = weights.shape
    least = next(x for x in range(1, heads + 1) if x * x >= heads)
    wide = next((x for x in range(least, 2 * least + 1) if heads % x == 0), least)  # without a gap if possible
    lines = -(-heads // wide)
    side = max(1.5, min(3.4, 12 / wide))
    ratio = min(max(rows / columns, 0.4), 2.5)
    figure = Figure(figsize=(side * wide + 1.9, side * ratio * lines + 1.5), layout="constrained")
    grid = figure.subplots(lines, wide, sharex=True, sharey=True, squeeze=False)
    scale = _scale(weights)
    for head, axes in enumerate(grid.flat):
        if head >= heads:
            axes.axis("off")
            continue
        image = axes.imshow(weights[head].numpy(), cmap=_colours(), norm=scale, aspect="auto", interpolation="nearest")
        axes.set_title(said("head {head}", head=head), fontsize=9, loc="left", pad=3)
        axes.tick_params(length=2)
        cell = side / max(rows, columns)
        if named and not view.pooled and cell * 72 > 6:
            _name(axes, down, across, cell)
        else:
            _numbers(axes, view, rows, columns, ticks=4)
        if view.sinks:
            axes.axvline(columns - 1.5, color=INK, linewidth=0.6)
    for head in range(max(heads - wide, 0), heads):  # the last plots of their columns
        grid.flat[head].tick_params(labelbottom=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.supxlabel(said("key, which is attended to"), fontsize=10)
    figure.supylabel(said("query, which attends"), fontsize=10)
    _bar(image, grid, view, hide)
    return figure


def _lines(
    records: Sequence[AttentionRecord],
    weights: Sequence[Tensor],
    views: Sequence[View],
    model: str,
    hide: Sequence[int],
) -> Figure:
    """A line of heads for each layer."""
    from matplotlib.figure import Figure

    most = max(record.heads for record in records)
    side = max(0.45, min(1.5, 12 / most))
    figure = Figure(figsize=(side * most + 3.2, side * len(records) + 1.5), layout="constrained")
    axes = figure.subplots()
    scale = _scale(torch.ones(1))
    for line, maps in enumerate(weights):
        for head, one in enumerate(maps):
            place = (head + 0.04, head + 0.96, line + 0.96, line + 0.04)
            image = axes.imshow(one.numpy(), extent=place, cmap=_colours(), norm=scale, interpolation="nearest")
    axes.set(xlim=(0, most), ylim=(len(records), 0), aspect="equal")
    axes.set_xticks([head + 0.5 for head in range(most)], [str(head) for head in range(most)])
    names = [record.layer or "attention" for record in records]
    axes.set_yticks([line + 0.5 for line in range(len(records))], names, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(said("head; in each map queries go down and keys across"), labelpad=8)
    axes.set_ylabel(said("layer"), labelpad=8)
    axes.set_title(model, loc="left", fontsize=12, pad=10)
    _bar(image, axes, next((view for view in views if view.pooled), views[0]), hide)
    return figure


# ---------------------------------------------------------------- parts of pictures


def _labels(record: AttentionRecord, view: View, options: Options) -> tuple[list[str], list[str]]:
    """The names of the queries and keys that are drawn: their tokens, or else the numbers of their slots."""
    tokens, key_tokens = options.tokens, options.key_tokens
    if record.kind == "self" and key_tokens is None and tokens is not None and record.n < record.m:
        key_tokens, tokens = tokens, tokens[-record.n :] if len(tokens) == record.m else tokens  # of all steps so far
    rows = _chosen(tokens, "tokens", record.n, view.queries)
    if record.kind == "self" and record.n == record.m and key_tokens is None:
        columns = list(rows)
    else:
        columns = _chosen(key_tokens, "key_tokens", record.m, view.keys)
    return rows, columns + ["sink"] * view.sinks


def _chosen(tokens: Sequence[str] | None, name: str, count: int, slots: list[int]) -> list[str]:
    if tokens is None:
        return [str(slot) for slot in slots]
    if isinstance(tokens, str) or len(tokens) not in (count, len(slots)):
        said = "a string" if isinstance(tokens, str) else f"{len(tokens)} of them"
        without = f", or {len(slots)} without padding" if len(slots) != count else ""
        raise HeadwayError(f"{name} is {said}: give a list of {count} strings{without}")
    texts = [str(token) for token in tokens]
    return texts if len(texts) == len(slots) else [texts[slot] for slot in slots]


def _title(record: AttentionRecord, head: int) -> str:
    """Names a head by the number of its layer, or by the name of its module if that has several numbers or none."""
    name = record.layer or record.module or said("attention")
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
    if len(numbers) == 1 and record.kind == "self":
        return said("layer {layer}, head {head}", layer=numbers[0], head=head)
    return said("{layer}, head {head}", layer=name, head=head)


def _shown(token: str, fonts: list[str]) -> str:
    """A token in readable form: white space becomes visible, and long tokens are cut."""
    text = "".join({"\n": "↵", "\t": "⇥", " ": "␣"}.get(x, x if x.isprintable() else f"U+{ord(x):04X}") for x in token)
    text = text[1:] if text.startswith("␣") and len(text) > 1 else text
    text = drawable(text, fonts) or "∅"
    while _columns(text) > LONGEST:
        text = text[:-2] + "…"
    return text


def _turn(text: str, upright: bool) -> int:
    """The rotation of a token; a single letter stands upright beside longer ones."""
    return 0 if upright or len(text) == 1 else 90


def _columns(text: str) -> int:
    """The width of a text: Chinese characters take two columns."""
    return sum(2 if unicodedata.east_asian_width(x) in "WF" else 1 for x in text)


def _without(view: View, hide: Sequence[int]) -> Tensor:
    """The weights without the keys to hide."""
    if not hide:
        return view.weights
    if view.pooled:
        raise HeadwayError(f"hide is given with {len(view.keys)} keys, which are pooled: hide keys of at most {TOKENS}")
    weights = view.weights.clone()
    for key in hide:
        slot = key + view.keys[-1] + 1 if key < 0 else key
        if slot not in view.keys:
            raise HeadwayError(f"hide holds {key}, not a key of the picture: give numbers up to {view.keys[-1]}")
        weights[:, :, view.keys.index(slot)] = torch.nan
    return weights


def _scale(weights: Tensor) -> Any:
    """Colours by the square root of the weight, up to the largest, so that small weights can be told apart."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, 0, max(float(weights.nan_to_num().max()), 1e-6))


def _alpha(weight: float) -> float:
    return 0.12 + 0.88 * min(weight, 1.0)


def _colours() -> Any:
    from matplotlib import colormaps

    return colormaps[AMOUNT].with_extremes(bad=HIDDEN)


def _bar(image: Any, axes: Any, view: View, hide: Sequence[int]) -> None:
    """The colours and what they mean."""
    meaning = said("weight of a query in a cell, mean of its queries" if view.pooled else "attention weight")
    left = said(", or left out: key {keys}", keys=", ".join(map(str, hide))) if hide else ""
    grey = said("(grey: exactly 0, as where the mask hides a key{left})", left=left)
    bar = colour_bar(image, axes, f"{meaning}\n{grey}", shrink=0.8, pad=0.02, aspect=24)
    bar.ax.yaxis.label.set_fontsize(8.5)
    bar.set_ticks([x for x in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1) if x <= image.norm.vmax])
    bar.ax.tick_params(labelsize=8)


def _name(axes: Axes, down: list[str], across: list[str], cell: float) -> None:
    """Writes tokens beside the rows and columns: every one, or every second, third, … where there is no room."""
    size = max(5.0, min(9.0, cell * 72 * 0.72))
    every = max(1, round(size * 1.15 / (cell * 72) + 0.35))
    turned = max(map(_columns, across)) * size * 0.62 > cell * 72 * every
    axes.set_yticks(range(0, len(down), every), down[::every], fontsize=size)
    axes.set_xticks(range(0, len(across), every), across[::every], fontsize=size)
    for label in axes.get_xticklabels():
        label.set_rotation(_turn(label.get_text(), not turned))
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    axes.tick_params(length=0 if every == 1 else 2)


def _numbers(axes: Axes, view: View, rows: int, columns: int, ticks: int = 8) -> None:
    """Writes the slots of tokens beside some rows and columns."""
    keys = columns - view.sinks
    for slots, cells, place in ((view.queries, rows, axes.set_yticks), (view.keys, keys, axes.set_xticks)):
        steps = [1, 2, 5]
        while len(slots) / steps[-1] > ticks:
            steps.append(steps[-3] * 10)
        step = next(step for step in steps if len(slots) / step <= ticks)
        at = range(0, len(slots), step)
        names = [str(slots[x]) for x in at]
        cell = [(x + 0.5) * cells / len(slots) - 0.5 for x in at]
        if view.sinks and slots is view.keys:
            cell, names = [*cell, columns - 1], [*names, "sink"]
        place(cell, names, fontsize=8)
