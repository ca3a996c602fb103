"""The comparison of methods from words to vectors: its text, its task, what is measured, and what is said of it."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway import HeadwayError
from headway._common.progress import ProgressListener
from headway.study import _word_vectors_text as texts
from headway.study import word_vectors
from headway.study._word_vectors_picture import draw_map, draw_scores
from headway.study._word_vectors_report import Comparison
from headway.study._word_vectors_results import BASELINE, COLUMNS, PUBLISHED
from headway.study._word_vectors_task import NextWord, build, inputs_of
from headway.study.protocol import Training
from headway.study.tasks._base import IGNORED
from headway.study.train import train
from headway.study.word_vectors import Protocol, chosen_methods, compare, context, make, methods, places, similarity
from headway.vectors import VECTORS, MatrixVectors, OneHot, Vocabulary, WordCorpus, train_bert

pytestmark = pytest.mark.slow

pytest.importorskip("gensim")
pytest.importorskip("sklearn")

SIZES = {"layers": 1, "width": 8, "heads": 2}
TINY = Protocol(dim=8, min_count=1, steps=2, batch=2, length=8, **SIZES)
METHODS = ["one-hot", "tf-idf", "word2vec-cbow"]


class Given(MatrixVectors):
    """Vectors that a test gives, word by word."""

    name = "given"

    def _fit(self, corpus: WordCorpus, watch: Callable[[float], None]) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, rows: dict[str, list[float]]) -> "Given":
        made = cls()
        made._take(list(rows))
        made._set(torch.tensor(list(rows.values())))
        return made


class InContext(Given):
    """A word's vector is its own and that of the word before it."""

    def encode(self, text: str) -> Tensor:
        rows = self._vectors(self.tokenizer(text))
        return rows + 0.5 * rows.roll(1, 0)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    groups = ["france germany italy spain", "fish birds dogs sheep", "two three four five"]
    common = ["the", "of", "in", "river", "bank", "money", "water", "lives", "near", "government"]
    documents = []
    for number in range(40):
        own = groups[number % 3].split()
        documents.append(" ".join(draw.choice(own if draw.random() < 0.4 else common) for _ in range(12)))
    documents[9] += " grandmother grandmother"  # the tenth, which is held out
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


# ---------------------------------------------------------------- the text


def test_documents_stand_between_blank_lines_and_every_tenth_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\r\n\r\n".join(f"document {number}\r\nof two lines".encode() for number in range(20)))
    found = texts.read(path)
    assert found.held_out == ["document 9\nof two lines", "document 19\nof two lines"]
    assert len(found.train) == 18
    assert found.name == "text.txt"
    path.write_text("one\n\n\ntwo\n \nthree")
    assert texts.documents_of(path) == ["one", "two", "three"]
    with pytest.raises(HeadwayError, match="has 3 documents: give at least 10"):
        texts.read(path)


def test_the_default_text_is_english_without_markup() -> None:
    found = texts.wikipedia()
    assert 5_000 < len(found) < 6_000
    assert 450_000 < sum(len(text.split()) for text in found) < 500_000
    assert not any(mark in text for text in found for mark in ("'''", "[[", "#REDIRECT"))


# ---------------------------------------------------------------- the Transformer


def test_unknown_words_are_read_and_not_asked() -> None:
    task = NextWord(Vocabulary(["a", "b"]), ["a b c a", "b a"], ["a c b"])
    assert task.train.tolist() == [0, 1, 2, 0, 1, 0]
    inputs, targets = task.batch(Training(1, 50, 3, 1e-3), torch.Generator().manual_seed(0))
    assert inputs.max() == 2
    assert targets.max() == 1
    assert {int(target) for target in targets.flatten()} == {IGNORED, 0, 1}
    assert torch.equal(inputs[:, 1:][targets[:, :-1] != IGNORED], targets[:, :-1][targets[:, :-1] != IGNORED])


