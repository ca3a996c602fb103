"""`make claims`: runs every lesson, draws its picture, and writes the page of claims in both languages."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pages
from claims import SUBJECTS, numbers, page
from claims._guess import PAGES, page_data
from headway import HeadwayError
from headway._common.files import atomic_write, need_file_place
from lesson import SPEAK, lacking

EXAMPLES = Path(__file__).parents[1]
READ = ("minilm", "google-news", "en_pud-ud-test.conllu", "gap-test.tsv", "fortunes-zh.txt")
"""What the lessons read besides their own text; without it some claims are not measured."""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m claims", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="an existing one (default: the current folder)")
    parser.add_argument("--docs", action="store_true", help="write into docs/, pictures too: for maintainers")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write only a page to guess first, from docs/claims.md"
    )
    chosen = parser.parse_args(words)
    if chosen.page:
        try:
            need_file_place(chosen.page)
            pages.write(chosen.page, "claims", page_data())
        except HeadwayError as error:
            raise SystemExit(str(error)) from None
        print(f"written: {chosen.page}")
        return
    if chosen.docs and chosen.out:
        parser.error("--docs and --out: give one of them")
    if chosen.docs and (missing := lacking(READ)):
        parser.error(f"--docs: without {missing[0]} the page would have less than the one in docs: {missing[1]}")
    out = chosen.out or Path()
    if not out.is_dir():
        parser.error(f"--out {out}: give a folder that exists")
    places = PAGES if chosen.docs else {"en": out / "claims.md", "zh": out / "claims.zh-CN.md"}

    lessons = [path.stem for path in EXAMPLES.glob("lesson_*.py")]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        for name in sorted(lessons, key=lambda name: int(name.split("_")[1])):
            print(name, flush=True)
            drawn = ["--docs"] if chosen.docs else ["--out", str(out / f"lesson-{name.split('_')[1]}.png")]
            command = [sys.executable, EXAMPLES / f"{name}.py", "--found", file, *drawn]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found[name] = numbers(json.loads(file.read_text(encoding="utf-8")))
    texts = {path: page(SUBJECTS, found, SPEAK[language]) for language, path in places.items()}
    for path, text in texts.items():
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
