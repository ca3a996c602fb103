"""The CPU kernel's library: what it exports and needs, the choice of instruction set, the pool, a fork."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cpu_calls import Piece, pool_of

import headway as hw
from headway import masks as M
from headway import terms as T
from headway._common.extras import library_command
from headway.errors import HeadwayError
from headway.kernels import KERNELS
from headway.kernels.cpu import _library

FORCED = os.environ.get("HEADWAY_ISA")
OTHER_BUILD = pytest.mark.skipif("HEADWAY_LIBRARY" in os.environ, reason="HEADWAY_LIBRARY names another build")
built = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
with_kernel = pytest.mark.skipif("cpu" not in KERNELS, reason="the kernel is not there")


def tool(*command: str) -> str:
    """What a tool of the binary utilities says."""
    if sys.platform != "linux" or not shutil.which(command[0]):
        pytest.skip(f"needs {command[0]} on Linux")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def script(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with two threads; it must end by itself."""
    setting = {**os.environ, "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=setting, capture_output=True, text=True, timeout=120, check=False
    )


def library_path() -> str:
    return _library.load().c._name


# What the library is -------------------------------------------------------------------------------------------------


@built
@OTHER_BUILD
def test_only_our_names_are_exported() -> None:
    lines = tool("nm", "-D", "--defined-only", library_path()).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines}
    ours = ("attention", "has_pool", "isa_available", "rms_norm", "roof", "rotate", "use_pool", "version")
    assert names == {f"hw_{name}" for name in ours}


@built
@OTHER_BUILD
def test_nothing_but_the_c_library_is_needed() -> None:
    needed = [line for line in tool("readelf", "-d", library_path()).splitlines() if "(NEEDED)" in line]
    foreign = [line for line in needed if not any(f"[{c}" in line for c in ("libc.", "libm.", "libpthread.", "ld-"))]
    assert needed
    assert not foreign


@built
@OTHER_BUILD
def test_no_name_of_python_torch_or_libstdcxx_is_asked_for() -> None:
    lines = tool("nm", "-D", "--undefined-only", library_path()).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines}
    foreign = {n for n in names if n.startswith(("Py", "_Py", "torch", "aoti", "_Z", "__gxx", "GOMP", "omp_"))}
    assert names
    assert not foreign


def test_instruction_sets_share_no_code() -> None:
    """A function that two objects have in common could be linked in the one form that this processor cannot run."""
    native = Path(__file__).parents[2] / "build" / "native" / "CMakeFiles"
    objects = sorted(native.glob("kernel_*.dir/**/*.o"))
    if not objects:
        pytest.skip("build/native has no objects")
    for path in objects:
        isa = (
            next(part for part in path.parts if part.startswith("kernel_")).removeprefix("kernel_").removesuffix(".dir")
        )
        lines = tool("nm", "-g", "--defined-only", str(path)).splitlines()
        ours = {f"hw_{name}_{isa}" for name in ("run", "rms_norm", "rotate", "roof")}
        assert {line.split()[-1] for line in lines} == ours


# Loading -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_import_loads_nothing() -> None:
    done = script("import headway\nfrom headway.kernels.cpu import _library\nprint(_library._library)")
    assert done.stdout == "None\n", done.stderr


def test_one_that_was_never_built_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADWAY_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    monkeypatch.setattr(_library, "_library", None)
    assert "installed without its C++ library: install a C++ compiler, such as g++, then run: make" in (
        _library.why_not() or ""
    )
    assert _library.isas() == ()
    with pytest.raises(HeadwayError, match="cannot run: the package was installed without"):
        _library.run([1])
    with pytest.raises(HeadwayError, match="cannot run: the package was installed without"), _library.using("portable"):
        pass


@pytest.mark.parametrize("what", ["nothing", "text", "another library"])
def test_one_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    path = tmp_path / "_attention.so"
    if what == "text":
        path.write_text("no library")
    monkeypatch.setenv("HEADWAY_LIBRARY", torch._C.__file__ if what == "another library" else str(path))
    monkeypatch.setattr(_library, "_library", None)
    reason = _library.why_not() or ""
    assert reason.startswith("its C++ library could not be loaded: ")
    assert ("hw_attention" if what == "another library" else str(path)) in reason


