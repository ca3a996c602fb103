"""Calls of the Triton kernel that are prepared once: they start what fresh calls start, and have keys of their own."""

import gc
import json
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks as M
from headway import plans
from headway import terms as T
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


def compiled_for(x: Any) -> Any:
    """What a program is compiled for of its arguments: dtypes, alignment, and constants."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if isinstance(x, tuple):
        return tuple(map(compiled_for, x))
    return getattr(x, "value", type(x))


class Recorder:
    """Takes the place of what starts programs: it notes them, and starts nothing."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.inputs: dict[int, str] = {}
        self.kept = 0
        self.last: Any = None

    def note(self, program: Any, grid: int, arguments: Any, constants: Any) -> None:
        shown = described((*arguments, *constants), self.inputs)
        self.starts.append((program.fn.__name__, grid, shown, ()))

    def start(self, program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        if grid:
            self.last = compiled_for(arguments)
            self.note(program, grid, arguments, [constants[name] for name in constants])

    def of(self, compiled: Any, program: Any, grid: int, blocks: Any, count: int, constants: dict[str, Any]) -> Any:
        from headway.kernels.triton import _start

        expected = self.last

        def run(*given: Any) -> None:
            assert compiled_for(given[:count]) == expected
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


def plain(run: Callable[[], Any]) -> Any:
    return run()


def drawn(r: random.Random, name: str) -> tuple[list[Tensor], Tensor, Any, dict[str, Any]]:
    """q, k and v, the gradient of the output, what is around the call, and its other arguments."""
    heads, width = r.choice((2, 4)), r.choice((16, 24))
    n = r.choice((5, 33, 40))
    dtype = r.choice((torch.float32, torch.bfloat16, torch.float16))
    kv = heads if r.random() < 0.6 else 1

    def tensor(heads: int, wanted: bool) -> Tensor:
        shape, order = (2, heads, n, width), (0, 1, 2, 3)
        if r.random() < 0.4:  # tokens before heads, or the numbers of a token apart
            shape, order = r.choice((((2, n, heads, width), (0, 2, 1, 3)), ((2, heads, width, n), (0, 1, 3, 2))))
        skipped = r.choice((0, 0, 1))
        x = torch.zeros(2 * heads * n * width + skipped, dtype=dtype)[skipped:]
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
    return inputs, tensor(heads, False), r.choice((nullcontext, torch.no_grad)), arguments


def starts_of(recorder: Recorder, inputs: list[Tensor], up: Tensor, around: Any, arguments: dict[str, Any]) -> Any:
    """What a call starts, and its backward pass if autograd records it."""
    recorder.starts.clear()
    recorder.inputs = {x.data_ptr(): part for part, x in zip("qkvu", (*inputs, up), strict=True)}
    with around():
        out = hw.attention(*inputs, **arguments)
    if out.requires_grad:
        parameters = [] if arguments["encoding"] is None else arguments["encoding"].parameters()
        wanted = [x for x in (*inputs, *parameters) if x.requires_grad]
        torch.autograd.grad(out, wanted, up.expand_as(out), allow_unused=True)
    return list(recorder.starts)


def alike(x: Tensor) -> Tensor:
    """Another tensor of the same strides and alignment."""
    skipped = x.storage_offset() % 8
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    fresh = torch.zeros(span + skipped, dtype=x.dtype)[skipped:].as_strided(x.shape, x.stride(), skipped)
    return fresh.requires_grad_(x.requires_grad)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_kept_call_starts_what_a_fresh_one_starts(name: str, recorder: Recorder) -> None:
    r, kept = random.Random(name), 0
    for _ in range(12):
        inputs, *others = drawn(r, name)
        fresh = without_plans(partial(starts_of, recorder, inputs, *others))
        assert fresh
        for _ in range(2):  # the second one is kept
            assert starts_of(recorder, inputs, *others) == fresh
        recorder.kept = 0
        assert starts_of(recorder, list(map(alike, inputs)), *others) == fresh
        kept += recorder.kept
    assert kept


LAUNCHED = """
import gc
import json
from contextlib import nullcontext

import torch
from gpu import host, pretended
from test_triton_prepared import described

torch.use_deterministic_algorithms(True)  # which fills what is allocated
started, found = [], {}
with pretended.gpu(started):
    for name in ("t5", "rope"):
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


@pytest.mark.slow
def test_compiled_programs_get_what_triton_would_give_them() -> None:
    """By triton's compiler, for a GPU that is not here, whose driver notes what it is given."""
    folders = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "kernels"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run([sys.executable, "-c", LAUNCHED], env=given, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "t5, without_gradient": [1, [True] * 5],
        "t5, with_gradient": [6, [True] * 5],
        "rope, without_gradient": [3, [True] * 5],
        "rope, with_gradient": [8, [True] * 5],
    }


# ---------------------------------------------------------------- what a plan depends on


def call(*sizes: int, kv: int = 2, dtype: torch.dtype = torch.bfloat16, wanted: bool = False) -> list[Tensor]:
    n, width = sizes or (8, 16)
    return [torch.zeros(1, heads, n, width, dtype=dtype, requires_grad=wanted) for heads in (2, kv, kv)]


def unaligned(x: Tensor) -> Tensor:
    """A copy that begins 2 bytes after a multiple of 16."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def key(*inputs: Tensor, **arguments: Any) -> Any:
    given = dict.fromkeys(plans.Request._fields[3:]) | {"kernel": "triton"} | arguments
    return plans.key_of(plans.Request(*inputs, **given))


ALIBI, ROPE = hw.encoding("alibi", num_heads=2), hw.encoding("rope", head_dim=16)
SPAN = hw.Coordinates.span(8)
OTHER: dict[str, Callable[[], Any]] = {
    "tokens": lambda: key(*call(9, 16)),
    "width": lambda: key(*call(8, 32)),
    "heads": lambda: key(*call(kv=1)),
    "dtype": lambda: key(*call(dtype=torch.float16)),
    "strides": lambda: key(call()[0].transpose(1, 2).contiguous().transpose(1, 2), *call()[1:]),
    **{
        f"alignment of {'qkv'[i]}": lambda i=i: key(*[unaligned(x) if j == i else x for j, x in enumerate(call())])
        for i in range(3)
    },
    "gradients": lambda: key(*call(wanted=True)),
    "mask": lambda: key(*call(), mask=M.Causal()),
    "encoding": lambda: key(*call(), encoding=ALIBI),
    "scale": lambda: key(*call(), scale=0.5),
    "kernel": lambda: key(*call(), kernel="auto"),
    "start": lambda: key(*call(), q_at=SPAN, k_at=hw.Coordinates.span(8, start=1)),
    "positions": lambda: key(*call(), q_at=SPAN, k_at=SPAN),
    "length": lambda: key(*call(), q_at=SPAN, k_at=hw.Coordinates.span(8, length=9)),
}


def test_whatever_is_decided_by_is_in_the_key() -> None:
    keys = [key(*call()), *(make() for make in OTHER.values())]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(*call()) == keys[0]


def test_streams_have_one_key_as_long_as_no_one_writes_into_them() -> None:
    def of(at: hw.Coordinates) -> Any:
        return key(*call(), encoding=ROPE, q_at=at, k_at=at)

    first = of(SPAN)
    assert first == of(hw.Coordinates.span(8))
    placed = ROPE.place(hw.Coordinates.span(8))
    assert of(placed) == of(ROPE.place(hw.Coordinates.span(8)))
    written = hw.Coordinates.span(8)
    written.position.view(-1)[3] = 9
    others = [written, placed, hw.Coordinates.packed([3, 5]), hw.Coordinates.packed([3, 5])]
    others += [hw.Coordinates.padded([5], 8), SPAN._with(position=SPAN.position.clone())]
    others.append(hw.encoding("rope", head_dim=16).place(SPAN))
    assert len({first, *map(of, others)}) == 1 + len(others)


def test_streams_of_the_gpu_and_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan belongs to the stream that computed its tensors, and a graph would outlive it."""
    from headway.kernels import triton as kernel

    class OnGpu:
        is_cuda, is_cpu, device = True, False, torch.device("cuda", 0)

        def get_device(self) -> int:
            return 0

        def data_ptr(self) -> int:
            return 1 << 8

    seen = []
    for stream in (1, 2, None):
        monkeypatch.setattr(kernel, "stream_of", lambda device, stream=stream: stream)
        seen.append(KERNELS["triton"].environment(*[OnGpu()] * 3))  # type: ignore[arg-type]
    assert seen[2] is None
    assert seen[0] != seen[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_has_plans_where_nothing_is_cast(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = key(*call(dtype=dtype))
    assert (found is not None) == (dtype == torch.bfloat16)
    assert found != key(*call(dtype=dtype))


def test_decoding_steps_have_none() -> None:
    q, k, v = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 9, 16), torch.zeros(1, 2, 9, 16)
    assert key(q, k, v) is None


def test_a_plan_is_made_once_and_holds_no_input(recorder: Recorder) -> None:
    q, k, v = call(wanted=True)
    references = [weakref.ref(x) for x in (q, k, v)]
    for _ in range(3):
        hw.attention(q, k, v, encoding=ALIBI, mask=M.Causal(), kernel="triton").sum().backward()
    held = plans._plans_of(ALIBI)
    assert [type(one) for one in held.values()] == [plans.Plan]
    del q, k, v
    recorder.starts.clear()
    gc.collect()
    assert [one() for one in references] == [None] * 3
    held.clear()


def test_gradients_of_another_layout_start_other_programs(recorder: Recorder) -> None:
    q, k, v = call(8, 16, wanted=True)
    up = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16)
    ups = [up, up.transpose(1, 2).contiguous().transpose(1, 2), up[:, :, :1].expand_as(up), unaligned(up), up.float()]

    def run(up: Tensor, wanted: list[Tensor]) -> list[Start]:
        out = hw.attention(q, k, v, mask=M.Causal(), kernel="triton")
        recorder.starts.clear()
        recorder.inputs = {x.data_ptr(): part for x, part in zip((q, k, v, up), "qkvu", strict=True)}
        torch.autograd.grad(out, wanted, up.to(out.dtype))
        return list(recorder.starts)

    for up in [*ups, *ups]:
        for wanted in ([q, k, v], [q], [k, v]):
            assert run(up, wanted) == without_plans(partial(run, up, wanted))


@pytest.mark.parametrize("name", ["none", "alibi", "t5"])
def test_saved_tensors_may_come_back_in_another_layout(name: str, recorder: Recorder) -> None:
    encoding = None if name == "none" else hw.encoding(name, num_heads=2, head_dim=16)
    arguments = {"encoding": encoding, "mask": M.Causal(), "kernel": "triton"}
    inputs = [torch.zeros(1, 8, 2, 16).transpose(1, 2).requires_grad_() for _ in range(3)]
    up = torch.zeros(1, 2, 8, 16)

    def unpacked(x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=x.dtype)

    hooks = partial(torch.autograd.graph.saved_tensors_hooks, lambda x: x, unpacked)
    for _ in range(3):
        kept = starts_of(recorder, inputs, up, hooks, arguments)
        assert kept == without_plans(partial(starts_of, recorder, inputs, up, hooks, arguments))
        assert starts_of(recorder, inputs, up, nullcontext, arguments) != kept


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("name", ["none", "rope", "t5"])
def test_a_checkpoint_may_compute_a_call_again_with_a_plan_or_without(
    name: str, planned: bool, recorder: Recorder
) -> None:
    encoding = None if name == "none" else hw.encoding(name, num_heads=2, head_dim=16)
    inputs = call(wanted=True)
    attend = partial(hw.attention, encoding=encoding, mask=M.Causal(), kernel="triton")
    for _ in range(2):
        attend(*inputs)
    first, second = (plain, without_plans) if planned else (without_plans, plain)
    out = first(partial(checkpoint, attend, *inputs, use_reentrant=False))
    second(out.float().sum().backward)


@pytest.mark.slow
def test_large_rotations_are_not_kept(recorder: Recorder) -> None:
    """32 plans of an encoding would hold them."""
    encoding = hw.encoding("rope", head_dim=128)
    made = []
    for n in (4096, 8192):
        inputs = [torch.empty(1, 1, n, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        for _ in range(2):
            hw.attention(*inputs, encoding=encoding, mask=M.Causal(), kernel="triton")
        made.append([*plans._plans_of(encoding).values()][-1])
    kept, reason = made
    assert isinstance(kept, plans.Plan)
    assert isinstance(reason, str)
    first, second = kept.run.rotations  # type: ignore[attr-defined]
    assert first.back.sin is second.back.sin


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "kerple-log", "shaw", "fire"])
def test_a_plan_may_be_made_within_a_checkpoint(name: str, before: int, recorder: Recorder) -> None:
    """The second call makes it: that which computes the first one again, or, after a call outside, the one within."""
    encoding = hw.encoding(name, num_heads=2, head_dim=16)
    inputs = call(wanted=True)
    attend = partial(hw.attention, encoding=encoding, mask=M.Causal(), kernel="triton")
    for _ in range(before):
        attend(*inputs)
    checkpoint(attend, *inputs, use_reentrant=False).float().sum().backward()
    assert [type(one) for one in plans._plans_of(encoding).values()] == [plans.Plan]


@pytest.mark.parametrize("name", ["t5", "kerple-log", "shaw"])
def test_parameters_that_are_frozen_at_first_get_gradients_later(name: str, recorder: Recorder) -> None:
    encoding = hw.encoding(name, num_heads=2, head_dim=16)
    attend = partial(hw.attention, *call(), encoding=encoding, mask=M.Causal(), kernel="triton")
    for wanted in (False, True, False, True):
        encoding.requires_grad_(wanted)
        for _ in range(3):
            assert attend().requires_grad == wanted
        with torch.no_grad():
            assert not attend().requires_grad
    assert recorder.kept


@pytest.mark.parametrize("name", ["t5", "kerple-log", "shaw"])
def test_places_in_tables_are_found_once(name: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """In later calls only what depends on parameters is computed, forward and backward."""
    from headway.kernels.triton import _lowered, _slots

    found: list[str] = []
    for module, function in ((_slots, "places_at"), (_slots, "distances_of_slots"), (_lowered, "with_intervals")):
        made = getattr(module, function)
        noted = lambda *given, made=made: (found.append(made.__name__), made(*given))[1]  # noqa: E731
        monkeypatch.setattr(module, function, noted)
    encoding = hw.encoding(name, num_heads=2, head_dim=16)
    inputs = call(wanted=True)
    for number in range(4):
        found.clear()
        hw.attention(*inputs, encoding=encoding, mask=M.Causal(), kernel="triton").float().sum().backward()
        assert bool(found) == (number < 2), found


@pytest.mark.parametrize(("name", "again"), [("t5", 0), ("alibi", 0), ("kerple-log", 2)])
def test_a_call_is_lowered_again_if_more_varies_than_a_table(
    name: str, again: int, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.kernels.triton import _prepared

    lowered: list[Any] = []
    lower = _prepared.lower_for_programs
    monkeypatch.setattr(_prepared, "lower_for_programs", lambda *given: lowered.append(given) or lower(*given))
    encoding, inputs = hw.encoding(name, num_heads=2, head_dim=16), call(wanted=True)
    for _ in range(3):
        lowered.clear()
        hw.attention(*inputs, encoding=encoding, mask=M.Causal(), kernel="triton").float().sum().backward()
    assert len(lowered) == again


def test_a_table_of_other_rows_is_not_taken_for_the_kept_one(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = hw.encoding("t5", num_heads=2)
    up = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16)
    arguments = {"encoding": encoding, "mask": M.Causal(), "kernel": "triton"}
    boundaries = [torch.tensor([-2, 0, 3]), torch.tensor([-4, 1, 2])]
    for number, (heads, which, written) in enumerate([(2, 0, 0)] * 3 + [(1, 0, 0), (2, 1, 0), (2, 0, -1), (1, 1, 2)]):
        if written:
            boundaries[which][1] = written
        rows = partial(T.Rows, map=T.Bucketize(boundaries[which]))
        terms = lambda self, *_, heads=heads, rows=rows: (T.DistanceBias(rows(self.table[:heads, :4])),)  # noqa: E731
        monkeypatch.setattr(type(encoding), "terms", terms)
        run = partial(starts_of, recorder, call(wanted=True), up, nullcontext, arguments)
        assert run() == without_plans(run), number
    assert recorder.kept


def test_a_plan_reads_the_table_as_it_is_and_keeps_none(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, made = hw.encoding("t5", num_heads=2), list[weakref.ref[Tensor]]()
    of = type(encoding).terms

    def terms(*given: Any) -> Any:
        found = of(*given)
        made.append(weakref.ref(found[0].values.table))
        return found

    monkeypatch.setattr(type(encoding), "terms", terms)
    attend = partial(hw.attention, *call(wanted=True), encoding=encoding, mask=M.Causal(), kernel="triton")
    for number in range(4):
        recorder.starts.clear()
        recorder.kept = 0
        with torch.no_grad():
            encoding.table.fill_(number)
        attend().float().sum().backward()
        assert f"[{number}.0, {number}.0" in str(recorder.starts)
    assert recorder.kept == len(recorder.starts)
    gc.collect()
    assert [one() for one in made] == [None] * 4


def test_places_are_those_of_the_boundaries_as_they_are() -> None:
    from headway.kernels.triton._slots import Slots
    from headway.terms import Bucketize, Clip, Rows

    slots, table = Slots(SPAN, SPAN), torch.arange(4.0)[None]
    boundaries = torch.tensor([-2, 0, 3])
    rows = Rows(table, Bucketize(boundaries))
    expected = [sum(b <= d for b in (-2, 0, 3)) for d in range(-7, 8)]
    places = slots.places(rows)
    assert places.rows.tolist() == expected
    assert places.begins.tolist() == [expected.index(row) for row in range(4)] + [15]
    assert places.ends.tolist() == [4, 10]
    assert slots.places(Rows(table + 1, Bucketize(boundaries))) is places
    assert slots.places(rows, beyond=1).rows.tolist() == [0, *expected, 3]
    boundaries[1] = 1
    assert slots.places(rows).rows.tolist() == [sum(b <= d for b in (-2, 1, 3)) for d in range(-7, 8)]
    assert slots.places(Rows(table, Bucketize(boundaries.clone()))) is not slots.places(rows)
    clipped = slots.places(Rows(table, Clip(-1, 2)))
    assert slots.places(Rows(table + 1, Clip(-1, 2))) is clipped
    assert slots.places(Rows(table, Clip(-2, 1))) is not clipped
    with torch.inference_mode():
        fresh = Slots(SPAN, SPAN).places(rows)
    assert not fresh.rows.is_inference()


# ---------------------------------------------------------------- numbers, by the interpreter

INTERPRETED = """
import interpreter
import torch

interpreter.install()
import headway as hw
from headway import masks as M
from headway import plans

asked, of = [], plans.Plan.__call__
plans.Plan.__call__ = lambda self, *given: (asked.append(1), of(self, *given))[1]
for name, dtype in (("rope", torch.bfloat16), ("t5", torch.float32), ("shaw", torch.float32)):
    encoding = hw.encoding(name, num_heads=1, head_dim=16)
    wanted = list(encoding.parameters())
    made = plans.key_of
    for seed in range(3):
        sides = []
        for plans.key_of in (made, lambda request: None):
            torch.manual_seed(seed)
            q, k, v, up = (torch.randn(1, 1, 20, 16).to(dtype).requires_grad_() for _ in range(4))
            for x in wanted:
                torch.nn.init.normal_(x)
            out = hw.attention(q, k, v, encoding=encoding, mask=M.Causal(), kernel="triton")
            sides.append([out, *torch.autograd.grad(out, (q, k, v, *wanted), up)])
        plans.key_of = made
        assert all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(*sides)), (name, seed)
        assert all(x.isfinite().all() for x in sides[0])
print(len(asked))
"""


def test_a_kept_call_gives_the_same_bits() -> None:
    given = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    ran = subprocess.run(command, env=given, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout == "6\n"
