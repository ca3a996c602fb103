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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.experiment import measure_each
from .._common.kinds import Kind, fits
from .._common.progress import ProgressListener, Share, Tell, Telling, nobody, notebook_bar
from .._common.store import Row
from ..checkpoints._extended import extend, extended, need_scalable, rescaled, trained_window
from ..errors import HeadwayError, need_positive
from ..models import Decoder
from ..nn import prepack, unprepack
from ..nn.prepacked import is_prepacked
from ..positions import encoding_name
from ..positions._rescaling import METHODS, need_factor, need_method
from ._extension_report import Extension
from ._extension_results import RESTARTED
from .store import Store

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
"""The fields that identify a row: the method, the number of the window of text, and its tokens."""
ROW: Kind = {
    "method": str,
    "window": int,
    "length": int,
    "edges": [int],
    "nats": [lambda x: fits(x, float) and 0 <= x < MOST_NATS],
    "seconds": float,
}
"""What is read of a row."""
MOST_NATS = 500.0
"""A mean loss is less; that of a uniform distribution over 10⁹ tokens is 21, and exp of 710 has no number."""
VERSION = 1
"""Changes whenever the same settings would give other numbers."""
PARTS = 8
"""The parts of the trained window that have a mean loss each; further positions have parts of the same length."""
ROWS = 256
"""Tokens whose logits are in memory at once."""
QUICK = ("dynamic", "yarn")
"""The methods of a quick measurement."""


@torch.inference_mode()
def losses(
    model: Decoder,
    tokens: Tensor,
    window: int,
    *,
    restart: bool = False,
    tell: Share = nobody,
) -> Tensor:
    """Computes −ln p of each token but the first, given all tokens before it.

    The model reads the tokens in pieces of one window, with a cache, so an encoding that follows the length reads the
    first piece as in training. Logits are computed in blocks.

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
    cache, nats = model.new_cache(), []
    for start in range(0, len(given), window):
        if restart:
            cache = model.new_cache()
        piece, target = given[start : start + window], wanted[start : start + window]
        hidden = model.hidden(piece[None], cache=cache)[0]
        for some, its in zip(hidden.split(ROWS), target.split(ROWS), strict=True):
            nats.append(F.cross_entropy(model.logits(some).float(), its, reduction="none"))
        tell((start + len(piece)) / len(given))
    return torch.cat(nats)


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
    watch: ProgressListener | None = None,
) -> Extension:
    """Measures perplexity by position on the same tokens for each method; writes each result as soon as it is known.

    The same call resumes from the folder, and so does a call with more windows or methods. On a CPU, weights are
    prepacked during the measurement.

    Args:
        model: the model, as for ``extended``.
        tokens: the tokens of a text. The first windows·length of them are read, in windows that do not overlap.
        methods: names of ``METHODS``, all if None; "none" and the baseline that restarts are always measured.
        factor: as for ``extended``.
        out: the folder of the results.
        quick: whether methods that are None are those of ``QUICK``, and a length that is None is twice the window. The
            results say so, and a folder has either quick results or others.
        window: as for ``extended``.
        length: tokens in a window of text; factor·window if None.
        windows: the most windows of text.
        first: the tokens before each window, such as the token that begins a text.
        names: the names of the model and of the text.
        watch: receives the progress; if None, a notebook shows a bar.

    Raises:
        HeadwayError: as ``extended`` does, if the text is too short, and if the folder has other measurements.
    """
    if methods is None:
        methods = QUICK if quick else tuple(METHODS)
    methods = list(dict.fromkeys(("none", *methods)))
    window = trained_window(model, window)
    for method in methods:
        rescaled(model, method, factor, window)
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
    with Store(out, KEYS, ROW) as store, _prepacked(model):
        store.agree(settings)
        jobs = {(method, number): method for method in order for number in range(len(held))}

        def row(job: tuple[str, int], tell: Tell) -> list[Row]:
            method, number = job
            return [_measured(model, method, factor, window, held[number], number, partial(tell, ""))]

        with notebook_bar() if watch is None else nullcontext(nobody) as tell:
            measure_each(jobs, row, store, watch or Telling(tell), has=store.has)
        rows = store.rows_of(jobs)
        if any(row["edges"] != _edges(length, window) or len(row["nats"]) + 1 != len(row["edges"]) for row in rows):
            raise HeadwayError(f"{store.file} has rows of other positions: delete it to measure them again")
    return Extension(rows, settings, order)


def _measured(
    model: Decoder,
    method: str,
    factor: float,
    window: int,
    tokens: Tensor,
    number: int,
    tell: Share,
) -> Row:
    """A row of the results."""
    began = time.perf_counter()
    restart = method == RESTARTED
    with nullcontext() if restart else extended(model, method, factor, window):
        loss = losses(model, tokens.to(next(model.parameters()).device), window, restart=restart, tell=tell)
        scaled = [] if restart else [encoding_name(one) for one in model.stack.encodings]  # type: ignore[arg-type]
    edges = _edges(len(loss), window)
    nats = [part.double().mean().item() for part in loss.cpu().split([b - a for a, b in pairwise(edges)])]
    if not all(map(math.isfinite, nats)):
        raise HeadwayError(f"{method} gives losses that are not finite: give --dtype float32, or leave it out")
    return {
        "method": method,
        "window": number,
        "length": len(loss),
        "encodings": scaled,
        "edges": edges,
        "nats": nats,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _cut(tokens: Sequence[int], length: int, windows: int, first: Sequence[int]) -> list[Tensor]:
    """Windows of length + 1 tokens. The last token is only predicted."""
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
