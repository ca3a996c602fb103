"""Lesson 6: relative positions, from four-part scores to rotations.

A relative encoding depends on the distance of a key from the query, not on the two positions. There are three methods:

    a vector for each distance   s·(q·k + q·a[j − i])                   Shaw
                                 s·((q + u)·k + (q + v)·W R(i − j))     Transformer-XL, Gopher
    a number for each distance   s·q·k + b_h[j − i]                     T5 (learned, in buckets), ALiBi (straight lines)
    a rotation by the position   s·(R(i)q)·(R(j)k)                      RoPE: the product depends only on R(j − i)

i is the query's position, j the key's, h the head. Transformer-XL's score has four parts: (a) content with content,
(b) content with distance, (c) a bias u of all queries with content, (d) a bias v with distance. Its R are fixed
sinusoids; the map W and the two biases are learned. T5 learns one number for each head and bucket of distances; ALiBi
and RoPE learn none.

The last part tests the common property: if all tokens move by a million positions, the scores do not change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pydoc_data.topics import topics
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import headway as hw
from headway._common.pictures import SIGNED, colour_bar
from lesson import BLUE, DASHES, FAINT, GREEN, GREY, INK, ORANGE, Text, count, descend, frequencies, page, run, table
from schematic import Place, arrow, box, sheet, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS, HEAD_DIM, WIDTH = 4, 16, 64
SMALL = {"num_heads": HEADS, "head_dim": HEAD_DIM, "embed_dim": WIDTH, "bidirectional": True, "max_length": 1100}
BASE = {"num_heads": 12, "head_dim": 64, "embed_dim": 768, "max_length": 512}  # a model as large as BERT
COMPARED = ["shaw", "transformer-xl", "gopher", "deberta", "t5", "alibi", "kerple-log", "rope", "sinusoidal", "learned"]
SHIFTS = [1, 1000, 1_000_000]
TOKENS, STEPS, FAR, NEAR = 16, 300, 128, 64
PAIRS = [0, 8, 12]  # of RoPE's 32
TURNED = [(0, 1), (3, 4)]  # positions of a query and a key, twice at the same distance
FUNCTIONS = (
    hw.terms.Product,
    hw.terms.HeadNetwork,
    hw.terms.ScoreMap,
    hw.terms.Normalizer,
)  # terms that replace a stage by a function

FAMILIES = {  # what it acts on, what it is, and the colour of its box
    "absolute": (("embeddings", "词向量"), ("absolute", "绝对位置"), GREEN),
    "relative": (("scores", "分数"), ("relative:\ndistances alone", "相对位置：\n只看距离"), BLUE),
    "in scores": (("scores", "分数"), ("more than distances,\nor no positions", "不只看距离，\n或不看位置"), GREY),
    "rotary": (("queries and keys", "查询和键"), ("rotary:\ndistances alone", "旋转位置：\n只看距离"), ORANGE),
    "rotary beyond distances": (
        ("queries and keys", "查询和键"),
        ("rotary: more\nthan distances", "旋转：\n不只看距离"),
        GREY,
    ),
    "values": (("values", "值"), ("rotary", "旋转"), GREY),
    "none": (("nothing", "无"), ("none", "不编码"), GREY),
    "scaling": (("another encoding", "另一种编码"), ("for longer sequences", "用于更长的序列"), GREY),
    "coordinates": (("another encoding", "另一种编码"), ("moves positions", "改变位置"), GREY),
}

Encoding = hw.positions.PositionEncoding


@dataclass(frozen=True)
class Found:
    """Scores by distance, their change under a shift, and the number of parameters of each encoding."""

    xl_parts: list[list[list[float]]]  # (a), (b), (c), (d) of head 0, each [query][key]
    xl_error: float  # largest difference between their sum and headway's scores, all heads, float64
    xl_learned: dict[str, int]  # sizes of W_R, u and v; R is not learned
    bucket_at: list[int]  # distances key − query, −140 … 140
    buckets: list[int]  # T5's bucket of each
    bucket_starts: list[int]  # into the past: the first distance of each bucket
    t5_learned: list[list[float]]  # the trained bias of each head at 0 … 127 tokens back
    t5_bits: float  # bits for each byte of held-out text
    t5_bits_without: float  # the same model with its table at 0
    alibi_lines: list[list[float]]  # by head, at 0 … 127 tokens back
    rope_pairs: list[list[float]]  # by distance 0 … 63, for PAIRS: the product of a pair with itself
    rope_frequencies: list[float]  # of PAIRS, in radians for each token
    rope_whole: list[
        list[float]
    ]  # by distance 0 … 63: the products of a vector with itself and with another, divided by their lengths
    rope_error: float  # largest |⟨R(p)q, R(r)k⟩ − ⟨q, R(r − p)k⟩| over 1000 draws, float64
    turned_angles: list[list[float]]  # of the query and the key at TURNED, in radians
    shifts: dict[str, list[float | None]]  # largest change by SHIFTS, as a share of the largest score; None: table ends
    parameters: dict[str, int]  # learned numbers of one encoding at the sizes BASE
    gopher_terms: list[str]  # the terms of Gopher's scores besides q·k
    t5_terms: list[str]
    gopher_is_xl: float  # largest difference between their scores with the same parameters
    gopher_by_query: (
        float  # standard deviation over queries of the bias at a distance of 5; that of a scalar would be 0
    )
    t5_by_query: float
    relative: list[str]  # encodings of headway whose scores depend only on distances, by measurement
    with_function: list[str]  # of these, those that are functions in the equation
    families: dict[str, list[str]]  # all encodings of headway, by FAMILIES


def scores(encoding: Encoding, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Returns the scores [heads, n, m] of q and k [heads, tokens, head_dim] at these positions."""
    call = {"encoding": encoding, "q_positions": q_at, "k_positions": k_at}
    return hw.attention_steps(q[None], k[None], k[None], **call).scaled[0]


