"""The effect of each head on a model's outputs: each head is ablated by itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.kinds import Kind, fits
from .._common.lines import append_lines, read_lines
from ..errors import HeadwayError
from ._ablate import REPLACEMENTS, ablate
from ._bootstrap import interval
from ._capture import capture
from ._evaluation import called, checked_inputs, evaluating, ids_in
from ._record import Records
from ._table import DataTable
from .scores import HeadScores

Effect = Callable[[Any, Any, Any], Tensor]
"""Maps the outputs of the whole model, those without a head, and the inputs to the change."""


class HeadEffects(HeadScores):
    """The effects of removing each head, for each text.

    Read it by layer, like other scores: ``effects["encoder.layers.0.attention"]`` is [texts, heads], the mean of each
    text. Means over all texts are means over everything that counts, so long texts weigh more.

    Args:
        name: the name of the effect.
        totals: the sums of the changes of each text by layer, [texts, heads].
        counts: how many tokens they sum, likewise.
        replacement: the values that replaced the heads' outputs.
    """

    def __init__(self, name: str, totals: dict[str, Tensor], counts: dict[str, Tensor], replacement: str) -> None:
        super().__init__(name, {layer: total / counts[layer] for layer, total in totals.items()})
        self.replacement = replacement
        self._totals, self._counts = totals, counts

    def mean(self) -> Tensor:
        """Returns the means over everything that counts, [layers, heads].

        Raises:
            HeadwayError: if the layers have different numbers of heads.
        """
        super().mean()
        return torch.stack([self._totals[layer].sum(0) / self._counts[layer].sum(0) for layer in self])

    def table(self, level: float = 0.95) -> DataTable:
        """Returns one row for each head: layer, head, the mean under the name of the effect, and its interval.

        "low" and "high" bound the mean in samples of texts drawn with replacement (the bootstrap, 1,000 samples); they
        are NaN with a single text.

        Args:
            level: the share of the samples between the bounds.

        Raises:
            HeadwayError: if level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise HeadwayError(f"level is {level:g}: give a share between 0 and 1, such as 0.95")
        rows = DataTable()
        for layer in self:
            totals, counts = self._totals[layer], self._counts[layer]
            means, (lows, highs) = totals.sum(0) / counts.sum(0), interval(totals, counts, level=level)
            columns = zip(means.tolist(), lows.tolist(), highs.tolist(), strict=True)
            for head, (mean, low, high) in enumerate(columns):
                rows.append({"layer": layer, "head": head, self.name: mean, "low": low, "high": high})
        return rows

    def __repr__(self) -> str:
        return super().__repr__().replace("HeadScores", "HeadEffects")