def test_the_loss_is_what_the_equation_says() -> None:
    words = Vocabulary(["a", "b", "c"])
    task = NextWord(words, ["a b c"], ["a b c x a b b c a c x b"])
    model = build(None, 3, seed=0, **SIZES)
    ids = [words.index.get(word, 3) for word in ["a", "b", "c", "x", "a", "b", "b", "c", "a", "c", "x", "b"]]
    total, count = 0.0, 0
    for start in (0, 4):  # windows of 4; a third would need a word more
        for t in range(4):
            target = ids[start + t + 1]
            if target < 3:
                logits = model(torch.tensor([ids[start : start + t + 1]]))[0, -1].detach().double()
                total -= float(logits[target] - logits.exp().sum().log())
                count += 1
    found = task.measure(model, 4)
    assert found["held_out_words"] == count
    assert found["nats_per_word"] == pytest.approx(total / count, rel=1e-5)


def test_inputs_have_length_one_and_no_mean() -> None:
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, generator=draws) * torch.tensor([1.0, 100, 1, 1, 0.01, 1])[:, None] + 3
    rows[:, 2] = 0
    found = inputs_of(Given.of(dict(zip("abcdef", rows.tolist(), strict=True))), Vocabulary("fbad"))
    kept = torch.stack([rows[place, [0, 1, 3]] for place in (5, 1, 0, 3)])
    units = torch.stack([row / row.norm() for row in kept])
    apart = units - sum(units) / 4
    wanted = apart / math.sqrt(sum(float(row @ row) for row in apart) / 4)
    torch.testing.assert_close(found[:-1], wanted)
    assert found[-1].tolist() == [0, 0, 0]


def test_one_hot_through_a_map_is_a_learned_embedding() -> None:
    words = Vocabulary(["a", "b", "c", "d"])
    inputs = inputs_of(OneHot().fit(["a b c d e f"]), words)
    assert inputs.shape == (5, 4)
    mapped, learned = (build(given, 4, seed=0, **SIZES) for given in (inputs, None))
    with torch.no_grad():
        learned.embedding.weight.copy_(inputs @ mapped.stack.entry.weight.T)  # type: ignore[operator, union-attr]
    ids = torch.tensor([[0, 3, 4, 1, 1, 2]])
    torch.testing.assert_close(mapped(ids), learned(ids))


def test_given_vectors_stay_as_they_are_and_the_rest_starts_alike() -> None:
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    kept = inputs.clone()
    model, learned = build(inputs, 4, seed=1, **SIZES), build(None, 4, seed=1, **SIZES)
    ours, theirs = dict(model.named_parameters()), dict(learned.named_parameters())
    assert set(ours) - set(theirs) == {"stack.entry.weight"}
    assert set(theirs) - set(ours) == {"embedding.weight"}
    assert all(torch.equal(ours[name], theirs[name]) for name in set(ours) & set(theirs))
    assert float(theirs["embedding.weight"].detach().std()) == pytest.approx(1.0, abs=0.3)
    assert not any(value.any() for name, value in ours.items() if name.endswith("bias"))
    before = ours["stack.entry.weight"].detach().clone()
    train(model, NextWord(Vocabulary("abcd"), ["a b c d " * 9], []), Training(3, 2, 4, 1e-2), 0)
    assert torch.equal(model.embedding.weight, kept)  # type: ignore[arg-type]
    assert not torch.equal(ours["stack.entry.weight"], before)
    assert "embedding.weight" not in model.state_dict()


# ---------------------------------------------------------------- what is measured


def test_context_is_one_for_tables_and_less_for_a_method_that_reads() -> None:
    known = {word for sentences in word_vectors.SENSES.values() for one in sentences for word in one.split()}
    draws = torch.Generator().manual_seed(0)
    rows = {word: torch.randn(4, generator=draws).tolist() for word in sorted(known)}
    assert context(Given.of(rows)) == pytest.approx((1.0, 1.0))
    same, other = context(InContext.of(rows))
    senses = list(word_vectors.SENSES.values())
    made = InContext.of(rows)

    def bank(sentence: str) -> Tensor:
        return made.encode(sentence)[sentence.split().index("bank")]

    def cosine(one: str, two: str) -> float:
        return float(F.cosine_similarity(bank(one), bank(two), dim=0))

    pairs = [(one, two) for its in senses for i, one in enumerate(its) for two in its[i + 1 :]]
    assert same == pytest.approx(sum(cosine(*pair) for pair in pairs) / len(pairs), abs=1e-6)
    across = [cosine(one, two) for one in senses[0] for two in senses[1]]
    assert other == pytest.approx(sum(across) / len(across), abs=1e-6)
    with pytest.raises(HeadwayError, match="'bank'"):
        context(Given.of({"river": [1.0, 0.0]}))


