"""What every test stands on: one seed, one thread where tests run side by side, no compiled code kept."""

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# No deadline: a test never fails for being slow. The same examples in every run, so that a failure repeats.
hypothesis.settings.register_profile("headway", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("headway")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() == torch.float32, "the test left another default dtype behind"
    # What one test compiled must not count towards the recompilations of the next.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none, those on the CPU kernel where it was not compiled."""
    from headway.kernels.cpu import _library

    missing = _library.why_not()
    for item in items:
        call = getattr(item, "callspec", None)
        if missing and call is not None and call.params.get("kernel") == "cpu":
            item.add_marker(pytest.mark.skip(reason=missing))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