def bias(encoding: Encoding, distances: Tensor) -> Tensor:
    """Returns the scores of queries and keys that are zero, [heads, distances]."""
    heads = encoding.num_heads
    q, k = torch.zeros(heads, 1, HEAD_DIM), torch.zeros(heads, len(distances), HEAD_DIM)
    return scores(encoding, q, k, torch.zeros(1), distances)[:, 0].detach()


def drawn(name: str) -> Encoding:
    """Returns an encoding in float64 with random parameters, so that all of its parts have an effect."""
    encoding = hw.encoding(name, **SMALL).double()
    for parameter in encoding.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return encoding.requires_grad_(False)


# ---------------------------------------------------------------- Transformer-XL


def four_parts(encoding: hw.positions.TransformerXL, q: Tensor, k: Tensor) -> Tensor:
    """(a) to (d) of the paper, [4, heads, n, n], for q and k [heads, n, head_dim]."""
    n, width = q.shape[1], encoding.embed_dim
    behind = torch.arange(n)[:, None] - torch.arange(n)  # i − j
    angles = behind[..., None] * frequencies(width)
    R = torch.cat([angles.sin(), angles.cos()], dim=-1)
    r = torch.einsum("hdw,ijw->hijd", encoding.W_R, R)  # W_kR·R: R itself is fixed
    u, v = encoding.u[:, None], encoding.v[:, None]
    a = q @ k.mT
    b = torch.einsum("hid,hijd->hij", q, r)
    c = (u @ k.mT).expand_as(a)
    d = torch.einsum("hid,hijd->hij", v.expand_as(q), r)
    return torch.stack([a, b, c, d]) / HEAD_DIM**0.5


def gopher_numbers(xl: Encoding, t5: Encoding, q: Tensor, k: Tensor) -> dict[str, object]:
    """Compares Gopher with Transformer-XL and T5: terms, scores, and the bias at one distance."""
    gopher = drawn("gopher")
    gopher.load_state_dict(xl.state_dict())
    places, five = torch.arange(TOKENS), torch.full((TOKENS,), 5)
    nothing = torch.zeros(HEADS, 1, HEAD_DIM, dtype=torch.float64)

    def terms(encoding: Encoding) -> list[str]:
        return list(hw.explain(q[None], k[None], k[None], encoding=encoding).terms)

    def by_query(encoding: Encoding) -> float:
        return scores(encoding, q, nothing, five, torch.zeros(1)).std(dim=1).max().item()

    alike = scores(gopher, q, k, places, places) - scores(xl, q, k, places, places)
    return {
        "gopher_terms": terms(gopher),
        "t5_terms": terms(t5),
        "gopher_is_xl": alike.abs().max().item(),
        "gopher_by_query": by_query(gopher),
        "t5_by_query": by_query(t5),
    }


