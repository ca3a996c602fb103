"""Writes the tables of BENCHMARKS.md from the measurements in results/: `python benchmarks/page.py`.

Each line of a table names its cases, so that a number on the page is that of a row. A page that differs from what
this writes fails its test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway._common.files import atomic_write
from headway._common.table import Table
from headway.bench.brief import by_encoding
from headway.bench.sides import CONTIGUOUS, DENSE, DENSE_GRADIENT, HF_EAGER, HF_SDPA, OURS, PLAIN, READ, REFERENCE, SDPA
from headway.bench.statistics import ALL, ALONE, MATERIALIZED
from headway.bench.steps import TORCH, X_TRANSFORMERS
from headway.bench.targets import peer
from headway.bench.tokens import BY_HAND
from headway.parallel import METHODS

HERE = Path(__file__).parent
PAGE = HERE.parent / "BENCHMARKS.md"
RESULTS = (
    *("2026-11-22-bench", "2026-11-22-statistics", "2026-11-21-models"),
    *("2026-11-23-short", "2026-11-23-steps", "2026-11-27-token", "2026-11-27-sequence"),
)
"""The files; of a case that several have, the last one counts."""
ON_ZEN_5 = ("2026-11-28-sequence-zen5",)
"""The same of another processor."""
ATTENTION_ON_ZEN_5 = ("2026-11-28-attention-zen5",)
CONTENT = ("2026-11-28-content-zen5",)
"""Scores that content gives."""
CACHE_ON_ZEN_5 = ("2026-11-28-cache-1-thread-zen5",), ("2026-11-28-cache-zen5",)
"""Queries against a cache, with one thread and with two."""
PACKED_ON_ZEN_5 = ("2026-11-28-packed-zen5",)
HALF_ON_ZEN_5 = ("2026-11-28-half-zen5",)
"""float16 beside float32."""
STEPS_ON_ZEN_5 = ("2026-11-28-steps-zen5",)
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Line:
    """A line of a table: what is compared, in which case, and with which side.

    Attributes:
        what: what is compared, in words.
        case: what the case of its rows has.
        side: the side that headway is compared with.
        ours: headway's side.
    """

    what: str
    case: dict[str, Any]
    side: str
    ours: str = OURS

    def ratio(self, rows: list[dict[str, Any]], dtype: str) -> str:
        """Returns the time of the side divided by that of headway, or "–" if this dtype was not measured."""
        wanted = {**self.case, "dtype": dtype}
        found = [row["ms"] for row in rows if "ms" in row and wanted.items() <= row["case"].items()]
        if not found:
            return "–"
        [times] = found
        return f"{times[self.side] / times[self.ours]:.2f}×"


def attention(encoding: str, mask: str, n: int, direction: str = "forward", head_dim: int = 64) -> dict[str, Any]:
    """The case of one call of attention."""
    return {
        "kind": "attention",
        "encoding": encoding,
        "mask": mask,
        "n": n,
        "head_dim": head_dim,
        "direction": direction,
    }


def model(task: str, name: str, n: int, batch: int = 1) -> dict[str, Any]:
    """The case of a whole model."""
    return {"task": task, "model": name, "n": n, "batch": batch}


STATISTICS = {"kind": "statistics", "encoding": "t5", "n": 4096}

FASTER = (
    Line("4,096 tokens, causal, no encoding, forward · SDPA", attention("none", "causal", 4096), SDPA),
    Line("4,096 tokens, causal, no encoding, backward · SDPA", attention("none", "causal", 4096, "backward"), SDPA),
    Line(
        "4,096 tokens, causal, ALiBi, forward · SDPA with a ready-made bias", attention("alibi", "causal", 4096), DENSE
    ),
    Line(
        "4,096 tokens, causal, a learned T5 bias, backward · SDPA with a bias that requires a gradient",
        attention("t5", "causal", 4096, "backward"),
        DENSE_GRADIENT,
    ),
    Line(
        "4,096 tokens, a window of 256, forward · SDPA with a mask",
        attention("none", "window", 4096),
        SDPA,
    ),
    Line("one token against a cache of 32,768 · SDPA", {"kind": "decoding"}, SDPA),
    Line("SmolLM2-135M reads 4,096 tokens · transformers, sdpa", model("prefill", "SmolLM2", 4096), HF_SDPA),
    Line("SmolLM2-135M writes a token after 4,096 · transformers, sdpa", model("decode", "SmolLM2", 4096), HF_SDPA),
    Line(
        "a training step of T5's encoder, 2,048 tokens · transformers, eager",
        model("train", "T5 encoder", 2048),
        HF_EAGER,
    ),
    Line(
        "a training step, 4 layers of 512, RoPE, 2 × 1,024 tokens · x-transformers, flash",
        model("step", "RoPE", 1024, 2),
        X_TRANSFORMERS,
    ),
    Line(
        "a training step, 4 layers of 512, T5 bias, 2 × 1,024 tokens · x-transformers",
        model("step", "T5 bias", 1024, 2),
        X_TRANSFORMERS,
    ),
    Line(
        "12 statistics of each head, without an output, 4,096 tokens, T5 · torch, from the weights",
        STATISTICS,
        MATERIALIZED,
        ALONE,
    ),
)
"""What a user gains."""

SLOWER = (
    Line(
        "32 tokens in one row, full, ALiBi, forward · SDPA with a ready-made bias",
        attention("alibi", "none", 32),
        DENSE,
    ),
    Line("32 tokens in one row, full, T5, forward · SDPA with such a bias", attention("t5", "none", 32), DENSE),
    Line("128 tokens in one row, full, no encoding, forward · SDPA", attention("none", "none", 128), SDPA),
    Line("128 tokens in one row, full, T5, forward · SDPA with a ready-made bias", attention("t5", "none", 128), DENSE),
    Line(
        "128 tokens in one row, full, RoPE, forward · SDPA, which rotates nothing", attention("rope", "none", 128), SDPA
    ),
    Line("512 tokens, full, RoPE, forward · SDPA, which rotates nothing", attention("rope", "none", 512), SDPA),
    Line(
        "2,048 tokens, full, Transformer-XL, forward · SDPA with a ready-made bias",
        attention("transformer-xl", "none", 2048),
        DENSE,
    ),
    Line(
        "2,048 tokens, full, Transformer-XL, forward · headway without an encoding",
        attention("transformer-xl", "none", 2048),
        PLAIN,
    ),
    Line(
        "8 packed documents of 512 tokens, T5, backward · the same as a batch",
        {"kind": "packed", "encoding": "t5", "direction": "backward"},
        CONTIGUOUS,
    ),
    Line("sentence encoding, MiniLM, 8 × 512 tokens · transformers, sdpa", model("encode", "MiniLM", 512, 8), HF_SDPA),
    Line("attention with the 11 statistics of one pass, 4,096 tokens, T5 · attention alone", STATISTICS, OURS, ALL),
)
"""Where headway is slower, or hardly faster."""

TOKEN_LENGTHS = (128, 1024, 4096)
TOKENS = {
    "a call of attention, no encoding": "attention",
    "a call of attention with RoPE, which rotates all keys": "attention, RoPE",
    "an attention layer with its cache, RoPE": "layer, RoPE",
    "a decoder of 4 layers, RoPE": "decoder, RoPE",
}
"""What writes a token after others, and the name of its case."""

SEQUENCES = {
    "none": "no encoding",
    "alibi": "ALiBi",
    "rope": "RoPE",
    "t5": "T5",
    "fire": "FIRE",
    "forgetting": "forgetting gates",
}
SEQUENCE_LENGTHS = (4096, 16384)
"""What is attended to by two processes, by the name of its encoding, and over how many tokens."""

CONTENT_ENCODINGS = {
    "cope": "CoPE",
    "grape-ap": "GRAPE-AP",
    "stick-breaking": "stick-breaking",
    "rerope": "ReRoPE",
    "wall": "Wall attention",
    "path": "PaTH",
}
DIRECTIONS = ("forward", "backward")
NAMES = {"none": "no encoding", "alibi": "ALiBi", "t5": "T5", "rope": "RoPE", "transformer-xl": "Transformer-XL"}
QUERIES = (1, 5, 16, 48)
GROUPS = (1, 4)
"""Query heads that share a head of keys."""
STEPS = {"learned": TORCH, "RoPE": X_TRANSFORMERS, "ALiBi": X_TRANSFORMERS, "T5 bias": X_TRANSFORMERS}
"""The library that a training step is compared with."""
STEPS_WANTED = {"learned": 1.7, "RoPE": 1.9, "ALiBi": 2.4, "T5 bias": 7.0}


def rows(results: tuple[str, ...] = RESULTS) -> list[dict[str, Any]]:
    """The rows of some results."""
    files = [HERE / "results" / f"{name}.jsonl" for name in results]
    found = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return list({json.dumps(row["case"], sort_keys=True): row for row in found}.values())


def page(text: str) -> str:
    """Returns a page with its tables made anew: each stands between two comments with its name."""
    measured = rows()
    for name, lines in (("faster", FASTER), ("slower", SLOWER)):
        cells = [[line.what, *(line.ratio(measured, dtype) for dtype in DTYPES)] for line in lines]
        text = between(text, name, Table(["what · compared with", *DTYPES], cells).markdown())
    cells = [[what, *(token(measured, name, n) for n in TOKEN_LENGTHS)] for what, name in TOKENS.items()]
    text = between(text, "token", Table(["after", *(f"{n:,} tokens" for n in TOKEN_LENGTHS)], cells).markdown())
    columns = [f"{name}, {n:,} tokens" for n in SEQUENCE_LENGTHS for name in METHODS]
    for name, found in (("sequence", measured), ("sequence on Zen 5", rows(ON_ZEN_5))):
        cells = [
            [what, *(sequence(found, encoding, n, method) for n in SEQUENCE_LENGTHS for method in METHODS)]
            for encoding, what in SEQUENCES.items()
        ]
        text = between(text, name, Table(["encoding", *columns], cells).markdown())
    found = rows(CONTENT)
    cells = [
        [f"{what}, heads of {width}, {direction}", *content(found, encoding, width, direction)]
        for encoding, what in CONTENT_ENCODINGS.items()
        for width in (64, 128)
        for direction in DIRECTIONS
    ]
    headers = ["", "time", "headway's reference kernel", "SDPA with a ready-made bias", "headway without an encoding"]
    text = between(text, "content", Table(headers, cells).markdown())
    text = between(text, "attention on Zen 5", by_encoding(rows(ATTENTION_ON_ZEN_5), NAMES))
    one, two = map(rows, CACHE_ON_ZEN_5)
    cells = [
        [f"{8 * group} heads on 8, {n} quer{'y' if n == 1 else 'ies'}", *cache(one, two, n, group)]
        for group in GROUPS
        for n in QUERIES
    ]
    headers = ["", *(f"{dtype}, {what}" for dtype in DTYPES for what in ("share of reading", "SDPA"))]
    text = between(text, "cache on Zen 5", Table(headers, cells).markdown())
    found = rows(PACKED_ON_ZEN_5)
    cells = [
        [f"{NAMES[encoding]}, {direction}", *packed(found, encoding, direction)]
        for encoding in ("none", "t5")
        for direction in DIRECTIONS
    ]
    text = between(
        text, "packed on Zen 5", Table(["8 packed documents of 512 · the same as a batch", *DTYPES], cells).markdown()
    )
    found = rows(HALF_ON_ZEN_5)
    cells = [
        [
            f"{NAMES[encoding]}, {direction}",
            *(half(found, encoding, width, direction) for width in (64, 128)),
        ]
        for encoding in ("none", "t5", "rope")
        for direction in DIRECTIONS
    ]
    text = between(
        text, "float16 on Zen 5", Table(["float32 · float16", "heads of 64", "heads of 128"], cells).markdown()
    )
    found = rows(STEPS_ON_ZEN_5)
    cells = [[name, *step(found, name)] for name in STEPS]
    headers = ["the other library's time · headway's", "2 × 1,024 tokens", "wanted", "8 × 256 tokens"]
    return between(text, "steps on Zen 5", Table(headers, cells).markdown())


def times(rows: list[dict[str, Any]], wanted: dict[str, Any]) -> dict[str, float]:
    """Returns the milliseconds of each side of the only case that has what is wanted."""
    [ms] = [row["ms"] for row in rows if wanted.items() <= row["case"].items()]
    return ms


def content(rows: list[dict[str, Any]], encoding: str, head_dim: int, direction: str) -> list[str]:
    """Returns headway's milliseconds, and the ratios to its reference kernel, to SDPA and to no encoding."""
    wanted = attention(encoding, "causal", 2048, direction, head_dim)
    ms = times(rows, wanted)
    others = (REFERENCE, peer({"ms": ms}), PLAIN)
    return [f"{ms[OURS]:.1f} ms", *(f"{ms[side] / ms[OURS]:.2f}×" for side in others)]


