"""Long runs: memory that stays flat, threads that call at once, and commands that are killed at random moments.

    python tests/long_runs.py [NAME] [--steps N]

makes the runs whose names begin with NAME, all if none is given, each in a process of its own, and prints a line of
JSON for each: what was run, how many steps (training steps, tokens, seconds of 8 threads, or kills), the memory at the
marks, and the faults.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.runtime.cache_dir_utils
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

import headway as hw
import headway.cli
import headway.study
from headway import masks
from headway._common import pictures, store, training
from headway.checkpoints import Checkpoint, Config
from headway.checkpoints.llama import LLaMA
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.models import Decoder, TransformerConfig, stream
from headway.nn import KeyValueCache, StackCache
from headway.nn._token_buffer import TokenBuffer

Report = dict[str, Any]
"""The numbers of a run, and its "faults"."""
MIB = 1 << 20

# ---------------------------------------------------------------- memory

MARKS = 10
"""The marks of a run; memory at the first one, after the warm-up, is what the others are compared with."""
WARM_UP = 100
"""The fewest steps before a mark: all but a few of the caches are full by then."""
GROWTH = 0.01
"""The share by which memory, and the number of Python's objects, may grow after the first mark."""


def resident() -> int:
    """The bytes in memory, without those of libraries, of which each new function brings some."""
    held = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(held["RssAnon"].split()[0])