def head_effects(
    model: nn.Module,
    batches: Iterable[Any],
    effect: str | Effect,
    *,
    replacement: str = "zero",
    layers: Collection[int | str] | None = None,
    file: str | Path | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """Ablates one head at a time, and measures how a model's outputs change.

        effects = head_effects(encoder, [{"ids": ids, "mask": padding}], "cosine")
        effects = head_effects(decoder, ids.split(4), "cross_entropy", file="effects.jsonl")
        effects.table()          # layer, head, cross_entropy, low, high
        effects.top(5)

    The model runs once unchanged, and once for each head, in eval mode. Each row of a batch is a text. The effect is

    - "cosine": 1 − cos(yᵢ, y′ᵢ) of each token's output y and the output y′ without the head, for encoders;
    - "cross_entropy": −ln p′(xᵢ₊₁) + ln p(xᵢ₊₁) in nats, of each token that has one after it, for causal language
      models: above 0, the head helps;
    - or a function of both outputs and the inputs, which returns the change of each text, [rows], or of each token,
      [rows, tokens], with NaN for what does not count.

    Known padding does not count (``AttentionRecord.padding``).

    Args:
        model: the model, as ``capture`` takes it.
        batches: the inputs of the model's calls, one for each call: ids [rows, tokens] or another tensor, a tuple of
            arguments, or a dictionary of named ones.
        effect: "cosine", "cross_entropy", or a function ``effect(whole, without, batch)``.
        replacement: the values that replace a head's outputs: "zero", or the "mean" over the tokens of the batch.
        layers: the layers whose heads are ablated, by name or number. Default: all. A module that attends several times
            in one call is ablated each time.
        file: a file of JSON lines. Each measurement is added to it, and the same call resumes from it. A function is
            recognized by its code, not by values that it holds.
        watch: a function that is called after each pass with the number of passes done, and of all passes.

    Returns:
        The effects. Numbers are float64.

    Raises:
        HeadwayError: before any pass, if an argument does not fit, or the file has other measurements. In a pass, if
            outputs do not fit the effect, and as ``capture`` and ``ablate`` do.

    References:
        Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.
    """
    listed = _checked(batches, effect, replacement)
    name = effect if isinstance(effect, str) else getattr(effect, "__name__", type(effect).__name__)
    path = None if file is None else Path(file)
    of = None if path is None else _digest(model, listed, effect)
    measured = _Measured(path, {"effect": name, "replacement": replacement, "of": of})
    heads: dict[str, int] = {}
    with evaluating(model):
        for number, batch in enumerate(listed):
            whole = _Whole(model, batch, effect, layers)
            heads = heads or whole.heads
            if whole.heads != heads:
                raise HeadwayError(
                    f"batch {number} has other layers of attention than batch 0: measure them separately"
                )
            places = [(layer, head) for layer, count in heads.items() for head in range(count)]
            for done, (layer, head) in enumerate(places, 1 + number * len(places)):
                if (number, layer, head) not in measured:
                    with ablate(model, {(layer, head): replacement}):
                        without = called(model, batch)
                    measured.add((number, layer, head), *whole.change(without))
                if watch is not None:
                    watch(done, len(places) * len(listed))
    layers_of = {layer: measured.of_layer(layer, count, len(listed)) for layer, count in heads.items()}
    totals, counts = ({layer: both[i] for layer, both in layers_of.items()} for i in (0, 1))
    return HeadEffects(name, totals, counts, replacement)


def _checked(batches: Iterable[Any], effect: str | Effect, replacement: str) -> list[Any]:
    """The batches as a list. Raises HeadwayError for arguments that ``head_effects`` does not take."""
    if replacement not in REPLACEMENTS:
        raise HeadwayError(f"replacement is {replacement!r}: give {' or '.join(map(repr, REPLACEMENTS))}")
    if not callable(effect) and effect not in KNOWN:
        raise HeadwayError(
            f"effect is {effect!r}: give {', '.join(map(repr, KNOWN))} or a function of both outputs and the batch"
        )
    if isinstance(batches, (Tensor, dict)):
        raise HeadwayError(f"batches is one {type(batches).__name__}: give a list of batches, such as [ids]")
    listed = [checked_inputs(batch, f"batch {number}") for number, batch in enumerate(batches)]
    if not listed:
        raise HeadwayError("batches is empty: give at least one, such as [ids]")
    return listed


class _Whole:
    """A batch with the output of the whole model, its captured attention, and the measure of its output."""

    def __init__(
        self, model: nn.Module, batch: Any, effect: str | Effect, layers: Collection[int | str] | None
    ) -> None:
        self.batch, self.effect = batch, effect
        with capture(model, statistics="next") as seen:
            self.output = called(model, batch)
        self.seen = seen
        listed = [layers] if isinstance(layers, (str, int)) else seen.layers if layers is None else layers
        wanted = {seen.record(layer).module for layer in listed}
        records = map(seen.record, seen.layers)
        self.heads = {record.module: record.heads for record in records if record.module in wanted}
        """The number of heads of each layer that is wanted, in the order of the layers."""
        if effect == "cross_entropy":
            _refuse_known_answers(seen)
        if isinstance(effect, str):
            self.measured = KNOWN[effect].of(self, self.output, batch)

    def change(self, without: Any) -> tuple[Tensor, Tensor]:
        """The change of an output, summed for each text, and the number of summands."""
        if isinstance(self.effect, str):
            known = KNOWN[self.effect]
            return _summed(known.change(self.measured, known.of(self, without, self.batch)), self)
        return _summed(self.effect(self.output, without, self.batch), self)

    def real(self, shape: torch.Size) -> Tensor | None:
        """The tokens of an output [rows, tokens, …] that are not padding; None if that is not known."""
        known = [one.padding for one in self.seen.records if one.padding is not None]
        return next((real for real in reversed(known) if real.shape == shape[:2]), None)


# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class _Known:
    """A named effect: a measure of each output, and the change from one measure to the other."""

    of: Callable[[_Whole, Any, Any], Tensor]
    change: Callable[[Tensor, Tensor], Tensor]


def _directions(whole: _Whole, output: Any, batch: Any) -> Tensor:
    """The outputs of tokens, normalized to length 1; zero vectors stay zero."""
    units = F.normalize(_tensor(output, "last_hidden_state", "cosine").double(), dim=-1)
    _need_numbers(units.sum(-1), whole.real(units.shape), "cosine")
    return units


def _apart(before: Tensor, after: Tensor) -> Tensor:
    """1 − cos without cancellation: ½·|a − b|², and 1 if one of the two is zero."""
    lengths = before.square().sum(-1) - after.square().sum(-1)
    return ((before - after).square().sum(-1) + lengths.abs()) / 2


def _surprise(whole: _Whole, output: Any, batch: Any) -> Tensor:
    """−ln p of each token that has one before it, [rows, tokens − 1]."""
    logits, ids = _tensor(output, "logits", "cross_entropy"), ids_in(batch)
    if ids is None or ids.shape != logits.shape[:2]:
        raise HeadwayError(
            "'cross_entropy' needs the model's ids [rows, tokens]: give them as the batch, or a function"
        )
    pairs = zip(logits, ids.to(logits.device), strict=True)  # row by row, since float64 takes memory
    nats = torch.stack([F.cross_entropy(one[:-1].double(), row[1:], reduction="none") for one, row in pairs])
    real = whole.real(logits.shape)
    both = None if real is None else real[:, 1:] & real[:, :-1]
    _need_numbers(nats, both, "cross_entropy")
    return nats if both is None else nats.masked_fill(~both, torch.nan)


def _need_numbers(of_tokens: Tensor, real: Tensor | None, effect: str) -> None:
    """Raises HeadwayError if the measure of a real token is not finite, since NaN would not count."""
    damaged = ~of_tokens.isfinite() if real is None else ~of_tokens.isfinite() & real
    if bool(damaged.any()):
        row, token = damaged.nonzero()[0].tolist()
        raise HeadwayError(
            f"{effect!r} needs outputs that are finite numbers, and those of row {row}, token {token} are not: run the "
            "model in float32"
        )


KNOWN = {
    "cosine": _Known(_directions, _apart),
    "cross_entropy": _Known(_surprise, lambda before, after: after - before),
}


def _refuse_known_answers(seen: Records) -> None:
    """Raises HeadwayError if a layer attends to the token that the model must predict."""
    for record in seen.records:
        if record.kind == "cross" or bool((record.statistics("next").next.nan_to_num() > 0).any()):
            raise HeadwayError(
                f"'cross_entropy' predicts the next token, to which {record.layer!r} may attend: give 'cosine', or a "
                "function"
            )


def _tensor(output: Any, attribute: str, effect: str) -> Tensor:
    tensor = output if isinstance(output, Tensor) else getattr(output, attribute, None)
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        said = f"of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else f"a {type(output).__name__}"
        raise HeadwayError(
            f"{effect!r} needs a tensor [rows, tokens, …], or an output with {attribute}, and this one is {said}: give "
            "a function of both outputs and the batch"
        )
    return tensor


def _summed(change: Any, whole: _Whole) -> tuple[Tensor, Tensor]:
    """The sums of the changes of each text and how many there are, each [rows]."""
    if not isinstance(change, Tensor) or change.ndim not in (1, 2) or not change.is_floating_point():
        said = f"{change.dtype} {tuple(change.shape)}" if isinstance(change, Tensor) else type(change).__name__
        raise HeadwayError(f"the effect is {said}: return floating-point numbers [rows] or [rows, tokens]")
    each = change.detach().double().view(len(change), -1)
    real = whole.real(each.shape)
    if real is not None:
        each = each.masked_fill(~real, torch.nan)
    return each.nansum(1).cpu(), (~each.isnan()).sum(1).double().cpu()


# ---------------------------------------------------------------- the file


LINE: Kind = {"batch": int, "layer": str, "head": int, "totals": [float], "counts": [float]}
"""A measurement in the file."""


class _Measured:
    """Measurements, which are also appended to a file and read back from it."""

    def __init__(self, path: Path | None, header: dict[str, Any]) -> None:
        self.path = path
        self._known: dict[tuple[int, str, int], tuple[Tensor, Tensor]] = {}
        if path is None:
            return
        lines = read_lines(path, "give a file that head_effects wrote, or delete it")
        if not lines:
            append_lines(path, [header])
        elif lines[0] != header:
            other = next((key for key in ("effect", "replacement") if lines[0].get(key) != header[key]), None)
            said = f"with {other} {lines[0].get(other)!r}" if other else "of another model or effect, or other batches"
            raise HeadwayError(f"file {path} has measurements {said}: give another file")
        for number, line in enumerate(lines[1:], 2):
            if not fits(line, LINE) or len(line["totals"]) != len(line["counts"]):
                raise HeadwayError(f"{path} line {number} is not a measurement: delete it to measure it again")
            totals, counts = (torch.tensor(line[name], dtype=torch.float64) for name in ("totals", "counts"))
            self._known[line["batch"], line["layer"], line["head"]] = totals, counts

    def __contains__(self, key: tuple[int, str, int]) -> bool:
        return key in self._known

    def of_layer(self, layer: str, heads: int, batches: int) -> tuple[Tensor, Tensor]:
        """The totals and counts of all texts, [texts, heads] each."""
        parts = [[self._known[batch, layer, head] for head in range(heads)] for batch in range(batches)]
        if any(len({len(total) for total, _ in part}) > 1 for part in parts):
            raise HeadwayError(f"{self.path} has heads of {layer!r} of other texts: delete it to measure them again")
        totals, counts = (torch.cat([torch.stack([one[i] for one in part], dim=1) for part in parts]) for i in (0, 1))
        return totals, counts

    def add(self, key: tuple[int, str, int], totals: Tensor, counts: Tensor) -> None:
        self._known[key] = totals, counts
        if self.path is not None:
            batch, layer, head = key
            values = {"totals": totals.tolist(), "counts": counts.tolist()}
            append_lines(self.path, [{"batch": batch, "layer": layer, "head": head, **values}])


def _digest(model: nn.Module, batches: Sequence[Any], effect: str | Effect) -> str:
    """A hash of a model's parts, settings and parameters, of all batches, and of the code of a function."""
    digest = hashlib.sha256()
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {"config": config}
    digest.update(_without_addresses([model, *sorted((k, v) for k, v in settings.items() if k not in ELSEWHERE)]))
    if isinstance(code := getattr(effect, "__code__", None), CodeType):
        _add_code(digest, code)
    for name, x in model.state_dict().items():
        digest.update(name.encode())
        _add(digest, x)
    for batch in batches:
        _add(digest, batch)
    return digest.hexdigest()


ELSEWHERE = ("_name_or_path", "transformers_version")
"""Settings of transformers that do not affect the model."""


def _without_addresses(value: Any) -> bytes:
    return re.sub(r"0x[0-9a-f]+", "", repr(value)).encode()


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            ordered = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            digest.update(_without_addresses(ordered))


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    elif hasattr(value, "items"):
        for name, one in value.items():
            digest.update(str(name).encode())
            _add(digest, one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            _add(digest, one)
    elif hasattr(value, "__dict__"):
        _add(digest, vars(value))
    else:
        digest.update(repr(value).encode())
