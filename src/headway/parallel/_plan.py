"""What the attention of a long sequence costs on each rank with each method: bytes, memory and time."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from .._common.language import columns_of, padded, said
from .._common.table import Cell, Table
from ..errors import HeadwayError, need_positive, need_whole, unknown
from ._attention import SHORT

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""The bytes of a number in each dtype."""

STATED = {"a100": 312e12, "h100": 989e12, "h200": 989e12}
"""What NVIDIA's data sheets state as the peak of dense products in bfloat16 (SXM), in FLOP/s."""

BACKWARD = 2.5
"""The products of a backward pass as a share of those of forward: five in place of two."""

NUMBER = r"((?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+)(?:[eE]\+?[0-9]+)?) ?([kKMGT]?)"
"""A number, with commas between thousands or without, and the letter of a power."""

LARGEST = 1e24
"""The largest size or rate, far above any; products of two of them are still finite."""

SHARE = 0.1
"""The share of the time of computing at which communication that does not overlap is called small."""


def parse_size(text: int | str, name: str = "tokens") -> int:
    """Returns a number of tokens, such as 32768, "32k" (1,024 times 32) or "1M" (1,024² tokens), rounded.

    Args:
        text: the number, or the text as given.
        name: the name of the argument, as in messages.

    Raises:
        HeadwayError: for any other text.
    """
    return round(_scaled(text, name, 1024, "32k or 1M"))


def parse_rate(text: float | str, name: str) -> float:
    """Returns a rate in units per second, such as 4e14, "400T" or "50G", where k, M, G and T are powers of 1,000.

    Args:
        text: the number, or the text as given.
        name: the name of the argument, as in messages.

    Raises:
        HeadwayError: for any other text.
    """
    return _scaled(text, name, 1000, "400T or 50G")


def _scaled(text: float | str, name: str, base: int, such_as: str) -> float:
    found = re.fullmatch(NUMBER, str(text).strip())
    value = float(found[1].replace(",", "")) * base ** " KMGT".index(found[2].upper() or " ") if found else 0.0
    if not 0 < value <= LARGEST:
        bound = f"up to {LARGEST:.0e}" if value else "above 0"
        raise HeadwayError(f"{name} is {text!r}: give a number {bound}, such as {such_as}")
    return value


@dataclass(frozen=True)
class MethodCost:
    """What a method costs for the attention of one layer, on the rank that sends the most.

    Attributes:
        method: "ring", "gather" or "heads".
        forward: the bytes that a rank sends in the forward pass.
        backward: those of the backward pass.
        memory: the bytes that a rank needs at the peak of both passes, beyond its own q, k and v.
        reason: why the method cannot compute the layer; None if it can.
        hides_from: the speed of the link, in bytes/s, from which communication takes no extra time. None without
            ``flops`` and for a method that does not overlap communication and computation.
        small_from: the speed of the link from which communication takes a tenth of the time of computation; None
            without ``flops``.
        seconds: the time of forward and backward; None without ``flops`` and ``link``.
    """

    method: str
    forward: int
    backward: int
    memory: int
    reason: str | None = None
    hides_from: float | None = None
    small_from: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Plan:
    """What the attention of one layer costs on each rank with each method; prints as a table.

    Attributes:
        tokens: the tokens of a sequence.
        ranks: the processes that share it.
        held: the bytes of a rank's own q, k, v and output, which each layer holds for its backward pass.
        costs: the cost of each method.
        choice: the recommended method, or None if none can compute the layer.
        because: why, in one sentence.
    """

    tokens: int
    ranks: int
    held: int
    costs: tuple[MethodCost, ...]
    choice: str | None
    because: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The costs as dictionaries."""
        return [{**asdict(cost), "chosen": cost.method == self.choice} for cost in self.costs]

    @property
    def notes(self) -> list[str]:
        """Facts that the table does not show, in sentences."""
        tokens = self.tokens / self.ranks
        return [
            self.because,
            said(
                "A rank has {tokens:,.0f} tokens; each layer holds {held} of q, k, v and output for its backward pass. "
                "Memory is what a layer takes beyond q, k and v while it computes.",
                tokens=tokens,
                held=in_bytes(self.held),
            ),
        ]

    @property
    def table(self) -> Table:
        """The costs, with the chosen method marked."""
        titles = [*map(said, ("method", "sent forward", "sent backward", "memory", "link"))]
        timed = any(cost.seconds is not None for cost in self.costs)
        rows: list[list[str | Cell]] = []
        for cost in self.costs:
            best = cost.method == self.choice
            if cost.reason is not None:
                rows.append([Cell(cost.method), *["—"] * (len(titles) - 2 + timed), cost.reason])
                continue
            cells = [in_bytes(cost.forward), in_bytes(cost.backward), in_bytes(cost.memory)]
            cells += [] if not timed else ["—" if cost.seconds is None else in_seconds(cost.seconds)]
            rows.append([Cell(cost.method, best=best), *map(Cell, cells), Cell(_link(cost))])
        titles[4:4] = [said("time")] if timed else []
        return Table(titles, rows, right=range(1, len(titles) - 1))

    def __str__(self) -> str:
        table = self.table
        lines = [[cell.text for cell in row] for row in (table.titles, *table.rows)]
        widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(map(padded, line, widths)).rstrip() for line in lines]
        return "\n".join([*text, *self.notes])

    def _repr_html_(self) -> str:
        from .._common import notebook

        cells = [[cell.text for cell in row] for row in self.table.rows]
        chosen = next((i for i, cost in enumerate(self.costs) if cost.method == self.choice), None)
        shown = notebook.table(cells, [title.text for title in self.table.titles], bold=chosen)
        return shown + "".join(map(notebook.paragraph, self.notes))


def _link(cost: MethodCost) -> str:
    if cost.hides_from is not None:
        return said("hidden from {rate}", rate=in_rate(cost.hides_from))
    if cost.small_from is None:
        return "—"
    return said("a tenth of the time from {rate}", rate=in_rate(cost.small_from))


def in_bytes(count: float) -> str:
    """Returns bytes in words, such as "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def in_rate(rate: float) -> str:
    """Returns bytes per second in words, such as "12.5 GB/s"."""
    if rate < 1e9:
        return f"{rate / 1e6:.3g} MB/s"
    return f"{rate / 1e9:,.0f} GB/s" if rate >= 1e11 else f"{rate / 1e9:.3g} GB/s"


