"""Words read in their sentence: they stand where their pieces stand, and are what transformers computes for these."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headway
from headway import HeadwayError
from headway._common.words import spelling
from headway.checkpoints import BERT, FAMILIES, Checkpoint, Config
from headway.vectors import SubWords, Words, _train_bert
from headway.vectors import bert as ours
from headway.vectors._files import load
from headway.vectors._pretrained import Pretrained
from headway.vectors.bert import Bert

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

Find = Callable[[str], Path]

PIECES = [
    *_train_bert.SPECIAL,
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    *["the", "cat", "sat", "on", "mat", "play", "bank", "river", "cafe", "naive"],
    *("##ing", "##s", ".", ",", "!", "'", "国", "王", "女", "看", "见", "。"),
]
LENGTH = 24
"""Tokens that the small model reads."""
TEXTS = [
    "The cat sat on the mat.",
    "A cat's bank, on the river!",
    "Playing cats",
    "cat",
    "The bank sat on the river. " * 6,
    "国王看见女王。",
]
CHARACTERS = Words(chinese="characters")


def write_tokenizer(folder: Path, normalizer: Any = None) -> None:
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: number for number, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    made.normalizer = normalizer or tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """A model of this config with random weights of the size of one, beside a tokenizer."""
    (name,) = config["architectures"]
    family = next(family for family in FAMILIES.values() if name in family.architectures)()
    torch.manual_seed(0)
    model = family.build(Config(config), head=family.architectures[name])
    for key, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=2 * parameter.shape[-1] ** -0.5)
        else:
            torch.nn.init.normal_(parameter, mean=float(not key.endswith("bias")), std=0.2)
    model.checkpoint = Checkpoint(name, config)  # type: ignore[assignment]
    headway.save(model, folder)
    write_tokenizer(folder)
    return folder


SMALL = {**BERT.examples[1], "vocab_size": len(PIECES), "max_position_embeddings": LENGTH, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bert") / "small", SMALL)


@pytest.fixture
def bert(folder: Path) -> Bert:
    return Bert(path=folder, tokenizer=CHARACTERS)


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# -------------------------------------------------------------------- words and their pieces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat, the mat.", ["The", "cat", "the", "mat"]),
        ("a banana, an ant; A", ["a", "banana", "an", "ant", "A"]),
        ("CAFÉ naïve—don't", ["CAFÉ", "naïve", "don't"]),
        ("cafe\u0301 _x_ 3.5", ["cafe\u0301", "x", "3", "5"]),
        ("don’t हिन्दी ｃａｔ", ["don’t", "हिन्दी", "ｃａｔ"]),
        ("İstanbul, İİ cat", ["İstanbul", "İİ", "cat"]),
        ("国王看cat见", ["国", "王", "看", "cat", "见"]),
        (" \n", []),
    ],
)
def test_words_stand_where_they_stand(text: str, expected: list[str]) -> None:
    words, spans = ours.spans_of(text, CHARACTERS)
    assert words == CHARACTERS(text)
    assert [text[start:stop] for start, stop in spans] == expected
    assert words == [spelling(word, lower=True) for word in expected]


def test_words_of_several_characters(folder: Path) -> None:
    """As those that jieba cuts Chinese into."""
    bert = Bert(path=folder, tokenizer=lambda text: ["国王", "看见", "女王"])
    hidden = literally(bert, "国王看见女王。")
    near(bert.encode("国王看见女王。"), hidden[1:7].view(3, 2, 32).mean(1))


def test_other_tokenizers(bert: Bert) -> None:
    text = "The cat sat"
    assert ours.spans_of(text, str.split) == (["The", "cat", "sat"], [(0, 3), (4, 7), (8, 11)])
    assert ours.spans_of(text, lambda text: text.lower().split())[1] == [(0, 3), (4, 7), (8, 11)]
    sub_words = SubWords.train(["the cat sat on the mat"] * 3, size=40)
    words, spans = ours.spans_of(text, sub_words)
    assert words == sub_words(text)
    assert [text[start:stop].lower() for start, stop in spans] == [word.removeprefix("##") for word in words]
    with pytest.raises(HeadwayError, match="makes words that do not occur in the text: give Words"):
        ours.spans_of(text, lambda text: ["felis"])


def test_pieces_overlap_words_as_characters_do(bert: Bert) -> None:
    text = "Café plays, NAÏVE cats' 国王! qüx 鬼 don't"
    [(ids, words, pieces)] = bert._aligned([text])
    found = bert._pieces.encode(text, add_special_tokens=False)
    assert ids == found.ids
    _, spans = ours.spans_of(text, bert.tokenizer)
    for (start, stop), its in zip(spans, pieces, strict=True):
        expected = [
            number
            for number, (a, b) in enumerate(found.offsets)
            if set(range(a, b)) & set(range(start, stop)) and found.ids[number] != PIECES.index("[UNK]")
        ]
        assert its == expected
    named = {word: [found.tokens[piece] for piece in its] for word, its in zip(words, pieces, strict=True)}
    assert named["café"] == ["cafe"]
    assert named["plays"] == ["play", "##s"]
    assert named["cats"] == ["cat", "##s"]
    assert named["国"] == ["国"]
    assert named["鬼"] == []
    assert named["don't"] == ["d", "##o", "##n", "'", "t"]


def test_pieces_of_two_words_belong_to_both() -> None:
    """As pieces of Chinese do, and those with the space before a word."""
    assert ours._overlaps([(0, 2), (2, 4), (5, 6)], [(0, 0, 1), (1, 1, 3), (2, 3, 6)]) == [[0, 1], [1, 2], [2]]
    assert ours._overlaps([(1, 2)], []) == [[]]


# -------------------------------------------------------------------- what is read


def literally(bert: Bert, text: str) -> Tensor:
    """The encoder's hidden states of a text that fits, special tokens included, by transformers or by ``hidden``."""
    assert bert.model is not None
    with torch.no_grad():
        return bert.model.hidden(torch.tensor([bert._pieces.encode(text).ids]))[0]


