"""What lesson 11 finds: the written-out training is the loss's gradient, and learns what gensim learns."""

import random
from statistics import mean

import pytest
import torch
import torch.nn.functional as F

from lesson_11_learning_words import KINDS, NEGATIVE, NOBODY, WINDOW, Numbers, around, kept, learn, n_grams, noise, step

from .conftest import Learn

TEXTS = ["one two three two", "four two one one"]


def test_a_step_follows_the_gradient_of_the_loss() -> None:
    """Of the outputs exactly; of the rows times the number of inputs, since the mean's change is added in full."""
    torch.manual_seed(0)
    rows, outputs = torch.randn(9, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    rows[NOBODY] = 0
    inputs = torch.tensor([[1, 2, 7], [3, 3, 0], [8, 0, 0]])
    targets = torch.tensor([[2, 0], [4, 5], [1, 0]])
    drawn = torch.randint(1, 6, (3, 2, NEGATIVE))
    drawn[0, 0, :2] = 2  # the target itself, which is left out

    v, u = rows.clone().requires_grad_(), outputs.clone().requires_grad_()
    total, scaled, pairs = torch.zeros(()), torch.zeros(()), 0
    for example, words in enumerate(inputs.tolist()):
        those = [word for word in words if word != NOBODY]
        for place, target in enumerate(targets[example].tolist()):
            if target == NOBODY:
                continue
            h = v[those].mean(0)
            loss = -F.logsigmoid(u[target] @ h)
            for other in drawn[example, place].tolist():
                if other != target:
                    loss = loss - F.logsigmoid(-u[other] @ h)
            total, scaled, pairs = total + loss, scaled + loss * len(those), pairs + 1
    (of_rows,) = torch.autograd.grad(scaled, v, retain_graph=True)
    (of_outputs,) = torch.autograd.grad(total, u)

    changed, changed_outputs = rows.clone(), outputs.clone()
    returned = step(changed, changed_outputs, inputs, targets, drawn, 0.1)
    assert returned == pytest.approx(total.item() / pairs, rel=1e-12)
    torch.testing.assert_close(changed, rows - 0.1 * of_rows)
    torch.testing.assert_close(changed_outputs, outputs - 0.1 * of_outputs)


def test_n_grams_have_the_ends_marked() -> None:
    assert n_grams("list") == ["<li", "lis", "ist", "st>", "<lis", "list", "ist>", "<list", "list>", "<list>"]
    assert n_grams("a") == ["<a>"]


def test_neighbours_stay_in_the_window_and_in_the_document() -> None:
    reach = [1, 2, 5, 1, 2, 5, 1]
    ids = torch.tensor([11, 12, 13, 14, 15, 16, 17])
    document = [0, 0, 0, 0, 1, 1, 1]
    near = around(ids, torch.tensor(document), torch.tensor(reach))
    assert near.shape == (7, 2 * WINDOW)
    for word, row in enumerate(near.tolist()):
        expected = [
            11 + other
            for other in range(7)
            if 0 < abs(other - word) <= reach[word] and document[other] == document[word]
        ]
        assert [one for one in row if one != NOBODY] == expected


def test_words_that_are_too_rare_are_no_neighbours() -> None:
    text = Numbers.of(TEXTS, min_count=2)
    assert sorted(text.words) == ["one", "two"]
    assert [text.words[number - 1] for number in text.ids.tolist()] == ["one", "two", "two", "two", "one", "one"]
    assert text.document.tolist() == [0, 0, 0, 1, 1, 1]
    assert text.counts.tolist() == [0, 3, 3]


def test_words_are_left_out_and_drawn_by_their_counts() -> None:
    counts = torch.tensor([0, 1, 16, 10_000])
    share = 10_000 / 10_017
    assert kept(counts)[1].item() == 1
    assert kept(counts)[3].item() == pytest.approx((1e-3 / share) ** 0.5 + 1e-3 / share)
    drawn = noise(counts).bincount(minlength=4)
    assert drawn[NOBODY] == 0
    assert (drawn[2] / drawn[1]).item() == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_the_same_documents_become_alike(kind: str) -> None:
    subjects = ["cat dog cow pig hen bee ant", "iron gold lead zinc tin neon argon"]
    chance = random.Random(0)
    made = [" ".join(chance.choices(subjects[n % 2].split(), k=10)) for n in range(1000)]
    vectors = learn(Numbers.of(made), kind, seed=0).vectors
    for subject in subjects:
        for word in subject.split():
            assert {near for near, _ in vectors.most_similar(word, 6)} == {*subject.split()} - {word}, word


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_11_learning_words")
    for kind in KINDS:
        losses = found["loss"][kind]
        assert losses == sorted(losses, reverse=True)
        assert losses[0] < 6 * 0.6932  # of an untrained model: six times ln 2
        assert losses[-1] < 2.6
        assert min(found["own_kind"][kind]["ours"]) > 3 * found["chance"]
        its = {pair: mean(values) for pair, values in found["overlap"][kind].items()}
        assert 0.45 < its["ours, gensim"] < its["gensim, gensim"]  # near, and not as near as two seeds
        assert its["ours, ours"] == pytest.approx(its["gensim, gensim"], abs=0.04)
    assert found["overlap_chance"] < 0.01
    assert found["unseen"][0] == "tuple"
    assert "tuples" in found["nearest"]["sub-words"]["ours"]
