import sys
from pathlib import Path

# for `import encoded_calls`
sys.path.append(str(Path(__file__).parent.parent / "kernels"))