def test_a_word_is_the_mean_of_its_pieces(bert: Bert) -> None:
    hidden = literally(bert, "Playing café cats, 国鬼")
    assert bert._pieces.encode("Playing café cats, 国鬼").tokens[1:-1] == [
        "play", "##ing", "cafe", "cat", "##s", ",", "国", "[UNK]",
    ]  # fmt: skip
    expected = [hidden[1:3].mean(0), hidden[3], hidden[4:6].mean(0), hidden[7], torch.zeros(32)]
    near(bert.encode("Playing café cats, 国鬼"), torch.stack(expected))
    near(bert.vector_in("cats", "Playing café cats, 国鬼"), expected[2])
    near(bert.vector_in("Playing Café", "Playing café cats, 国鬼"), hidden[1:4].mean(0))


def test_a_document_is_the_mean_of_all_tokens(bert: Bert) -> None:
    near(bert.document("The cat, sat."), literally(bert, "The cat, sat.").mean(0))
    assert torch.equal(bert.document(""), torch.zeros(32))


def test_a_word_differs_from_text_to_text(bert: Bert) -> None:
    text = "The cat sat on the bank. The bank sat."
    first, second = bert.vector_in("bank", text), bert.vector_in("bank", text, 1)
    near(torch.stack([first, second]), bert.encode(text)[[5, 7]])
    assert (first - second).abs().max() > 0.02


def test_words_of_no_text_are_read_alone(bert: Bert) -> None:
    near(bert.vector("cats"), literally(bert, "cats")[1:3].mean(0))
    near(bert.vector("Café"), literally(bert, "cafe")[1])
    assert "cats" in bert
    assert "国王" in bert
    for word in ("鬼", "", " ", 7):
        assert word not in bert
    with pytest.raises(HeadwayError, match="the word '鬼' has no piece that the encoder's tokenizer knows"):
        bert.vector("鬼")


