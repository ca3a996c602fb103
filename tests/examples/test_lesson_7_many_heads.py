"""What lesson 7 finds: a loop over heads is one attention; one softmax cannot name two places; heads have roles."""

import re
from collections.abc import Callable
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import heads_at_work
import headway as hw
from lesson import data
from lesson_7_many_heads import SENTENCE, one_by_one

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path / "nothing"))
    found = learn("lesson_7_many_heads")
    assert found["trained"] is None
    assert found["d_k"] == 64
    assert found["loop_error"] < 1e-5
    assert found["printed_width"] == 8 * 512
    assert found["inputs_read"] == [512] * 8
    assert found["head_rank"] == [64] * 8

    assert set(found["cost_parameters"]) == {4 * (256 * 256 + 256)}
    for n in ("128", "1024"):
        assert set(found["cost_multiplications"][n]) == {4 * int(n) * 256**2 + 2 * int(n) ** 2 * 256}
        assert found["cost_weights"][n] == [heads * int(n) ** 2 for heads in found["cost_heads"]]
        for times in (found["cost_forward"][n], found["cost_training"][n]):
            assert times[0] == 1

    assert found["bound"] == 0.5 + 1 / 16
    assert max(found["both"]["one head"]) < found["bound"]
    assert min(found["both"]["two heads"]) > 0.97
    assert min(found["both"]["one head and a feed-forward"]) > 0.9
    assert found["parameters"]["two heads"] - found["parameters"]["one head"] == 32  # the second row of distances


def test_the_loop_is_torch_s_attention() -> None:
    x, W = torch.randn(2, 9, 12), [[torch.randn(12, 4) for _ in range(3)] for _ in "qkv"]
    peer = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([torch.cat(one, dim=1) for one in W], dim=1).T)
        peer.out_proj.weight.copy_(torch.eye(12))
        torch.testing.assert_close(one_by_one(x, *W), peer(x, x, x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.5, 0.6, 0.9])
def test_no_linear_map_names_both_tokens_of_a_blend(alpha: float) -> None:
    """A linear program looks for logits W[name, token] that name the nearer, then the farther of any two tokens."""

    def possible(share: float) -> bool:  # of the token to be named in the blend
        rows = []
        for named, other in permutations(range(3), 2):
            for wrong in {0, 1, 2} - {named}:
                row = np.zeros((3, 3))
                row[named, named], row[named, other] = share, 1 - share
                row[wrong, named], row[wrong, other] = -share, share - 1
                rows.append(-row.ravel())
        return linprog(np.zeros(9), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None)).status == 0

    assert possible(alpha) == (alpha > 0.5)
    assert not (possible(alpha) and possible(1 - alpha))


def test_how_many_pairs_one_head_can_have_right() -> None:
    """All sets of right pairs of four tokens under the lesson's argument: at most V²/2 of two different tokens."""
    tokens = range(4)
    most = 0
    pairs = list(permutations(tokens, 2))
    for chosen in product((False, True), repeat=len(pairs)):
        right = {pair for pair, one in zip(pairs, chosen, strict=True) if one}
        mutual = [(b, c) for b, c in combinations(tokens, 2) if {(b, c), (c, b)} <= right]
        if not any({(a, b), (a, c)} <= right for b, c in mutual for a in {*tokens} - {b, c}):
            most = max(most, len(right))
    assert most == 4**2 / 2


