"""Records calls of the CPU kernel's library, their memory and their results, for replay.cpp to repeat elsewhere.

What is right is computed from the words of a call in float64, by the reference kernel. A result may be off by UNITS
units in the last place of its largest value, which counts as LEAST where sums cancel to less, and TIMES the largest
error of the portable instruction set on this machine or of the reference kernel in float32. A backward pass takes the
results of its forward pass where it is repeated, since both passes must round scores in the same way.

A file is a row of little-endian int64 words; text and memory are filled up to whole ones. It begins with MAGIC, the
bytes of memory and all memory, then come the number of calls, and each call:

    name       bytes, text
    words      function, count, words
    addresses  count, the numbers of the words that are addresses
    regions    count; of each its address, its bytes, and where its content begins in the memory above, or -1 if it is
               what the call before has left at this address
    results    count; of each its address, dtype, four sizes, four strides, the error allowed and the right values, both
               in float64
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cpu_calls import FAR, MASKS, POSITIONS, RECORDED, TERMS, WAVES, Case, errors, heads_shared_out
from cpu_words import Reader, computed
from encoded_calls import IN_ATTENTION, encoded
from reduced_calls import counting, reductions_of
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.kernels import KERNELS
from headway.kernels.cpu import _library, _tokens
from headway.kernels.cpu._descriptor import DTYPES, double_bits
from headway.reductions import TopKeys
from headway.testing import kernels as checks

MAGIC = int.from_bytes(b"HWREPLAY", "little")
FUNCTIONS = ("hw_attention", "hw_rms_norm", "hw_rotate")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TIMES, UNITS, LEAST = 5.0, 16.0, 0.1

# ---------------------------------------------------------------- what the words say


class Filled(NamedTuple):
    """A tensor that a call fills, with what is right and what the same computation in float32 gives."""

    memory: Tensor
    right: Tensor
    naive: Tensor


def of_attention(words: list[int]) -> tuple[list[tuple[int, Tensor]], list[Filled]]:
    """The tensors in the words, with the numbers of the words that are their addresses, and those that are filled."""
    reader = Reader(words, torch.float64)
    right, naive = computed(reader).filled, computed(Reader(words, torch.float32)).filled
    filled = [Filled(*exact, values) for exact, (_, values) in zip(right, naive, strict=True)]
    return [(word, x) for word, x in reader.places if x.numel()], [one for one in filled if one.memory.numel()]


def of_tokens(function: str, words: list[int]) -> tuple[list[tuple[int, Tensor]], list[Filled]]:
    """The same of Norm and Rotate in csrc/tokens.h."""
    reader = Reader(words)
    sizes, width = words[10:13], words[13]

    def tensor(word: int, number: int, shape: list[int], strides: list[int]) -> Tensor:
        dtype = next(dtype for dtype, (of, _) in DTYPES.items() if of == number)
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        return reader.view(word, (last + 1) * dtype.itemsize, dtype, shape, strides)

    x, y = (tensor(at, words[1], [*sizes, width], [*words[at + 1 : at + 4], 1]) for at in (2, 6))
    exact = x.double()
    if function == "hw_rms_norm":
        (eps,) = array("d", array("q", words[15:16]).tobytes())
        exact = exact / (exact.square().mean(-1, keepdim=True) + eps).sqrt()
        if words[14]:
            exact = exact * tensor(14, words[1], [width], [1])
    else:
        pairs, interleaved, start = words[14:17]
        number = DTYPES[torch.float64][0]
        cos, sin = (tensor(at, number, [*sizes, pairs], [*words[at + 1 : at + 4], 1]) for at in (17, 21))
        exact = T.rotate(exact, cos, sin, "interleaved" if interleaved else "half", start)
    return reader.places, [Filled(y, exact, exact)]


def joined(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """The memory of some tensors, those that overlap as one region: address and bytes."""
    regions: list[list[int]] = []
    for low, high in sorted({extent(x) for x in tensors}):
        if regions and low < regions[-1][1]:
            regions[-1][1] = max(regions[-1][1], high)
        else:
            regions.append([low, high])
    return [(low, high - low) for low, high in regions]


def extent(x: Tensor) -> tuple[int, int]:
    """The addresses from which and up to which a tensor lies."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.itemsize


# ---------------------------------------------------------------- the file


