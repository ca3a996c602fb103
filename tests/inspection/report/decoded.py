"""Reads reports as the viewer does, from the page alone, by the format in the README."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: dict[str, str] = {}
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            own = dict(attrs)
            self._open = own.get("id") or own.get("type") or ""
            assert self._open not in self.scripts
            self.scripts[self._open] = ""

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.scripts[self._open] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = None


def scripts_of(page: str) -> dict[str, str]:
    """The scripts of a page by their ids, or types."""
    parser = _Scripts()
    parser.feed(page)
    parser.close()
    return parser.scripts


def reports_of(page: str) -> list[Decoded]:
    """The reports of a page."""
    scripts = scripts_of(page)
    top = json.loads(scripts["headway-report"])
    return [Decoded(one, scripts) for one in top.get("reports", [top])]


def uint16(data: bytes) -> Tensor:
    half = len(data) // 2
    return torch.tensor(
        [low | high << 8 for low, high in zip(data[:half], data[half:], strict=True)], dtype=torch.int64
    )


def weight(codes: Tensor) -> Tensor:
    found = 2 ** ((codes.double() - 65535) / 2048)
    return found.masked_fill(codes == 0, 0).masked_fill(codes == 1, math.nan)


def cell(codes: Tensor) -> Tensor:
    found = 2 ** ((codes.double() - 255) / 10)
    return found.masked_fill(codes == 0, 0).masked_fill(codes == 1, math.nan)


def floats(data: bytes) -> Tensor:
    return torch.tensor(struct.unpack(f"<{len(data) // 4}f", data), dtype=torch.float64)


def twelve(data: bytes) -> Tensor:
    a, b, c = torch.tensor(list(data)).view(-1, 3).T
    return torch.stack([a | (b & 15) << 8, b >> 4 | c << 4], dim=-1).flatten() - 2048


@dataclass
class Decoded:
    json: dict[str, Any]
    scripts: dict[str, str]

    @property
    def n(self) -> int:
        return int(self.json["n"])

    def chunk(self, kind: str, **fields: Any) -> tuple[dict[str, Any], bytes] | None:
        for entry in self.json["chunks"]:
            if entry["kind"] == kind and all(entry.get(key) == value for key, value in fields.items()):
                return entry, zlib.decompress(base64.b64decode(self.scripts[entry["id"]], validate=True))
        return None

    def of_head(self, kind: str, head: int) -> tuple[dict[str, Any], bytes] | None:
        return next(
            (
                self.chunk(kind, id=entry["id"])
                for entry in self.json["chunks"]
                if entry["kind"] == kind and (entry.get("head") == head or head in entry.get("heads", ()))
            ),
            None,
        )

    def seen(self, layer: int) -> Tensor:
        """Which keys a query sees, [n, n]."""
        key, n = torch.arange(self.n), self.n
        for entry in self.json["chunks"]:
            if entry["kind"] == "ranges" and layer in entry["layers"]:
                found = self.chunk("ranges", id=entry["id"])
                assert found is not None
                numbers = struct.unpack(f"<{len(found[1]) // 4}i", found[1])
                parts = torch.tensor(numbers).view(entry["parts"], 2, n, 1)
                return ((key >= parts[:, 0]) & (key < parts[:, 1])).any(0)
        return key <= key[:, None] if self.json["model"]["causal"] else torch.ones(n, n, dtype=torch.bool)

    def dense(self, head: int) -> Tensor:
        found = self.of_head("dense", head)
        assert found is not None
        codes = uint16(found[1])
        if not self.json["model"]["causal"]:
            return weight(codes).view(self.n, self.n)
        weights = torch.zeros(self.n, self.n, dtype=torch.float64)
        weights[torch.ones(self.n, self.n, dtype=torch.bool).tril()] = weight(codes)
        return weights

    def exact(self, head: int) -> Tensor:
        """All weights of an exact head, pair by pair of the format's formula."""
        own = self.json["heads"][head]
        q = self.of_head("q", head)
        k = self.chunk("k", layer=own["layer"], kv=own["kv"])
        assert q is not None
        assert k is not None
        n, width = self.n, q[0]["width"]
        split = n * width * 3 // 2
        x, y = twelve(q[1][:split]).view(n, width), twelve(k[1][:split]).view(n, width)
        scale_q, lse = floats(q[1][split:]).view(2, n)
        scale_k = floats(k[1][split:])
        score = (x @ y.T).double() * scale_q[:, None] * scale_k
        bias = self.of_head("bias", head)
        if bias is not None:
            values = floats(bias[1])
            away = torch.arange(n)[None] - torch.arange(n)[:, None] - bias[0]["from"]
            score = score + values[away.clamp(0, len(values) - 1)]
        tokens = self.of_head("tokens", head)
        if tokens is not None:
            of_queries, of_keys = floats(tokens[1]).view(2, n)
            score = score + of_queries[:, None] + of_keys
        if own["cap"] is not None:
            score = own["cap"] * torch.tanh(score / own["cap"])
        return (score - lse[:, None]).exp().masked_fill(~self.seen(own["layer"]), 0)

    def listed(self, head: int) -> Tensor:
        """The weights of a list, [n, n]; 0 elsewhere."""
        found = self.of_head("list", head)
        assert found is not None
        entry, data = found
        n, width = self.n, entry["bytes"]
        counts = torch.tensor(struct.unpack(f"<{n}{'BH'[width - 1]}", data[: n * width]))
        entries = int(counts.sum())
        assert n <= 1 << 16
        assert len(data) == n * width + 4 * entries
        away, codes = uint16(data[n * width : n * width + 2 * entries]), uint16(data[n * width + 2 * entries :])
        query = torch.arange(n).repeat_interleave(counts)
        weights = torch.zeros(n, n, dtype=torch.float64)
        weights[query, (query - away) % 65536] = weight(codes)
        return weights

    def map(self, head: int) -> tuple[Tensor, Tensor]:
        """Mass and largest weight."""
        found = self.of_head("map", head)
        assert found is not None
        c = self.json["cells"]
        codes = torch.tensor(list(found[1])).view(-1, 2, c, c)[found[0]["heads"].index(head)]
        return cell(codes[0]), cell(codes[1])

    def profile(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """Entropy, largest weight and received attention by bins."""
        found = self.of_head("profile", head)
        assert found is not None
        bins = self.json["bins"]
        at = found[0]["heads"].index(head) * 6 * bins
        entropy, largest, received = uint16(found[1][at : at + 6 * bins]).view(3, bins)
        sums = (2 ** ((received.double() - 32768) / 1024)).masked_fill(received == 0, 0)
        return (entropy.double() / 4096).masked_fill(entropy == 65535, math.nan), weight(largest), sums

    def tokens(self) -> list[str]:
        """The text of each token."""
        units = self.json["text"].encode("utf-16-le", "surrogatepass")
        found, at = [], 0
        for gap, length in zip(self.json["gaps"], self.json["lengths"], strict=True):
            at += gap
            found.append(units[2 * at : 2 * (at + length)].decode("utf-16-le", "surrogatepass"))
            at += length
        return found