# ---------------------------------------------------------------- T5


def trained_t5() -> tuple[hw.positions.T5, float, float]:
    """Trains T5's table in a language model of one layer; returns it and the bits per byte with and without it."""
    text = torch.tensor(list("\n\n".join(topics[name] for name in sorted(topics)).encode()))
    held_out = text[-(64 * FAR + 1) :]
    encoding = hw.positions.T5(HEADS, num_buckets=16, bidirectional=False)  # those of the 32 that are for past tokens
    config = hw.models.TransformerConfig(256, embed_dim=64, num_layers=1, num_heads=HEADS, attention_scale=0.25)
    model = hw.models.Decoder(config, encoding)
    others = [p for p in model.parameters() if p is not encoding.table]
    # Adam moves each parameter by about its learning rate, and biases become larger than weights.
    optimizer = torch.optim.Adam([{"params": others, "lr": 3e-3}, {"params": [encoding.table], "lr": 3e-2}])
    random = torch.Generator().manual_seed(0)

    def nats(windows: Tensor) -> Tensor:
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    for _ in range(STEPS):
        starts = torch.randint(len(text) - len(held_out) - FAR, (16, 1), generator=random)
        loss = nats(text[starts + torch.arange(FAR + 1)])
        descend(optimizer, loss)
    with torch.no_grad():
        windows = held_out.unfold(0, FAR + 1, FAR)
        learned = encoding.table.clone()
        bits = nats(windows).item() / math.log(2)
        encoding.table.zero_()
        without = nats(windows).item() / math.log(2)
        encoding.table.copy_(learned)
    return encoding, bits, without


def bucket_numbers() -> dict[str, object]:
    """Returns the bucket of each distance in T5, of 32."""
    numbered = hw.positions.T5(1)
    numbered.table.data = torch.arange(32.0)[None]  # so that a bias is the number of its bucket
    at = torch.arange(-140, 141)
    buckets = bias(numbered, at)[0].long()
    back = buckets[at <= 0].flip(0).tolist()
    return {
        "bucket_at": at.tolist(),
        "buckets": buckets.tolist(),
        "bucket_starts": [back.index(bucket) for bucket in range(16)],
    }


# ---------------------------------------------------------------- RoPE


def rotated(rope: hw.positions.RoPE, x: Tensor, at: Tensor) -> Tensor:
    """Returns R(p)·x for each row of x [n, head_dim] and its position p."""
    return rope.prepare(x[None, None], hw.Coordinates.of(at, len(x)))[0, 0]


def rope_numbers() -> dict[str, object]:
    """Measures scores of pairs and of vectors by distance, their dependence on the distance alone, and two angles."""
    rope, double = hw.positions.RoPE(64), torch.float64
    vector, other = torch.randn(2, 64, dtype=double)

    def met(q: Tensor, k: Tensor) -> list[float]:
        """Returns the score of k at position 0 and q at 0 … 63, divided by both lengths."""
        return (rotated(rope, q.expand(NEAR, -1), torch.arange(NEAR)) @ k / (q.norm() * k.norm())).tolist()

    one_pair = torch.zeros(len(PAIRS), 64, dtype=double)
    for row, pair in enumerate(PAIRS):
        one_pair[row, 2 * pair : 2 * pair + 2] = vector[2 * pair : 2 * pair + 2]
    p, r = torch.randint(4096, (2, 1000))
    q, k = torch.randn(2, 1000, 64, dtype=double)
    both = (rotated(rope, q, p) * rotated(rope, k, r)).sum(-1)
    once = (q * rotated(rope, k, r - p)).sum(-1)
    flat = torch.tensor([[0.94, 0.34], [0.64, 0.77]], dtype=double)  # a query at 20°, a key at 50°
    turned = [rotated(hw.positions.RoPE(2), flat, torch.tensor(pair)) for pair in TURNED]
    return {
        "rope_pairs": [met(x, x) for x in one_pair],
        "rope_frequencies": frequencies(64)[PAIRS].tolist(),
        "rope_whole": [met(vector, vector), met(vector, other)],
        "rope_error": (both - once).abs().max().item(),
        "turned_angles": [torch.atan2(x[:, 1], x[:, 0]).tolist() for x in turned],
    }


