"""The Markdown report of a benchmark: the targets, then a table for each kind of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .._common.table import Column, Table
from ..parallel import METHODS
from . import statistics
from .cases import SEQUENCE_MEMORY, SEQUENCE_STEP, STATISTICS_MEMORY, WINDOW, Case, ModelCase, pairs
from .rows import Row
from .sides import CONTIGUOUS, FLEX, FULL_CAUSAL, OURS, PLAIN, REFERENCE, SDPA
from .targets import (
    MODEL_TARGETS,
    TARGETS,
    Target,
    against_materialized,
    gflops,
    judge,
    over,
    peer,
    second_pass,
    share_of_copy,
    share_of_reading,
    share_of_roof,
    times,
)


def field(name: str, title: str = "", form: str = "") -> Column:
    """Returns the column of a field of the case."""
    return Column(title or name, lambda row: format(row["case"][name], form))


def ms(side: str, title: str = "ms") -> Column:
    """Returns the column with a side's milliseconds, or with the reason why there are none."""
    return Column(title, lambda row: _ms(row["ms"][side]) if side in row["ms"] else row["says"].get(side, "–"))


def faster(side: str, title: str = "") -> Column:
    """Returns the column that says how many times as fast as a side headway is."""
    return Column(title or side, lambda row: _times(times(row, side)))


MASKS = {"none": "full"}
"""What a mask is called, if not by its name."""
DTYPE, DIRECTION = field("dtype"), field("direction")
KERNEL = Column("kernel", lambda row: row["kernel"])


