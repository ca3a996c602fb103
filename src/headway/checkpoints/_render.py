"""Renders a chat template of a stranger: a program of its own, without headway, whose memory is limited.

It reads JSON from its input, {"path": sys.path, "template", "values", "memory", "longest"}, and writes {"text"} or
{"refused"}.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def rendered(template: str, values: dict[str, Any], longest: int) -> str:
    """Returns what a template makes of values.

    Args:
        template: the template, which is run in jinja2's sandbox.
        values: the variables.
        longest: the most characters.

    Raises:
        jinja2.TemplateError: if the template is wrong, forbidden, refuses the values, or writes more.
        Exception: whatever else a template can raise, such as ZeroDivisionError.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(said: str) -> None:
        raise TemplateError(said)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    jinja.globals["raise_exception"] = refuse
    text: str = jinja.from_string(template).render(**values)
    if len(text) > longest:
        raise TemplateError(f"it writes {len(text):,} characters")
    return text


def limit_memory(size: int) -> None:
    """Limits the memory of this process to some bytes, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = size if allowed == resource.RLIM_INFINITY else min(size, allowed)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, allowed))
    except (OSError, ValueError):  # macOS, which does not limit it
        return


def main() -> None:
    """Answers what is asked on standard input."""
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    limit_memory(asked["memory"])
    try:
        answer = {"text": rendered(asked["template"], asked["values"], asked["longest"])}
    except Exception as error:  # anything, since the template is a program
        said = " ".join(str(error).split())[:1000]
        named = type(error).__module__.startswith("jinja2") and said
        answer = {"refused": said if named else f"{type(error).__name__} {said}".strip()}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
