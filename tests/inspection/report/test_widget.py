"""Reports in notebooks, whose kernel answers what the page would hold."""

from __future__ import annotations

import base64
import csv
import json
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import headway as hw
from headway import HeadwayError
from headway.inspection import Seen
from headway.inspection.report._live import Live, answering
from headway.inspection.report._page import asset
from headway.inspection.report._subject import subject_of
from headway.inspection.report._write import live

sys.path.append(str(Path(__file__).parent))  # for `import browser`

from browser import browser
from reports import FORMS, seen

KERNEL_FORMS: dict[str, dict[str, Any]] = {
    **{name: FORMS[name] for name in ("none", "rope", "both ways", "two ranges")},
    "relative keys": {"encoding": hw.encoding("shaw", head_dim=16, max_distance=8)},
}


def answers(captured: Seen) -> Live:
    subject = subject_of(captured, None, None, None, None, 0, None, "drawn")
    return Live(live(subject), subject)


def floats(found: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(found), dtype=torch.float32)


@pytest.mark.parametrize("form", KERNEL_FORMS)
def test_the_kernel_answers_with_the_weights_of_the_model(form: str) -> None:
    n, layer, own = 600, 1, 2
    captured = seen(n, **KERNEL_FORMS[form])
    kernel = answers(captured)
    assert {head["form"] for head in kernel.report.json["heads"]} == {"kernel"}
    assert kernel.report.json["exactness"]["tau"] is None
    weights = captured.weights(layer, own)[0]
    head = layer * 4 + own
    row = floats(kernel.answer({"what": "row", "head": head, "token": 333}))
    torch.testing.assert_close(row.clamp(min=0), weights[333], atol=1e-6, rtol=1e-5)
    if "mask" in KERNEL_FORMS[form]:
        assert (row == -1).equal(weights[333] == 0)
    column = floats(kernel.answer({"what": "column", "head": head, "token": 100}))
    torch.testing.assert_close(column, weights[:, 100], atol=1e-6, rtol=1e-5)
    for step in (1, 2, 4):
        side = 128
        asked = {"what": "tile", "head": head, "query": 512, "key": side * step, "side": side, "step": step}
        tile = floats(kernel.answer(asked)).view(-(-(n - 512) // step), -1)
        cells = weights[512:, side * step : 2 * side * step].clone()
        cells = torch.nn.functional.pad(cells, (0, -cells.shape[1] % step, 0, -cells.shape[0] % step))
        rows, columns = (length // step for length in cells.shape)
        strongest = cells.view(rows, step, columns, step).amax((1, 3))
        torch.testing.assert_close(tile.clamp(min=0), strongest, atol=1e-6, rtol=1e-5)


def test_a_model_in_bfloat16_is_answered_in_float32() -> None:
    captured = seen(550, layers=1, **FORMS["rope"])
    kernel = answers(captured)
    kernel.subject.calls[0] = kernel.subject.calls[0]._with(
        q=kernel.subject.calls[0].q.bfloat16(), k=kernel.subject.calls[0].k.bfloat16()
    )
    row = floats(kernel.answer({"what": "row", "head": 1, "token": 500}))
    column = floats(kernel.answer({"what": "column", "head": 1, "token": 7}))
    assert float(row.clamp(min=0).sum()) == pytest.approx(1, abs=1e-5)
    assert float(column[500]) == pytest.approx(float(row[7]), rel=1e-4, abs=1e-9)


def test_short_texts_are_chunks() -> None:
    kernel = answers(seen(40))
    ids = [chunk["id"] for chunk in kernel.report.json["chunks"] if chunk["kind"] == "dense"]
    assert len(ids) == 8
    assert len(zlib.decompress(kernel.answer({"what": "chunk", "id": ids[0]}))) == 2 * 40 * 40


class Sent(list[Any]):
    """What a widget was told to send."""

    def send(self, message: Mapping[str, Any], buffers: Any = ()) -> None:
        self.append((message, list(buffers)))


def test_each_question_has_a_reply() -> None:
    sent, answer = Sent(), answering(answers(seen(40)))
    answer(sent, {"what": "row", "head": 0, "token": 3, "ask": 7}, [])
    answer(sent, {"what": "row", "head": 99, "token": 3, "ask": 8}, [])
    answer(sent, {}, [])
    assert sent[0][0] == {"reply": 7}
    assert len(sent[0][1][0]) == 160
    assert sent[1][0] == {"reply": 8, "error": "IndexError: list index out of range"}
    assert sent[2][0] == {"reply": None, "error": "KeyError: 'what'"}


@pytest.fixture
def anywidget(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what headway uses of anywidget and traitlets."""

    class Trait:
        def __init__(self, *default: object) -> None:
            pass

        def tag(self, **tags: object) -> None:
            assert tags == {"sync": True}

    class AnyWidget:
        def __init__(self, **values: Any) -> None:
            vars(self).update(values)

        def on_msg(self, listener: Any) -> None:
            self.listener = listener

    modules = {"anywidget": {"AnyWidget": AnyWidget}, "traitlets": {"Unicode": Trait, "Int": Trait}}
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("anywidget")
def test_the_widget() -> None:
    made = seen(20).widget(tokens=[f"w{i}" for i in range(20)], name="small", height=500, language="zh")
    report = json.loads(made.report)
    assert (report["model"]["name"], report["n"], report["language"], made.height) == ("small", 20, "zh", 500)
    assert "export{" in made._esm
    assert ".headway" in made._css
    sent = Sent()
    made.listener(sent, {"what": "chunk", "id": "thumbs", "ask": 1}, [])
    assert len(zlib.decompress(sent[0][1][0])) == 8 * 20 * 20


@pytest.mark.usefixtures("anywidget")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0}, "height is 0: give pixels, such as 760"),
        ({"height": "tall"}, "height is 'tall': give pixels"),
        ({"language": "de"}, "language is 'de'"),
        ({"tokens": ["a"]}, "tokens has 1 of them"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        seen(20).widget(**arguments)


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(HeadwayError, match=r"a widget needs anywidget: .*\[widget\]"):
        seen(20).widget()


# ---------------------------------------------------------------- in a browser, with a model in place of anywidget's

SHOW = """async ([script, report]) => {
    // another window, or the page before it was loaded again, has a module of its own
    window.views = (window.views ?? 0) + 1;
    const { default: widget } = await import(`data:text/javascript;base64,${script}#${window.views}`);
    const listeners = new Set();
    const model = {
        get: (name) => ({ report, height: 800 })[name],
        on: (_, listener) => listeners.add(listener),
        off: (_, listener) => listeners.delete(listener),
        send: async (asked) => {
            const bytes = Uint8Array.from(atob(await kernel(asked)), (letter) => letter.charCodeAt(0));
            const reply = bytes.length ? { reply: asked.ask } : { reply: asked.ask, error: "none" };
            listeners.forEach((listener) => listener(reply, [new DataView(bytes.buffer)]));
        },
    };
    const el = document.body.appendChild(document.createElement("div"));
    const remove = widget.render({ model, el });
    window.gone = () => (remove(), [el.childElementCount, listeners.size]);
}"""


@pytest.fixture
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.slow
def test_a_viewer_asks_the_kernel(chromium: Any, tmp_path: Path) -> None:
    n = 700
    captured = seen(n, **FORMS["alibi"])
    kernel, asked = answers(captured), list[Mapping[str, Any]]()

    def answer(question: Mapping[str, Any]) -> str:
        asked.append(question)
        return base64.b64encode(kernel.answer(question)).decode()

    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.expose_function("kernel", answer)
    page.add_style_tag(content=asset("viewer.css"))
    script = base64.b64encode(asset("viewer.js").encode()).decode()
    page.evaluate(SHOW, [script, json.dumps(kernel.report.json)])
    page.locator("[data-head='6']").click()
    page.locator(".words").focus()
    page.keyboard.press("End")
    page.wait_for_selector(".lists .to li")
    page.wait_for_selector(".lists .from li")
    assert "as the kernel of the notebook computes it" in page.locator("footer").inner_text()
    assert page.locator(".headway").evaluate("element => element.parentElement.closest('[data-lm-suppress-shortcuts]')")

    def saved() -> list[dict[str, str]]:
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        download.value.save_as(tmp_path / "weights.csv")
        with (tmp_path / "weights.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    weights = captured.weights(1, 2)[0]
    compared = 0
    for view in ("explore", "whole map", "map"):
        page.locator(f"[data-view={view.split()[-1]}]").click()
        if view == "map":
            page.locator(".plot canvas").focus()
            for _ in range(8):
                page.keyboard.press("+")
        rows = saved()
        for row in rows:
            weight = float(weights[int(row["query"]), int(row["key"])])
            assert float(row["weight"]) == pytest.approx(weight, rel=1e-5, abs=1e-6)
            compared += 1
        if view == "whole map":  # of more rows than the viewer keeps
            assert {int(row["query"]) for row in rows} == set(range(n))
    assert compared >= 1000
    page.wait_for_function("document.querySelectorAll('.plot canvas').length === 1")
    assert {question["what"] for question in asked} == {"chunk", "row", "column", "tile"}
    assert page.evaluate("gone()") == [0, 0]
    before = {question["ask"] for question in asked}
    page.evaluate(SHOW, [script, json.dumps(kernel.report.json)])
    page.wait_for_selector(".heads canvas, [data-head]")
    assert before.isdisjoint(question["ask"] for question in asked[len(before) :])
    assert len(asked) > len(before)
    assert complaints == []
