"""What the Triton programs need on a GPU that is not here: registers, spills, shared memory, and how many instructions
their loops have, by the compiler alone.

``python tests/kernels/compiled_programs.py --write`` keeps it in tests/golden/triton.json, and ``--table`` prints the
table of docs/gpu.md from it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from descriptors import misaddressed

GOLDEN = Path(__file__).parents[1] / "golden" / "triton.json"
EVERYWHERE = ("plain", "table", "relative keys")
"""What scores are made of, on nearly every architecture."""
PARTS = (
    *EVERYWHERE,
    *("long table", "slopes", "linear", "logarithm", "grid", "stretched", "dense", "documents", "everything"),
    *("relative everything", "relative by row", "narrow values"),
)
"""What they are made of once: whatever the interpreter takes and the compiler does not."""
COMPILED = {
    80: {("bfloat16", 64): EVERYWHERE},
    86: {("bfloat16", 128): ("plain", "dense", "everything")},  # as 8.9 and 12.0 it has the least shared memory
    90: {
        ("bfloat16", 64): PARTS,
        ("bfloat16", 128): EVERYWHERE,
        ("bfloat16", 256): ("plain",),
        ("float16", 64): ("plain",),
        ("float32", 64): ("plain", "relative keys"),
    },
    100: {("bfloat16", 64): EVERYWHERE},
}
"""What is compiled of each architecture, dtype and width of heads; float32 takes ten times as long."""
LEAST_SHARED = 99 << 10
"""The most bytes of shared memory that a program may have on every architecture of 8.0 and later."""
LOOPS = ("forward", "queries_gradient", "keys_gradient", "diagonals_gradient")
"""The programs whose instructions in loops are counted, only for 9.0."""
REDUCED = ("entropy and the largest", "every reduction")
"""What is reduced of the weights: the first with the output, the second without it."""


@dataclass(frozen=True)
class Compiled:
    """Attributes:
    version: triton's.
    programs: for each program what it needs.
    """

    version: str
    programs: dict[str, dict[str, Any]]

    @staticmethod
    def here(architecture: int) -> Compiled:
        """Compiles the programs for an architecture, in a process of its own."""
        return Compiled(**printed(str(architecture)))


def printed(argument: str) -> Any:
    """Returns what this file prints, in a process of its own."""
    ran = subprocess.run([sys.executable, __file__, argument], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def compile_all(architecture: int) -> Compiled:
    """Compiles the programs for an architecture."""
    import torch
    import triton

    found: dict[str, dict[str, Any]] = {}
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    name = ""

    def compiled(program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
        term = term_of(constants)
        kernel = program.warmup(*arguments, **constants, grid=(1,), **options)
        needs = _needs(kernel, tools)
        if architecture == 90 and program.fn.__name__ in LOOPS:
            needs |= {"loops": _loops(_disassembled(kernel.asm["cubin"], tools)), "block": blocks[:3]}
        if architecture == 90 and "wgmma" in kernel.asm["ptx"]:  # others have no descriptors
            wrong = misaddressed(_disassembled(kernel.asm["cubin"], tools))
            assert not wrong, f"{name}, {program.fn.__name__}: products read memory that is not theirs: {wrong}"
        found[f"{name}, {program.fn.__name__}{term}"] = needs

    start_by(compiled, architecture)
    for (dtype, width), kinds in COMPILED[architecture].items():
        for kind in kinds:
            name = f"{dtype}, {width}, {kind}"
            run(kind, getattr(torch, dtype), width)
            if kind.startswith("relative"):  # as those of one row each they decode
                continue
            run(kind, getattr(torch, dtype), width, 1, 4096)
            name += ", 32 rows"
            run(kind, getattr(torch, dtype), width, 16, 4096)
            if kind in ("plain", "everything"):
                for amount in REDUCED:
                    name = f"{dtype}, {width}, {kind}, {amount}"
                    reduce(amount, kind, getattr(torch, dtype), width)
    return Compiled(triton.__version__, found)


def versions_over_lengths() -> dict[str, int]:
    """Returns for each program how often it would be compiled for calls of 64 lengths above 1; compiles nothing."""
    import torch
    import triton

    keys: dict[str, set[str]] = {}
    name, term = "", ""

    def asked(*, key: str, fn: Any, **others: Any) -> bool:
        keys.setdefault(f"{name}, {fn.name.split('.')[-1]}{term}", set()).add(key)
        return True  # nothing is to be done

    def noted(program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        nonlocal term
        term = f"{term_of(constants)}, {constants.get('rows')} × {constants.get('block')}"
        program.warmup(*arguments, **constants, grid=(1,), num_warps=blocks.num_warps, num_stages=blocks.num_stages)

    start_by(noted, 90)
    triton.knobs.runtime.jit_cache_hook = asked
    lengths = [*range(2, 35), *range(48, 1000, 41), 63, 64, 65, 128, 256, 512, 1024]
    assert len(lengths) == 64
    for kind in PARTS:
        for width in (64, 24):
            name = f"{kind}, {width}"
            for n in lengths:
                for m in (n, 3 * n + 1):
                    run(kind, torch.bfloat16, width, n, m)
                run(kind, torch.bfloat16, width, 1, 500 + n)
            name += ", every reduction"
            for n in lengths if (kind, width) == ("plain", 24) else ():
                reduce("every reduction", kind, torch.bfloat16, width, n)
    return {name: len(found) for name, found in keys.items()}


def term_of(constants: dict[str, Any]) -> str:
    """Returns what a program is of, if it is one for relative keys, queries or values, for keys, or interleaved."""
    term = f" of {constants['kind'].value}" if "kind" in constants else ""
    return term + "".join(f", {name}" for name in ("of_keys", "interleaved", "with_delta") if constants.get(name))


def start_by(start: Callable[..., None], architecture: int) -> None:
    """Has programs started by a function, as if there were a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    from headway.kernels.triton import _backward, _forward, _launch, _lowered, _start

    class Driver:
        """Stands for the driver of a GPU of this architecture; nothing runs."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", architecture, 32)

    triton.runtime.driver.set_active(Driver())
    for module in (_launch, _forward, _backward, _start):
        module.start = start
    _lowered.REST_LIMIT = 0  # no table is made a dense bias
    _launch._has_warpgroups = lambda device: 90 <= architecture < 120


def run(kind: str, dtype: Any, width: int, n: int = 256, m: int = 256) -> None:
    """Starts all programs of a call; of one that decodes those of its output."""
    import torch

    from headway.kernels.triton import _start
    from headway.kernels.triton._backward import Backward
    from headway.kernels.triton._forward import Forward
    from headway.kernels.triton._lowered import lower_for_programs
    from headway.terms import LAYOUTS, Rotation

    call = lower_for_programs(_call(kind, dtype, width, n, m))
    results = Forward(call).run()
    if 64 * n <= m:  # decoding
        return
    Backward(call, results, torch.zeros_like(results.out), torch.zeros_like(results.row_max), False).run()
    if kind == "table":
        _start.run_sums(torch.zeros(4, 99), torch.arange(10))
    if kind == "plain":
        angles = torch.zeros(1, 1, n, width // 2, dtype=torch.float64)
        for layout in LAYOUTS:
            _start.rotations(call.q, Rotation(angles, angles, layout))


def reduce(amount: str, kind: str, dtype: Any, width: int, n: int = 256) -> None:
    """Starts the programs that reduce the weights of a call."""
    import torch

    from headway import reductions as R
    from headway.kernels._problem import of_weights
    from headway.kernels.triton._lowered import lower_for_programs
    from headway.kernels.triton._reductions import reduce_by_programs

    call = _call(kind, dtype, width, n, n)
    found: list[R.Reduction] = [R.Entropy(), R.TopKeys(1)]
    if amount == "every reduction":
        call, labels = of_weights(call), torch.zeros(2, n, dtype=torch.int64)
        found += [R.VisibleKeys(), R.MeanDistance(), R.TopKeys(8), R.WeightsAt(torch.zeros(2, n, 5, dtype=torch.int64))]
        found += [R.WeightsByLabel(labels, 5), R.WeightsByDistance(tuple(range(8)))]
        found += [R.WeightsOfMatches(labels, labels, 7), R.ColumnSums(), R.PooledMap(8, 8)]
    reduce_by_programs(lower_for_programs(call), found, torch.ones(2, n, dtype=torch.bool))


def _call(kind: str, dtype: Any, width: int, n: int, m: int) -> Any:
    """A call with gradients of all its tensors."""
    import torch

    from headway import masks as M
    from headway import terms as T
    from headway.call import make_call
    from headway.coordinates import Coordinates

    def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    q, k, v = (leaf(2, heads, tokens, width, dtype=dtype) for heads, tokens in ((4, n), (2, m), (2, m)))
    q_at, k_at = (Coordinates.of(torch.arange(tokens) * 2, tokens) for tokens in (n, m))
    if kind == "narrow values":  # of heads whose rows are not aligned
        q, k, v = (
            leaf(2, heads, tokens, size, dtype=dtype) for heads, tokens, size in ((4, n, 24), (2, m, 24), (2, m, 16))
        )
        return make_call(q, k, v, mask=M.Causal())
    if kind == "slopes":
        slopes = leaf(4)
        return make_call(q, k, v, terms=[T.DistanceBias(T.Linear(slopes, slopes))], mask=M.Causal())
    if kind in ("linear", "logarithm"):
        values = (T.Linear if kind == "linear" else T.Log)(leaf(4), leaf(4))
        return make_call(q, k, v, terms=[T.DistanceBias(values)], q_positions=q_at, k_positions=k_at)
    if kind == "long table":
        return make_call(q, k, v, terms=[T.DistanceBias(T.Log(leaf(4), leaf(4)))], mask=M.Causal())
    if kind == "grid":
        q_at, k_at = (Coordinates.of(torch.arange(2 * tokens).view(1, tokens, 2), tokens) for tokens in (n, m))
        values = T.Rows(leaf(4, 35), T.Grid((T.Clip(-3, 3), T.Clip(-2, 2, axis=1))))
        return make_call(q, k, v, terms=[T.DistanceBias(values)], q_positions=q_at, k_positions=k_at)
    if kind.startswith("relative"):
        return _relative_call(kind, (q, k, v), leaf, (q_at, k_at))
    if kind == "stretched":
        pieces = torch.zeros(7), leaf(4, 8), leaf(4, 8), leaf(1), leaf(1, n)
        return make_call(q, k, v, terms=[T.DistanceBias(T.Stretched(*pieces))], mask=M.Causal())
    if kind == "dense":
        return make_call(q, k, v, terms=[T.DenseBias(leaf(1, 4, n, m, dtype=dtype))], mask=M.Causal())
    if kind == "documents":
        documents = M.Documents(*(-torch.arange(tokens) for tokens in (m, n)))
        return make_call(q, k, v, mask=M.Causal() & documents)
    terms: list[Any] = [] if kind == "plain" else [T.DistanceBias(T.Rows(leaf(4, 9), T.Clip(-4, 4)))]
    if kind != "everything":
        sides = Coordinates.span(n, start=m - n), Coordinates.span(m)
        return make_call(q, k, v, terms=terms, mask=M.Causal(), q_positions=sides[0], k_positions=sides[1])
    terms += [T.DistanceBias(T.Power(leaf(4), leaf(4)))]
    terms += [T.QueryScale(leaf(2, 4, n)), T.TokenBias(leaf(2, 4, n), leaf(2, 4, m)), T.Sink(leaf(4)), T.SoftCap(30.0)]
    documents = M.Documents(*(-torch.arange(tokens) for tokens in (m, n)))
    mask = M.Padding(torch.tensor([m, min(m, 9)])) & (M.Window(9) | M.KeepFirst(2)) & documents
    mask = mask & M.Boolean(torch.ones(n, m, dtype=torch.bool))
    call = make_call(q, k, v, terms=terms, mask=mask, q_positions=q_at, k_positions=k_at)
    return call._with(dropout=0.1, seed=torch.zeros(1, dtype=torch.int64), wants_lse=True)


def _relative_call(kind: str, tensors: Any, leaf: Any, gaps: Any) -> Any:
    from headway import masks as M
    from headway import terms as T
    from headway.call import make_call
    from headway.coordinates import Coordinates

    n, m, width = tensors[0].shape[2], tensors[1].shape[2], tensors[0].shape[3]
    at = gaps if "by row" in kind else (Coordinates.span(n, start=m - n), Coordinates.span(m))
    terms = [
        of(T.Rows(leaf(heads, 9, width), T.Clip(-4, 4)))
        for heads, of in ((4, T.RelativeKeys), (4, T.RelativeQueries), (1, T.RelativeValues))
        if kind in (f"relative {of.__name__[8:].lower()}", "relative everything", "relative by row")
    ]
    return make_call(*tensors, terms=terms, mask=M.Causal(), q_positions=at[0], k_positions=at[1])


def _needs(kernel: Any, tools: Path) -> dict[str, Any]:
    """Returns the registers, the bytes that do not fit in them, shared memory, and instructions of tensor cores."""
    used = _said(kernel.asm["cubin"], tools / "cuobjdump", "-res-usage")
    numbers = {word: int(number) for word, number in re.findall(r"(REG|STACK):(\d+)", used)}
    products = re.findall(r"wgmma\.mma_async|mma\.sync|tcgen05\.mma", kernel.asm["ptx"])
    return {
        "registers": numbers["REG"],
        "spilled": numbers["STACK"],
        "shared": kernel.metadata.shared,
        "products": len(products),
    }


def _loops(disassembly: str) -> list[int]:
    """Returns how many instructions the innermost loops with products have, in their order."""
    code, labels = list[str](), dict[str, int]()
    for line in disassembly.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*);", line):
            code.append(instruction[1])
    jumps = [(re.search(r"\bBRA\b.*(\.L_\w+)", one), at) for at, one in enumerate(code)]
    loops = [(labels[jump[1]], at) for jump, at in jumps if jump is not None and labels.get(jump[1], at + 1) <= at]
    loops = [one for one in loops if any("MMA" in instruction for instruction in code[slice(*one)])]
    inner = [x for x in loops if not any(x != y and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    return [last - first + 1 for first, last in inner]


@cache
def _disassembled(cubin: bytes, tools: Path) -> str:
    """Returns the instructions of a compiled program; most of the time goes into this."""
    return _said(cubin, tools / "nvdisasm", "-c", "-ndf")  # without the analysis of branches, which nobody reads


def _said(cubin: bytes, *command: Any) -> str:
    """Returns what a tool prints of a compiled program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([*command, file.name], capture_output=True, text=True).stdout


