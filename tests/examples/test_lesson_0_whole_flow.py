"""What lesson 0 finds: each stage of a tiny model, in order, computed again from the one before."""

import math

import pytest
import torch

from lesson import SPEAK, paper
from lesson_0_whole_flow import Found, draw, trained
from looks import faults

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_0_whole_flow")
    stages = ("table", "vectors", "positions", "entering", "weights", "after_attention", "after_block", "normed")
    table, vectors, positions, entering, weights, attended, out, normed = (torch.tensor(found[name]) for name in stages)

    assert found["ids"] == [0, 1, 4, 5]
    assert torch.equal(vectors, table[found["ids"]])
    by_hand = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(4)]
    torch.testing.assert_close(positions, torch.tensor(by_hand))
    torch.testing.assert_close(entering, vectors + positions)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))
    assert torch.equal(weights, weights.tril())
    queries, keys, values, added, changed = (
        torch.tensor(found[name]) for name in ("queries", "keys", "values", "attention", "feed_forward")
    )
    later = torch.ones(4, 4).triu(1).bool()
    scores = (queries @ keys.T / 2).masked_fill(later, -torch.inf)
    torch.testing.assert_close(weights, scores.softmax(-1))
    with torch.no_grad():
        torch.testing.assert_close(trained().stack.layers[0].attention.out_proj(weights @ values), added)
    torch.testing.assert_close(entering + added, attended)
    torch.testing.assert_close(attended + changed, out)
    probabilities = torch.tensor(found["probabilities"])
    torch.testing.assert_close(probabilities, (normed @ table.T).softmax(-1))

    # what the page says of them
    assert probabilities[0, 1:4].tolist() == pytest.approx([1 / 3] * 3, abs=0.1)  # nothing tells which sentence it is
    assert probabilities.argmax(-1)[1:].tolist() == [4, 5, 8]
    assert weights[2].argmax() == 1  # the verb reads the subject
    assert min(right for row in found["follows"] for right in row[1:]) > 0.8  # a guess among the sentences gives 1/3
    assert found["parameters"] == 9 * 4 + 4 * (4 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4) + 3 * 2 * 4
    assert math.log(3) / 4 < found["loss"] < 0.45

    for t in SPEAK.values():
        with paper():
            figure = draw(Found(**found), t)
            assert faults(figure) == []
        shown = {text.get_text() for text in figure.axes[0].texts}
        matrices = [vectors, positions, entering, queries, keys, values, added, attended, changed, out]
        for number in torch.cat([*matrices, *probabilities.split(1, 1)], 1).flatten():
            assert f"{number:.2f}".replace("-", "−").replace("−0.00", "0.00") in shown
