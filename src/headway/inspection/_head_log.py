"""A log of what a model's heads do during training: a file with a line for every few steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.files import need_file_place
from .._common.kinds import Kind, fits
from .._common.lines import append_lines, read_lines, write_lines
from ..errors import HeadwayError, need_positive
from ._capture import capture
from ._evaluation import called, checked_inputs, evaluating, ids_in
from ._record import AttentionRecord, Records
from ._table import DataTable
from .scores import Induction, PreviousToken

COLUMNS = ("normalized_entropy", "first", "sink", "previous_token", "induction")
"""The numbers that are written of each head."""
LINE: Kind = {"step": int, "layers": {str: {str: [(float, None)]}}}
"""The form of a line in the file."""
ROWS, REPEATED = 4, 32
"""The random tokens of induction: rows, and tokens in each half of a row at most."""


class HeadLog:
    """Writes what each head of a model attends to, at regular steps of its training.

        log = headway.inspection.HeadLog(model, "heads.jsonl", every=500)
        for step in range(steps):
            ...                                       # a step of training
            log(step, ids)
        headway.inspection.plot_head_log("heads.jsonl", out="heads.png")

    At steps 0, ``every``, 2·``every``, … it runs the model in eval mode, without gradients. It leaves modes, gradients
    and random numbers as they were, so the training is the same, bit by bit, as without it. For each head of
    self-attention it writes means over queries:

    - ``normalized_entropy``: H / ln V, the entropy divided by that of equal weights on the V visible keys, of queries
      with V > 1: 1 for a head that looks everywhere, 0 for one that looks at one key;
    - ``first``: the weight of the first token, an attention sink;
    - ``sink``: the weight that learned sinks take;
    - ``previous_token``: the weight of the token before, as in the score of that name;
    - ``induction``: the same for the token after an earlier copy of the query's token, of random tokens that are
      repeated once; the tokens are the same at each step.

    The file has a line of JSON for each step. If a step is written again, as after resuming from an earlier checkpoint,
    it replaces the lines from that step on.

    Args:
        model: the model, as ``capture`` takes it: the one before ``torch.compile``, which shares its parameters.
        path: the file; lines are added to one that exists.
        every: the number of steps from one line to the next.
        vocab_size: the ids from which random tokens are drawn; 0 leaves induction out. Default:
            ``model.config.vocab_size``.

    Raises:
        HeadwayError: if an argument does not fit, the vocabulary is not known, or the file is damaged.

    References:
        Olsson et al. 2022, "In-context Learning and Induction Heads".
    """

    def __init__(self, model: nn.Module, path: str | Path, *, every: int = 100, vocab_size: int | None = None) -> None:
        need_positive(every=every)
        known = getattr(getattr(model, "config", None), "vocab_size", None) if vocab_size is None else vocab_size
        if not isinstance(known, int) or known < 0:
            raise HeadwayError(
                f"the vocabulary of {type(model).__name__} is {known!r}: give vocab_size, or 0 to leave induction out"
            )
        self.model, self.path, self.every, self.vocab_size = model, Path(path), every, known
        need_file_place(self.path)
        self._lines = _read(self.path)

    @property
    def steps(self) -> list[int]:
        """The steps that the file has."""
        return [line["step"] for line in self._lines]

    def __call__(self, step: int, inputs: Any) -> None:
        """Writes a line if ``step`` is a multiple of ``every``; see ``write``."""
        if step % self.every == 0:
            self.write(step, inputs)

    def write(self, step: int, inputs: Any) -> None:
        """Writes the line of a step.

        Args:
            step: the number of the step.
            inputs: the inputs of the model: ids [rows, tokens] or another tensor, a tuple of arguments, or a
                dictionary of named ones. The same inputs at each step make lines that can be compared.

        Raises:
            HeadwayError: if the file has lines of another model or cannot be written, if random tokens cannot take the
                place of ids in the inputs, and as ``capture`` does.
        """
        with evaluating(self.model):
            layers = self._measured(checked_inputs(inputs, "inputs"))
        line = {"step": int(step), "layers": layers}
        shapes = [{name: len(of[COLUMNS[0]]) for name, of in one["layers"].items()} for one in (*self._lines, line)]
        if shapes[0] != shapes[-1]:
            raise HeadwayError(f"{self.path} has lines of a model with other layers or heads: give another file")
        before = [one for one in self._lines if one["step"] < step]
        if len(before) < len(self._lines):
            write_lines(self.path, [*before, line])
        else:
            append_lines(self.path, [line])
        self._lines = [*before, line]

    def table(self) -> DataTable:
        """Returns a row for each step and head, as ``read_head_log`` does."""
        return _rows(self._lines)

    def _measured(self, inputs: Any) -> dict[str, dict[str, list[float | None]]]:
        """The columns of each layer, with a number for each head."""
        statistics = ("entropy", "visible", "first", "sink", PreviousToken())
        with capture(self.model, statistics=statistics) as seen:
            called(self.model, inputs)
        records = _of_self_attention(seen)
        columns = {layer: _columns(record) for layer, record in records.items()}
        if self.vocab_size:
            for layer, induction in self._induction(inputs, seen).items():
                columns[layer]["induction"] = _listed(induction)
        return columns

    def _induction(self, inputs: Any, seen: Records) -> dict[str, Tensor]:
        """The mean induction score of each head, by layer."""
        ids = ids_in(inputs)
        if ids is None or any(record.kind == "cross" for record in seen.records):
            raise HeadwayError(
                "induction is measured on random tokens, and the inputs are not the ids [rows, tokens] of a model that "
                "takes no other inputs: give vocab_size=0 to leave induction out"
            )
        length = min(REPEATED, ids.shape[1] // 2, self.vocab_size)
        if length < 1:
            raise HeadwayError(f"inputs have {ids.shape[1]} tokens in a row: give at least 2, or vocab_size=0")
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randperm(self.vocab_size, generator=generator)[:length] for _ in range(ROWS)]
        repeated = torch.stack(drawn).repeat(1, 2).to(ids.device, ids.dtype)
        name = next((name for name in inputs if inputs[name] is ids), "") if isinstance(inputs, Mapping) else ""
        with capture(self.model, statistics=Induction(repeated)) as seen:
            called(self.model, {name: repeated} if name else repeated)
        return {
            layer: record.statistics().summary()["induction"].mean(0)
            for layer, record in _of_self_attention(seen).items()
        }


def _of_self_attention(seen: Records) -> dict[str, AttentionRecord]:
    return {layer: record for layer in seen.layers if (record := seen.record(layer)).kind == "self"}


def _columns(record: AttentionRecord) -> dict[str, list[float | None]]:
    statistics = record.statistics()
    several = statistics.counted & (statistics.visible >= 2)  # a single key says nothing
    previous, targets = statistics.previous_token
    means = {
        "normalized_entropy": _mean(statistics.entropy / statistics.visible.clamp(min=2).log(), several),
        "first": _mean(statistics.first, statistics.counted),
        "sink": _mean(statistics.sink, statistics.counted),
        "previous_token": _mean(previous, targets > 0),
    }
    return {name: _listed(mean) for name, mean in means.items()}


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of each head over the queries that count, [heads]; NaN if there are none, or one of them is NaN."""
    return values.double().masked_fill(~counted, 0).sum((0, 2)) / counted.sum((0, 2))


