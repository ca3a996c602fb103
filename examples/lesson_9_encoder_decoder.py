"""Lesson 9: encoder, decoder, and one attention used in three ways.

The first Transformer translates. Its encoder reads the source, its decoder writes the target from left to right, and
both use the same attention. The uses differ in the source of queries and keys, and in which keys a query attends to:

    encoder self-attention   queries, keys and values from the source    all keys
    masked self-attention    all three from the target                   no later keys
    cross-attention          queries from the target, the others from    all keys
                             the output of the encoder

The input of both is the word vector of a token plus the encoding of its position. Here a model of that architecture
learns to translate dates, whose order is different in the two languages:

    wednesday the twenty first of march 2012  →  二〇一二年三月二十一日星期三

Numbers are read digit by digit, so that march 12, 2021 and march 21, 2012 consist of the same tokens. All dates come
from the calendar; those of the test occur in training in no form. Then positions are removed from the decoder, from the
encoder, and from both, without any other change.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import headway as hw
from lesson import (
    BLUE,
    INK,
    ORANGE,
    SPEAK,
    Text,
    descend,
    handed,
    matrix,
    measured,
    padded,
    page,
    run,
    table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDINALS = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
    fifteenth sixteenth seventeenth eighteenth nineteenth twentieth""".split()  # noqa: SIM905
DIGITS = "〇一二三四五六七八九"
TWINS = ("march 12, 2021", "march 21, 2012")  # the same tokens in another order
SHOWN = "wednesday the twenty first of march 2012"
RENDERS = {0: 6, 1: 7, 2: 8, 3: 9, 5: 5, 7: 2, 8: 2, 9: 3, 13: 0}  # characters of its translation: which word they are

START, END, IGNORED = 0, 1, -100
WIDTH, HEADS, LAYERS = 64, 4, 2
STEPS, BATCH, RATE = 400, 16, 3e-3
HELD_OUT = 200  # days, each in five forms

POSITIONS: dict[str, tuple[str | None, str | None]] = {  # of the encoder and of the decoder
    "both": ("sinusoidal", "sinusoidal"),
    "encoder alone": ("sinusoidal", None),
    "decoder alone": (None, "sinusoidal"),
    "neither": (None, None),
    "rope": ("rope", "rope"),
}
SHOWN_MODELS = ("both", "decoder alone")  # on the page


@dataclass(frozen=True)
class Found:
    """Results of the translator with and without positions; the keys are the names of POSITIONS."""

    asked: int  # held-out pairs
    exact: dict[str, int]  # of these, translated without an error
    reordered: dict[str, int]  # wrong, but made of the right characters
    ceiling: float  # the largest share of sentences that can be right without the order of the tokens
    right: list[list[str]]  # with positions on both sides: source, translation
    wrong: dict[str, list[list[str]]]  # at most five each: source, translation, the right one
    twins: dict[str, list[str]]  # the translations of TWINS
    twin_difference: dict[str, float]  # the largest difference of the logits of their third characters
    bottom_difference: dict[str, float]  # by side: first block's input − (word vector + code of position), largest
    earlier_change: float  # largest, of the logits before those target tokens that are changed
    later_change: float  # smallest, of the logits from there on
    spread: dict[str, float]  # the distance of the outputs of eight equal tokens in a decoder without positions
    source: list[str]  # SHOWN
    target: list[str]  # its translation, one character for each row of cross-attention
    weights: dict[str, list[list[list[float]]]]  # encoder, decoder, cross (last layer): [head][query][key]
    future: float  # the largest weight of a later token in the decoder's self-attention
    crossing: int  # of the characters in RENDERS, those that attend most to their word (mean of heads)


# ---------------------------------------------------------------- the two languages


def forms(day: date) -> list[tuple[str, str]]:
    """Returns a day in five English forms, two of them with the day of the week, and each in Chinese."""
    week, month, d, year = f"{day:%A}".lower(), f"{day:%B}".lower(), day.day, day.year
    ordinal = ORDINALS[d - 1] if d <= 20 else f"{'twenty' if d < 30 else 'thirty'} {ORDINALS[d % 10 - 1]}"
    ordinal = "thirtieth" if d == 30 else ordinal
    suffix = "th" if 10 < d < 14 else {1: "st", 2: "nd", 3: "rd"}.get(d % 10, "th")
    chinese = f"{''.join(DIGITS[int(digit)] for digit in str(year))}年{number(day.month)}月{number(d)}日"
    with_week = f"{chinese}星期{'一二三四五六日'[day.weekday()]}"
    return [
        (f"{week} the {ordinal} of {month} {year}", with_week),
        (f"the {ordinal} of {month} {year}", chinese),
        (f"{week}, {month} {d}, {year}", with_week),
        (f"{month} {d}, {year}", chinese),
        (f"{d}{suffix} {month} {year}", chinese),
    ]


