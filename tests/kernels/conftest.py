"""The calls that these tests draw lie beside them, for a script that is run by itself as for the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
