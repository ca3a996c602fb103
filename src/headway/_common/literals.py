"""Arguments in brackets after a name, such as that of an encoding or an engine."""

from __future__ import annotations

import ast
from typing import Any


def arguments_in(text: str) -> tuple[list[Any], dict[str, Any]] | None:
    """Returns the positional and named arguments in a text such as "3, base=500000"; nothing is evaluated.

    Args:
        text: the text between the brackets.

    Returns:
        The arguments; None unless all are literals.
    """
    try:
        call = ast.parse(f"_({text}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        values = [ast.literal_eval(value) for value in call.args]
        named = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return None if "**" in named else (values, named)
