"""``headway vectors`` on a small text: each method by its name, and every verb."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from headway._common import training
from headway._common.files import LockedFolder
from headway.cli import main
from headway.vectors import VECTORS, FastText, Word2Vec, load

pytest.importorskip("gensim")
pytest.importorskip("sklearn")

SMALL = {
    "word2vec": ["dim=8", "min_count=1"],
    "fasttext": ["dim=8", "min_count=1", "bucket=100"],
    "glove": ["dim=8", "min_count=1", "epochs=2"],
    "bert": ["dim=8", "num_layers=1", "num_heads=2", "vocab_size=80", "length=16", "steps=2"],
}
"""What keeps a method quick; the others need nothing."""
WITHOUT_ANALOGY = ("one-hot", "bag-of-words", "tf-idf")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents in which countries, animals and numbers keep to themselves."""
    draw = random.Random(0)
    groups = ["france germany italy spain", "fish birds dogs sheep", "two three four five"]
    common = ["the", "of", "in", "river", "bank", "money", "water", "lives", "near", "paid"]
    documents = []
    for number in range(60):
        own = groups[number % 3].split()
        documents.append(" ".join(draw.choice(own if draw.random() < 0.4 else common) for _ in range(25)))
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="module")
def vectors(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "words.safetensors"
    Word2Vec(dim=8, min_count=1, epochs=60, learning_rate=0.1).fit(text.read_text().split("\n\n")).save(path)
    return path


def ran(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[int, str, str]:
    code = main(["vectors", *map(str, given)])
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    """The one line on stderr."""
    code, _, error = ran(capsys, *given)
    assert code == 2
    assert error.count("\n") == 1
    return error


def test_without_a_verb_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = ran(capsys)
    assert code == 0
    for verb in ("compare", "train", "similar", "analogy", "encode", "map", "evaluate", "convert"):
        assert verb in said


@pytest.mark.parametrize("method", VECTORS)
def test_each_method_works_from_the_command_line(
    method: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("bert" if method == "bert" else "method.safetensors")
    options = [part for option in SMALL.get(method, []) for part in ("--option", option)]
    code, said, error = ran(capsys, "train", method, text, "--out", out, *options)
    assert (code, error) == (0, "")
    assert f"{out}: 22 words" in said
    code, said, error = ran(capsys, "encode", out, "The sheep lives")
    assert (code, error) == (0, "")
    tokens, shape = [line.split()[0] for line in said.splitlines()][:-1], said.splitlines()[-1]
    assert tokens == ["the", "sheep", "lives"]
    assert shape.startswith("[3, ")
    if method == "one-hot":
        assert "right angles" in refused(capsys, "similar", out, "sheep")
    else:
        code, said, _ = ran(capsys, "similar", out, "sheep", "two", "--count", 3)
        assert code == 0
        assert [len(line.split()) for line in said.splitlines()] == [1, 2, 2, 2, 1, 2, 2, 2]
    if method in WITHOUT_ANALOGY:
        assert refused(capsys, "analogy", out, "france", "two", "three")
    else:
        code, said, _ = ran(capsys, "analogy", out, "france", "two", "three", "--count", 1)
        assert code == 0
        assert said.splitlines()[0] == "france is to two as three is to"


def test_an_analogy_says_that_it_leaves_the_question_out(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("france", "two", "three")
    code, said, errors = ran(capsys, "analogy", vectors, *question, "--count", 22)
    assert code == 0
    assert "france, two and three are left out of the answers; --keep-question shows them" in errors
    answers = {line.split()[1] for line in said.splitlines()[1:]}
    assert not answers & {*question}
    code, said, errors = ran(capsys, "analogy", vectors, *question, "--count", 22, "--keep-question")
    assert (code, errors) == (0, "")
    assert {line.split()[1] for line in said.splitlines()[1:]} == answers | {*question}


def test_groups_are_found_again(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = ran(capsys, "similar", vectors, "sheep", "--count", 3)
    assert code == 0
    assert {line.split()[1] for line in said.splitlines()[1:]} == {"fish", "birds", "dogs"}


def test_an_unknown_word_leaves_the_others_answered(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, error = ran(capsys, "similar", vectors, "shep", "Two", "france", "--count", 3)
    assert code == 1
    assert [line for line in said.splitlines() if line[0] != " "] == ["two", "france"]  # as the tokenizer writes them
    assert len(said.splitlines()) == 8
    assert "'shep' was never seen among the 22 of the vocabulary: spelt like it: 'sheep'" in error
    assert "'shep' and 'unheard' were never" in refused(capsys, "similar", vectors, "shep", "unheard")


def test_neighbours_that_are_noise_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.vectors import Pretrained

    path = tmp_path / "noise.safetensors"
    words = [f"w{number}" for number in range(500)]
    Pretrained.of(words, torch.randn(500, 64, generator=torch.Generator().manual_seed(0))).save(path)
    code, said, error = ran(capsys, "similar", path, *words[:20])
    assert code == 0
    assert len(said.splitlines()) == 20 * 11
    assert len(error.splitlines()) >= 17
    assert error.startswith("headway: w0: the cosines, at most ")


def test_a_map_of_words_groups_and_files(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "map.png"
    code, said, error = ran(capsys, "map", vectors, "--out", out, "--method", "pca")
    assert (code, error) == (0, "")
    assert said.startswith(f"{out}: ")
    assert said.rstrip().endswith("% of the variance")
    assert out.stat().st_size > 10_000
    listed = tmp_path / "words.txt"
    listed.write_text("数字： two three four\nfish, birds\n", encoding="utf-8")
    code, said, error = ran(capsys, "map", vectors, "SHEEP", "countries=france,italy,shep", "--words", listed,
                            "--out", out)  # fmt: skip
    assert code == 1
    assert "map.png: 8 words, trustworthiness " in said
    assert "'shep' was never seen" in error
    assert ".png" in refused(capsys, "map", vectors, "--out", tmp_path / "map.txt")
    assert "cannot be read" in refused(capsys, "map", vectors, "--words", tmp_path / "none.txt", "--out", out)
    listed.write_text("\n")
    assert "has no words" in refused(capsys, "map", vectors, "--words", listed, "--out", out)
    assert "1 of the 1 words have a vector" in refused(capsys, "map", vectors, "two", "--out", out)


@pytest.mark.parametrize("installed", [True, False])
def test_how_chinese_is_cut_is_said(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.vectors import load

    if installed:
        pytest.importorskip("jieba")
    else:
        monkeypatch.setattr("headway.vectors._text.find_spec", lambda name: None)
    text, out = tmp_path / "text.txt", tmp_path / "words.safetensors"
    text.write_text("国王和王后住在北京。\n\n王后吃苹果。", encoding="utf-8")
    code, said, _ = ran(capsys, "train", "one-hot", text, "--out", out)
    assert code == 0
    assert ("by jieba" in said) == installed
    assert bool(re.search(r"single characters; .*pip install .*\[chinese\]", said)) != installed
    assert load(out).tokenizer("王后") == (["王后"] if installed else ["王", "后"])
    _, said, _ = ran(capsys, "train", "one-hot", text, "--out", out, "--chinese", "characters")
    assert "into single characters\n" in said
    assert "give 'words' or 'characters'" in refused(
        capsys, "train", "one-hot", text, "--out", out, "--chinese", "pinyin"
    )


def test_encode_writes_all_numbers(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy
    from safetensors.torch import load_file

    from headway.vectors import load

    wanted = load(vectors).encode("two unheard sheep")
    for ending in ("npy", "safetensors"):
        code, said, _ = ran(capsys, "encode", vectors, "two unheard sheep", "--out", tmp_path / f"rows.{ending}")
        assert code == 0
        assert "unheard" in next(line for line in said.splitlines() if "no vector" in line)
    assert torch.equal(torch.from_numpy(numpy.load(tmp_path / "rows.npy")), wanted)
    assert torch.equal(load_file(tmp_path / "rows.safetensors")["vectors"], wanted)
    assert ".npy or .safetensors" in refused(capsys, "encode", vectors, "two", "--out", tmp_path / "rows.txt")
    assert "has no words" in refused(capsys, "encode", vectors, "…")
    assert "spelt like it: 'sheep'" in ran(capsys, "encode", vectors, "two shep")[2]
    none = tmp_path / "none.npy"
    assert "'unheard' was never seen" in refused(capsys, "encode", vectors, "unheard", "--out", none)
    assert not none.exists()


def test_evaluate_by_files_and_by_the_test_sets(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    pairs.write_text("sheep\tdogs\t9\nsheep\tfrance\t2\nsheep\tthree\t1\nsheep\tunheard\t5\n")
    questions.write_text(": animals\nfish birds dogs sheep\nfish birds dogs unheard\n")
    code, said, _ = ran(capsys, "evaluate", vectors, "--pairs", pairs, "--questions", questions)
    assert code == 0
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    assert lines["pairs.tsv"][-2:] == ["3", "4"]
    assert lines["animals"][-2:] == ["1", "2"]
    code, said, _ = ran(capsys, "evaluate", vectors)
    assert code == 0
    assert "wordsim353.tsv" in said
    assert "questions-words.txt: " in said


def test_convert_to_and_fro(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.vectors import load

    for name, more in (("a.vec", []), ("a.txt", ["--format", "glove"]), ("a.safetensors", [])):
        code, said, _ = ran(capsys, "convert", vectors, tmp_path / name, *more)
        assert code == 0
        assert "22 words, 8 numbers each" in said
        torch.testing.assert_close(load(tmp_path / name).vector("sheep"), load(vectors).vector("sheep"))
    assert isinstance(load(tmp_path / "a.safetensors"), Word2Vec)
    assert "give --format, one of" in refused(capsys, "convert", vectors, tmp_path / "a.bin")


def test_a_small_text_is_read_more_often(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "word2vec", text, "--out", tmp_path / "a.safetensors", "--option", "min_count=1"]
    said = ran(capsys, *given)[1]
    assert re.search(r"the text has 1,500 words and was read 5 times: .*--option epochs=20", said)
    assert "epochs" not in ran(capsys, *given, "--option", "epochs=5")[1]
    assert "epochs" not in ran(capsys, "train", "one-hot", text, "--out", tmp_path / "b.safetensors")[1]


def test_vectors_of_sub_words_are_said(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "words.safetensors"
    FastText(dim=8, min_count=1, bucket=100).fit(text.read_text().split("\n\n")).save(path)
    made = "sheeps is not in the vocabulary: its vector is made of its sub-words"
    code, _, errors = ran(capsys, "similar", path, "sheep", "sheeps")
    assert code == 0
    assert made in errors
    assert "sheep is not" not in errors
    assert made in ran(capsys, "analogy", path, "two", "three", "sheeps")[2]
    assert made in json.loads(ran(capsys, "similar", path, "sheeps", "--json")[1])["notes"][0]


def test_english_tests_are_left_out_for_chinese_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "words.safetensors"
    Word2Vec(dim=8, min_count=1, epochs=1).fit(["我 喜欢 猫 和 狗 two"] * 3).save(path)
    rows = json.loads(ran(capsys, "evaluate", path, "--json")[1])
    assert rows["rows"] == []
    assert all("its words are English, and those of the vectors are not" in note for note in rows["notes"])
    assert len(rows["notes"]) == 3
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("猫\t狗\t9\n我\t狗\t1\n猫\t和\t2\n")
    assert json.loads(ran(capsys, "evaluate", path, "--pairs", pairs, "--json")[1])["rows"]


def test_options_are_read_and_checked(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.vectors import load

    out = tmp_path / "method.safetensors"
    given = ["train", "fasttext", text, "--out", out, "--option", "min_count=1", "--dim", "4"]
    assert ran(capsys, *given, "--option", "min-n=2", "--option", "bucket=50", "--option", "architecture=cbow")[0] == 0
    made = load(out)
    assert isinstance(made, FastText)
    assert (made.dim, made.min_n, made.architecture) == (4, 2, "cbow")
    assert "no option of fasttext 'widow': did you mean 'window'?" in refused(capsys, *given, "--option", "widow=3")
    assert "give name=value" in refused(capsys, *given, "--option", "window")
    assert "window is 'wide': give int, such as 5" in refused(capsys, *given, "--option", "window=wide")
    assert "give int or None" in refused(capsys, *given, "--option", "max_words=many")
    assert "give float" in refused(capsys, *given, "--option", "subsample=[1]")
    assert ran(capsys, *given, "--option", "subsample=0", "--option", "max_words=None")[0] == 0
    assert "window is 0" in refused(capsys, *given, "--option", "window=0")
    assert "no option of one-hot 'dim'" in refused(capsys, "train", "one-hot", text, "--out", out, "--dim", "3")


def test_bad_input_is_one_line(text: Path, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, blank = tmp_path / "empty.txt", tmp_path / "blank.txt"
    empty.touch()
    blank.write_text("\n \n")
    out = tmp_path / "method.safetensors"
    missing = refused(capsys, "train", "one-hot", tmp_path / "nowhere.txt", "--out", out)
    assert missing.endswith("nowhere.txt cannot be read (No such file or directory): give a text file\n")
    rare = tmp_path / "rare.txt"
    rare.write_text("a text in which each word is new")
    assert "lower --option min_count, as in --option min_count=1" in refused(
        capsys, "train", "word2vec", rare, "--out", out
    )
    assert "is empty" in refused(capsys, "train", "one-hot", empty, "--out", out)
    assert "has only blanks" in refused(capsys, "train", "one-hot", blank, "--out", out)
    assert "did you mean 'one-hot'?" in refused(capsys, "train", "two-hot", text, "--out", out)
    assert "give a file in a folder that exists" in refused(
        capsys, "train", "one-hot", text, "--out", tmp_path / "no" / "method.safetensors"
    )
    assert not out.exists()
    assert "'unheard' was never seen" in refused(capsys, "similar", vectors, "unheard")
    assert "'shep' was never seen among the 22 of the vocabulary: spelt like it: 'sheep'" in refused(
        capsys, "analogy", vectors, "france", "shep", "two"
    )
    assert "no file" in refused(capsys, "similar", tmp_path / "nowhere.vec", "sheep")
    assert "give at least 1" in refused(capsys, "similar", vectors, "sheep", "--count", "0")
    assert "No such file" in refused(capsys, "compare", tmp_path / "nowhere.txt", "--out", tmp_path / "out")
    assert "did you mean 'one-hot'?" in refused(
        capsys, "compare", text, "--methods", "two-hot", "--out", tmp_path / "out"
    )
    assert "--words is ','" in refused(capsys, "compare", text, "--words", ",", "--out", tmp_path / "out")
    assert "dim is 0" in refused(capsys, "compare", text, "--dim", "0", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_compare_prints_and_writes_and_goes_on(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ["compare", text, "--min-count", 1, "--dim", 8, "--steps", 2, "--words", "sheep,unheard", "--out", out]
    code, said, error = ran(capsys, *given, "--methods", "one-hot,tf-idf")
    assert (code, error) == (0, "")
    first = (out / "results.jsonl").read_text()
    assert [json.loads(line)["method"] for line in first.splitlines()] == ["one-hot", "tf-idf", "learned"]
    for part in (
        "fixed before any result",
        "every two words have the same cosine",
        "Nearest to “sheep”",
        "There is one seed",
    ):
        assert part in said
    assert "  0 %  one-hot" in said
    code, said, error = ran(capsys, *given, "--methods", "one-hot,tf-idf,fasttext")
    assert (code, error) == (0, "")
    again = (out / "results.jsonl").read_text()
    assert again.startswith(first)
    assert len(again.splitlines()) == 4
    report = (out / "vectors.md").read_text()
    assert "| fasttext |" in report
    assert (out / "vectors" / "fasttext-seed0.safetensors").exists()
    for name in ("vectors-map.png", "vectors-scores.png"):
        assert (out / name).stat().st_size > 10_000
    assert "--out" in refused(capsys, *[8 if part == 2 else part for part in given], "--methods", "one-hot")


def test_a_stopped_comparison_says_how_to_go_on(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_given: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.study.word_vectors.train", stopped)
    code, _, error = ran(capsys, "compare", text, "--methods", "one-hot", "--min-count", 1, "--out", tmp_path / "out")
    assert code == 130
    assert "the same command resumes from" in error


def test_a_stopped_bert_goes_on(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its last checkpoint, to the same files; a kill leaves what the stop leaves."""
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    options = [f"--option={one}" for one in [*SMALL["bert"][:-1], "steps=6"]]
    out, whole = tmp_path / "bert", tmp_path / "whole"
    steps, write = [], training.write_checkpoint

    def seen(path: Path, state: dict[str, Any]) -> None:
        write(path, state)
        steps.append(state["step"])
        if steps == [1, 2, 3]:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_checkpoint", seen)
    code, _, error = ran(capsys, "train", "bert", text, "--out", out, *options)
    assert code == 130
    assert error.endswith(f"stopped; the same command resumes from {out}\n")
    assert not out.exists()
    with LockedFolder(tmp_path / ".bert.training"):
        assert "in use by another training" in refused(capsys, "train", "bert", text, "--out", out, *options)
    assert "seed = 0, now 1" in refused(capsys, "train", "bert", text, "--out", out, *options, "--option=seed=1")
    assert ran(capsys, "train", "bert", text, "--out", out, *options)[0] == 0
    assert steps == [1, 2, 3, 4, 5, 6]
    assert ran(capsys, "train", "bert", text, "--out", whole, *options)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert", "whole"]
    assert json.loads((out / "vectors.json").read_text()) == json.loads((whole / "vectors.json").read_text())
    assert torch.equal(load(out).matrix, load(whole).matrix)
