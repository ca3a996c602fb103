"""Lesson 5: marking positions.

Attention does not see order (lesson 4), so each token is marked with its position: an encoding of the position is added
to its embedding. Four encodings, the simplest first:

    index        p + 1 in every dimension                       unbounded
    unit-index   p/(T − 1) in every dimension                   bounded, but a step depends on the length T
    sinusoidal   sin(p·ω_c), cos(p·ω_c) for d/2 frequencies     ω_c = 10000^(−2c/d), a pair of dimensions each
    learned      row p of a learned table                       as many positions as the table has rows

A pair of the sinusoidal encoding is like the hand of a clock: the first goes round in 2π tokens, the last in about
60,000. Exact properties follow. The dot product of two encodings is Σ cos((r − p)·ω_c), which depends on the distance
and not on the direction; and PE(p + k) is PE(p) with every hand rotated by k·ω_c, one linear map for all p.

It does not follow that a model works at positions it was not trained on. That is measured at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import headway as hw
from headway._common.pictures import SIGNED, colour_bar
from headway.testing.checkpoints import cells
from lesson import BLUE, DASHES, FAINT, GREEN, ORANGE, SKY, Text, descend, frequencies, matrix, page, run, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ["index", "unit-index", "sinusoidal", "learned"]
FAR = 100_000  # offsets looked at
PLACES = 10_000  # encodings compared one by one
DIMS = [2, 8, 64, 512]
OFFSETS = list(range(-60, 61))
RULED = sorted({round(10 ** (step / 40)) for step in range(181)})  # 1 … 31,623, as far apart as their logarithms

# Training: a causal decoder of one layer names the token before each one.
LENGTHS = [16, 32, 64, 128]  # trained at the first
VOCABULARY, WIDTH, HEADS, STEPS, ROWS = 16, 64, 4, 400, 32
SHORT = "sinusoidal(base=2.5)"  # every period is shorter than 16 tokens
GIVEN = "learned, from sinusoidal"
TRAINED = ["none", "index", "unit-index", "sinusoidal", SHORT, "learned", GIVEN, "t5", "rope"]


@dataclass(frozen=True)
class Found:
    """Properties of the encodings, in float64, and results of models that use them."""

    # the four properties, by encoding: distinct, distance, alike, bounded
    verdicts: dict[str, list[str]]
    numbers: dict[str, list[float]]
    unit_steps: list[float]  # one step of unit-index in sequences of 11 and of 101 tokens
    far_code_length: float  # |PE(1,000,000)| at d = 512: a fixed encoding exists for every position
    beyond_table: str  # the error of a learned table of 16 rows for a sequence of 17
    families: dict[str, str]  # the published models that headway reads, and how each marks positions

    # d = 512
    wavelengths: list[float]
    periods_within: dict[str, int]  # pairs that complete a period within so many tokens
    frequency_spread: float  # differences of one step's angle between positions: the frequency depends only on the pair
    rulers: dict[
        str, list[float]
    ]  # by the wavelengths of a quarter of the pairs: |PE(p+k) − PE(p)|² over RULED, mean 1
    quarters: list[list[float]]  # of pairs, fastest first: share of |PE(p+1) − PE(p)|²; of |PE(p+1000) − PE(p)|²;
    #                              first offset at which the distance shrinks again

    # are any two positions the same? by d
    closest: dict[str, float]  # the smallest distance of two encodings up to FAR apart
    closest_offset: dict[str, int]
    distinct_bfloat16: dict[str, int]  # different encodings among 10,000

    # the dot product of two encodings
    dot_place_error: float  # largest |PE(p)·PE(p+k) − Σ cos(kω)|
    dot_symmetry_error: float  # largest |PE(p)·PE(p+k) − PE(p)·PE(p−k)|
    dot_rises_at: dict[str, int]  # by d: the first offset whose dot product is larger than the one before
    dot_line: dict[str, list[float]]  # by d: Σ cos(kω)/(d/2) over OFFSETS
    turned_line: list[float]  # d = 512: the same with PE(p) turned by a quarter first, Σ sin(kω)/(d/2)
    turned_negative_at: int  # the first offset ahead that has the sign of one behind, d = 512
    projected_share: float  # of the variance of (PE·Wq)(PE·Wk)ᵀ that goes with the offset, random W, mean of 20
    addition_error: float  # largest error of PE(p+k) by the two equations of angle addition

    # word + position
    probe_words: dict[str, float]  # by d: share of words and positions that a linear map recovers from their sum
    probe_places: dict[str, float]

    # training at 16 tokens
    accuracy: dict[str, list[float]]  # by code, for each of LENGTHS: of the second half of the places
    unfinished: int  # of the 32 pairs, those that complete no period within 16 tokens
    moved: dict[str, float]  # learned tables: mean |change| of the trained rows, as a share of their mean length
    untouched_rows: dict[str, int]  # unchanged rows, bit for bit, of 128


def codes(positions: Tensor | int, dim: int) -> Tensor:
    """Returns PE [positions, dim] in float64: headway's encoding of zeros."""
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    nothing = torch.zeros(1, len(positions), dim, dtype=torch.float64)
    return hw.encoding("sinusoidal", embed_dim=dim).embed(nothing, positions)[0]