# ---------------------------------------------------------------- what is common


def moved(encoding: Encoding) -> list[float | None]:
    """Returns the change of 12 words' scores if all positions move by SHIFTS, and if all distances double.

    It is a share of the largest score, or None if the encoding's table is too short.
    """
    x = torch.randn(1, 12, WIDTH, dtype=torch.float64)
    maps = torch.randn(2, HEADS, WIDTH, HEAD_DIM, dtype=torch.float64) / WIDTH**0.5

    def at(places: Tensor) -> Tensor:
        where = hw.Coordinates.of(places[None, :, None].expand(-1, -1, encoding.axes or 1), 12)
        in_scores = bool(encoding.acts & {"prepare", "terms"})
        words = x if in_scores else encoding.embed(x, where)  # an absolute encoding is added to the words
        q, k = (words[:, None] @ maps[:, None]).unbind()
        call = {"encoding": encoding, "q_positions": where, "k_positions": where} if in_scores else {}
        return hw.attention_steps(q, k, k, mask=hw.masks.Causal(), q_input=x, k_input=x, **call).scaled.tril()

    places = torch.arange(12)
    here = at(places)
    changes: list[float | None] = []
    for others in (*(places + shift for shift in SHIFTS), 2 * places):
        try:
            changes.append(((at(others) - here).abs().max() / here.abs().max()).item())
        except hw.HeadwayError:
            changes.append(None)
    return changes


def needs_function(encoding: Encoding) -> bool:
    """Whether a term is a function, and not one of the sums and products of ``headway.terms``."""
    at = encoding.place(hw.Coordinates.span(12, axes=encoding.axes or 1))
    x = torch.zeros(1, 12, WIDTH, dtype=torch.float64)
    return any(isinstance(t, FUNCTIONS) or callable(getattr(t, "values", None)) for t in encoding.terms(at, at, x, x))


def reads_distances_alone(name: str) -> bool:
    """Whether an encoding's scores change with the distances, and not with a shift of all positions."""
    encoding = drawn(name)
    if encoding.kind != "encoding" or not encoding.acts & {
        "prepare",
        "terms",
    }:  # it acts on another encoding, or on the words
        return False
    _, thousand, _, doubled = moved(encoding)
    return thousand is not None and thousand < 1e-8 and doubled > 0


def family(encoding: Encoding, relative: bool) -> str:
    """The family of an encoding: by its declared kind, the hooks that it has, and whether it reads distances alone."""
    if encoding.kind != "encoding":
        return encoding.kind
    if "embed" in encoding.acts:
        return "absolute"
    if "terms" in encoding.acts:
        return "relative" if relative else "in scores"
    if "prepare" in encoding.acts:
        return "rotary" if relative else "rotary beyond distances"
    return "values" if "values" in encoding.acts else "none"


# ---------------------------------------------------------------- the lesson


def measure() -> Found:
    t5, bits, without = trained_t5()
    xl = drawn("transformer-xl")
    for part, size in ((xl.W_R, 0.15), (xl.u, 1.0), (xl.v, 1.0)):  # four parts of the same size, for the picture
        part.normal_(std=size)
    q, k = torch.randn(2, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64)
    places, back_to = torch.arange(TOKENS), -torch.arange(FAR)
    parts = four_parts(xl, q, k)
    buckets, rope, gopher = bucket_numbers(), rope_numbers(), gopher_numbers(xl, t5, q, k)
    changes = {name: moved(drawn(name)) for name in COMPARED}
    relative = [name for name in hw.positions.ENCODINGS if reads_distances_alone(name)]
    families: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name in hw.positions.ENCODINGS:
        families[family(drawn(name), name in relative)].append(name)
    return Found(
        xl_parts=parts[:, 0].tolist(),
        xl_error=(parts.sum(0) - scores(xl, q, k, places, places)).abs().max().item(),
        xl_learned={name: parameter.numel() for name, parameter in xl.named_parameters()},
        **buckets,
        t5_learned=bias(t5, back_to).tolist(),
        t5_bits=bits,
        t5_bits_without=without,
        alibi_lines=bias(hw.positions.ALiBi(HEADS), back_to).tolist(),
        **rope,
        shifts={name: shares[:-1] for name, shares in changes.items()},
        parameters={name: count(hw.encoding(name, **BASE)) for name in COMPARED},
        **gopher,
        relative=relative,
        with_function=[name for name in relative if needs_function(drawn(name))],
        families=families,
    )


