"""Pictures show the weights of the record, with every token readable."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway._common.language import speaking
from headway.errors import HeadwayError
from headway.inspection import PooledMap, Seen
from headway.models import Decoder, Encoder, EncoderDecoder, TransformerConfig

matplotlib = pytest.importorskip("matplotlib")

WORDS = ["The", "cat", "\n", "$x^2$", "sat", "an_extraordinarily_long_one", ""]
ZH = list("那只猫坐在垫子上。")


def captured(
    model_of: Any = Decoder, n: int = 7, keep: str = "qk", batch: int = 2, sink: float | None = None, **options: Any
) -> Seen:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=2, sink=sink)
    model = model_of(config, hw.encoding("alibi", num_heads=4)).eval()
    with torch.no_grad(), hw.capture(model, keep, **options) as seen:
        model(torch.randint(40, (batch, n)))
    return seen


def image(axes: Any) -> Tensor:
    shown = axes.images[0].get_array()
    return torch.from_numpy(shown.filled(float("nan")).copy())


def labels(axes: Any) -> tuple[list[str], list[str]]:
    return [x.get_text() for x in axes.get_yticklabels()], [x.get_text() for x in axes.get_xticklabels()]


def drawn(figure: Any) -> None:
    """Draws a picture, in which a letter without a glyph is a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()


def test_a_map_shows_the_weights() -> None:
    seen = captured()
    figure = seen.plot(1, 2, tokens=WORDS, example=1)
    axes = figure.axes[0]
    weights = seen.weights(1, 2)[1]
    assert torch.equal(image(axes).nan_to_num(), weights)
    assert torch.equal(image(axes).isnan(), torch.ones(7, 7).bool().triu(1))
    assert axes.get_title(loc="left") == "layer 1, head 2"
    assert axes.get_xlabel().startswith("key")
    assert axes.get_ylabel().startswith("query")
    assert "attention weight" in figure.axes[1].get_ylabel()
    down, across = labels(axes)
    assert down == across == ["The", "cat", "↵", "$x^2$", "sat", "an_extraordin…", "∅"]
    drawn(figure)


@pytest.mark.parametrize("model_of", [Decoder, Encoder])
@pytest.mark.parametrize("kind", ["map", "arcs", "layer"])
def test_chinese_is_never_boxes(model_of: Any, kind: str) -> None:
    pytest.importorskip("zhplot")
    seen = captured(model_of, n=len(ZH))
    figure = seen.plot(0, tokens=ZH) if kind == "layer" else seen.plot(0, 1, tokens=ZH, kind=kind)
    drawn(figure)
    texts = {text.get_text() for text in figure.findobj(matplotlib.text.Text)}
    assert texts >= set(ZH)


def arrows_of(figure: Any) -> list[Any]:
    return [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None) is not None]


def test_pictures_speak_the_chosen_language() -> None:
    pytest.importorskip("zhplot")
    with speaking("zh"):
        figure = captured(Encoder).plot(0, 3, tokens=WORDS, kind="arcs")
        axes = captured(Encoder).plot(0, 3, tokens=WORDS).axes[0]
    assert figure.axes[0].get_title(loc="left") == "层 0，头 3"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("键：被看的词元", "查询：在看的词元")
    drawn(figure)


@pytest.mark.parametrize("model_of", [Decoder, Encoder])
def test_arcs_are_the_weights_that_can_be_seen(model_of: Any) -> None:
    seen = captured(model_of)
    figure = seen.plot(0, 3, tokens=WORDS, kind="arcs")
    weights = seen.weights(0, 3)[0]
    strong = weights >= 0.05
    arrows = arrows_of(figure)
    assert {(round(arrow.xyann[0]), round(arrow.xy[0])) for arrow in arrows} == set(
        map(tuple, strong.nonzero().tolist())
    )
    assert all(arrow.xyann[1] > arrow.xy[1] for arrow in arrows)  # from queries above to keys below
    written = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith(("0.", "1."))]
    assert written == [f"{weight:.2f}" for weight in weights.flatten().sort(descending=True).values[:3].tolist()]
    assert figure.axes[0].get_title(loc="left") == "layer 0, head 3"
    dropped = float(weights[~strong].sum()) / 7
    assert f"together {dropped:.0%} of a query" in figure.get_supxlabel()
    drawn(figure)


