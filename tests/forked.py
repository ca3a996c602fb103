"""Processes that have torch, matplotlib and headway already.

A fresh interpreter takes seconds of a processor to import them. One process imports them once, and others are forks of
it. What is about imports needs a fresh interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

IMPORTED = ["matplotlib.figure", "matplotlib.backends.backend_agg", "zhplot", "PIL.PngImagePlugin"]
IMPORTED += ["headway", *(f"headway.{name}" for name in ("_common.pictures", "parallel", "study.suite", "testing"))]
IMPORTED += ["torch._dynamo"]  # which an optimizer imports in its first step


def context() -> Any:
    """Returns the context of multiprocessing whose processes are forks of the one that has imported all this."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(IMPORTED)
    return found


def instead_of_new(module: Any, monkeypatch: Any) -> None:
    """Lets a module that starts processes by ``multiprocessing`` start such forks, for one test."""
    made = context()
    monkeypatch.setattr(module, "multiprocessing", SimpleNamespace(get_context=lambda method: made))


def _run(words: list[str], folder: str, environment: dict[str, str], streams: list[str]) -> None:
    """Runs ``python words`` in this process, in this folder and environment, with warnings as errors."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(streams, 1):
        os.dup2(os.open(name, os.O_WRONLY), number)
    option, *rest = words
    sys.argv[:] = words if option != "-c" else [option, *rest[1:]]
    warnings.resetwarnings()
    warnings.simplefilter("error")
    if option == "-c":
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(option).parent))
        runpy.run_path(option, run_name="__main__")


def python(*words: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 300) -> Any:
    """Runs ``python words…``, which are a script or -c and code, and arguments.

    Args:
        words: what follows ``python``.
        cwd: the folder to run in.
        env: the environment. Default: that of this process.
        timeout: seconds after which the process is killed.

    Returns:
        A ``subprocess.CompletedProcess`` with texts.
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("out", "err")]
        for stream in streams:
            stream.touch()
        given = list(words), str(cwd), dict(os.environ if env is None else env), [str(stream) for stream in streams]
        process = context().Process(target=_run, args=given)  # a daemon may not start processes
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        out, err = (stream.read_text(encoding="utf-8") for stream in streams)
    return subprocess.CompletedProcess(words, process.exitcode, out, err)
