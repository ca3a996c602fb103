"""Measures speed: all sides of a case in turn in one process, medians, ratios to headway's own choice.

    python benchmarks/run.py [--lengths 512,2048] [--encodings t5,rope] [--rounds 11]

No number is given for a kernel whose checks are red. Rows go to benchmarks/results/<date>.jsonl as they come.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from cases import BATCH, HEAD_DIM, HEADS, Case, cases, sides
from verify import red

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def medians(case: Case, rounds: int) -> dict[str, float]:
    """Milliseconds of each side, taken in turn."""
    runs = sides(case)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def flex_attention(case: Case, rounds: int) -> str:
    """What compiled FlexAttention takes on the same call, or says."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(BATCH, HEADS, case.n, HEAD_DIM, requires_grad=case.training) for _ in range(3))
    try:
        block = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.n, case.n, device="cpu")
        compiled = torch.compile(flex_attention)
        times = []
        for _ in range(rounds + 2):
            start = time.perf_counter()
            compiled(q, k, v, block_mask=block)
            times.append(1e3 * (time.perf_counter() - start))
        return f"{statistics.median(times[2:]):.1f} ms"
    except Exception as error:  # whatever it raises is the result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--encodings", default="")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    wanted = set(filter(None, options.encodings.split(",")))
    where = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(f"float32, causal, batch {BATCH}, {HEADS} heads of {HEAD_DIM}; medians of {options.rounds}")
    failing = red()
    for kernel, why in failing.items():
        print(f"no number for kernel {kernel}: its checks are red: {why}")
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{where['date']}.jsonl").open("a") as out:
        for case in cases([int(n) for n in options.lengths.split(",")]):
            if (wanted and case.encoding not in wanted) or failing:
                continue
            taken = medians(case, options.rounds)
            row = where | {"case": case.name, "milliseconds": taken}
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(case.name)
            for side, milliseconds in taken.items():
                print(f"    {milliseconds:9.2f} ms  ×{taken['headway'] / milliseconds:5.2f}  {side}")
        for training in (False, True):
            case = Case("none", int(options.lengths.split(",")[0]), training)
            print(f"FlexAttention, causal, {case.name}: {flex_attention(case, options.rounds)}")


if __name__ == "__main__":
    main()