class Meter:
    """Measures memory every so many steps.

    Args:
        steps: the steps of the run.
        own: the bytes that may grow.
    """

    def __init__(self, steps: int, own: Callable[[], int] = lambda: 0) -> None:
        self.every, self.own = max(WARM_UP, steps // MARKS), own
        self.marks: dict[int, tuple[int, int, int]] = {}

    def at(self, step: int) -> None:
        if step % self.every == 0:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
            own = self.own()
            self.marks[step] = resident() - own, own, len(gc.get_objects())

    def report(self) -> Report:
        memory, own, objects = zip(*self.marks.values(), strict=True)
        faults = []
        for what, found in (("memory", memory), ("objects", objects)):
            if max(found) > (1 + GROWTH) * found[0]:
                faults.append(f"{what} grew from {found[0]:,} to {max(found):,}")
        return {
            "memory_mb": {step: round(held / MIB, 2) for step, held in zip(self.marks, memory, strict=True)},
            **({"cache_mb": [round(held / MIB, 2) for held in own]} if any(own) else {}),
            "objects": [objects[0], objects[-1]],
            "faults": faults,
        }


# ---------------------------------------------------------------- training

VOCABULARY, WIDTH, HEADS = 50, 32, 4


def decoder(encoding: str | None, window: int | None = None, **options: Any) -> Decoder:
    torch.manual_seed(0)
    config = TransformerConfig(VOCABULARY, embed_dim=WIDTH, num_layers=2, num_heads=HEADS, **options)
    sizes = {"num_heads": HEADS, "head_dim": WIDTH // HEADS, "embed_dim": WIDTH, "max_length": 128}
    mask = None if window is None else [masks.Window(window)] * 2
    return Decoder(config, None if encoding is None else hw.encoding(encoding, **sizes), mask)


def shapes(steps: int) -> Iterator[tuple[int, int]]:
    """Batches and lengths of each step; new ones come up until the end, which a cache keyed by shape would keep."""
    draw = random.Random(0)
    known = [(batch, length) for batch in (1, 2, 3, 4) for length in range(8, 72)]
    draw.shuffle(known)
    for step in range(steps):
        yield draw.choice([known[0], *known[: 1 + len(known) * step // steps]])


def train(
    steps: int, encoding: str | None, *, padded: bool = False, capture: int = 0, compile: bool = False, **options: Any
) -> Report:
    """Trains a decoder on random ids; ``capture`` is the number of steps from one capture of its heads to the next."""
    model, meter, sizes = decoder(encoding, **options), Meter(steps), shapes(steps)

    def loss(model: Any, step: int) -> Tensor:
        batch, length = next(sizes)
        ids = torch.randint(VOCABULARY, (batch, length))
        given: dict[str, Any] = {}
        if padded:
            at = Coordinates.padded(torch.randint(1, length + 1, (batch,)), length)
            given = {"positions": at, "mask": masks.Padding()}
        looks = capture and step % capture == 0
        with hw.capture(model, keep=("statistics", "weights", "qk")[step // capture % 3]) if looks else nullcontext():
            logits = model(ids, **given)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    training.train(
        model,
        loss,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        steps=steps,
        rate=lambda step: 1.0,
        clip=1.0,
        watch=lambda step, _: meter.at(step),
        compile=compile,
    )
    return meter.report()


# ---------------------------------------------------------------- decoding


def bytes_of(held: Any) -> int:
    """The bytes of all tensors in a cache; of the storage of a buffer, those that were written."""
    if isinstance(held, TokenBuffer):
        held = () if held.storage is None else (held.storage[..., : held.written, :],)
    elif isinstance(held, KeyValueCache):
        held = held._parts
    elif isinstance(held, (StackCache, Coordinates)):
        held = list(vars(held).values())
    elif isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, Tensor):
        return held.numel() * held.element_size()
    return sum(map(bytes_of, held)) if isinstance(held, (list, tuple)) else 0


def decode(steps: int, encoding: str | None, *, rows: int = 1, flat: bool = False, **options: Any) -> Report:
    """Generates tokens; ``flat`` is whether the cache must not grow either, as under a window."""
    model = decoder(encoding, **options)
    caches, new_cache = [], model.new_cache

    def keep_cache() -> Any:
        caches.append(new_cache())
        return caches[-1]

    model.new_cache = keep_cache  # type: ignore[method-assign]
    meter = Meter(steps, lambda: 0 if flat else bytes_of(caches))
    prompt = [[1] * (1 + row) for row in range(rows)]
    for step, _ in enumerate(stream(model, prompt, steps, temperature=1.0, seed=0), 1):
        meter.at(step)
    return {**meter.report(), "tokens": rows * step, "held": len(caches[0])}


# ---------------------------------------------------------------- threads

THREADS = 8


def calls() -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    """Calls whose encodings, modules and tensors all threads share."""
    from kernels.encoded_calls import IN_ATTENTION, encoded

    for name in IN_ATTENTION:
        for n in (9, 120):
            qkv, given = encoded(name, n, torch.float32)
            inputs = [*qkv, *given["encoding"].parameters()]

            def forward(kernel: str, qkv: list[Tensor] = qkv, given: dict[str, Any] = given) -> list[Tensor]:
                with torch.no_grad():
                    return [hw.attention(*qkv, **given, kernel=kernel)]

            def backward(
                kernel: str, qkv: list[Tensor] = qkv, given: dict[str, Any] = given, inputs: list[Tensor] = inputs
            ) -> list[Tensor]:
                out = hw.attention(*qkv, **given, kernel=kernel)
                found = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
                return [out.detach(), *(x for x in found if x is not None)]

            for kernel in ("auto", "reference", "sdpa", "cpu"):
                for what in (forward, backward):
                    with suppress(HeadwayError):  # the kernel does not take it
                        what(kernel)
                        yield f"{name} {n} {kernel} {what.__name__}", partial(what, kernel)
    for name in (None, "rope", "t5", "transformer-xl", "cope"):
        model = decoder(name).eval()
        ids = torch.randint(VOCABULARY, (2, 40))

        def gradients(model: Decoder = model, ids: Tensor = ids) -> list[Tensor]:
            logits = model(ids)
            return [logits.detach(), *torch.autograd.grad(logits.square().mean(), [*model.parameters()])]

        def generated(model: Decoder = model, ids: Tensor = ids) -> list[Tensor]:
            found = model.generate(ids[:, :5], 12)
            return [torch.tensor(found.ids), torch.tensor(found.log_probs)]

        def captured(model: Decoder = model, ids: Tensor = ids) -> list[Tensor]:
            with hw.capture(model, keep="weights") as seen, torch.no_grad():
                logits = model(ids)
            return [logits, *(record.weights() for record in seen.records)]

        for what in (gradients, generated, captured):
            yield f"shared decoder {name} {what.__name__}", what


def call_at_once(seconds: int, threads_of_each: int = 1) -> Report:
    """8 threads make random calls for some seconds; every result has the bits that one thread got."""
    torch.set_num_threads(threads_of_each)
    known = [(name, call, call()) for name, call in calls()]
    faults: list[str] = []
    for name, call, right in known:
        if not same(call(), right):
            faults.append(f"{name} differs in one thread")
    ends, done = time.monotonic() + seconds, [0] * THREADS

    def work(number: int) -> None:
        torch.set_num_threads(threads_of_each)  # which is each thread's own
        draw = random.Random(number)
        while time.monotonic() < ends and len(faults) < 20:
            name, call, right = draw.choice(known)
            try:
                if not same(call(), right):
                    faults.append(f"{name} differs")
            except Exception as error:
                faults.append(f"{name}: {type(error).__name__}: {error}")
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends + PATIENCE - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    if stuck:
        faults.append(f"{stuck} of {THREADS} threads do not end")
    return {"calls": sum(done), "kinds": len(known), "faults": faults}


PATIENCE = 60
"""Seconds that a call may take."""


def same(found: list[Tensor], right: list[Tensor]) -> bool:
    return len(found) == len(right) and all(map(torch.equal, found, right))


# ---------------------------------------------------------------- kills


@dataclass(frozen=True)
class Killed:
    """A command that is killed, and repeated.

    Args:
        prepare: writes what it reads into a folder.
        run: runs it on that folder, with results in ``out``.
        last: the file that ends what can be continued, of a command that then removes its checkpoint.
    """

    prepare: Callable[[Path], None]
    run: Callable[[Path, Path], None]
    last: str | None = None


WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "it",
    "is",
    "was",
    "for",
    "on",
    "with",
    "as",
    "his",
    "they",
    "be",
    "at",
)
TEXT = " ".join(random.Random(0).choices(WORDS, k=1500))


def write_text(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT)


def row_name(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[field]) for field in ("encoding", "method", "seed", "window", "length") if field in row)


def step_name(path: Path, step: int) -> str:
    return f"{path.name} step {step}"


def held(out: Path) -> set[str]:
    """The names of rows and of steps of trainings that a folder has."""
    file = out / "results.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    found = {row_name(json.loads(line)) for line in lines}
    for path in out.rglob("*.pt"):
        found |= {step_name(path, 1 + step) for step in range(torch.load(path, weights_only=True)["step"])}
    return found


def command(*words: str | Path) -> None:
    """Runs a command of the command line, which must succeed."""
    from headway.cli import main

    code = main([*map(str, words), "--quiet"])
    if code:
        raise RuntimeError(f"{words} exits with {code}")


def compare(folder: Path, out: Path) -> None:
    sizes: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "train_length": 16, "lengths": (16, 32)}
    work: dict[str, Any] = {"steps": 4, "batch": 2, "recall_steps": 2, "learning_rates": [0.005, 0.01]}
    given = {**sizes, **work, "evaluation_bytes": 64, "baselines": (), "seeds": 1, "device": "cpu"}
    hw.study.compare(str(folder / "text.txt"), ["rope", "learned"], **given, out=out)


def write_model(folder: Path) -> None:
    """A text, and a Llama that reads single bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    write_text(folder)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16,
        "rms_norm_eps": 1e-6, "hidden_act": "silu",
    }  # fmt: skip
    model = LLaMA().build(Config(config), head=True)
    model.checkpoint = Checkpoint("LlamaForCausalLM", config)
    hw.checkpoints.save(model, folder / "model")
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))


def extend(folder: Path, out: Path) -> None:
    saved = out / "longer"  # which the command refuses once it is there: it is written last
    save = () if saved.exists() else ("--save", saved)
    words = ("extend", folder / "model", "--text", folder / "text.txt", "--method", "yarn", "--factor", "2")
    command(*words, "--windows", "20", "--out", out, *save)


def train_vectors(method: str, folder: Path, out: Path) -> None:
    options = ["min_count=1"]
    if method == "bert":
        options += ["num_layers=1", "num_heads=2", "vocab_size=60", "length=16", "steps=20", "dim=16"]
    place = out / ("vectors" if method == "bert" else "vectors.safetensors")
    out.mkdir(exist_ok=True)
    command("vectors", "train", method, folder / "text.txt", "--out", place, *(f"--option={one}" for one in options))


KILLED = {
    "compare": Killed(write_text, compare),
    "extend": Killed(write_model, extend),
    **{
        f"vectors train {method}": Killed(
            write_text, partial(train_vectors, method), "config.json" if method == "bert" else None
        )
        for method in hw.vectors.VECTORS
    },
}

WITH_TIME = {"seconds", "train_seconds", "processor_seconds", "tokens_per_second", "peak_memory_bytes"}
"""Names of numbers that no run repeats."""


TORCHS = Path(torch._inductor.runtime.cache_dir_utils.default_cache_dir()).name
"""The folder of torch's compiler among the temporary ones, which it keeps."""


def plain(value: Any) -> Any:
    """A value that can be compared, without what depends on time and memory."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()]
    if isinstance(value, dict):
        return {str(name): plain(held) for name, held in value.items() if name not in WITH_TIME}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def content(path: Path) -> Any:
    """What a file has that every run repeats; of reports and pictures, that they are there."""
    if path.suffix == ".pt":
        return plain(torch.load(path, weights_only=True))
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return plain([file.metadata(), {name: file.get_tensor(name) for name in file.keys()}])  # noqa: SIM118
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [plain(json.loads(line)) for line in lines]
    return None


def contents(out: Path) -> dict[str, Any]:
    """The files of a folder, hidden ones too, by their names."""
    return {str(path.relative_to(out)): content(path) for path in sorted(out.rglob("*")) if path.is_file()}


def report_to(pipe: int) -> None:
    """Tells another process which rows, and which steps of a training, are on the disk."""

    def told(function: Callable[..., None], names: Callable[..., list[str]]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            function(*given)
            os.write(pipe, "".join(f"{name}\n" for name in names(*given)).encode())

        return call

    rows = store.ResultStore
    rows.add = told(rows.add, lambda _, rows: list(map(row_name, rows)))  # type: ignore[method-assign]
    training.write_checkpoint = told(training.write_checkpoint, lambda path, state: [step_name(path, state["step"])])


def attempt(one: Killed, folder: Path, out: Path, written: set[str], seconds: float | None = None) -> bool:
    """Runs a command in another process, which is killed after so many seconds; returns whether it was.

    Adds the names of what it has written to those of earlier attempts. Raises RuntimeError if it fails, or any of it is
    not there.
    """
    reading, writing = os.pipe()
    said = folder / "said"
    child = os.fork()
    if not child:
        try:
            for stream in (1, 2):
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            report_to(writing)
            one.run(folder, out)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writing)
    ends = time.monotonic() + (PATIENCE if seconds is None else seconds)
    done = 0, 0
    while not done[0] and time.monotonic() < ends:
        time.sleep(0.001)
        done = os.waitpid(child, os.WNOHANG)
    if not done[0]:
        os.kill(child, signal.SIGKILL)
        done = os.waitpid(child, 0)
    with open(reading) as pipe:
        written |= set(pipe.read().split("\n")[:-1])
    missing = written - held(out)
    struck = os.WIFSIGNALED(done[1])
    if struck and seconds is None:
        raise RuntimeError(f"it does not end within {PATIENCE} s")
    if not struck and os.WEXITSTATUS(done[1]):
        raise RuntimeError(f"it does not go on: {said.read_text()[-2000:]}")
    if missing and not (one.last and any(out.rglob(one.last))):
        raise RuntimeError(f"what was written is lost: {sorted(missing)}")
    return struck


@contextmanager
def quickly(folder: Path) -> Iterator[None]:
    """A block in which checkpoints follow each step, no pictures are drawn, and temporary files go into a folder."""
    with (
        patch.object(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0),
        patch.object(hw.study.heads, "STEPS", 1),
        patch.object(hw.study.comparison.report, "write", lambda results, out: []),
        patch.object(pictures, "save", lambda figure, path: path.touch()),
        patch.object(tempfile, "tempdir", str(folder)),
    ):
        yield


def kill(name: str, kills: int, seed: int = 0) -> Report:
    """Kills a command at random moments and repeats it until it is done, again and again."""
    torch.set_num_threads(1)
    one, draw, faults = KILLED[name], random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        folder, temporary = Path(scratch), Path(scratch, "temporary")
        temporary.mkdir()
        with quickly(temporary):
            one.prepare(folder)
            one.run(folder, folder / "first")  # imports what each process would
            gc.collect()
            gc.freeze()  # what is imported is not searched in each process
            began = time.perf_counter()
            attempt(one, folder, folder / "whole", set())
            usual = time.perf_counter() - began
            whole, struck, rounds = contents(folder / "whole"), 0, 0
            while struck < kills and not faults:
                rounds += 1
                out, written = folder / f"killed-{rounds}", set[str]()
                try:
                    while struck < kills and attempt(one, folder, out, written, draw.uniform(0, usual)):
                        struck += 1
                    attempt(one, folder, out, written)
                except RuntimeError as error:
                    faults.append(str(error))
                    continue
                found, rest = contents(out), {path.name for path in temporary.iterdir()} - {TORCHS}
                faults += [f"{file} differs" for file in whole if file in found and found[file] != whole[file]]
                faults += [f"{file} is missing" for file in whole.keys() - found.keys()]
                faults += [f"{file} is left behind" for file in found.keys() - whole.keys()]
                faults += [f"{file} is left in the folder of temporary files" for file in rest]
    return {"kills": struck, "rounds": rounds, "usual_seconds": round(usual, 2), "faults": faults}


# ---------------------------------------------------------------- the table

Run = tuple[Callable[[int], Report], int]
"""What makes a run of so many steps, and the steps of the long form."""

TRAINED: dict[str, dict[str, Any]] = {
    "none": {},
    "rope": {},
    "t5": {},
    "transformer-xl": {},
    "alibi on sdpa": {"kernel": "sdpa"},
    "shaw on reference": {"kernel": "reference"},
    "rope with dropout": {"dropout": 0.1},
    "cape, whose positions are random": {},
    "t5 padded": {"padded": True},
    "alibi captured": {"capture": 50},
    "rope compiled": {"compile": True},
}
DECODED: dict[str, dict[str, Any]] = {
    "none": {},
    "rope": {},
    "t5": {},
    "transformer-xl": {},
    "alibi, padded rows": {"rows": 3},
    "cope": {},
    "rope with a window": {"window": 63, "flat": True},
    "t5 with a window": {"window": 63, "flat": True},
}
STEPS, KILLS, SECONDS = 10_000, 50, 60


def encoding_of(name: str) -> str | None:
    first = name.replace(",", "").split()[0]
    return None if first == "none" else first


RUNS: dict[str, Run] = {
    **{f"train {name}": (partial(train, encoding=encoding_of(name), **its), STEPS) for name, its in TRAINED.items()},
    **{f"decode {name}": (partial(decode, encoding=encoding_of(name), **its), STEPS) for name, its in DECODED.items()},
    "threads": (call_at_once, SECONDS),
    "threads of two threads": (partial(call_at_once, threads_of_each=2), SECONDS),
    **{f"kill {name}": (partial(kill, name), KILLS) for name in KILLED},
}


def apart(name: str, steps: int | None = None) -> Report:
    """Makes a run in a process of its own."""
    # torch's GELU on a CPU is oneDNN's, which keeps what it made for each of 1,024 shapes
    given = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, __file__, name, "--here", *(() if steps is None else ("--steps", str(steps)))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **given})
    if done.returncode:
        return {"run": name, "faults": [f"it ends with {done.returncode}"]}
    report: Report = json.loads(done.stdout.splitlines()[-1])
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes long runs.")
    parser.add_argument("name", nargs="?", default="", help="the beginning of the names of the runs; all if not given")
    parser.add_argument("--steps", type=int, help="training steps, tokens, seconds of threads, or kills")
    parser.add_argument("--here", action="store_true", help="make the run of this name in this process")
    asked = parser.parse_args()
    if asked.here:
        go, usual = RUNS[asked.name]
        steps, began = asked.steps or usual, time.monotonic()
        report = go(steps)
        print(json.dumps({"run": asked.name, "steps": steps, "seconds": round(time.monotonic() - began), **report}))
        return 0
    failed = 0
    for name in RUNS:
        if name.startswith(asked.name):
            report = apart(name, asked.steps)
            failed += bool(report["faults"])
            print(json.dumps(report), flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
