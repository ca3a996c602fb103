"""Errors of Python's functions as a command prints them: arguments become the options of the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import HeadwayError

GIVEN = re.compile(r"""(?<![\w(.'"-])(?<!--option )([a-z][a-z_0-9]*)=('[^']*'|"[^"]*"|[\w.+-]*[\w+-]|…)?""")
"""An argument as Python's functions take it, such as too_long='leave out' or encoding=…"""
NAMED = re.compile(r"(?<!--option )(?<![\w(.'\"/=-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w(.'\"/=])")
"""The name of an argument of several words, such as train_length."""
SUBJECT = re.compile(r"^([a-z][a-z_0-9]*)(?= (?:is|are|has|names|holds) )")
"""The argument that an error begins with."""
NONE = re.compile(r",? or None\b(?: for all [a-z]+)?")


def options_of(command: object) -> dict[str, str]:
    """Returns the options of a command by the names of their parameters.

    Args:
        command: a command of click.
    """
    parameters = getattr(command, "params", ())
    return {
        one.name: max(one.opts, key=len)
        for one in parameters
        if one.name and one.opts and one.opts[0].startswith("-") and not getattr(one, "hidden", False)
    }


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Returns an error's message with the options of a command in place of Python's arguments.

    An argument that no option stands for is named as one of Python, so that nobody looks for it on the command line.

    Args:
        message: the message.
        options: the options by the names of arguments, such as {"top_k": "--top-k"}; one that ends with "=", such as
            "--option window=", is followed by the value without a blank.
    """
    if message.startswith("--"):  # the command's own
        return message
    lacking: list[str] = []

    def given(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        option = options.get(name)
        if option is None:
            lacking.append(f"{name}=")
            return found[0]
        if value == "True" or not value:
            return option.rstrip("=")
        literal = value if value[0] not in "'\"" else shlex.quote(value[1:-1])
        return option + literal if option.endswith("=") else f"{option} {literal}"

    said = GIVEN.sub(given, message)
    said = SUBJECT.sub(lambda found: options.get(found[1], found[1]).rstrip("="), said)
    said = NAMED.sub(lambda found: options.get(found[0], found[0]).rstrip("="), said)
    if said != message or any(name in message for name in options):
        said = NONE.sub(", or leave it out", said)
    if lacking:
        said += f" ({' and '.join(dict.fromkeys(lacking))} in Python: this command has no such option)"
    return said


@contextmanager
def told_in(options: Mapping[str, str]) -> Iterator[None]:
    """Names options in the errors that are raised inside.

    Args:
        options: as for ``in_options``.
    """
    try:
        yield
    except HeadwayError as error:
        raise HeadwayError(in_options(str(error), options)) from error