def cache(one: list[dict[str, Any]], two: list[dict[str, Any]], n: int, group: int) -> list[str]:
    """Returns the share of reading's bandwidth, and SDPA's time divided by headway's, with one thread and with two."""
    cells = []
    for dtype in DTYPES:
        wanted = {"kind": "cache", "queries": n, "group": group, "dtype": dtype}
        both = [times(rows, wanted) for rows in (one, two)]
        cells.append(" · ".join(f"{100 * ms[READ] / ms[OURS]:.0f}" for ms in both) + " %")
        cells.append(" · ".join(f"{ms[SDPA] / ms[OURS]:.2f}" for ms in both) + "×")
    return cells


def packed(rows: list[dict[str, Any]], encoding: str, direction: str) -> list[str]:
    """Returns the time of a batch divided by that of the same documents in a packed row, for each dtype."""
    wanted = {"kind": "packed", "encoding": encoding, "direction": direction}
    both = [times(rows, {**wanted, "dtype": dtype}) for dtype in DTYPES]
    return [f"{ms[CONTIGUOUS] / ms[OURS]:.2f}×" for ms in both]


def half(rows: list[dict[str, Any]], encoding: str, head_dim: int, direction: str) -> str:
    """Returns the time in float32 divided by that in float16, with 1,024 and with 2,048 tokens."""
    found = []
    for n in (1024, 2048):
        wanted = attention(encoding, "causal", n, direction, head_dim)
        wide, narrow = (times(rows, {**wanted, "dtype": dtype})[OURS] for dtype in ("float32", "float16"))
        found.append(f"{wide / narrow:.2f}")
    return " · ".join(found) + "×"