def number(n: int) -> str:
    """1 … 31: 三, 十, 十二, 二十一"""
    tens, ones = divmod(n, 10)
    return (DIGITS[tens] if tens > 1 else "") + ("十" if tens else "") + (DIGITS[ones] if ones else "")


def tokens(text: str) -> list[str]:
    """Splits a text into English words, commas, single digits and single Chinese characters."""
    return re.findall(r"[a-z]+|[^a-z ]", text)


def calendar() -> tuple[list[date], list[date]]:
    """Returns the days of 1900 to 2099, those for training and those held out."""
    twins = [date(2021, 3, 12), date(2012, 3, 21)]
    days = [date(1900, 1, 1) + timedelta(i) for i in range(73049)]
    random.Random(0).shuffle(days)
    held_out = [*twins, *(day for day in days if day not in twins)][:HELD_OUT]
    return sorted(set(days) - set(held_out)), held_out


# ---------------------------------------------------------------- the translator


class Translator:
    """The Transformer of 2017, small: norms behind the parts, ReLU."""

    def __init__(self, vocabulary: set[str], encoder: str | None, decoder: str | None) -> None:
        self.vocabulary = ["<start>", "<end>", *sorted(vocabulary)]
        self.ids = {token: number for number, token in enumerate(self.vocabulary)}
        size = {"embed_dim": WIDTH, "num_heads": HEADS}
        config = hw.models.TransformerConfig(
            len(self.vocabulary), **size, num_layers=LAYERS, activation="relu", feed_forward_dim=128, norm_first=False
        )
        sides = [name and hw.encoding(name, **size, head_dim=WIDTH // HEADS) for name in (encoder, decoder)]
        torch.manual_seed(0)
        self.model = hw.models.EncoderDecoder(config, *sides)
        for stack in (self.model.encoder, self.model.decoder):
            stack.initialise(WIDTH**-0.5)  # the default, 0.02, suits wider models

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.ids[token] for token in tokens(text)] for text in texts]

    def learn(self, days: list[date]) -> None:
        draw = random.Random(0)
        optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.98), fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
        for _ in range(STEPS):
            pairs = [draw.choice(forms(day)) for day in draw.choices(days, k=BATCH)]
            source, target = (self.read(texts) for texts in zip(*pairs, strict=True))
            logits = self.model(
                padded(source, END),
                padded([[START, *row] for row in target], END),
                mask=hw.masks.Padding([len(row) for row in source]),
            )
            wanted = padded([[*row, END] for row in target], IGNORED)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
            descend(optimizer, loss, longest=1.0)
            schedule.step()
        self.model.eval()

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translates greedily, one character at a time."""
        made = hw.models.generate(self.model, self.read(texts), decoder_start=START, stop=END, max_new_tokens=24)
        return ["".join(self.vocabulary[one] for one in row) for row in made.ids]

    @torch.no_grad()
    def logits(self, text: str, translation: str) -> Tensor:
        """Returns logits [n + 1, vocabulary]: row i for character i of the translation, the last row for its end."""
        source, (target,) = self.read([text]), self.read([translation])
        return self.model(torch.tensor(source), torch.tensor([[START, *target]]))[0]


# ---------------------------------------------------------------- what happens inside


@torch.no_grad()
def spread(translator: Translator, start: list[int], mask: hw.masks.Mask | None) -> float:
    """Returns the largest distance between the outputs of eight equal tokens in the decoder."""
    model, ids = translator.model, [*start, *[translator.ids["一"]] * 8]
    context = model.encode(torch.tensor(translator.read([SHOWN])))
    states = model.decoder(model.vectors(torch.tensor([ids])), mask=mask, context=context)[0, -8:]
    return torch.cdist(states, states).max().item()


def vocabulary_of(days: list[date]) -> set[str]:
    """Returns the tokens of the forms of a year."""
    return {token for day in days[:366] for pair in forms(day) for text in pair for token in tokens(text)}


def seen_in(translator: Translator, text: str, translation: str) -> dict[str, list[list[list[float]]]]:
    """Returns the weights of the last layers while a translation is read, [head][query][key], by use."""
    with hw.capture(translator.model, "weights") as seen:
        translator.logits(text, translation)
    uses = {"encoder": seen.encoder_attentions, "decoder": seen.decoder_attentions, "cross": seen.cross_attentions}
    return {use: layers[-1][0].tolist() for use, layers in uses.items()}


def train() -> Iterator[dict[str, Any]]:
    """Trains the models of the page, and reads three dates with each: their translations, and who attends to whom."""
    days, _ = calendar()
    for name in SHOWN_MODELS:
        translator = Translator(vocabulary_of(days), *POSITIONS[name])
        translator.learn(days)
        for text in (SHOWN, *TWINS):
            (made,) = translator.translate([text])
            weights = {
                use: [[[round(weight, 3) for weight in row] for row in head] for head in heads]
                for use, heads in seen_in(translator, text, made).items()
            }
            yield {"positions": name, "source": tokens(text), "target": [*made, "<end>"], "weights": weights}


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 9: which word a character comes from", "第 9 课：每个字来自哪个词"],
        "rows": measured(__file__),
        "names": {name: [names(t)[name] for t in SPEAK.values()] for name in SHOWN_MODELS},
    }


def measure() -> Found:
    days, held_out = calendar()
    pairs = [pair for day in held_out for pair in forms(day)]
    texts, wanted = zip(*pairs, strict=True)
    sentences = [text for day in days + held_out for text, _ in forms(day)]
    bags = {" ".join(sorted(tokens(text))) for text in sentences}  # sentences of the same tokens with different dates
    vocabulary = vocabulary_of(days)

    trained, made, twin_difference = {}, {}, {}
    for name, sides in POSITIONS.items():
        trained[name] = translator = Translator(vocabulary, *sides)
        translator.learn(days)
        made[name] = list(zip(texts, translator.translate(texts), wanted, strict=True))
        one, other = (translator.logits(text, "二〇")[-1] for text in TWINS)
        twin_difference[name] = (one - other).abs().max().item()
    wrong = {name: [list(row) for row in rows if row[1] != row[2]] for name, rows in made.items()}

    translator, blind = trained["both"], trained["encoder alone"]
    model, translation = translator.model, translator.translate([SHOWN])[0]

    def call() -> Tensor:
        return translator.logits(SHOWN, translation)

    (source,), (target,) = translator.read([SHOWN]), translator.read([translation])
    sides, bottom = {"encoder": (model.encoder, source), "decoder": (model.decoder, [START, *target])}, {}
    for side, (stack, ids) in sides.items():
        (((entered, *_), _),) = handed([stack.layers[0]], call)
        codes = hw.encoding("sinusoidal", embed_dim=WIDTH).embed(torch.zeros(1, len(ids), WIDTH))
        bottom[side] = (entered - (WIDTH**0.5 * model.embedding.weight[ids] + codes)).abs().max().item()

    changed = translation[:4] + "日" * (len(translation) - 4)  # after <start>: row 5 is the first that attends to it
    change = (translator.logits(SHOWN, changed) - call()).abs().amax(-1)

    weights = {use: torch.tensor(heads) for use, heads in seen_in(translator, SHOWN, translation).items()}
    looks = weights["cross"].mean(0).argmax(-1).tolist()
    return Found(
        asked=len(pairs),
        exact={name: len(pairs) - len(rows) for name, rows in wrong.items()},
        reordered={name: sum(sorted(got) == sorted(best) for _, got, best in rows) for name, rows in wrong.items()},
        ceiling=len(bags) / len(sentences),
        right=[[text, got] for text, got, best in made["both"] if got == best][:5],
        wrong={name: rows[:5] for name, rows in wrong.items()},
        twins={name: each.translate(TWINS) for name, each in trained.items()},
        twin_difference=twin_difference,
        bottom_difference=bottom,
        earlier_change=change[:5].max().item(),
        later_change=change[5:].min().item(),
        spread={
            "start and mask": spread(blind, [START], hw.masks.Causal()),
            "mask alone": spread(blind, [], hw.masks.Causal()),
            "start alone": spread(blind, [START], None),
        },
        source=tokens(SHOWN),
        target=[*translation, "<end>"],
        weights={use: each.tolist() for use, each in weights.items()},
        future=weights["decoder"].triu(1).max().item(),
        crossing=sum(looks[character] == word for character, word in RENDERS.items()),
    )


def names(t: Text) -> dict[str, str]:
    return {
        "both": t("both", "两边"),
        "encoder alone": t("encoder alone", "只在编码器"),
        "decoder alone": t("decoder alone", "只在解码器"),
        "neither": t("nowhere", "都不加"),
        "rope": t("both, but RoPE", "两边，改用 RoPE"),
    }


def tell(found: Found, t: Text) -> str:
    rows = [[names(t)[name], found.exact[name], found.reordered[name], *found.twins[name]] for name in POSITIONS]
    exact = t(f"exact of {found.asked}", f"{found.asked} 句中全对")
    apart = found.spread
    return "\n".join(
        [
            t("Dates that do not occur in training:", "训练中没有出现过的日期："),
            table(found.right),
            "",
            table(rows, [t("positions in", "位置编码"), exact, t("reordered", "字对序错"), *TWINS]),
            t(
                "Without positions in the encoder, sentences of the same tokens are equal: at most "
                f"{found.ceiling:.1%}\nof all can be right. The decoder needs none, since its mask gives each token "
                "one key more than the last:"
                f"\neight equal tokens behind <start> have outputs {apart['start and mask']:.1f} apart with the mask,"
                f" {apart['start alone']:.0e} without.",
                f"编码器没有位置，词元相同的句子就是同一句，最多只有 {found.ceiling:.1%} 能译对。解码器却用不着：\n"
                "掩码让每个词元比前一个多看见一个。<start> 后面八个相同的词元，"
                f"有掩码时输出相距 {apart['start and mask']:.1f}，没有掩码时 {apart['start alone']:.0e}。",
            ),
            "",
            t("Errors (source, translation, right translation):", "译错的例子（原文、译文、正确译文）："),
            table(found.wrong["both"] + found.wrong["decoder alone"]),
            "",
            t(
                f"Target tokens changed: earlier logits change by {found.earlier_change:.0e} at most, later ones by "
                f"{found.later_change:.1f} at least.",
                f"改动目标词元：前面的 logits 最多变化 {found.earlier_change:.0e}，后面的至少变化 "
                f"{found.later_change:.1f}。",
            ),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure = page(7.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=[5, 2])
    read = ["<start>", *found.target[:-1]]
    maps = {
        "encoder": (found.source, found.source, t("Encoder: self-attention", "编码器：自注意力")),
        "decoder": (read, read, t("Decoder: masked self-attention", "解码器：掩码自注意力")),
        "cross": (found.target, found.source, t("Decoder: cross-attention", "解码器：交叉注意力")),
    }
    all_axes = upper.subplots(1, 3)
    said = t("weight, mean of the last layer's four heads", "权重（最后一层四个头的平均）")
    for axes, (use, (rows, columns, title)) in zip(all_axes, maps.items(), strict=True):
        of_all = torch.tensor(found.weights[use]).mean(0).tolist()
        last = use == "cross"
        matrix(axes, of_all, rows, columns, bar=said if last else "", bar_of=all_axes)
        for label in axes.get_xticklabels():
            label.set_rotation(90 if len(label.get_text()) > 1 else 0)
        query = t("query: what is written next", "查询：接着写出的字") if last else t("query", "查询")
        axes.set(title=title, ylabel=query, xlabel=t("key", "键"))
    axes = lower.subplots()
    shares = [100 * exact / found.asked for exact in found.exact.values()]
    ceiling = 100 * found.ceiling
    axes.bar(list(names(t).values()), shares, 0.6, color=[ORANGE if share < ceiling else BLUE for share in shares])
    for place, share in enumerate(shares):
        axes.text(place, share + 3, f"{share:.1f}%", ha="center")
    axes.plot([1.6, 3.4], [ceiling, ceiling], color=INK, linewidth=1, linestyle="--")
    most = t(f"at most, without order: {ceiling:.1f}%", f"不看次序时的上限：{ceiling:.1f}%")
    axes.text(2.5, ceiling + 4, most, ha="center")
    axes.set(ylim=(0, 120), yticks=[0, 50, 100], ylabel=t("dates, %", "日期，%"))
    axes.set_xlabel(t("where positions are added", "位置编码加在哪里"))
    axes.set_title(t("Unseen dates written without an error", "没见过的日期，全对的比例"))
    return figure


if __name__ == "__main__":
    run(__name__)
