"""Benchmarks of whole models against transformers: inference of published models, and training of a small T5.

The training of small language models is in ``steps``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checkpoints
from .._common.experiment import Files, write_report
from .._common.progress import ProgressListener
from .._common.text_files import read_text
from ..errors import HeadwayError
from ..integrations.transformers import register, use_bias_table
from ..nn import prepack
from . import report, steps
from .cases import DTYPES, STEP_MODELS, ModelCase, ModelPlan
from .machine import busy, where
from .measure import CheckError, agree, agree_on_the_whole, in_turn
from .memory import WARM_UP
from .rows import Row, Rows
from .run import BenchResults, in_order, in_words, measure_cases
from .sides import HF_EAGER, HF_SDPA, HF_TABLE, NOT_PREPACKED, OURS, Run
from .targets import MODEL_TARGETS, Judged, judge

FOLDERS = {"MiniLM": "minilm", "SmolLM2": "smollm2"}
"""The folders of published weights, as ``make weights`` creates them."""

WRITTEN = 8
"""Tokens that a run decodes one by one."""

LONG = 1000.0
"""Milliseconds of a run from which the run that is compared is warm-up enough."""

DIVIDED = (OURS, HF_EAGER)
"""The sides whose training step is profiled."""

T5_SMALL: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
T5_CLASSES = {"T5 encoder": "T5EncoderModel", "T5": "T5ForConditionalGeneration"}


@dataclass
class ModelResults(BenchResults):
    """The results of a benchmark of whole models."""

    @property
    def targets(self) -> list[Judged]:
        """Each target that a case was measured of, and whether it is met."""
        return judge(self.rows, MODEL_TARGETS)


def bench_models(
    plan: ModelPlan,
    weights: str | Path,
    out: str | Path,
    *,
    fresh: bool = False,
    command: str = "headway bench --models",
    watch: ProgressListener | None = None,
) -> ModelResults:
    """Measures the cases of a plan that are not in the folder yet, and writes models.jsonl and models.md to it.

    ``weights`` is a folder with minilm/ and smollm2/, as ``make weights`` creates it; cases whose weights are missing
    are left out. Without transformers nothing is measured, which a note says. A case on which two sides differ gets no
    number. If ``fresh``, cases that are in the folder are measured again.

    Raises:
        HeadwayError: if ``weights`` is no folder, or ``out`` cannot be written to.
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
    with Rows(out, here, fresh, ModelCase) as rows, tempfile.TemporaryDirectory() as scratch:
        results = ModelResults(rows.here)
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
    runs, says = loaded.sides(case), {}
    results: dict[str, list[Tensor]] = {}
    warm = 0.0
    for name, run in list(runs.items()):
        began = time.perf_counter()
        try:
            results[name] = run()
        except Exception as error:  # any failure of another side is its result
            says[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            del runs[name]
            if name in (OURS, NOT_PREPACKED):
                raise CheckError(f"headway on {case}: {says[name]}") from error
        warm += 1e3 * (time.perf_counter() - began)
    ours = results.pop(OURS)
    if set(results) <= {NOT_PREPACKED}:
        raise CheckError(f"{case}: nothing to compare with: {says}")
    for name, other in results.items():
        (agree_on_the_whole if case.task == "train" else agree)(
            f"headway and {name} on {case}", case.dtype, ours, other
        )
    results.clear()
    milliseconds, rounds = in_turn(runs, plan.seconds, plan.rounds, warm if warm > LONG * len(runs) else None)
    if case.task == "decode":
        milliseconds = {name: taken / WRITTEN for name, taken in milliseconds.items()}
    row: Row = {"rounds": rounds, "seconds": plan.seconds, "ms": milliseconds, "says": says}
    if case.task == "train" and case.model == "T5 encoder":
        row["parts"] = {name: division(runs[name], case.n) for name in DIVIDED if name in runs}
    return row


# ---------------------------------------------------------------- both sides of a case


class Loaded:
    """The models of both sides, loaded on demand; those of the last case are kept."""

    def __init__(self, weights: Path, scratch: Path) -> None:
        self.weights, self.scratch = weights, scratch
        self._last: tuple[Any, Any] = (None, None)

    def has(self, model: str) -> bool:
        """Returns whether the weights of a ``model`` are there; those of models that are trained are random."""
        return model in T5_CLASSES or model in STEP_MODELS or self._source(model) is not None

    def sides(self, case: ModelCase) -> dict[str, Run]:
        """Returns the sides of a ``case``, headway's first.

        Each runs a batch, a prompt, some tokens, or a training step.
        """
        _quiet()
        kinds = {"encode": self._encode, "prefill": self._prefill, "decode": self._decode, "train": self._train}
        return kinds[case.task](case)

    def t5(self, model: str) -> Path:
        """Returns a folder with a T5 of random weights, for the ``model`` "T5" or "T5 encoder"."""
        folder = self.scratch / T5_CLASSES[model]
        if not folder.exists():
            _quiet()
            transformers = import_module("transformers")
            torch.manual_seed(0)
            drawn = getattr(transformers, T5_CLASSES[model])(transformers.T5Config(**T5_SMALL))
            drawn.save_pretrained(folder)
        return folder

    def _source(self, model: str) -> Path | None:
        folder = self.weights / FOLDERS[model]
        if (folder / "config.json").exists():
            return folder
        return next(iter(sorted(folder.glob("*.gguf"))), None)

    def _ours(self, model: str, dtype: str) -> Any:
        source = self._source(model)
        assert source is not None
        return checkpoints.load(source, dtype=DTYPES[dtype])

    def _theirs(self, kind: str, model: str, dtype: str, **more: Any) -> Any:
        """The model by transformers, which reads a GGUF file as headway has written it."""
        source = self._source(model)
        assert source is not None
        if source.is_file():
            written = self.scratch / model
            if not written.exists():
                checkpoints.save(self._ours(model, "float32"), written)
            source = written
        load = getattr(import_module("transformers"), kind).from_pretrained
        return load(source, dtype=DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=False, **more)

    def _once(self, key: tuple[str, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._last[0] != key:
            self._last = (None, None)  # frees the models of the case before
            self._last = (key, make())
        models: dict[str, Any] = self._last[1]
        return models

    def _encode(self, case: ModelCase) -> dict[str, Run]:
        models = self._once(
            ("encode", case.model, case.dtype),
            lambda: {
                OURS: prepack(self._ours(case.model, case.dtype)),
                NOT_PREPACKED: self._ours(case.model, case.dtype),
                HF_SDPA: self._theirs("AutoModel", case.model, case.dtype, add_pooling_layer=False),
            },
        )
        ids = _ids(case.batch, case.n, models[OURS].checkpoint.config["vocab_size"])

        def run(model: Any) -> Run:
            def encode() -> list[Tensor]:
                with torch.inference_mode():
                    return [_first(model(ids))]

            return encode

        return {name: run(model) for name, model in models.items()}

    def _writers(self, case: ModelCase) -> dict[str, Writer]:
        return self._once(
            ("write", case.model, case.dtype),
            lambda: {
                OURS: Headway(prepack(self._ours(case.model, case.dtype))),
                HF_SDPA: Transformers(self._theirs("AutoModelForCausalLM", case.model, case.dtype)),
            },
        )

    def _prefill(self, case: ModelCase) -> dict[str, Run]:
        writers = self._writers(case)
        ids = _ids(case.batch, case.n, writers[OURS].vocab_size)

        def run(writer: Writer) -> Run:
            def prefill() -> list[Tensor]:
                with torch.inference_mode():
                    return [writer.prefill(ids)]

            return prefill

        return {name: run(writer) for name, writer in writers.items()}

    def _decode(self, case: ModelCase) -> dict[str, Run]:
        writers = self._writers(case)
        ids = _ids(case.batch, case.n + WRITTEN, writers[OURS].vocab_size)

        def run(writer: Writer) -> Run:
            def decode() -> list[Tensor]:
                with torch.inference_mode():
                    logits = [writer.step(ids[:, case.n + token, None]) for token in range(WRITTEN)]
                    writer.forget(WRITTEN)
                    return logits

            return decode

        for writer in writers.values():
            if writer.length != case.n:
                with torch.inference_mode():
                    writer.prefill(ids[:, : case.n])
        return {name: run(writer) for name, writer in writers.items()}

    def _train(self, case: ModelCase) -> dict[str, Run]:
        names = (OURS, HF_TABLE, HF_EAGER, HF_SDPA) if case.model == "T5 encoder" else (OURS, HF_EAGER)
        folder = self.t5(case.model)
        self._last = (None, None)
        return {name: Trainer(name, folder).step(case.batch, case.n) for name in names}


class Writer(Protocol):
    """The interface of a language model of one side, with the cache of the last prompt, of ``length`` tokens."""

    length: int

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        ...

    def prefill(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, n] to the logits of the last token [batch, 1, vocab_size], and fills the cache."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, 1] to logits [batch, 1, vocab_size], and appends them to the cache."""
        ...

    def forget(self, count: int) -> None:
        """Removes the last ``count`` tokens from the cache."""
        ...


class Headway:
    """A ``Decoder`` with its cache."""

    length = 0

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, None

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        size: int = self.model.checkpoint.config["vocab_size"]
        return size

    def prefill(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, n] to the logits of the last token [batch, 1, vocab_size], and fills the cache."""
        self.cache, self.length = self.model.new_cache(), ids.shape[1]
        logits: Tensor = self.model.logits(self.model.hidden(ids, cache=self.cache)[:, -1:])
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, 1] to logits [batch, 1, vocab_size], and appends them to the cache."""
        logits: Tensor = self.model(ids, cache=self.cache)
        return logits

    def forget(self, count: int) -> None:
        """Removes the last ``count`` tokens from the cache."""
        self.cache.crop(self.length)  # type: ignore[attr-defined]


class Transformers:
    """A language model of transformers with its cache."""

    length = 0

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, None

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        size: int = self.model.config.vocab_size
        return size

    def prefill(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, n] to the logits of the last token [batch, 1, vocab_size], and fills the cache."""
        found = self.model(ids, use_cache=True, logits_to_keep=1)
        self.cache, self.length = found.past_key_values, ids.shape[1]
        logits: Tensor = found.logits
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, 1] to logits [batch, 1, vocab_size], and appends them to the cache."""
        logits: Tensor = self.model(ids, past_key_values=self.cache, use_cache=True).logits
        return logits

    def forget(self, count: int) -> None:
        """Removes the last ``count`` tokens from the cache."""
        self.cache.crop(-count)  # type: ignore[attr-defined]


class Trainer:
    """A T5 of one side, with its optimizer."""

    def __init__(self, side: str, folder: Path) -> None:
        name = json.loads(read_text(folder / "config.json"))["architectures"][0]
        self.ours, self.whole = side == OURS, name == T5_CLASSES["T5"]
        self.model: nn.Module
        if self.ours:
            self.model = checkpoints.load(folder)
            places = ("embedding.weight", "encodings.0.table")
        else:
            kind = getattr(import_module("transformers"), name)
            attention = "sdpa" if side == HF_SDPA else "eager"
            self.model = kind.from_pretrained(folder, attn_implementation=attention)
            if side == HF_TABLE:
                use_bias_table(self.model)
            places = ("shared.weight", "block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        self.model.train()
        # the first match: in the whole T5 the encoder's table
        self.watched = [next(p for key, p in self.model.named_parameters() if key.endswith(at)) for at in places]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, batch: int, n: int, *, update: bool = True) -> Run:
        """Returns a step on random tokens, which returns the loss and the gradients of embeddings and bias."""
        vocab_size = self.watched[0].shape[0]
        ids, targets = _ids(batch, n, vocab_size), _ids(batch, max(1, n // 4), vocab_size)
        labels = targets if self.whole else ids
        inputs: dict[str, Any] = {"ids" if self.ours else "input_ids": ids}
        if self.whole:
            inputs |= {"decoder_ids": targets} if self.ours else {"decoder_input_ids": targets, "use_cache": False}

        def step() -> list[Tensor]:
            self.optimizer.zero_grad()
            out = _first(self.model(**inputs))
            loss = F.cross_entropy(out.flatten(0, 1), labels.flatten() % out.shape[-1])
            loss.backward()
            if update:
                self.optimizer.step()
            embeddings, table = (parameter.grad for parameter in self.watched)
            assert embeddings is not None
            assert table is not None
            return [loss, embeddings, table if self.ours else table.mT]  # [buckets, heads] in transformers

        return step


def _quiet() -> None:
    """Turns off the progress bars and loading reports of transformers."""
    logging = import_module("transformers").utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _ids(batch: int, n: int, vocab_size: int) -> Tensor:
    """Random ids, the same for all sides, without the first ones, which are special."""
    return torch.randint(4, vocab_size, (batch, n), generator=torch.Generator().manual_seed(0))


def _first(out: Any) -> Tensor:
    """The output of a model, or the first one of a model of transformers."""
    first: Tensor = out if isinstance(out, Tensor) else out[0]
    return first


# ---------------------------------------------------------------- where the time goes, and the memory


ATTENTION, LINEAR, REST = "attention", "projections and feed-forward", "the rest"


def division(run: Callable[[], object], n: int) -> dict[str, float]:
    """Returns the shares of a run's time in attention, in linear maps and in everything else."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        run()
    spent = {ATTENTION: 0.0, LINEAR: 0.0, REST: 0.0}
    for event in found.key_averages(group_by_input_shape=True):
        spent[_part(event.key, event.input_shapes, n)] += event.self_cpu_time_total
    total = sum(spent.values())
    return {part: taken / total for part, taken in spent.items()}


def _part(operation: str, shapes: list[list[int]], n: int) -> str:
    """The part that an operation belongs to; eager attention is recognized by matrices of [n, n]."""
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
    code = "import sys; from headway.bench.models import main; main(sys.argv[1])"
    for side in (OURS, HF_TABLE, HF_EAGER, HF_SDPA):
        task = {"side": side, "folder": str(folder), "case": case.fields(), "threads": torch.get_num_threads()}
        words = [sys.executable, "-c", code, json.dumps(task)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            says[side] = done.stderr.strip().split("\n")[-1] or f"the process ended with {done.returncode}"
        else:
            sizes[side] = json.loads(done.stdout.strip().split("\n")[-1])
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
        _quiet()
        register()
    trainer = Trainer(given["side"], Path(given["folder"]))
    for n in (min(WARM_UP, case.n), case.n):
        step = trainer.step(case.batch, n, update=False)
        peak = Peak("cpu")
        before = peak.bytes()
        step()
    print(json.dumps(max(0, peak.bytes() - before)))
