"""What the Triton programs need on a GPU that is not here: registers, spills and shared memory, by the compiler alone.

``python tests/kernels/compiled_programs.py --write`` keeps it in tests/golden/triton.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "triton.json"
ARCHITECTURES = (80, 90, 100)
WIDTHS = {80: {"bfloat16": [64]}, 90: {"bfloat16": [64, 128], "float32": [64]}, 100: {"bfloat16": [64]}}
"""For each architecture the dtypes and widths of heads that are compiled; float32 takes ten times as long."""
PARTS = ("plain", "table", "everything")
"""What scores are made of; everything, once: whatever Triton's interpreter takes and its compiler does not."""


@dataclass(frozen=True)
class Compiled:
    """Attributes:
    version: triton's.
    programs: for each program what it needs.
    """

    version: str
    programs: dict[str, dict[str, int]]

    @staticmethod
    def here(architecture: int) -> Compiled:
        """Compiles the programs for an architecture, in a process of its own."""
        ran = subprocess.run([sys.executable, __file__, str(architecture)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-4000:]
        return Compiled(**json.loads(ran.stdout.splitlines()[-1]))


def compile_all(architecture: int) -> Compiled:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        """Stands for the driver of a GPU of this architecture; nothing runs."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", architecture, 32)

    triton.runtime.driver.set_active(Driver())

    from headway.kernels.triton import _launch
    from headway.kernels.triton._lowered import lower_for_programs

    found: dict[str, dict[str, int]] = {}
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    name = ""

    def compiled(program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
        found[f"{name}, {program.fn.__name__}"] = _needs(
            program.warmup(*arguments, **constants, grid=(1,), **options), tools
        )

    _launch.start = compiled
    for dtype, widths in WIDTHS[architecture].items():
        for width in widths:
            for kind in PARTS if (architecture, dtype, width) == (90, "bfloat16", 64) else ("plain", "table"):
                name = f"{dtype}, {width}, {kind}"
                launch = _launch.Launch(lower_for_programs(_call(kind, getattr(torch, dtype), width)))
                results = launch.forward()
                launch.backward(results, torch.zeros_like(results.out), torch.zeros_like(results.row_max), False)
                if kind == "table":
                    _launch.run_sums(torch.zeros(4, 99), torch.arange(10))
    return Compiled(triton.__version__, found)


def _call(kind: str, dtype: Any, width: int) -> Any:
    """A call with gradients of all its tensors."""
    import torch

    from headway import masks as M
    from headway import terms as T
    from headway.call import make_call
    from headway.coordinates import Coordinates

    def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    n = 256
    q, k, v = (leaf(2, heads, n, width, dtype=dtype) for heads in (4, 2, 2))
    terms: list[Any] = [] if kind == "plain" else [T.DistanceBias(T.Rows(leaf(4, 9), T.Clip(-4, 4)))]
    if kind != "everything":
        at = Coordinates.span(n)
        return make_call(q, k, v, terms=terms, mask=M.Causal(), q_positions=at, k_positions=at)
    at = Coordinates.of(torch.arange(n) * 2, n)
    terms += [T.QueryScale(leaf(2, 4, n)), T.TokenBias(leaf(2, 4, n), leaf(2, 4, n)), T.Sink(leaf(4)), T.SoftCap(30.0)]
    mask = M.Padding(torch.tensor([n, 9])) & (M.Window(9) | M.KeepFirst(2))
    mask = mask & M.Documents(torch.zeros(n).long().flip(0) - torch.arange(n)) & M.Boolean(torch.ones(n, n).bool())
    call = make_call(q, k, v, terms=terms, mask=mask, q_positions=at, k_positions=at)
    return call._with(dropout=0.1, seed=torch.zeros(1, dtype=torch.int64), wants_lse=True)


def _needs(kernel: Any, tools: Path) -> dict[str, int]:
    """Returns the registers, the bytes that do not fit in them, shared memory, and instructions of tensor cores."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        used = subprocess.run([tools / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True).stdout
    numbers = {word: int(number) for word, number in re.findall(r"(REG|STACK):(\d+)", used)}
    products = re.findall(r"wgmma\.mma_async|mma\.sync|tcgen05\.mma", kernel.asm["ptx"])
    return {
        "registers": numbers["REG"],
        "spilled": numbers["STACK"],
        "shared": kernel.metadata.shared,
        "products": len(products),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        every = {number: Compiled.here(number) for number in ARCHITECTURES}
        kept = {"triton": every[90].version, "programs": {number: one.programs for number, one in every.items()}}
        GOLDEN.write_text(json.dumps(kept, indent=1) + "\n")
    else:
        print(json.dumps(compile_all(int(sys.argv[1])).__dict__))
