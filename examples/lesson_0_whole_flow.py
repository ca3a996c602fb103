"""Lesson 0: the whole flow, from a text to the probabilities of its next token, with every number shown.

    text            Ming ate apples
    tokens          [start] Ming ate apples: a number each, the row of a table
    vectors         the rows of that table, which training found
    + positions     a vector for each place: where the token stands
    block           attention: each token takes from those before it; feed-forward: each is changed for itself
    output          the product with the vector of each token of the vocabulary, and a softmax: what comes next

Real models have the same parts and more of everything: vectors of hundreds or thousands of dimensions, dozens of
blocks, dozens of heads. This one has four dimensions, one block and one head, so that all of its numbers can be shown.
It is trained on three sentences. They have the same verb, so that what follows the verb depends on the word before it:
only attention brings that to the verb. What a training finds depends on the processor, so the model is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

import headway as hw
from headway._common.pictures import FAINT
from lesson import Text, count, descend, handed, measured, model_data, run, table
from schematic import Place, arrow, box, numbers, sheet, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = [
    ("[start]", "[开始]"),
    ("Ming", "小明"),
    ("cats", "小猫"),
    ("rabbits", "小兔"),
    ("ate", "吃"),
    ("apples", "苹果"),
    ("mice", "老鼠"),
    ("grass", "青草"),
    (".", "。"),
]
START, STOP, VERB = 0, 8, 4
SENTENCES = [[START, who, VERB, what, STOP] for who, what in ((1, 5), (2, 6), (3, 7))]
WIDTH, STEPS, RATE = 4, 500, 0.01
SEEDS, READS = 20, 0.8  # of a training; the least weight of the subject, and probability of the object, after the verb


@dataclass(frozen=True)
class Found:
    """What stands in the running model at each stage for the first sentence; rows are tokens."""

    ids: list[int]
    table: list[list[float]]  # the vector of each token of the vocabulary
    vectors: list[list[float]]
    positions: list[list[float]]
    entering: list[list[float]]  # their sum, which the first block reads
    queries: list[list[float]]
    keys: list[list[float]]
    values: list[list[float]]
    weights: list[list[float]]  # of attention
    attention: list[list[float]]  # what attention adds
    after_attention: list[list[float]]
    feed_forward: list[list[float]]  # what the feed-forward layer adds
    after_block: list[list[float]]
    normed: list[list[float]]
    probabilities: list[list[float]]  # of the next token, over the vocabulary
    follows: list[list[float]]  # by sentence: the probability of each token that does come next
    parameters: int
    loss: float  # at the end of training; that of guessing the first word is a quarter of ln 3
    seed: int  # of the training


def untrained() -> hw.models.Decoder:
    config = hw.models.TransformerConfig(len(WORDS), WIDTH, num_layers=1, num_heads=1, embedding_scale=1.0)
    return hw.models.Decoder(config, hw.encoding("sinusoidal", embed_dim=WIDTH))


def train() -> Iterator[dict[str, Any]]:
    """Trains with one seed after another until the verb reads its subject; yields the seed and each tensor."""
    sentences = torch.tensor(SENTENCES)
    ids, wanted = sentences[:, :-1], sentences[:, 1:]
    verb = SENTENCES[0].index(VERB)
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = untrained()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        for _ in range(STEPS):
            descend(optimizer, F.cross_entropy(model(ids).flatten(0, 1), wanted.flatten()))
        with torch.no_grad(), hw.capture(model, keep="weights") as seen:
            right = model(ids).softmax(-1)[range(len(SENTENCES)), verb, wanted[:, verb]]
        if min(right.min(), seen.weights(0, head=0)[:, verb, verb - 1].min()) > READS:
            yield {"seed": seed}
            for name, tensor in model.state_dict().items():
                yield {"tensor": name, "values": [round(value, 4) for value in tensor.flatten().tolist()]}
            return
    raise SystemExit(f"with none of {SEEDS} seeds the verb reads its subject")


def trained() -> hw.models.Decoder:
    """Returns the model that was stored."""
    model = untrained()
    stored = {row["tensor"]: torch.tensor(row["values"]) for row in measured(__file__)[1:]}
    model.load_state_dict({name: stored[name].view_as(tensor) for name, tensor in model.state_dict().items()})
    return model


def measure() -> Found:
    sentences = torch.tensor(SENTENCES)
    ids, wanted = sentences[:, :-1], sentences[:, 1:]
    model = trained()
    (block,) = model.stack.layers
    stages = [model.stack, block, block.attention.q_proj, block.feed_forward_norm, model.stack.norm, model.head]
    with torch.no_grad(), hw.capture(model, keep="weights") as seen:
        inputs = handed(stages, lambda: model(ids))
        logits = model(ids)
    probabilities = logits.softmax(-1)
    vectors, entering, asked, after_attention, after_block, normed = (words[0][0] for words, _ in inputs)
    projections = (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
    queries, keys, values = (projection(asked).tolist() for projection in projections)
    return Found(
        ids=ids[0].tolist(),
        table=model.embedding.weight.tolist(),
        vectors=vectors.tolist(),
        positions=model.stack.encodings[0].embed(torch.zeros_like(vectors)[None])[0].tolist(),
        entering=entering.tolist(),
        queries=queries,
        keys=keys,
        values=values,
        weights=seen.of_call(0).weights(0, head=0)[0].tolist(),
        attention=(after_attention - entering).tolist(),
        after_attention=after_attention.tolist(),
        feed_forward=(after_block - after_attention).tolist(),
        after_block=after_block.tolist(),
        normed=normed.tolist(),
        probabilities=probabilities[0].tolist(),
        follows=probabilities.gather(-1, wanted[..., None])[..., 0].tolist(),
        parameters=count(model),
        loss=F.cross_entropy(logits.flatten(0, 1), wanted.flatten()).item(),
        seed=measured(__file__)[0]["seed"],
    )


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 0: the whole flow", "第 0 课：整体流程"],
        "words": WORDS,
        "sentence": SENTENCES[0][:-1],
        "model": model_data(trained()),
    }


def words(t: Text) -> list[str]:
    return [t(*word) for word in WORDS]


def text(t: Text) -> str:
    """The first sentence as it is written, up to the last token that the model reads."""
    return t(" ", "").join(words(t)[number] for number in SENTENCES[0][1:-1])


def tell(found: Found, t: Text) -> str:
    known = words(t)
    read = [known[number] for number in found.ids]

    def rows(matrix: list[list[float]], digits: int = 2) -> str:
        made = zip(read, matrix, strict=True)
        return table([[token, *(f"{x:.{digits}f}" for x in row)] for token, row in made])

    follows = [
        [t(" ", "").join(known[i] for i in sentence[1:]), *(f"{x:.2f}" for x in right)]
        for sentence, right in zip(SENTENCES, found.follows, strict=True)
    ]
    who, verb, what = (known[i] for i in SENTENCES[0][1:4])
    return "\n".join(
        [
            t(f"text: {text(t)}", f"文本：{text(t)}"),
            t("tokens: ", "词元：") + "  ".join(f"{known[i]} = {i}" for i in found.ids),
            t("vectors:", "向量："),
            rows(found.vectors),
            t("positions:", "位置："),
            rows(found.positions),
            t("their sum:", "两者之和："),
            rows(found.entering),
            t("queries Q:", "查询 Q："),
            rows(found.queries),
            t("keys K:", "键 K："),
            rows(found.keys),
            t("values V:", "值 V："),
            rows(found.values),
            t("attention weights, from a row to a column:", "注意力权重（行看列）："),
            rows(found.weights),
            t("what attention adds:", "注意力加上的："),
            rows(found.attention),
            t("after attention:", "注意力之后："),
            rows(found.after_attention),
            t("what the feed-forward layer adds:", "前馈层加上的："),
            rows(found.feed_forward),
            t("after the feed-forward layer:", "前馈层之后："),
            rows(found.after_block),
            t("probabilities of the next token:", "下一个词元的概率："),
            table(
                [[token, *(f"{x:.2f}" for x in row)] for token, row in zip(read, found.probabilities, strict=True)],
                ["", *known],
            ),
            t(
                f"“{verb}” gives {found.weights[2][1]:.2f} of its weight to “{who}”, and “{what}” is next with a "
                f"probability of {found.probabilities[2][5]:.2f}.",
                f"“{verb}”把 {found.weights[2][1]:.2f} 的权重给了“{who}”，下一个词元是“{what}”的概率为 "
                f"{found.probabilities[2][5]:.2f}。",
            ),
            t(
                f"The model has {found.parameters} numbers; its loss after {STEPS} steps (seed {found.seed}) is "
                f"{found.loss:.3f}.\nThe probability of each right token, by sentence:",
                f"模型共有 {found.parameters} 个数，训练 {STEPS} 步（种子 {found.seed}）后损失为 {found.loss:.3f}。\n"
                "各句里每个正确词元的概率：",
            ),
            table(follows),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure, axes = sheet(10.3)
    known = words(t)
    read = [known[number] for number in found.ids]
    first, second, third = 1.05, 3.75, 6.45  # where the three matrices of a row begin
    cell = (0.5, 0.25)

    write(axes, 0.25, 0.2, t("1. text", "1. 文本"), align="left")
    said = box(axes, Place(0.25, 0.36, 1.9, 0.48), text(t), size=10)
    write(axes, third - 2.7, 0.2, t("2. tokens, with their numbers", "2. 词元及其编号"), align="left")
    tokens = [
        box(axes, Place(second + 1.15 * i, 0.36, 1.0, 0.48), f"{token}\n{number}")
        for i, (token, number) in enumerate(zip(read, found.ids, strict=True))
    ]
    arrow(axes, said.right, tokens[0].left)

    stages = (found.vectors, found.entering, found.values, found.after_attention, found.after_block)
    top = max(abs(x) for stage in stages for row in stage for x in row)

    def shown(x: float, y: float, rows: Sequence[Sequence[float | None]], title: str, **look: object) -> Place:
        return numbers(axes, x, y, rows, title=title, cell=cell, form=".2f", top=top, **look)

    def signs(y: float, middle: str, last: str) -> None:
        write(axes, (first + second) / 2 + 1.0, y, middle, size=15)
        write(axes, (second + third) / 2 + 1.0, y, last, size=15)

    vectors = shown(first, 1.55, found.vectors, t("3. vectors", "3. 向量"), down=read)
    places = shown(second, 1.55, found.positions, t("4. positions", "4. 位置"), down=["0", "1", "2", "3"])
    entering = shown(third, 1.55, found.entering, t("x: their sum", "x：两者之和"))
    arrow(axes, (tokens[0].x + 0.5, tokens[0].bottom[1]), (vectors.x + 1.75, vectors.y), bend=-0.08)
    signs(places.right[1], "+", "=")

    frame = box(axes, Place(0.15, 2.95, 8.9, 5.1), "", colour=FAINT, fill="#f6f7f9")
    write(axes, 0.25, 3.1, t("5. a block", "5. 一层（块）"), align="left")
    arrow(axes, entering.bottom, (entering.bottom[0], frame.y))
    shown(first, 3.65, found.queries, t("queries Q, of x normed", "查询 Q（由归一化的 x 算出）"), down=read)
    shown(second, 3.65, found.keys, t("keys K", "键 K"))
    values = shown(third, 3.65, found.values, t("values V", "值 V"))
    hidden = [[x if j <= i else None for j, x in enumerate(row)] for i, row in enumerate(found.weights)]
    weights = shown(first, 5.4, hidden, t("weights softmax(QKᵀ/√4)", "权重 softmax(QKᵀ/√4)"), down=read, across=read)
    added = shown(second, 5.4, found.attention, t("a = weights · V · W_O", "a = 权重 · V · W_O"))
    attended = shown(third, 5.4, found.after_attention, "x + a")
    arrow(axes, weights.right, added.left)
    arrow(axes, (values.x, values.bottom[1]), (added.x + added.width, added.y))
    arrow(axes, added.right, attended.left)
    changes = shown(second, 6.85, found.feed_forward, t("f, of the feed-forward layer", "f：前馈层算出的"), down=read)
    changed = shown(third, 6.85, found.after_block, "x + a + f")
    arrow(axes, (attended.x, attended.bottom[1]), (changes.x + changes.width, changes.y))
    arrow(axes, changes.right, changed.left)
    note = t("one colour scale for all: red above 0, blue below", "全图共用一个色标：红为正，蓝为负")
    write(axes, 0.3, 7.85, note, align="left", size=8)

    out = numbers(
        axes,
        1.05,
        8.95,
        found.probabilities,
        title=t("6. output: the probability of each token to be next", "6. 输出：每个词元是下一个的概率"),
        down=read,
        across=known,
        cell=(0.66, 0.25),
        form=".2f",
        top=top,
    )
    arrow(axes, (6.7, frame.bottom[1]), (6.7, 8.7))
    last = t("norm, product with each token's vector, softmax", "归一化，与每个词元的向量作点积，softmax")
    write(axes, 6.55, 8.28, last, align="right")
    write(axes, 7.35, 8.59, t("in the text", "文本中的下一个"), align="left")
    for i, number in enumerate(SENTENCES[0][1:]):
        write(axes, 7.35, out.y + (i + 0.5) * 0.25, known[number], align="left")
    return figure


if __name__ == "__main__":
    run(__name__)