SIDE = 64
"""Queries and keys of the pairs that the table is of."""
FLOPS = 4096
"""What the tensor cores of a multiprocessor compute in a clock; its 4 schedulers start one instruction each."""
REGISTERS, SHARED = 1 << 16, 228 << 10
"""What a multiprocessor has; 1 KiB of shared memory of each program is the system's."""
SHOWN = {
    "plain": "none",
    "table": "table of distances",
    "long table": "table, formulas",
    "slopes": "one slope",
    "dense": "dense",
    "stretched": "stretched",
    "documents": "documents",
    "relative keys": "relative keys",
}
PRODUCTS = {"forward": 2, "queries_gradient": 3, "keys_gradient": 4}


def table_of_loops() -> str:
    """Returns the table of docs/gpu.md: for 64 × 64 pairs without masks the clocks for all instructions."""
    kept = json.loads(GOLDEN.read_text())["programs"]["90"]
    lines = ["| bias, head_dim | " + " | ".join(PRODUCTS) + " |", "|---" * 4 + "|"]
    for width in (64, 128):
        clocks = [str(2 * SIDE * SIDE * width * count // FLOPS) for count in PRODUCTS.values()]
        lines.append(f"| *tensor cores, {width}* | *" + "* | *".join(clocks) + "* |")
        for kind, shown in SHOWN.items():
            if f"bfloat16, {width}, {kind}, forward" in kept:
                needs = [kept[f"bfloat16, {width}, {kind}, {program}"] for program in PRODUCTS]
                lines.append(f"| {shown}, {width} | " + " | ".join(map(_clocks, needs)) + " |")
    return "\n".join(lines)


def _clocks(needs: dict[str, Any]) -> str:
    """The clocks for the loops without masks: of a clipped table those of far blocks, and of near ones.

    Behind a cross how many programs a multiprocessor runs at once, if there is more than one.
    """
    rows, block, warps = needs["block"]
    pairs = rows * block / SIDE**2
    clocks = " / ".join(str(round(one * warps / 4 / pairs)) for one in needs["loops"][:-1])
    registers = -(-needs["registers"] // 8) * 8 * 32 * warps
    at_once = min(REGISTERS // registers, SHARED // (needs["shared"] + 1024))
    return clocks if at_once == 1 else f"{clocks} ×{at_once}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        every = {number: Compiled.here(number) for number in COMPILED}
        kept = {"triton": every[90].version, "programs": {number: one.programs for number, one in every.items()}}
        GOLDEN.write_text(json.dumps(kept, indent=1) + "\n")
    elif sys.argv[1:] == ["--table"]:
        print(table_of_loops())
    elif sys.argv[1:] == ["--lengths"]:
        print(json.dumps(versions_over_lengths()))
    else:
        print(json.dumps(compile_all(int(sys.argv[1])).__dict__))
