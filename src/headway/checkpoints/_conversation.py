"""The prompt format of chat models, and the ids that end their answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile
from typing import Any

from .._common.extras import need, pip_install
from .._common.files import atomic_write, make_folder, write_text
from ..errors import HeadwayError, right_call
from ._files import CONFIG, _json, _text, check_folder
from ._gguf import ends, read_metadata
from ._hub import local_path
from ._special_tokens import ADDED, NAMED, SETTINGS, SPECIAL, read_settings, special_tokens
from ._tokenizer import FILE, tokenizer

TEMPLATE, OTHERS, DEFAULT, TOOLS = "chat_template.jinja", "additional_chat_templates", "default", "tool_use"
GENERATION = "generation_config.json"
IN_METADATA = "tokenizer.chat_template"
"""The key of the template of a GGUF file; those of others are this, a point and their names."""
IN_GGUF = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
"""The names of tokens in GGUF's keys, where they are others; "seperator" is the format's spelling."""
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates find a model's reasoning before its answer."""
SECONDS, MEMORY, LONGEST = 10, 1 << 30, 10_000_000
"""What rendering a template may take: seconds, bytes of memory, and characters of its output."""
SAFE = (3, 1, 6)
"""The first version of jinja2 whose sandbox has no known escape."""


@right_call(
    "conversation(path, [{'role': 'user', 'content': 'Hello'}])",
    enable_thinking="give variables={'enable_thinking': …}",
    chat_template="give template=, the name of one",
)
def conversation(
    path: str | Path,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str | None:
    """The prompt of a conversation in the format the model was trained on, up to the beginning of its answer.

        conversation(path, [{"role": "user", "content": "Name the capital of France."}])
        conversation(path, messages, variables={"enable_thinking": False})    # Qwen 3, SmolLM 3

    The chat template is the model's own, from chat_template.jinja and additional_chat_templates, from
    tokenizer_config.json, or from the GGUF file. It is rendered as ``apply_chat_template`` of Hugging Face transformers
    does, with the same tags, filters, functions and special tokens. A template is untrusted code. headway therefore
    renders it in jinja2's sandbox, in a process of its own, with at most 10 seconds and, on Linux, 1 GiB of memory.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.
        messages: the messages, each with a "role" and its "content".
        tools: descriptions of the functions that the model may call, as JSON schemas.
        documents: texts on which to base the answer, each with a "title" and a "text".
        template: the name of one of several templates. If None, "tool_use" with tools where there is one, else
            "default".
        variables: further variables of the template, such as "enable_thinking".

    Returns:
        The prompt, or None if the model has no chat template.

    Raises:
        HeadwayError: if there is no such model or template, a file is damaged, messages, tools or documents are not
            lists of objects, or the template cannot be rendered within these limits.
    """
    if isinstance(messages, str) or not _are_objects(messages):
        said = messages if isinstance(messages, str) else "Hello"
        raise HeadwayError(
            f"messages is {messages!r:.60}: give a list, such as [{{'role': 'user', 'content': {said!r:.60}}}]"
        )
    for name, given in (("tools", tools), ("documents", documents)):
        if given is not None and not _are_objects(given):
            raise HeadwayError(f"{name} is {given!r:.60}: give a list of objects that can be written as JSON")
    if variables is not None and not isinstance(variables, Mapping):
        raise HeadwayError(f"variables is {variables!r:.60}: give values by name, such as {{'enable_thinking': False}}")
    templates, tokens = _templates(local_path(path, Path.is_dir))
    if not templates:
        return None
    if not messages:
        raise HeadwayError("messages is empty: give at least one, such as [{'role': 'user', 'content': 'Hello'}]")
    values = {
        "add_generation_prompt": True,
        **tokens,
        **(variables or {}),
        "messages": [_plain(one) for one in messages],
        "tools": tools,
        "documents": documents,
    }
    try:
        written = json.dumps(values, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise HeadwayError(
            f"the conversation cannot be written as JSON ({error}): give texts, numbers, lists and objects of them"
        ) from None
    chosen = _chosen(path, templates, template, tools is not None)
    _need_jinja2()
    try:
        return _rendered(chosen, written)
    except HeadwayError as error:
        raise HeadwayError(f"the chat template of {path} cannot be rendered: {error}: give a plain prompt") from None


def _are_objects(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(one, Mapping) for one in given)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its None values, and with its thoughts under each name that templates read."""
    held = {key: value for key, value in message.items() if value is not None}
    thoughts = next((held[name] for name in THOUGHTS if name in held), None)
    return held if thoughts is None else {"thinking": thoughts, **held, "reasoning_content": thoughts}


def _chosen(path: str | Path, templates: Mapping[str, str], name: str | None, with_tools: bool) -> str:
    """The template of this name, or the one for a conversation with or without tools."""
    usual = TOOLS if with_tools and TOOLS in templates else DEFAULT
    if (wanted := name or usual) not in templates:
        raise HeadwayError(
            f"{path} has no chat template {wanted!r}: give template=, one of {', '.join(sorted(templates))}"
        )
    return templates[wanted]


def _rendered(template: str, values: str) -> str:
    """Renders a template in a process of its own, since only ending a process stops a template that does not end."""
    now = datetime.now().isoformat()
    asked = {"path": sys.path, "template": template, "now": now, "memory": MEMORY, "longest": LONGEST}
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


def _need_jinja2() -> None:
    """Raises HeadwayError unless a jinja2 with a safe sandbox is installed."""
    need("jinja2", "rendering a chat template", "study")
    installed = version("jinja2")
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < SAFE:
        wanted = ".".join(map(str, SAFE))
        raise HeadwayError(
            f"a chat template can escape the sandbox of jinja2 {installed}: {pip_install(f'jinja2>={wanted}')}"
        )


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
    if path.suffix.lower() == ".gguf":
        return ends(path, read_metadata(path))
    check_folder(path)
    files = [path / name for name in (GENERATION, CONFIG) if (path / name).is_file()]
    named = ((file, _json(file).get("eos_token_id")) for file in files)
    place, listed = next(((file, value) for file, value in named if value is not None), (path, None))
    ids = [] if listed is None else list(listed) if isinstance(listed, (list, tuple)) else [listed]
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in ids):
        raise HeadwayError(f"the eos_token_id of {place} is {listed!r:.60}: give a whole number, or a list of some")
    return ids


def write_texts(path: str | Path, folder: Path) -> None:
    """Copies a model's files for text to another folder: tokenizer, special tokens, templates and stop ids.

    The stop ids of a GGUF file are in the config that ``load`` reads from it.
    """
    path = local_path(path, Path.is_dir)
    write_text(folder / FILE, tokenizer(path).to_str(pretty=True))
    if path.suffix.lower() == ".gguf":
        templates, tokens = _templates(path)
        several = [{"name": name, "template": text} for name, text in templates.items()]
        held = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokens,
            **({"chat_template": several} if several else {}),
        }
        write_text(folder / SETTINGS, json.dumps(held, indent=2) + "\n")
        return
    for name in (SETTINGS, SPECIAL, ADDED, GENERATION, TEMPLATE, f"{OTHERS}/*.jinja"):
        for file in path.glob(name):
            copy = folder / file.relative_to(path)
            make_folder(copy.parent)
            with atomic_write(copy) as part:
                copyfile(file, part)


def _templates(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The chat templates by their names, and the special tokens by the names under which templates use them."""
    if path.suffix.lower() == ".gguf":
        return _of_gguf(path, read_metadata(path))
    check_folder(path)
    settings = read_settings(path)
    tokens = special_tokens(path, settings)
    files = {file.stem: file for file in sorted((path / OTHERS).glob("*.jinja"))}
    if (path / TEMPLATE).is_file():
        files[DEFAULT] = path / TEMPLATE
    if files:
        return {name: _text(file) for name, file in files.items()}, tokens
    held = settings.get("chat_template")
    try:
        if isinstance(held, list):
            held = {one["name"]: one["template"] for one in held}
        templates = {} if held is None else dict(held) if isinstance(held, Mapping) else {DEFAULT: held}
        if not all(isinstance(text, str) for pair in templates.items() for text in pair):
            raise TypeError
    except (TypeError, KeyError):
        raise HeadwayError(
            f"the chat_template of {path / SETTINGS} is {held!r:.60}: give a template, or a list of objects with name "
            "and template"
        ) from None
    return templates, tokens


def _of_gguf(path: Path, held: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The chat templates and special tokens of a GGUF file."""
    templates = {
        name[len(IN_METADATA) + 1 :] or DEFAULT: text
        for name, text in held.items()
        if f"{name}.".startswith(f"{IN_METADATA}.")
    }
    tokens = held.get("tokenizer.ggml.tokens", ())
    if not isinstance(tokens, tuple) or not all(isinstance(text, str) for text in templates.values()):
        raise HeadwayError(f"the tokens or the chat template of {path} are not text: take another file")
    ids = {name: held.get(f"tokenizer.ggml.{IN_GGUF.get(name[:-6], name[:-6])}_token_id") for name in NAMED}
    return templates, {
        name: str(tokens[at]) for name, at in ids.items() if isinstance(at, int) and 0 <= at < len(tokens)
    }
