"""Renders an untrusted chat template, as a program of its own, without headway and with limited memory.

It reads JSON from its input, {"path": sys.path, "template", "values", "now", "memory", "longest"}, and writes {"text"}
or {"refused"}. Templates are written for the environment in which Hugging Face transformers renders them, which is
built here.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any


def environment(now: datetime) -> Any:
    """Returns jinja2's sandbox with the tags, filters and functions that chat templates use; ``now`` is the time."""
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """``{% generation %}`` … ``{% endgeneration %}`` around what a model writes. Its variables are its own."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

        def _written(self, caller: Any) -> Any:
            return caller()

    class PublicNamespace(Namespace):
        """``namespace(…)`` without names that begin with an underscore, by which a template could reach Python."""

        def __init__(*args: Any, **kwargs: Any) -> None:  # a template may set an attribute "self"
            for name in dict(*args[1:], **kwargs):
                _need_public(name)
            Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            _need_public(name)
            Namespace.__setitem__(self, name, value)

    def _need_public(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")

    class MakeDict:
        """``dict(…)`` without the attributes of the class."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
            return dict.fromkeys(keys, value)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(format: str) -> str:
        return now.strftime(format)

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        # jinja2's own is for HTML: it escapes <, >, & and ', and sorts keys
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    jinja.filters["tojson"] = tojson
    jinja.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, namespace=PublicNamespace, dict=MakeDict()
    )
    return jinja


def rendered(template: str, values: dict[str, Any], now: datetime, longest: int) -> str:
    """Returns the text of a template with these variables, at most ``longest`` characters.

    Raises jinja2.TemplateError, or any other exception that a template can raise, such as ZeroDivisionError.
    """
    from jinja2 import TemplateError

    text: str = environment(now).from_string(template).render(values)
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
    """Answers the requests on standard input."""
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    limit_memory(asked["memory"])
    try:
        now = datetime.fromisoformat(asked["now"])
        answer = {"text": rendered(asked["template"], asked["values"], now, asked["longest"])}
    except Exception as error:  # anything, since the template is a program
        said = " ".join(str(error).split())[:1000]
        named = type(error).__module__.startswith("jinja2") and said
        answer = {"refused": said if named else f"{type(error).__name__} {said}".strip()}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
