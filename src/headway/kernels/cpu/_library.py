"""Finds, loads and calls the C++ library of the CPU kernel."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from ..._common.extras import library_command
from ...errors import HeadwayError, unknown

ISAS = ("portable", "avx2", "avx512", "avx512bf16", "neonbf16")
"""The instruction sets, in the order of their numbers in the C interface. Later ones are preferred."""

FLOAT32, BFLOAT16 = 0, 1
"""The operations that ``roof`` can measure: float32 multiply-adds and bfloat16 dot products."""

OUT_OF_MEMORY, NO_SUCH_ISA = -1, -2

VERSION = 13
"""The version of the C interface, as in csrc/call.h."""

Words: TypeAlias = "list[int] | array[int]"
"""The int64 words of a call."""


class Library(NamedTuple):
    """The loaded library, or why there is none."""

    c: Any
    """The functions of the C interface; None without a library."""
    why_not: str
    """Why there is no library; empty if there is one."""
    no_pool: str = ""
    """Why torch's threads are not used; empty if they are."""
    isas: tuple[str, ...] = ()
    """The instruction sets of this machine, best first."""
    isa: int = 0
    """The number of the instruction set in use: the best, or HEADWAY_ISA."""


_lock = threading.Lock()
_library: Library | None = None
_forced: ContextVar[int | None] = ContextVar("headway_isa", default=None)
_process = os.getpid()


def load() -> Library:
    """Returns the library. The first call loads it."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def why_not() -> str | None:
    """Returns why there is no library, for messages; None if there is one."""
    return load().why_not or None


def place() -> Path:
    """Returns the path of the library, whether or not it exists: HEADWAY_LIBRARY, or the one in the package."""
    named = os.environ.get("HEADWAY_LIBRARY")
    return Path(named) if named else Path(__file__).with_name("_attention" + _suffix())


def note() -> str:
    """Returns why the library is slower than it could be, for messages; empty if it is at full speed."""
    library = load()
    if library.c is None or library.c.hw_has_pool():
        return ""
    reason = library.no_pool or "a forked process does not have torch's threads"
    return f"starts its own threads in each call: {reason}"


def isas() -> tuple[str, ...]:
    """Returns the instruction sets that this machine has and the library was compiled for, best first."""
    return load().isas


def isa() -> str:
    """Returns the instruction set that this thread uses."""
    library = _there()
    forced = None if torch.compiler.is_compiling() else _forced.get()  # a compiler cannot follow context variables
    return ISAS[library.isa if forced is None else forced]


def isa_of_process() -> str:
    """Returns the instruction set of the process, ignoring ``using``; empty without a library."""
    library = load()
    return "" if library.c is None else ISAS[library.isa]


@contextmanager
def using(name: str) -> Iterator[None]:
    """A context in which this thread uses the instruction set of this name."""
    token = _forced.set(_number(name, _there().isas, "isa"))
    try:
        yield
    finally:
        _forced.reset(token)


def environment() -> tuple[int, int, int]:
    """Returns the number of threads, the instruction set and the library, on which words and speed of a call depend."""
    library, forced = load(), _forced.get()
    return torch.get_num_threads(), library.isa if forced is None else forced, id(library)


def run(words: Words) -> None:
    """Runs one call of attention; the words are in the order in which csrc/call.h reads them."""
    _call("hw_attention", words)


def rms_norm(words: Words) -> None:
    """Runs one RMS norm; the words are in the order of Norm in csrc/tokens.h."""
    _call("hw_rms_norm", words)


def rotate(words: Words) -> None:
    """Runs one rotation; the words are in the order of Rotate in csrc/tokens.h."""
    _call("hw_rotate", words)


def _call(name: str, words: Words) -> None:
    library = _there()
    forced = _forced.get()
    number = library.isa if forced is None else forced
    at = words.buffer_info()[0] if isinstance(words, array) else struct.pack(f"{len(words)}q", *words)
    code = getattr(library.c, name)(at, len(words), number)
    if code:
        _fail(code)


def roof(kind: int, threads: int, rounds: int) -> float:
    """Runs floating-point operations between registers only and returns their number. The caller measures the time."""
    library = _there()
    forced = _forced.get()
    done = ctypes.c_double()
    code = library.c.hw_roof(library.isa if forced is None else forced, kind, threads, rounds, ctypes.byref(done))
    if code == 2:
        raise HeadwayError(f"kind={kind} cannot be measured with {isa()}: it needs avx512bf16 or neonbf16")
    if code:
        raise HeadwayError(f"threads={threads}, rounds={rounds} cannot be measured: both must be at least 1")
    return done.value


def _there() -> Library:
    library = _library or load()
    if library.c is None:
        raise HeadwayError(f"the cpu kernel cannot run: {library.why_not}")
    return library


def _fail(code: int) -> None:
    if code == OUT_OF_MEMORY:
        raise MemoryError("the cpu kernel could not get its working memory: use fewer threads or a smaller batch")
    if code == NO_SUCH_ISA:
        raise HeadwayError(f"the library was not compiled for {isa()}: choose from {', '.join(isas())}")
    raise HeadwayError(
        f"word {code - 1} of a call of the cpu kernel is wrong, which is a fault in headway: "
        "kernel='reference' computes the same"
    )


def _load() -> Library:
    path = place()
    if not path.exists() and not os.environ.get("HEADWAY_LIBRARY"):
        if sys.platform == "win32":
            return Library(None, "its C++ library is not built on Windows")
        return Library(
            None,
            "the package was installed without its C++ library: install a C++ compiler, such as g++, then run: "
            f"{library_command()}",
        )
    try:
        c = ctypes.CDLL(str(path))
        version = _version(c)
        if version != VERSION:
            return Library(
                None,
                f"its C++ library {path} belongs to another version of headway (its interface is version {version}, "
                f"not {VERSION}): build it again, with: {library_command()}",
            )
        _declare(c)
    except (OSError, AttributeError) as error:
        return Library(None, f"its C++ library could not be loaded: {error}")
    there = tuple(name for number, name in reversed([*enumerate(ISAS)]) if c.hw_isa_available(number))
    chosen = os.environ.get("HEADWAY_ISA")
    number = _number(chosen, there, "HEADWAY_ISA") if chosen else ISAS.index(there[0])
    pool, no_pool = _torch_pool()
    # A process forked before the library was loaded does not have its parent's threads either.
    if os.getpid() == _process:
        c.hw_use_pool(pool)
    return Library(c, "", no_pool, there, number)


def _suffix() -> str:
    return {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def _version(c: ctypes.CDLL) -> int:
    """Returns the version of a library's C interface; libraries before version 3 do not state it."""
    c.hw_attention  # noqa: B018 (raises where it is another library altogether)
    return int(c.hw_version()) if hasattr(c, "hw_version") else 2


