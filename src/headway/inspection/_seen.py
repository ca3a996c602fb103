"""The records of a capture, with scores and pictures."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HeadwayError
from ._record import Records
from ._watch import layer_named
from .scores import Score
from .scores._choose import made

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Seen(Records):
    """The attention calls of a model while ``capture`` looked on.

    A layer is given by its name in ``layers``, or by its number there. Where the model was called several times,
    ``of_call`` gives what was seen in one of the calls.

    Attributes:
        keep: what was kept: "statistics", "qk", "qkv", "weights" or "gradients".
        records: one ``AttentionRecord`` for each attention call, in their order.
        missed: modules that seem to be attention, by name, and ran without an attention call that could be seen, with
            the names of their classes.
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
            kind: of one head, "map" for a heat map or "arcs" for arcs over the sentence.
            example: the row of the batch.
            sinks: whether the weight of learned sinks is shown in a last column, if there are any.
            hide: keys that are left blank, as numbers, such as 0 for a first token that takes most of the weight.
            call: the number of the model's call. Default: the only one.
            out: a file to which the picture is written too, by the ending of its name, such as .png or .svg.

        Returns:
            The figure of matplotlib.

        Raises:
            HeadwayError: if there is no such layer, head, example or call, the capture kept nothing that can be drawn,
                or arcs are asked for of several heads or of many tokens.
        """
        from .._common.pictures import save
        from ._picture import Options, check, picture_of_head, picture_of_heads

        check(kind, out)
        self._need_records()
        options = Options(tokens, key_tokens, example, sinks, hide)
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