def in_seconds(seconds: float) -> str:
    """Returns seconds in words, such as "1.2 ms"."""
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"


@dataclass(frozen=True)
class _Rank:
    """The bytes of one layer on the rank with the most tokens, and its traffic and memory with each method.

    A rank needs the memory that torch has allocated at the peak of forward and backward, with the output and all
    gradients. On a CPU a ring needs less for long shards, since it computes some of the heads at a time.

    Attributes:
        ranks: the processes.
        q: its queries; the output has as many.
        kv: its keys and values.
        wide: the bytes of a number in float32 or wider, divided by those of a number in the dtype of the layer.
        causal: whether the mask is causal, with shards in zig-zag.
        read: the layer's input for its tokens, if the encoding reads it.
        read_wide: the same in float64, in which the encoding reads it.
    """

    ranks: int
    q: int
    kv: int
    wide: int
    causal: bool
    read: int
    read_wide: int

    @property
    def gradients(self) -> int:
        """The gradients of a rank's keys and values, in which the gradients of parts are summed."""
        return self.kv * self.wide

    def ring(self) -> tuple[int, int, int]:
        others, first = self.ranks - 1, self.gradients // 2 if self.causal and self.ranks > 1 else 0
        # no other rank sees the last run of the first rank, so that its gradients stay there
        sent, back = others * self.kv, others * (self.kv + self.gradients) - first
        # shards of gradients: the own ones, the sums, those of a part; in longer rings also those leaving and arriving
        shards = 3.75 if self.ranks == 2 else 7.5
        memory = (4 * self.wide - 1.5) * self.q + self.kv + shards * self.gradients + self.read_wide
        return sent, back, round(memory)

    def gather(self) -> tuple[int, int, int]:
        others, gathered = self.ranks - 1, self.kv + self.read
        # all keys, and their gradients from the two runs of queries; the first run sees only a part of the keys
        seen = others / (2 * self.ranks) if self.causal else 1
        memory = 3 * self.q + (2 + seen) * self.ranks * gathered
        return others * gathered, others * gathered, round(memory)

    def heads(self) -> tuple[int, int, int]:
        sent = (2 * self.q + self.kv) * (self.ranks - 1) // self.ranks
        return sent, sent, (4 + self.wide) * self.q + 2 * self.kv + self.read_wide


