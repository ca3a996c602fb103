"""How far a published model reads when its rotary encoding is rescaled, without training.

    with extended(model, "yarn", factor=4):
        logits = model(ids)                      # up to four times the window

``METHODS`` are the methods of rescaling; ``measure`` compares them on one text, token by token.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoints import ARCHITECTURES, Checkpoint, Config
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive, unknown
from ..masks import Mask, Window
from ..models import Decoder
from ..nn import prepack, unprepack
from ..nn.prepacked import is_prepacked
from ..positions import PositionEncoding, encoding_name, to_rope_parameters
from ..positions.dynamic_ntk import DynamicNTK
from ..positions.llama3 import Llama3
from ..positions.longrope import LongRoPE
from ..positions.ntk_aware import need_slow_pairs
from ..positions.partial_rope import PartialRoPE
from ..positions.position_interpolation import PositionInterpolation
from ..positions.rope import RoPE
from ..positions.yarn import YaRN
from ..table import Cell, Table, signed
from ..templates import render
from .store import Store
from .watch import Row

__all__ = [
    "METHODS",
    "RESTARTED",
    "Extension",
    "extend",
    "extended",
    "losses",
    "measure",
    "need_factor",
    "need_method",
    "need_scalable",
    "trained_window",
]

KEYS = ("method", "window", "length")
"""What tells rows apart: the method, the number of the window of text, and its tokens."""
FORMERLY = {"method": "encoding", "window": "seed"}
"""The names that keys had in files of earlier versions."""
VERSION = 1
"""Changes whenever the same settings would give other numbers."""
PARTS = 8
"""The parts of the trained window that have a mean loss each; further positions have parts of the same length."""
RESTARTED = "restarted"
"""The baseline: the model unchanged, with an empty cache at the start of each window."""
ROWS = 256
"""Tokens whose logits are in memory at once."""
MANY_TURNS = 32
"""A pair of dimensions that turns so often within the window has seen all of its angles (YaRN's beta_fast)."""

Method = Callable[[Any, float, int], PositionEncoding]
"""Maps a RoPE or PartialRoPE, the factor, and the trained window in tokens, to the encoding that replaces it."""


# ---------------------------------------------------------------- the methods of rescaling


def none(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns the encoding unchanged."""
    found: PositionEncoding = rope
    return found


def linear(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Divides all frequencies by the factor (Chen et al. 2023)."""
    return PositionInterpolation(factor=factor, **_like(rope))


def ntk(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns RoPE with the base·factor^(d/(d − 2)), for d rotated dimensions: ``NTKAware`` (bloc97 2023)."""
    width = 2 * rope.pairs
    need_slow_pairs(width)
    found: PositionEncoding = type(rope)(**{**rope.arguments(), "base": rope.base * factor ** (width / (width - 2))})
    return found


def dynamic(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns the same with the factor T/window for a length T read so far; ``factor`` is not used (emozilla)."""
    return DynamicNTK(max_length=window, **_like(rope))


def yarn(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Slows slow pairs, keeps fast ones, and sharpens attention, as the authors' code does (Peng et al. 2024)."""
    return YaRN(factor=factor, max_length=window, **_like(rope))


def longrope_style(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns LongRoPE with a rule in place of the paper's search (Ding et al. 2024): a frequency for each pair.

        λ_c = factor^(1 − γ_c),   γ_c = ln(r_c)/ln(32) within 0 … 1,   r_c = window·θ_c/2π

    So λ is 1 for pairs that turn 32 times within the window, the factor for pairs that do not turn once, and between
    them follows the logarithm of the turns. It applies beyond the window; up to the window all λ are 1. Scores grow by
    LongRoPE's μ at any length. There is no search, and no fine-tuning either, which the paper does.
    """
    turns = [window * theta / (2 * math.pi) for theta in rope.frequencies(Coordinates.span(1)).tolist()]
    kept = [min(max(math.log(r) / math.log(MANY_TURNS), 0.0), 1.0) for r in turns]
    return LongRoPE(
        short_factor=[1.0] * rope.pairs,
        long_factor=[factor ** (1 - gamma) for gamma in kept],
        factor=factor,
        max_length=window,
        **_like(rope),
    )


def llama3(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Keeps pairs of above 4 turns within the window, slows those below 1, as Llama 3.1 (Grattafiori et al. 2024)."""
    return Llama3(factor=factor, max_length=window, **_like(rope))


METHODS: dict[str, Method] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope-style": longrope_style,
    "llama3": llama3,
}
"""The methods of rescaling by name; "none" is the one that all others are compared with."""
QUICK = ("dynamic", "yarn")
"""The methods of a quick measurement."""


def _like(rope: Any) -> dict[str, Any]:
    part = 2 * rope.pairs
    return {
        "head_dim": rope.head_dim,
        "base": rope.base,
        "layout": rope.layout,
        "rotary_dim": None if part == rope.head_dim else part,
    }


# ---------------------------------------------------------------- a model that reads further


@contextmanager
def extended(model: Decoder, method: str, factor: float, window: int | None = None) -> Iterator[Decoder]:
    """Rescales every plain RoPE of a model within a ``with`` block; its own encodings are put back at the end.

    An encoding is kept if all of its layers see less than the window, by masks of their own: they meet no new angles.

    Args:
        model: a causal language model that ``headway.load`` returned, or another ``Decoder`` with a head.
        method: one of ``METHODS``.
        factor: how many times the window is to be read, above 1.
        window: the tokens that the model was trained for; its config's max_position_embeddings if None.

    Yields:
        The model.

    Raises:
        HeadwayError: if the method is unknown, the factor is not above 1, the window is unknown, or the model does not
            predict the next token, has no RoPE, or is rescaled already.
    """
    new = _rescaled(model, method, factor, window)
    before = {number: model.stack.encodings[number] for number in new}
    _put(model, new)
    try:
        yield model
    finally:
        _put(model, before)


def extend(model: Decoder, method: str, factor: float, window: int | None = None) -> Decoder:
    """Rescales a model permanently, so that ``headway.save`` writes rope_parameters that transformers reads.

    Args:
        model: a causal language model that ``headway.load`` returned.
        method: as for ``extended``.
        factor: as for ``extended``.
        window: as for ``extended``.

    Returns:
        The model.

    Raises:
        HeadwayError: as ``extended`` does, and if ``headway.load`` did not make the model or its config cannot express
            the
            encoding.
    """
    checkpoint = getattr(model, "checkpoint", None)
    if not isinstance(checkpoint, Checkpoint):
        raise HeadwayError(f"the model is a {type(model).__name__} that headway.load did not make: use extended(…)")
    new = _rescaled(model, method, factor, window)
    window = trained_window(model, window)
    if method != "none":
        config = _said(model, new, round(factor * window), window)
        model.checkpoint = replace(checkpoint, config=config)  # type: ignore[assignment]
    _put(model, new)
    return model


def trained_window(model: nn.Module, window: int | None = None) -> int:
    """Returns the tokens that a model was trained for.

    Args:
        model: the model.
        window: the tokens, if known; else they are max_position_embeddings of its config.

    Raises:
        HeadwayError: if they are unknown, or fewer than 8.
    """
    checkpoint = getattr(model, "checkpoint", None)
    config = checkpoint.config if isinstance(checkpoint, Checkpoint) else {}
    found = config.get("max_position_embeddings", config.get("n_positions")) if window is None else window
    if found is None:
        raise HeadwayError("the config has no max_position_embeddings: give window, the tokens trained for")
    if found < PARTS:
        raise HeadwayError(f"window is {found}: give the tokens that the model was trained for, at least {PARTS}")
    return int(found)


def need_scalable(model: nn.Module, window: int | None = None) -> None:
    """Raises HeadwayError unless the model has a plain RoPE that can be rescaled.

    Args:
        model: the model.
        window: the tokens that it was trained for, as for ``extended``.
    """
    _ropes(model, window)


def _rescaled(model: Decoder, method: str, factor: float, window: int | None) -> dict[int, PositionEncoding]:
    """The new encodings, by their number in the stack."""
    need_method(method)
    need_factor(factor)
    ropes = _ropes(model, window)
    window = trained_window(model, window)
    return {number: METHODS[method](rope, factor, window) for number, rope in ropes.items()}


def need_method(method: str) -> None:
    """Raises HeadwayError unless the method is known.

    Args:
        method: its name.

    Raises:
        HeadwayError: if it is not one of ``METHODS``.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)


def need_factor(factor: float) -> None:
    """Raises HeadwayError unless the factor is finite and above 1.

    Args:
        factor: the factor.

    Raises:
        HeadwayError: if it is not.
    """
    if not 1 < factor < math.inf:
        raise HeadwayError(f"factor is {factor}: give a number above 1, such as 4 for four times the window")


def _ropes(model: nn.Module, window: int | None) -> dict[int, RoPE | PartialRoPE]:
    """The plain rotary encodings of layers that see as far as the window."""
    if not isinstance(model, Decoder) or model.head is None:
        what = getattr(getattr(model, "checkpoint", None), "architecture", type(model).__name__)
        raise HeadwayError(f"the model is a {what}: give a causal language model, which predicts the next token")
    held = list(model.stack.encodings)
    names = ", ".join(encoding_name(one) for one in held if isinstance(one, PositionEncoding)) or "no positions"
    scaled = [one for one in held if isinstance(one, PositionEncoding) and one.kind == "scaling"]
    if scaled:
        raise HeadwayError(f"the model is rescaled already, by {encoding_name(scaled[0])}: give one with plain RoPE")
    ropes = {number: one for number, one in enumerate(held) if isinstance(one, (RoPE, PartialRoPE))}
    if not ropes:
        raise HeadwayError(f"the model has {names}: there is nothing to rescale, give one with RoPE")
    window = trained_window(model, window)
    layers = list(zip(model.stack.encoding_of_layer, model.stack.masks, strict=True))
    far = {
        number: rope
        for number, rope in ropes.items()
        if any(of is rope and not _is_near(mask, window) for of, mask in layers)
    }
    if not far:
        raise HeadwayError(f"every layer sees fewer than {window:,} tokens back: no angle is new, nothing to rescale")
    return far


def _is_near(mask: Mask | None, window: int) -> bool:
    return isinstance(mask, Window) and mask.left is not None and mask.left < window


def _put(model: Decoder, encodings: Mapping[int, nn.Module]) -> None:
    for number, one in encodings.items():
        model.stack.encodings[number] = one


def _said(model: Decoder, new: dict[int, PositionEncoding], length: int, window: int) -> dict[str, Any]:
    """The model's config with the new encodings."""
    checkpoint: Any = model.checkpoint
    kinds = {json.dumps(to_rope_parameters(one)): one for one in new.values()}
    old = dict(checkpoint.config)
    given = old.get("rope_parameters", old.get("rope_scaling")) or {}
    nested = any(isinstance(value, dict) for value in given.values())
    (text, one), *others = kinds.items()
    gone = ("rope_scaling", "rope_theta", "partial_rotary_factor")
    config = {key: value for key, value in old.items() if key not in gone}
    # transformers reads the trained length of "dynamic" from this key
    config["max_position_embeddings"] = window if isinstance(one, DynamicNTK) else length
    config["rope_parameters"] = json.loads(text)
    family = ARCHITECTURES[checkpoint.architecture]()
    if not nested and not others:
        with torch.device("meta"):
            again: Any = family.build(Config(config), head=True)
        wanted = {**dict(enumerate(model.stack.encodings)), **new}
        if list(map(repr, again.stack.encodings)) == [repr(wanted[number]) for number in sorted(wanted)]:
            return config
    raise HeadwayError(
        f"the config of a {checkpoint.architecture} has no words for {encoding_name(one)}: use extended(…), or save "
        "another model"
    )


# ---------------------------------------------------------------- measurement


@torch.inference_mode()
def losses(
    model: Decoder,
    tokens: Tensor,
    window: int,
    *,
    restart: bool = False,
    tell: Callable[[float], None] = lambda part: None,
) -> Tensor:
    """Computes −ln p of each token but the first, given all tokens before it.

    The tokens are read in pieces of one window, with a cache; an encoding that follows the length so reads the first
    piece as in training. Logits are computed in blocks.

    Args:
        model: the model.
        tokens: int64 [n + 1].
        window: tokens in a piece.
        restart: whether each piece starts with an empty cache.
        tell: is called after each piece with the share of the tokens that is done.

    Returns:
        float32 [n].
    """
    given, wanted = tokens[:-1], tokens[1:]
    cache, found = model.new_cache(), []
    for start in range(0, len(given), window):
        if restart:
            cache = model.new_cache()
        piece, target = given[start : start + window], wanted[start : start + window]
        hidden = model.hidden(piece[None], cache=cache)[0]
        for some, its in zip(hidden.split(ROWS), target.split(ROWS), strict=True):
            found.append(F.cross_entropy(model.logits(some).float(), its, reduction="none"))
        tell((start + len(piece)) / len(given))
    return torch.cat(found)


def measure(
    model: Decoder,
    tokens: Sequence[int],
    methods: Sequence[str] | None = None,
    *,
    factor: float,
    out: str | Path,
    quick: bool = False,
    window: int | None = None,
    length: int | None = None,
    windows: int = 1,
    first: Sequence[int] = (),
    names: tuple[str, str] = ("model", "text"),
    watch: Callable[[str, float], None] = lambda method, part: None,
) -> Extension:
    """Measures perplexity by position on the same tokens for each method; each result is on disk when it is known.

    The same call resumes from the folder, and so does one with more windows or methods. On a CPU, weights are prepacked
    meanwhile.

    Args:
        model: the model, as for ``extended``.
        tokens: the tokens of a text, of which the first windows·length are read, in windows that do not overlap.
        methods: names of ``METHODS``, all if None; "none" and the baseline that restarts are always measured.
        factor: as for ``extended``.
        out: the folder of the results.
        quick: whether methods that are None are those of ``QUICK``, and a length that is None is twice the window. The
            results say so, and a folder has either quick results or others.
        window: as for ``extended``.
        length: tokens in a window of text; factor·window if None.
        windows: the most windows of text.
        first: the tokens in front of each window: the one that begins a text, for models that have one.
        names: the names of the model and of the text.
        watch: is called with the method at work and the share of all work that is done.

    Raises:
        HeadwayError: as ``extended`` does, if the text is too short, and if the folder has other measurements.
    """
    if methods is None:
        methods = QUICK if quick else tuple(METHODS)
    methods = list(dict.fromkeys(("none", *methods)))
    window = trained_window(model, window)
    for method in methods:
        _rescaled(model, method, factor, window)
    length = round((min(2.0, factor) if quick else factor) * window) if length is None else length
    held = _cut(tokens, length, windows, first)
    settings = {
        "quick": quick,
        "model": names[0],
        "weights": _fingerprint(model),
        "text": names[1],
        "tokens": hashlib.sha256(json.dumps([*first, *tokens]).encode()).hexdigest(),
        "window": window,
        "factor": factor,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "lengths": [length],
        "version": VERSION,
    }
    order = [methods[0], *((RESTARTED,) if length > window else ()), *methods[1:]]
    with Store(out, KEYS, FORMERLY) as store, _prepacked(model):
        store.agree(settings)
        jobs = [(method, number) for method in order for number in range(len(held))]
        left = [job for job in jobs if not store.has(*job)]
        for done, (method, number) in enumerate(left, len(jobs) - len(left)):

            def tell(part: float, method: str = method, done: int = done) -> None:
                watch(method, (done + part) / len(jobs))

            tell(0.0)
            store.add([_measured(model, method, factor, window, held[number], number, tell)])
        wanted = set(jobs)
        rows = [row for row in store.rows if (row["method"], row["window"]) in wanted]
    return Extension(rows, settings, order)


def _measured(
    model: Decoder,
    method: str,
    factor: float,
    window: int,
    tokens: Tensor,
    number: int,
    tell: Callable[[float], None],
) -> Row:
    """A row of the results."""
    began = time.perf_counter()
    restart = method == RESTARTED
    with nullcontext() if restart else extended(model, method, factor, window):
        found = losses(model, tokens.to(next(model.parameters()).device), window, restart=restart, tell=tell)
        scaled = [] if restart else [encoding_name(one) for one in model.stack.encodings]  # type: ignore[arg-type]
    edges = _edges(len(found), window)
    nats = [part.double().mean().item() for part in found.cpu().split([b - a for a, b in _pairs(edges)])]
    if not all(map(math.isfinite, nats)):
        raise HeadwayError(f"{method} gives losses that are not finite: give --dtype float32, or leave it out")
    return {
        "method": method,
        "window": number,
        "length": len(found),
        "encodings": scaled,
        "edges": edges,
        "nats": nats,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _cut(tokens: Sequence[int], length: int, windows: int, first: Sequence[int]) -> list[Tensor]:
    """Windows of length + 1 tokens, of which the last is only predicted."""
    need_positive(length=length, windows=windows)
    own = length + 1 - len(first)
    if len(tokens) < own:
        raise HeadwayError(
            f"the text has {len(tokens):,} tokens but a window takes {own:,}: give a longer text, or a smaller length"
        )
    count = min(windows, len(tokens) // own)
    return [torch.tensor([*first, *tokens[k * own : (k + 1) * own]], dtype=torch.int64) for k in range(count)]


def _edges(length: int, window: int) -> list[int]:
    """The edges of the parts, multiples of an eighth of the window, and the end."""
    edges = [k * window // PARTS for k in range(PARTS * length // window + 1)]
    return edges if edges[-1] == length else [*edges, length]


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(edges))


def _fingerprint(model: nn.Module) -> str:
    """A hash of the first numbers of each parameter, which identifies the model."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(parameter.detach().flatten()[:256].double().cpu().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _prepacked(model: nn.Module) -> Iterator[None]:
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if not on_cpu or is_prepacked(model) or not torch.backends.mkldnn.is_available():
        yield
        return
    prepack(model)
    try:
        yield
    finally:
        unprepack(model)


class Extension:
    """The results of ``measure``: for each method and window of text, the mean loss of each part of the positions.

    Args:
        rows: a row for each method and window.
        settings: the settings of the measurement.
        methods: the order of the methods.
    """

    def __init__(self, rows: Sequence[Row], settings: dict[str, Any], methods: Sequence[str]) -> None:
        self.rows, self.settings = list(rows), settings
        self.methods = [name for name in methods if any(row["method"] == name for row in rows)]
        self.window: int = settings["window"]
        self.length: int = settings["lengths"][0]
        self.windows = len({row["window"] for row in rows})

    @property
    def columns(self) -> list[tuple[int, int]]:
        """The ranges of positions in the table: both halves of the window, then up to each doubling of it."""
        edges = [0, self.window // 2, self.window]
        while edges[-1] < self.length:
            edges.append(2 * edges[-1])
        return _pairs([*(edge for edge in edges if edge < self.length), self.length])

    def nats(self, method: str, first: int, last: int) -> list[float]:
        """Returns a ``method``'s mean loss at the positions ``first`` … ``last`` − 1, for each window of text."""
        found = []
        for row in sorted(self.rows, key=lambda row: row["window"]):
            if row["method"] == method:
                parts = zip(_pairs(row["edges"]), row["nats"], strict=True)
                inside = [(b - a, loss) for (a, b), loss in parts if first <= a and b <= last]
                found.append(sum(n * loss for n, loss in inside) / sum(n for n, _ in inside))
        return found

    def perplexity(self, method: str, first: int, last: int) -> tuple[float, float | None]:
        """Returns exp of a ``method``'s mean loss at the positions ``first`` … ``last`` − 1, and its standard error.

        The error is that over windows of text; None if there is one.
        """
        found = self.nats(method, first, last)
        value = math.exp(mean(found))
        return value, value * stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None

    def against(self, method: str, other: str, first: int, last: int) -> str:
        """Returns the relative difference of perplexity between ``method`` and ``other``, in per cent, as text.

        It covers the positions ``first`` … ``last`` − 1. With several windows of text, the standard error over them
        follows.
        """
        apart = [a - b for a, b in zip(self.nats(method, first, last), self.nats(other, first, last), strict=True)]
        ratio = math.exp(mean(apart))
        said = signed(100 * (ratio - 1), "+.1f")
        if len(apart) > 1:
            said += f" ± {100 * ratio * stdev(apart) / math.sqrt(len(apart)):.1f}"
        return f"{said} %"

    def curve(self, method: str) -> tuple[list[float], list[float]]:
        """Returns the middle of each part of the positions, and a ``method``'s mean loss there, in nats."""
        row = next(row for row in self.rows if row["method"] == method)
        middle = [(a + b) / 2 for a, b in _pairs(row["edges"])]
        return middle, [mean(self.nats(method, a, b)) for a, b in _pairs(row["edges"])]

    def relative(self, method: str, other: str) -> tuple[list[float], list[float], list[float]]:
        """Returns the perplexity of ``method`` relative to ``other`` in each part of the positions, in per cent.

        Three lists: the middle of each part, 100·(PPL_method/PPL_other − 1), and its standard error over the windows of
        text, 0 if there is one.
        """
        row = next(row for row in self.rows if row["method"] == method)
        middle, found, errors = [], [], []
        for a, b in _pairs(row["edges"]):
            apart = [x - y for x, y in zip(self.nats(method, a, b), self.nats(other, a, b), strict=True)]
            ratio = math.exp(mean(apart))
            middle.append((a + b) / 2)
            found.append(100 * (ratio - 1))
            errors.append(100 * ratio * stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0)
        return middle, found, errors

    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""
        if self.length <= self.window:
            return [f"No position lies beyond the window of {self.window:,}."]
        beyond = {name: self.perplexity(name, self.window, self.length)[0] for name in self.methods}
        inside = self.perplexity("none", 0, self.window)[0]
        found = [
            f"The unchanged model has a perplexity of {_number(beyond['none'])} beyond the window, and "
            f"{_number(inside)} within it."
        ]
        base = beyond.get(RESTARTED)
        ours = sorted((value, name) for name, value in beyond.items() if name not in ("none", RESTARTED))
        if base is not None:
            apart = [f"{name} {self.against(name, RESTARTED, self.window, self.length)}" for _, name in ours]
            said = ", ".join(apart)
            found.append(f"The restarted model has {_number(base)} beyond the window. Compared with that: {said}.")
        if ours:
            cost = [f"{name} {self.against(name, 'none', 0, self.window)}" for _, name in ours]
            found.append(f"Change within the window, compared with the unchanged model: {', '.join(cost)}.")
        if self.windows == 1:
            found.append("There is one window of text: it is not known whether these differences hold for other texts.")
        return found

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        said = self.settings
        number = self.windows
        quick = ["A quick measurement, of few methods and a short text."] if said.get("quick") else []
        return [
            *quick,
            f"{said['model']} ({said['dtype']}), trained for {self.window:,} tokens; factor {said['factor']:g}; no "
            "training.",
            f"{said['text']}: {number} window{'s' * (number > 1)} of {self.length:,} tokens, the same for all, read in "
            f"pieces of {self.window:,} with a cache.",
            "Perplexity is exp of the mean −ln p of the next token, by how many are known.",
        ]

    def table(self) -> Table:
        """Returns the perplexity of each method by position, and its standard error; the best of a column is marked."""
        titles = ["method", *(f"{a:,}–{b - 1:,}" for a, b in self.columns), "seconds"]
        values = {name: [self.perplexity(name, a, b) for a, b in self.columns] for name in self.methods}
        best = [min(row[column][0] for row in values.values()) for column in range(len(self.columns))]
        rows: list[list[str | Cell]] = []
        for name, row in values.items():
            cells = [
                Cell(_number(value, error), value, error, best=value == best[column])
                for column, (value, error) in enumerate(row)
            ]
            seconds = sum(one["seconds"] for one in self.rows if one["method"] == name)
            rows.append([name, *cells, Cell.of(seconds, ",.0f")])
        return Table(titles, rows)

    def markdown(self) -> str:
        """Returns the report in Markdown."""
        return render("extension.md", found=self)

    def write(self, out: str | Path) -> None:
        """Writes extension.md and extension.png to the folder ``out``."""
        from ..pictures import save
        from ._extension_picture import draw

        Path(out, "extension.md").write_text(self.markdown(), encoding="utf-8")
        save(draw(self), Path(out, "extension.png"))


def _number(value: float, error: float | None = None) -> str:
    """A perplexity and its error, with two decimals below 100."""
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")
