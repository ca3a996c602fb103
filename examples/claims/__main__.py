"""`make claims`: runs every lesson, draws its pictures, and writes the page of claims in both languages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from claims import SUBJECTS, numbers, page
from headway.files import atomic_write
from lesson import DOCS, SPEAK

EXAMPLES = Path(__file__).parents[1]
PAGES = {"en": DOCS / "claims.md", "zh": DOCS / "zh-CN" / "claims.md"}


def main() -> None:
    lessons = {claim.lesson for _, group in SUBJECTS for claim in group}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        for name in sorted(lessons, key=lambda name: int(name.split("_")[1])):
            print(name, flush=True)
            script = EXAMPLES / f"{name}.py"
            subprocess.run([sys.executable, script, "--found", file], check=True, stdout=subprocess.DEVNULL)
            found[name] = numbers(json.loads(file.read_text(encoding="utf-8")))
    texts = {path: page(SUBJECTS, found, SPEAK[language]) for language, path in PAGES.items()}
    for path, text in texts.items():
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
