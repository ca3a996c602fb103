"""Chat templates are rendered as transformers renders them: the same text, or the same error."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError
from headway.checkpoints import _conversation, conversation
from headway.checkpoints._render import rendered

from .chat_templates import ASKED, CONVERSATIONS, DOCUMENTS, GIVEN, TALK, TEMPLATES, TOOLS

transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer, models  # noqa: E402 (it comes with transformers)

SETTINGS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "image_token": "<image>",
    "add_bos_token": True,
}


class Then(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls(2031, 2, 3, 14, 5, 6)


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_conversation, "datetime", Then)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Then)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in this process, which is faster."""

    def render(template: str, values: str) -> str:
        try:
            return rendered(template, json.loads(values), Then.now(), _conversation.LONGEST)
        except Exception as error:
            raise HeadwayError(str(error)) from None

    monkeypatch.setattr(_conversation, "_rendered", render)


def write(folder: Path, **files: Any) -> Any:
    """Writes files of a tokenizer; returns transformers' tokenizer of them."""
    words = {text: number for number, text in enumerate(("<unk>", "<s>", "</s>", "<pad>", "<image>", "a"))}
    Tokenizer(models.WordLevel(words, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    for name, held in {"tokenizer_config.json": SETTINGS, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(held if isinstance(held, str) else json.dumps(held), encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder)


def theirs(words: Any, messages: Any, *, variables: Any = None, template: Any = None, **given: Any) -> tuple[str, bool]:
    """What transformers writes, or the error it raises, and whether it is an error."""
    try:
        options = {"tokenize": False, "add_generation_prompt": True, "chat_template": template, **(variables or {})}
        return words.apply_chat_template(messages, **options, **given), False
    except Exception as error:
        return " ".join(str(error).split()), True


def same(folder: Path, words: Any, messages: Any, **given: Any) -> str | None:
    """What both write; None if both refuse for the same reason."""
    wanted, refused = theirs(words, messages, **given)
    if refused:
        with pytest.raises(HeadwayError) as raised:
            conversation(folder, messages, **given)
        assert wanted in " ".join(str(raised.value).split())
        return None
    assert conversation(folder, messages, **given) == wanted
    return wanted


@pytest.mark.one_in(1)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_family_s_template(here: None, tmp_path: Path, name: str) -> None:
    words = write(tmp_path, **{"tokenizer_config.json": {**SETTINGS, "chat_template": TEMPLATES[name]}})
    asked = [(messages, {}) for messages in CONVERSATIONS.values()]
    asked += [(TALK, given) for given in GIVEN]
    written = [same(tmp_path, words, messages, **given) for messages, given in asked]
    assert sum(one is not None for one in written) >= 3


@pytest.mark.parametrize("name", ["smollm 3", "loops"])
def test_in_a_process_of_its_own(tmp_path: Path, name: str) -> None:
    words = write(tmp_path, **{"tokenizer_config.json": {**SETTINGS, "chat_template": TEMPLATES[name]}})
    assert same(tmp_path, words, TALK, documents=DOCUMENTS)


NAMES = transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
TOKENS = "".join(
    f"{name}={{{{ {name} }}}}{{{{ {name} is defined }}}} "
    for name in (*NAMES, "image_token", "boi_token", "add_bos_token", "extra_special_tokens")
)
ADDED = {"content": "<s>", "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
PLACES: dict[str, dict[str, Any]] = {
    "in the settings": {},
    "in the map alone": {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "special_tokens_map.json": {"bos_token": {**ADDED}, "eos_token": "</s>", "mask_token": "a", "image_token": "a"},
    },
    "in both": {"special_tokens_map.json": {"bos_token": "a", "pad_token": "</s>"}},
    "in both, with all tokens in the settings": {
        "tokenizer_config.json": {**SETTINGS, "added_tokens_decoder": {"1": {**ADDED}}},
        "special_tokens_map.json": {"bos_token": "a", "pad_token": "</s>"},
    },
    "nowhere": {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}},
    "null": {"tokenizer_config.json": {**SETTINGS, "bos_token": None, "pad_token": None}},
    "by name": {"tokenizer_config.json": {**SETTINGS, "extra_special_tokens": {"boi_token": "<image>"}}},
}


@pytest.mark.one_in(1)
@pytest.mark.parametrize("place", PLACES)
def test_where_special_tokens_are(here: None, tmp_path: Path, place: str) -> None:
    words = write(tmp_path, **{**PLACES[place], "chat_template.jinja": TOKENS})
    assert same(tmp_path, words, ASKED)


SEVERAL: dict[str, dict[str, Any]] = {
    "one in the settings": {"tokenizer_config.json": {**SETTINGS, "chat_template": "one"}},
    "a list": {
        "tokenizer_config.json": {
            **SETTINGS,
            "chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}],
        }
    },
    "an object": {"tokenizer_config.json": {**SETTINGS, "chat_template": {"default": "d", "rag": "r"}}},
    "no default": {"tokenizer_config.json": {**SETTINGS, "chat_template": [{"name": "rag", "template": "r"}]}},
    "files": {
        "chat_template.jinja": "f",
        "additional_chat_templates/tool_use.jinja": "ft",
        "additional_chat_templates/rag.jinja": "fr",
        "tokenizer_config.json": {**SETTINGS, "chat_template": "one"},
    },
    "a file beside a list": {
        "chat_template.jinja": "f",
        "tokenizer_config.json": {**SETTINGS, "chat_template": [{"name": "default", "template": "d"}]},
    },
}


@pytest.mark.one_in(1)
@pytest.mark.parametrize("case", SEVERAL)
def test_which_of_several_templates(here: None, tmp_path: Path, case: str) -> None:
    words = write(tmp_path, **SEVERAL[case])
    for given in ({}, {"tools": TOOLS}, {"template": "rag"}):
        wanted, refused = theirs(words, ASKED, **given)
        if refused or (wanted == "rag" and "rag" in given.values()):  # transformers takes an unknown name as a template
            with pytest.raises(HeadwayError, match=r"has no chat template '\w+': give template=, one of \w+"):
                conversation(tmp_path, ASKED, **given)
        else:
            assert conversation(tmp_path, ASKED, **given) == wanted


@pytest.mark.parametrize("held", [7, [1], ["a"], [{"name": "a"}], {"a": 1}, [{"name": 1, "template": "a"}]])
def test_templates_that_are_none(tmp_path: Path, held: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": held}))
    with pytest.raises(HeadwayError, match=r"the chat_template of .*tokenizer_config\.json is .*: give a template"):
        conversation(tmp_path, ASKED)


def test_a_namespace_keeps_out_of_python(here: None, tmp_path: Path) -> None:
    for template in ("{{ namespace(__x__=1) }}", "{% set ns = namespace() %}{% set ns._x = 1 %}"):
        words = write(tmp_path, **{"chat_template.jinja": template})
        assert theirs(words, ASKED)[1]
        with pytest.raises(HeadwayError, match="a namespace has no attribute '_"):
            conversation(tmp_path, ASKED)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"messages": []}, r"messages is empty: give at least one"),
        ({"tools": [len]}, r"tools is \[<built-in.*: give a list of objects that can be written as JSON"),
        ({"messages": iter(ASKED)}, r"messages is <list_iterator.*: give a list, such as"),
        ({"messages": ""}, r"messages is '': give a list, such as"),
        ({"tools": 5}, r"tools is 5: give a list of objects"),
        ({"variables": ["a"]}, r"variables is \['a'\]: give values by name"),
        ({"documents": ["a"]}, r"documents is \['a'\]: give a list of objects"),
        ({"enable_thinking": False}, r"no argument 'enable_thinking'.*give variables=\{'enable_thinking': …\}"),
    ],
)
def test_what_is_no_conversation(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    (tmp_path / "chat_template.jinja").write_text("a")
    with pytest.raises(HeadwayError, match=said):
        conversation(tmp_path, **{"messages": ASKED, **given})


def test_an_old_jinja2_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat_template.jinja").write_text("a")
    monkeypatch.setattr(_conversation, "version", lambda package: "3.1.5")
    with pytest.raises(HeadwayError, match=r"escape the sandbox of jinja2 3\.1\.5: .*install 'jinja2>=3\.1\.6'"):
        conversation(tmp_path, ASKED)
