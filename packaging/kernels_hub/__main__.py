"""Writes a repository for the Hugging Face kernels hub: the package with the library of this machine.

    python packaging/kernels_hub OUT

Models of transformers then run with attn_implementation="owner/headway", and need no installation of headway.
"""

import argparse
import json
import shutil
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "headway"
BACKENDS = ("cpu", "cuda")
"""The variants, whose files are the same: Triton's programs are compiled where they run."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "csrc", "README.md", "*.pyc")
CARD = """---
library_name: kernels
license: apache-2.0
---
# headway

Attention with any position encoding, in fused kernels: headway's own in C++ on a CPU, and in Triton on a GPU.

    AutoModel.from_pretrained(path, attn_implementation="OWNER/headway", allow_all_kernels=True)
    get_kernel("OWNER/headway", version=1, trust_remote_code=True).headway     # the whole package
"""


def write(out: Path) -> None:
    """Writes the repository into a folder that is empty or not there."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty: give another folder")
    if not list(SOURCE.glob("kernels/cpu/_attention.*")):
        raise SystemExit("the C++ library is not built: run `make native`")
    for backend in BACKENDS:
        variant = out / "build" / f"torch-{backend}"
        shutil.copytree(SOURCE, variant / "headway", ignore=LEFT_OUT)
        shutil.copyfile(HERE / "entry.py", variant / "__init__.py")
        facts = {"name": "headway", "version": 1, "license": "Apache-2.0", "python-depends": []}
        metadata = {"id": f"_headway_{backend}_1", **facts, "backend": {"type": backend}}
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(CARD, encoding="utf-8")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="an empty folder")
    write(options.parse_args().out)
