"""Rewords errors for the command line: an argument of a Python function becomes the option of the command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import HeadwayError

GIVEN = re.compile(
    r"""(?<![\w(.'"-])(?<!--option )([a-z][a-z_0-9]*)=('[^']*'|"[^"]*"|[\w.+-]*[\w+-]|[…\U000f0000-\U000ffffd])?"""
)
"""An argument as Python's functions take it, such as too_long='leave out' or encoding=…"""
NAMED = re.compile(r"(?<!--option )(?<![\w(.'\"/=-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w(.'\"/=])")
"""The name of an argument of several words, such as train_length."""
SUBJECT = re.compile(r"^([a-z][a-z_0-9]*)(?= (?:is|are|has|names|holds) )")
"""The argument that an error begins with."""
NONE = re.compile(r",? or None\b(?: for all [a-z]+)?")
OPTIONS = "options_of_command"
"""The attribute of an error that holds options of its command which are not parameters."""
PARTS = re.compile(r"[\s,，、/]+")
"""What separates the parts of an input; a message may name only one of them."""
PRIVATE = 0xF0000
"""The first of the characters that stand for the user's input while a message is changed."""


def options_of(command: object) -> dict[str, str]:
    """Returns the options of a command by the names of their parameters."""
    parameters = getattr(command, "params", ())
    return {
        one.name: max(one.opts, key=len) for one in parameters if one.name and one.opts and one.opts[0].startswith("-")
    }


def typed_in(value: object) -> Iterator[str]:
    """Yields the texts and paths among the values of a command's parameters, whole and in parts."""
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, (str, Path)):
        for one in (str(value), os.path.expanduser(value)):
            yield from (one, *PARTS.split(one))
    elif isinstance(value, Iterable):
        for one in value:
            yield from typed_in(one)


def in_options(message: str, options: Mapping[str, str], typed: Iterable[str] = ()) -> str:
    """Returns an error's message with the options of a command in place of Python's arguments.

    ``options`` has the option for each name of an argument, such as {"top_k": "--top-k"}. An option that ends with "=",
    such as "--option window=", is followed by its value without a space. The message says of an argument without an
    option that it is one of Python, so that nobody looks for it on the command line. What the user ``typed`` stays
    unchanged.
    """
    if message.startswith("--"):  # the command's own
        return message
    # only these words could be changed
    kept = sorted({one for one in typed if re.search("[=_]|or None", one) or one in options}, key=len, reverse=True)
    for number, one in enumerate(kept):
        message = re.sub(rf"(?<!\w){re.escape(one)}(?!\w)", chr(PRIVATE + number), message)
    said = _in_options(message, options)
    return said.translate({PRIVATE + number: one for number, one in enumerate(kept)})


def _in_options(message: str, options: Mapping[str, str]) -> str:
    lacking: list[str] = []

    def given(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        option = options.get(name)
        if option is None:
            lacking.append(f"{name}=")
            return match[0]
        if value == "True" or not value:
            return option.rstrip("=")
        literal = value if value[0] not in "'\"" else shlex.quote(value[1:-1])
        return option + literal if option.endswith("=") else f"{option} {literal}"

    said = GIVEN.sub(given, message)
    subject = SUBJECT.match(said)
    about = options.get(subject[1]) if subject else None
    if subject and about:
        said = about.rstrip("=") + said[subject.end() :]
        if not about.endswith("="):  # whose value may be None
            said = NONE.sub(", or leave it out", said)
    said = NAMED.sub(lambda match: options.get(match[0], match[0]).rstrip("="), said)
    if lacking:
        said += f" ({' and '.join(dict.fromkeys(lacking))} in Python: this command has no such option)"
    return said


def telling_options(command: Any) -> Callable[[Any], Any]:
    """Returns the ``invoke`` of a command, whose errors name the command's options."""
    invoke, options = command.invoke, options_of(command)

    def told(context: Any) -> Any:
        try:
            return invoke(context)
        except HeadwayError as error:
            known = {**options, **getattr(error, OPTIONS, {})}
            raise HeadwayError(in_options(str(error), known, typed_in(context.params))) from error

    return told


@contextmanager
def with_options(options: Mapping[str, str]) -> Iterator[None]:
    """Adds options, as for ``in_options``, to those that errors raised in the block can name."""
    try:
        yield
    except HeadwayError as error:
        setattr(error, OPTIONS, options)
        raise
