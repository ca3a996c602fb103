"""Reports of weights that are drawn, written as the README of reports says and by no code of headway."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headway

PACKAGE = Path(headway.__file__).parent / "inspection" / "report"
TAU = 0.05


@dataclass(frozen=True)
class Made:
    """A report on disk, its JSON, the weights [layers, heads, n, n] that it shows, and its chunks by id."""

    path: Path
    report: dict[str, Any]
    weights: Tensor
    contents: dict[str, bytes]


def drawn(n: int, layers: int = 2, heads: int = 3, width: int = 16) -> tuple[Tensor, Tensor]:
    """Queries and keys [layers, heads, n, width] of order one, the same in every run."""
    noise = torch.Generator().manual_seed(n)
    q, k = torch.randn(2, layers, heads, n, width, generator=noise)
    return q / width**0.5 * 2, k


def write(
    path: Path, text: str, *, causal: bool = False, long: bool = False, nan: bool = False, prefix: str = "c"
) -> Made:
    """Writes a report. If it is long, head 0 of each layer is exact and the others are lists; else all are dense.

    A token is a run of letters or one other character.
    """
    spans = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    n = len(spans)
    q, k = drawn(n)
    if long:
        (q, q_codes, q_scale), (k, k_codes, k_scale) = _coded(q), _coded(k)
    visible = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    scores = (q.double() @ k.double().mT).masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    if nan:
        weights[-1, -1] = float("nan")
    layers, heads = weights.shape[:2]
    offset = torch.arange(n) - torch.arange(n)[:, None]
    ranges = [(None, -8), (-7, -4), (-3, -2), (-1, -1), (0, 0), (1, 1), (2, 3), (4, 7), (8, None)]
    bins, cells, thumbs = min(n, 512), 64 if long else 0, min(n, 24)
    chunks: list[dict[str, Any]] = []
    contents: dict[str, bytes] = {}
    entries: list[dict[str, Any]] = []

    def add(kind: str, content: bytes, **fields: Any) -> None:
        chunks.append({"id": f"{prefix}{len(chunks)}", "kind": kind, **fields})
        contents[chunks[-1]["id"]] = content

    small = [_cells(_pooled(own, visible, thumbs)) for own in weights.flatten(0, 1)]
    add("thumbs", b"".join(small))
    for layer in range(layers):
        for head in range(heads):
            own, index = weights[layer, head], layer * heads + head
            form = "dense" if not long else "exact" if head == 0 else "list"
            if form == "dense":
                codes = _weights(own, visible)
                add("dense", _planes(codes[visible] if causal else codes), head=index)
            else:
                largest = _cells(_pooled(own, visible, cells))
                add("map", 2 * largest, layer=layer, heads=[index])
                queries, keys = (own >= TAU).nonzero(as_tuple=True)
                counts = torch.bincount(queries, minlength=n)
                width = 1 + head % 2
                counted = b"".join(count.to_bytes(width, "little") for count in counts.tolist())
                codes = _weights(own, visible)[queries, keys]
                add("list", counted + _planes((queries - keys) % 65536) + _planes(codes), head=index, bytes=width)
            if form == "exact":
                row = lse[layer, head]
                query = _packed(q_codes[layer, head]) + _floats(q_scale[layer, head]) + _floats(row)
                add("q", query, head=index, width=q.shape[-1])
                key = _packed(k_codes[layer, head]) + _floats(k_scale[layer, head])
                add("k", key, layer=layer, kv=head, width=k.shape[-1])
            entropy = -(own * own.clamp_min(1e-30).log()).sum(-1)
            means = [_binned(values, bins) for values in (entropy, own.amax(-1), own.sum(0))]
            received = (32768 + 1024 * means[2].clamp_min(1e-9).log2()).round()
            largest = (65535 + 2048 * means[1].log2()).round()
            profile = torch.stack([(means[0] * 4096).round(), largest, received]).nan_to_num(1)
            add("profile", _planes(profile.long()), layer=layer, heads=[index])
            entries.append(_entry(layer, head, form, own, offset, ranges))
    ends = [0, *(end for _, end in spans)]
    words = len(re.findall(r"\S+", text))
    counts = [len(re.findall(r"\w+|[^\w\s]", word)) for word in re.findall(r"\S+", text)]
    assert (sum(counts), len(counts)) == (n, words)
    report = {
        "format": 1,
        "version": headway.__version__,
        "model": {
            "name": "drawn",
            "layers": [f"layer {layer}" for layer in range(layers)],
            "heads": [heads] * layers,
            "causal": causal,
        },
        "language": None,
        "n": n,
        "text": text,
        "gaps": [_units(text[ends[i] : start]) for i, (start, _) in enumerate(spans)],
        "lengths": [_units(text[start:end]) for start, end in spans],
        "labels": {},
        "words": counts,
        "open": {"head": 1, "token": 3, "key": int(weights[0, 1, 3].argmax())},
        "heads": entries,
        "roles": [{"role": "syntactic", "says": "Words.", "measured": 0, "missing": "dependency relations"}],
        "statistics": [{"name": "entropy", "says": "The entropy."}],
        "distances": ranges,
        "bins": bins,
        "cells": cells,
        "thumbs": thumbs,
        "exactness": {
            "budget": None,
            "heads": {"dense": 0, "exact": 0, "list": 0},
            "tau": TAU if long else None,
            "dense": 0.0002,
            "list": 0.0002,
            "exact": 0.0001,
            "map": 0.035,
            "dropped": [],
        },
        "chunks": chunks,
    }
    path.write_text(framed(report, contents), encoding="utf-8")
    return Made(path, report, weights, contents)


def framed(report: dict[str, Any], contents: dict[str, bytes]) -> str:
    """A page that asks for nothing, and may run nothing but the viewer."""
    script = (PACKAGE / "viewer.js").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{allowed}' 'wasm-unsafe-eval'; style-src 'unsafe-inline'"
    held = json.dumps(report, allow_nan=False).replace("<", "\\u003c")
    chunks = "\n".join(
        f'<script id="{name}" type="text/plain">{base64.b64encode(zlib.compress(content)).decode()}</script>'
        for name, content in contents.items()
    )
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>drawn</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}; img-src data:">
<style>body {{ margin: 0 }}
{(PACKAGE / "viewer.css").read_text(encoding="utf-8")}</style></head><body>
<script id="headway-report" type="application/json">{held}</script>
{chunks}
<div id="headway"></div>
<script type="module">{script}</script></body></html>
"""