def markdown(rows: Sequence[Row], where: dict[str, Any], command: str, notes: Sequence[str] = ()) -> str:
    """Returns the report, as BENCHMARKS.md has it; ``notes`` are further paragraphs."""
    parts = [head(rows, where, command), *notes, targets(rows), roofs(rows)]
    for direction in ("forward", "backward"):
        for dtype in dict.fromkeys(row["case"]["dtype"] for row in rows):
            chosen = [row for row in of_kind(rows, "attention") if _is(row, dtype, direction)]
            parts.append(_titled(f"{direction.capitalize()}, {dtype}", against_torch(chosen)))
    parts += [_titled(title, chapter(rows)) for title, chapter in CHAPTERS.items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def measured(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """Returns the dates, the processor and the threads."""
    days = sorted({row["date"] for row in rows})
    over_days = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "nothing measured"
    return f"{over_days}, {where['processor']}, {where['threads']} thread{'s' * (where['threads'] != 1)}"


def head(rows: Sequence[Row], where: dict[str, Any], command: str) -> str:
    """Returns the command, the machine and how to read the figures."""
    words = [
        f"{measured(rows, where)}, "
        f"torch {where['torch']}, headway {where['headway']}, its instruction set {where['isa']}. Batch 1, 8 heads.",
        "All sides of a case in turn in one process after two warm-ups; medians, and ratios of medians. × is how many "
        "times as fast headway is: above 1 it is faster. Backward is timed by itself.",
        "Operations: 4·heads·pairs·head_dim forward, 10· backward. Pairs of query and key: n² under full, n(n + 1)/2 "
        f"under causal; under window each query sees at most {WINDOW} keys. The roof (of the roofline model) is a loop "
        "that uses only registers, on the same threads, measured in turn with each case.",
        "SDPA gets a precomputed dense bias or mask. For RoPE it rotates nothing, "
        "and for the terms of Shaw and Transformer-XL, which no bias can express, it gets a bias of the same size: "
        "there it computes less.",
    ]
    if "AMD" in where["processor"]:
        words.append(
            "MKL, which SDPA multiplies with, uses AVX2 on AMD, so SDPA is relatively faster on other processors: the "
            "share of the roof applies there too, the ratio does not."
        )
    if "AMX" in where["processor"]:
        words.append("This processor has AMX, which SDPA uses in bfloat16.")
    return f"```sh\n{command}\n```\n\n" + "\n\n".join(words)


def targets(rows: Sequence[Row], wanted: Sequence[Target] = TARGETS) -> str:
    """Returns the table of the targets, with the worst case of each."""
    lines = [
        [one.target.what, one.dtype, one.wanted, one.measured, one.verdict, f"{one.at} ({one.count} measured)"]
        for one in judge(rows, wanted)
    ]
    return _titled(
        "Targets", Table(["target", "dtype", "wanted", "measured", "verdict", "worst case"], lines).markdown()
    )


def roofs(rows: Sequence[Row]) -> str:
    """Returns the table of the roof of each dtype, over all cases."""
    lines = []
    for dtype in dict.fromkeys(row["case"]["dtype"] for row in rows):
        speeds = sorted(row["roof_gflops"] for row in rows if row["case"]["dtype"] == dtype and "roof_gflops" in row)
        if speeds:
            lines.append([dtype, *(f"{speeds[int(at * (len(speeds) - 1))]:,.0f}" for at in (0, 0.5, 1))])
    return _titled("The roof, GFLOP/s", Table(["dtype", "lowest", "median", "highest"], lines).markdown())


def against_torch(rows: Sequence[Row]) -> str:
    """Returns the table of times, ratios to torch and shares of the roof, with a column for each length."""

    def cell(row: Row) -> str:
        share = share_of_roof(row)
        reached = gflops(row)
        last = f"{100 * share:.0f} %" if share is not None else f"{reached:.0f} GFLOP/s"
        return f"{_ms(row['ms'][OURS])} · {_times(times(row, peer(row)))}× · {last}"

    table = _by_length(rows, cell, beside={"against": peer, "kernel": lambda row: row["kernel"]})
    roof = any("roof_gflops" in row for row in rows)
    return table and f"ms · times as fast · {'share of the roof' if roof else 'GFLOP/s'}\n\n{table}"


def flex(rows: Sequence[Row]) -> str:
    """Returns the table of ratios to FlexAttention, and the reasons why it did not run."""
    asked = [row for row in of_kind(rows, "attention") if FLEX in row["ms"] or FLEX in row["says"]]
    table = _by_length(
        [row for row in asked if FLEX in row["ms"]],
        lambda row: f"{_ms(row['ms'][FLEX])} · {times(row, FLEX):.2f}×",
        by=("dtype", "direction"),
    )
    said: dict[str, list[Case]] = {}
    for row in asked:
        if FLEX in row["says"]:
            said.setdefault(row["says"][FLEX], []).append(Case(**row["case"]))
    lines = []
    for text, cases in said.items():
        count = f"{len(cases)} of {len(asked)} cases"
        whose = {case.direction for case in cases}
        lines.append(f"{count}{f', {whose.pop()}' if len(whose) == 1 else ''}: {text}")
    return "\n\n".join(
        filter(None, [table and f"FlexAttention's ms · how many times as fast headway is\n\n{table}", *lines])
    )


def costs(rows: Sequence[Row]) -> str:
    """Returns the table of headway's time with an encoding, divided by its time without one."""
    return _by_length(
        [row for row in of_kind(rows, "attention") if PLAIN in row["ms"]],
        lambda row: f"{over(row, PLAIN):.2f}",
        by=("dtype", "direction"),
    )


def reference(rows: Sequence[Row]) -> str:
    """Returns the table of times and ratios to the reference kernel, for terms that torch cannot compute."""
    return _by_length(
        [row for row in of_kind(rows, "attention") if REFERENCE in row["ms"]],
        lambda row: f"{_ms(row['ms'][OURS])} · {times(row, REFERENCE):.2f}×",
        by=("dtype", "direction"),
    )


def window(rows: Sequence[Row]) -> str:
    """Returns the table of the causal window: its time and area, as shares of those of the causal mask."""

    def area(row: Row) -> float:
        case = Case(**row["case"])
        return case.pairs / pairs("causal", case.n)

    columns = [
        *(field("n", form=","), DTYPE, DIRECTION, ms(OURS, "window, ms"), ms(FULL_CAUSAL, "full causal, ms")),
        Column("area", lambda row: f"{100 * area(row):.2f} %"),
        Column("time", lambda row: f"{100 * (over(row, FULL_CAUSAL) or 0):.2f} %"),
        KERNEL,
    ]
    return Table.of(of_kind(rows, "window"), columns).markdown()


def decoding(rows: Sequence[Row]) -> str:
    """Returns the table of decoding: milliseconds, bytes per second, and the share of a copy's bytes per second."""

    def size(row: Row) -> int:
        case = Case(**row["case"])
        return 2 * 8 * case.n * case.head_dim * (4 if case.dtype == "float32" else 2)

    columns = [
        *(field("n", "keys", ","), DTYPE),
        Column("ms", lambda row: f"{row['ms'][OURS]:.3f}"),
        Column("GB/s", lambda row: f"{size(row) / row['ms'][OURS] / 1e6:.1f}"),
        Column("of a copy", lambda row: _percent(share_of_copy(row))),
        *(faster(SDPA, "× SDPA"), KERNEL),
    ]
    return Table.of(of_kind(rows, "decoding"), columns).markdown()


def cache(rows: Sequence[Row]) -> str:
    """Returns the table of queries against a cache: milliseconds, and the share of the bandwidth of only reading."""
    columns = [
        *(field("n", "keys", ","), field("queries"), field("group", "heads that share keys"), DTYPE),
        Column("ms", lambda row: f"{row['ms'][OURS]:.3f}"),
        Column("of reading", lambda row: _percent(share_of_reading(row))),
        *(faster(SDPA, "× SDPA"), KERNEL),
    ]
    return Table.of(of_kind(rows, "cache"), columns).markdown()


def contiguous(rows: Sequence[Row]) -> str:
    """Returns the table of headway's time, divided by its time on the same tokens without packing or padding."""

    def tokens(row: Row) -> str:
        case = Case(**row["case"])
        each = f"{case.lengths[0]:,}"
        return f"{f'{len(case.lengths)} of {each} tokens' if case.kind == 'packed' else each} in {case.n:,}"

    columns = [
        *(field("kind", "row"), Column("tokens", tokens), field("encoding"), DTYPE, DIRECTION, ms(OURS)),
        Column("over contiguous", lambda row: f"{over(row, CONTIGUOUS) or 0:.2f}"),
        KERNEL,
    ]
    return Table.of([*of_kind(rows, "packed"), *of_kind(rows, "left-padded")], columns).markdown()


def sequence(rows: Sequence[Row]) -> str:
    """Returns the tables of the speed of two processes against one with the threads of both, and of their memory."""

    def ratios(row: Row, method: str) -> str:
        wall, processors = (row[kind][OURS] / row[kind][method] for kind in ("ms", "processor_ms"))
        return f"{_times(wall)} · {_times(processors)}"

    def memory(row: Row, method: str) -> str:
        most = row["bytes"][method]
        return f"{_mib(most)} · {most / row['bytes'][OURS]:.2f}"

    timed, sized = [*of_kind(rows, "sequence"), *of_kind(rows, SEQUENCE_STEP)], of_kind(rows, SEQUENCE_MEMORY)
    about = [field("encoding"), field("n", "tokens", ",")]
    parts = []
    if timed:
        whats = {"sequence": "attention", SEQUENCE_STEP: "a training step"}
        columns = [
            *(Column("", lambda row: whats[row["case"]["kind"]]), *about, ms(OURS, "one process, ms")),
            *(Column(method, partial(ratios, method=method)) for method in METHODS),
            KERNEL,
        ]
        parts.append(
            "Causal, zig-zag, 8 heads of 64, float32, forward and backward; a training step is that of a decoder of 4 "
            "layers, with AdamW. How many times as fast as one process, by time and by the time of all processors "
            "together: above 1, two processes are faster."
        )
        parts.append(Table.of(timed, columns).markdown())
    if sized:
        columns = [
            *(*about, Column("one process, MiB", lambda row: _mib(row["bytes"][OURS]))),
            *(Column(method, partial(memory, method=method)) for method in METHODS),
        ]
        parts.append(
            "The most memory of a process beyond q, k, v and the gradient of the output, in MiB, and as a share of "
            "that of one process."
        )
        parts.append(Table.of(sized, columns).markdown())
    return "\n\n".join(parts)


def _mib(count: float) -> str:
    return f"{count / 2**20:,.1f}"


def memory(rows: Sequence[Row]) -> str:
    """Returns the table of peak memory beyond inputs and outputs, forward and backward, each from a new process."""
    return _memory(
        of_kind(rows, "memory"),
        "one dense bias, MiB",
        "{case.encoding}, learned, {case.mask}, {case.dtype}, 8 heads of {case.head_dim}, forward and backward, kernel "
        "{kernel}: the most that was resident, beyond inputs and outputs.",
    )


def memory_of_statistics(rows: Sequence[Row]) -> str:
    """Returns the table of peak memory of statistics beyond inputs and results, each from a new process."""
    return _memory(
        of_kind(rows, STATISTICS_MEMORY),
        "the weights, MiB",
        f"{', '.join(statistics.COMPARED)}: {{case.encoding}}, {{case.mask}}, {{case.dtype}}, 8 heads of "
        "{case.head_dim}, kernel {kernel}: the most that was resident, beyond inputs and results.",
    )


def _memory(rows: Sequence[Row], dense: str, said: str) -> str:
    """The memory at each length, and, as ``dense``, the memory of a value for each head and pair of tokens."""
    if not rows:
        return ""
    rows = sorted(rows, key=lambda row: row["case"]["n"])
    lines = [
        field("n", form=","),
        Column("MiB", lambda row: _mib(row["extra_bytes"])),
        Column(dense, lambda row: f"{8 * 4 * row['case']['n'] ** 2 / 2**20:,.0f}"),
    ]
    said = said.format(case=Case(**rows[0]["case"]), kernel=rows[0]["kernel"])
    return f"{said}\n\n{_across(rows, lines)}"


def statistics_of_attention(rows: Sequence[Row]) -> str:
    """Returns the table of attention with statistics in its pass, and of only statistics; each case has a column."""
    chosen = of_kind(rows, "statistics")
    if not chosen:
        return ""

    received, alone, materialized = statistics.RECEIVED, statistics.ALONE, statistics.MATERIALIZED
    lines = [
        Column("", lambda row: f"{row['case']['encoding']}, {row['case']['n']:,}, {row['case']['dtype']}"),
        ms(OURS, "attention, ms"),
        *map(faster, (statistics.ALL, *map(statistics.beside, statistics.ONE_PASS))),
        *map(faster, map(statistics.beside, (statistics.TOP, received, statistics.POOLED))),
        Column("the second pass of received", lambda row: _times(second_pass(row))),
        *map(faster, (statistics.RECEIVED_ALONE, alone)),
        ms(alone, f"{alone}, ms"),
        ms(materialized, f"{materialized}, ms"),
        Column("as many times faster alone", lambda row: _times(against_materialized(row))),
    ]
    said = (
        f"Causal, kernel {', '.join(dict.fromkeys(row['kernel'] for row in chosen))}; times divided by that of "
        "attention without statistics. “With”: the output and statistics, in the pass of attention; “all of one pass” "
        f"are {', '.join(statistics.ONE_PASS)}. Column sums (received) and pooled maps take a second pass over the "
        "keys; its time is that of attention with received minus that of attention. “Statistics alone” are those of "
        "one pass and received, without an output. Torch computes the same from materialized weights, with "
        "precomputed rotations, mask, bias and distances. Before they are timed, all sides are checked against torch."
    )
    return f"{said}\n\n{_across(chosen, lines)}"


CHAPTERS: dict[str, Callable[[Sequence[Row]], str]] = {
    "FlexAttention, compiled": flex,
    "What an encoding costs": costs,
    "The reference kernel": reference,
    "A long causal window": window,
    "One token against a cache": decoding,
    "Queries against a cache": cache,
    "Packed documents, and padding in front": contiguous,
    "A sequence over two processes": sequence,
    "Memory": memory,
    "Statistics": statistics_of_attention,
    "Memory of statistics": memory_of_statistics,
}
"""The chapters behind those of each direction and dtype, by their titles."""


# ---------------------------------------------------------------- whole models


MODEL = (field("model"), Column("tokens", lambda row: ModelCase(**row["case"]).tokens))
TASKS = {
    "encode": ("Encoding", "ms for a batch of texts"),
    "prefill": ("Prefill", "ms to the last token's logits, with a cache filled"),
    "decode": ("Decoding", "ms per token after so many"),
    "train": ("A training step", "ms, forward, backward and AdamW"),
    "step": (
        "A training step of a language model",
        "4 layers of 512, 8 heads of 64, 256 token ids, a causal mask; bfloat16 is autocast. All sides have the same "
        "sizes, with weights of their own, so that only headway's loss and gradients with and without oneDNN are "
        "compared. ms, forward, backward and AdamW",
    ),
    "token": (
        "A token after others",
        "8 heads of 64, 2 of keys: one call of attention, a layer of 512 with a cache, a decoder of 4 layers; by hand: "
        "torch's linear maps, a rotation, torch.cat and SDPA, of the same weights. ms per token after so many",
    ),
}


def models(rows: Sequence[Row], where: dict[str, Any], command: str, notes: Sequence[str] = ()) -> str:
    """Returns the chapter of BENCHMARKS.md about whole models."""
    parts = ["## Whole models, against transformers", models_head(rows, where, command), *notes]
    under = [targets(rows, MODEL_TARGETS)]
    for task, (title, unit) in TASKS.items():
        table = model_times([row for row in rows if row["case"]["task"] == task])
        under.append(_titled(title, table and f"{unit}; × how many times as fast headway is\n\n{table}"))
    under.append(_titled("How a training step divides", divisions(rows)))
    under.append(_titled("Memory of a training step", model_memory(rows)))
    return "\n\n".join([*parts, *(f"#{part}" for part in under if part)]) + "\n"


def models_head(rows: Sequence[Row], where: dict[str, Any], command: str) -> str:
    """Returns the command, the machine, and what each side does."""
    words = [
        f"{measured(rows, where)}, "
        f"torch {where['torch']}, transformers {where['transformers']}, headway {where['headway']}, its instruction "
        f"set {where['isa']}. All sides of a case in turn in one process; medians, and ratios of medians. Before any "
        "number is taken their outputs agree, of a training step its loss and gradients.",
        "Published weights: all-MiniLM-L6-v2, and SmolLM2-135M from a GGUF file, which transformers reads as "
        "`headway.save` writes it. In inference headway's weights are prepacked (`headway.nn.prepack`), unless it says "
        "not. T5 has random weights in the shape of T5-small, no dropout; the whole T5 writes a quarter of its source.",
    ]
    return f"```sh\n{command}\n```\n\n" + "\n\n".join(words)


def model_times(rows: Sequence[Row]) -> str:
    """Returns the table of times, with a row for each case and a column for each side."""
    sides = dict.fromkeys(side for row in rows for side in (*row["ms"], *row["says"]))

    def beside(side: str) -> Column:
        own = ms(side)
        return Column(side, lambda row: f"{own.cell(row)}{f' · {times(row, side):.2f}×' if side in row['ms'] else ''}")

    columns = [*MODEL, DTYPE, ms(OURS, OURS), *(beside(side) for side in sides if side != OURS)]
    return Table.of(rows, columns).markdown()


def divisions(rows: Sequence[Row]) -> str:
    """Returns the table of the shares of attention, linear maps and everything else, by torch's profiler."""
    divided = [row | {"side": side, "shares": parts} for row in rows for side, parts in row.get("parts", {}).items()]

    def share(part: str) -> Column:
        return Column(part, lambda row: _percent(row["shares"][part]))

    parts = [*divided[0]["shares"]] if divided else []
    return Table.of(divided, [*MODEL, Column("side", lambda row: row["side"]), *map(share, parts)]).markdown()


def model_memory(rows: Sequence[Row]) -> str:
    """Returns the table of the memory of each side in MiB, each from a new process."""
    chosen = [row for row in rows if row["case"]["task"] == "memory"]

    def mebibytes(side: str) -> Column:
        return Column(side, lambda row: f"{row['bytes'][side] / 2**20:,.0f}" if side in row["bytes"] else "–")

    sides = dict.fromkeys(side for row in chosen for side in row["bytes"])
    said = "MiB, forward and backward: the most that was resident, beyond parameters and their gradients"
    return f"{said}\n\n{Table.of(chosen, [*MODEL, *map(mebibytes, sides)]).markdown()}" if chosen else ""


# ---------------------------------------------------------------- how a table is written


def _across(rows: Sequence[Row], lines: Sequence[Column]) -> str:
    """A table with a column for each row; the first of the lines makes the titles."""
    [titles, *cells] = [[line.title, *map(line.cell, rows)] for line in lines]
    return Table(titles, cells).markdown()


def _by_length(
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    by: Sequence[str] = (),
    beside: dict[str, Callable[[Row], str]] | None = None,
) -> str:
    """A table with a row for each encoding, mask, head_dim and field of ``by``, and a column for each length.

    ``beside`` are further columns, whose values are written once if they are the same at all lengths.
    """
    fields = ("encoding", "mask", "head_dim", *by)
    lengths = lengths_of(rows)
    lines: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in rows:
        case = row["case"] | {"mask": MASKS.get(row["case"]["mask"], row["case"]["mask"])}
        lines.setdefault(tuple(str(case[name]) for name in fields), {})[case["n"]] = row
    said = []
    for key, by_n in lines.items():
        more = [", ".join(dict.fromkeys(map(tell, by_n.values()))) for tell in (beside or {}).values()]
        said.append([*key, *more, *(cell(by_n[n]) if n in by_n else "–" for n in lengths)])
    return Table([*fields, *(beside or {}), *(f"{n:,}" for n in lengths)], said).markdown()


def _titled(title: str, text: str) -> str:
    return text and f"## {title}\n\n{text}"


def lengths_of(rows: Sequence[Row]) -> list[int]:
    """Returns the tokens of rows, each once, in order."""
    return sorted({row["case"]["n"] for row in rows})


def of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    """Returns the rows of a kind of cases."""
    return [row for row in rows if row["case"]["kind"] == kind]


def _is(row: Row, dtype: str, direction: str) -> bool:
    return (row["case"]["dtype"], row["case"]["direction"]) == (dtype, direction)


def _ms(taken: float) -> str:
    return f"{taken:.3f}" if taken < 1 else f"{taken:.1f}" if taken < 1000 else f"{taken:,.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