def test_the_map_knows_groups_where_the_vectors_do() -> None:
    groups = {group: [f"{group}{number}" for number in range(5)] for group in "abc"}
    draws = torch.Generator().manual_seed(0)
    middle = {group: 9 * torch.eye(4)[number] for number, group in enumerate(groups)}
    rows = {
        word: (middle[word[0]] + torch.randn(4, generator=draws)).tolist() for its in groups.values() for word in its
    }
    rows["a0"], rows["b0"] = rows["b0"], rows["a0"]
    found = places(Given.of(rows), groups)
    points, own = found["map"], found["own_group"]
    assert 0.5 < found["trustworthiness"] <= 1
    right = 0
    for word, row in rows.items():
        cosines = {
            other: F.cosine_similarity(torch.tensor(row), torch.tensor(its), dim=0) for other, its in rows.items()
        }
        right += word[0] == max(set(rows) - {word}, key=lambda other: float(cosines[other]))[0]
    assert own == right / 15
    assert 5 < right < 15
    assert [point[0] for point in points] == list(rows)
    assert places(Given.of(rows), groups)["map"] == points
    with pytest.raises(HeadwayError, match="same cosine"):
        places(OneHot().fit([" ".join(rows)]), groups)
    with pytest.raises(HeadwayError, match="nothing to draw"):
        places(Given.of(rows), {"a": ["a1", "nowhere"]})


def test_methods_with_more_words_are_held_to_the_same_pairs() -> None:
    documents = ["tiger cat book paper computer keyboard plane car train love sex"] * 2
    vocabulary = Vocabulary.of(documents)
    rows = {
        word: torch.randn(6, generator=torch.Generator().manual_seed(len(word))).tolist() for word in vocabulary.words
    }
    few = similarity(Given.of(rows), "wordsim353.tsv", vocabulary)
    more = {**rows, "tea": [1.0, 0, 0, 0, 0, 0], "coffee": [0.0, 1, 0, 0, 0, 0], "cup": [0.0, 0, 1, 0, 0, 0]}
    many = similarity(Given.of(more), "wordsim353.tsv", vocabulary)
    assert few["value"] == many["value"]
    assert few["pairs"] == many["pairs"] == few["used"] < many["used"]
    with pytest.raises(HeadwayError, match="same cosine"):
        similarity(OneHot().fit(documents), "wordsim353.tsv", vocabulary)
    with pytest.raises(HeadwayError, match="none of the 352 pairs"):
        similarity(Given.of(rows), "wordsim353.tsv", Vocabulary(["tiger"]))


def test_every_method_has_a_row_and_word2vec_two() -> None:
    assert {method for method, _ in methods().values()} == set(VECTORS)
    assert chosen_methods(None) == list(methods())
    assert chosen_methods(["tf-idf", "word2vec", "word2vec-cbow"]) == ["tf-idf", "word2vec-cbow", "word2vec-skip-gram"]
    with pytest.raises(HeadwayError, match="no method 'two-hot': did you mean 'one-hot'"):
        chosen_methods(["two-hot"])
    with pytest.raises(HeadwayError, match="no method is given"):
        chosen_methods([])


@pytest.mark.parametrize("method", methods())
def test_methods_get_the_same_settings(method: str) -> None:
    made = make(method, Protocol(dim=50, min_count=3, max_words=77), 5)
    assert (made.min_count, made.max_words) == (3, 77)
    wanted = {"dim": 50, "seed": 5}
    assert {name: made.options[name] for name in wanted if name in made.options} == {
        name: value for name, value in wanted.items() if name in made.options
    }
    if method.startswith("word2vec-"):
        assert made.options["architecture"] == method.removeprefix("word2vec-")


