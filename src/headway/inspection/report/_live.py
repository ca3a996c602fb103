"""Answers the requests of a report in a notebook: chunks, and the weights that the reader looks at."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..._common.extras import need
from ..._common.progress import Tell
from ...errors import HeadwayError
from ...kernels import KERNELS, Call, cut, reduce
from ...kernels import reference as spec
from ...reductions import WeightsAt
from ...tracing import without_autocast
from ._codes import octets_of
from ._measure import strongest
from ._page import asset, spelled
from ._subject import Subject
from ._write import Report, live

STRIPS = 8
"""How many rows of tiles are kept, since a viewer asks for neighbours."""
HEIGHT = 760
"""Pixels of a widget, if none are given."""


class Live:
    """Answers the requests of a viewer from the queries and keys of a capture.

    Args:
        report: the report.
        subject: the capture that the report shows.
    """

    def __init__(self, report: Report, subject: Subject) -> None:
        self.report, self.subject = report, subject
        self._strip = lru_cache(STRIPS)(self._computed_strip)

    def answer(self, asked: Mapping[str, Any]) -> bytes:
        """Returns the bytes of a chunk, which zlib has compressed; or weights in float32.

        What the mask hides is −1 in rows and tiles, and has no weight in columns.

        Args:
            asked: ``what``: "chunk" with ``id``; "row" or "column" with ``head`` and ``token``; "tile" with ``head``,
                ``query``, ``key``, ``side`` and ``step``, the strongest weights of cells of step × step tokens.
        """
        what = asked["what"]
        if what == "chunk":
            return base64.b64decode(self.report.chunks[asked["id"]])
        head = int(asked["head"])
        if what == "tile":
            query, key, side, step = (int(asked[name]) for name in ("query", "key", "side", "step"))
            return octets_of(self._strip(head, query, side, step)[:, key // step : key // step + side])
        line = self.row if what == "row" else self.column
        return octets_of(line(head, int(asked["token"])))

    def row(self, head: int, token: int) -> Tensor:
        """Returns the weights of a query, [n] in float32."""
        return self._computed_strip(head, token, 1, 1)[0]

    def column(self, head: int, token: int) -> Tensor:
        """Returns the weights that each query gives to a key, [n] in float32."""
        call, own = self._call(head)
        n = self.subject.n
        keys = torch.full((1, n, 1), token, device=call.q.device)
        (weights,) = reduce(KERNELS, call, [WeightsAt(keys)])
        return weights[0, own, :, 0].float().cpu()

    def _computed_strip(self, head: int, query: int, side: int, step: int) -> Tensor:
        call, own = self._call(head)
        return strongest(call, own, range(query, min(self.subject.n, query + side * step)), step)

    def _call(self, head: int) -> tuple[Call, int]:
        """The call of the heads that share the keys of a head, without loss of precision, and its number among them."""
        layer, own = self.subject.heads[head]
        call = self.subject.calls[layer]
        group = call.q.shape[1] // call.k.shape[1]
        first = own // group * group
        with suppress(HeadwayError):  # cut refuses if scores of a head depend on other heads
            call, own = cut(call, "heads", first, first + group), own - first
        with torch.no_grad(), without_autocast(call.q):
            return spec.computed(call), own


def widget(subject: Subject, language: str | None, height: int, tell: Tell) -> Any:
    """Returns the widget of a subject.

    Raises HeadwayError if anywidget is not installed.
    """
    anywidget, traitlets = need("anywidget", "a widget", "widget"), need("traitlets", "a widget", "widget")
    if isinstance(height, bool) or not isinstance(height, int) or height < 1:
        raise HeadwayError(f"height is {height!r}: give pixels, such as {HEIGHT}")
    kernel = Live(live(subject, language, tell), subject)
    members = {
        "__doc__": "A report that the kernel answers.",
        "_esm": asset("viewer.js"),
        "_css": asset("viewer.css"),
        "report": traitlets.Unicode().tag(sync=True),
        "height": traitlets.Int(HEIGHT).tag(sync=True),
    }
    made = type("ReportWidget", (anywidget.AnyWidget,), members)(report=spelled(kernel.report.json), height=height)
    made.on_msg(answering(kernel))
    return made


def answering(kernel: Live) -> Callable[[Any, Mapping[str, Any], Any], None]:
    """Returns the function that answers a widget's messages. Each has a number, ``ask``, that its reply repeats."""

    def answer(widget: Any, asked: Mapping[str, Any], buffers: Any) -> None:
        try:
            found = kernel.answer(asked)
        except Exception as error:  # the viewer waits for each reply
            widget.send({"reply": asked.get("ask"), "error": f"{type(error).__name__}: {error}"})
        else:
            widget.send({"reply": asked["ask"]}, [found])

    return answer
