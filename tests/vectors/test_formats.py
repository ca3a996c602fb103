"""The formats of others: gensim reads what is written here, and writes what is read here."""

from __future__ import annotations

import gzip
import lzma
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.models import FastText as GensimFastText
from gensim.models import KeyedVectors
from gensim.models.fasttext import load_facebook_model, load_facebook_vectors, save_facebook_model
from gensim.test.utils import datapath

from headway._common.text_files import packed_as
from headway.errors import HeadwayError
from headway.vectors import _formats
from headway.vectors._fasttext_bin import ARGUMENTS, MAGIC, SHAPE, SIZES
from headway.vectors._files import FORMATS, load, write
from headway.vectors._pretrained import Pretrained
from headway.vectors.fasttext import FastText

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # gensim's, of GloVe's text

WORDS = ["the", "König", "猫", "e_mail", "don't", "naïve", "1984", "…"]
TEXTS = [["river", "bank", "water", "flow"], ["money", "bank", "cash", "König"], ["河", "水", "water", "the"]] * 9


@pytest.fixture
def table() -> Pretrained:
    numbers = torch.randn(len(WORDS), 7, generator=torch.Generator().manual_seed(0))
    numbers[0, :3] = torch.tensor([1e-30, -3.4e38, 0.1])
    return Pretrained.of(WORDS, numbers)


@pytest.fixture(scope="module")
def gensims() -> GensimFastText:
    return GensimFastText(
        TEXTS, vector_size=6, min_count=1, min_n=2, max_n=4, bucket=50, epochs=2, sg=1, window=3, workers=1, seed=1
    )


GENSIM: dict[str, tuple[Callable[[Path], KeyedVectors], Callable[[KeyedVectors, Path], None]]] = {
    "word2vec": (
        lambda path: KeyedVectors.load_word2vec_format(path),
        lambda held, path: held.save_word2vec_format(path),
    ),
    "word2vec-binary": (
        lambda path: KeyedVectors.load_word2vec_format(path, binary=True),
        lambda held, path: held.save_word2vec_format(path, binary=True),
    ),
    "glove": (
        lambda path: KeyedVectors.load_word2vec_format(path, no_header=True),
        lambda held, path: held.save_word2vec_format(path, write_header=False),
    ),
}
"""How gensim reads each format and how it writes it."""


def keyed(vectors: Pretrained) -> KeyedVectors:
    made = KeyedVectors(vectors.dim)
    made.add_vectors(list(vectors.words), vectors.matrix.numpy())
    return made


