"""The time of attention on a GPU: the Triton kernel, torch's SDPA and compiled FlexAttention, in turn in one process.

    python -m gpu.speed compile             runs each case once, several processes beside one another
    python -m gpu.speed measure             measures the cases, and appends a row for each to a file

A side that fails is a row's entry with its reason. Times are those between events of the device around several calls,
which the host gives it ahead, while it waits; what the host needs for a call stands beside them. The median of several
rounds is kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from subprocess import TimeoutExpired
from subprocess import run as start
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.biases import distance_bias
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS
from headway.kernels.flex import STAGES
from headway.kernels.triton._relative import waves_at
from headway.reductions import Entropy, TopKeys
from headway.tuning._timing import host_milliseconds, in_turn

OURS, OURS_PLAIN, REDUCED = "headway", "headway, no bias", "headway, with entropy and the largest weight"
SDPA, DENSE, FLEX, COPY = "SDPA", "SDPA, dense bias", "FlexAttention", "a copy of the keys"
"""A copy reads and writes as many bytes as decoding reads of keys and values."""
WINDOW, DOCUMENTS = 512, 8
ROUNDS = 5
DENSE_LIMIT, PRODUCTS_LIMIT = 1 << 31, 1 << 33
"""The most bytes of a dense bias that is measured, and of products with relative keys."""
BIASES = ("alibi", "t5", "kerple")
"""Encodings that are a bias by distance alone."""
ENCODINGS = (*BIASES, "fire", "transformer-xl", "shaw", "rope")
EMBED_DIM, REACH = 512, 16
"""The width of Transformer-XL's sinusoids, and the distances of Shaw's."""
BACK_ENDS = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


@dataclass(frozen=True)
class Case:
    """One call, causal, bfloat16.

    Attributes:
        encoding: "none", or the name of one of ``ENCODINGS``, or a mask: "window", "documents".
        learned: whether the bias has a gradient.
        queries: the last queries alone, as in decoding, forward and in a captured graph; 0 for all.
        kv_heads: heads of keys; 0 for as many as of queries.
    """

    encoding: str
    n: int
    head_dim: int = 64
    learned: bool = False
    batch: int = 4
    heads: int = 16
    dtype: str = "bfloat16"
    queries: int = 0
    kv_heads: int = 0

    @property
    def cache_bytes(self) -> int:
        """The bytes of keys and values."""
        kv = self.batch * (self.kv_heads or self.heads) * self.n * self.head_dim
        return 2 * kv * getattr(torch, self.dtype).itemsize

    def __str__(self) -> str:
        if self.queries:
            sizes = f"{self.batch} × {self.heads} heads on {self.kv_heads}, {self.n} keys, head_dim {self.head_dim}"
            return f"decoding, {self.encoding}, {sizes}"
        return f"{self.encoding}{', learned' if self.learned else ''}, {self.n} tokens, head_dim {self.head_dim}"


def cases(quick: bool = True) -> list[Case]:
    """The cases, in the order of their weight."""
    kinds = [("t5", True), ("none", False), ("documents", False), ("rope", False), ("window", False), ("alibi", False)]
    relative = [("shaw", True), ("transformer-xl", True), ("fire", True)]
    decoding = [Case(kind, 32768, 128, batch=8, heads=32, queries=1, kv_heads=8) for kind in ("none", "t5", "alibi")]
    found = [Case(kind, 4096, 64, learned) for kind, learned in (*kinds, *relative)]
    found += [Case(kind, n, width, learned) for n, width in ((4096, 128), (1024, 64)) for kind, learned in kinds[:3]]
    found += [*decoding, *(Case(kind, 4096, 64, learned) for kind, learned in (("t5", False), ("kerple", True)))]
    found += [Case(kind, 16384, 64, learned) for kind, learned in (*kinds, *relative)]
    if quick:
        return found
    every = [(n, width) for width in (64, 128) for n in (1024, 4096, 16384)]
    return list(dict.fromkeys([*found, *(Case(kind, *size, learned) for size in every for kind, learned in kinds)]))


class Sides:
    """The sides of a case as functions of nothing, which return the output.

    Args:
        case: the case.
        device: "cuda"; "cpu" for a trial with triton's interpreter.
    """

    def __init__(self, case: Case, device: str = "cuda") -> None:
        self.case, self.device = case, device
        torch.manual_seed(0)
        self.causal, self.queries = M.Causal(), case.queries or case.n
        dtype, kv = getattr(torch, case.dtype), (case.kv_heads or case.heads, case.n)
        self.q, self.k, self.v, self.upstream = (
            torch.randn(case.batch, heads, tokens, case.head_dim, device=device).to(dtype)
            for heads, tokens in ((case.heads, self.queries), kv, kv, (case.heads, self.queries))
        )
        for x in (self.q, self.k, self.v):
            x.requires_grad_()
        self.at = Coordinates.span(case.n, device=device)
        self.q_at = Coordinates.span(self.queries, start=case.n - self.queries, length=case.n, device=device)
        self.ids = torch.arange(case.n, device=device) * DOCUMENTS // case.n
        self.learned: list[Tensor] = []
        self.values: Any = None
        self.given: dict[str, Any] = {}
        if case.encoding in ("alibi", "kerple"):
            self.values = self._formula()
            self.given = {"terms": (T.DistanceBias(self.values),)}
        elif case.encoding in ENCODINGS:
            self.given = {"encoding": self._built()}
        if case.encoding == "t5":  # without the scale of its own
            self.values = make_call(self.q, self.k, self.v, **self.given).terms[0].values
            self.given = {"terms": (T.DistanceBias(self.values),)}

    def _formula(self) -> Any:
        heads = self.case.heads

        def leaf(x: Tensor) -> Tensor:
            x = x.to(self.device)
            if self.case.learned:
                self.learned.append(x.requires_grad_())
            return x

        if self.case.encoding == "alibi":
            slopes = leaf(2.0 ** -torch.linspace(0.5, 8, heads))
            return T.Linear(slopes, slopes)
        return T.Log(leaf(torch.linspace(0.5, 1, heads)), leaf(torch.linspace(0.5, 1, heads)))

    def _built(self) -> Any:
        """The encoding, whose parameters are of order one."""
        heads, head_dim = self.case.heads, self.case.head_dim
        sizes = {
            "t5": {"num_heads": heads, "bidirectional": False},
            "fire": {"num_heads": heads},
            "transformer-xl": {"embed_dim": EMBED_DIM, "num_heads": heads, "head_dim": head_dim},
            "shaw": {"head_dim": head_dim, "max_distance": REACH},
            "rope": {"head_dim": head_dim},
        }
        built = hw.encoding(self.case.encoding, **sizes[self.case.encoding]).to(self.device)
        built.requires_grad_(self.case.learned)
        self.learned += [x for x in built.parameters() if x.requires_grad]
        with torch.no_grad():
            for x in built.parameters():
                x.normal_(std=EMBED_DIM**-0.5 if x.shape[-1] == EMBED_DIM else 1.0)
        return built

    def mask(self) -> M.Mask:
        if self.case.encoding == "window":
            return self.causal & M.Window(left=WINDOW - 1)
        return self.causal & M.Documents(self.ids) if self.case.encoding == "documents" else self.causal

    def ours(self) -> Tensor:
        return self._ours(self.given, self.mask())

    def ours_plain(self) -> Tensor:
        return self._ours({}, self.causal)

    def _ours(self, given: dict[str, Any], mask: M.Mask) -> Tensor:
        sides = {"q_positions": self.q_at, "k_positions": self.at}
        return hw.attention(self.q, self.k, self.v, mask=mask, kernel="triton", **given, **sides)

    def reduced(self) -> Tensor:
        """As ``ours``, with statistics in the same pass."""
        sides = {"q_positions": self.q_at, "k_positions": self.at}
        call = make_call(self.q, self.k, self.v, mask=self.mask(), **self.given, **sides)
        return KERNELS["triton"].run_and_reduce(call, [Entropy(), TopKeys(1)])[0]

    def sdpa(self, bias: Tensor | None = None) -> Tensor:
        causal = bias is None and not self.case.queries
        grouped = bool(self.case.kv_heads)
        q, k = (self.q, self.k) if self.case.encoding != "rope" else self._rotated()
        return scaled_dot_product_attention(q, k, self.v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)

    def _rotated(self) -> tuple[Tensor, Tensor]:
        """q and k rotated by what torch's compiler makes of it."""
        if not hasattr(self, "_rotate"):
            rotation = make_call(self.q, self.k, self.v, q_positions=self.q_at, k_positions=self.at, **self.given)
            cos, sin = rotation.k_rotation.cos.float(), rotation.k_rotation.sin.float()

            def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
                return T.rotate(q, cos, sin, "interleaved"), T.rotate(k, cos, sin, "interleaved")

            self._rotate = torch.compile(rotate, dynamic=False) if self.device == "cuda" else rotate
        found: tuple[Tensor, Tensor] = self._rotate(self.q, self.k)
        return found

    def copy(self) -> Tensor:
        if not hasattr(self, "_copy"):
            self._copy = torch.empty_like(self.k)
        return self._copy.copy_(self.k)

    def strip(self) -> Tensor:
        """The bias of each distance 1 − n … n − 1, [heads, 2n − 1], recorded if it is learned."""
        n = self.case.n
        q = Coordinates.span(1, start=n - 1, length=2 * n - 1, device=self.device)
        found = distance_bias(self.values, q, Coordinates.span(2 * n - 1, device=self.device), torch.float32)
        return found.expand(1, self.case.heads, 1, 2 * n - 1)[0, :, 0]

    def dense(self) -> Tensor:
        """The bias and the mask made anew in each call where the bias is learned, else beforehand."""
        if self.values is None:
            raise NotImplementedError("no bias")
        if self.case.heads * self.queries * self.case.n * 2 > DENSE_LIMIT:
            raise NotImplementedError("a dense bias of more than 2 GiB")
        if not hasattr(self, "_dense"):
            slots = torch.arange(self.case.n, device=self.device)
            own = slots[-self.queries :, None]
            bias = self.strip()[:, slots[None, :] - own + self.case.n - 1].to(self.q.dtype)
            bias = bias.masked_fill(slots[None, :] > own, -torch.inf)[None].detach()
            self._dense = bias.requires_grad_(self.case.learned)
            if self.case.learned:
                self.learned_dense = [self._dense]
        return self.sdpa(self._dense)

    def flex(self, compiled: bool = True) -> Tensor:
        """FlexAttention as its users write it: ALiBi and FIRE in closed form, other biases as a table by distance,
        relative keys as a table of the products of each query with every distance.
        """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if not hasattr(self, "_flex"):
            torch._dynamo.reset()
            n, ids, kind = self.case.n, self.ids, self.case.encoding

            def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                if kind == "window":
                    return (i >= j) & (i - j < WINDOW)
                return (i >= j) & (ids[i] == ids[j]) if kind == "documents" else i >= j

            # the last query sees all keys
            blocks = None if self.case.queries else create_block_mask(seen, None, None, n, n, device=self.device)
            self._block_mask = blocks
            self._flex = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
        score_mod = self._score_mod() if self.case.encoding in ENCODINGS and self.case.encoding != "rope" else None
        given = {"score_mod": score_mod, "block_mask": self._block_mask, "enable_gqa": bool(self.case.kv_heads)}
        if score_mod is not None and not self.case.queries:  # with torch's three stages a table needs too much memory
            given["kernel_options"] = STAGES
        q, k = (self.q, self.k) if self.case.encoding != "rope" else self._rotated()
        if self.case.encoding == "transformer-xl":
            q = self.given["encoding"].prepare_query(q, self.q_at)
        found: Tensor = self._flex(q, k, self.v, **given)
        return found

    def _score_mod(self) -> Callable[..., Tensor]:
        n, skipped = self.case.n, self.case.n - self.queries
        if self.case.encoding == "shaw":
            raise NotImplementedError("it has no relative values")
        if self.case.encoding == "transformer-xl":
            return self._relative_keys()
        if self.case.encoding == "fire":
            return self._fire()
        if self.case.encoding == "alibi" and not self.case.learned:
            slopes = self.values.past

            def linear(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score - slopes[h] * (i + skipped - j).abs()

            return linear
        table = self.strip().contiguous()

        def by_distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + table[h, j - i - skipped + n - 1]

        return by_distance

    def _relative_keys(self) -> Callable[..., Tensor]:
        case, n = self.case, self.case.n
        if case.batch * case.heads * n * (2 * n - 1) * self.q.itemsize > PRODUCTS_LIMIT:
            raise NotImplementedError("products of each query with every distance of more than 8 GiB")
        term = make_call(self.q, self.k, self.v, **self.given).terms[0]
        vectors = waves_at(term.rows, torch.arange(1 - n, n, device=self.device)).to(self.q.dtype)
        query = (self.q + term.query_bias[:, None]).to(self.q.dtype)
        products = query @ vectors.mT * case.head_dim**-0.5

        def looked_up(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + products[b, h, i, j - i + n - 1]

        return looked_up

    def _fire(self) -> Callable[..., Tensor]:
        built = self.given["encoding"]
        a, b_, weight, last = built.inner.weight[:, 0], built.inner.bias, built.outer.weight, built.outer.bias
        c, limit = built.c.abs(), (built.threshold * built.multiplier).abs()

        def units(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            reach = torch.maximum(i, limit[0])
            t = torch.log1p(c[0] * (i - j).abs()) / (torch.log1p(c[0] * reach) + 1e-6)
            bias = last[h]
            for unit in range(len(a)):
                bias = bias + weight[h, unit] * torch.relu(a[unit] * t + b_[unit])
            return score + bias

        return units

    def all(self) -> dict[str, Callable[[], Tensor]]:
        """The sides by name."""
        found: dict[str, Callable[[], Tensor]] = {OURS: self.ours}
        if self.case.encoding != "none":
            found[OURS_PLAIN] = self.ours_plain
        if self.case.queries:
            found[COPY] = self.copy
        elif not self.case.learned:
            found[REDUCED] = self.reduced
        if self.device == "cuda":
            for name, back_end in BACK_ENDS.items():
                found[f"{SDPA}, {name}"] = self._by(back_end)
        else:
            found[SDPA] = self.sdpa
        if self.values is not None:
            found[DENSE] = self.dense
        return found | {FLEX: self.flex}

    def _by(self, back_end: str) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(getattr(SDPBackend, back_end)):
                return self.sdpa()

        return run

    def leaves(self, side: str) -> list[Tensor]:
        """The tensors that a side computes gradients of."""
        inputs = [self.q, self.k, self.v]
        if side in (OURS, FLEX):
            return [*inputs, *self.learned]
        return [*inputs, *getattr(self, "learned_dense", [])] if side == DENSE else inputs


@contextmanager
def graphs_that_run_again() -> Iterator[None]:
    import torch._functorch.config

    with torch._functorch.config.patch(donated_buffer=False):
        yield


def measure(case: Case, device: str = "cuda", rounds: int = ROUNDS, once: bool = False) -> dict[str, Any]:
    """Returns a row: for each side the milliseconds forward and backward, or why it has none.

    Args:
        case: the case.
        device: where.
        rounds: turns of all sides.
        once: whether each side runs once alone, so that it is compiled.
    """
    sides = Sides(case, device)
    says: dict[str, str] = {}
    outputs: dict[str, Tensor] = {}
    runs: dict[str, dict[str, Callable[[], object]]] = {"forward": {}, "backward": {}}
    with graphs_that_run_again():
        for name, side in sides.all().items():
            try:
                runs["forward"][name] = forward = _forward(side)
                outputs[name] = forward()
            except Exception as error:  # any failure of a side is its result
                del runs["forward"][name]
                says[name] = _said(error)
                continue
            if case.queries or name == REDUCED:
                continue
            try:
                runs["backward"][name] = backward = _backward(side(), sides.leaves(name), sides.upstream)
                backward()
            except Exception as error:
                runs["backward"].pop(name, None)
                says[f"{name}, backward"] = _said(error)
        row: dict[str, Any] = asdict(case) | {"ms": {}, "spread": {}, "host": {}, "says": says}
        if once:
            return row
        row["apart"] = {name: _apart(outputs[OURS], out) for name, out in outputs.items() if _same(case, name)}
        if case.queries and device == "cuda":
            runs["forward"] = {name: _captured(run) for name, run in runs["forward"].items()}
        for direction, found in runs.items():
            hosts = {name: host_milliseconds(run, device) for name, run in found.items()}
            times = in_turn(found, hosts, device, rounds)
            row["host"][direction] = {name: round(each, 4) for name, each in hosts.items()}
            row["ms"][direction] = {name: round(median(each), 4) for name, each in times.items()}
            row["spread"][direction] = {name: round(max(each) / min(each), 3) for name, each in times.items()}
    return row


def _forward(side: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return side()

    return run


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """Returns a replay of the run, which has run before, as one graph of the GPU."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _backward(out: Tensor, leaves: list[Tensor], upstream: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _same(case: Case, side: str) -> bool:
    """Whether a side computes what headway does."""
    return side in (DENSE, FLEX, REDUCED) or (side.startswith(SDPA) and case.encoding in ("none", "rope"))


def _apart(ours: Tensor, other: Tensor) -> float:
    return float((ours.float() - other.float()).norm() / other.float().norm())


def compile_all(chosen: list[Case], jobs: int, deadline: float) -> None:
    """Runs each case once, as many as ``jobs`` beside one another, so that all programs lie in caches on disk."""

    def one(number: int) -> None:
        if (left := deadline - time.time()) > 5:
            with suppress(TimeoutExpired):
                start([sys.executable, "-m", "gpu.speed", "once", str(number)], timeout=left, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(len(chosen))))


def main(words: list[str]) -> None:
    chosen, deadline = cases(), float(os.environ["HEADWAY_GPU_DEADLINE"])
    if words[0] == "compile":
        compile_all(chosen, jobs=min(8, os.cpu_count() or 1), deadline=deadline)
    elif words[0] == "once":
        print(json.dumps(measure(chosen[int(words[1])], once=True)), flush=True)
    else:
        for case in chosen:
            if time.time() > deadline:
                break
            row = measure(case)
            with Path(os.environ["HEADWAY_GPU_LOG"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{case}: {row['ms']} {row['says']}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
