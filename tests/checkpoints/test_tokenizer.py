"""Tokenizers of folders and GGUF files, against transformers' own on strings that are tricky."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoints._tokenizer import OF_NORMALIZER, tokenizer
from headway.errors import HeadwayError

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

STRINGS = [
    "",
    " ",
    "\n",
    "The capital of France is",
    "  two  spaces\n\n\tand tabs ",
    "I'll I'LL don't WE'VE 'tis",
    "3.14159 in 2024, a1b22 on  77",
    "naïve café Ångström, e\u0301 and \u212b",
    "你好，世界。漢字とかな",
    "🙂👩\u200d👩\u200d👧 ok",
    "def f(x):\r\n    return x**2  # fine\n\n\n",
    "http://x.y/z?a=1&b=2 -- [MASK] [mask]",
    "a<|end|>b <|end|> <|END|>\n<think> now</think>",
    "<|en",
    "\u00a0\u2003odd  blanks\u200b",
    "ﬁne ½ x² Ⅻ",
    "\x00\x01\ufffd",
    "antidisestablishmentarianism " * 5,
]


@pytest.fixture(scope="module")
def learned() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens and merges learned from the strings, with words across digits and blanks among them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=450, initial_alphabet=sorted(alphabet), show_progress=False, special_tokens=["<|end|>", "<think>"]
    )
    made.train_from_iterator(STRINGS * 3, trainer)
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write_gguf(path: Path, vocab: dict[str, int], pairs: list[tuple[str, str]], before: str, **more: Any) -> Path:
    said: dict[str, Any] = {
        "model": "gpt2",
        "tokens": sorted(vocab, key=lambda token: vocab[token]),
        "merges": [" ".join(pair) for pair in pairs],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "add_bos_token": False,
        **more,
    }
    said.setdefault(
        "token_type",
        [
            gguf.TokenType[{"<|end|>": "CONTROL", "<think>": "USER_DEFINED"}.get(token, "NORMAL")]
            for token in said["tokens"]
        ],
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(said["model"])
    writer.add_tokenizer_pre(before)
    writer.add_token_list(said["tokens"])
    writer.add_token_types(said["token_type"])
    writer.add_token_merges(said["merges"])
    writer.add_bos_token_id(said["bos_token_id"])
    writer.add_eos_token_id(said["eos_token_id"])
    writer.add_add_bos_token(said["add_bos_token"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def with_digits(vocab: Any, merges: Any) -> Any:
    """GPT-2's, where each digit is a word: how the tokenizer.json of SmolLM 2 has it."""
    theirs = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    cut = tokenizers.pre_tokenizers
    theirs.backend_tokenizer.pre_tokenizer = cut.Sequence([cut.Digits(True), cut.ByteLevel(add_prefix_space=False)])
    return theirs


THEIRS: dict[str, Callable[..., Any]] = {
    "gpt-2": lambda vocab, merges: transformers.GPT2Tokenizer(vocab=vocab, merges=merges),
    "qwen2": lambda vocab, merges: transformers.Qwen2Tokenizer(vocab=vocab, merges=merges),
    "smollm": with_digits,
}


@pytest.mark.parametrize("before", THEIRS)
def test_pairs_of_bytes_are_merged_as_in_transformers(before: str, learned: Any, tmp_path: Path) -> None:
    vocab, merges = learned
    found = tokenizer(write_gguf(tmp_path / "model.gguf", vocab, merges, before))
    theirs = THEIRS[before](vocab, merges)
    theirs.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    theirs.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    for text in STRINGS:
        ids = found.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert found.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    if before != "qwen2":  # which composes letters and accents first
        assert all(found.decode(found.encode(text).ids, skip_special_tokens=False) == text for text in STRINGS)


def test_the_ways_to_cut_differ(learned: Any, tmp_path: Path) -> None:
    # so that a table with the wrong rows fails
    vocab, merges = learned
    cut = {
        before: [
            tuple(piece.ids)
            for piece in tokenizer(write_gguf(tmp_path / "model.gguf", vocab, merges, before)).encode_batch(STRINGS)
        ]
        for before in ("gpt-2", "smollm", "qwen2", "llama-bpe")
    }
    assert len({tuple(ids) for ids in cut.values()}) == 4