def test_weights_are_those_of_transformers(weights: Callable[[str], Path]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = weights("minilm")
    ids = torch.tensor([hw.checkpoints.tokenizer(folder).encode(SENTENCE).ids])
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = torch.stack(theirs(ids, output_attentions=True).attentions, dim=1)
    ours = heads_at_work.every_weight(hw.load(folder).eval(), ids)
    assert ours.shape == (1, 6, 12, 12, 12)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_roles_of_a_published_model(weights: Callable[[str], Path], tmp_path: Path) -> None:
    found = heads_at_work.measure_heads(weights("minilm"), SENTENCE, [], [("that", "cat")], None, None)
    assert found.tokens[1:3] == ["the", "cat"]
    assert found.roles[0][2] == "previous"
    assert found.kinds["previous"][0][2] > 0.99
    assert found.keys[0][2] == pytest.approx(1, abs=0.05)
    assert found.kinds_alike["previous"] == pytest.approx(1 / found.keys_alike, rel=0.2)  # sentences of many lengths
    assert 10 <= found.keys_alike <= 42  # 8 to 30 words in pieces, [CLS] and [SEP]
    assert found.sentences == 400
    assert found.ties["that → cat"]["head"] == "1.3"
    assert found.treebank is None
    assert found.pronouns is None


def test_relations_and_pronouns(weights: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    treebank, pronouns = data("en_pud-ud-test.conllu"), data("gap-test.tsv")
    if not (treebank and pronouns):
        pytest.skip("no annotated text in $HEADWAY_DATA")
    for name, less in {"SENTENCES": 160, "PASSAGES": 120, "FREQUENT": 40}.items():
        monkeypatch.setattr(heads_at_work, name, less)
    found = heads_at_work.measure_heads(weights("minilm"), SENTENCE, ["case"], [("that", "cat")], treebank, pronouns)
    assert found.sentences == 160
    assert sum(found.treebank.lengths.values()) == pytest.approx(1, abs=0.03)
    assert found.treebank.lengths[1] > 3 * found.treebank.neighbours
    for relation, gain in {"obj": 0.15, "case": 0.15, "det": 0.1}.items():
        row = found.treebank.relations[relation]
        assert row["found"] - row["baseline"] > gain
    assert any(len(relations) > 1 for relations in found.treebank.follows.values())
    assert found.pronouns.passages == 60
    assert found.pronouns.found > max(found.pronouns.mean, found.pronouns.nearer)
    assert found.pronouns.mean == pytest.approx(0.5, abs=0.1)


def test_arcs_and_the_offset_beside_them() -> None:
    """Weights made by hand: head 0 looks at the governor, head 1 at the word before, in words of one or two pieces."""
    governors, pieces = [2, 2, -1, 1], [[None, 0, 0, 1, 2, 3, None]]
    by_word = torch.zeros(2, 4, 4)
    for word, governor in enumerate(governors):
        by_word[0, word, governor if governor >= 0 else 0] = 1
        by_word[1, word, max(word - 1, 0)] = 1
    spread = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    weights = torch.zeros(1, 1, 2, 7, 7)
    weights[0, 0, :, 1:6, 1:6] = (spread > 0).float().T @ by_word @ spread
    looked = heads_at_work.most_looked_at(pieces, weights)
    assert looked[0, 0].tolist() == [[2, 2, 0, 1], [1, 0, 1, 2]]  # not itself: word 0 of head 1 takes what comes first

    arcs = [
        (half, "any", governor - word)
        for half in (0, 1)
        for _ in range(60)
        for word, governor in enumerate(governors)
        if governor >= 0
    ]
    once = torch.stack(
        [
            torch.stack([looked[0, ..., word] == governor, looked[0, ..., governor] == word])
            for word, governor in enumerate(governors)
            if governor >= 0
        ]
    )
    text = [heads_at_work.Sentence(["w"] * 4, governors, ["any"] * 4)] * 120
    found = heads_at_work.compare_arcs(text, once.repeat(120, 1, 1, 1), arcs)
    row = found.relations["any"]
    assert row["head"] == "1.1"
    assert row["direction"] == "to its governor"
    assert row["found"] == 1
    assert row["baseline"] == pytest.approx(1 / 3)  # offsets 2, 1 and −2
    assert found.lengths[2] == pytest.approx(2 / 3)
    assert found.neighbours == 0.5
    assert found.follows == {"1.1": ["any"]}


def test_equal_weights_are_the_baseline() -> None:
    """What stands beside each number is what equal weights give, in texts of any lengths."""
    means = heads_at_work.Means()
    for n, batch in ((5, 3), (12, 2), (30, 1)):
        ids = torch.randint(2, 7, (batch, n))
        ids[:, 0], ids[:, -1] = 0, 1
        heads_at_work.add_up(means, ids, ids < 2, torch.full((batch, 2, 3, n, n), 1 / n))
    for kind in heads_at_work.KINDS:
        torch.testing.assert_close(means[kind], means[f"{kind} alike"].expand(2, 3))
    torch.testing.assert_close(means["by distance"], means["by distance alike"])
    torch.testing.assert_close(means["keys"], means["keys alike"].expand(2, 3))
    torch.testing.assert_close(means["entropy"], torch.ones(2, 3))


def test_the_head_that_the_page_draws(weights: Callable[[str], Path]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lessons.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def drawn" in code]
    held: dict[str, Any] = {"torch": torch, "hw": hw}
    exec(block, held)
    folder = weights("minilm")
    figure = held["drawn"](folder, SENTENCE, 2, 8)
    assert figure.axes[0].get_title(loc="left") == "stack.blocks.2.attention, head 8"
    model, words = hw.load(folder), hw.checkpoints.tokenizer(folder)
    words.no_padding()
    found = words.encode(SENTENCE)
    with torch.no_grad(), hw.capture(model, keep="weights") as seen:
        model(torch.tensor([found.ids]))
    most = seen.weights(2, head=8)[0, :, 1:-1].argmax(-1) + 1  # of the words
    assert [found.tokens[most[i]] for i, token in enumerate(found.tokens) if token == "the"] == ["cat", "mat"]
