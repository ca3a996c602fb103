"""Lesson 15: the kinds of relation that tutorials name, on their own sentences, in a small Chinese model.

The article with example sentences says why there are many heads: language has relations of several kinds, and one head
finds one of them. Its examples are

    grammar      小明吃苹果: who acts, the act, and what it is done to
    meaning      医生 and 医院, 猫 and 老鼠: words that belong together
    position     words beside each other, here the measure word of a noun (一本书)
    reference    小猫很可爱，它在睡觉: 它 is the kitten

A small encoder is trained on sentences in which these relations were planted: they are made from templates, and one
word decides another, which is masked. So the heads show what they come to do where a relation is there to be learned,
and nothing of what heads of published models do. Three models come with headway, trained from the first three seeds
that met the criteria; `headway.study.planted` has the grammar, the training, the criteria and the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import headway as hw
from headway.study.planted import ARTICLE, Pretrained, Sentence, masked, pretrained, tokenizer
from headway.study.planted import measure as measured
from lesson import INK, Text, matrix, page, planted_data, run, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = 3
SENTENCES_EACH = 200  # of each relation, on which heads are measured; --sentences N for fewer
CHINESE_NAMES = dict(
    zip(
        (one.name for one in ARTICLE.relations),
        ("语法：动作", "语义：地点", "语义：猎物", "位置：相邻", "指代：代词"),
        strict=True,
    )
)
GLOSSES = {
    "小明": "Xiao Ming", "吃": "eats", "苹果": "apple", "医生": "doctor", "在": "at", "医院": "hospital",
    "工作": "works", "小猫": "kitten", "找": "looks for", "老鼠": "mouse", "这": "this", "是": "is", "一": "one",
    "本": "(of books)", "书": "book", "很": "very", "可爱": "lovely", "它": "it", "睡觉": "asleep",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What the heads of three models find, by relation; a head is "layer.head", a list has an entry for each seed."""

    accuracy: dict[str, list[float]]  # of the masked word, with nouns that were held out from their templates
    accuracy_elsewhere: dict[str, list[float]]  # in a template that was never trained on
    chance: dict[str, float]
    offset: dict[str, float]  # share of the links at the best fixed distance
    head: dict[str, list[str]]  # that finds most links, chosen on other sentences
    found: dict[str, list[float]]  # its share of the links
    shares: dict[str, list[list[float]]]  # of every head; seeds × heads
    without: dict[str, list[float]]  # accuracy with zeros in place of the head
    examples: list[dict[str, Any]]  # words from [CLS] on, places of the decided word and its noun, its weights, the
    #                                 model's word; first seed
    heads: list[str]
    seeds: list[int]


def measure() -> Found:
    models = [pretrained(ARTICLE, number) for number in range(MODELS)]
    rows = [measured(small.model, ARTICLE, sentences=SENTENCES_EACH) for small in models]

    def read(key: str, **wanted: object) -> dict[str, list[Any]]:
        """One number of each seed, by relation."""
        return {
            one.name: [
                row[key] for its in rows for row in its if row.items() >= {**wanted, "relation": one.name}.items()
            ]
            for one in ARTICLE.relations
        }

    words: dict[str, object] = {"split": "words"}
    best: dict[str, object] = {"kind": "attention", "chosen": True, **words}
    layers, heads = (read(key, **best) for key in ("layer", "head"))
    chosen = {name: [f"{a}.{b}" for a, b in zip(layers[name], heads[name], strict=True)] for name in layers}
    every = read("found", kind="attention", **words)
    count = len(every[ARTICLE.relations[0].name]) // MODELS
    attention = [row for row in rows[0] if row["kind"] == "attention" and row["relation"] == ARTICLE.relations[0].name]
    return Found(
        accuracy=read("accuracy", kind="accuracy", **words),
        accuracy_elsewhere=read("accuracy", kind="accuracy", split="templates"),
        chance={name: of[0] for name, of in read("chance", kind="accuracy", **words).items()},
        offset={name: of[0] for name, of in read("baseline", **best).items()},
        head=chosen,
        found=read("found", **best),
        shares={name: [of[i : i + count] for i in range(0, len(of), count)] for name, of in every.items()},
        without=read("after", kind="ablation", replacement="zero", chosen=True, **words),
        examples=[look(models[0], sentence) for sentence in ARTICLE.examples],
        heads=list(dict.fromkeys(f"{row['layer']}.{row['head']}" for row in attention)),
        seeds=[small.seed for small in models],
    )


def look(small: Pretrained, sentence: Sentence) -> dict[str, Any]:
    """Masks the decided word; returns its weights in the head of the relation, and the word that the model says."""
    (link,) = sentence.links
    (text,) = masked(ARTICLE, [sentence])
    layer, head = small.head(link.relation)
    with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
        logits = small.model(torch.tensor([text.ids]))
    at = link.word + 1  # [CLS] comes first
    return {
        "relation": link.relation,
        "words": ["[CLS]", *sentence.words],
        "decided": at,
        "noun": link.noun + 1,
        "head": f"{layer}.{head}",
        "weights": seen.weights(layer, head)[0, at].tolist(),
        "said": tokenizer(ARTICLE).id_to_token(int(logits[0, at].argmax())),
    }


