"""Every encoding by every method on several processes: the numbers of one process."""

from __future__ import annotations

import cases
import pytest
from processes import Pool

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-10


@pytest.mark.parametrize("shape", ["contiguous", "zigzag"])
@pytest.mark.parametrize("method", ["gather"])
def test_every_encoding_on_two_processes(pool: Pool, method: str, shape: str) -> None:
    """Output, log-sum-exp and every gradient, with a sink and dropout."""
    for found in pool.run(2, cases.sweep, method, shape, cases.IN_ATTENTION):
        assert {name: one for name, one in found.items() if isinstance(one, str) or one > CLOSE} == {}
