"""What lesson 4 finds: without positions order does not show, and which encodings show it."""

from pathlib import Path

import pytest
import torch

from headway.positions import ENCODINGS
from lesson_4_order import WHY_BLIND

from .conftest import Learn

ROUNDING = 1e-12
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_4_order")
    for language in ("en", "zh"):
        without, sinusoidal = found["word_differences"][language]
        assert without < ROUNDING
        assert sinusoidal > 0.1
        without, sinusoidal = found["mean_differences"][language]
        assert without < ROUNDING
        assert sinusoidal > 0.01
    assert found["twice"][0] < ROUNDING
    assert found["twice"][1] > 0.1
    for language, n in (("en", 6), ("zh", 3)):
        assert torch.tensor(found["between_words"][language]).shape == (2, n, n)

    for equivariant, invariant, one_word in found["shuffled"].values():
        assert equivariant < ROUNDING
        assert invariant > 0.1
        assert one_word < ROUNDING
    assert found["older"] == {"additive": 50, "global": 50, "local": 20}

    # those that have no order of their own, by what they are
    moving = {name for name, kind in ENCODINGS.items() if kind.kind == "coordinates"}
    scaling = {"log-n", "ssmax", "llama4-temperature", "nope-scaling", "sink", "softmax-one"}
    assert set(found["full_stop"]) == set(ENCODINGS)
    assert set(found["blind"]) == {"none", "repo-rope"} | moving | scaling
    assert sorted(name for names in WHY_BLIND.values() for name in names) == sorted(found["blind"])
    assert found["know_own_place"] == ["llama4-temperature"]  # a query's temperature grows with its position
    assert {name for name, change in found["with_rope"].items() if change < ROUNDING} == {"repo"}
    assert max(found["under_layer_norm"].values()) < ROUNDING

    assert found["causal"]["1"] < ROUNDING
    assert found["causal"]["2"] > 0.01
    # one answer for both orders of a pair: at most one of two is right
    assert found["accuracy"]["none"] <= 0.5
    assert found["accuracy"]["causal, 1 layer"] <= 0.5
    assert found["accuracy"]["sinusoidal"] > 0.9
    assert found["accuracy"]["causal, 2 layers"] > 0.9

    assert found["one_by_one"] < ROUNDING
    assert found["smallest_reach"] > 0.01


def test_the_pages_count_the_encodings() -> None:
    every, blind = len(ENCODINGS), sum(map(len, WHY_BLIND.values()))
    for page, sentences in {
        "docs/lessons.md": (
            f"Each of headway's {every} was",
            f"It does with {every - blind} encodings, and does not with {blind}.",
        ),
        "docs/zh-CN/lessons.md": (f"headway 的 {every} 种编码，各自", f"{every - blind} 种会变，{blind} 种不变"),
    }.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [sentence for sentence in sentences if sentence not in text] == [], page