def test_a_batch_is_one_by_one(bert: Bert) -> None:
    words = ["cat", "playing", "国", "rivers", "鬼", "abcdefgh", "the"]
    alone = torch.stack([bert.vector(word) if word in bert else torch.zeros(32) for word in words])
    near(bert._vectors(words), alone)
    assert bert._hidden([[2, 3], [2, 5, 6, 7, 3]]).shape == (2, 5, 32)


@pytest.mark.parametrize("count", [0, 1, 22, 23, 39, 40, 41, 200])
def test_windows_share_out_a_text(count: int) -> None:
    """Each token is taken once, from a window that it stands in, away from the edge where it can."""
    room, before = 22, 1
    windows = ours._windows(count, room, before)
    assert windows[0][2] == 0
    taken: dict[int, int] = {}
    for start, stop, first, end in windows:
        assert 0 <= start <= stop <= count
        assert stop - start == min(count, room)
        for place in range(first, min(end, before + count + 1)):
            assert place not in taken
            taken[place] = start
            piece = place - before
            if 0 <= piece < count:
                assert start <= piece < stop
                assert piece - start >= 2 or start == 0
                assert stop - 1 - piece >= 2 or stop == count
    assert sorted(taken) == list(range(before + count + 1))
    assert len(windows) == (1 if count <= room else math.ceil((count - room) / (room - room // 4)) + 1)


def test_long_texts_are_read_in_windows(bert: Bert) -> None:
    text = " ".join(PIECES[5 + (7 * n * n) % 26] for n in range(60))
    ids = bert._pieces.encode(text, add_special_tokens=False).ids
    assert len(ids) == 60
    assert bert.model is not None
    starts = [0, 17, 34, 38]  # 22 pieces each, a quarter of them shared
    expected = []
    for n in range(60):
        inside = [start for start in starts if start <= n < start + 22]
        start = max(inside, key=lambda start: (min(n - start, start + 21 - n), start))
        with torch.no_grad():
            hidden = bert.model.hidden(torch.tensor([[2, *ids[start : start + 22], 3]]))[0]
        expected.append(hidden[1 + n - start])
    found = bert.encode(text)
    same = [n for n in range(60) if (found[n] - expected[n]).abs().max() < 1e-5]
    assert len(same) >= 57, "all but those in the middle between two windows"
    assert bert.document(text).isfinite().all()


@pytest.mark.parametrize("name", ["bert", "albert", "roberta", "mpnet", "distilbert"])
def test_reads_what_transformers_reads(name: str, tmp_path: Path) -> None:
    """Every hidden state, of families whose layers share their parameters or whose positions begin elsewhere."""
    transformers = pytest.importorskip("transformers")
    example = next(one for one in FAMILIES[name].examples if not FAMILIES[name].architectures[one["architectures"][0]])
    path = write_model(tmp_path, {**example, "vocab_size": len(PIECES), "max_position_embeddings": LENGTH + 2})
    theirs = transformers.AutoModel.from_pretrained(path).eval()
    words = Bert(path=path)
    text = "Playing cats sat on the bank!"
    ids = torch.tensor([words._pieces.encode(text).ids])
    with torch.no_grad():
        states = theirs(ids, output_hidden_states=True).hidden_states
    layers = len(states) - 1
    if name == "albert":  # two blocks in each of its layers
        assert words.model is not None
        layers = len(words.model.stack.layers)
        states = {0: states[0], layers: states[-1]}
    else:
        states = dict(enumerate(states))
    for layer, state in states.items():
        hidden = state[0]
        expected = torch.stack([hidden[1:3].mean(0), hidden[3:5].mean(0), *hidden[5:9]])
        for number in (layer, layer - layers - 1):
            near(Bert(path=path, layer=number).encode(text), expected)


def test_layers_differ(folder: Path) -> None:
    found = [Bert(path=folder, layer=layer).encode("the cat sat") for layer in range(4)]
    assert all((a - b).abs().max() > 0.1 for a, b in pairwise(found))
    assert torch.equal(found[3], Bert(path=folder).encode("the cat sat"))


# -------------------------------------------------------------------- from texts


def test_a_static_vector_is_the_mean_of_occurrences(bert: Bert) -> None:
    told: list[float] = []
    assert bert.fit(iter(TEXTS), watch=told.append) is bert
    known = {word for text in TEXTS for word in CHARACTERS(text)}
    assert set(bert.words) == known
    for word in known:
        found = [
            vector
            for text in TEXTS
            for token, vector in zip(CHARACTERS(text), bert.encode(text), strict=True)
            if token == word
        ]
        near(bert.vector(word), torch.stack(found).mean(0))
        assert bert.counts is not None
        assert bert.counts[bert.index[word]] == len(found)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_batches_do_not_change_it(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    together = bert.fit(TEXTS).matrix
    monkeypatch.setattr(ours, "BATCH", 1)
    monkeypatch.setattr(ours, "CHUNK", 1)
    near(bert.fit(TEXTS).matrix, together)


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_occurrences_are_spread_evenly(most: int) -> None:
    for total in range(1, 40):
        chosen = [j for j in range(total) if ours._evenly(j, total, most)]
        assert len(chosen) == min(most, total)
        gaps = {b - a for a, b in pairwise(chosen)}
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_reads_so_many_occurrences(folder: Path) -> None:
    texts = [f"the cat {letter}" for letter in "abcdef"]
    bert = Bert(path=folder, occurrences=2).fit(texts)
    chosen = [n for n in range(6) if ours._evenly(n, 6, 2)]
    near(bert.vector("cat"), torch.stack([bert.vector_in("cat", texts[n]) for n in chosen]).mean(0))
    assert len(chosen) == 2


def test_vocabulary(folder: Path) -> None:
    texts = ["the cat the cat the 鬼 鬼 鬼 鬼", "a cat"]
    assert Bert(path=folder, tokenizer=CHARACTERS).fit(texts).words == ("cat", "the", "a")
    assert Bert(path=folder, tokenizer=CHARACTERS, min_count=2).fit(texts).words == ("cat", "the")
    fitted = Bert(path=folder, tokenizer=CHARACTERS, max_words=2).fit(texts)
    assert fitted.words == ("cat",)
    assert fitted.counts is not None
    assert fitted.counts.tolist() == [3]
    with pytest.raises(HeadwayError, match="knows none of the 1 words: give another path"):
        Bert(path=folder, tokenizer=CHARACTERS).fit(["鬼"])


def test_is_a_table_of_words(bert: Bert) -> None:
    bert.fit(TEXTS)
    cosine = torch.nn.functional.cosine_similarity(bert.vector("cat")[None], bert.matrix)
    order = [bert.words[i] for i in cosine.argsort(descending=True).tolist() if bert.words[i] != "cat"]
    assert [word for word, _ in bert.most_similar("cat", 5)] == order[:5]
    assert len(bert.analogy("cat", "cats", "bank", 3)) == 3
    assert bert.most_similar("abc", 2), "a word that is not in the table is read alone"
    rows = bert.embedding(["cat", "abc", "鬼"]).weight
    near(rows, torch.stack([bert.vector("cat"), bert.vector("abc"), torch.zeros(32), torch.zeros(32)]))


# -------------------------------------------------------------------- in a folder


def test_a_folder_holds_it_whole(bert: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bert = Bert(path=bert.path, layer=2, occurrences=5, min_count=2, tokenizer=CHARACTERS).fit(TEXTS)
    path = tmp_path / "deep" / "saved"
    bert.save(path)
    bert.save(path)  # over itself
    assert [file.name for file in path.parent.iterdir()] == ["saved"]
    for read in (Bert.read(path), load(path)):
        assert isinstance(read, Bert)
        assert read.options == {**bert.options, "path": str(path)}
        assert read.words == bert.words
        assert torch.equal(read.counts, bert.counts)  # type: ignore[arg-type]
        assert torch.equal(read.matrix, bert.matrix)
        assert torch.equal(read.encode("国王's cats"), bert.encode("国王's cats"))
        assert read.tokenizer == CHARACTERS
        assert Bert(**read.options).options == read.options
    static = load(path / "vectors.safetensors")
    assert torch.equal(static.vector("cat"), bert.vector("cat"))
    json.dumps(bert.options)


def test_a_checkpoint_without_a_table(bert: Bert, folder: Path, tmp_path: Path) -> None:
    plain = Bert.read(folder, tokenizer=CHARACTERS)
    assert len(plain) == 0
    assert torch.equal(plain.encode("the cat"), bert.encode("the cat"))
    for ask in (lambda: plain.most_similar("cat"), lambda: plain.analogy("a", "b", "c"), plain.embedding):
        with pytest.raises(HeadwayError, match=r"Bert has no vectors yet: call fit\(texts\)"):
            ask()
    Bert(path=folder, tokenizer=CHARACTERS).fit(TEXTS).save(tmp_path)
    plain.save(tmp_path)
    assert len(Bert.read(tmp_path)) == 0, "the table of before is gone"


def test_a_tokenizer_of_ones_own(folder: Path, tmp_path: Path) -> None:
    Bert(path=folder, tokenizer=str.split).fit(["the cat sat"]).save(tmp_path / "saved")
    with pytest.raises(HeadwayError, match="was saved with a tokenizer of your own: give it again"):
        Bert.read(tmp_path / "saved")
    assert Bert.read(tmp_path / "saved", tokenizer=str.split).words == ("cat", "sat", "the")


def test_refuses_a_damaged_folder(bert: Bert, tmp_path: Path) -> None:
    bert.fit(TEXTS).save(tmp_path)
    Pretrained.of(["cat"], torch.ones(1, 7)).save(tmp_path / "vectors.safetensors")
    with pytest.raises(HeadwayError, match="has vectors of 7 numbers and the encoder beside it makes 32"):
        Bert.read(tmp_path)
    (tmp_path / "vectors.json").write_text("{")
    with pytest.raises(HeadwayError, match=r"vectors.json cannot be read .*: save the vectors again"):
        Bert.read(tmp_path)
    (tmp_path / "a file").touch()
    with pytest.raises(HeadwayError, match="cannot be written"):
        bert.save(tmp_path / "a file")


# -------------------------------------------------------------------- bad input


def test_refuses_what_is_no_encoder_of_text(tmp_path: Path, folder: Path) -> None:
    example = headway.checkpoints.GPT2.examples[0]
    path = write_model(tmp_path / "gpt2", {**example, "vocab_size": len(PIECES)})
    with pytest.raises(HeadwayError, match=r"gpt2 is a Decoder, .*: give an encoder such as BERT"):
        Bert(path=path)
    path = write_model(tmp_path / "bare", SMALL)
    (path / "tokenizer.json").unlink()
    with pytest.raises(HeadwayError, match=r"bare has neither tokenizer.json nor vocab.txt"):
        Bert(path=path)
    with pytest.raises(HeadwayError, match=r"is not a folder: give one with config.json"):
        Bert(path=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "layer is 4: the model has 3, give -4 … 3"),
        ({"layer": -5}, "layer is -5"),
        ({"occurrences": 0}, "occurrences is 0: give at least 1"),
        ({"path": None, "layer": 5}, "layer is 5: the model has 2, give -3 … 2"),
        ({"path": None, "dim": 30}, "dim is 30: give a multiple of num_heads, which is 4"),
        ({"path": None, "steps": 0}, "steps is 0: give at least 1"),
    ],
)
def test_refuses_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        Bert(**{"path": folder, **options})


def test_says_what_is_missing(bert: Bert) -> None:
    new = Bert()
    assert new.dim == 128
    assert "cat" not in new
    asked: list[Callable[[], Any]] = [
        lambda: new.vector("cat"),
        lambda: new.encode("cat"),
        lambda: new.document("cat"),
        lambda: new.vector_in("cat", "cat"),
        lambda: new.save("nowhere"),
    ]
    for ask in asked:
        with pytest.raises(
            HeadwayError, match=r"Bert has no encoder yet: call fit\(texts\) to train one, or give path"
        ):
            ask()
    with pytest.raises(HeadwayError, match=r"the word 'dog' stands nowhere among the 2 words of the text"):
        bert.vector_in("dog", "the cat")
    with pytest.raises(HeadwayError, match=r"'cat' stands 1 times .* and occurrence 1 is wanted"):
        bert.vector_in("cat", "the cat", 1)
    with pytest.raises(HeadwayError, match=r"texts is a str: give a list of texts"):
        bert.fit("the cat")
    with pytest.raises(HeadwayError, match=r"the corpus has no words in its 1 texts"):
        bert.fit(["!"])


# -------------------------------------------------------------------- trained, and published


def test_trains_its_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dim": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 60, "length": 12, "steps": 5, "batch": 2,
    }  # fmt: skip
    texts = ["the cat sat on the mat", "the dog sat on the cat"] * 10
    told: list[float] = []
    first, second = Bert(**settings).fit(texts, watch=told.append), Bert(**settings, out=tmp_path / "out").fit(texts)
    assert first.words == second.words == ("the", "cat", "on", "sat", "dog", "mat")
    assert first.dim == 16
    assert torch.equal(first.matrix, second.matrix)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert (tmp_path / "out" / "training.jsonl").exists()
    first.save(tmp_path / "saved")
    read = Bert.read(tmp_path / "saved")
    assert torch.equal(read.encode("the dog"), first.encode("the dog"))
    assert read.options == {**first.options, "path": str(tmp_path / "saved")}
    assert headway.load(tmp_path / "saved").checkpoint.architecture == "BertForMaskedLM"
    with pytest.raises(HeadwayError, match="out holds a training with steps = 5, now 6"):
        Bert(**{**settings, "steps": 6}, out=tmp_path / "out").fit(texts)


def test_minilm_reads_what_transformers_reads(weights: Find) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(weights("minilm")).eval()
    words = transformers.AutoTokenizer.from_pretrained(weights("minilm"))
    text = "The unbelievable café stood, by the river bank."
    given = words(text, return_tensors="pt", return_offsets_mapping=True)
    spans = given.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        states = theirs(**given, output_hidden_states=True).hidden_states
    for layer in (0, 3, 6):
        bert = Bert(path=weights("minilm"), layer=layer)
        expected = []
        for word in ("The", "unbelievable", "café", "stood", "by", "the", "river", "bank"):
            start = text.index(word)
            inside = [n for n, (a, b) in enumerate(spans) if start <= a < b <= start + len(word)]
            expected.append(states[layer][0, inside].mean(0))
        torch.testing.assert_close(bert.encode(text), torch.stack(expected), atol=1e-5, rtol=1e-5)
        near(bert.document(text), states[layer][0].mean(0))


def test_minilm_tells_banks_apart(weights: Find) -> None:
    bert = Bert(path=weights("minilm"))
    river = bert.vector_in("bank", "He sat on the bank of the river and fished.")
    money = bert.vector_in("bank", "She took the money to the bank.")
    rates = bert.vector_in("bank", "The bank raised its interest rates.")

    def cosine(a: Tensor, b: Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a, b, dim=0))

    assert cosine(money, rates) > max(cosine(river, money), cosine(river, rates)) + 0.05
    assert cosine(river, money) < 0.9
