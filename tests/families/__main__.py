"""Runs the architectures, and writes what came out.

    PYTHONPATH=tests python -m families                 all; what is in build/families.jsonl is not run again
    PYTHONPATH=tests python -m families llama bert      these
    PYTHONPATH=tests python -m families --drawn 20 --seed 20261123
    PYTHONPATH=tests python -m families --write         writes tests/golden/families.jsonl and docs/models.md

Without --write, the outcomes are compared with those of tests/golden/families.jsonl, and the exit status is 1 where one
is another.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import traceback
import warnings
from multiprocessing.pool import ThreadPool
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.progress import track

from headway._common.lines import append_lines, read_lines, write_lines
from headway.bench.machine import cores
from headway.integrations.transformers import register

from . import page
from .architectures import Part, architectures
from .checks import outcomes

ROOT = Path(__file__).parents[2]
DONE, GOLDEN, PAGE = ROOT / "build" / "families.jsonl", ROOT / "tests/golden/families.jsonl", ROOT / "docs/models.md"
PATIENCE = 300
"""Seconds that one model may take."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures, by the names of their modules; default: all")
    parser.add_argument("--drawn", type=int, metavar="N", help="as many architectures, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="models at a time; default: the cores")
    parser.add_argument("--write", action="store_true", help="keep the outcomes, and write them to docs/models.md")
    parser.add_argument("--anew", action="store_true", help="run again what was run before")
    chosen = parser.parse_args(words)
    known = architectures()
    if unknown := sorted(set(chosen.names) - known.keys()):
        parser.error(
            f"{', '.join(unknown)} is not an architecture whose attention goes through transformers' interface"
        )
    names = chosen.names or list(known)
    if chosen.drawn is not None:
        names = sorted(Random(chosen.seed).sample(names, chosen.drawn))
    whole = len(names) == len(known)
    if chosen.anew:
        DONE.unlink(missing_ok=True)
    rows = {row["model"]: row for row in read_lines(DONE, "delete it")} if whole else {}
    register()
    torch.set_num_threads(1)
    if "llama" in known:
        outcomes(known["llama"][0].load())  # imports what every process would import anew
        gc.collect()
        gc.freeze()
    parts = [part for name in names for part in known[name] if part.model not in rows]
    with ThreadPool(chosen.jobs) as pool:  # of threads, since each model has a process of its own
        for row in track(pool.imap(run, parts), "families", len(parts), disable=not sys.stderr.isatty()):
            rows[row["model"]] = row
            if whole:
                append_lines(DONE, [row])
    ordered = [rows[part.model] for name in names for part in known[name]]
    if chosen.write:
        write_lines(GOLDEN, ordered)
        PAGE.write_text(page.written(PAGE.read_text(encoding="utf-8"), ordered), encoding="utf-8")
        return 0
    return compared(ordered)


def run(part: Part) -> dict[str, Any]:
    return {"architecture": part.architecture, "model": part.model, "outcomes": apart(part)}


def apart(part: Part) -> dict[str, str]:
    """The outcomes of a model in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        os.close(reading)
        try:
            warnings.simplefilter("ignore")
            found = outcomes(part.load())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    if found:
        return json.loads(found)
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    return {"all": f"not tried: not within {PATIENCE} s" if late else f"differs: the process ended with {status}"}


def compared(rows: list[dict[str, Any]]) -> int:
    """Prints each outcome that is not the one that is kept; returns 1 if there is any."""
    kept = {row["model"]: row["outcomes"] for row in read_lines(GOLDEN, "run python -m families --write")}
    wrong = 0
    for row in rows:
        model, found = row["model"], row["outcomes"]
        before = kept.get(model, {})
        for way in sorted(found.keys() | before.keys()):
            now, then = found.get(way, "not tried"), before.get(way, "not tried")
            if now.partition(":")[0] != then.partition(":")[0]:
                print(f"{row['architecture']}: {model}: {way}: {now} (before: {then})")
                wrong = 1
    print(f"{len(rows)} models: {'as' if not wrong else 'not as'} {GOLDEN.relative_to(ROOT)} has them")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