@built
def test_without_torchs_pool_it_says_so_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library.torch, "__file__", "torch/__init__.py")
    monkeypatch.setattr(_library, "_suffix", lambda: ".nowhere")
    address, note = _library._torch_pool()
    assert address is None
    assert note == f"torch_parallel_for not found in torch {torch.__version__}"
    monkeypatch.setattr(_library, "_library", _library.load()._replace(no_pool=note))
    monkeypatch.setattr(_library.load().c, "hw_has_pool", lambda: 0)
    assert _library.note() == f"starts its own threads in each call: {note}"


@built
def test_torchs_pool_is_found() -> None:
    address, note = _library._torch_pool()
    assert address
    assert not note
    assert not _library.load().no_pool
    assert not _library.note()


@built
@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (-1, MemoryError, "working memory"),
        (-2, HeadwayError, "not compiled for"),
        (18, HeadwayError, "word 17 "),
    ],
)
def test_codes_become_errors(monkeypatch: pytest.MonkeyPatch, code: int, error: type, words: str) -> None:
    fake = SimpleNamespace(hw_attention=lambda *arguments: code)
    monkeypatch.setattr(_library, "_library", _library.load()._replace(c=fake))
    with pytest.raises(error, match=words):
        _library.run([1, 2])


@built
@pytest.mark.parametrize("words", [[], [-7, 0]])
def test_words_that_are_no_call_are_refused(words: list[int]) -> None:
    with pytest.raises(HeadwayError, match="word 0 of a call"):
        _library.run(words)


OLDER = "int64_t hw_attention() { return 0; }"
OTHER = OLDER + " int64_t hw_version() { return 1000; }"


@pytest.mark.parametrize(("source", "version"), [(OLDER, 2), (OTHER, 1000)], ids=["older", "another"])
def test_one_of_another_version_is_not_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, version: int
) -> None:
    """What its words mean is not what these mean."""
    path, code = tmp_path / "stale.so", tmp_path / "stale.c"
    code.write_text("#include <stdint.h>\n" + source)
    tool("cc", "-shared", "-fPIC", "-o", str(path), str(code))
    monkeypatch.setenv("HEADWAY_LIBRARY", str(path))
    monkeypatch.setattr(_library, "_library", None)
    x = torch.randn(1, 2, 5, 8)
    explanation = hw.explain(x, x, x)
    assert explanation.reasons["cpu"] == [
        f"its C++ library {path} belongs to another version of headway (its interface is version {version}, not "
        f"{_library.VERSION}): build it again, with: {library_command()}"
    ]
    assert explanation.kernel != "cpu"
    with pytest.raises(HeadwayError, match=r"cannot run: its C\+\+ library .* belongs to another version"):
        _library.rotate([1])


@built
def test_the_version_is_the_one_of_the_sources() -> None:
    header = Path(_library.__file__).with_name("csrc") / "call.h"
    assert f"VERSION = {_library.VERSION}," in header.read_text()
    assert _library.load().c.hw_version() == _library.VERSION


def test_the_readme_says_what_the_code_does() -> None:
    """Every source file is listed, every name is there, and sizes are those of the code."""
    csrc = Path(_library.__file__).with_name("csrc")
    sources = {path.name: path.read_text() for path in csrc.iterdir() if path.suffix in (".h", ".cpp")}
    python = [path.read_text() for path in csrc.parent.glob("*.py")]
    readme, everything = (csrc / "README.md").read_text(), "\n".join([*sources.values(), *python])
    assert [name for name in sources if f"`{name}`" not in readme] == []
    names = set(re.findall(r"`(?:\w+::)?([A-Za-z]\w{2,})`", readme))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", everything)] == []
    for name in ("MB", "NB", "SLACK", "DECODE_QUERIES"):
        value = re.search(rf"constexpr \w+ {name} = (\d+);", everything)
        assert value
        assert re.search(rf"\| `{name}` \| {value[1]}\b", readme), name


# Instruction sets ----------------------------------------------------------------------------------------------------


@built
def test_the_best_comes_first_and_portable_is_always_there() -> None:
    there = _library.isas()
    assert there[-1] == "portable"
    assert list(there) == sorted(there, key=_library.ISAS.index, reverse=True)
    assert _library.isa() == (FORCED or there[0])


