"""The form of a conversation is the model's own, and what it may do is little."""

import json
from pathlib import Path

import pytest

from headway import HeadwayError
from headway.checkpoints import conversation, stop_ids

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
