"""The form of a conversation is the model's own, and what it may do is little."""

import json
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError
from headway.checkpoints import _conversation, conversation, stop_ids, tokenizer

ASKED = [{"role": "user", "content": "Why?"}]
FORM = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def settings(folder: Path, **values: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def test_a_template_of_the_settings(tmp_path: Path) -> None:
    folder = settings(tmp_path, chat_template=FORM, bos_token="<s>", eos_token={"content": "</s>"})
    assert conversation(folder, ASKED) == "<s><user>Why?</s><assistant>"


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    settings(tmp_path, chat_template="no")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert conversation(tmp_path, ASKED) == "Why?!"


def test_a_model_that_was_not_taught_to_talk(tmp_path: Path) -> None:
    assert conversation(tmp_path, ASKED) is None
    assert conversation(settings(tmp_path, bos_token="<s>"), ASKED) is None


@pytest.mark.parametrize(
    "template",
    ["{% for %}", "{{ raise_exception('no system role') }}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}"],
)
def test_a_template_that_cannot_or_must_not_be_run(tmp_path: Path, template: str) -> None:
    with pytest.raises(HeadwayError, match="cannot be rendered"):
        conversation(settings(tmp_path, chat_template=template), ASKED)


HOSTILE = {
    "endless": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "not ended after 1 s",
    ),
    "a long number": ("{{ 7 ** (9 ** 9) ** 2 }}", "not ended|takes more than|MemoryError|OverflowError"),
    "a long text": ("{{ 'a' * 10 ** 11 }}", "MemoryError|takes more than"),
    "a text that doubles": (
        "{% set x = namespace(y='aa') %}{% for i in range(60) %}{% set x.y = x.y ~ x.y %}{% endfor %}",
        "MemoryError|takes more than|not ended",
    ),
    "too much output": ("{{ 'a' * 20000000 }}", "writes 20,000,000 characters"),
    "a wide range": ("{{ range(10 ** 9) | list }}", "Range too big"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "deep": ("{{ " + "(" * 10**5 + " }}", "RecursionError|unexpected|MemoryError|ends Python"),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('touch ran') }}", "unsafe|undefined"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "a type": ("{{ messages + 1 }}", "TypeError"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_template_ends_and_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    template, said = HOSTILE[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_conversation, "SECONDS", 1 if "not ended" in said else 300)
    with pytest.raises(HeadwayError, match=rf"cannot be rendered: .*({said}).*: give a plain prompt"):
        conversation(settings(tmp_path, chat_template=template), ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer_config.json"]


def test_what_a_template_sees_is_what_was_given(tmp_path: Path) -> None:
    """Also text that UTF-8 does not have, and contents in parts."""
    folder = settings(tmp_path, chat_template="{{ messages[0].content[0].text }}{{ messages[0].turn + 1 }}")
    asked = [{"content": (UserDict({"text": "é猫\ud800"}),), "turn": 1}]
    assert conversation(folder, asked) == "é猫\ud8002"
    with pytest.raises(HeadwayError, match="the conversation cannot be written as JSON"):
        conversation(folder, [{"content": object()}])


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    for wrong in (7, ["a"], {"text": "<s>"}):
        with pytest.raises(HeadwayError, match=r"the bos_token of .* is .*: give its text"):
            conversation(settings(tmp_path, chat_template="", bos_token=wrong), ASKED)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{")
    with pytest.raises(HeadwayError, match=r"chat_template\.jinja cannot be read"):
        conversation(settings(tmp_path), ASKED)


@pytest.mark.parametrize("wrong", ["2", True, -1, 2.5, [2, "3"], {"a": 1}])
def test_ids_that_are_none_are_named(tmp_path: Path, wrong: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    with pytest.raises(HeadwayError, match=r"the eos_token_id of .*generation_config\.json is"):
        stop_ids(tmp_path)


def test_transformers_writes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=FORM + "\n  {% if true %}\n  x{% endif %}",
    )
    words.save_pretrained(tmp_path)
    wanted = words.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
    assert conversation(tmp_path, ASKED) == wanted


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        ({"eos_token_id": 2}, None, [2]),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 6]}, [5, 6]),
        ({"eos_token_id": 2}, {"eos_token_id": None}, [2]),
        ({}, None, []),
    ],
)
def test_where_a_model_ends(
    tmp_path: Path, config: dict[str, object], generation: dict[str, object] | None, wanted: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert stop_ids(tmp_path) == wanted


# ---------------------------------------------------------------- GGUF

TOKENS = ["<s>", "</s>", "a", "<unk>", "<pad>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<|eom_id|>", "b", "ab"]
TEXT, SPECIAL, SPLIT_OFF = 1, 3, 4


def gguf_file(folder: Path, kinds: dict[str, int] | None = None, **said: Any) -> Path:
    """A file with TOKENS, special if ``kinds`` names no other kind, and ``said``, values of GGUFWriter's methods."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(TOKENS)
    writer.add_token_types([(kinds or {}).get(token, SPECIAL if "<" in token else TEXT) for token in TOKENS])
    writer.add_token_merges(["a b"])
    for name, value in said.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


PLAIN = dict.fromkeys(TOKENS[5:9], TEXT)


@pytest.mark.one_in(1)
@pytest.mark.parametrize(
    ("said", "kinds", "wanted"),
    [
        ({"eos_token_id": 1}, PLAIN, [1]),
        ({"eos_token_id": 1, "eot_token_id": 5}, PLAIN, [1, 5]),
        ({"eos_token_id": 1, "eot_token_id": 5, "eom_token_id": 8}, PLAIN, [1, 5, 8]),
        ({"eot_token_id": 5}, PLAIN, [5]),
        ({"eos_token_id": 1, "eot_token_id": 1}, PLAIN, [1]),
        ({"eos_token_id": 1, "eot_token_id": 2**32 - 1}, PLAIN, [1]),
        ({"eos_token_id": 1}, {}, [1, 5, 6, 7, 8]),
        ({"eos_token_id": 1}, {**PLAIN, "<|end|>": SPLIT_OFF}, [1, 7]),
        ({"eos_token_id": 6, "eot_token_id": 5}, {**PLAIN, "<|im_end|>": SPECIAL}, [6, 5]),
        ({}, PLAIN, []),
    ],
)
def test_where_the_model_of_a_gguf_file_ends(
    tmp_path: Path, said: dict[str, int], kinds: dict[str, int], wanted: list[int]
) -> None:
    """As in llama.cpp: a text, a turn and a message end, and tokens are known by their text if they are special."""
    assert stop_ids(gguf_file(tmp_path, kinds, **said)) == wanted


def test_an_end_that_is_no_id(tmp_path: Path) -> None:
    path = gguf_file(tmp_path, eos_token_id=1)
    held = path.read_bytes()
    key = b"tokenizer.ggml.eos_token_id"
    at = held.index(key) + len(key)
    assert held[at : at + 4] == (4).to_bytes(4, "little")  # a number without sign
    path.write_bytes(held[:at] + (6).to_bytes(4, "little") + held[at + 4 :])
    with pytest.raises(HeadwayError, match=r"the eos_token_id of .*model\.gguf is 1e-45: take another file"):
        stop_ids(path)


def test_the_template_and_tokens_of_a_gguf_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    form = "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}{{ mask_token }}{{ messages[0].content }}"
    several = [{"name": "default", "template": form}, {"name": "tool_use", "template": "tools"}]
    ids = {"bos_token_id": 0, "eos_token_id": 1, "unk_token_id": 3, "pad_token_id": 4}
    path = gguf_file(tmp_path, **ids, chat_template=several)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    wanted = words.apply_chat_template(ASKED, tokenize=False)
    assert conversation(path, ASKED) == wanted == "<s></s><unk><pad>Why?"
    assert conversation(path, ASKED, tools=[]) == "tools"
    written = tmp_path / "folder"
    written.mkdir()
    _conversation.write_texts(path, written)
    assert conversation(written, ASKED) == wanted
    assert conversation(written, ASKED, tools=[]) == "tools"
    again = transformers.AutoTokenizer.from_pretrained(written)
    assert again.apply_chat_template(ASKED, tokenize=False) == wanted
    ids = tokenizer(path).encode("ab</s>a").ids
    assert ids == tokenizer(written).encode("ab</s>a").ids == again("ab</s>a").input_ids