PRODUCTS_OF_BF16 = {"avx512bf16": 2, "neonbf16": 4}
"""The products of a lane by one instruction."""


@pytest.mark.slow
@built
@pytest.mark.parametrize("name", _library.ISAS)
def test_each_can_be_forced_by_name(name: str) -> None:
    if name not in _library.isas():
        with pytest.raises(HeadwayError, match=f"isa='{name}' is not on this machine: choose from .*portable"):
            _library.using(name).__enter__()
        return
    before = _library.isa()
    with _library.using(name):
        assert _library.isa() == name
        assert _library.roof(_library.FLOAT32, 1, 10) > 0
        if name in PRODUCTS_OF_BF16:
            assert _library.roof(_library.BFLOAT16, 1, 10) == PRODUCTS_OF_BF16[name] * _library.roof(
                _library.FLOAT32, 1, 10
            )
        else:
            with pytest.raises(HeadwayError, match=f"cannot be measured with {name}"):
                _library.roof(_library.BFLOAT16, 1, 10)
    assert _library.isa() == before
    done = script("from headway.kernels.cpu import _library as L; print(L.isa())", HEADWAY_ISA=name)
    assert done.stdout == f"{name}\n", done.stderr


@built
def test_an_unknown_one_is_refused() -> None:
    with (
        pytest.raises(HeadwayError, match=r"no instruction set .isa. 'sse9': give one of .*portable"),
        _library.using("sse9"),
    ):
        pass
    done = script("from headway.kernels.cpu import _library as L; L.why_not()", HEADWAY_ISA="sse9")
    assert "HeadwayError: there is no instruction set (HEADWAY_ISA) 'sse9': give one of " in done.stderr


@built
def test_an_isa_is_forced_for_one_thread() -> None:
    before, seen = _library.isa(), []
    with _library.using("portable"):
        thread = threading.Thread(target=lambda: seen.append(_library.isa()))
        thread.start()
        thread.join()
        assert _library.isa() == "portable"
    assert seen == [before]


@built
@pytest.mark.parametrize(("threads", "rounds"), [(0, 1), (1, 0), (-1, 5)])
def test_a_roof_of_nothing_is_refused(threads: int, rounds: int) -> None:
    with pytest.raises(HeadwayError, match="both must be at least 1"):
        _library.roof(_library.FLOAT32, threads, rounds)


# The pool ------------------------------------------------------------------------------------------------------------


def pieces_last_first(end: int, piece: Any, context: int) -> None:
    for worker in reversed(range(end)):
        piece(worker, worker + 1, context)


def one_piece(end: int, piece: Any, context: int) -> None:
    piece(0, end, context)


def no_piece(end: int, piece: Any, context: int) -> None:
    pass