def waves(offsets: Tensor, omegas: Tensor) -> Tensor:
    """Computes Σ cos(kω), the dot product of two encodings at distance k, one wave at a time."""
    return sum(((offsets * omega).cos() for omega in omegas), torch.zeros_like(offsets))


def turned(code: Tensor, by: Tensor) -> Tensor:
    """Maps every pair (sin a, cos a) to (sin(a + by), cos(a + by)) by angle addition, a linear map of the pair."""
    sine, cosine = code[..., 0::2], code[..., 1::2]
    return torch.stack([sine * by.cos() + cosine * by.sin(), cosine * by.cos() - sine * by.sin()], -1).flatten(-2)


def first(condition: Tensor) -> int:
    """Returns the first offset 1, 2, … for which a condition holds."""
    return int(condition.nonzero()[0]) + 1


def share_by_offset(scores: Tensor) -> float:
    """Returns the share of the variance of scores [n, n] that the offset j − i explains."""
    n = len(scores)
    within = sum(((group - group.mean()) ** 2).sum() for o in range(1 - n, n) for group in [scores.diagonal(o)])
    return float(1 - within / ((scores - scores.mean()) ** 2).sum())


def read_back(dim: int, words: int = 200, places: int = 50) -> list[float]:
    """Measures how well a linear map, fitted on half of the sums word + position, recovers both from the others."""
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(words, dim, generator=draw, dtype=torch.float64)
    sums = (embeddings[:, None] + codes(places, dim)).flatten(0, 1)
    inputs = F.pad(sums, (0, 1), value=1.0)
    fit, held_out = torch.randperm(len(sums), generator=draw).chunk(2)
    least_squares = torch.linalg.pinv(inputs[fit], rtol=1e-6)  # at d = 512 the sums span only part of the space
    right = []
    for labels in (torch.arange(words).repeat_interleave(places), torch.arange(places).repeat(words)):
        probe = least_squares @ F.one_hot(labels[fit]).double()
        right.append((inputs[held_out] @ probe).argmax(-1).eq(labels[held_out]).double().mean().item())
    return right