class Recording:
    """Calls, with what is right."""

    def __init__(self) -> None:
        self.calls = 0
        self.words = array("q")
        self.memory: dict[bytes, int] = {}
        """Where each content begins; what is equal is kept once."""
        self.size = 0
        self.left: dict[tuple[int, int], bytes] = {}
        """What the last call has left in its regions."""
        self.name = ""
        """What is being computed."""

    def call(self, function: str, words: list[int], run: Callable[[str, list[int]], None]) -> None:
        """Runs a call and adds it."""
        tensors, filled = of_attention(words) if function == "hw_attention" else of_tokens(function, words)
        regions = joined([x for _, x in tensors])
        contents = [ctypes.string_at(*region) for region in regions]
        run(function, words)
        self.calls += 1
        self._text(self.name)
        self.words.extend((FUNCTIONS.index(function), len(words), *words))
        self.words.extend((len(tensors), *(word for word, _ in tensors)))
        self.words.append(len(regions))
        for region, content in zip(regions, contents, strict=True):
            self.words.extend((*region, -1 if self.left.get(region) == content else self._kept(content)))
        self.left = {region: ctypes.string_at(*region) for region in regions}
        self.words.append(len(filled))
        for one in filled:
            self._result(*one)

    def _result(self, x: Tensor, right: Tensor, naive: Tensor) -> None:
        rounded = right.to(x.dtype)
        right = torch.where(rounded.isinf(), rounded.double(), right.double())
        there = right.isfinite()
        assert torch.equal(x[~there].double().nan_to_num(7.0), right[~there].nan_to_num(7.0)), self.name
        allowed = 0.0
        if x.is_floating_point() and there.any():
            epsilon = torch.finfo(torch.float32 if x.dtype == torch.float64 else x.dtype).eps
            usual = max((found.double() - right)[there].nan_to_num(0).abs().max().item() for found in (x, naive))
            allowed = TIMES * usual + UNITS * epsilon * max(right[there].abs().max().item(), LEAST)
        sizes, strides = ((*(4 - x.ndim) * (fill,), *of) for fill, of in ((1, x.shape), (0, x.stride())))
        self.words.extend((x.data_ptr(), DTYPES[x.dtype][0], *sizes, *strides, double_bits(allowed)))
        self.words.frombytes(right.contiguous().numpy().tobytes())

    def _text(self, text: str) -> None:
        raw = text.encode()
        self.words.append(len(raw))
        self.words.frombytes(raw + bytes(-len(raw) % 8))

    def _kept(self, content: bytes) -> int:
        content += bytes(-len(content) % 8)
        if content not in self.memory:
            self.memory[content] = self.size
            self.size += len(content)
        return self.memory[content]

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            array("q", [MAGIC, self.size]).tofile(file)
            for content in self.memory:
                file.write(content)
            array("q", [self.calls]).tofile(file)
            self.words.tofile(file)


@contextmanager
def recording() -> Iterator[Recording]:
    """Inside, every call of the library is recorded, and uses the portable instruction set.

    Memory that torch has not filled holds NaN, so that a number that is never written is seen.
    """
    into, run = Recording(), _library._call
    with pytest.MonkeyPatch.context() as patch, _library.using("portable"):
        patch.setattr(_library, "_call", lambda name, words: into.call(name, words, run))
        torch.use_deterministic_algorithms(True)
        try:
            yield into
        finally:
            torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- the calls

SMALL = {"batch": 1, "heads": 2, "kv_heads": 1, "n": 50, "m": 197, "head_dim": 10, "v_dim": 7, "wanted": 1.0}
"""A block and a bit of queries and of keys, and widths that are no whole number of vectors."""


def recorded() -> Iterator[tuple[str, Callable[[], object]]]:
    """Names of calls, and functions that run them; a new term, mask, position or encoding is among them by itself."""
    for number, (dtype, mask) in enumerate(itertools.product(FLOATS, MASKS)):
        yield _drawn(number, dtype, mask=mask, batch=2, terms=("clip", "keys with u"), positions="plain")
    positions = itertools.cycle(POSITIONS)
    for number, (dtype, term) in enumerate(itertools.product(FLOATS, TERMS)):
        at = next(where for where in positions if term not in WAVES or where not in FAR)
        yield _drawn(number, dtype, terms=(term,), mask="causal", positions=at)
    for number, (dtype, n, term) in enumerate(itertools.product(FLOATS, (3, 50), RECORDED)):
        yield _drawn(number, dtype, terms=(term, "clip"), mask="causal", positions=next(positions), n=n, m=400)
    for number, (dtype, n) in enumerate(itertools.product(FLOATS, (1, 2, 3, 4))):
        yield _drawn(number, dtype, terms=("clip", "keys"), mask="none", n=n, m=900)
    for number, dtype in enumerate(FLOATS * 16):
        yield _drawn_at_will(number, dtype)
    masks = itertools.cycle(checks.mask_names())
    for dtype, name in itertools.product(FLOATS, IN_ATTENTION):
        yield _encoding(name, dtype, next(masks))
    for number, dtype in enumerate(FLOATS * 4):
        yield _reductions(number, dtype)
    for mask in checks.mask_names():
        yield f"hidden NaN, {mask}", functools.partial(checks.obeys_the_mask, "cpu", mask)
    for dtype in FLOATS:
        yield _not_finite(dtype)
        yield _documents(dtype)
    for dtype, width, layout in itertools.product(FLOATS, (2, 40, 66), ("half", "interleaved")):
        yield _tokens_of(dtype, width, layout)


def _named(dtype: torch.dtype, *what: object) -> str:
    return ", ".join(map(str, (str(dtype).removeprefix("torch."), *what)))


