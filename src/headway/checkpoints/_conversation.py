"""The prompt format of chat models, and the ids that end their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadwayError
from ._files import CONFIG, _json, check_folder
from ._gguf import read_metadata
from ._hub import local_path

TEMPLATE, SETTINGS, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"


def conversation(path: str | Path, messages: Sequence[Mapping[str, str]]) -> str | None:
    """The prompt of a conversation in the format the model was trained on, up to the beginning of its answer.

        conversation(path, [{"role": "user", "content": "Name the capital of France."}])

    The chat template is the model's own, from chat_template.jinja, tokenizer_config.json or the GGUF file. It is
    rendered in jinja's sandbox.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.
        messages: the messages, each with a "role" and its "content".

    Returns:
        The prompt, or None if the model has no chat template.

    Raises:
        HeadwayError: if there is no such model, messages are no list of messages, or the template cannot be rendered.
    """
    if isinstance(messages, (str, Mapping)) or not all(isinstance(one, Mapping) for one in messages):
        said = messages if isinstance(messages, str) else "Hello"
        raise HeadwayError(
            f"messages is {messages!r:.60}: give a list, such as [{{'role': 'user', 'content': {said!r:.60}}}]"
        )
    template, words = _template(local_path(path, Path.is_dir))
    if template is None:
        return None
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(said: str) -> None:
        raise TemplateError(said)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    jinja.globals["raise_exception"] = refuse
    try:
        text: str = jinja.from_string(template).render(messages=list(messages), add_generation_prompt=True, **words)
    except TemplateError as error:
        raise HeadwayError(f"the chat template of {path} cannot be rendered: {error}: give a plain prompt") from error
    return text


def stop_ids(path: str | Path) -> list[int]:
    """The ids that end a model's output, an empty list if its files name none.

    They are the eos_token_id of generation_config.json, of config.json, or of the GGUF file.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.
    """
    path = local_path(path, Path.is_dir)
    if path.suffix == ".gguf":
        found = read_metadata(path).get("tokenizer.ggml.eos_token_id")
    else:
        check_folder(path)
        files = [path / name for name in (GENERATION, CONFIG) if (path / name).is_file()]
        found = next((value for file in files if (value := _json(file).get("eos_token_id")) is not None), None)
    return [] if found is None else list(found) if isinstance(found, list) else [found]


def _template(path: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template, or None, and the variables that it may use."""
    if path.suffix == ".gguf":
        held = read_metadata(path)
        tokens = held.get("tokenizer.ggml.tokens", ())
        ids = {name: held.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        words = {f"{name}_token": tokens[at] for name, at in ids.items() if isinstance(at, int) and at < len(tokens)}
        return held.get("tokenizer.chat_template"), words
    check_folder(path)
    settings: dict[str, Any] = _json(path / SETTINGS) if (path / SETTINGS).is_file() else {}
    words = {
        name: str(value["content"] if isinstance(value, Mapping) else value)
        for name in ("bos_token", "eos_token")
        if (value := settings.get(name)) is not None
    }
    if (path / TEMPLATE).is_file():
        return (path / TEMPLATE).read_text(encoding="utf-8"), words
    template = settings.get("chat_template")
    return (template if isinstance(template, str) else None), words
