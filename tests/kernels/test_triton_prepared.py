"""Calls of the Triton kernel that are prepared once: they start what a fresh call starts, and have keys of their own."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks as M
from headway import plans
from headway.kernels import KERNELS
from headway.kernels.triton import _installed

pytestmark = pytest.mark.skipif(_installed.missing() is not None, reason=str(_installed.missing()))

ROOT = Path(__file__).parents[2]
ENCODINGS = ("none", "alibi", "rope", "t5", "kerple-log", "shaw", "sandwich", "log-n", "fire", "swin", "xpos")

Start = tuple[str, int, tuple[Any, ...], tuple[Any, ...]]


def described(x: Any, inputs: dict[int, str]) -> Any:
    """What a program receives: of a tensor which it is or what it holds, and what programs are compiled for."""
    if isinstance(x, Tensor):
        layout = x.dtype, tuple(x.shape), x.stride(), x.data_ptr() % 16 == 0
        return inputs.get(x.data_ptr()) or repr(x.detach().flatten().tolist()), layout
    if isinstance(x, tuple):
        return tuple(described(one, inputs) for one in x)
    return getattr(x, "value", x)


class Recorder:
    """Takes the place of what starts programs: it notes them, and starts nothing."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.inputs: dict[int, str] = {}
        self.kept = 0

    def note(self, program: Any, grid: int, arguments: Any, constants: Any) -> None:
        shown = described((*arguments, *constants), self.inputs)
        self.starts.append((program.fn.__name__, grid, shown, ()))

    def start(self, program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        if grid:
            self.note(program, grid, arguments, [constants[name] for name in constants])

    def of(self, compiled: Any, program: Any, grid: int, blocks: Any, count: int, constants: dict[str, Any]) -> Any:
        from headway.kernels.triton import _start

        def run(*given: Any) -> None:
            self.kept += 1
            self.note(program, grid, given[:count], given[count:])

        return _start.Kept(run, tuple(constants.values()))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Calls of the kernel start nothing and leave NaN, as if their tensors were on a GPU."""
    from headway.kernels.triton import _launch, _start

    found = Recorder()
    monkeypatch.setattr(_installed, "reason_against", lambda device: None)
    monkeypatch.setattr(_start, "start", found.start)
    monkeypatch.setattr(_launch, "start", found.start)
    monkeypatch.setattr(_start.Kept, "of", found.of)
    plans._without_encoding.clear()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which fills what is allocated
    yield found
    torch.use_deterministic_algorithms(before)
    plans._without_encoding.clear()


def without_plans(run: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "key_of", lambda request: None)
        return run()


def drawn(r: random.Random, name: str) -> tuple[list[Tensor], Tensor, dict[str, Any], Any]:
    """q, k and v, the gradient of the output, the arguments of a call, and what is around it."""
    heads, width = r.choice((2, 4)), r.choice((16, 24))
    n = r.choice((5, 33, 40))
    dtype = r.choice((torch.float32, torch.bfloat16, torch.float16))
    kv = heads if r.random() < 0.6 else 1

    def tensor(heads: int, wanted: bool) -> Tensor:
        shape, order = (2, heads, n, width), (0, 1, 2, 3)
        if r.random() < 0.4:  # tokens before heads
            shape, order = (2, n, heads, width), (0, 2, 1, 3)
        skipped = r.choice((0, 0, 1))
        x = torch.zeros(shape[0] * shape[1] * shape[2] * width + skipped, dtype=dtype)[skipped:]
        return x.view(shape).permute(order).requires_grad_(wanted)

    inputs = [tensor(count, r.random() < 0.8) for count in (heads, kv, kv)]
    encoding = None if name == "none" else hw.encoding(name, num_heads=heads, head_dim=width)
    mask = r.choice((None, M.Causal(), M.Window(7, 3), M.Causal() & M.Window(9), M.Dilated(2)))
    mask = M.Causal() if encoding is not None and encoding.causal_only else mask
    arguments: dict[str, Any] = {"encoding": encoding, "mask": mask, "kernel": "triton"}
    if name == "swin":
        at = hw.Coordinates.of(torch.stack([torch.arange(n) // 5, torch.arange(n) % 5], -1)[None], n)
        arguments |= {"q_positions": at, "k_positions": at}
    elif r.random() < 0.5:
        at = hw.Coordinates.span(n) if r.random() < 0.7 else hw.Coordinates.of(2 * torch.arange(n), n)
        arguments |= {"q_positions": at, "k_positions": at}
    return inputs, tensor(heads, False), arguments, r.choice((nullcontext, torch.no_grad))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_kept_call_starts_what_a_fresh_one_starts(name: str, recorder: Recorder) -> None:
    r, started = random.Random(name), 0
    for _ in range(12):
        (q, k, v), up, arguments, around = drawn(r, name)
        encoding = arguments["encoding"]
        parameters = [] if encoding is None else [x for x in encoding.parameters() if x.requires_grad]

        def run(inputs: tuple[Tensor, ...]) -> list[Start]:
            q, k, v = inputs
            recorder.starts.clear()
            recorder.inputs = {x.data_ptr(): part for part, x in zip("qkvu", (q, k, v, up), strict=True)}
            with around():
                out = hw.attention(q, k, v, **arguments)
            wanted = [x for x in (q, k, v, *parameters) if x.requires_grad]
            if out.requires_grad:
                torch.autograd.grad(out, wanted, up.expand_as(out), allow_unused=True)
            return list(recorder.starts)

        def alike(x: Tensor) -> Tensor:
            """Another tensor of the same strides and alignment."""
            skipped = x.storage_offset() % 8
            span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
            fresh = torch.zeros(span + skipped, dtype=x.dtype)[skipped:].as_strided(x.shape, x.stride(), skipped)
            return fresh.requires_grad_(x.requires_grad)

        fresh = without_plans(lambda: run((q, k, v)))
        assert fresh
        first = run((q, k, v))
        recorder.kept = 0
        others = alike(q), alike(k), alike(v)
        again = run(others)
        started += recorder.kept
        assert first == fresh
        assert again == fresh
    assert started


LAUNCHED = """
import json
from contextlib import nullcontext

import torch
from gpu import host, pretended
from test_triton_prepared import described

torch.use_deterministic_algorithms(True)  # which fills what is allocated
started, found = [], {}
with pretended.gpu(started):
    for name in ("alibi", "rope"):
        case = host.Case(name, 64, "cpu")
        for run in (case.without_gradient, case.with_gradient):
            sides = []
            for around in (host.without_plans, host.without_plans, *[nullcontext] * 3):
                started.clear()
                with around():
                    run()
                inputs = {x.data_ptr(): part for x, part in zip((*case.leaves, case.upstream), "qkvu")}
                sides.append([(one.name, one.grid, described(one.arguments, inputs)) for one in started])
            found[f"{name}, {run.__name__}"] = [len(sides[0]), [one == sides[0] for one in sides]]
print(json.dumps(found))
"""


def test_compiled_programs_get_what_triton_would_give_them() -> None:
    """By triton's compiler, for a GPU that is not here, whose driver notes what it is given."""
    folders = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "kernels"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run([sys.executable, "-c", LAUNCHED], env=given, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "alibi, without_gradient": [1, [True] * 5],
        "alibi, with_gradient": [4, [True] * 5],
        "rope, without_gradient": [3, [True] * 5],
        "rope, with_gradient": [8, [True] * 5],
    }
