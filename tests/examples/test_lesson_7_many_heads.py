"""What lesson 7 finds: a loop over heads is one attention; one softmax cannot name two places; heads have roles."""

import re
from collections.abc import Callable, Sequence
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import heads_at_work
import headway as hw
from headway.inspection.texts import AnnotatedText, EncodedText, read_conllu
from lesson import SPEAK, data
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

    small = {name: torch.tensor(rows) for name, rows in found["small"].items()}
    torch.testing.assert_close(small["joined"] @ small["W_O"], small["output"])
    torch.testing.assert_close(small["weights"].sum(-1), torch.ones(3, 3))
    assert small["x"].shape == small["joined"].shape == (3, 6)

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


def test_roles_of_a_published_model(weights: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, less in {"SENTENCES": 100, "WEIGHED": 4}.items():
        monkeypatch.setattr(heads_at_work, name, less)
    found = heads_at_work.measure_heads(weights("minilm"), SENTENCE, [], [("that", "cat")], None, None)
    assert found.tokens[1:3] == ["The", "cat"]
    assert found.roles[0][2] == "previous"
    assert found.kinds["previous"][0][2] > 0.99
    assert found.keys[0][2] == pytest.approx(1, abs=0.05)
    assert found.kinds_alike["previous"] == pytest.approx(1 / found.keys_alike, rel=0.2)  # sentences of many lengths
    assert 1 < found.neighbour < 2
    assert 10 <= found.keys_alike <= 42  # 8 to 30 words in pieces, [CLS] and [SEP]
    assert found.sentences == 100
    assert found.ties["that → cat"]["head"] == "0.2"
    assert found.treebank is None
    assert found.pronouns is None
    said = heads_at_work.tell_heads(found, SPEAK["en"])
    assert "Not measured without en_pud-ud-test.conllu and gap-test.tsv: put them" in said
    assert said.endswith("HEADWAY_DATA=…")


def test_relations_and_pronouns(weights: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    treebank, pronouns = data("en_pud-ud-test.conllu"), data("gap-test.tsv")
    if not (treebank and pronouns):
        pytest.skip("no annotated text in $HEADWAY_DATA")
    monkeypatch.setattr(heads_at_work, "read_conllu", lambda path: read_conllu(path)[:120])
    for name, less in {"PASSAGES": 120, "WEIGHED": 4}.items():
        monkeypatch.setattr(heads_at_work, name, less)
    found = heads_at_work.measure_heads(weights("minilm"), SENTENCE, ["case"], [("that", "cat")], treebank, pronouns)
    assert found.sentences == 120
    assert found.treebank.adjacent > 3 * found.treebank.neighbours
    for relation, gain in {"obj": 0.15, "case": 0.15, "det": 0.1}.items():
        row = found.treebank.relations[relation]
        assert row["to governor"]["found"] - row["baseline"] > gain
        assert row["to governor"]["low"] < row["to governor"]["found"] < row["to governor"]["high"]
    assert any(len(relations) > 1 for relations in found.treebank.follows.values())
    assert list(found.shown)[-1] == f"case {found.treebank.relations['case']['to governor']['head']}"
    assert found.pronouns.passages == 60
    assert found.pronouns.found > max(found.pronouns.mean, found.pronouns.baseline)
    assert found.pronouns.low < found.pronouns.found < found.pronouns.high
    assert found.pronouns.mean == pytest.approx(0.5, abs=0.1)


def test_words_near_each_other() -> None:
    text = AnnotatedText(
        "a big cat sat .",
        words=((0, 1), (2, 5), (6, 9), (10, 13), (14, 15)),
        governors=(2, 2, 3, -1, 3),
        relations=("det", "amod", "nsubj", "root", "punct"),
    )
    assert heads_at_work.near([text, text]) == (2 / 3, 4 / 10)


def encoded(lengths: Sequence[int], vocabulary: int) -> list[EncodedText]:
    """Texts of as many words, each one token, between a first and a last token of no word."""
    found = []
    for count in lengths:
        text = AnnotatedText("x" * count, tuple((i, i + 1) for i in range(count)))
        ids = torch.randint(vocabulary, (count + 2,)).tolist()
        found.append(EncodedText(tuple(ids), ("x",) * (count + 2), (-1, *range(count), -1), text))
    return found


def small_encoder() -> hw.models.Encoder:
    config = hw.models.TransformerConfig(vocab_size=9, embed_dim=8, num_heads=2, num_layers=3)
    return hw.models.Encoder(config, hw.encoding("alibi", num_heads=2)).eval()


def test_where_the_weight_lies_as_written() -> None:
    """The means, from the weights in loops over queries and keys."""
    model, texts = small_encoder(), encoded([3, 7, 3, 5], 9)
    queries, means, _ = heads_at_work.where_the_weight_lies(model, texts)
    assert queries == 3 + 7 + 3 + 5
    kinds: dict[str, list[Tensor]] = {name: [] for name in (*heads_at_work.KINDS, "keys", "entropy", "far", "near")}
    for text in texts:
        with torch.no_grad(), hw.capture(model, keep="weights") as seen:
            model(torch.tensor([text.ids]))
        a, n = torch.cat(seen.attentions).double(), len(text)
        for i in range(1, n - 1):
            kinds["itself"].append(a[..., i, i])
            kinds["special"].append(a[..., i, 0] + a[..., i, n - 1])
            if i > 1:
                kinds["previous"].append(a[..., i, i - 1])
            if i < n - 2:
                kinds["next"].append(a[..., i, i + 1])
            entropy = -(a[..., i, :] * a[..., i, :].log()).sum(-1)
            kinds["entropy"].append(entropy / np.log(n))
            kinds["keys"].append(entropy.exp())
            for j in range(1, n - 1):
                kinds["far"].append(a[..., i, j] * abs(j - i))
                kinds["near"].append(a[..., i, j])
    for name in (*heads_at_work.KINDS, "keys", "entropy"):
        expected = torch.stack(kinds[name]).mean(0)
        torch.testing.assert_close(means[name].double(), expected, atol=1e-5, rtol=1e-5)
    expected = torch.stack(kinds["far"]).sum(0) / torch.stack(kinds["near"]).sum(0)
    torch.testing.assert_close(means["distance"].double(), expected, atol=1e-5, rtol=1e-5)


def test_equal_weights_are_the_baseline() -> None:
    """What stands beside each number is what equal weights give, in texts of any lengths."""
    config = hw.models.TransformerConfig(vocab_size=9, embed_dim=8, num_heads=2, num_layers=3)
    model = hw.models.Encoder(config, None).eval()
    for block in model.stack.layers:
        torch.nn.init.zeros_(block.attention.q_proj.weight)
        torch.nn.init.zeros_(block.attention.q_proj.bias)
    _, means, alike = heads_at_work.where_the_weight_lies(model, encoded([3, 10, 10, 28], 9))
    for name, expected in alike.items():
        torch.testing.assert_close(means[name], torch.full((3, 2), expected))


def test_the_head_that_the_page_draws(weights: Callable[[str], Path]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lessons.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def drawn" in code]
    held: dict[str, Any] = {"torch": torch, "hw": hw}
    exec(block, held)
    folder = weights("minilm")
    figure = held["drawn"](folder, SENTENCE, 2, 8)
    assert figure.axes[0].get_title(loc="left") == "layer 2, head 8"
    model, words = hw.load(folder), hw.checkpoints.tokenizer(folder)
    words.no_padding()
    found = words.encode(SENTENCE)
    with torch.no_grad(), hw.capture(model, keep="weights") as seen:
        model(torch.tensor([found.ids]))
    most = seen.weights(2, head=8)[0, :, 1:-1].argmax(-1) + 1  # of the words
    assert [found.tokens[most[i]] for i, token in enumerate(found.tokens) if token == "the"] == ["cat", "mat"]

    def of_the_pronoun(last: str) -> dict[str, float]:
        found = words.encode(f"The cat ate the apple because it was {last}")
        with torch.no_grad(), hw.capture(model, keep="weights") as seen:
            model(torch.tensor([found.ids]))
        row = seen.weights(3, head=1)[0, found.tokens.index("it")]
        return {name: round(row[found.tokens.index(name)].item(), 2) for name in ("cat", "apple", "[CLS]")}

    assert of_the_pronoun("hungry") == pytest.approx({"cat": 0.53, "apple": 0.19, "[CLS]": 0.13}, abs=0.01)
    assert of_the_pronoun("sweet") == pytest.approx({"cat": 0.05, "apple": 0.22, "[CLS]": 0.28}, abs=0.01)