def _right(case: Case, dtype: torch.dtype) -> None:
    wrong = errors(case, dtype)
    assert not wrong, f"{case}: {wrong}"


def _drawn(seed: int, dtype: torch.dtype, **given: object) -> tuple[str, Callable[[], None]]:
    case = Case.drawn(seed, **{**SMALL, "dropout": 0.0, **given})
    what = f"{case.mask}, {' and '.join(case.terms)}, {case.positions}, {case.n} queries"
    return _named(dtype, what), lambda: _right(case, dtype)


def _drawn_at_will(seed: int, dtype: torch.dtype) -> tuple[str, Callable[[], None]]:
    """Anything of the tables; every second of them is spread over many threads."""
    case = Case.drawn(70_000 + seed, 1 << 13)

    def run() -> None:
        if seed % 2:
            with heads_shared_out():
                _right(case, dtype)
        else:
            _right(case, dtype)

    return _named(dtype, f"drawn call {case.seed}"), run


def _encoding(name: str, dtype: torch.dtype, mask: str) -> tuple[str, Callable[[], None]]:
    def run() -> None:
        inputs, arguments = encoded(name, 9, dtype)
        chosen = checks.mask_examples(inputs[0].shape[0], 9, 9)[mask]
        if arguments["encoding"].causal_only:
            chosen = M.Causal() if chosen is None else M.Causal() & chosen
        arguments["mask"] = chosen
        if hw.explain(*inputs, **arguments).reasons["cpu"]:
            return
        leaves = [*inputs, *(x for x in arguments["encoding"].parameters() if x.requires_grad)]
        out = hw.attention(*inputs, **arguments, kernel="cpu")
        upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)
        torch.autograd.grad(out, leaves, upstream, allow_unused=True)

    return _named(dtype, name, mask), run


def _reductions(seed: int, dtype: torch.dtype) -> tuple[str, Callable[[], None]]:
    case = Case.drawn(80_000 + seed, 1 << 13, dropout=0.0)

    def run() -> None:
        call = case.make(dtype, torch.float32).call
        least = torch.randn(call.q.shape[:3], generator=torch.Generator().manual_seed(seed))
        for asked in (reductions_of(call, seed), [TopKeys(3, least)]):
            KERNELS["cpu"].reduce(call, asked, counting(call, seed))

    return _named(dtype, f"reductions of drawn call {case.seed}"), run


def _not_finite(dtype: torch.dtype) -> tuple[str, Callable[[], None]]:
    """Values; some that are seen are NaN or infinite."""

    def run() -> None:
        call, _ = checks.build("none", "alone", "none", 0, dtype, torch.float32)
        v = call.v.detach().clone()
        v[:, :, 2, 0], v[:, :, 9, 1] = torch.nan, -torch.inf
        KERNELS["cpu"].run(call._with(q=call.q.detach(), k=call.k.detach(), v=v))

    return _named(dtype, "values that are not finite"), run


def _documents(dtype: torch.dtype) -> tuple[str, Callable[[], None]]:
    """Documents that are long enough to be segments of a row."""

    def run() -> None:
        g = torch.Generator().manual_seed(3)
        lengths = [200, 20, 180, 70]
        q, k, v = (
            torch.randn(1, heads, sum(lengths), 9, generator=g).to(dtype).requires_grad_() for heads in (2, 1, 1)
        )
        table = torch.randn(2, 17, generator=g).requires_grad_()
        terms = (T.DistanceBias(T.Rows(table, T.Clip(-8, 8))),)
        out = hw.attention(q, k, v, terms=terms, mask=M.Causal() & M.Documents.lengths(lengths), kernel="cpu")
        upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)
        torch.autograd.grad(out, (q, k, v, table), upstream)

    return _named(dtype, "packed documents"), run


def _tokens_of(dtype: torch.dtype, width: int, layout: str) -> tuple[str, Callable[[], None]]:
    """RMS norms and rotations."""

    def run() -> None:
        g = torch.Generator().manual_seed(width)
        x = torch.randn(2, 7, 3, width + 5, generator=g).to(dtype).transpose(1, 2)
        # zeros, subnormal numbers, infinite ones and NaN are converted in their own ways
        tiny = torch.finfo(dtype).tiny
        x[0, 0, :, width] = torch.tensor([0.0, -0.0, tiny / 4, 2.5 * tiny, torch.inf, -torch.inf, torch.nan])
        angles = 100 * torch.rand(2, 1, 7, width // 2, generator=g, dtype=torch.float64)
        _tokens.rms_norm(x, None, 1e-3)
        _tokens.rms_norm(x, x[0, 0, 0].clone(), 1e-3)
        _tokens.rotate(x, T.Rotation(angles.cos(), angles.sin(), layout, 3))

    return _named(dtype, f"RMS norm and {layout} rotation of {width}"), run


def record(every: int = 1) -> Recording:
    """Records every k-th of the calls."""
    with recording() as found:
        for name, run in itertools.islice(recorded(), 0, None, every):
            found.name = name
            run()
    return found
