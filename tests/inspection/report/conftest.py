import sys
from pathlib import Path

# for `import reports` and `import decoded`
sys.path.append(str(Path(__file__).parent))