def _entry(layer: int, head: int, form: str, weights: Tensor, offset: Tensor, ranges: list[Any]) -> dict[str, Any]:
    n = len(weights)
    nan = bool(weights.isnan().any())
    best = weights.flatten().topk(20).indices.tolist()

    def mean(values: Tensor) -> float | None:
        return None if nan else float(values.mean())

    def within(low: int | None, high: int | None) -> Tensor:
        return (offset >= (-n if low is None else low)) & (offset <= (n if high is None else high))

    role = {"role": "positional", "candidate": "-1", "figure": 0.93, "low": 0.91, "high": 0.95}
    return {
        "layer": layer,
        "head": head,
        "kv": head,
        "nan": nan,
        "roles": [{**role, "baseline": 0.1, "cases": 99}] if head == 1 else [],
        "statistics": {
            "entropy": mean(-(weights * weights.clamp_min(1e-30).log()).sum(-1)),
            "largest": mean(weights.amax(-1)),
            "first": mean(weights[:, 0]),
            "distance": mean((weights * offset.abs()).sum(-1)),
        },
        "distances": [mean((weights * within(*each)).sum(-1)) for each in ranges],
        "links": [] if nan else [[i // n, i % n, float(weights.flatten()[i])] for i in best],
        "form": form,
        "cap": None,
        "reason": None,
    }


def _coded(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What 12-bit codes of vectors stand for, the codes, and their scale."""
    scale = vectors.abs().amax(-1) / 2047
    codes = (vectors / scale[..., None]).round()
    return codes * scale[..., None], codes.long(), scale


def _packed(codes: Tensor) -> bytes:
    a, b = (codes + 2048).flatten().view(-1, 2).unbind(-1)
    return bytes(torch.stack([a & 255, a >> 8 | (b & 15) << 4, b >> 4], -1).to(torch.uint8).flatten().tolist())


def _floats(values: Tensor) -> bytes:
    return values.float().numpy().astype("<f4").tobytes()


def _planes(numbers: Tensor) -> bytes:
    return b"".join(bytes((numbers.flatten() >> shift & 255).to(torch.uint8).tolist()) for shift in (0, 8))


def _weights(weights: Tensor, visible: Tensor) -> Tensor:
    codes = (65535 + 2048 * weights.clamp_min(1e-30).log2()).round().clamp_min(2).nan_to_num(1)
    return torch.where(visible, torch.where(weights.isnan(), 1, codes), 0).long()


def _cells(weights: Tensor) -> bytes:
    """Codes of cells; -1 is hidden."""
    codes = (255 + 10 * weights.clamp_min(1e-30).log2()).round().clamp_min(2)
    codes = torch.where(weights.isnan(), 1, torch.where(weights < 0, 0, codes))
    return bytes(codes.to(torch.uint8).flatten().tolist())


def _pooled(weights: Tensor, visible: Tensor, cells: int) -> Tensor:
    """The largest weight of each cell; -1 where all of it is hidden."""
    seen = torch.where(visible, weights, -1)
    rows = torch.stack([part.amax(0) for part in _parts(seen, cells)])
    return torch.stack([part.amax(0) for part in _parts(rows.T, cells)]).T


def _binned(values: Tensor, bins: int) -> Tensor:
    return torch.stack([part.mean() for part in _parts(values, bins)])


def _parts(values: Tensor, count: int) -> list[Tensor]:
    """Part i has every t with ⌊t·count/n⌋ = i."""
    n = len(values)
    return [values[-(-i * n // count) : -(-(i + 1) * n // count)] for i in range(count)]


def _units(text: str) -> int:
    """UTF-16 units."""
    return len(text.encode("utf-16-le")) // 2