def plan(
    tokens: int | str,
    *,
    heads: int,
    head_dim: int,
    ranks: int,
    kv_heads: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    causal: bool = True,
    reads_input: bool = False,
    flops: float | str | None = None,
    link: float | str | None = None,
) -> Plan:
    """Computes what the attention of a long sequence would cost on each rank with each method, without running it.

        print(hw.parallel.plan("1M", heads=32, head_dim=128, ranks=64, flops="400T", link="50G"))

    Bytes are what a rank sends in one layer, of keys, values, queries and outputs. With R ranks, each with keys and
    values of S bytes, a rank sends:

        ring:    forward (R − 1)·S                 backward (R − 1)·(S + G), for gradients of G bytes in float32
        gather:  forward (R − 1)·S                 backward (R − 1)·S
        heads:   forward (R − 1)/R·(q + S + out)   backward as much

    Under a causal mask a ring sends G/2 less, and under a mask that hides whole shards, such as a window, even less. If
    the encoding reads the layer's input, gather sends that too. Biases of tokens, such as those of forgetting gates,
    are not counted, since keys are head_dim times as large. Forward computes 4·tokens²·heads·head_dim floating point
    operations, half of them under a causal mask, and backward 2.5 times as many.

    Args:
        tokens: the tokens of a sequence: a number, or a text such as "32k" or "1M", with powers of 1,024.
        heads: the number of query heads.
        head_dim: the width of each head.
        ranks: the processes that share the sequence.
        kv_heads: the number of key heads. Default: ``heads``.
        batch: the sequences of a call.
        dtype: the dtype of q, k and v: "bfloat16", "float16", "float32" or "float64".
        causal: whether the mask is causal, with shards in zig-zag.
        reads_input: whether the encoding reads the layer's input, as ``forgetting`` and ``cope`` do. Its width is
            heads·head_dim.
        flops: the floating point operations per second that a rank's kernel reaches: a number or a text such as "400T".
            "a100", "h100" and "h200" stand for the peaks that NVIDIA states, which no kernel reaches.
        link: the bytes per second that a rank sends: a number or a text such as "50G".

    Returns:
        The plan. With ``flops`` it states the speed of the link from which computation hides communication. With
        ``flops`` and ``link`` it also has times, and chooses the method by them.

    Raises:
        HeadwayError: if a size is below 1, not whole or does not fit, or a text is not a number.
    """
    count = parse_size(tokens, "tokens")
    kv_heads = heads if kv_heads is None else kv_heads
    sizes = {"heads": heads, "head_dim": head_dim, "ranks": ranks, "kv_heads": kv_heads, "batch": batch}
    need_whole(**sizes)
    need_positive(**sizes)
    if heads % kv_heads:
        raise HeadwayError(f"kv_heads {kv_heads} does not divide heads {heads}: give a number that divides them")
    if count < ranks:
        raise HeadwayError(f"tokens is {count} for {ranks} ranks: give at least one token for each")
    if dtype not in ITEM:
        raise unknown("dtype", dtype, ITEM)
    item, longest = ITEM[dtype], -(-count // ranks)
    number = batch * longest * head_dim * item
    q = number * heads
    wide = max(item, 4) // item
    read, read_wide = (q, q // item * 8) if reads_input else (0, 0)
    of_rank = _Rank(ranks, q, 2 * number * kv_heads, wide, causal, read, read_wide)
    speed = None if flops is None else STATED.get(str(flops).lower()) or parse_rate(flops, "flops")
    rate = None if link is None else parse_rate(link, "link")
    forward = None
    if speed is not None:
        forward = 4 * batch * heads * head_dim * count * longest * (0.5 if causal else 1) / speed
    methods = {"ring": of_rank.ring(), "gather": of_rank.gather(), "heads": of_rank.heads()}
    reasons = {} if ranks == 1 else {"heads": _why_not_heads(kv_heads, ranks)}
    costs = tuple(_cost(name, found, of_rank, forward, rate, reasons.get(name)) for name, found in methods.items())
    return Plan(count, ranks, 2 * of_rank.q + of_rank.kv, costs, *_chosen(costs, longest, ranks))


def _why_not_heads(kv_heads: int, ranks: int) -> str | None:
    if kv_heads % ranks == 0:
        return None
    choices = [count for count in range(2, kv_heads + 1) if kv_heads % count == 0]
    instead = said("one key head cannot be divided")
    if choices:
        instead = said("use {counts} ranks", counts=", ".join(map(str, choices)))
    why = "{heads} key heads do not divide among {ranks} ranks: {instead}"
    return said(why, heads=kv_heads, ranks=ranks, instead=instead)


def _cost(
    name: str, found: tuple[int, int, int], rank: _Rank, forward: float | None, link: float | None, reason: str | None
) -> MethodCost:
    sent, back, memory = found
    if forward is None or rank.ranks == 1:
        return MethodCost(name, sent, back, memory, reason)
    backward = BACKWARD * forward
    small = (sent + back) / (SHARE * (forward + backward))
    hides = None
    if name == "ring":  # each step computes with one shard of keys while the next one comes
        hides = rank.ranks * max(rank.kv / forward, (1 + rank.wide) * rank.kv / backward)
    seconds = None
    if link is not None:
        passes = ((forward, sent), (backward, back))
        seconds = sum(max(time, sent / link) if hides else time + sent / link for time, sent in passes)
    return MethodCost(name, sent, back, memory, reason, hides, small, seconds)


def _chosen(costs: tuple[MethodCost, ...], longest: int, ranks: int) -> tuple[str | None, str]:
    if ranks == 1:
        return None, said("One rank has the whole sequence: an ordinary call computes it.")
    able = [cost for cost in costs if cost.reason is None]
    if all(cost.seconds is not None for cost in able):
        best = min(able, key=lambda cost: (cost.seconds or 0.0, cost.memory))
        return best.method, said("{method} takes the least time at these speeds.", method=best.method)
    if longest <= SHORT:
        few = "gather: a rank has at most {count:,} tokens, so that few messages matter more than bytes."
        return "gather", said(few, count=SHORT)
    many = "ring: a rank has more than {count:,} tokens, whose computing can hide the messages."
    return "ring", said(many, count=SHORT)