def test_llama_3_takes_up_to_three_digits_and_a_word_that_is_a_token(learned: Any, tmp_path: Path) -> None:
    vocab, merges = learned
    vocab = {**vocab, "zqx": len(vocab)}  # no merges lead there
    found = tokenizer(write_gguf(tmp_path / "model.gguf", vocab, merges, "llama-bpe", add_bos_token=True))
    assert found.encode("zqx").tokens == ["<|end|>", "zqx"]
    pieces = [piece for piece, _ in found.pre_tokenizer.pre_tokenize_str("1234567 I'LL x'TIS;\n\n a\r\n\r\n  b")]
    assert pieces == ["123", "456", "7", "ĠI", "'LL", "Ġx", "'T", "IS", ";ĊĊ", "Ġa", "čĊčĊ", "Ġ", "Ġb"]


def test_tokens_that_are_put_beside_a_text(learned: Any, tmp_path: Path) -> None:
    vocab, merges = learned
    found = tokenizer(write_gguf(tmp_path / "model.gguf", vocab, merges, "gpt-2", add_bos_token=True))
    plain = found.encode("France", add_special_tokens=False).ids
    assert found.encode("France").ids == [0, *plain]
    both = found.encode("France", "France")
    assert both.ids == [0, *plain] * 2
    assert both.type_ids == [0] * (len(plain) + 1) + [1] * (len(plain) + 1)