def page_data() -> dict[str, Any]:
    alibi = hw.encoding("alibi", num_heads=HEADS)
    return {
        "title": ["Lesson 6: relative and rotary positions", "第 6 课：相对位置与旋转位置"],
        "slopes": (-bias(alibi, torch.tensor([-1.0]))[:, 0]).tolist(),
        "frequencies": frequencies(HEAD_DIM).tolist(),
        "query": [1.0, 0.3],
        "key": [0.6, 0.9],
    }


def tell(found: Found, t: Text) -> str:
    back = [0, 1, 2, 4, 8, 32, 127]
    biases = [
        [f"{name} {h}", *(round(line[d], 3) for d in back)]
        for name, lines in (("T5", found.t5_learned), ("ALiBi", found.alibi_lines))
        for h, line in enumerate(lines)
    ]
    ends = t("its table ends", "超出表长")
    moves = [
        [name, *(ends if change is None else f"{change:.0e}" for change in changes), f"{found.parameters[name]:,}"]
        for name, changes in found.shifts.items()
    ]
    one, other = (f"{key - query:.3f}" for query, key in found.turned_angles)
    sizes = ", ".join(f"{name} {size:,}" for name, size in found.xl_learned.items())
    starts = " ".join(map(str, found.bucket_starts))
    count, functions = len(found.relative), len(found.with_function)
    return "\n".join(
        [
            t(
                f"Transformer-XL: the four parts differ from headway's scores by at most {found.xl_error:.0e}.\n"
                f"Learned are {sizes}; the sinusoids R are not.\n\n"
                f"T5: a bucket begins at each of these distances: {starts}.\n"
                f"T5's biases after {STEPS} steps and ALiBi's fixed biases, by head and tokens back:",
                f"Transformer-XL：四部分之和与 headway 的分数最多相差 {found.xl_error:.0e}。\n"
                f"可学习的是 {sizes}；正弦向量 R 不学习。\n\n"
                f"T5：各桶的起始距离是 {starts}。\n"
                f"T5 训练 {STEPS} 步学到的偏置，与 ALiBi 固定的偏置（按头、按往前的距离）：",
            ),
            table(biases, [t("head", "头"), *(str(d) for d in back)]),
            t(
                f"Bits for each unseen byte: {found.t5_bits:.2f}; with T5's table at 0 {found.t5_bits_without:.2f}.\n\n"
                f"RoPE: ⟨R(p)q, R(r)k⟩ and ⟨q, R(r − p)k⟩ differ by {found.rope_error:.0e} at most.\n"
                f"Moved from 0 and 1 to 3 and 4, a query and a key are {one} and {other} rad apart.\n\n"
                "If every token moves: the change of a score as a share of the largest one (float64), and the numbers\n"
                "that an encoding learns in a model of 12 heads of 64 and up to 512 tokens:",
                f"没见过的文本每字节 {found.t5_bits:.2f} 比特；把 T5 的表清零后是 {found.t5_bits_without:.2f}。\n\n"
                f"RoPE：⟨R(p)q, R(r)k⟩ 与 ⟨q, R(r − p)k⟩ 最多相差 {found.rope_error:.0e}。位置从 0、1 移到 3、4，\n"
                f"查询与键的夹角分别是 {one} 和 {other} 弧度。\n\n"
                "所有词元一起平移：分数的变化占最大分数的比例（float64）；\n"
                "以及在 12 头、每头 64 维、最长 512 个词元的模型里，一个编码的可学习参数：",
            ),
            table(
                moves, [t("encoding", "编码"), *(f"+{shift:,}" for shift in SHIFTS), t("learned numbers", "可学习参数")]
            ),
            t(
                f"\nGopher consists of {found.gopher_terms}, T5 of {found.t5_terms}. With the same parameters Gopher\n"
                f"and Transformer-XL differ by {found.gopher_is_xl:g}. At a distance of 5 Gopher adds to each query a "
                f"number of its own\n(standard deviation {found.gopher_by_query:.2f}), T5 one and the same "
                f"({found.t5_by_query:g}).\n\n"
                f"{count} of headway's encodings depend only on distances. {count - functions} are sums and products "
                "of "
                f"one equation,\n{functions} have a function: {', '.join(found.with_function)}.",
                f"\nGopher 由 {found.gopher_terms} 构成，T5 由 {found.t5_terms} 构成。\n"
                f"参数相同时，Gopher 与 Transformer-XL 相差 {found.gopher_is_xl:g}。距离为 5 时，Gopher 给每个查询\n"
                f"加的数各不相同（标准差 {found.gopher_by_query:.2f}），"
                f"T5 给所有查询加同一个数（{found.t5_by_query:g}）。\n\n"
                f"headway 有 {count} 种编码只看距离，其中 {count - functions} 种是同一个公式里的和与积，\n"
                f"{functions} 种要另带一个函数：{'、'.join(found.with_function)}。",
            ),
        ]
    )