def test_the_arrows_of_one_query_stand_out() -> None:
    seen = captured(Encoder)
    figure = seen.plot(0, 3, tokens=WORDS, kind="arcs", query=4)
    weights = seen.weights(0, 3)[0]
    coloured = {round(arrow.xyann[0]) for arrow in arrows_of(figure) if arrow.arrow_patch.get_edgecolor()[2] > 0.6}
    assert coloured == {4}
    assert len({round(arrow.xyann[0]) for arrow in arrows_of(figure)}) > 1
    written = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith(("0.", "1."))]
    strongest = weights[4].sort(descending=True).values[:3].tolist()
    assert written == [f"{weight:.2f}" for weight in strongest if weight >= 0.05]
    assert "in colour: the arrows of sat" in figure.get_supxlabel()
    drawn(figure)
    with pytest.raises(HeadwayError, match="there is no query 7: the nearest is 6"):
        seen.plot(0, 3, tokens=WORDS, kind="arcs", query=7)
    with pytest.raises(HeadwayError, match="query 4 is given for a map: give kind='arcs', or leave it out"):
        seen.plot(0, 3, tokens=WORDS, query=4)


def test_padding_is_left_out() -> None:
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=40
    )
    model = transformers.BertModel(config).eval()
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    with torch.no_grad(), hw.capture(model, "qk") as seen:
        model(torch.randint(40, (2, 7)), attention_mask=mask)
    for tokens in (WORDS, WORDS[:4]):
        figure = seen.plot(0, 1, tokens=tokens, example=1)
        assert torch.equal(image(figure.axes[0]), seen.weights(0, 1)[1, :4, :4])
        assert labels(figure.axes[0])[0] == ["The", "cat", "↵", "$x^2$"]
    with pytest.raises(HeadwayError, match="tokens is 5 of them: give a list of 7 strings, or 4 without padding"):
        seen.plot(0, 1, tokens=WORDS[:5], example=1)


def test_cross_attention_has_two_kinds_of_tokens() -> None:
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=1)
    model = EncoderDecoder(config, hw.encoding("rope", head_dim=4), hw.encoding("rope", head_dim=4))
    with torch.no_grad(), hw.capture(model, "qk") as seen:
        model(torch.randint(40, (1, 7)), torch.randint(40, (1, 3)))
    (cross,) = [record.layer for record in seen.records if record.kind == "cross"]
    figure = seen.plot(cross, 0, tokens=["a", "b", "c"], key_tokens=WORDS)
    assert image(figure.axes[0]).shape == (3, 7)
    assert labels(figure.axes[0])[0] == ["a", "b", "c"]
    arrows = arrows_of(seen.plot(cross, 0, tokens=["a", "b", "c"], key_tokens=WORDS, kind="arcs"))
    assert len(arrows) == int((seen.weights(cross, 0) >= 0.05).sum())
    assert len(seen.plot().axes[0].images) == 3 * 4


def test_sinks_have_a_column() -> None:
    seen = captured(sink=1.0)
    weights = seen.weights(0, 1)[0]
    axes = seen.plot(0, 1, tokens=WORDS).axes[0]
    torch.testing.assert_close(image(axes)[:, -1], 1 - weights.sum(-1))
    assert labels(axes)[1][-1] == "sink"
    assert image(seen.plot(0, 1, sinks=False).axes[0]).shape == (7, 7)
    assert image(captured().plot(0, 1).axes[0]).shape == (7, 7)


def test_hidden_keys_are_blank_and_out_of_the_colours() -> None:
    seen = captured()
    figure = seen.plot(0, 1, hide=[0, -1])
    shown = image(figure.axes[0])
    assert shown[:, [0, 6]].isnan().all()
    assert figure.axes[0].images[0].norm.vmax == pytest.approx(float(seen.weights(0, 1)[0, :, 1:6].max()))
    assert "left out: key 0, -1" in figure.axes[1].get_ylabel()
    with pytest.raises(HeadwayError, match="hide holds 9, not a key of the picture: give numbers up to 6"):
        seen.plot(0, 1, hide=[9])


def pooled(weights: Tensor, cells: int) -> Tensor:
    n = weights.shape[-1]
    place = torch.arange(n) * cells // n
    share = torch.nn.functional.one_hot(place, cells).float()
    return (share / share.sum(0)).T @ weights @ share


@pytest.mark.parametrize("keep", ["qk", "weights", "statistics"])
def test_many_tokens_are_pooled(keep: str) -> None:
    """Above 200 tokens a cell is the mean weight that its queries give to all of its keys."""
    n = 260
    options = {"statistics": PooledMap(128, 128)} if keep == "statistics" else {}
    seen = captured(n=n, keep=keep, batch=1, **options)
    truth = captured(n=n, keep="weights", batch=1).weights(1, 2)[0]
    figure = seen.plot(1, 2)
    torch.testing.assert_close(image(figure.axes[0]).nan_to_num(), pooled(truth, 128), atol=1e-6, rtol=1e-4)
    assert "mean of its queries" in figure.axes[1].get_ylabel()
    assert labels(figure.axes[0])[0][:2] == ["0", "50"]
    with pytest.raises(HeadwayError, match="arcs over 260 tokens cannot be read"):
        seen.plot(1, 2, kind="arcs")
    with pytest.raises(HeadwayError, match="hide is given with 260 keys, which are pooled"):
        seen.plot(1, 2, hide=[0])


