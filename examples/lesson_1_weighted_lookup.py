"""Lesson 1: attention is a weighted lookup.

Three people are given by waist (the key) and weight (the value). What is the weight of somebody with a waist of 57?
Attention answers with the mean of all three values, each weighted by how well its key matches the query. The score
defines what matches:

    dot product   score_j = q·k_j            large keys win, whatever the query is
    distance      score_j = −(q − k_j)²/2    near keys win

The second is the first plus a number for each key, since −(q − k)²/2 = q·k − k²/2 − q²/2, and −q²/2, which depends only
on the query, does not change a softmax. So it is ordinary attention with one `TokenBias`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import headway as hw
from lesson import BLUE, FAINT, GREEN, INK, ORANGE, Text, one_head, panels, run, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAISTS, WEIGHTS = [51.0, 56.0, 58.0], [40.0, 43.0, 48.0]
ASKED = 57.0

# The example in two columns: two queries, three keys, three values.
QUERIES = [[57.0, 83.0], [76.0, 55.0]]
KEYS = [[51.0, 70.0], [58.0, 88.0], [56.0, 82.0]]
VALUES = [[40.0, 55.0], [43.0, 59.0], [48.0, 65.0]]


@dataclass(frozen=True)
class Found:
    """Weights and answers of one query; answers along a line of queries; the two-column example."""

    scores: list[float]
    product_weights: list[float]
    product_answer: float
    product_slope: float  # ∂answer/∂query, the gradient that a network learns from
    distance_weights: list[float]
    distance_answer: float
    distance_slope: float
    line: list[float]  # queries
    product_line: list[float]  # and their answers
    distance_line: list[float]
    two_product_weights: list[list[float]]
    two_product_answers: list[list[float]]
    two_product_slope: float  # the largest of all ∂answer/∂query
    two_distance_weights: list[list[float]]
    two_distance_answers: list[list[float]]


def nearness(keys: Tensor) -> hw.terms.TokenBias:
    """Returns the bias −k²/2 of each key, which turns a dot product into −(q − k)²/2."""
    return hw.terms.TokenBias(keys=-keys.square().sum(-1) / 2)


def measure() -> Found:
    keys, values = one_head([[w] for w in WAISTS]), one_head([[w] for w in WEIGHTS])

    def look_up(queries: Tensor, by_distance: bool) -> hw.attention.AttentionSteps:
        terms = (nearness(keys),) if by_distance else ()
        return hw.attention_steps(queries, keys, values, terms=terms, scale=1.0)

    answers, weights, slopes = {}, {}, {}
    for by_distance in (False, True):
        asked = one_head([[ASKED]]).requires_grad_()
        steps = look_up(asked, by_distance)
        (slope,) = torch.autograd.grad(steps.output.sum(), asked)
        answers[by_distance], slopes[by_distance] = steps.output.item(), slope.item()
        weights[by_distance] = steps.weights.flatten().tolist()
    line = torch.linspace(45, 64, 381)
    along = {kind: look_up(line[None, None, :, None], kind).output.flatten().tolist() for kind in (False, True)}

    q, k, v = one_head(QUERIES).requires_grad_(), one_head(KEYS), one_head(VALUES)
    product = hw.attention_steps(q, k, v)  # scaled by 1/√2, as the formula says
    slope = torch.autograd.functional.jacobian(lambda q: hw.attention(q, k, v), q.detach())
    distance = hw.attention_steps(q, k, v, terms=(nearness(k),), scale=1.0)
    return Found(
        scores=[ASKED * waist for waist in WAISTS],
        product_weights=weights[False],
        product_answer=answers[False],
        product_slope=slopes[False],
        distance_weights=weights[True],
        distance_answer=answers[True],
        distance_slope=slopes[True],
        line=line.tolist(),
        product_line=along[False],
        distance_line=along[True],
        two_product_weights=product.weights[0, 0].tolist(),
        two_product_answers=product.output[0, 0].tolist(),
        two_product_slope=slope.abs().max().item(),
        two_distance_weights=distance.weights[0, 0].tolist(),
        two_distance_answers=distance.output[0, 0].tolist(),
    )


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 1: attention is a weighted lookup", "第 1 课：注意力就是加权查表"],
        "waists": WAISTS,
        "weights": WEIGHTS,
        "asked": ASKED,
        "queries": QUERIES,
        "keys": KEYS,
        "values": VALUES,
    }


def tell(found: Found, t: Text) -> str:
    rows = [
        [t("dot product", "点积"), *found.product_weights, found.product_answer, found.product_slope],
        [t("distance", "距离"), *found.distance_weights, found.distance_answer, found.distance_slope],
    ]
    whose = [t(f"weight of {waist:g}", f"{waist:g} 的权重") for waist in WAISTS]
    head = [t("score", "分数"), *whose, t("answer", "答案"), t("slope", "斜率")]
    two = [
        [
            t("dot product", "点积") if kind == "product" else t("distance", "距离"),
            f"({', '.join(f'{x:g}' for x in query)})",
            "  ".join(f"{w:.4f}" for w in weights),
            f"({', '.join(f'{x:.2f}' for x in answer)})",
        ]
        for kind, all_weights, answers in (
            ("product", found.two_product_weights, found.two_product_answers),
            ("distance", found.two_distance_weights, found.two_distance_answers),
        )
        for query, weights, answer in zip(QUERIES, all_weights, answers, strict=True)
    ]
    scores = ", ".join(f"{score:g}" for score in found.scores)
    return "\n".join(
        [
            t(f"What is the weight for a waist of {ASKED:g}?", f"腰围 {ASKED:g} 对应的体重是多少？"),
            table(rows, head),
            t(
                f"The dot products are {scores}. They differ by 114 and more, so the softmax gives all weight to the "
                "largest one,\nwhich belongs to the largest key, not to the nearest; its slope is 0, so nothing can be "
                "learned from it.\nBy distance, 56 and 58 share the weight, as intuition says, and 51 gets a millionth "
                "of a per cent."
                "",
                f"点积分别是 {scores}，相差 114 以上，softmax 把全部权重给了最大的一个：\n"
                "它属于最大的键，而不是最近的键；斜率为 0，梯度下降什么也学不到。\n"
                "改用距离打分，56 和 58 平分权重，与直觉一致，51 的贡献约亿分之一。",
            ),
            "",
            t("Two columns:", "两列的例子："),
            table(two, [t("score", "分数"), t("query", "查询"), t("weights", "权重"), t("answer", "答案")]),
            t(
                "Again the longest key gets the weight of both queries. By distance, the first query gets the key "
                "nearby, and\nthe second, which is far from all three, the nearest of them."
                "",
                "最长的键又拿走了两个查询。按距离，第一个查询取到旁边的键；第二个离三个键都远，取其中最近的一个。",
            ),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure, (left, right) = panels(2, gridspec_kw={"width_ratios": [3, 2]})
    left.axvline(ASKED, color=FAINT, linewidth=1.2, zorder=0)
    left.plot(found.line, found.product_line, color=ORANGE, label=t("dot product q·k", "点积 q·k"))
    left.plot(found.line, found.distance_line, color=BLUE, label=t("distance −(q − k)²/2", "距离 −(q − k)²/2"))
    left.plot(WAISTS, WEIGHTS, "o", color=INK, markersize=7, label=t("the three people", "已知的三个人"))
    left.plot([ASKED], [found.distance_answer], "s", color=GREEN, markersize=7, zorder=5)
    left.annotate(f"{found.distance_answer:.1f}", (ASKED, found.distance_answer), (-30, -4), textcoords="offset points")
    left.set(
        xlabel=t("waist asked for", "查询的腰围"),
        ylabel=t("weight predicted", "预测的体重"),
        title=t("One lookup, two kinds of score", "同一次查表，两种打分"),
        xticks=range(45, 65, 3),
    )
    left.legend(loc="upper left", bbox_to_anchor=(0.0, 0.93))

    places = torch.arange(len(WAISTS), dtype=torch.float32)
    right.bar(places - 0.19, found.product_weights, 0.36, color=ORANGE)
    right.bar(places + 0.19, found.distance_weights, 0.36, color=BLUE)
    right.text(0.19, 0.015, "10⁻⁸", ha="center", color=BLUE)
    right.set_xticks(places, [f"{waist:g}" for waist in WAISTS])
    right.set(
        xlabel=t("key (waist)", "键（腰围）"),
        ylabel=t("weight given", "权重"),
        title=t(f"Weights for the query {ASKED:g}", f"查询 {ASKED:g} 的权重"),
    )
    return figure


if __name__ == "__main__":
    run(__name__)