def test_a_published_encoder_is_a_row_of_its_own(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "somebodys"
    sizes = {"vocab_size": 60, "embed_dim": 8, "num_layers": 1, "num_heads": 2, "length": 16}
    train_bert(text.read_text().split("\n\n"), folder, steps=1, **sizes)
    found = compare(text, ["one-hot"], out=tmp_path / "out", protocol=TINY)
    with_it = replace(TINY, encoder=str(folder))
    more = compare(text, ["one-hot", PUBLISHED], out=tmp_path / "out", protocol=with_it)
    assert [row for row in more.rows if row["method"] != PUBLISHED] == found.rows
    [row] = more.of(PUBLISHED)
    assert row["dim"] == 8
    assert row["other_sense"] < 1
    assert any("is the encoder somebodys, which others trained" in said for said in more.protocol())
    assert not any("encoder" in said for said in found.protocol())
    assert chosen_methods(["bert"], str(folder)) == ["bert", PUBLISHED]
    with pytest.raises(HeadwayError, match="no method 'bert-published'"):
        chosen_methods([PUBLISHED])
    assert compare(text, ["one-hot"], out=tmp_path / "out", protocol=TINY).rows == found.rows


# ---------------------------------------------------------------- from beginning to end


def test_a_comparison_that_was_stopped_ends_as_one_that_was_not(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(text, METHODS, out=tmp_path / "whole", protocol=TINY)
    before, count = word_vectors.train, 0

    def stops(*given: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return before(*given, **options)

    monkeypatch.setattr(word_vectors, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(text, METHODS, out=tmp_path / "stopped", protocol=TINY)
    rows = (tmp_path / "stopped" / "results.jsonl").read_text().splitlines()
    assert [json.loads(row)["method"] for row in rows] == ["one-hot"]

    def refitted(*_: object) -> None:
        raise AssertionError("tf-idf was fitted already")

    monkeypatch.setattr(VECTORS["tf-idf"], "_fit", refitted)
    again = compare(text, METHODS, out=tmp_path / "stopped", protocol=TINY)
    assert [row["method"] for row in again.rows] == [*METHODS, BASELINE]

    def without_times(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if not name.endswith("_seconds")}

    assert [without_times(row) for row in again.rows] == [without_times(row) for row in whole.rows]


def test_more_seeds_and_methods_join_what_is_there(text: Path, tmp_path: Path) -> None:
    shares: list[float] = []

    class Shares(ProgressListener):
        def progressed(self, doing: str, share: float) -> None:
            shares.append(share)

    compare(text, ["one-hot"], out=tmp_path, protocol=TINY)
    found = compare(
        text,
        ["one-hot", "tf-idf"],
        out=tmp_path,
        protocol=TINY,
        seeds=2,
        watch=Shares(),
    )
    assert {(row["method"], row["seed"]) for row in found.rows} == {
        (method, seed) for method in ("one-hot", "tf-idf", BASELINE) for seed in (0, 1)
    }
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    assert shares[-1] == pytest.approx(1.0)
    one, two = found.values("one-hot", "nats_per_word")
    assert one != two
    with pytest.raises(HeadwayError, match="dim = 8, now dim = 9"):
        compare(
            text, ["one-hot"], out=tmp_path, protocol=Protocol(dim=9, min_count=1, steps=2, batch=2, length=8, **SIZES)
        )


def test_wrong_input_is_refused_before_any_work(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(HeadwayError, match="seeds is 0"):
        compare(text, out=out, seeds=0)
    with pytest.raises(HeadwayError, match="steps is 0"):
        Protocol(steps=0)
    with pytest.raises(HeadwayError, match="words held out: give more"):
        compare(text, out=out, protocol=Protocol(min_count=1, length=400))
    with pytest.raises(HeadwayError, match="lower min_count"):
        compare(text, out=out, protocol=Protocol(min_count=10_000))
    assert not out.exists()


def test_a_method_that_fails_is_named(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise HeadwayError("there is no room")

    monkeypatch.setattr(VECTORS["tf-idf"], "_fit", fails)
    with pytest.raises(HeadwayError, match="tf-idf: there is no room; or leave it out, by --methods"):
        compare(text, ["one-hot", "tf-idf"], out=tmp_path, protocol=TINY)


# ---------------------------------------------------------------- what is said


@pytest.fixture(scope="module")
def found(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    names = ["one-hot", "tf-idf", "word2vec", "fasttext"]
    return compare(text, names, out=tmp_path_factory.mktemp("out"), protocol=TINY)


def test_what_a_method_cannot_do_is_a_dash_with_a_reason(found: Comparison) -> None:
    lines = [
        {title.text: cell.text for title, cell in zip(found.table.titles, row, strict=True)} for row in found.table.rows
    ]
    line = lines[0]
    assert line["method"] == "one-hot"
    assert line["own group %"][0] == "—"
    notes = dict(note.split(" ", 1) for note in found.footnotes())
    assert notes[line["own group %"][1:]] == word_vectors.NO_ORDER
    assert "govenment" in notes[line["misspelt"][1:]] or "goverment" in notes[line["misspelt"][1:]]
    by_method = {line["method"]: line for line in lines}
    assert by_method["fasttext"]["misspelt"].startswith(("0", "1"))
    assert by_method["tf-idf"]["bank, other sense"] == by_method["tf-idf"]["bank, same sense"] == "1.00"
    assert by_method[BASELINE]["dim"] == "—"
    assert "right angles" in found.neighbours()["water"]["one-hot"]
    assert list(found.unseen()) == ["grandmother"]


def test_the_best_of_a_column_is_bold(found: Comparison) -> None:
    losses = {method: found.values(method, "nats_per_word")[0] for method in found.methods}
    place = [title.text for title in found.table.titles].index("nats per word")
    assert [row[0].text for row in found.table.rows if row[place].best] == [
        min(losses, key=lambda method: losses[method])
    ]


def test_the_report_has_it_all(found: Comparison, tmp_path: Path) -> None:
    found.write(tmp_path)
    report = (tmp_path / "vectors.md").read_text()
    rows = [line for line in report.splitlines() if line.startswith("| ")]
    assert rows[0].count("|") == len(COLUMNS) + 2
    for part in ("Nearest words", "An unseen word", "vectors-map.png", "are a learned embedding", "There is one seed"):
        assert part in report
    for sentence in (*found.protocol(), *found.explained(), *found.conclusions()):
        assert f"\n- {sentence}\n" in report
    for note in found.footnotes():
        assert note in report
    assert "Documents are paragraphs" not in report
    assert {path.name for path in tmp_path.iterdir()} == {"vectors.md", "vectors-map.png", "vectors-scores.png"}


def test_differences_of_losses_are_paired_over_seeds() -> None:
    losses = {BASELINE: [3.0, 5.0], "one-hot": [3.1, 5.1], "tf-idf": [2.0, 4.2]}
    rows = [
        {"method": method, "seed": seed, "nats_per_word": loss}
        for method, its in losses.items()
        for seed, loss in enumerate(its)
    ]
    said = " ".join(Comparison(rows, {}, list(losses)).conclusions())
    assert "(4.000): tf-idf −0.900 (95 % interval −2.171 to +0.371), one-hot +0.100 (95 % interval +0.100" in said
    assert "The two differ by +0.100 (95 % interval +0.100 to +0.100), so that" in said


def test_names_on_the_map_do_not_touch(found: Comparison) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    draw = random.Random(0)
    crowd = [[f"word{number}", "ab"[number % 2], draw.gauss(0, 1), draw.gauss(0, 1)] for number in range(80)]
    rows = [row | {"map": crowd} if isinstance(row.get("map"), list) else row for row in found.rows]
    crowded = Comparison(rows, found.settings, found.methods[:2])
    for figure in (draw_map(crowded), draw_scores(found)):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [text for axes in figure.axes for text in axes.texts if text.get_text()]
        boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]  # without lines to names
        assert len(boxes) > 20
        touching = [(i, j) for j, one in enumerate(boxes) for i, other in enumerate(boxes[:j]) if one.overlaps(other)]
        assert not touching
    assert len([axes for axes in draw_map(found).axes if axes.get_visible()]) == len(found.methods) - 2
