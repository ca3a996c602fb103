"""The records of a capture, with scores and pictures."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HeadwayError
from ._record import Asked, Records
from ._table import DataTable
from ._watch import layer_named
from .scores import Score
from .scores._choose import made

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .._common.progress import Tell
    from .report import Head, Offsets, Text
    from .roles._results import HeadRoles

NOTEBOOK = "4 MB"
"""The most that a report in a notebook takes."""


class Seen(Records):
    """The attention calls of a model that ``capture`` recorded.

    Give a layer by its name in ``layers``, or by its number there. If the model was called several times, ``of_call``
    returns what was seen in one of the calls.

    Attributes:
        keep: what was kept: "statistics", "qk", "qkv", "weights" or "gradients".
        records: one ``AttentionRecord`` for each attention call, in their order.
        missed: modules that seem to be attention and ran without an attention call that capture could see: their names,
            with the names of their classes.
    """

    def scores(
        self,
        score: str | Score,
        *,
        layers: int | str | Collection[int | str] | None = None,
        **arguments: Any,
    ) -> Any:
        """Returns scores that need more than the weights of a layer: token ids, several layers, or gradients.

            seen.scores("induction", ids=ids).top(5)
            seen.scores("rollout", rows=[-1])

        Args:
            score: a name of ``headway.inspection.SCORES``, whose classes describe arguments and results, or an object
                such as ``Induction(ids)``.
            layers: the layers that are read, by name or by number in ``layers``. Default: all.
            **arguments: the arguments of the score's class.

        Raises:
            HeadwayError: if there is no such score or layer, an argument does not fit, or the capture did not keep what
                the score needs.
        """
        self._need_records()
        wanted = made(score, arguments)
        chosen = copy.copy(self)
        if layers is not None:
            layers = [layers] if isinstance(layers, (str, int)) else layers
            names = {layer_named(layer, self.layers) for layer in layers}
            chosen.records = [record for record in self.records if record.layer in names]
            chosen._need_records()
        return wanted.of(chosen)

    def plot(
        self,
        layer: int | str | None = None,
        head: int | None = None,
        *,
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
        kind: str = "map",
        example: int = 0,
        sinks: bool = True,
        hide: Sequence[int] = (),
        query: int | None = None,
        call: int | None = None,
        out: str | Path | None = None,
    ) -> Figure:
        """Draws the weights of one head, of all heads of a layer, or of all heads of all layers.

        Above 200 tokens weights are pooled to a map of means. Padding is left out.

        Args:
            layer: its name, or its number in ``layers``. Default: all.
            head: the head. Default: all of the layer.
            tokens: the tokens of the queries of this example, for the axes. In self-attention they are those of the
                keys too, and after a cache those of all keys. Default: numbers.
            key_tokens: the tokens of the keys, in cross-attention.
            kind: for one head, "map" draws a heat map, "arcs" arrows from queries above to keys below.
            example: the row of the batch.
            sinks: whether the weight of learned sinks is shown in a last column, if there are any.
            hide: keys that are left blank, as numbers, such as 0 for a first token that takes most of the weight.
            query: with arcs, the number of the token whose arrows have colours and numbers. Default: all arrows have
                colours, and the strongest have numbers.
            call: the number of the model's call. Default: the only one.
            out: a file to which the picture is also written, in the format that its name ends with, such as .png or
                .svg.

        Returns:
            The figure of matplotlib.

        Raises:
            HeadwayError: if there is no such layer, head, example or call, the capture kept nothing that can be drawn,
                or arcs are asked for of several heads or of many tokens, or a query without arcs.
        """
        from .._common.pictures import save
        from ._picture import Options, check, picture_of_head, picture_of_heads

        check(kind, out)
        self._need_records()
        options = Options(tokens, key_tokens, example, sinks, hide, query)
        if query is not None and kind != "arcs":
            raise HeadwayError(f"query {query} is given for a {kind}: give kind='arcs', or leave it out")
        if layer is None and head is not None:
            raise HeadwayError(f"head {head} is given without a layer: give both, or none for all heads")
        if head is None and kind == "arcs":
            raise HeadwayError("arcs are of one head: give layer and head")
        if layer is None:
            chosen = self if call is None else self.of_call(call)
            if chosen.calls > 1:
                raise HeadwayError(f"the model was called {chosen.calls} times: give call=, such as call=-1")
            figure = picture_of_heads(chosen.records, self._model, options)
        elif head is None:
            figure = picture_of_heads([self.record(layer, call=call)], self._model, options)
        else:
            figure = picture_of_head(self.record(layer, call=call), head, kind, options)
        if out is not None:
            save(figure, out)
        return figure

    def report(
        self,
        path: str | Path,
        budget: str | int | None = "15 MB",
        *,
        text: Text | None = None,
        tokens: Sequence[str] | None = None,
        offsets: Offsets | None = None,
        roles: HeadRoles | None = None,
        exact: Iterable[Head] | None = None,
        name: str | None = None,
        language: str | None = None,
        example: int = 0,
        call: int | None = None,
        watch: Tell | None = None,
    ) -> Path:
        """Writes a page that shows the attention of all heads, in one file that needs no network.

            (text,) = encode(tokenizer, ["The cat that the dogs saw was asleep."])
            with torch.no_grad(), capture(model, keep="qk") as seen:
                model(torch.tensor([text.ids]))
            seen.report("report.html", text=text)

        If all weights of all heads fit, the file has them all. Otherwise it has maps of all heads, all weights above a
        threshold, and the queries and keys of some heads in 12 bits, from which the page computes every weight of these
        heads. The foot of the page says what is exact, and the errors, measured while the page was written. Memory
        grows with the tokens.

        Args:
            path: the file, in a folder that exists.
            budget: the most bytes of the file, such as 4_000_000 or "4 MB" (decimal units); None for no limit.
            text: the text, as ``headway.inspection.texts.encode`` returns it, or as a string with ``offsets``.
            tokens: the names of the tokens. Default: those of the text; without a text, numbers.
            offsets: start and stop of each token in the text, in characters; equal for tokens that the model adds.
            roles: the results of ``head_roles`` for the model.
            exact: heads whose weights must all be exact, as pairs of layer and head, the most important first. Default:
                as many as fit, those with roles first.
            name: the name of the model. Default: the name of its class.
            language: "en" or "zh". Default: the language of the reader.
            example: the row of the batch.
            call: the number of the model's call. Default: the only one.
            watch: is told what is done and the share of the work. Default: a progress bar in notebooks.

        Returns:
            The path.

        Raises:
            HeadwayError: before anything is measured if an argument does not fit, the path cannot be written, or the
                capture kept too little (keep="qk" keeps enough); and if the budget is too small for the maps.
        """
        from .report import Options, write

        options = Options(budget, exact, text, tokens, offsets, example, call, language)
        return write(self, path, options, roles, name, watch)

    def widget(
        self,
        *,
        text: Text | None = None,
        tokens: Sequence[str] | None = None,
        offsets: Offsets | None = None,
        roles: HeadRoles | None = None,
        name: str | None = None,
        language: str | None = None,
        example: int = 0,
        call: int | None = None,
        height: int = 760,
        watch: Tell | None = None,
    ) -> Any:
        """Returns the report as a widget of a notebook; the notebook's kernel computes the weights that you look at.

            seen.widget(text=text)          # the last line of a cell

        Every weight of every head is exact, however long the text, while the kernel runs and the widget is in memory. A
        notebook that is opened without its kernel shows nothing; ``report`` writes a page that lasts. It needs
        anywidget: ``pip install 'headway[widget]'``.

        Args:
            text: the text, as for ``report``.
            tokens: the names of the tokens, likewise.
            offsets: likewise.
            roles: the results of ``head_roles`` for the model.
            name: the name of the model. Default: the name of its class.
            language: "en" or "zh". Default: the language of the reader.
            example: the row of the batch.
            call: the number of the model's call. Default: the only one.
            height: the height in pixels.
            watch: is told what is done and the share of the work. Default: a progress bar in notebooks.

        Returns:
            An ``anywidget.AnyWidget``.

        Raises:
            HeadwayError: if anywidget is not installed, an argument does not fit, or the capture kept too little.
        """
        from .report import Options, live_widget

        options = Options(None, None, text, tokens, offsets, example, call, language)
        return live_widget(self, options, roles, name, height, watch)

    def compare(self, other: Seen, statistics: Asked | None = None) -> DataTable:
        """Compares what was seen with another capture of the same text, head by head.

            with capture(model, keep="qk") as before: ...
            before.compare(after).csv("moved.csv")

        Layers are compared in their order. A row has layer, head, the summary of each statistic in both captures, and
        with keep="qk" ``moved``: how much weight goes to other keys, the mean over the queries of ½·Σⱼ |A − B|, from 0
        to 1. A page that shows both is ``compare_reports``.

        Args:
            other: the other capture, of another model, checkpoint or encoding.
            statistics: as for ``statistics``.

        Raises:
            HeadwayError: if the captures have other layers, heads or tokens, or several calls.
        """
        from ._compare import compared

        return compared(self, other, statistics)

    def _repr_html_(self) -> str | None:
        """The report in a notebook, of at most 4 MB; None, for which notebooks show text, where there can be none."""
        from .report import Options, reported

        try:
            made = reported(self, Options(NOTEBOOK, None, None, None, None, 0, None, None))
        except HeadwayError:
            return None
        style = "width:100%;height:800px;border:0"
        return f'<iframe srcdoc="{escape(made.page())}" style="{style}"></iframe>'
