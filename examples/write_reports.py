"""Writes the reports that the documentation shows: small models of planted relations, MiniLM and SmolLM2.

    python examples/write_reports.py                          # into the folder reports
    python examples/write_reports.py planted-english --docs   # into docs/reports
    python examples/write_reports.py shakespeare --layers 4   # four of SmolLM2's 30 layers, an eighth of the time

`make weights ARGS="minilm smollm2"` fetches the weights. Shakespeare is the file tinyshakespeare.txt in the folder that
$HEADWAY_DATA names.
"""

from __future__ import annotations

import argparse
import codecs
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import torch

import headway as hw
from headway.inspection import head_roles, texts
from headway.study import planted

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "reports"
SENTENCES = {
    "english": "The cat that the dogs saw was asleep because it was tired .",
    "chinese": "小猫吃苹果因为它很饿。",
}
"""A sentence of each small model, with relations that were planted."""
TOKENS = 32_768


class _EnoughError(Exception):
    """Ends a pass whose later layers nobody looks at."""


def planted_report(language: str, path: Path) -> None:
    """The report of the small model of a language on one sentence."""
    small = planted.pretrained(language)
    read = texts.encode(planted.tokenizer(small.language), [SENTENCES[language]])[0]
    with torch.no_grad(), hw.capture(small.model, keep="qk") as seen:
        small.model(torch.tensor([read.ids]))
    shown = {"english": "en", "chinese": "zh"}[language]
    seen.report(path, text=read, roles=small.roles, language=shown, name=f"small {language} model")


def minilm_report(path: Path) -> None:
    """The report of MiniLM on the Zen of Python."""
    model, tokenizer = hw.load(_weights("minilm")), hw.checkpoints.tokenizer(_weights("minilm"))
    with redirect_stdout(StringIO()):
        import this
    read = texts.encode(tokenizer, [codecs.decode(this.s, "rot13")])[0]
    roles = head_roles(model, texts.encode(tokenizer, texts.python_manual(200), longest=512, too_long="leave out"))
    with torch.no_grad(), hw.capture(model, keep="qk") as seen:
        model(torch.tensor([read.ids]))
    seen.report(path, text=read, roles=roles, name="all-MiniLM-L6-v2")


def shakespeare_report(path: Path, tokens: int, layers: int | None) -> None:
    """The report of the first layers of SmolLM2-135M-Instruct on the first tokens of Shakespeare."""
    weights = _weights("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model, tokenizer = hw.load(weights), hw.checkpoints.tokenizer(weights)
    file = Path(os.environ.get("HEADWAY_DATA", "")) / "tinyshakespeare.txt"
    if not file.is_file():
        raise hw.HeadwayError(f"{file} is not there: set $HEADWAY_DATA to a folder with tinyshakespeare.txt")
    text = file.read_text(encoding="utf-8")[: 6 * tokens]
    encoding = tokenizer.encode(text)
    ids, offsets = encoding.ids[:tokens], encoding.offsets[:tokens]

    def stop(*_: object) -> None:
        raise _EnoughError

    if layers is not None and layers < len(model.stack.layers):
        model.stack.layers[layers].register_forward_pre_hook(stop)
    with suppress(_EnoughError), torch.no_grad(), hw.capture(model, keep="qk") as seen:
        model.hidden(torch.tensor([ids]))  # without logits, which would take 6 GB
    seen.report(path, text=text[: offsets[-1][1]], offsets=offsets, name="SmolLM2-135M-Instruct")


def _weights(name: str) -> Path:
    home = os.environ.get("HEADWAY_WEIGHTS") or Path.home() / ".cache" / "headway" / "weights"
    folder = Path(home) / name
    if not folder.is_dir():
        raise hw.HeadwayError(f'the weights of {name} are not here: make weights ARGS="{name}"')
    return folder


REPORTS: dict[str, Callable[[Path, int, int | None], None]] = {
    "planted-english": lambda path, *_: planted_report("english", path),
    "planted-chinese": lambda path, *_: planted_report("chinese", path),
    "minilm": lambda path, *_: minilm_report(path),
    "shakespeare": shakespeare_report,
}
"""The reports by the names of their files."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(REPORTS) + "; default: all")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="the folder; it is made")
    parser.add_argument("--docs", action="store_true", help="write into docs/reports")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of Shakespeare; default: {TOKENS}")
    parser.add_argument("--layers", type=int, help="layers of SmolLM2, from the first; default: all 30")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in REPORTS]
    if unknown:
        parser.error(f"there is no report {unknown[0]!r}: {', '.join(REPORTS)}")
    out, failed = DOCS if given.docs else given.out, 0
    out.mkdir(parents=True, exist_ok=True)
    for name in given.names or REPORTS:
        begin = time.perf_counter()
        try:
            REPORTS[name](out / f"{name}.html", given.tokens, given.layers)
        except hw.HeadwayError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed += 1
            continue
        size = (out / f"{name}.html").stat().st_size
        print(f"{out / name}.html: {size / 1e6:.2f} MB, {time.perf_counter() - begin:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