def _listed(values: Tensor) -> list[float | None]:
    return [round(x, 6) if math.isfinite(x) else None for x in values.tolist()]


# ---------------------------------------------------------------- what was written


def read_head_log(path: str | Path) -> DataTable:
    """Reads the file of a ``HeadLog``.

    Args:
        path: the file. A last line that was cut off is left out.

    Returns:
        A row for each step and head: step, layer, head, and the columns that ``HeadLog`` describes. A number that is
        not known is NaN.

    Raises:
        HeadwayError: if it is missing or damaged.
    """
    if not Path(path).is_file():
        raise HeadwayError(f"{path} is missing: give a file that HeadLog wrote")
    return _rows(_read(Path(path)))


def _read(path: Path) -> list[dict[str, Any]]:
    lines = read_lines(path, "give a file that HeadLog wrote, or delete it")
    for number, line in enumerate(lines, 1):
        if not fits(line, LINE) or not all(map(_of_heads, line["layers"].values())):
            raise HeadwayError(f"{path} line {number} is not a line of HeadLog: give another file")
    return lines


def _of_heads(columns: dict[str, list[float | None]]) -> bool:
    """Whether the columns of a layer have a number for each of its heads."""
    return COLUMNS[0] in columns and len({len(values) for values in columns.values()}) == 1


def _rows(lines: list[dict[str, Any]]) -> DataTable:
    rows = DataTable()
    for line in lines:
        for layer, columns in line["layers"].items():
            for head, values in enumerate(zip(*columns.values(), strict=True)):
                named = dict(zip(columns, values, strict=True))
                numbers = {name: math.nan if (x := named.get(name)) is None else x for name in COLUMNS}
                rows.append({"step": line["step"], "layer": layer, "head": head, **numbers})
    return rows