def draw(found: Found, t: Text) -> dict[str, Figure]:
    parts, biases, rotary = page(3.0), page(2.9), page(2.9)
    parts.suptitle(t("Transformer-XL: a score and its four parts", "Transformer-XL：分数与它的四部分"), fontsize=10.5)
    draw_parts(parts.subplots(1, 5, sharey=True), found, t)
    draw_biases(*biases.subplots(1, 3), found, t)
    draw_turns(*rotary.subplots(1, 3), found, t)
    return {"": parts, "biases": biases, "rotary": rotary, "families": draw_families(found, t)}


def draw_families(found: Found, t: Text) -> Figure:
    """Draws all encodings of headway as a tree: what they act on, and what they are."""
    lines = {name: wrap(", ".join(members), 58, break_on_hyphens=False) for name, members in found.families.items()}
    line, gap, top = 0.175, 0.17, 0.36
    heights = {name: max(0.42, line * len(text) + 0.1) for name, text in lines.items()}
    figure, axes = sheet(top + 0.1 + sum(heights.values()) + gap * (len(heights) - 1))
    total = sum(map(len, found.families.values()))
    middle = figure.get_figheight() / 2
    write(axes, 2.15, 0.17, t("acts on", "作用于"))
    write(axes, 3.975, 0.17, t("family (how many)", "类别（种数）"))
    root = box(axes, Place(0.1, middle - 0.3, 0.95, 0.6), t(f"{total}\nencodings", f"{total} 种\n编码"))
    places, y = {}, top
    for name, height in heights.items():
        places[name] = Place(3.1, y, 1.75, height)
        y += height + gap
    for acts_on in dict.fromkeys(acts_on for acts_on, _, _ in FAMILIES.values()):
        members = [name for name, (on, _, _) in FAMILIES.items() if on == acts_on]
        first, last = places[members[0]], places[members[-1]]
        centre = (first.y + last.y + last.height) / 2
        branch = box(axes, Place(1.5, centre - 0.17, 1.3, 0.34), t(*acts_on))
        arrow(axes, root.right, branch.left)
        for name in members:
            _, (en, zh), colour = FAMILIES[name]
            leaf = box(axes, places[name], f"{t(en, zh)} ({len(found.families[name])})", colour=colour, size=8.5)
            arrow(axes, branch.right, leaf.left)
            for number, text in enumerate(lines[name]):
                middle = leaf.left[1] + (number - (len(lines[name]) - 1) / 2) * line
                write(axes, 5.0, middle, text, size=8.5, align="left")
    return figure


def draw_parts(axes: Any, found: Found, t: Text) -> None:
    parts = torch.tensor(found.xl_parts)
    names = [
        t("(a) content–content", "(a) 内容–内容"),
        t("(b) content–distance", "(b) 内容–距离"),
        t("(c) u–content", "(c) u–内容"),
        t("(d) v–distance", "(d) v–距离"),
        t("their sum", "四部分之和"),
    ]
    for panel, part, name in zip(axes, [*parts, parts.sum(0)], names, strict=True):
        image = panel.imshow(part.numpy(), cmap=SIGNED, vmin=-4, vmax=4, interpolation="nearest")
        panel.set_title(name, fontsize=9.5)
        panel.set(xlabel=t("key position", "键的位置"), xticks=[0, 5, 10, 15], yticks=[0, 5, 10, 15])
    axes[0].set_ylabel(t("query position", "查询的位置"))
    colour_bar(image, axes, t("score", "分数"), aspect=12, shrink=0.8, extend="both")