def page_data() -> dict[str, Any]:
    """The three models, and the article's sentences with the word that is decided and the one that decides it."""
    models, words = [pretrained(ARTICLE, number) for number in range(MODELS)], tokenizer(ARTICLE).get_vocab()
    rows = []
    for sentence in ARTICLE.examples:
        (link,) = sentence.links
        rows.append(
            {
                "relation": [link.relation, CHINESE_NAMES[link.relation]],
                "words": sentence.words,
                "glosses": [GLOSSES.get(word, "") for word in sentence.words],
                "decided": link.word + 1,  # [CLS] comes first
                "noun": link.noun + 1,
                "heads": [".".join(map(str, small.head(link.relation))) for small in models],
            }
        )
    return {
        "title": ["Lesson 15: four relations and the heads", "第 15 课：四种关系和各个头"],
        "models": [planted_data(small, words) | {"seed": small.seed} for small in models],
        "sentences": rows,
    }


def name_of(relation: str, t: Text) -> str:
    return t(relation, CHINESE_NAMES[relation])


def each(values: list[float]) -> str:
    return " / ".join(f"{value:.0%}" for value in values)


def tell(found: Found, t: Text) -> str:
    rows = [
        [name_of(name, t), " / ".join(found.head[name]), each(found.found[name]), f"{found.offset[name]:.0%}",
         each(found.accuracy[name]), each(found.without[name]), each(found.accuracy_elsewhere[name])]
        for name in found.head
    ]  # fmt: skip
    titles = [
        t("relation", "关系"),
        t("head", "头"),
        t("finds its word", "找到"),
        t("best offset", "最佳固定距离"),
        t("accuracy", "正确率"),
        t("without head", "去掉该头"),
        t("other template", "新句式"),
    ]
    seeds = " / ".join(map(str, found.seeds))
    lines = [
        t(f"Seeds {seeds}, {SENTENCES_EACH} sentences each:", f"种子 {seeds}，每种关系 {SENTENCES_EACH} 句："),
        table(rows, titles),
        "",
    ]
    for one in found.examples:
        words = "".join("[MASK]" if i == one["decided"] else word for i, word in enumerate(one["words"]) if i)
        noun, weight = one["words"][one["noun"]], one["weights"][one["noun"]]
        lines.append(
            t(
                f"  {words} head {one['head']} gives {noun} {weight:.0%}; the model says {one['said']}.",
                f"  {words} 头 {one['head']} 给 {noun} {weight:.0%}；模型的答案：{one['said']}。",
            )
        )
    return "\n".join(lines)


def draw(found: Found, t: Text) -> dict[str, Figure]:
    sentences = page(4.3)
    draw_sentences(sentences.subplots(), found, t)
    return {"": sentences, "seeds": draw_seeds(found, t)}


def draw_seeds(found: Found, t: Text) -> Figure:
    """A grid for each seed: the share of links that each head finds, by relation."""
    figure = page(3.3)
    panels = figure.subplots(1, MODELS, sharey=True)
    for number, axes in enumerate(panels):
        matrix(
            axes,
            [[100 * share for share in of[number]] for of in found.shares.values()],
            [name_of(name, t) for name in found.shares],
            found.heads,
            top=100,
            says=lambda i, j, number=number: f"{100 * list(found.shares.values())[i][number][j]:.0f}",
            bar=t("links found (%)", "找到的比例（%）") if number == MODELS - 1 else "",
            bar_of=panels,
        )
        seed = found.seeds[number]
        axes.set(title=t(f"seed {seed}", f"种子 {seed}"), xlabel=t("layer.head", "层.头"))
    panels[0].set_ylabel(t("relation", "关系"))
    return figure


def draw_sentences(axes: Axes, found: Found, t: Text) -> None:
    """A row for each sentence, its words in cells that are as dark as their weight from the masked word."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    from headway._common.pictures import AMOUNT

    shades = colormaps[AMOUNT]
    for row, one in enumerate(found.examples):
        for column, (word, weight) in enumerate(zip(one["words"], one["weights"], strict=True)):
            decided = column == one["decided"]
            edge = {"edgecolor": INK, "linewidth": 1.8} if decided else {"edgecolor": "white", "linewidth": 2}
            axes.add_patch(Rectangle((column, row), 0.94, 0.8, facecolor=shades(weight), **edge))
            colour = "white" if weight > 0.55 else INK
            axes.text(column + 0.47, row + 0.28, word, ha="center", va="center", fontsize=11, color=colour)
            gloss = t(GLOSSES.get(word, ""), "")
            under = f"{gloss}\n{weight:.0%}" if gloss else f"{weight:.0%}"
            axes.text(column + 0.47, row + 0.57, under, ha="center", va="center", fontsize=7.5, color=colour)
        said = f"{name_of(one['relation'], t)}\n" + t(f"head {one['head']}", f"头 {one['head']}")
        axes.text(-0.15, row + 0.4, said, ha="right", va="center", fontsize=9)
    axes.set(xlim=(-1.6, 9), ylim=(len(found.examples), -0.1))
    axes.set_axis_off()
    axes.set_title(
        t(
            f"Weights of the masked word (framed), in the head of its relation; seed {found.seeds[0]}",
            f"被遮住的词（带框）在该关系的头中给各词的权重；种子 {found.seeds[0]}",
        )
    )


if __name__ == "__main__":
    run(__name__)