def step(rows: list[dict[str, Any]], name: str) -> list[str]:
    """Returns the other library's time divided by headway's for two sizes, and between them what was wanted."""
    long, short = (times(rows, model("step", name, n, batch)) for n, batch in ((1024, 2), (256, 8)))
    ratios = [f"{ms[STEPS[name]] / ms[OURS]:.2f}×" for ms in (long, short)]
    return [ratios[0], f"≥ {STEPS_WANTED[name]}×", ratios[1]]


def token(rows: list[dict[str, Any]], name: str, n: int) -> str:
    """Returns headway's milliseconds for a token after n others, and the ratio to code by hand."""
    wanted = {"task": "token", "model": name, "n": n, "dtype": "float32"}
    ms = times(rows, wanted)
    return f"{ms[OURS]:.2g} ms · {ms[BY_HAND] / ms[OURS]:.2f}×"


def sequence(rows: list[dict[str, Any]], encoding: str, n: int, method: str) -> str:
    """Returns the time of one process divided by that of two."""
    wanted = {"kind": "sequence", "encoding": encoding, "n": n}
    ms = times(rows, wanted)
    return f"{ms[OURS] / ms[method]:.2f}×"


def between(text: str, name: str, new: str) -> str:
    """Returns a page with other text between the two comments with a name."""
    head, begins, rest = text.partition(f"<!-- {name} -->\n")
    _, ends, tail = rest.partition(f"<!-- end of {name} -->")
    return f"{head}{begins}\n{new}\n\n{ends}{tail}"


if __name__ == "__main__":
    made = page(PAGE.read_text(encoding="utf-8"))
    with atomic_write(PAGE) as part:
        part.write_text(made, encoding="utf-8")
