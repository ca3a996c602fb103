"""Benchmarks of whole models against transformers: inference of published models, and training of a small T5.

The training of small language models is in ``steps``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch

from .._common.experiment import Files, write_report
from .._common.progress import ProgressListener
from ..errors import HeadwayError
from ..integrations.transformers import register
from . import report, steps, tokens
from .cases import ModelCase, ModelPlan
from .machine import busy, where
from .measure import CheckError, agree, agree_on_the_whole, in_turn, run_once
from .memory import WARM_UP, in_new_process
from .model_sides import FOLDERS, WRITTEN, Loaded, Trainer, quiet
from .rows import CaseStore, Row
from .run import BenchResults, in_order, in_words, measure_cases
from .sides import HF_EAGER, HF_SDPA, HF_TABLE, NOT_PREPACKED, OURS
from .targets import MODEL_TARGETS

LONG = 1000.0
"""Milliseconds of a run from which the run that is compared is warm-up enough."""

DIVIDED = (OURS, HF_EAGER)
"""The sides whose training step is profiled."""


def bench_models(
    plan: ModelPlan,
    weights: str | Path,
    out: str | Path,
    *,
    fresh: bool = False,
    command: str = "headway bench --models",
    watch: ProgressListener | None = None,
) -> BenchResults:
    """Measures the cases of a plan that are not in the folder yet, and writes models.jsonl and models.md to it.

    ``weights`` is a folder with minilm/ and smollm2/, as ``make weights`` creates it; cases whose weights are missing
    are left out. Without transformers nothing is measured, and a note says so. A case on which two sides differ gets no
    number. If ``fresh``, cases that are in the folder are measured again.

    Raises:
        HeadwayError: if ``weights`` is not a folder, or ``out`` cannot be written to.
    """
    watch, weights = watch or ProgressListener(), Path(weights)
    if not weights.is_dir():
        raise HeadwayError(f"{weights} is not a folder: give the one with {' and '.join(FOLDERS.values())}")
    try:
        register()
        theirs, missing = version("transformers"), None
    except HeadwayError as error:
        theirs, missing = "none", f"Nothing is measured: {error}"
    here = {**where("nn", "models", "positions", "checkpoints", "integrations"), "transformers": theirs}
    with CaseStore(out, here, fresh, ModelCase) as rows, tempfile.TemporaryDirectory() as scratch:
        results = BenchResults(rows.here, MODEL_TARGETS)
        loaded = Loaded(weights, Path(scratch))
        cases = [] if missing else [case for case in plan.cases() if loaded.has(case.model)]
        todo = [case for case in cases if not rows.has(case, plan.seconds)]
        watch.planned([in_words(rows.where)], len(cases) - len(todo), len(cases))

        if missing:
            results.note(missing, watch)
        if todo and (other := busy()):
            results.note(other, watch)
        for model in dict.fromkeys(case.model for case in plan.cases() if not loaded.has(case.model)):
            weights_of = weights / FOLDERS[model]
            results.note(f"{model} is left out: {weights_of} has no weights; make weights downloads them.", watch)
        try:
            measure_cases(cases, plan.seconds, lambda case: measure(case, plan, loaded), rows, results, watch)
        finally:
            results.rows = in_order(rows, plan.cases())
            if results.rows or results.notes:
                files: Files = {"models.md": lambda: report.models(results.rows, rows.where, command, results.notes)}
                write_report(files, rows.out, rows.file.name)
    return results


def measure(case: ModelCase, plan: ModelPlan, loaded: Loaded) -> Row:
    """Measures a case: the milliseconds or bytes of each side, and the errors of sides that failed.

    Raises:
        CheckError: if headway fails, or computes other numbers than transformers.
    """
    if case.task == "memory":
        return {"seconds": plan.seconds} | _memory(case, loaded)
    if case.task == "step":
        return steps.measure(case, plan)
    if case.task == "token":
        return tokens.measure(case, plan)
    runs, says = loaded.sides(case), dict[str, str]()
    began = time.perf_counter()
    results = run_once(runs, says, f"headway on {case}", needed=(OURS, NOT_PREPACKED))
    warm = 1e3 * (time.perf_counter() - began)
    ours = results.pop(OURS)
    if set(results) <= {NOT_PREPACKED}:
        raise CheckError(f"{case}: nothing to compare with: {says}")
    compare = agree_on_the_whole if case.task == "train" else agree
    for name, other in results.items():
        compare(f"headway and {name} on {case}", case.dtype, ours, other)
    results.clear()
    milliseconds, rounds = in_turn(runs, plan.seconds, plan.rounds, warm if warm > LONG * len(runs) else None)
    if case.task == "decode":
        milliseconds = {name: taken / WRITTEN for name, taken in milliseconds.items()}
    row: Row = {"rounds": rounds, "seconds": plan.seconds, "ms": milliseconds, "says": says}
    if case.task == "train" and case.model == "T5 encoder":
        row["parts"] = {name: division(runs[name], case.n) for name in DIVIDED if name in runs}
    return row


# ---------------------------------------------------------------- where the time goes, and the memory


ATTENTION, LINEAR, REST = "attention", "projections and feed-forward", "the rest"


def division(run: Callable[[], object], n: int) -> dict[str, float]:
    """Returns the shares of a run's time in attention, in linear maps and in everything else."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    spent = {ATTENTION: 0.0, LINEAR: 0.0, REST: 0.0}
    for event in profiler.key_averages(group_by_input_shape=True):
        spent[_part(event.key, event.input_shapes, n)] += event.self_cpu_time_total
    total = sum(spent.values())
    return {part: taken / total for part, taken in spent.items()}


def _part(operation: str, shapes: list[list[int]], n: int) -> str:
    """The part that an operation belongs to; eager attention is recognized by its matrices of [n, n]."""
    if operation in ("aten::mm", "aten::addmm"):
        return LINEAR
    ours = operation.removesuffix("Backward") in ("Attention", "PreparedAttention")
    fused = ours or operation.startswith("aten::_scaled_dot_product")
    square = any(shape[-2:] == [n, n] and len(shape) in (2, 4) for shape in shapes)
    return ATTENTION if fused or square or operation == "aten::bmm" else REST


def _memory(case: ModelCase, loaded: Loaded) -> Row:
    """The bytes that forward and backward take on each side; raises CheckError if headway fails."""
    sizes: dict[str, int] = {}
    says: dict[str, str] = {}
    folder = loaded.t5(case.model)
    for side in (OURS, HF_TABLE, HF_EAGER, HF_SDPA):
        try:
            sizes[side] = in_new_process("models", {"side": side, "folder": str(folder), "case": case.fields()})
        except RuntimeError as error:
            says[side] = str(error)
    if OURS not in sizes:
        raise CheckError(f"headway on {case}: {says[OURS]}")
    return {"bytes": sizes, "says": says}


def main(task: str) -> None:
    """Measures the memory of one side in this process, and prints the most bytes beyond those allocated before.

    ``task`` has the side, the folder, the case and the number of threads, as JSON.
    """
    from ..study.memory import Peak

    given = json.loads(task)
    case = ModelCase(**given["case"])
    torch.set_num_threads(given["threads"])
    if given["side"] != OURS:
        quiet()
        register()
    trainer = Trainer(given["side"], Path(given["folder"]))
    for n in (min(WARM_UP, case.n), case.n):
        step = trainer.step(case.batch, n, update=False)
        peak = Peak("cpu")
        before = peak.bytes()
        step()
    print(json.dumps(max(0, peak.bytes() - before)))
