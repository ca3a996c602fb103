"""Every reader of a user's text reads it with and without a byte-order mark, in each encoding that a mark names."""

from __future__ import annotations

import bz2
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway._common.text_files import MARKS, decoded, ending_of, lines_of
from headway.checkpoints import tokenizer as checkpoint_tokenizer
from headway.checkpoints._files import _json
from headway.cli.vectors import _groups_of
from headway.errors import HeadwayError
from headway.inspection.texts import read_conll2012, read_conllu, read_gap, read_text
from headway.inspection.texts.gap import COLUMNS
from headway.study._word_vectors_text import documents_of
from headway.study.corpora import read as read_corpus
from headway.study.tokenization import Tokens
from headway.vectors import SubWords, load
from headway.vectors._evaluate import _sections_of, pairs_of

tokenizers = pytest.importorskip("tokenizers")
WORDS = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "猫": 1, "king": 2}, unk_token="[UNK]"))
PASSAGE = ("x-1", "猫 Ann saw Bo; she ran", "she", "14", "Ann", "2", "TRUE", "Bo", "10", "FALSE", "http://x")


def rows(path: Path) -> Any:
    found = load(path)
    return found.words, found.vector(found.words[0]).tolist()


def vocabulary(path: Path) -> Any:
    (path.parent / "vocab.txt").write_bytes(path.read_bytes())
    return checkpoint_tokenizer(path.parent).get_vocab()


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "plain text": ("king 猫\n\nqueen", lambda path: [one.text for one in read_text(path)]),
    "CoNLL-U": ("1\t猫\t_\tX\t_\t_\t0\troot\t_\t_\n\n", lambda path: read_conllu(path)[0].text),
    "GAP": (
        "\t".join(COLUMNS) + "\n" + "\t".join(PASSAGE) + "\n",
        lambda path: read_gap(path)[0].choices,
    ),
    "CoNLL-2012": (
        "#begin document (a); part 000\nbc/cctv\t0\t0\t猫\tNN\t*\t-\t-\t-\t-\t*\t-\n\n#end document\n",
        lambda path: read_conll2012(path)[0].text,
    ),
    "corpus": ("king 猫\n", read_corpus),
    "documents": ("king 猫\n\nqueen", documents_of),
    "pairs": ("king\t猫\t3\n", pairs_of),
    "questions": (": all\nking 猫 b c\n", _sections_of),
    "words of a map": ("animals: 猫 dog\n", lambda path: _groups_of([], path)),
    "GloVe": ("king 1 2\n猫 3 4\n", rows),
    "word2vec": ("2 2\nking 1 2\n猫 3 4\n", rows),
    "word2vec of one number": ("2 1\nking 1\n猫 3\n", rows),
    "JSON": (json.dumps({"猫": 1}, ensure_ascii=False), _json),
    "vocab.txt": ("[UNK]\n[CLS]\n[SEP]\n猫\n", vocabulary),
    "tokenizer.json": (WORDS.to_str(), lambda path: Tokens.named(str(path), b"").vocabulary),
    "sub-words": (WORDS.to_str(), lambda path: SubWords.read(path)("猫")),
}


@pytest.mark.parametrize("reader", READERS)
def test_marks_and_encodings(reader: str, tmp_path: Path) -> None:
    text, read = READERS[reader]
    path = tmp_path / "file.json"
    path.write_bytes(text.encode())
    expected = read(path)
    assert expected
    for mark, encoding in MARKS.items():
        path.write_bytes(mark + text.encode(encoding))
        assert read(path) == expected, encoding


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\nna\xefve", r"x cannot be read \(line 2: byte 4 is 0xef, which UTF-8 text does not have there\): give a"),
        ("a\nb".encode("utf-16-le"), r"x cannot be read \(line 1: byte 1 is 0x00"),
        (b"\xff\xfea\0b", r"byte 4 is 0x62, which UTF-16-LE text does not have there"),
        (b"\x1f\x8b\x08\0", r"x cannot be read \(it is compressed, as \.gz\): unpack it"),
        (bz2.compress(b"a", 1), r"as \.bz2"),
        (bz2.compress(b""), r"as \.bz2"),
        (b"\x28\xb5\x2f\xfd\0", r"as \.zst"),
    ],
)
def test_what_is_no_text_is_said_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(HeadwayError, match=said) as raised:
        decoded(content, "x")
    assert "\n" not in str(raised.value)


def test_a_text_that_begins_with_the_letters_of_bzip2_is_a_text(tmp_path: Path) -> None:
    assert decoded(b"BZhang said hello", "x") == "BZhang said hello"
    assert decoded(b"BZh9 said hello", "x") == "BZh9 said hello"
    (tmp_path / "a.vec").write_bytes(b"BZhang 1 2\nking 3 4\n")
    assert load(tmp_path / "a.vec").words == ("BZhang", "king")


def test_lines_and_endings(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\n\nb\r\n")
    assert list(lines_of(tmp_path / "a")) == [(1, "a"), (2, ""), (3, "b")]
    assert [ending_of(Path(name)) for name in ("a.CONLLU", "a.vec.GZ", "a.tar.bz2", "a", ".txt")] == [
        ".conllu",
        ".vec",
        ".tar",
        "",
        "",
    ]