@pytest.mark.parametrize(
    ("before", "more", "said"),
    [
        ("gpt-2", {"model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ("viking", {}, "tokenizer.ggml.pre is 'viking': headway knows gpt-2"),
        ("gpt-2", {"token_type": [1, 1, 1]}, "of 3 types"),
        ("gpt-2", {"merges": ["a b c"]}, "merges a and b c"),
        ("gpt-2", {"merges": ["q qqqqq"]}, "which are not tokens"),
        ("gpt-2", {"bos_token_id": 450, "add_bos_token": True}, "adds token 450 of 450"),
    ],
)
def test_what_a_gguf_cannot_say(before: str, more: dict[str, Any], said: str, learned: Any, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=said) as raised:
        tokenizer(write_gguf(tmp_path / "model.gguf", *learned, before, **more))
    assert "tokenizer.json" in str(raised.value)


def words(folder: Path, **settings: Any) -> Path:
    """A folder with the vocab.txt of a small BERT."""
    alphabet = sorted({character for text in STRINGS for character in text.lower() if not character.isspace()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *alphabet, *(f"##{one}" for one in alphabet)]
    vocabulary += ["the", "The", "capital", "##ism", "cafe", "café", "of", "is", "世界"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def added(text: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": text, "special": True, **plain, **flags}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False, "unk_token": {"__type": "AddedToken", "content": "[UNK]"}},
        {"added_tokens_decoder": {"5": added("is", special=False, lstrip=True), "300": added("of")}},
    ],
    ids=str,
)
def test_words_are_cut_as_in_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = words(tmp_path / "bert", **settings)
    plain = {key: value for key, value in settings.items() if key != "unk_token"}
    theirs = transformers.BertTokenizer.from_pretrained(folder, **plain)
    found = tokenizer(folder)
    for text in STRINGS:
        assert found.encode(text).ids == theirs(text)["input_ids"], text
    pair, expected = found.encode("The café", "is 世界"), theirs("The café", "is 世界")
    assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_a_tokenizer_json_is_read_as_it_is(tmp_path: Path) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(words(tmp_path / "bert"))
    theirs.save_pretrained(tmp_path / "folder")
    assert tokenizer(tmp_path / "folder").to_str() == theirs.backend_tokenizer.to_str()


DECODER = {"300": added("<x>", special=False, lstrip=True), "256": added("<s>")}
BESIDE: dict[str, dict[str, Any]] = {
    "none": {"settings": {}},
    "named": {"settings": {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", **added("</s>")}}},
    "listed": {"settings": {"added_tokens_decoder": DECODER}},
    "named with flags": {
        "settings": {"added_tokens_decoder": {}, "pad_token": {"__type": "AddedToken", **added("<x>")}}
    },
    "in the map": {"settings": {}, "map": {"bos_token": added("<s>"), "additional_special_tokens": ["<x>", "<y>"]}},
    "in the map beside a list": {"settings": {"added_tokens_decoder": DECODER}, "map": {"eos_token": "</s>"}},
    "special": {"settings": {"additional_special_tokens": ["<x>", "</s>"]}},
    "special, newer": {"settings": {"extra_special_tokens": ["<y>"], "additional_special_tokens": ["<x>"]}},
    "of one model": {"settings": {"image_token": "<x>", "extra_special_tokens": {"boi_token": "<y>"}}},
    "in a file": {"settings": {"eos_token": "</s>"}, "file": {"<x>": 257, "</s>": 256}},
    "already there": {"settings": {"bos_token": "<s>", "add_bos_token": True}, "own": ["<s>"]},
    "there with other flags": {"settings": {"added_tokens_decoder": DECODER}, "own": ["<x>", "<s>"]},
}
"""Tokens that the files beside tokenizer.json name."""


@pytest.mark.one_in(1)
@pytest.mark.parametrize("known", [False, True], ids=["new", "in the vocabulary"])
@pytest.mark.parametrize("case", BESIDE)
def test_tokens_that_stand_beside_the_file(case: str, known: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    said = BESIDE[case]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(["<s>", "<x>", "</s>"] if known else [])]
    own = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    own.add_special_tokens(said.get("own", []))
    own.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **said["settings"]}
    files = {"tokenizer_config": settings, "special_tokens_map": said.get("map"), "added_tokens": said.get("file")}
    for name, held in files.items():
        if held is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(held), encoding="utf-8")
    theirs, found = transformers.AutoTokenizer.from_pretrained(tmp_path), tokenizer(tmp_path)
    ids = found.encode("<s>a <x> b<y></s>").ids
    assert ids == theirs("<s>a <x> b<y></s>", add_special_tokens=False)["input_ids"]
    assert found.get_vocab_size() == len(theirs)
    assert found.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "wrong",
    [["<x>"], {"a": {}}, {"1": {}}, {"1": "<x>"}],
)
def test_tokens_beside_the_file_that_are_damaged(wrong: Any, tmp_path: Path) -> None:
    words(tmp_path / "bert", added_tokens_decoder=wrong)
    with pytest.raises(HeadwayError, match=r"the added tokens in .* of .* are damaged: give the files of one model"):
        tokenizer(tmp_path / "bert")


@pytest.mark.one_in(1)
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        {"do_lower_case": False},
        {"do_lower_case": True},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_settings_that_differ_from_the_file_s(said: dict[str, Any], saved: bool, general: bool, tmp_path: Path) -> None:
    bert = transformers.BertTokenizer.from_pretrained(words(tmp_path / "bert"), do_lower_case=saved)
    bert.save_pretrained(tmp_path / "saved")
    place = tmp_path / "saved" / "tokenizer_config.json"
    held = {key: value for key, value in json.loads(place.read_text()).items() if key not in OF_NORMALIZER}
    kind = "PreTrainedTokenizerFast" if general else "BertTokenizer"
    place.write_text(json.dumps({**held, **said, "tokenizer_class": kind}))
    theirs, found = transformers.AutoTokenizer.from_pretrained(place.parent), tokenizer(place.parent)
    for text in (*STRINGS, "The Café 世界"):
        assert found.encode(text).ids == theirs(text)["input_ids"], text


@pytest.mark.one_in(1)
@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(("said", "saved"), [(True, False), (False, True), (True, True)])
def test_a_space_before_the_text_as_the_settings_say(said: bool, saved: bool, kind: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    own = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=saved)
    own.save(str(tmp_path / "tokenizer.json"))
    held = {"tokenizer_class": kind, "add_prefix_space": said}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(held))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(tmp_path).encode("a b").ids == theirs("a b")["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": "yes"}))
    with pytest.raises(HeadwayError, match=r"add_prefix_space of .* must be true or false"):
        tokenizer(tmp_path)


def test_what_a_folder_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"neither tokenizer\.json nor vocab\.txt"):
        tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(HeadwayError, match=r"has no \[UNK\], \[CLS\], \[SEP\]"):
        tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(HeadwayError, match="cannot be read"):
        tokenizer(tmp_path)
    with pytest.raises(HeadwayError, match="does not exist"):
        tokenizer(tmp_path / "model.gguf")


def test_the_tokenizer_in_smollm2s_file(weights: Callable[[str], Path]) -> None:
    from weights import facts

    (file,) = weights("smollm2").glob("*.gguf")
    known, found = facts("smollm2"), tokenizer(file)
    assert found.encode(known["prompt"]).ids == known["ids"]
    assert found.decode(known["greedy"]) == known["greedy_text"]
    assert found.encode(known["text"]).ids == known["text_ids"]
    # four digits, a blank before one, a fraction: each by itself
    assert found.encode("2024, 7 \u00bd<|im_end|>").tokens == [*"2024", ",", "Ġ", "7", "Ġ", "Â½", "<|im_end|>"]