def _declare(c: ctypes.CDLL) -> None:
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
        ("hw_attention", i64, [pointer, i64, i64]),
        ("hw_rms_norm", i64, [pointer, i64, i64]),
        ("hw_rotate", i64, [pointer, i64, i64]),
        ("hw_isa_available", i64, [i64]),
        ("hw_use_pool", None, [pointer]),
        ("hw_has_pool", i64, []),
        ("hw_roof", i64, [i64, i64, i64, i64, pointer]),
    ):
        function = getattr(c, name)
        function.restype, function.argtypes = result, arguments


def _number(name: str, there: tuple[str, ...], argument: str) -> int:
    if name in there:
        return ISAS.index(name)
    if name in ISAS:
        raise HeadwayError(f"{argument}={name!r} is not on this machine: choose from {', '.join(there)}")
    raise unknown(f"instruction set ({argument})", name, there)


def _torch_pool() -> tuple[int | None, str]:
    """Returns the address of torch's parallel loop, or None and a message about its absence."""
    for where in (str(Path(torch.__file__).with_name("lib") / f"libtorch_cpu{_suffix()}"), f"libtorch_cpu{_suffix()}"):
        try:
            # only an already loaded library: a second copy of torch would have another pool
            loaded = ctypes.CDLL(where, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            return ctypes.cast(loaded.torch_parallel_for, ctypes.c_void_p).value, ""
        except (OSError, AttributeError):
            continue
    return None, f"torch_parallel_for not found in torch {torch.__version__}"
