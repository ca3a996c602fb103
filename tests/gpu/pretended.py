"""A GPU that is not here, for triton: programs are compiled for it, up to the assembly, and nothing is started.

It shows what the host does for a call: which programs are started with which arguments, and how long that takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

CACHE = Path(__file__).parents[2] / "build" / "pretended-gpu"
"""Where programs are kept, which have no machine code: not where those are that can run."""
CAPABILITY = 90
PROCESSORS = 132


class Started(NamedTuple):
    """A program that was started.

    Attributes:
        name: its name.
        grid: how many instances.
        arguments: its arguments, and the constants that follow them.
    """

    name: str
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


def always(value: object) -> Callable[..., Any]:
    """Returns a function that returns a value, in less time than a mock."""
    return lambda *_: value


@contextmanager
def gpu(started: list[Started] | None = None) -> Iterator[None]:
    """The Triton kernel takes tensors on a CPU, as if they were on a GPU of compute capability 9.0.

    Args:
        started: where each program is added that is started; None if they are not wanted.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    from headway.kernels.triton import _forward, _installed, _launch

    class Launcher:
        """Takes the place of what calls the driver."""

        def __init__(self, src: Any, metadata: Any) -> None:
            self.name = metadata.name

        def __call__(self, x: int, y: int, z: int, stream: Any, function: Any, *others: Any) -> None:
            if started is not None:
                started.append(Started(self.name, (x, y, z), others[4:]))  # behind metadata and hooks

    class Utilities:
        @staticmethod
        def load_binary(*arguments: Any) -> tuple[int, int, int, int, int]:
            return 1, 1, 0, 0, 1024

        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            return {"max_shared_mem": 1 << 20, "multiprocessor_count": PROCESSORS}

    class Driver:
        utils, launcher_cls = Utilities, Launcher

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", CAPABILITY, 32)

    triton.runtime.driver.set_active(Driver())
    with (
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=str(CACHE / triton.__version__)),
        mock.patch.object(CUDABackend, "make_cubin", return_value=b""),
        mock.patch.object(_installed, "reason_against", always(None)),
        mock.patch.object(_launch, "_has_warpgroups", always(True)),
        mock.patch.object(_forward, "_processors", always(PROCESSORS)),
    ):
        yield