def train(name: str) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """A decoder trained at 16 tokens to name the token before: its accuracy in the second half of each length, and the
    parameters of its encoding, before and after."""
    torch.manual_seed(0)
    if name == GIVEN:
        encoding = hw.positions.Learned(LENGTHS[-1], WIDTH, initial=codes(LENGTHS[-1], WIDTH).float())
    else:
        sizes = {"embed_dim": WIDTH, "num_heads": HEADS, "head_dim": WIDTH // HEADS, "max_length": LENGTHS[-1]}
        encoding = hw.encoding(name, **sizes, bidirectional=False)
    began = [parameter.detach().clone() for parameter in encoding.parameters()]
    # RMS norm: a layer norm would subtract what index and unit-index add, the same number in every dimension
    config = hw.models.TransformerConfig(VOCABULARY, WIDTH, num_layers=1, num_heads=HEADS, norm="rms")
    model = hw.models.Decoder(config, encoding)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTHS[0]), generator=draw)
        loss = F.cross_entropy(model(tokens)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())
        descend(optimizer, loss)
    right = []
    with torch.no_grad():
        for length in LENGTHS:
            tokens = torch.randint(VOCABULARY, (64, length), generator=draw)
            hit = model(tokens)[:, 1:].argmax(-1).eq(tokens[:, :-1])
            right.append(hit[:, length // 2 - 1 :].double().mean().item())
    return right, began, [parameter.detach() for parameter in encoding.parameters()]


def measure() -> Found:
    demands = {name: hw.encoding(name, embed_dim=512, max_length=1024).properties() for name in NAMES}
    unit = hw.encoding("unit-index")
    unit_steps = [unit.embed(torch.zeros(1, n, 1, dtype=torch.float64))[0, 1].item() for n in (11, 101)]
    try:
        hw.encoding("learned", embed_dim=WIDTH, max_length=16).embed(torch.zeros(1, 17, WIDTH))
        refused = ""
    except hw.HeadwayError as error:
        refused = str(error)

    omega = frequencies(512)
    periods = 2 * math.pi / omega
    code = codes(6000, 512)
    hands = torch.atan2(code[:, 0::2], code[:, 1::2])
    step = (hands[1:] - hands[:-1]) % (2 * math.pi)
    offsets = torch.arange(1.0, FAR + 1, dtype=torch.float64)
    quarters, rulers = [], {}
    for part in omega.chunk(4):
        wavelengths = 2 * math.pi / part
        ruled = 1 - waves(torch.tensor(RULED, dtype=torch.float64), part) / len(part)
        rulers[f"{wavelengths[0]:,.0f} – {wavelengths[-1]:,.0f}"] = ruled.tolist()
        distance = len(part) - waves(offsets[:20_000], part)  # half of |PE(p + k) − PE(p)|²
        shares = [float(distance[k - 1] / (256 - waves(offsets[[k - 1]], omega))) for k in (1, 1000)]
        quarters.append([*shares, first(distance.diff() < 0) + 1])

    closest, closest_offset, distinct, rises = {}, {}, {}, {}
    for dim in DIMS:
        distance = (dim - 2 * waves(offsets, frequencies(dim))).clamp(min=0).sqrt()
        closest[str(dim)], closest_offset[str(dim)] = distance.min().item(), int(distance.argmin()) + 1
        distinct[str(dim)] = len(codes(PLACES, dim).bfloat16().unique(dim=0))
    for dim in (32, 64, 128, 512):
        rises[str(dim)] = first(waves(offsets[:100], frequencies(dim)).diff() > 0) + 1

    places, near = torch.arange(100, 5900, 58), torch.tensor(OFFSETS)
    products = (code[places, None] * code[places[:, None] + near]).sum(-1)
    quarter_turn = turned(code[places], torch.full_like(omega, math.pi / 2))
    sines = (quarter_turn[:, None] * code[places[:, None] + near]).sum(-1)
    ahead = sum(((offsets[:20_000] * one).sin() for one in omega), torch.zeros(20_000, dtype=torch.float64))
    shift = torch.tensor([1, 7, 50, 500, 5000])
    added = turned(code[:1000, None], shift[:, None] * omega)
    draw, shares = torch.Generator().manual_seed(0), []
    for _ in range(20):
        to_query, to_key = torch.randn(2, 512, 64, generator=draw, dtype=torch.float64)
        shares.append(share_by_offset((code[:64] @ to_query) @ (code[:64] @ to_key).T))

    probes = {str(dim): read_back(dim) for dim in (16, 64, 512)}
    accuracy, moved, untouched = {}, {}, {}
    for name in TRAINED:
        accuracy[name], began, ended = train(name)
        if name.startswith("learned"):
            change, trained = ended[0] - began[0], slice(LENGTHS[0])
            moved[name] = float(change[trained].norm(dim=-1).mean() / began[0][trained].norm(dim=-1).mean())
            untouched[name] = int((change == 0).all(-1).sum())
    return Found(
        verdicts={name: [row.verdict for row in rows] for name, rows in demands.items()},
        numbers={name: [row.number for row in rows] for name, rows in demands.items()},
        unit_steps=unit_steps,
        far_code_length=codes(torch.tensor([1_000_000]), 512).norm().item(),
        beyond_table=refused,
        families={name: cells(name)[1] for name in hw.checkpoints.FAMILIES},
        wavelengths=periods.tolist(),
        periods_within={str(n): int((periods <= n).sum()) for n in (50, 512, 10_000)},
        frequency_spread=float((step - omega).abs().max()),
        rulers=rulers,
        quarters=quarters,
        closest=closest,
        closest_offset=closest_offset,
        distinct_bfloat16=distinct,
        dot_place_error=float((products - waves(near.double(), omega)).abs().max()),
        dot_symmetry_error=float((products - products.flip(-1)).abs().max()),
        dot_rises_at=rises,
        dot_line={str(d): (waves(near.double(), frequencies(d)) / (d / 2)).tolist() for d in (32, 512)},
        turned_line=(sines.mean(0) / 256).tolist(),
        turned_negative_at=first(ahead < 0),
        projected_share=mean(shares),
        addition_error=float((added - code[torch.arange(1000)[:, None] + shift]).abs().max()),
        probe_words={dim: probe[0] for dim, probe in probes.items()},
        probe_places={dim: probe[1] for dim, probe in probes.items()},
        accuracy=accuracy,
        unfinished=int((2 * math.pi / frequencies(WIDTH) > LENGTHS[0]).sum()),
        moved=moved,
        untouched_rows=untouched,
    )


def page_data() -> dict[str, Any]:
    word, mark = [0.1, 0.5, -0.2, 0.8], [0.0, 0.3, 0.1, -0.1]  # of the article with example sentences
    return {
        "title": ["Lesson 5: marking positions", "第 5 课：给位置做标记"],
        "dims": DIMS,
        "dim": 64,
        "word": word,
        "mark": mark,
        "sum": [a + b for a, b in zip(word, mark, strict=True)],
    }


def tell(found: Found, t: Text) -> str:
    verdict = {"yes": t("yes", "是"), "no": t("no", "否")}
    demands = [[name, *(verdict[word] for word in found.verdicts[name])] for name in NAMES]
    quarters = [
        [wavelengths, f"{near:.2%}", f"{far:.0%}", back]
        for wavelengths, (near, far, back) in zip(found.rulers, found.quarters, strict=True)
    ]
    closest = [
        [int(dim), distance, found.closest_offset[dim], found.distinct_bfloat16[dim]]
        for dim, distance in found.closest.items()
    ]
    read = [[int(dim), f"{right:.0%}", f"{found.probe_places[dim]:.0%}"] for dim, right in found.probe_words.items()]
    lengths = [[name, *(f"{share:.0%}" for share in shares)] for name, shares in found.accuracy.items()]
    rises = ", ".join(f"{offset} (d = {dim})" for dim, offset in found.dot_rises_at.items())
    last, unfinished, ahead = found.wavelengths[-1], found.unfinished, found.turned_negative_at - 1
    place, sign, share = found.dot_place_error, found.dot_symmetry_error, found.projected_share
    lines = [
        t("Four properties of an encoding, measured:", "对位置编码的四条要求，逐条实测："),
        table(
            demands,
            t(",distinct,distance shows,alike everywhere,bounded", ",各不相同,看得出距离,处处一致,有界").split(","),
        ),
        "",
        t(
            f"Rulers: at d = 512 the wavelengths go from 6.28 to {last:,.0f}. What each quarter of the 256 pairs\n"
            "contributes to the squared distance of two encodings:",
            f"尺子：d = 512 时波长从 6.28 到 {last:,.0f}。256 对频率按快慢分成四份，各占两个编码平方距离的多少：",
        ),
        table(
            quarters,
            t("wavelengths,neighbours,1000 apart,shrinks again at", "波长,相邻,相隔 1000,从此偏移起回落").split(","),
        ),
        "",
        t(f"The two most similar encodings up to {FAR:,} apart:", f"相隔不超过 {FAR:,} 的位置中最相似的两个编码："),
        table(
            closest,
            t("d,distance,offset,distinct of 10000 in bfloat16", "d,距离,偏移,10000 个中 bfloat16 下不同的").split(","),
            digits=3,
        ),
        "",
        t(
            f"The dot product depends only on the offset (error {place:.0e}), not on its sign ({sign:.0e}). It falls "
            f"at first\nand rises again at offset {rises}. With random Wq and Wk\nthe offset explains {share:.0%} of "
            f"its variance. Rotated by a quarter first, it distinguishes ahead from behind up to {ahead:,}.\n"
            f"PE(p + k) = R(k)·PE(p): error {found.addition_error:.0e}.",
            f"点积只取决于偏移（误差 {place:.0e}），不分正负（{sign:.0e}）。它先下降，到以下偏移又回升：\n{rises}。\n"
            f"经过随机的 Wq、Wk，偏移只能解释其方差的 {share:.0%}。先转四分之一圈再点积，{ahead:,} 以内能分清前后。\n"
            f"PE(p + k) = R(k)·PE(p)：误差 {found.addition_error:.0e}。",
        ),
        "",
        t(
            "Word and position recovered by a linear map from their sum, 200 words at 50 positions:",
            "200 个词、50 个位置，从“词 + 位置”之和里用线性映射读回两者：",
        ),
        table(read, t("d,word,place", "d,词,位置").split(",")),
        "",
        t(
            "The previous token, trained at 16 tokens; right in the second half of each length (chance 6 %):",
            "说出前一个词元，只在长度 16 上训练；各长度后半段的正确率（随机猜测是 6%）：",
        ),
        table(lengths, ["", *map(str, LENGTHS)]),
        t(
            f"{unfinished} of the 32 sinusoidal pairs complete no period within 16 tokens; with {SHORT} all do,\n"
            "and the result is no better. Untrained rows of a learned table keep their initial values; without such "
            "rows:",
            f"正弦编码的 32 对频率里有 {unfinished} 对在 16 个词元内没转完一圈；{SHORT} 全都转完了，\n"
            "却并没有更好。可学习的表里没训练到的行原封不动；没有那些行的表会报错：",
        ),
        found.beyond_table.partition(":")[0],
    ]
    return "\n".join(lines)


def draw(found: Found, t: Text) -> Figure:
    figure = page(7.4)
    (prints, rulers), (product, beyond) = figure.subplots(2, 2)
    image = prints.imshow(codes(40, 64).tolist(), cmap=SIGNED, aspect="auto", vmin=-1, vmax=1)
    colour_bar(image, prints, t("number in the code", "编码中的数"))
    prints.set(
        xlabel=t("dimension, from fast to slow", "维（由快到慢）"),
        ylabel=t("position", "位置"),
        title=t("Sinusoidal codes, d = 64", "正弦编码，d = 64"),
    )

    looks = zip((ORANGE, GREEN, SKY, BLUE), DASHES, strict=True)
    for (start, line), (colour, dashes) in zip(found.rulers.items(), looks, strict=True):
        rulers.plot(RULED, line, color=colour, linestyle=dashes, linewidth=1.4, label=start)
    rulers.set(
        xscale="log",
        xlim=(1, RULED[-1]),
        ylim=(0, 1.75),
        yticks=[0, 0.5, 1],
        xlabel=t("offset k, tokens", "偏移 k（词元）"),
        ylabel=t("|PE(p + k) − PE(p)|², mean = 1", "|PE(p + k) − PE(p)|²（均值为 1）"),
        title=t("A quarter of the 512 dimensions each", "各取 512 维的四分之一"),
    )
    rulers.legend(title=t("wavelengths, tokens", "波长（词元）"), loc="upper left", ncols=2)

    product.axhline(0, color=FAINT, linewidth=1)
    for (dim, line), colour, place in zip(found.dot_line.items(), (SKY, BLUE), ((-49, 0.26), (38, 0.68)), strict=True):
        product.plot(OFFSETS, line, color=colour, linewidth=1.4, linestyle=DASHES[dim == "32"])
        product.text(*place, f"d = {dim}", ha="center")
    product.plot(OFFSETS, found.turned_line, color=ORANGE, linewidth=1.4, linestyle=DASHES[3])
    said = t("d = 512, PE(p) rotated by 90°", "d = 512，PE(p) 先转 90°")
    product.text(0, -0.3, said, ha="center")
    product.set(
        xlabel=t("offset k, tokens", "偏移 k（词元）"),
        ylabel=t("PE(p)·PE(p + k) / |PE(p)|²", "PE(p)·PE(p + k) / |PE(p)|²"),
        title=t("The dot product has no direction", "点积只有距离，没有方向"),
        ylim=(-0.36, 1.05),
        xticks=range(-60, 61, 30),
    )

    names = [name.replace(", ", ",\n") for name in found.accuracy]
    shares = list(found.accuracy.values())
    lengths = [str(length) for length in LENGTHS]
    matrix(beyond, shares, names, lengths, top=1.3, says=lambda i, j: f"{shares[i][j]:.0%}", size=8.5)
    beyond.set(
        xlabel=t("length, tokens", "长度（词元）"),
        ylabel=t("encoding", "编码"),
        title=t("Right answers; trained at 16 tokens", "正确率；只在长度 16 上训练"),
    )
    return figure


if __name__ == "__main__":
    run(__name__)
