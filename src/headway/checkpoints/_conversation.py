"""The prompt format of chat models, and the ids that end their answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadwayError
from ..extras import need
from ._files import CONFIG, _json, _text, check_folder, spelled
from ._gguf import ends, read_metadata
from ._hub import local_path

TEMPLATE, SETTINGS, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"
SECONDS, MEMORY, LONGEST = 10, 1 << 30, 10_000_000
"""What rendering a template may take: seconds, bytes of memory, and characters of its output."""


def conversation(path: str | Path, messages: Sequence[Mapping[str, str]]) -> str | None:
    """The prompt of a conversation in the format the model was trained on, up to the beginning of its answer.

        conversation(path, [{"role": "user", "content": "Name the capital of France."}])

    The chat template is the model's own, from chat_template.jinja, tokenizer_config.json or the GGUF file. It is a
    program of a stranger, so that it is rendered in jinja2's sandbox, in a process of its own, which may take 10
    seconds and, on Linux, 1 GiB of memory.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.
        messages: the messages, each with a "role" and its "content".

    Returns:
        The prompt, or None if the model has no chat template.

    Raises:
        HeadwayError: if there is no such model, a file is damaged, messages are no list of messages, or the template
            cannot be rendered within these limits.
    """
    if isinstance(messages, (str, Mapping)) or not all(isinstance(one, Mapping) for one in messages):
        said = messages if isinstance(messages, str) else "Hello"
        raise HeadwayError(
            f"messages is {messages!r:.60}: give a list, such as [{{'role': 'user', 'content': {said!r:.60}}}]"
        )
    template, words = _template(local_path(path, Path.is_dir))
    if template is None:
        return None
    try:
        values = json.dumps({"messages": list(messages), "add_generation_prompt": True, **words}, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise HeadwayError(f"messages cannot be read as JSON ({error}): give texts as contents") from None
    try:
        return _rendered(template, values)
    except HeadwayError as error:
        raise HeadwayError(f"the chat template of {path} cannot be rendered: {error}: give a plain prompt") from None


def _rendered(template: str, values: str) -> str:
    """What a template makes of values, in a process of its own: nothing else ends a template that does not end."""
    need("jinja2", "rendering a chat template", "checkpoints")
    asked = {"path": sys.path, "template": template, "memory": MEMORY, "longest": LONGEST}
    question = f'{json.dumps(asked)[:-1]}, "values": {values}}}'
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_render.py"))]
    try:
        done = subprocess.run(program, input=question.encode(), capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise HeadwayError(f"it has not ended after {SECONDS} seconds") from None
    except OSError as error:
        raise HeadwayError(f"no process can be started for it ({error.strerror})") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise HeadwayError(f"it takes more than {MEMORY >> 20} MiB, or ends Python") from None
    if "refused" in answer:
        raise HeadwayError(answer["refused"])
    text: str = answer["text"]
    return text


def stop_ids(path: str | Path) -> list[int]:
    """The ids that end a model's output, an empty list if its files name none.

    They are the eos_token_id of generation_config.json, or else of config.json: a number or a list. In a GGUF file they
    are eos_token_id, eot_token_id (end of a turn) and eom_token_id (end of a message), and, as in llama.cpp, special
    tokens that are known to end an answer, such as <|eot_id|> and <|im_end|>, since many files lack the keys.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.

    Raises:
        HeadwayError: if there is no such model, or its files have no ids there.
    """
    path = local_path(path, Path.is_dir)
    if path.suffix == ".gguf":
        return ends(path, read_metadata(path))
    check_folder(path)
    files = [path / name for name in (GENERATION, CONFIG) if (path / name).is_file()]
    named = ((file, _json(file).get("eos_token_id")) for file in files)
    place, found = next(((file, value) for file, value in named if value is not None), (path, None))
    ids = [] if found is None else list(found) if isinstance(found, (list, tuple)) else [found]
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in ids):
        raise HeadwayError(f"the eos_token_id of {place} is {found!r:.60}: give a whole number, or a list of some")
    return ids


def _template(path: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template, or None, and the variables that it may use."""
    if path.suffix == ".gguf":
        held = read_metadata(path)
        template, tokens = held.get("tokenizer.chat_template"), held.get("tokenizer.ggml.tokens", ())
        if not isinstance(tokens, tuple) or not (template is None or isinstance(template, str)):
            raise HeadwayError(f"the tokens or the chat template of {path} are no text: take another file")
        ids = {name: held.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        known = {name: at for name, at in ids.items() if isinstance(at, int) and 0 <= at < len(tokens)}
        return template, {f"{name}_token": str(tokens[at]) for name, at in known.items()}
    check_folder(path)
    settings: dict[str, Any] = _json(path / SETTINGS) if (path / SETTINGS).is_file() else {}
    words = {
        name: spelled(path / SETTINGS, name, value)
        for name in ("bos_token", "eos_token")
        if (value := settings.get(name)) is not None
    }
    if (path / TEMPLATE).is_file():
        return _text(path / TEMPLATE), words
    template = settings.get("chat_template")
    return (template if isinstance(template, str) else None), words
