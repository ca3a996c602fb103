"""What lesson 2 finds: five steps that can be checked by hand, and where a number is not a mask."""

import math
import re
from typing import Any

import pytest
import torch

import headway as hw
from lesson import DOCS
from lesson_2_five_steps import INPUTS, W_K, W_Q, W_V

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_2_five_steps")

    # by hand: products, their half, the weights of 它 over e⁴, √e, e, e⁻², and what it then takes
    assert found["products"][3] == [8, 1, 2, -4, 0]
    assert found["scaled"][3] == [4, 0.5, 1, -2, 0]
    assert found["masked"][3] == [4, 0.5, 1, -2, None]
    parts = [math.exp(x) for x in (4, 0.5, 1, -2)]
    it = [part / sum(parts) for part in parts]
    assert found["weights"][3] == pytest.approx([*it, 0], rel=1e-5)
    assert found["output"][3] == pytest.approx([2 * it[0] + it[3], it[1] + 2 * it[2], 0], rel=1e-5)
    q, k, v = (torch.tensor(found[name])[None] for name in ("queries", "keys", "values"))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    torch.testing.assert_close(torch.tensor(found["output"]), theirs)
    assert found["formula_difference"] < 1e-6

    inputs, given = torch.tensor(INPUTS), {"queries": W_Q, "keys": W_K, "values": W_V}  # of the schematic
    assert {name: found[name] for name in given} == {
        name: (inputs @ torch.tensor(w)).tolist() for name, w in given.items()
    }

    # a number for −∞: the same in ordinary rows, and not where nothing is left, nor beyond its own size
    assert found["ordinary_difference"] == 0
    assert found["empty_rows"] == 2
    assert found["empty_weights"]["-inf"] is None
    assert found["empty_weights"]["-1e9"] == pytest.approx([0.2] * 5)
    scores = torch.tensor(found["scaled"][0])
    assert found["empty_weights"]["-1e4 added"] == pytest.approx(scores.softmax(0).tolist(), abs=1e-3)  # as if unmasked
    assert found["empty_weights"]["headway"] == [0] * 5
    assert found["nan_gradients"] == {"-inf": 15, "-1e9": 0, "-1e4 added": 0, "headway": 0}
    assert found["leaks"] == {"-1e4": 2e4, "-1e9": 2e9, "headway": None}
    assert found["half"]["number"] == "-inf"
    assert found["half"]["empty"] == "nan"

    # the future
    assert max(found["change_causal"][:5]) == 0
    assert min(found["change_causal"][5:]) > 0.1
    assert min(found["change_open"]) > 0.1
    assert max(found["cache_difference"], found["cache_open_difference"]) < 1e-5

    # softmax
    assert max(error for size, error in found["sum_error"].items() if size != "1, bfloat16") < 1e-5
    assert 1e-5 < found["sum_error"]["1, bfloat16"] < 0.02
    assert found["overflow"] == math.floor(math.log(torch.finfo(torch.float32).max)) + 1
    wide, near, far = found["amplified"]
    for example, difference in ((wide, 1), (near, 0.1), (far, 1)):  # the ratio of weights follows from the difference
        low, _, high = example["weights"]
        assert high / low == pytest.approx(math.exp(2 * difference), rel=1e-3)
    assert wide["weights"][2] > wide["shares"][2]
    assert near["weights"][2] < near["shares"][2]

    # output
    assert found["beyond_values"] < 1e-5
    parameters = 4 * (64 * 64 + 64)
    assert [found["lengths"][n][:2] for n in ("1", "7", "1000")] == [[parameters, 4 * n * n] for n in (1, 7, 1000)]
    assert found["lengths"]["1"][2] == 1
    assert found["lengths"]["7"][2] > 1 / 7
    assert found["lengths"]["1000"][2] < 0.1


@pytest.mark.parametrize(
    ("page", "language", "sentence", "word", "nouns"),
    [
        ("", "english", "the cat ate the apple because it seemed {} .", "it", {"hungry": "cat", "sweet": "apple"}),
        ("zh-CN", "chinese", "小猫吃苹果因为它很{}。", "它", {"饿": "小猫", "甜": "苹果"}),
        ("zh-CN", "chinese", "医生跟老师一起在{}工作。", "医院", {"医院": "医生"}),
    ],
)
def test_a_sentence_of_ones_own(page: str, language: str, sentence: str, word: str, nouns: dict[str, str]) -> None:
    """The function of the page on its sentences: a head of layer 1 finds the noun that the last word decides."""
    text = (DOCS / page / "lessons.md").read_text(encoding="utf-8")
    command = "headway --language zh inspect" if page else "headway inspect"
    assert f'{command} "{sentence.format(next(iter(nouns)))}"' in text
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def attention_on" in code]
    held: dict[str, Any] = {"torch": torch, "hw": hw}
    exec(block, held)
    for last, noun in nouns.items():
        seen, tokens = held["attention_on"](sentence.format(last), language)
        weights = seen.weights(1)[0, :, tokens.index(word)]
        assert weights[:, tokens.index(noun)].max() > 0.8
