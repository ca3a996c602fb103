"""Writes a report: measures, spends the budget, encodes, and checks the exact parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..._common.files import atomic_write
from ..._common.language import said
from ..._common.progress import Tell, nobody
from ..._common.version import __version__
from ...errors import HeadwayError
from ...kernels import Call
from .._numbers import whole
from ..roles._table import ROLES
from ..statistics import STATISTICS
from . import _plan
from ._codes import compressed, octets_of, planes, weight_codes, weights_of
from ._exact import ExactKeys, exact_keys, octets_of_keys, octets_of_queries
from ._first import SILENT, is_content, opening
from ._measure import (
    BINS,
    MEANS,
    Dense,
    Listed,
    Measured,
    completed,
    dense,
    distances_for,
    measured,
    rows_of,
    sampled,
    thumbnails,
)
from ._page import chunk_text, page, spelled
from ._plan import TAUS
from ._scores import Scores, Sight, scores_of, sight, why_not_exact
from ._subject import Subject

DENSE_STEP, LIST_STEP = 2, 8
"""Codes of weights are multiples of these below 65535, so that they compress better."""
UNEVEN = 1.2
"""The most by which the layers that have been encoded may take more than the others."""
ALL_CHECKED = 1024
"""The most tokens for which every weight of an exact head is compared with that of the model."""
CHECKED = 8
"""Otherwise the queries with the longest vectors, which are rounded most, and as many by chance, of each layer."""


@dataclass(frozen=True, eq=False)
class Report:
    """A report that has been made.

    Attributes:
        json: the data at the beginning of the page.
        chunks: the content of each chunk by its id.
        title: the title of the page.
    """

    json: dict[str, Any]
    chunks: dict[str, str]
    title: str

    def page(self) -> str:
        """The page as one string."""
        return "".join(page(self.json, self.chunks.items(), self.title, self.json["language"]))


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(eq=False)
class Chunks:
    """The chunks of a report while they are made, within a number of characters."""

    prefix: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, kind: str, arrays: Sequence[bytes], fields: Mapping[str, Any] = NO_FIELDS) -> None:
        """Adds a chunk of arrays, with the fields of its entry other than id and kind."""
        name = self.prefix + name
        entry = {"id": name, "kind": kind, **fields}
        content = compressed(arrays)
        self.entries.append(entry)
        self.contents[name] = content
        self.size += len(chunk_text(name, content)) + len(spelled(entry)) + 1

    def extend(self, other: Chunks) -> None:
        """Takes the chunks of another."""
        self.entries += other.entries
        self.contents |= other.contents
        self.size += other.size


def checked_exact(exact: Any, subject: Subject) -> list[tuple[int, int]] | None:
    """The heads that are asked for, as numbers of layer and head. Raises HeadwayError for one that does not exist."""
    if exact is None:
        return None
    heads = set(subject.heads)
    found = []
    for one in exact:
        pair = tuple(one) if isinstance(one, (tuple, list)) else ()
        layer = (
            subject.layers.index(pair[0]) if pair and pair[0] in subject.layers else whole(pair[0]) if pair else None
        )
        head = whole(pair[1]) if len(pair) == 2 else None
        if layer is None or head is None:
            raise HeadwayError(f"exact holds {one!r}: give pairs of layer and head, such as [(0, 3)]")
        if (layer, head) not in heads:
            raise HeadwayError(
                f"exact holds {one!r} and there is no such head: the last is {subject.heads[-1]}, of layer "
                f"{subject.layers[-1]!r}"
            )
        found.append((layer, head))
    return list(dict.fromkeys(found))


def made(
    subject: Subject,
    budget: int | None,
    exact: list[tuple[int, int]] | None = None,
    language: str | None = None,
    tell: Tell = nobody,
    prefix: str = "",
) -> Report:
    """Makes a report of at most a number of bytes.

    Args:
        subject: the capture that the report shows.
        budget: the bytes; None for no limit.
        exact: heads whose weights are all to be exact, as numbers of layer and head. Default: those with roles.
        language: "en", "zh" or None.
        tell: is told of progress.
        prefix: begins the ids of the chunks.

    Raises:
        HeadwayError: if the budget is too small for the maps of all heads.
    """
    return _Maker(subject, budget, exact, language, tell, prefix).made()


def live(subject: Subject, language: str | None = None, tell: Tell = nobody) -> Report:
    """Makes the report of a kernel that answers: all weights of short texts, and only maps of longer ones.

    Args:
        subject: the capture that the report shows.
        language: "en", "zh" or None.
        tell: is told of progress.
    """
    return _Maker(subject, None, None, language, tell, "").live()


class _Maker:
    def __init__(
        self,
        subject: Subject,
        budget: int | None,
        exact: list[tuple[int, int]] | None,
        language: str | None,
        tell: Tell,
        prefix: str,
    ) -> None:
        self.subject, self.budget, self.exact, self.language = subject, budget, exact, language
        self.tell, self.prefix = tell, prefix
        self.n, self.heads = subject.n, subject.heads
        self.number = {head: number for number, head in enumerate(self.heads)}
        self.findings = subject.findings()
        self.sights = [sight(call) for call in subject.calls]
        self.causal = all(one.causal for one in self.sights)
        self.reasons: dict[int, str] = {}
        self.widths: dict[int, int] = {}
        self.heads_json: list[dict[str, Any]] = []
        self.exactness: dict[str, Any] = {
            "budget": budget, "heads": {}, "tau": None, "dense": None, "list": None, "exact": None, "map": None,
            "dropped": [],
        }  # fmt: skip

    def made(self) -> Report:
        n = self.n
        cells = _plan.cells_for(n, len(self.heads), self.budget)
        start = self._json(cells, [])
        base = len("".join(page(start, [], self._title, self.language)).encode("utf-8")) + 420 * len(self.heads)
        if self.budget is not None and base > self.budget:
            raise HeadwayError(
                f"a report of {n:,} tokens takes {_plan.said(base)} without any map, above its budget of "
                f"{_plan.said(self.budget)}: give budget={_plan.said(2 * base)!r}"
            )
        layers, tau = self._measured(cells, base)
        self.heads_json = [self._head(layer, head, layers[layer]) for layer, head in self.heads]
        base = self._octets_around(cells, layers)
        chunks = Chunks(self.prefix)
        self._add_thumbs(chunks, layers)
        self._add_ranges(chunks)
        budget = self.budget
        room = None if budget is None else budget - base
        if not (n <= _plan.SHORT and self._add_dense(chunks, room)):
            self._add_maps(chunks, layers, cells)
            wanted = self._exact_heads()
            self.exactness["dropped"] = self.exact or []  # at most these
            base = self._octets_around(cells, layers)
            if budget is not None and chunks.size > budget - base:
                raise HeadwayError(
                    f"the maps of {len(self.heads)} heads on {n:,} tokens do not fit into {_plan.said(budget)}: give "
                    f"budget={_plan.said(base + chunks.size)!r} or more"
                )
            room = None if budget is None else budget - base
            self._add_weights(chunks, layers, wanted, room, tau)
            self.exactness["map"] = _up(max(layer.cell_error for layer in layers))
        forms = [head["form"] for head in self.heads_json]
        self.exactness["heads"] = {form: forms.count(form) for form in ("dense", "exact", "list")}
        if self.exactness["heads"]["dense"]:
            cells = 0
        report = {**self._json(cells, layers), "chunks": chunks.entries}
        self.tell(said("writing the report"), 1.0)
        return Report(report, chunks.contents, self._title)

    def live(self) -> Report:
        cells = _plan.cells_for(self.n, len(self.heads), None)
        layers, _ = self._measured(cells, 0)
        self.heads_json = [self._head(layer, head, layers[layer]) for layer, head in self.heads]
        chunks = Chunks(self.prefix)
        self._add_thumbs(chunks, layers)
        if self.n <= _plan.SHORT:
            self._add_dense(chunks, None)
            cells = 0
        else:
            self._add_maps(chunks, layers, cells)
            self.exactness["map"] = _up(max(layer.cell_error for layer in layers))
            for entry in self.heads_json:
                entry["form"] = "kernel"
        self.tell(said("showing the report"), 1.0)
        return Report({**self._json(cells, layers), "chunks": chunks.entries}, chunks.contents, self._title)

    @property
    def _title(self) -> str:
        return f"Attention of {self.subject.model}"

    def _octets_around(self, cells: int, layers: list[Measured]) -> int:
        """The bytes of the page without chunks, with room for what is said last of each head: its form and its cap."""
        parts = page(self._json(cells, layers), [], self._title, self.language)
        return sum(len(part.encode("utf-8")) for part in parts) + 400 + 8 * len(self.heads)

    # ------------------------------------------------------------ measuring

    def _measured(self, cells: int, base: int) -> tuple[list[Measured], float]:
        """What was measured of each layer, and the smallest threshold whose lists may fit."""
        spans, n, calls = self.subject.told.layout.spans, self.n, self.subject.calls
        silent = sorted({0, *(token for token, (start, stop) in enumerate(spans) if start == stop)})
        whole = sorted(self._content[1].difference(silent))
        room = float("inf") if self.budget is None else self.budget - base
        tau = next(tau for tau in TAUS if tau >= 1 / n or tau == TAUS[-1])
        layers, counts = [], [0] * len(TAUS)
        for layer, call in enumerate(calls):
            self.tell(said("measuring {layer}", layer=self.subject.layers[layer]), 0.7 * layer / len(calls))
            queries, seen = self.subject.queries[layer], self.sights[layer]
            layers.append(measured(call, queries, seen, cells, tau, silent, whole))
            if n > _plan.SHORT:
                weights = torch.cat([listed.weights for listed in layers[-1].lists])
                counts = [count + int((weights >= one).sum()) for one, count in zip(TAUS, counts, strict=True)]
                tau = max(tau, _plan.first_tau(counts, n * len(self.heads), room))
        return layers, tau

    # ------------------------------------------------------------ writing

    def _json(self, cells: int, layers: list[Measured]) -> dict[str, Any]:
        subject, told, n = self.subject, self.subject.told, self.n
        gaps, lengths = self._gaps_and_lengths
        edges = distances_for(n).edges
        held = [{one.role for one in of_head} for of_head in self.findings.values()]
        measured_roles = () if subject.roles is None else subject.roles.roles
        lacking = {} if subject.roles is None else subject.roles.not_measured
        return {
            "format": 1,
            "version": __version__,
            "model": {
                "name": subject.model,
                "layers": subject.layers,
                "heads": [call.q.shape[1] for call in subject.calls],
                "causal": self.causal,
            },
            "language": self.language,
            "n": n,
            "text": told.text,
            "gaps": gaps,
            "lengths": lengths,
            "labels": {str(token): label for token, label in told.layout.labels.items()},
            "words": told.layout.words,
            "open": self._opening(layers)._asdict(),
            "heads": self.heads_json,
            "roles": [
                {
                    "role": role,
                    "says": _first_sentence(ROLES.get(role)),
                    "measured": sum(role in one for one in held),
                    "missing": lacking.get(role),
                }
                for role in (*measured_roles, *lacking)
            ],
            "statistics": [{"name": name, "says": _first_sentence(STATISTICS[name])} for name in MEANS],
            "distances": [[None, edges[0] - 1], *([a, b - 1] for a, b in pairwise(edges)),
                          [edges[-1], None]],
            "bins": min(n, BINS),
            "cells": cells,
            "thumbs": min(n, 32),
            "exactness": self.exactness,
            "chunks": [],
        }  # fmt: skip

    def _opening(self, layers: list[Measured]) -> Any:
        held = {self.number[head]: roles for head, roles in self.findings.items() if head in self.number and roles}
        telling = {head for head, roles in held.items() if any(one.role not in SILENT for one in roles)}
        links = [a + b for layer in layers for a, b in zip(layer.links, layer.between, strict=True)]
        return opening(links, telling, held.keys() - telling, *self._content)

    @cached_property
    def _gaps_and_lengths(self) -> tuple[list[int], list[int]]:
        told = self.subject.told
        return told.layout.gaps_and_lengths(told.text)

    @cached_property
    def _content(self) -> tuple[dict[int, int], set[int]]:
        """The tokens of content words, with the number of the word of each, and those that are a word by themselves."""
        told, content, alone, token = self.subject.told, dict[int, int](), set[int](), 0
        for word, count in enumerate(told.layout.words):
            spans = [span for span in told.layout.spans[token : token + count] if span[0] < span[1]]
            if spans and is_content(told.text[spans[0][0] : spans[-1][1]]):
                content |= dict.fromkeys(range(token, token + count), word)
                if len(spans) == 1:
                    alone.add(token)  # further tokens are pieces of a character of this one
            token += count
        return content, alone

    def _head(self, layer: int, head: int, of: Measured) -> dict[str, Any]:
        call = self.subject.calls[layer]
        return {
            "layer": layer,
            "head": head,
            "kv": head * call.k.shape[1] // call.q.shape[1],
            "nan": of.has_nan[head],
            "roles": [
                {
                    "role": one.role, "candidate": one.candidate, "figure": one.figure, "low": one.low,
                    "high": one.high, "baseline": one.baseline, "cases": one.cases,
                }
                for one in self.findings.get((layer, head), ())
            ],
            "statistics": {name: values[head] for name, values in of.means.items()},
            "distances": of.distances[head].tolist(),
            "links": of.links[head],
            "form": "list",
            "cap": None,
            "reason": None,
        }  # fmt: skip

    def _add_thumbs(self, chunks: Chunks, layers: list[Measured]) -> None:
        small = torch.cat([thumbnails(layer.cells, self.n) for layer in layers])
        chunks.add("thumbs", "thumbs", [octets_of(small)])

    def _add_ranges(self, chunks: Chunks) -> None:
        groups: list[tuple[Tensor, list[int]]] = []
        stop = torch.arange(1, self.n + 1) if self.causal else torch.full((self.n,), self.n)
        usual = torch.stack([torch.zeros_like(stop), stop])[None]
        for layer, seen in enumerate(self.sights):
            if seen.whole and torch.equal(seen.ranges, usual):
                continue
            same = next((group for group in groups if torch.equal(group[0], seen.ranges)), None)
            if same is None:
                groups.append((seen.ranges, [layer]))
            else:
                same[1].append(layer)
        for number, (ranges, layers) in enumerate(groups):
            fields = {"layers": layers, "parts": len(ranges)}
            chunks.add(f"ranges-{number}", "ranges", [octets_of(ranges.int())], fields)

    def _add_dense(self, chunks: Chunks, room: int | None) -> bool:
        """Adds all weights of all heads, if they fit."""
        added, worst = Chunks(self.prefix), 0.0
        below = torch.ones(self.n, self.n, dtype=torch.bool).tril() if self.causal else None
        for layer, call in enumerate(self.subject.calls):
            doing = said("encoding {layer}", layer=self.subject.layers[layer])
            self.tell(doing, 0.72 + 0.25 * layer / len(self.subject.calls))
            of: Dense = dense(call)
            for head in range(call.q.shape[1]):
                weights, seen = of.weights[head], of.seen[head]
                codes = weight_codes(weights, seen, DENSE_STEP)
                worst = max(worst, float((weights_of(codes) - weights).abs().nan_to_num(0).max()))
                codes = codes.flatten() if below is None else codes[below]
                added.add(f"dense-{layer}-{head}", "dense", [planes(codes)], {"head": self.number[layer, head]})
            every = added.size * len(self.subject.calls) // (layer + 1)
            if room is not None and max(added.size, every / UNEVEN) > room - chunks.size:
                return False
        chunks.extend(added)
        for entry in self.heads_json:
            entry["form"] = "dense"
        self.exactness["dense"] = _up(worst)
        return True

    def _add_maps(self, chunks: Chunks, layers: list[Measured], cells: int) -> None:
        for layer, of in enumerate(layers):
            heads = [self.number[layer, head] for head in range(len(of.cells))]
            chunks.add(f"map-{layer}", "map", [octets_of(of.cells)], {"layer": layer, "heads": heads})
            profile = [planes(one) for one in of.profile]
            chunks.add(f"profile-{layer}", "profile", profile, {"layer": layer, "heads": heads})

    def _add_weights(
        self,
        chunks: Chunks,
        layers: list[Measured],
        wanted: list[tuple[int, int]],
        room: int | None,
        first: float,
    ) -> None:
        """Adds lists and exact heads, those that are wanted, as far as they fit."""
        left = None if room is None else room - chunks.size
        if self.exact is None and self.n <= _plan.SHORT and len(wanted) == len(self.heads):
            every = self._exact(wanted, left)
            if len(every[1]) == len(wanted):
                self._take(chunks, *every)
                return
        exact: tuple[Chunks, list[int], float]
        listed = [completed(call, of, first) for call, of in zip(self.subject.calls, layers, strict=True)]
        if self.exact is not None:
            exact = self._exact(wanted, left)
            lists = self._lists(listed, first, None if left is None else left - exact[0].size)
        else:
            share = left if left is None or not wanted else int(left * _plan.LISTS_SHARE)
            lists = self._lists(listed, first, share)
            exact = self._exact(wanted, None if left is None else left - lists.size)
            if not exact[1] and share != left:
                lists = self._lists(listed, first, left)
        chunks.extend(lists)
        self._take(chunks, *exact)
        if self.exact is not None:
            got = set(exact[1])
            self.exactness["dropped"] = [head for head in self.exact if self.number[head] not in got]

    def _take(self, chunks: Chunks, exact: Chunks, heads: list[int], worst: float) -> None:
        chunks.extend(exact)
        for head in heads:
            self.heads_json[head]["form"] = "exact"
        if heads:
            self.exactness["exact"] = _up(worst)

    def _lists(self, layers: list[list[Listed]], first: float, room: int | None) -> Chunks:
        """The lists above the smallest threshold that fits; none if none does."""
        every = [(layer, head, listed) for layer, of in enumerate(layers) for head, listed in enumerate(of)]
        weights = torch.cat([listed.weights for _, _, listed in every])
        rate = 0.0  # characters for each weight; a larger threshold needs more of them
        for tau in [tau for tau in TAUS if tau >= first]:
            chunks, worst, done, count = Chunks(self.prefix), 0.0, 0, int((weights >= tau).sum())
            if room is not None and rate * count > UNEVEN * room:
                continue
            for layer, head, listed in every:
                listed = listed.above(tau)
                parts, width, error = listed.encoded(LIST_STEP)
                worst, done = max(worst, error), done + len(listed.weights)
                fields = {"head": self.number[layer, head], "bytes": width}
                chunks.add(f"list-{layer}-{head}", "list", parts, fields)
                rate = chunks.size / done if done > count / 8 else rate
                if room is not None and max(chunks.size, rate * count / UNEVEN) > room:
                    break
            else:
                self.exactness |= {"tau": tau, "list": _up(worst)}
                return chunks
        self.exactness |= {"tau": None, "list": None}
        return Chunks(self.prefix)

    # ------------------------------------------------------------ exact heads

    def _exact_heads(self) -> list[tuple[int, int]]:
        """The heads that should be exact and can be, in the order in which they are taken."""
        if self.exact is not None:
            order = list(self.exact)
        else:
            order = sorted(self.heads, key=self._rank, reverse=True)
        for layer in sorted({layer for layer, _ in order}):
            call = self.subject.calls[layer]
            reason = why_not_exact(call, self.sights[layer])
            if reason is not None:
                self.reasons[layer] = reason
                for (of, _), entry in zip(self.heads, self.heads_json, strict=True):
                    entry["reason"] = reason if of == layer else entry["reason"]
            else:
                self.widths[layer] = call.q.shape[-1]
        return [head for head in order if head[0] not in self.reasons]

    def _rank(self, head: tuple[int, int]) -> tuple[int, float]:
        """What decides which heads are exact: the figure of a role that depends on words, of another, or weights."""
        held = self.findings.get(head, ())
        telling = [one.figure for one in held if one.role not in SILENT]
        if held:
            return 2 if telling else 1, max(telling or [one.figure for one in held])
        largest = self.heads_json[self.number[head]]["statistics"]["largest"]
        return 0, largest if largest == largest else 0.0

    def _exact(self, wanted: list[tuple[int, int]], room: int | None) -> tuple[Chunks, list[int], float]:
        """The first of some heads that fit, exactly: their chunks, numbers, and the largest error of a weight."""
        chosen: dict[int, dict[int, list[int]]] = {}
        size = 0
        for layer, head in wanted:
            kv = head * self.subject.calls[layer].k.shape[1] // self.subject.calls[layer].q.shape[1]
            known = kv in chosen.get(layer, {})
            more = octets_of_queries(self.n, self.widths[layer]) + (
                0 if known else octets_of_keys(self.n, self.widths[layer])
            )
            if room is None or size + more <= room:
                chosen.setdefault(layer, {}).setdefault(kv, []).append(head)
                size += more
        chunks, heads, worst = Chunks(self.prefix), [], 0.0
        for number, layer in enumerate(sorted(chosen)):
            self.tell(said("encoding {layer}", layer=self.subject.layers[layer]), 0.75 + 0.22 * number / len(chosen))
            call, seen = self.subject.calls[layer], self.sights[layer]
            scores = scores_of(call, seen)
            assert isinstance(scores, Scores)
            kept: list[ExactKeys] = []
            for kv, of_keys in sorted(chosen[layer].items()):
                coded, part = exact_keys(call, scores, kv, of_keys), Chunks(self.prefix)
                width = coded.keys.integers.shape[1]
                part.add(f"k-{layer}-{kv}", "k", [coded.keys.packed], {"layer": layer, "kv": kv, "width": width})
                for head in of_keys:
                    flat = self.number[layer, head]
                    part.add(f"q-{layer}-{head}", "q", [coded.packed_queries(head)], {"head": flat, "width": width})
                    self._add_biases(part, layer, head, scores)
                if room is not None and chunks.size + part.size > room:
                    continue
                chunks.extend(part)
                kept.append(coded)
                heads += [self.number[layer, head] for head in of_keys]
                for head in of_keys:
                    self.heads_json[self.number[layer, head]]["cap"] = scores.cap
            worst = max(worst, _error(call, scores, seen, kept))
        return chunks, heads, worst

    def _add_biases(self, chunks: Chunks, layer: int, head: int, scores: Scores) -> None:
        flat = self.number[layer, head]
        if scores.bias is not None:
            bias = scores.bias[head if len(scores.bias) > 1 else 0]
            bias = bias[: self.n] if self.causal else bias
            first, last = _changing(bias)
            fields = {"heads": [flat], "from": 1 - self.n + first}
            chunks.add(f"bias-{layer}-{head}", "bias", [octets_of(bias[first : last + 1])], fields)
        if scores.of_tokens is not None:
            of_tokens = scores.of_tokens[head if len(scores.of_tokens) > 1 else 0]
            chunks.add(f"tokens-{layer}-{head}", "tokens", [octets_of(of_tokens)], {"head": flat})


def _error(call: Call, scores: Scores, seen: Sight, coded: Sequence[ExactKeys]) -> float:
    """The largest error of a weight of the exact heads of a layer, among those that are compared."""
    if not coded:
        return 0.0
    rows, worst = _checked_rows(coded), 0.0
    heads = [head for of_keys in coded for head in of_keys.queries]
    true = rows_of(call, heads, rows)
    for of_keys in coded:
        for head in of_keys.queries:
            found = of_keys.weights(head, rows, scores, seen)
            worst = max(worst, float((found - true[heads.index(head)]).abs().nan_to_num(0).max()))
    return worst


def _checked_rows(coded: Sequence[ExactKeys]) -> list[int]:
    """The queries whose weights are compared: all of a short text, else the longest vectors and others by chance."""
    n = len(coded[0].keys.scale)
    if n <= ALL_CHECKED:
        return list(range(n))
    scales = torch.stack([one.scale for of_keys in coded for one in of_keys.queries.values()])
    return sorted({*sampled(n, CHECKED), *scales.amax(0).topk(CHECKED).indices.tolist()})


def _up(error: float) -> float:
    """An error, rounded up to two digits."""
    if not error:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(error)) - 1)
    return math.ceil(error / unit) * unit


def _changing(bias: Tensor) -> tuple[int, int]:
    """The first and the last number of a vector beyond which it is constant."""
    changes = (bias[1:] != bias[:-1]).nonzero()[:, 0]
    return (0, 0) if not len(changes) else (int(changes[0]), int(changes[-1]) + 1)


def _first_sentence(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split()) if thing is not None else ""


def write_page(parts: Iterable[str], path: Path) -> None:
    """Writes the parts of a page to a file, whole or not at all."""
    with atomic_write(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        for one in parts:
            file.write(one)