def draw_biases(steps: Any, learned: Any, alibi: Any, found: Found, t: Text) -> None:
    back = t("query − key, tokens", "查询 − 键（词元）")
    steps.step([-distance for distance in found.bucket_at], found.buckets, where="mid", color=BLUE)
    steps.set(title=t("T5: the bucket of a distance", "T5：距离与桶"), xlabel=back)
    steps.set(ylabel=t("number of the bucket", "桶号"), yticks=[0, 8, 15, 24, 31], xticks=[-128, -64, 0, 64, 128])
    for panel, lines in ((learned, found.t5_learned), (alibi, found.alibi_lines)):
        for head, line in enumerate(lines):
            panel.plot(range(FAR), line, linestyle=DASHES[head], label=t(f"head {head}", f"头 {head}"))
        panel.set(xlabel=back, ylabel=t("added to the score", "加到分数上的偏置"))
        panel.legend(fontsize=8.5)
    learned.set_xscale("symlog", linthresh=8, linscale=1.5)
    learned.set_xticks([0, 2, 4, 8, 16, 32, 127], ["0", "2", "4", "8", "16", "32", "127"])
    learned.minorticks_off()
    learned.set(title=t("T5: what four heads learned", "T5：四个头学到的偏置"))
    alibi.set(title=t("ALiBi: fixed straight lines", "ALiBi：固定的直线"))


def draw_turns(pairs: Any, whole: Any, turns: Any, found: Found, t: Text) -> None:
    for line, frequency, dashes in zip(found.rope_pairs, found.rope_frequencies, DASHES, strict=False):
        pairs.plot(range(NEAR), line, linewidth=1.3, linestyle=dashes, label=f"{frequency:.2g}")
    pairs.set(title=t("RoPE: three of 32 pairs", "RoPE：32 对中的 3 对"), ylim=(-1.1, 1.8), yticks=[-1, 0, 1])
    said = t("⟨q, k⟩ / |q||k| after rotation", "旋转后的 ⟨q, k⟩ / |q||k|")
    back = t("query − key, tokens", "查询 − 键（词元）")
    pairs.set(xlabel=back, ylabel=said)
    pairs.legend(
        title=t("radians per token", "每个词元转的弧度"), loc="upper center", ncols=3, columnspacing=1.0,
        handlelength=2, fontsize=8.5, title_fontsize=8.5,
    )  # fmt: skip
    whole.axhline(0, color=FAINT, linewidth=1.2)
    for line, name in zip(
        found.rope_whole, [t("a vector with itself", "向量与自身"), t("with another", "与另一向量")], strict=True
    ):
        whole.plot(range(NEAR), line, label=name, linestyle="-" if line is found.rope_whole[0] else DASHES[1])
    whole.set(title=t("RoPE: all 32 together", "RoPE：32 对之和"), ylim=(-0.5, 1.6))
    whole.set(xlabel=back, ylabel=said)
    whole.legend(loc="upper right")

    for query_and_key, places in zip(found.turned_angles, TURNED, strict=True):
        for angle, place, name, colour in zip(query_and_key, places, "qk", (BLUE, ORANGE), strict=True):
            x, y = math.cos(angle), math.sin(angle)
            turns.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8})
            turns.text(1.35 * x, 1.2 * y, t(f"{name} at {place}", f"{name} 在 {place}"), ha="center", color=colour)
        query, key = query_and_key
        arc = torch.linspace(query, key, 40)
        turns.plot(0.45 * arc.cos(), 0.45 * arc.sin(), color=INK, linewidth=1.2)
        middle = (query + key) / 2
        turns.text(0.7 * math.cos(middle), 0.7 * math.sin(middle), f"{math.degrees(key - query):.0f}°", ha="center")
    turns.set(title=t("RoPE: the angle stays", "RoPE：夹角不变"), xlim=(-1.6, 1.6), ylim=(-1.3, 1.3), aspect="equal")
    turns.axis("off")


if __name__ == "__main__":
    run(__name__)