def test_all_heads() -> None:
    seen = captured()
    layer = seen.plot(1, tokens=WORDS)
    heads = [axes for axes in layer.axes if axes.get_title(loc="left").startswith("head")]
    assert [axes.get_title(loc="left") for axes in heads] == [f"head {i}" for i in range(4)]
    for head, axes in enumerate(heads):
        assert torch.equal(image(axes).nan_to_num(), seen.weights(1, head)[0])
    every = seen.plot(example=1).axes[0]
    for number, one in enumerate(every.images):
        shown = torch.from_numpy(one.get_array().filled(0).copy())
        assert torch.equal(shown, seen.weights(number // 4, number % 4)[1])
        left, right, bottom, top = one.get_extent()
        assert (int(left), int(top)) == (number % 4, number // 4)
        assert right > left
        assert bottom > top  # the first query is above
    assert labels(every) == (seen.layers, ["0", "1", "2", "3"])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_written_whole_or_not_at_all(ending: str, tmp_path: Path) -> None:
    seen = captured()
    path = tmp_path / f"head.{ending}"
    seen.plot(0, 0, tokens=WORDS, out=path)
    assert path.read_bytes()[:5].startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF-"}[ending])
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    for wrong, message in (
        ("head", "give a name that ends with .png, .svg or .pdf"),
        ("none/head.png", "in a folder that exists"),
    ):
        with pytest.raises(HeadwayError, match=message):
            seen.plot(0, 0, out=tmp_path / wrong)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_model_that_was_called_several_times() -> None:
    model = Decoder(
        TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=2), hw.encoding("alibi", num_heads=4)
    )
    with hw.capture(model, "qk") as seen:
        hw.models.generate(model, [[1, 2, 3]], max_new_tokens=3)
    assert image(seen.plot(0, 1, call=-1).axes[0]).shape == (1, 5)
    assert len(seen.plot(call=0).axes[0].images) == 8
    axes = seen.plot(0, 1, call=-1, tokens=WORDS[:5]).axes[0]
    assert labels(axes) == (["sat"], ["The", "cat", "↵", "$x^2$", "sat"])
    with pytest.raises(HeadwayError, match="the model was called 3 times: give call="):
        seen.plot()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "bars"}, "kind is 'bars': give 'map' or 'arcs'"),
        ({"kind": "arcs"}, "arcs are of one head: give layer and head"),
        ({"head": 1}, "head 1 is given without a layer"),
        ({"layer": 5}, "there is no layer 5: the nearest is 1"),
        ({"layer": 0, "head": 4}, "there is no head 4: the nearest is 3"),
        ({"layer": 0, "head": 0, "example": 2}, "there is no example 2: the nearest is 1"),
        ({"layer": 0, "head": 0, "tokens": "The cat"}, "tokens is a string: give a list of 7 strings"),
        ({"layer": 0, "head": 0, "tokens": WORDS[:3]}, "tokens is 3 of them: give a list of 7 strings"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        captured().plot(**arguments)


def test_a_capture_keeps_what_the_plot_draws() -> None:
    captured(keep="statistics").plot()
    captured(keep="statistics").plot(0, 0)


def test_what_was_not_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadwayError, match=r"'pooled_map' was not kept, .* of statistics, plot draws 'pooled_map'"):
        captured(keep="statistics", statistics=("entropy",)).plot(0, 0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadwayError, match=r"a picture needs matplotlib: .*pip install .*\[plot\]'"):
        captured().plot(0, 0)


def test_pictures_of_some_heads_or_rows_alone() -> None:
    some = captured(keep="weights", heads=[3, 1])
    everything = captured(keep="weights")
    assert torch.equal(image(some.plot(1, 3).axes[0]).nan_to_num(), everything.weights(1, 3)[0])
    with pytest.raises(HeadwayError, match=r"'stack.blocks.1.attention' has only heads 3, 1: draw one of them"):
        some.plot(1, 0)
    with pytest.raises(HeadwayError, match=r"has only heads 3, 1: draw one of them"):
        some.plot(1)
    rows = captured(keep="weights", rows=[-1])
    with pytest.raises(HeadwayError, match="has only some rows, and pictures show all: capture without rows="):
        rows.plot(0, 0)
