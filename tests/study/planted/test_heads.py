"""What is measured of heads, on a model made by hand: head 0 finds the nouns of verbs, head 1 those of places."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.masks import Padding
from headway.study.planted import Cases, Language, __main__, _languages, _training, measure
from headway.study.planted._heads import links_found
from headway.study.planted._report import markdown, summary, together
from headway.study.planted._tokens import CLS, MASK, vocabulary
from headway.study.protocol import Training

BETWEEN = ("today", "again", "last", "night", "near", "it")


class ByHand(nn.Module):
    """Masked words attend to the nouns of their relation, in head 0 before "up" and in head 1 after "reached"."""

    def __init__(self, language: Language, both_in: int | None = None) -> None:
        super().__init__()
        self.ids = vocabulary(language)
        self.weight = nn.Parameter(torch.zeros(1))  # so that it has a device
        heads = (0, 1) if both_in is None else (both_in, both_in)
        self.keys, self.values = torch.zeros(2, 2, len(self.ids)), torch.zeros(2, len(self.ids), len(self.ids))
        for kind, (head, relation) in enumerate(zip(heads, language.relations, strict=True)):
            for word, nouns in relation.nouns.items():
                for noun in nouns:
                    self.keys[head, kind, self.ids[noun]] = 50
                    self.values[head, self.ids[noun], self.ids[word]] = 1

    def forward(self, ids: Tensor, *, mask: Padding) -> Tensor:
        wants = ids == self.ids[MASK]
        verb = wants & (ids.roll(-1, 1) == self.ids["up"])
        q = torch.stack([verb, wants & ~verb], dim=-1).float()[:, None].expand(-1, 2, -1, -1)
        k = self.keys[:, :, ids].permute(2, 0, 3, 1)
        v = self.values[:, ids].transpose(0, 1)
        real = torch.arange(ids.shape[1]) < torch.as_tensor(mask.lengths)[:, None]
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])
        return heads.sum(1) + 0.3 * F.one_hot(torch.tensor(self.ids["woke"]), len(self.ids))


def rows_of(language: Language, **options: Any) -> list[dict[str, Any]]:
    rows = measure(ByHand(language, **options), language, sentences=150)
    return [{"language": "tiny", "seed": 0, **row} for row in rows]


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return row


@pytest.fixture(scope="module")
def rows(tiny_language: Language) -> list[dict[str, Any]]:
    return rows_of(tiny_language)


@pytest.mark.parametrize("split", ["words", "templates"])
def test_the_head_of_a_relation_finds_its_nouns(rows: list[dict[str, Any]], split: str) -> None:
    for relation, head in (("verb", 0), ("place", 1)):
        accuracy = one(rows, kind="accuracy", relation=relation, split=split)
        assert accuracy["accuracy"] == accuracy["low"] == accuracy["high"] == 1
        assert accuracy["chance"] == pytest.approx(0.5, abs=0.1)
        found = one(rows, kind="attention", relation=relation, split=split, head=head)
        assert (found["found"], found["low"], found["high"], found["chosen"]) == (1, 1, 1, True)
        assert found["baseline"] <= 0.12
        other = one(rows, kind="attention", relation=relation, split=split, head=1 - head)
        assert other["found"] < 0.4
        assert not other["chosen"]


@pytest.mark.parametrize("split", ["words", "templates"])
def test_its_relation_is_lost_without_it_and_the_other_stands(rows: list[dict[str, Any]], split: str) -> None:
    here = {"split": split, "replacement": "zero"}
    without = one(rows, kind="ablation", relation="verb", head=0, **here)
    assert without["before"] == 1
    assert without["after"] == pytest.approx(0.5, abs=0.12)  # "woke" always
    assert without["change"] == without["after"] - 1
    assert without["low"] < without["change"] < without["high"] < -0.3
    assert one(rows, kind="ablation", relation="place", head=1, **here)["after"] == 0
    assert one(rows, kind="ablation", relation="place", head=0, **here)["change"] == 0
    assert one(rows, kind="ablation", relation="verb", head=1, **here)["change"] == 0
    assert one(rows, kind="together", relation="place", of="place", split=split)["heads"] == ["0.1"]
    assert one(rows, kind="together", relation="place", of="place", split=split)["after"] == 0
    assert one(rows, kind="together", relation="verb", of="place", split=split)["change"] == 0


def test_the_summary_says_what_needs_a_head_alone(rows: list[dict[str, Any]], tiny_language: Language) -> None:
    said = summary(rows, "words")
    assert [(row["relation"], row["head"]) for row in said] == [("verb", "0.0"), ("place", "0.1")]
    assert all(row["alone"] for row in said)
    shared = summary(rows_of(tiny_language, both_in=1), "words")
    assert [(row["head"], row["shared"], row["alone"]) for row in shared] == [
        ("0.1", ["place"], False),
        ("0.1", ["verb"], False),
    ]
    lines = markdown(rows, "words").split("\n")
    assert [line.count("|") for line in lines] == [11] * 4
    assert "tiny, seed 0 | verb | 0.0 | 100.0 % (100–100)" in lines[2]
    assert together(rows, "words").split("\n")[3] == "| tiny, seed 0 | place | 0.1 | 100.0 % | 0.0 % | verb 0 |"
    unseen = [row for row in rows if row["kind"] != "together" or row["of"] != "place"]
    assert together(unseen, "words").split("\n")[3] == "| tiny, seed 0 | place | none | 100.0 % | | |"


def test_found_links_are_those_of_a_loop(tiny_language: Language) -> None:
    model = ByHand(tiny_language)
    sentences = tiny_language.sentences(40, 5, relation="verb")
    cases = Cases.of(tiny_language, sentences, "verb")
    found = iter(links_found(model, cases))
    for batch in cases.batches():
        for ids, length, word, noun in zip(batch.ids, batch.lengths, batch.word, batch.noun, strict=True):
            keys = model.keys[:, 0, ids[:length]]  # the query is (1, 0)
            weights = (keys / 2**0.5).softmax(-1)
            weights[:, 0] = weights[:, word] = -1
            assert next(found)[0].tolist() == (weights.argmax(-1) == noun).tolist()
    assert next(found, None) is None


def test_a_head_looks_at_another_word(tiny_language: Language) -> None:
    model = ByHand(tiny_language)
    model.keys[:, :, model.ids[CLS]] = 80  # most weight goes to [CLS], which is no word, and to the word itself
    model.keys[:, :, model.ids[MASK]] = 70
    alone = [one for one in tiny_language.sentences(40, 5, relation="verb") if len(one.links) == 1]
    assert links_found(model, Cases.of(tiny_language, alone, "verb"))[:, 0, 0].all()


def test_the_command_writes_rows(
    tiny_language: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.setattr(_training, "SENTENCES", 100)
    monkeypatch.setattr(_training, "LAYERS", 1)
    monkeypatch.setitem(_training.TRAININGS, "quick", Training(2, 4, 64, 1e-3))
    for place in (_languages.LANGUAGES, __main__.LANGUAGES):
        monkeypatch.setitem(place, "tiny", tiny_language)
    out = tmp_path / "rows.json"
    asked = ["--out", str(out), "--languages", "tiny", "--seeds", "7", "--training", "quick", "--sentences", "10"]
    assert __main__.run(asked) == 0
    rows = json.loads(out.read_text())
    assert {row["kind"] for row in rows} >= {"accuracy", "attention", "ablation"}
    assert {(row["language"], row["seed"]) for row in rows} == {("tiny", 7)}
    assert "held-out templates" in capsys.readouterr().out
    assert __main__.run([*asked[:1], str(tmp_path / "no" / "rows.json"), *asked[2:]]) == 2
    assert "cannot be written" in capsys.readouterr().err
