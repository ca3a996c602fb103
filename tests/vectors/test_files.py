"""Headway's own files of vectors, how a file's format is seen, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import HeadwayError
from headway.vectors import VECTORS, SubWords, Vectors, Words
from headway.vectors._files import FORMATS, load, write
from headway.vectors._pretrained import Pretrained

TEXTS = ["The river floods its banks.", "A bank lends money to the town.", "The town by the river has a bank."] * 5
SMALL: dict[str, dict[str, Any]] = {
    "word2vec": {"dim": 6, "epochs": 1, "min_count": 1},
    "fasttext": {"dim": 6, "epochs": 1, "min_count": 1, "bucket": 100},
    "glove": {"dim": 6, "epochs": 1},
}
"""Options that make a way fast; what a folder holds is tested with BERT."""
IN_A_FILE = [name for name in VECTORS if name != "bert"]


@pytest.fixture
def table() -> Pretrained:
    return Pretrained.of(["river", "bank", "money"], torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 1, 0.5]]))


# ---------------------------------------------------------------- headway's own


def test_words_of_a_file_are_found_by_their_spelling(tmp_path: Path) -> None:
    """As those of published vectors."""
    (tmp_path / "v.vec").write_text("3 2\ndon’t 1 2\ncafe\u0301 3 4\ni\u0307stanbul 5 6\n", encoding="utf-8")
    read = load(tmp_path / "v.vec")
    read.save(tmp_path / "v.safetensors")
    for vectors in (read, load(tmp_path / "v.safetensors")):
        assert vectors.words == ("don’t", "cafe\u0301", "i\u0307stanbul")
        assert vectors.encode("Don’t DON'T café İSTANBUL").tolist() == [[1, 2], [1, 2], [3, 4], [5, 6]]
        assert "don't" in vectors
        assert [word for word, _ in vectors.most_similar("don't")] == ["cafe\u0301", "i\u0307stanbul"]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_header_may_be_as_long_as_a_pickle_begins(table: Pretrained, version: int, tmp_path: Path) -> None:
    """A length of 640 is written as the bytes 80 02 00 …, and a pickle may begin with 80 02."""
    path = tmp_path / "vectors.safetensors"
    table.save(path)
    raw = path.read_bytes()
    header, tensors = raw[8 : 8 + int.from_bytes(raw[:8], "little")], raw[8 + int.from_bytes(raw[:8], "little") :]
    length = 0x80 + 256 * version
    assert len(header) <= length
    path.write_bytes(length.to_bytes(8, "little") + header.ljust(length) + tensors)
    assert load(path).words == table.words


@pytest.mark.parametrize("name", IN_A_FILE)
def test_a_way_comes_back_whole(name: str, tmp_path: Path) -> None:
    made = VECTORS[name](**SMALL.get(name, {}), max_words=9, tokenizer=Words(chinese="characters")).fit(TEXTS)
    path = tmp_path / "vectors.safetensors"
    made.save(path)
    read = load(path)
    assert type(read) is type(made)
    assert read.words == made.words
    assert read.options == made.options
    assert read.options["max_words"] == 9
    assert read.tokenizer == Words(chinese="characters")
    assert made.counts is not None
    assert read.counts is not None
    assert read.counts.tolist() == made.counts.tolist()
    ids = torch.arange(len(made))
    assert torch.equal(read.rows(ids), made.rows(ids))
    assert torch.equal(read.encode("the river bank"), made.encode("the river bank"))
    assert torch.equal(read.document("the river bank"), made.document("the river bank"))
    before = {key: tensor.clone() for key, tensor in made._tensors().items()}
    assert before.keys() == read._tensors().keys()
    assert all(torch.equal(read._tensors()[key], before[key]) for key in before)
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_file_is_known_by_what_it_holds(table: Pretrained, tmp_path: Path) -> None:
    table.save(tmp_path / "vectors.txt")
    read = load(tmp_path / "vectors.txt")
    assert isinstance(read, Pretrained)
    assert read.words == table.words
    assert torch.equal(read.matrix, table.matrix)
    assert read.counts is None


def test_a_file_is_saved_over_itself(table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    table.save(path)
    for _ in range(2):
        load(path).save(path)
    assert torch.equal(load(path).rows(torch.arange(3)), table.matrix)


def test_any_str_may_be_a_word(tmp_path: Path) -> None:
    words = ["two words", "a line\nend", "\0", "", "\udc80", "猫", '"', "\\"]
    Pretrained.of(words, torch.ones(8, 2)).save(tmp_path / "v")
    assert list(load(tmp_path / "v").words) == words


def test_tokenizers_are_saved_and_one_of_your_own_is_asked_for(table: Pretrained, tmp_path: Path) -> None:
    table.tokenizer = SubWords.train(TEXTS, size=60)
    table.save(tmp_path / "v")
    read = load(tmp_path / "v")
    assert isinstance(read.tokenizer, SubWords)
    assert read.tokenizer("the bank") == table.tokenizer("the bank")
    table.tokenizer = str.split
    table.save(tmp_path / "v")
    with pytest.raises(HeadwayError, match=r"saved with a tokenizer of your own: give it again, load\(path, token"):
        load(tmp_path / "v")
    assert load(tmp_path / "v", tokenizer=str.split).tokenizer is str.split


def test_a_tokenizer_that_is_given_wins(table: Pretrained, tmp_path: Path) -> None:
    table.save(tmp_path / "v")
    write(table, tmp_path / "v.vec")
    for name in ("v", "v.vec"):
        assert load(tmp_path / name, tokenizer=str.split).tokenizer is str.split


def test_what_cannot_be_saved(table: Pretrained, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="cannot be written: give a file in a folder that exists"):
        table.save(tmp_path / "nowhere" / "v")
    with pytest.raises(HeadwayError, match="cannot be written: give a file in a folder that exists"):
        table.save(tmp_path)
    with pytest.raises(HeadwayError, match=r"Pretrained has no vectors yet: call fit\(texts\), or load a file"):
        Pretrained().save(tmp_path / "v")

    class Mine(Pretrained):
        pass

    with pytest.raises(HeadwayError, match="Mine is none of headway's methods"):
        Mine.of(["a"], torch.ones(1, 2)).save(tmp_path / "v")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(table: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.save(tmp_path / "v")
    held = (tmp_path / "v").read_bytes()

    def full(tensors: dict[str, Tensor], path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(HeadwayError, match="No space left on device"):
        table.save(tmp_path / "v")
    assert (tmp_path / "v").read_bytes() == held
    assert len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- what is wrong in headway's own

ABOUT = {"format": "headway.vectors", "method": "pretrained", "options": "{}", "tokenizer": '{"words": {}}'}
HELD = {"vectors": torch.ones(2, 3), "words": ["a", "b"]}
OURS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "bare": ({"format": "pt"}, {}, "it holds the tensors vectors, words but not their words"),
    "without words": ({}, {"words": None}, "it holds the tensors vectors but not their words"),
    "another method": ({"method": "elmo"}, {}, "its method is 'elmo', headway has one-hot, "),
    "no method": ({"method": ""}, {}, "its method is '', headway has one-hot, "),
    "options of another": ({"method": "one-hot", "options": '{"wings": 2}'}, {}, "its words or options cannot be read"),
    "options out of range": ({"method": "word2vec", "options": '{"dim": 0}'}, {}, "dim is 0: give at least 1"),
    "options that are none": ({"options": "[1]"}, {}, "its words or options cannot be read"),
    "options that are no JSON": ({"options": "dim=3"}, {}, "its words or options cannot be read"),
    "another tokenizer": ({"tokenizer": '{"spacy": {}}'}, {}, "its words or options cannot be read"),
    "a word twice": ({}, {"words": ["a", "a"]}, "a word is not there exactly once"),
    "words that are none": ({}, {"words": ["a", 7]}, "a word is not there exactly once"),
    "no words at all": ({}, {"words": []}, "a word is not there exactly once"),
    "words that are numbers": ({}, {"words": torch.arange(2)}, "its words or options cannot be read"),
    "other counts": ({}, {"counts": torch.arange(3)}, "exactly once, or the counts do not fit"),
    "counts that are none": ({}, {"counts": torch.ones(2)}, "exactly once, or the counts do not fit"),
    "fewer vectors": ({}, {"vectors": torch.ones(1, 3)}, r"the vectors have shape (1, 3) and there are 2 words"),
    "no vectors": ({}, {"vectors": None}, "the vectors have shape None and there are 2 words"),
}


@pytest.mark.parametrize("case", OURS)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    about, held, says = OURS[case]
    tensors: dict[str, Tensor] = {}
    for name, tensor in {**HELD, **held}.items():
        if isinstance(tensor, list):
            tensors[name] = torch.frombuffer(bytearray(json.dumps(tensor).encode()), dtype=torch.uint8)
        elif tensor is not None:
            tensors[name] = tensor
    path = tmp_path / "v.safetensors"
    save_file(tensors, path, metadata={**ABOUT, **about})
    with pytest.raises(HeadwayError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_sound_one_among_them_is_read(tmp_path: Path) -> None:
    words = torch.frombuffer(bytearray(b'["a", "b"]'), dtype=torch.uint8)
    save_file({"vectors": torch.ones(2, 3), "words": words}, tmp_path / "v", metadata=ABOUT)
    assert load(tmp_path / "v").words == ("a", "b")


def test_a_damaged_file_is_said(table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    table.save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:40], b"\xff" * 7 + whole[7:], b"no safetensors"):
        path.write_bytes(damaged)
        with pytest.raises(HeadwayError, match=r"v.safetensors: it is not a complete safetensors file"):
            load(path)


def test_own_files_and_folders_have_no_limit(table: Pretrained, tmp_path: Path) -> None:
    table.save(tmp_path / "v")
    with pytest.raises(HeadwayError, match="holds a whole method: leave limit out"):
        load(tmp_path / "v", limit=2)
    with pytest.raises(HeadwayError, match="holds a whole method: leave limit out"):
        load(tmp_path, limit=2)
    with pytest.raises(HeadwayError, match="limit is 0: give at least 1"):
        load(tmp_path / "v", limit=0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"there is no file .*v.bin: give one with vectors"):
        load(tmp_path / "v.bin")


# ---------------------------------------------------------------- which format


def test_the_ending_says_the_format_where_it_can(table: Pretrained, tmp_path: Path) -> None:
    write(table, tmp_path / "v.vec")
    write(table, tmp_path / "same.vec", "word2vec")
    assert (tmp_path / "v.vec").read_bytes() == (tmp_path / "same.vec").read_bytes()
    assert (tmp_path / "v.vec").read_text().splitlines()[:2] == ["3 3", "river 1 0 0"]
    for name in ("v.txt", "v.bin", "v", "v.txt.gz", "v.safetensors"):
        with pytest.raises(HeadwayError, match=f"{name} does not say which format is meant: give format=") as caught:
            write(table, tmp_path / name)
        assert all(repr(known) in str(caught.value) for known in FORMATS)
        assert not (tmp_path / name).exists()
    with pytest.raises(HeadwayError, match="format is 'text': give format=, one of 'word2vec'"):
        write(table, tmp_path / "v.vec", "text")
    with pytest.raises(HeadwayError, match="Pretrained has no vectors yet"):
        write(Pretrained(), tmp_path / "v.vec")
    with pytest.raises(HeadwayError, match="cannot be written: give a file in a folder that exists"):
        write(table, tmp_path / "nowhere" / "v.vec")


@pytest.mark.parametrize("name", IN_A_FILE)
def test_every_way_is_written_for_others(name: str, tmp_path: Path) -> None:
    made: Vectors = VECTORS[name](**SMALL.get(name, {})).fit(TEXTS)
    for form in ("word2vec", "word2vec-binary", "glove"):
        write(made, tmp_path / form, form)
        read = load(tmp_path / form)
        assert read.words == made.words
        ids = torch.arange(len(made))
        assert torch.equal(read.rows(ids), made.rows(ids))


# ---------------------------------------------------------------- vectors of one's own


def test_vectors_of_your_own(table: Pretrained) -> None:
    assert table.most_similar("river", 1)[0][0] == "bank"
    assert table.similarity("river", "bank") == pytest.approx(0.8)
    assert table.options == {}
    assert table.embedding().weight.shape == (4, 3)
    with pytest.raises(HeadwayError, match="vectors from a file cannot be fitted: fit word2vec, glove or fasttext"):
        table.fit(TEXTS)
    with pytest.raises(HeadwayError, match="the word 'b' stands twice among the words"):
        Pretrained.of(["a", "b", "b"], torch.ones(3, 2))
    for shape in ((2, 3), (3,), (3, 0)):
        with pytest.raises(HeadwayError, match=r"the matrix has shape .* for 3 words: give \[words, dim\]"):
            Pretrained.of(["a", "b", "c"], torch.ones(shape))
    assert torch.equal(Pretrained.of(["a"], np.ones((1, 2))).vector("a"), torch.ones(2))  # type: ignore[arg-type]


def test_capitals_of_the_words_decide_those_of_texts(tmp_path: Path) -> None:
    small = [f"w{n}" for n in range(19)]
    assert Pretrained.of([*small, "River"], torch.eye(20)).tokenizer == Words(lower=True)
    cased = Pretrained.of(["The", "the", "River"], torch.eye(3))
    assert cased.tokenizer == Words(lower=False)
    assert cased.encode("The River").tolist() == [[1, 0, 0], [0, 0, 1]]
    cased.save(tmp_path / "v")
    assert load(tmp_path / "v").tokenizer == Words(lower=False)
    write(cased, tmp_path / "v.vec")
    assert load(tmp_path / "v.vec").tokenizer == Words(lower=False)


def test_what_is_in_a_file(table: Pretrained, tmp_path: Path) -> None:
    """So that a change of it is noticed: files are kept."""
    table.save(tmp_path / "v")
    held = load_file(tmp_path / "v")
    assert set(held) == {"vectors", "words"}
    assert np.array_equal(held["vectors"].numpy(), table.matrix.numpy())
    assert json.loads(bytes(held["words"].tolist())) == ["river", "bank", "money"]
