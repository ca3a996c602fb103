"""The processes of the tests of this folder, started once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from processes import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four processes; functions run on the first two, three or all of them."""
    made = Pool(4)
    yield made
    made.close()
