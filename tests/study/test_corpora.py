import hashlib
from pathlib import Path

import pytest
import torch

from headway.errors import HeadwayError
from headway.study import corpora


def load(path: Path) -> corpora.Corpus:
    return corpora.load(path, train_length=16, longest=32)


def test_the_last_tenth_is_held_out_and_the_twentieth_before_it_is_for_choices(text_file: Path) -> None:
    content = text_file.read_bytes()
    corpus = load(text_file)
    parts = [corpus.train.ids, corpus.validation.ids, corpus.held_out.ids]
    assert bytes(torch.cat(parts).tolist()) == content
    assert list(map(len, parts[1:])) == [len(content) // 20, len(content) // 10]
    assert corpus.sha256 == hashlib.sha256(content).hexdigest()


def test_the_default_text_is_the_manual_that_python_carries() -> None:
    corpus = corpora.load(None, train_length=128, longest=1024)
    assert corpus.name == "pydoc_data.topics"
    assert b"statement" in bytes(corpus.train.ids.tolist())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a" * 700 + b"\0" + b"a" * 700, "byte 700 is 0x00, which UTF-8 text does not have"),
        (b"a" * 1234 + b"\xff" + b"a" * 700, "byte 1,234 is 0xff, which UTF-8 text does not have"),
        (b"too short", "has 9 bytes, too short for a length of 32: give at least 490 bytes"),
    ],
)
def test_what_is_no_corpus_is_said_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_bytes(content)
    with pytest.raises(HeadwayError) as raised:
        load(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"cannot be read \(No such file or directory\): give a text file"):
        load(tmp_path / "none.txt")
    with pytest.raises(HeadwayError, match="cannot be read"):
        load(tmp_path)


def test_the_bytes_asked_for_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "just.txt"
    path.write_bytes(b"a" * 490)
    assert len(load(path).held_out) == 49
    path.write_bytes(b"a" * 489)
    with pytest.raises(HeadwayError, match="too short"):
        load(path)