def test_every_format_is_compared() -> None:
    assert set(GENSIM) | {"fasttext"} == set(FORMATS)


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz", ".GZ"])
@pytest.mark.parametrize("name", GENSIM)
def test_there_and_back(name: str, packed: str, table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / f"vectors.any{packed}"
    write(table, path, name)
    read = load(path)
    assert read.words == table.words
    assert isinstance(read, Pretrained)
    assert torch.equal(read.matrix, table.matrix)
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
    assert (packed_as(path.read_bytes()) or "") == packed.lower()


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("name", GENSIM)
def test_gensim_reads_what_is_written(name: str, packed: str, table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / f"vectors.txt{packed}"
    write(table, path, name)
    read = GENSIM[name][0](path)
    assert tuple(read.index_to_key) == table.words
    assert np.array_equal(read.vectors, table.matrix.numpy())


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("name", GENSIM)
def test_what_gensim_writes_is_read(name: str, packed: str, table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / f"vectors.txt{packed}"
    GENSIM[name][1](keyed(table), path)
    read = load(path)
    assert read.words == table.words
    assert isinstance(read, Pretrained)
    assert torch.equal(read.matrix, table.matrix)
    first = load(path, limit=3)
    assert first.words == table.words[:3]


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("test_glove.txt", {"no_header": True}),
        ("euclidean_vectors.bin", {"binary": True}),
        ("poincare_vectors.bin", {"binary": True}),
        ("word2vec_pre_kv_c", {}),
        ("crime-and-punishment.vec", {}),
        ("lee_fasttext.vec", {}),
        ("EN.1-10.cbow1_wind5_hs0_neg10_size300_smpl1e-05.txt", {}),
        ("high_precision.kv.bin", {"binary": True}),
        ("high_precision.kv.txt", {}),
        ("w2v_keyedvectors_load_test.modeldata", {"unicode_errors": "backslashreplace"}),
    ],
)
def test_gensims_own_files(file: str, settings: dict[str, Any]) -> None:
    ours, gensims = load(datapath(file)), KeyedVectors.load_word2vec_format(datapath(file), **settings)
    assert isinstance(ours, Pretrained)
    assert list(ours.words) == gensims.index_to_key
    assert np.array_equal(ours.matrix.numpy(), gensims.vectors)


def test_many_blocks_are_one_file(table: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.vectors._formats.BLOCK", 64)
    for name in GENSIM:
        write(table, tmp_path / name, name)
        for limit in range(1, len(WORDS) + 2):
            read = load(tmp_path / name, limit=limit)
            assert read.words == table.words[:limit]
            assert torch.equal(read.rows(torch.arange(len(read))), table.matrix[:limit])


# ---------------------------------------------------------------- what files have besides


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"2 2\na 1 2\nb 3 4\n", ["a", "b"]),
        (b"2 2\na 1 2 \nb 3 4 \n", ["a", "b"]),  # fastText's program ends lines with a space
        (b"2 2\r\na 1 2\r\nb 3 4\r\n", ["a", "b"]),
        (b"a 1 2\nb 3 4", ["a", "b"]),
        (b"a 1 2\n\nb 3 4\n\n", ["a", "b"]),
        (b"a\t1\t2\nb\t3\t4\n", ["a", "b"]),
        (b"a 1 2\n. . . 3 4\n", ["a", ". . ."]),  # so are some lines of GloVe's 840B
        (b"a 1 2\nat name@domain.com 3 4\n", ["a", "at name@domain.com"]),
        ("\u00a0 1 2\nx\u2028y\x85z 3 4\n".encode(), ["\u00a0", "x\u2028y\x85z"]),  # no line ends
        (b"7 1 2\n8 3 4\n", ["7", "8"]),
        (b"2 2\n  1.0 2.0\nb 3.0 4.0\n", [" ", "b"]),  # a word that is a space
        (b"  1.0 2.0\nb 3.0 4.0\n", [" ", "b"]),
        (b"b 1 2\n   3 4\n", ["b", "  "]),
        (b"2 2\n1 000 1.0 2.0\nwindows 10 3.0 4.0\n", ["1 000", "windows 10"]),
        (b"a 1.0 2.0\n1 1/2 3.0 4.0\n", ["a", "1 1/2"]),
        (b"1e5 1 2\nnan 3 4\n", ["1e5", "nan"]),
    ],
)
def test_text_as_people_have_it(content: bytes, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    read = load(tmp_path / "v")
    assert list(read.words) == words
    assert read.rows(torch.arange(2)).tolist() == [[1, 2], [3, 4]]


def test_a_word_that_is_a_space_in_the_binary_format(tmp_path: Path) -> None:
    for end in (b"", b"\n"):
        rows = [word + b" " + numbers.tobytes() + end for word, numbers in zip((b"a", b" ", b"b"), THREE, strict=True)]
        (tmp_path / "v").write_bytes(b"3 2\n" + b"".join(rows))
        read = load(tmp_path / "v")
        assert read.words == ("a", " ", "b")
        assert read.rows(torch.arange(3)).tolist() == THREE.tolist()


def test_of_a_word_that_stands_twice_the_first_is_kept_as_gensim_does(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"4 2\na 1 2\nb 3 4\na 5 6\nc 7 8\n")
    ours, gensims = load(tmp_path / "v"), KeyedVectors.load_word2vec_format(tmp_path / "v")
    assert list(ours.words) == list(gensims.key_to_index) == ["a", "b", "c"]
    assert ours.rows(torch.arange(3)).tolist() == gensims.vectors[:3].tolist() == [[1, 2], [3, 4], [7, 8]]


def test_another_encoding_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes("2 2\nкот 1 2\nпёс 3 4\n".encode("cp1251"))
    with pytest.raises(HeadwayError, match=r"v: line 2: '.*' is not utf-8: give encoding=, such as 'latin-1' or"):
        load(path)
    assert load(path, encoding="cp1251").words == ("кот", "пёс")
    path.write_bytes("2 2\nкот 1 2\nпёс 3 4\n".encode("utf-16-le"))
    assert load(path, encoding="utf-16-le").words == ("кот", "пёс")
    with pytest.raises(HeadwayError, match="encoding is 'klingon', which Python does not know"):
        load(path, encoding="klingon")


def test_a_few_broken_words_are_kept(tmp_path: Path) -> None:
    lines = [f"w{n} {n} 1\n".encode() for n in range(300)]
    lines[7] = b"\n\ncaf\xe9s 7 1\n"
    lines[8] = "größe".encode()[:3] + b" 8 1\n"  # cut within a letter, as word2vec's program does
    (tmp_path / "v").write_bytes(b"".join(lines))
    read = load(tmp_path / "v")
    assert read.words[7:9] == ("caf\\xe9s", "gr\\xc3")
    lines[9:14] = [b"\xe9%d 1 1\n" % n for n in range(5)]
    (tmp_path / "v").write_bytes(b"".join(lines))
    with pytest.raises(HeadwayError, match=r"line 10: 'caf.xe9s' is not utf-8"):
        load(tmp_path / "v")


# ---------------------------------------------------------------- what is wrong in them

THREE = np.array([[1, 2], [3, 4], [5, 6]], dtype="<f4")
TWO = np.array([[1, 2], [3, 4]], dtype="<f4")
BINARY = b"2 2\nab " + TWO[0].tobytes() + b"\ncd " + TWO[1].tobytes() + b"\n"
BAD = {
    "nothing": (b"", "it is empty: give a file with vectors"),
    "blank": (b"\n\n", "no words are in it"),
    "too few": (b"a 1 2\nb 3\n", "line 2: the vector of 'b' has length 1 instead of 2: give vectors of one length"),
    "too many": (b"a 1 2\nb 3 4\nc 5 6 7\n", "line 3: the vector of 'c' has length 3 instead of 2"),
    "none": (b"2 2\na 1 2\nb\n", "line 3: the vector of 'b' has length 0 instead of 2"),
    "words alone": (b"a\nb\n", "line 1: 'a' has no numbers: give a file of words and their vectors"),
    "one more and one less": (b"a 1 2\nb 3\nc 5 6 7\n", "line 2: the vector of 'b' has length 1 instead of 2"),
    "no number": (b"a 1 2\nb 3 four\n", "line 2: 'four' is not a number"),
    "no number at first": (b"2 2\na 1 x\nb 3 4\n", "line 2: 'x' is not a number"),
    "nearly a number": (b"a 1 2\nb 3 1_0\n", "line 2: '1_0' is not a number"),
    "hexadecimal": (b"a 1 2\nb 3 0x1\n", "line 2: '0x1' is not a number"),
    "prose": (b"It was the best of times\n", "line 1: 'was' is not a number: give a file of words"),
    "nan": (b"a 1 2\n\nb 3 nan\n", "line 3: the vector of 'b' holds nan or infinity"),
    "infinity": (b"2 2\na 1 2\nb -inf 4\n", "line 3: the vector of 'b' holds nan or infinity"),
    "beyond float32": (b"a 1 2\nb 3 1e39\n", "line 2: the vector of 'b' holds nan or infinity"),
    "header of more": (b"9 2\na 1 2\nb 3 4\n", "the header promises 9 words and 2 are there: get the whole file"),
    "header of fewer": (b"1 2\na 1 2\n\nb 3 4\n", "line 4: the header promises 1 words and here is one more"),
    "header of other sizes": (b"2 3\na 1 2\nb 3 4\n", "line 2: the vector of 'a' has length 2 instead of 3"),
    "header alone": (b"2 3\n", "the header promises 2 words and 0 are there"),
    "header of too many digits": (
        b"9" * 5000 + b" 3\na 1 2 3\n",
        "line 2: the vector of 'a' has length 3 instead of 1",
    ),
    "header of nothing": (b"0 3\n", "the header promises 0 words of 3 numbers: give at least one of each"),
    "header beyond belief": (b"3 99999999999\na 1 2\n", "the header promises 3 words of 99,999,999,999 numbers"),
    "no word": (b"a 1 2\n 3 4\n", "line 2: no word stands before the 2 numbers: give it"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "it is compressed, as .zst: unpack it"),
    "binary, cut": (BINARY[:-4], "the header promises 2 words, the file holds 1 and ends within that of 'cd'"),
    "binary, cut in a word": (BINARY[:-11], "promises 2 words, the file holds 1 and ends within that of 'c': get"),
    "binary, cut between": (BINARY[:15], "the header promises 2 words, the file holds 1: get the whole file"),
    "binary of more": (b"1" + BINARY[1:], "the header promises 1 words of 2 numbers and more follows them"),
    "binary of fewer": (b"900000000" + BINARY[1:], "promises 900,000,000 words, the file holds 2: get the whole"),
    "binary, nan": (BINARY[:-9] + struct.pack("<ff", 1, np.nan), "word 2: the vector of 'cd' holds nan or infinity"),
    "pickle": (b"\x80\x04\x95rest", "it is a pickle, such as gensim's .model and .kv, and runs code when it is read"),
    "zip": (b"PK\x03\x04glove.6B.300d.txt", "it is compressed, as .zip: unpack it"),
    "array": (b"\x93NUMPY\x01\x00v\x00{'descr'", "it has no known format"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_wrong_is_named(case: str, packed: bool, tmp_path: Path) -> None:
    content, says = BAD[case]
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(HeadwayError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_that_looks_like_lines_is_binary(tmp_path: Path) -> None:
    """The first number's first byte is a line's end, which one file in 256 has there."""
    numbers = np.frombuffer(b"\n\x00\x80\x3f" + b"\x01\x00\x80\x3f" * 3, dtype="<f4").reshape(2, 2)
    (tmp_path / "v").write_bytes(b"2 2\na " + numbers[0].tobytes() + b"b " + numbers[1].tobytes())
    assert np.array_equal(load(tmp_path / "v").rows(torch.arange(2)).numpy(), numbers)


@pytest.mark.parametrize("start", [b"", b"9 8\nword", b"9 300\nword\0"])
def test_a_line_without_an_end_is_refused_early(start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file of 200 kB may have one of 10⁹ bytes."""
    monkeypatch.setattr(_formats, "BLOCK", 1000)
    monkeypatch.setattr(_formats, "LONGEST_LINE", 10_000)
    (tmp_path / "v.gz").write_bytes(gzip.compress(start + b"0" * 20_000))
    with pytest.raises(HeadwayError, match="has more than 10,000 bytes: give a file of words and their vectors"):
        load(tmp_path / "v.gz")


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_cut_short_is_said(packed: str, table: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / f"v.vec{packed}"
    write(table, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(HeadwayError, match=r"v.vec.* cannot be read \(.*\): get the whole file"):
        load(path)
    path.write_bytes(whole[:40] + b"?" + whole[41:])
    with pytest.raises(HeadwayError, match=r"v.vec.*"):
        load(path)


def test_a_python_without_a_packer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v.xz").write_bytes(lzma.compress(b"a 1 2\n"))
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(HeadwayError, match="it is compressed, and this Python has no lzma: unpack it"):
        load(tmp_path / "v.xz")


@pytest.mark.parametrize("word", ["two words", "a line\nend", "", "\udc80"])
@pytest.mark.parametrize("name", GENSIM)
def test_words_that_a_format_cannot_hold(name: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(b"what was there")
    with pytest.raises(HeadwayError, match="is empty, is not UTF-8 or holds a space or a line's end"):
        write(Pretrained.of(["a", word], torch.ones(2, 3)), path, name)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- fastText's .bin


@pytest.mark.parametrize("file", ["crime-and-punishment.bin", "lee_fasttext_new.bin", "toy-model.bin"])
def test_fasttexts_files_as_gensim_reads_them(file: str) -> None:
    ours, gensims = load(datapath(file)), load_facebook_vectors(datapath(file))
    assert isinstance(ours, FastText)
    assert list(ours.words) == gensims.index_to_key
    assert ours.counts is not None
    assert ours.counts.tolist() == [gensims.get_vecattr(word, "count") for word in ours.words]
    assert (ours.min_n, ours.max_n, ours.bucket) == (gensims.min_n, gensims.max_n, gensims.bucket)
    for word in [*ours.words, "never-seen", "невиданный", "x"]:
        if word == "</s>":  # to which fastText gives no n-grams, and gensim does: see the test below
            continue
        assert np.allclose(ours.vector(word).numpy(), gensims[word], atol=1e-6), word
    few = load(datapath(file), limit=5)
    assert load(datapath(file), tokenizer=str.split).tokenizer is str.split
    assert few.words == ours.words[:5]
    assert torch.equal(few.vector("never-seen"), ours.vector("never-seen"))


def test_fasttexts_files_as_fasttext_itself_writes_them() -> None:
    ours, itself = load(datapath("crime-and-punishment.bin")), load(datapath("crime-and-punishment.vec"))
    assert ours.words == itself.words
    assert "</s>" in ours
    assert torch.allclose(ours.rows(torch.arange(len(ours))), itself.rows(torch.arange(len(ours))), atol=5e-5, rtol=0)


def test_what_gensim_writes_as_fasttexts_is_read(gensims: GensimFastText, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    save_facebook_model(gensims, str(path))
    ours = load(path)
    assert isinstance(ours, FastText)
    assert list(ours.words) == gensims.wv.index_to_key
    assert (ours.window, ours.epochs, ours.architecture, ours.negative) == (3, 2, "skip-gram", 5)
    for word in [*ours.words, "waters", "banks", "水河", "Königin"]:
        assert np.allclose(ours.vector(word).numpy(), gensims.wv[word], atol=1e-6), word


def test_gensim_reads_what_is_written_as_fasttexts(gensims: GensimFastText, tmp_path: Path) -> None:
    save_facebook_model(gensims, str(tmp_path / "first.bin"))
    ours = load(tmp_path / "first.bin")
    write(ours, tmp_path / "second.bin", "fasttext")
    model = load_facebook_model(str(tmp_path / "second.bin"))
    assert model.wv.index_to_key == list(ours.words)
    assert (model.window, model.epochs, model.sg, model.negative) == (3, 2, 1, 5)
    assert model.corpus_total_words == gensims.corpus_total_words
    for word in [*ours.words, "waters", "水河"]:
        assert np.allclose(model.wv[word], gensims.wv[word], atol=1e-6), word
    again = load(tmp_path / "second.bin")
    assert again.options == ours.options
    assert torch.allclose(again.rows(torch.arange(len(again))), ours.rows(torch.arange(len(ours))), atol=1e-6)


def test_sparse_buckets_are_written_out(tmp_path: Path) -> None:
    made = FastText(dim=4, bucket=1000, min_count=1, epochs=1).fit(["a river flows", "the river bank"])
    assert len(made.buckets) < 1000
    write(made, tmp_path / "v.bin", "fasttext")
    gensims = load_facebook_vectors(str(tmp_path / "v.bin"))
    for word in [*made.words, "rivers"]:
        assert np.allclose(gensims[word], made.vector(word).numpy(), atol=1e-6), word


def test_bytes_that_are_no_letters_are_hashed_as_they_are(tmp_path: Path) -> None:
    """The word is one byte, 0xE9, and has two n-grams of two bytes, "<" before it and ">" behind, in 1,000 buckets."""
    content = MAGIC + struct.pack("<i", 12) + ARGUMENTS.pack(1, 5, 5, 1, 5, 1, 2, 2, 1000, 2, 2, 100, 1e-4)
    content += SIZES.pack(1, 1, 0, 1, -1) + b"\xe9\0" + struct.pack("<qb", 1, 0) + SHAPE.pack(False, 1001, 1)
    rows = np.zeros(1001, dtype="<f4")
    for two in ((0x3C, 0xFFFFFFE9), (0xFFFFFFE9, 0x3E)):
        hashed = 2166136261
        for byte in two:
            hashed = ((hashed ^ byte) * 16777619) % 2**32
        rows[1 + hashed % 1000] = 6.0
    assert rows.sum() == 12
    (tmp_path / "v.bin").write_bytes(content + rows.tobytes())
    read = load(tmp_path / "v.bin")
    assert read.words == ("\\xe9",)
    assert read.rows(torch.tensor([0])).item() == 4.0


def changed(at: int, form: str, value: float) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        return content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form) :]

    return change


ARGS, DICTIONARY = 8, 8 + ARGUMENTS.size
BAD_BIN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the arguments": (lambda held: held[:20], "it ends at byte 20, before its numbers"),
    "cut in the words": (lambda held: held[: DICTIONARY + 60], r"it ends within word 3 of 291"),
    "cut in the matrix": (lambda held: held[:8000], r"it ends within row \d+ of 391: get the whole file"),
    "version": (changed(4, "<i", 99), "its version is 99"),
    "classifier": (changed(ARGS + 28, "<i", 3), "it holds a classifier with 0 labels"),
    "labels": (changed(DICTIONARY + 8, "<i", 2), "it holds a classifier with 2 labels"),
    "pruned": (changed(DICTIONARY + 20, "<q", 5), "its n-grams are pruned to 5, as in .ftz: give the .bin"),
    "a huge vocabulary": (
        lambda held: changed(DICTIONARY, "<i", 2**31 - 1)(changed(DICTIONARY + 4, "<i", 2**31 - 1)(held)),
        "its word 292, '', is a label: it is damaged",
    ),
    "no words": (
        lambda held: changed(DICTIONARY, "<i", 0)(changed(DICTIONARY + 4, "<i", 0)(held)),
        "it states 0 words of 5 numbers and 100 n-grams: it is damaged",
    ),
    "a huge bucket": (changed(ARGS + 32, "<i", 2**31 - 1), "its matrix is 391 × 5 for 291 words, 2,147,483,647"),
    "a negative bucket": (changed(ARGS + 32, "<i", -7), "and -7 n-grams: it is damaged"),
    "a huge dim": (changed(ARGS, "<i", 2**31 - 1), "its matrix is 391 × 5 for 291 words, 100 n-grams and 2147483647"),
}


@pytest.mark.parametrize("case", BAD_BIN)
def test_what_is_wrong_in_fasttexts_is_named(case: str, tmp_path: Path) -> None:
    change, says = BAD_BIN[case]
    path = tmp_path / "model.bin"
    path.write_bytes(change(Path(datapath("crime-and-punishment.bin")).read_bytes()))
    with pytest.raises(HeadwayError, match=says):
        load(path)


def test_a_huge_matrix_takes_no_memory(tmp_path: Path) -> None:
    """Sizes that agree with one another and not with the file: 2 billion rows of 2 billion numbers."""
    most = 2**31 - 1
    held = Path(datapath("crime-and-punishment.bin")).read_bytes()
    held = changed(ARGS, "<i", most)(changed(ARGS + 32, "<i", most)(held))
    at = held.index(SHAPE.pack(False, 391, 5))
    (tmp_path / "v.bin").write_bytes(held[:at] + SHAPE.pack(False, 291 + most, most) + held[at + SHAPE.size :])
    with pytest.raises(HeadwayError, match="it ends within row 1 of 2,147,483,938: get the whole file"):
        load(tmp_path / "v.bin")
    (tmp_path / "v.bin").write_bytes(held[:at] + SHAPE.pack(True, 391, 5) + held[at + SHAPE.size :])
    with pytest.raises(HeadwayError, match=r"its numbers are quantised, as in .ftz: give the .bin it was made from"):
        load(tmp_path / "v.bin")


@pytest.mark.parametrize("file", ["lee_fasttext.bin", "non_ascii_fasttext.bin"])
def test_fasttexts_first_format_is_refused(file: str) -> None:
    with pytest.raises(HeadwayError, match=r"it has no known format.*fastText's .bin \(since 2017\)"):
        load(datapath(file))


def test_a_classifier_is_refused() -> None:
    with pytest.raises(HeadwayError, match="it holds a classifier with 2 labels: give a model of words"):
        load(datapath("pang_lee_polarity_fasttext.bin"))


def test_fasttexts_takes_neither_gzip_nor_another_encoding_nor_other_ways(table: Pretrained, tmp_path: Path) -> None:
    held = Path(datapath("toy-model.bin")).read_bytes()
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress(held))
    with pytest.raises(HeadwayError, match="it is compressed, which only word2vec's and GloVe's formats may be"):
        load(tmp_path / "v.bin.gz")
    with pytest.raises(HeadwayError, match="encoding is for other formats"):
        load(datapath("toy-model.bin"), encoding="latin-1")
    with pytest.raises(HeadwayError, match=r"pretrained has no sub-words, which fastText's .bin holds"):
        write(table, tmp_path / "v.bin", "fasttext")
    assert not (tmp_path / "v.bin").exists()