def pieces_at_once(end: int, piece: Any, context: int) -> None:
    threads = [threading.Thread(target=piece, args=(worker, worker + 1, context)) for worker in range(end)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


POOLS = [pieces_last_first, one_piece, no_piece, pieces_at_once]


@pytest.fixture
def give_pool() -> Iterator[Callable[[Any], list[int]]]:
    """Hands the library a pool of the test's own; the list gets the number of workers of each use."""
    with ExitStack() as kept:

        def give(pool: Any) -> list[int]:
            uses: list[int] = []

            def parallel_for(begin: int, end: int, grain: int, piece: int, context: int) -> int:
                assert (begin, grain) == (0, 1)
                uses.append(end)
                pool(end, Piece(piece), context)
                return 0

            kept.enter_context(pool_of(parallel_for))
            return uses

        yield give


@built
def test_the_pool_is_used_and_every_item_is_done_without_it(give_pool: Callable[[Any], list[int]]) -> None:
    for pool in POOLS:
        uses = give_pool(pool)
        done = _library.roof(_library.FLOAT32, 3, 32)
        assert uses == [3]
        assert done == 3 * _library.roof(_library.FLOAT32, 1, 32)
        assert uses == [3], "one worker needs no pool"
    _library.load().c.hw_use_pool(None)
    assert _library.note()
    assert _library.roof(_library.FLOAT32, 3, 32) == 3 * _library.roof(_library.FLOAT32, 1, 32)


@built
@with_kernel
@pytest.mark.parametrize("workers", [3, 4])  # 3 do whole heads, 4 share them out
@pytest.mark.parametrize("pool", POOLS)
def test_results_do_not_depend_on_the_pool(give_pool: Callable[[Any], list[int]], pool: Any, workers: int) -> None:
    q, k, v = (torch.randn(2, 3, 200, 16).requires_grad_() for _ in range(3))
    weight, slope, rate, stretch = (torch.rand(size).requires_grad_() for size in ((3, 64), (3, 4), (1,), (1, 200)))
    edges, rates = torch.tensor([0.1, 0.5, 2.0]), torch.linspace(0.001, 1, 64)
    sink = torch.randn(2, 3, 200).requires_grad_()
    terms = (
        T.DistanceBias(T.Cosines(weight, rates)),
        T.DistanceBias(T.Stretched(edges, slope, slope, rate, stretch)),
        T.Sink(sink),
    )
    leaves = q, k, v, weight, slope, rate, stretch, sink

    def results() -> list[torch.Tensor]:
        found = []
        for at in (torch.arange(200) * 10, torch.linspace(0, 90, 200)):
            alibi = hw.encoding("alibi", num_heads=3)
            out = hw.attention(q, k, v, encoding=alibi, terms=terms, q_positions=at, k_positions=at, kernel="cpu")
            found += [out, *torch.autograd.grad(out.square().sum(), leaves)]
        return found

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = results()
        torch.set_num_threads(workers)
        uses = give_pool(pool)
        spread = results()
    finally:
        torch.set_num_threads(threads)
    assert uses
    assert max(uses) <= workers
    assert all(torch.equal(a, b) for a, b in zip(alone, spread, strict=True))


DENSE = {
    "all pairs": lambda b, h, n, m: (n, m),
    "all heads": lambda b, h, n, m: (b, 1, n, m),
    "all rows of the batch": lambda b, h, n, m: (h, n, m),
    "all queries": lambda b, h, n, m: (h, 1, m),
    "all queries of a row": lambda b, h, n, m: (b, 1, 1, m),
    "all of a key": lambda b, h, n, m: (m,),
    "all of a query": lambda b, h, n, m: (n, 1),
    "all keys of a row": lambda b, h, n, m: (b, 1, n, 1),
    "everything": lambda b, h, n, m: (1, 1),
    "nothing": lambda b, h, n, m: (b, h, n, m),
}
"""Shapes of dense biases by what shares them."""


@built
@with_kernel
@pytest.mark.parametrize("n", [3, 30, 40, 250])  # from 40 on, tasks have no sums of their own of all pairs
@pytest.mark.parametrize("shape", DENSE)
def test_gradients_of_shared_dense_biases_are_right_for_any_number_of_threads(
    give_pool: Callable[[Any], list[int]], shape: str, n: int
) -> None:
    g = torch.Generator().manual_seed(n)
    b, h, m = 3, 4, 260
    q = torch.randn(b, h, n, 16, generator=g)
    k, v = (torch.randn(b, 2, m, 16, generator=g) for _ in range(2))
    bias = torch.randn(DENSE[shape](b, h, n, m), generator=g)
    up = torch.randn(b, h, n, 16, generator=g)

    def gradients(kernel: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, bias)]
        out = hw.attention(*leaves[:3], terms=(T.DenseBias(leaves[3]),), mask=M.Causal(), kernel=kernel)
        return torch.autograd.grad(out, leaves, up.to(dtype))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = gradients("cpu", torch.float32)
        torch.set_num_threads(3)
        uses = give_pool(pieces_at_once)
        spread = gradients("cpu", torch.float32)
    finally:
        torch.set_num_threads(threads)
    assert uses
    assert all(torch.equal(x, y) for x, y in zip(alone, spread, strict=True))
    for found, exact in zip(alone, gradients("reference", torch.float64), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@built
@with_kernel
@pytest.mark.parametrize("mask", [M.Causal() & M.Window(130), M.Causal()], ids=["window", "causal"])
def test_sums_of_gradients_are_the_same_bits_in_turn_and_apart(
    give_pool: Callable[[Any], list[int]], mask: M.Mask
) -> None:
    """One and two workers compute the tasks of long heads in turn, three compute them apart."""
    g = torch.Generator().manual_seed(0)
    q, up = (torch.randn(4, 4, 900, 64, generator=g) for _ in range(2))
    k, v = (torch.randn(4, 2, 1000, 64, generator=g) for _ in range(2))  # which windows see in part

    def gradients(kernel: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = hw.attention(*leaves, mask=mask, encoding=hw.encoding("alibi", num_heads=4), kernel=kernel)
        return torch.autograd.grad(out, leaves, up.to(dtype))

    threads, found = torch.get_num_threads(), []
    uses = give_pool(pieces_at_once)
    try:
        for workers in (1, 2, 3):
            torch.set_num_threads(workers)
            found.append(gradients("cpu", torch.float32))
    finally:
        torch.set_num_threads(threads)
    assert uses
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
    for one, exact in zip(found[0], gradients("reference", torch.float64), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-4)


@contextmanager
def rounding(how: str) -> Iterator[None]:
    """Inside, this thread takes the smallest numbers for 0, or rounds upward."""
    libm = ctypes.CDLL("libm.so.6")
    torch.set_flush_denormal(how == "flushes")
    libm.fesetround(0x800 if how == "rounds upward" else 0)  # FE_UPWARD of x86-64
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        libm.fesetround(0)


@built
@with_kernel
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="needs fenv.h of x86-64")
@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("pool", ["torch's", "none"])
@pytest.mark.parametrize("how", ["flushes", "rounds upward"])
def test_every_thread_rounds_as_the_caller_does(how: str, pool: str, name: str) -> None:
    """torch.set_flush_denormal and fesetround are for one thread: its workers follow it, and forget it again."""
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    draw = torch.Generator().manual_seed(0)
    q, k, v, up = (torch.randn(2, 4, 300, 16, generator=draw) for _ in range(4))
    v *= 1e-38  # so that outputs and gradients are among the smallest numbers
    many = torch.rand(1 << 20, generator=draw) * 1e-38

    def results(threads: int, how: str) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        leaves = [x.clone().requires_grad_() for x in (3 * q, k, v)]
        with _library.using(name), rounding(how):
            out = hw.attention(*leaves, scale=0.25, kernel="cpu")  # d^(−1/2) would be rounded by the first call's mode
            return [out, *torch.autograd.grad(out, leaves, up)]

    before = torch.get_num_threads()
    try:
        if pool == "none":
            _library.load().c.hw_use_pool(None)
        plain, elsewhere = results(1, "as ever"), many / 3
        alone, spread = results(1, how), results(2, how)
        assert all(map(torch.equal, alone, spread))
        assert not torch.equal(alone[0], plain[0])
        assert torch.equal(many / 3, elsewhere)  # torch's threads round as before
        assert all(map(torch.equal, plain, results(2, "as ever")))
    finally:
        _library.load().c.hw_use_pool(_library._torch_pool()[0])
        torch.set_num_threads(before)


FORK = """
import os, resource, signal, torch
import headway as hw
from headway.kernels import KERNELS
from headway.kernels.cpu import _library

torch.set_num_threads(2)
x = torch.randn(600, 600)
(x @ x).exp().sum()  # torch's threads start
q = torch.randn(2, 4, 300, 16)

def work():
    assert _library.roof(_library.FLOAT32, 2, 100) > 0
    if "cpu" in KERNELS:
        hw.attention(q, q, q, kernel="cpu")

if LOADED_BEFORE:
    work()
said = str(hw.explain(q, q, q, kernel="cpu"))
assert "forked" not in said
child = os.fork()
if child == 0:
    signal.alarm(30)  # one that hangs does not stay behind
    work()
    assert "starts its own threads in each call: a forked process" in str(hw.explain(q, q, q, kernel="cpu"))
    for _ in range(100):
        _library.roof(_library.FLOAT32, 2, 1 << 22)  # of which another thread does half, unless it starts late
        own, everybody = (sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_THREAD, resource.RUSAGE_SELF))
        if everybody > 1.2 * own:
            os._exit(7)
    raise AssertionError((own, everybody))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
work()
print("both are well")
"""


@built
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("before", [True, False], ids=["loaded before", "loaded in the child"])
def test_a_call_after_a_fork_returns(before: bool) -> None:
    """torch's pool hangs in a child of a process that has used two threads: the library starts its own there."""
    done = script(FORK.replace("LOADED_BEFORE", str(before)))
    assert done.stdout == "both are well\n", done.stderr
