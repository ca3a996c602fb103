import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# for `import encoded_calls`
sys.path.append(str(Path(__file__).parent.parent / "kernels"))


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """data("gap-test.tsv") is that file in $HEADWAY_DATA, or a skip that says so."""

    def found(name: str) -> Path:
        folder = os.environ.get("HEADWAY_DATA")
        path = Path(folder).expanduser() / name if folder else None
        if path is None or not path.is_file():
            pytest.skip(f"no {name} in the folder $HEADWAY_DATA")
        return path

    return found
