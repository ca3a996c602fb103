"""Reports, opened in a browser without a network."""

from __future__ import annotations

import csv
import html
import math
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # for `import browser`

from browser import AXE, Opened, browser, url
from drawn_reports import TAU, Made, framed, write
from reports import FORMS, seen

VIEWS = ("explore", "map", "roles", "profiles", "method")


SENTENCE = (
    "The cat did not cross the street because it was tired, and the dog that saw it from the window slept.\nSo it goes."
)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return write(tmp_path_factory.mktemp("short") / "short.html", SENTENCE)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return write(tmp_path_factory.mktemp("long") / "long.html", f"{SENTENCE} " * 26, causal=True, long=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium: Any) -> Iterator[Any]:
    """opened(url, …) is a page of it. After the test it is closed, and must not have complained or asked for more."""
    pages: list[Opened] = []

    def open_it(address: str, **options: Any) -> Any:
        pages.append(Opened(chromium, address, **options))
        return pages[-1].page

    yield open_it
    for page in pages:
        page.close()
        assert page.complaints == []
        assert [request for request in page.requests if not request.startswith(("file:", "blob:", "data:"))] == []


def table(page: Any, path: Path) -> list[dict[str, str]]:
    """What the page saves as CSV."""
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    download.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def show(page: Any, view: str) -> None:
    page.locator(f"[data-view={view}]").click()


def address(page: Any) -> dict[str, str]:
    return dict(part.split("=") for part in page.evaluate("location.hash.slice(1)").split("&") if part)


def chosen(page: Any) -> str:
    return page.locator(".head[aria-pressed=true]").get_attribute("aria-label").split(":")[0]


def pixels_agree(page: Any, causal: bool, n: int, weight_at: Callable[[int, int], float]) -> None:
    """Compares 40 pixels of a map without a kept word with the colours of the weights that the page says are there."""
    page.mouse.move(5, 5)
    plot = page.locator(".plot canvas")
    side = plot.evaluate("canvas => canvas.clientWidth - 70")
    places = [(69 + side * (0.013 + 0.97 * (17 * i % 40) / 40), 61 + side * (0.013 + 0.97 * i / 40)) for i in range(40)]
    height = plot.evaluate("canvas => canvas.clientHeight")
    places = [(x, y) for x, y in places if y < height - 4]
    colours = plot.evaluate(
        "(canvas, all) => { const { data, width } = "
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); return all.map(([x, y]) => "
        "[...data.slice(4 * (Math.round(y) * width + Math.round(x))).slice(0, 3)]); }",
        places,
    )
    fills = page.locator(".ramp rect").evaluate_all("all => all.map(rect => rect.getAttribute('fill'))")
    ramp = [[int(part) for part in re.findall(r"\d+", fill)] for fill in fills]
    right, compared = 0, 0
    for (x, y), colour in zip(places, colours, strict=True):
        plot.hover(position={"x": round(x) + 0.5, "y": round(y) + 0.5})
        found = re.search(r" (\d+) → .* (\d+) ", f" {page.locator('.readout').inner_text()}")
        if found is None:
            continue
        query, key = int(found[1]), int(found[2])
        compared += 1
        if causal and key > query:
            right += colour == [240, 240, 238]
            continue
        weight = weight_at(query, key)
        low = math.log(1 / (4 * n))
        shade = math.sqrt(weight) if n <= 200 else min(max((math.log(max(weight, 1e-30)) - low) / -low, 0), 1)
        nearest = min(range(len(ramp)), key=lambda i: math.dist(ramp[i], colour))
        right += abs(nearest / (len(ramp) - 1) - shade) <= 0.03
    assert compared >= 30
    assert right >= 0.85 * compared  # a pixel at the edge of a cell may be that of the next one


def test_every_view_opens(short: Any, opened: Any) -> None:
    page = opened(url(short.path))
    for view in VIEWS:
        show(page, view)
        assert page.locator(f".view.{view}").is_visible()
        assert len(page.locator(".view").inner_text()) > 40


def test_the_first_screen(short: Any, opened: Any) -> None:
    page = opened(url(short.path))
    entry = short.report["heads"][short.report["open"]["head"]]
    assert chosen(page) == f"Layer {entry['layer']}, head {entry['head']}" == page.locator(".detail h2").inner_text()
    kept = page.locator(".words .kept")
    assert kept.get_attribute("data-token") == str(short.report["open"]["token"])
    assert kept.evaluate("element => parseFloat(getComputedStyle(element).fontSize)") == 20
    first = page.locator(".lists .to li button").first
    assert first.is_visible()
    assert page.locator(".arcs path").count() >= 1
    assert page.locator("footer").inner_text().startswith("Exact: every weight of every head, to ±")
    assert page.locator(".head canvas").count() == len(short.report["heads"])
    pixels = "new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)"
    plot = page.locator(".plot canvas").element_handle()
    page.wait_for_function(f"canvas => new Set({pixels}).size > 8", arg=plot)  # it is painted once it is laid out


def test_weights_read_from_the_page_are_those_of_the_model(short: Any, opened: Any, tmp_path: Path) -> None:
    page = opened(url(short.path, "layer=0&head=0&token=1&view=map"))
    compared = 0
    for head, entry in list(enumerate(short.report["heads"]))[:: max(1, len(short.report["heads"]) // 4)]:
        page.locator(f"[data-head='{head}']").click()
        for row in table(page, tmp_path / "weights.csv"):
            assert (int(row["layer"]), int(row["head"])) == (entry["layer"], entry["head"])
            true = float(short.weights[entry["layer"]][entry["head"]][int(row["query"])][int(row["key"])])
            assert abs(float(row["weight"]) - true) <= short.report["exactness"]["dense"] + 1e-6
            compared += 1
    assert compared >= 200


def test_lists_show_the_strongest_weights(short: Any, opened: Any) -> None:
    token = short.report["n"] - 2
    page = opened(url(short.path, f"layer=1&head=1&token={token}"))
    weights = short.weights[1][1]
    for kind, line in (("to", weights[token]), ("from", weights[:, token])):
        best = sorted(range(len(line)), key=lambda i: -float(line[i]))[:5]
        entries = page.locator(f".lists .{kind} li button")
        for place, other in enumerate(best):
            assert entries.nth(place).get_attribute("data-token") == str(other)
            shown = float(entries.nth(place).locator(".weight").inner_text().replace("−", "-"))
            assert shown == pytest.approx(float(line[other]), abs=6e-4)


def test_a_long_text_has_exact_heads_and_lists(long: Any, opened: Any, tmp_path: Path) -> None:
    for entry in long.report["heads"][:3]:
        form = entry["form"]
        at = f"layer={entry['layer']}&head={entry['head']}&token={long.report['n'] // 2}"
        page = opened(url(long.path, at))
        rows = table(page, tmp_path / "row.csv")
        assert rows
        for row in rows:
            true = float(long.weights[entry["layer"]][entry["head"]][int(row["query"])][int(row["key"])])
            assert abs(float(row["weight"]) - true) <= 1.5 * long.report["exactness"][form] + 1e-6
        said = page.locator("footer").inner_text()
        assert "12-bit" in said if form == "exact" else f"{long.report['exactness']['tau']} or more" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "stored"),
    [
        *(("none", "dense"), ("window", "dense"), ("alibi", "list")),
        *(("both ways", "exact"), ("cap", "exact"), ("two ranges", "exact")),
    ],
)
def test_files_that_headway_writes(opened: Any, tmp_path: Path, form: str, stored: str) -> None:
    n = 240 if stored == "dense" else 300
    found = seen(n, **FORMS[form])
    tokens = [str(token) for token in range(n)]
    path = found.report(tmp_path / "report.html", tokens=tokens)
    if stored != "dense":
        exact = [(1, 2)] if stored == "exact" else []
        path = found.report(path, int(0.9 * path.stat().st_size), tokens=tokens, exact=exact)
    weights = found.weights(1, head=2)[0]
    page = opened(url(path, f"layer=1&head=2&token={n // 2}"))
    said = page.locator("footer").inner_text()
    threshold = re.search(r"weights of this head of (\d\.\d+) or more", said)
    stated = re.search(r"to ±(\d+\.\d+)", said)
    assert stated is not None
    assert (threshold is not None, "12-bit" in said) == (stored == "list", stored == "exact")
    rows = table(page, tmp_path / "line.csv")
    shown = {(int(row["query"]), int(row["key"])): float(row["weight"]) for row in rows}
    floor = float(threshold[1]) if threshold else 1e-6
    for token in range(n):
        for pair in ((n // 2, token), (token, n // 2)):
            true = float(weights[pair])
            if true >= floor + float(stated[1]):
                assert abs(shown[pair] - true) <= float(stated[1]) + 5e-5
    assert len(shown) >= 5
    show(page, "map")
    page.keyboard.press("Escape")
    rows = table(page, tmp_path / "map.csv")
    assert len(rows) >= 2000 or stored == "list"
    for row in rows:
        true = float(weights[int(row["query"]), int(row["key"])])
        assert abs(float(row["weight"]) - true) <= float(stated[1]) + 1e-6
    for _ in range(4 if stored == "exact" else 0):  # until a weight has several pixels
        page.locator(".plot canvas").press("+")
    page.wait_for_timeout(1500)
    side = n if stored != "list" else 64  # a head of a list shows the cells of its map
    seen_in = [range(-(-cell * n // side), -(-(cell + 1) * n // side)) for cell in range(side)]

    def largest_in_cell(query: int, key: int) -> float:
        rows, columns = seen_in[query * side // n], seen_in[key * side // n]
        return float(weights[rows.start : rows.stop, columns.start : columns.stop].max())

    pixels_agree(page, form in ("window", "alibi", "cap", "two ranges"), n, largest_in_cell)


@pytest.mark.slow
def test_a_map_zooms_to_single_weights(long: Any, opened: Any) -> None:
    entry = next(entry for entry in long.report["heads"] if entry["form"] == "list")
    page = opened(url(long.path, f"layer={entry['layer']}&head={entry['head']}&token=9&view=map"))
    plot = page.locator(".plot canvas")
    across = page.locator(".controls .row .quiet")
    assert across.inner_text().startswith(f"{long.report['n']:,} ")
    plot.hover(position={"x": 300, "y": 300})
    for _ in range(40):
        page.mouse.wheel(0, -120)
    page.wait_for_function("parseInt(document.querySelector('.controls .row .quiet').textContent) <= 6")
    assert page.locator(".controls p.quiet", has_text="Cells are coarser").is_visible()
    assert re.search(r"\d → ", page.locator(".readout").inner_text())
    plot.focus()
    plot.press("0")
    assert across.inner_text().startswith(f"{long.report['n']:,} ")


@pytest.mark.slow
@pytest.mark.parametrize("density", [1, 2, 3])
def test_weights_of_a_list_are_marks_at_their_places(long: Any, opened: Any, density: int) -> None:
    """At rest, and after the map was moved by a hand."""
    index, entry = next((i, entry) for i, entry in enumerate(long.report["heads"]) if entry["form"] == "list")
    page = opened(
        url(long.path, f"layer={entry['layer']}&head={entry['head']}&token=9&view=map"), device_scale_factor=density
    )
    page.keyboard.press("Escape")
    plot, n, zooms = page.locator(".plot canvas"), long.report["n"], 5
    plot.focus()
    for _ in range(zooms):
        page.keyboard.press("+")
    page.wait_for_timeout(600)
    side = plot.evaluate("canvas => canvas.clientWidth - 70")
    span = n / 1.5**zooms
    edges = [(n - span) / 2] * 2

    def marks_agree() -> None:
        pixels = (
            "(canvas, all) => { const { width, height } = canvas; "
            "const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true }); "
            "copy.drawImage(canvas, 0, 0); const { data } = copy.getImageData(0, 0, width, height); "
            "return all.map(at => { "
            "const [x, y] = at.map(place => Math.floor(place * devicePixelRatio)); "
            "return [...data.slice(4 * (y * width + x)).slice(0, 3)]; }); }"
        )
        weights = long.weights[entry["layer"]][entry["head"]]
        within = [range(math.ceil(edge), math.floor(edge + span)) for edge in edges]
        pairs = [(query, key) for query in within[0] for key in within[1] if weights[query, key] >= 1.01 * TAU]
        assert len(pairs) >= 5
        scale = side / span
        places = [(68 + (key + 0.5 - edges[1]) * scale, 60 + (query + 0.5 - edges[0]) * scale) for query, key in pairs]
        fills = page.locator(".ramp rect").evaluate_all("all => all.map(rect => rect.getAttribute('fill'))")
        ramp = [[int(part) for part in re.findall(r"\d+", fill)] for fill in fills]
        for (query, key), colour in zip(pairs, plot.evaluate(pixels, places), strict=True):
            nearest = min(range(len(ramp)), key=lambda i: math.dist(ramp[i], colour))
            low = -math.log(4 * n)
            shade = 1 - math.log(float(weights[query, key])) / low
            assert abs(nearest / (len(ramp) - 1) - shade) <= 0.03, (query, key)

    assert index == 1
    marks_agree()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    for step in range(1, 9):
        page.mouse.move(box["x"] + 300 + 5 * step, box["y"] + 300 - 5 * step)
    page.mouse.up()
    page.mouse.move(5, 5)
    page.wait_for_timeout(600)
    edges = [edges[0] + 40 * span / side, edges[1] - 40 * span / side]
    marks_agree()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("screen", "density"), [((1600, 1000), 3), ((3840, 2160), 1)], ids=["three pixels for one", "4k"]
)
def test_the_tiles_of_a_dense_screen_are_each_made_once(
    opened: Any, tmp_path: Path, screen: tuple[int, int], density: int
) -> None:
    """A screen may show more tiles than are kept otherwise: leaving some of them out would make them again for ever."""
    n = 2570
    found = seen(n, layers=1, heads=1, kv_heads=1, **FORMS["causal"])
    path = found.report(tmp_path / "report.html", tokens=[str(token) for token in range(n)], exact=[(0, 0)])
    count = """
        globalThis.made = 0;
        const create = document.createElement;
        document.createElement = function (name) {
            globalThis.made += name === "canvas";
            return create.call(this, name);
        };
    """
    page = opened(
        url(path, "layer=0&head=0&token=9&view=map"),
        script=count,
        viewport={"width": screen[0], "height": screen[1]},
        device_scale_factor=density,
    )
    settled, before = 0, -1
    for _ in range(120):
        page.wait_for_timeout(500)
        made = page.evaluate("made")
        settled = settled + 1 if made == before else 0
        before = made
        if settled == 4:
            break
    assert settled == 4
    tiles = math.ceil(n / 128) ** 2
    assert 400 < tiles <= made <= tiles + 20
    page.locator(".plot canvas").hover(position={"x": 300, "y": 600})
    page.wait_for_timeout(1000)
    assert page.evaluate("made") == made


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "exact"])
def test_pixels_and_weights_while_heads_are_switched(
    short: Any, long: Any, opened: Any, tmp_path: Path, form: str
) -> None:
    made = short if form == "dense" else long
    heads = [index for index, head in enumerate(made.report["heads"]) if head["form"] == form]
    entry = made.report["heads"][heads[0]]
    weights, n = made.weights[entry["layer"]][entry["head"]], made.report["n"]
    page = opened(url(made.path, f"layer={entry['layer']}&head={entry['head']}&token=2&view=map"))
    page.keyboard.press("Escape")
    plot = page.locator(".plot canvas")
    plot.focus()
    for _ in range(5 if form == "exact" else 0):
        page.keyboard.press("+")
    for index in [*heads[1:], heads[0]]:  # the tiles of each are begun, and none but the last may be seen
        page.locator(f"[data-head='{index}']").click()
    page.wait_for_timeout(1500)
    pixels_agree(page, made.report["model"]["causal"], n, lambda query, key: float(weights[query, key]))
    rows = table(page, tmp_path / "weights.csv")
    assert len(rows) >= (2000 if form == "exact" else n)
    for row in rows:
        true = float(weights[int(row["query"])][int(row["key"])])
        assert abs(float(row["weight"]) - true) <= 1.5 * made.report["exactness"][form] + 1e-6


@pytest.mark.slow
def test_both_ways_of_multiplying_are_equal(long: Any, opened: Any, tmp_path: Path) -> None:
    entry = next(entry for entry in long.report["heads"] if entry["form"] == "exact")
    at = url(long.path, f"layer={entry['layer']}&head={entry['head']}&token={long.report['n'] // 2}")
    vectors = table(opened(at), tmp_path / "a.csv")
    plain = table(opened(at, script="delete globalThis.WebAssembly"), tmp_path / "b.csv")
    assert len(vectors) > 100
    assert vectors == plain


def test_the_head_that_was_asked_for_last_is_shown(short: Any, opened: Any, tmp_path: Path) -> None:
    later_is_sooner = """
        const inflated = Response.prototype.arrayBuffer;
        let wait = 600;
        Response.prototype.arrayBuffer = async function () {
            await new Promise((resolve) => setTimeout(resolve, (wait -= 20)));
            return inflated.call(this);
        };
    """
    page = opened(url(short.path), script=later_is_sooner)
    page.evaluate("document.querySelectorAll('.head').forEach(head => head.click())")
    last = short.report["heads"][-1]
    assert chosen(page) == f"Layer {last['layer']}, head {last['head']}"
    page.wait_for_timeout(700)
    rows = table(page, tmp_path / "last.csv")
    assert rows
    for row in rows:
        true = float(short.weights[last["layer"]][last["head"]][int(row["query"])][int(row["key"])])
        assert abs(float(row["weight"]) - true) <= short.report["exactness"]["dense"] + 1e-6


def test_a_sentence_says_what_is_seen_and_a_line_shows_the_far_end_of_a_link(long: Any, opened: Any) -> None:
    weights = long.weights[0][0]
    far = (query for query in range(long.report["n"] - 1, 0, -1) if query - int(weights[query].argmax()) > 200)
    token = max(list(far)[:100], key=lambda query: float(weights[query].max()))
    key = int(weights[token].argmax())
    page = opened(url(long.path, f"layer=0&head=0&token={token}"))
    said = page.locator(".says").inner_text()
    share = float(weights[token, key])
    assert re.search(rf"gives {100 * share:.{1 if share < 0.1 else 0}f} % of its attention to", said)
    excerpt = page.locator(".outside").first.locator(".excerpt")
    shades = excerpt.locator(".token").evaluate_all("all => all.map(one => +one.style.getPropertyValue('--to'))")
    assert max(shades) == pytest.approx(math.sqrt(share), abs=2e-3)
    excerpt.click()
    assert address(page)["token"] == str(key)


def test_hover_shows_a_click_keeps_and_escape_lets_go(short: Any, opened: Any) -> None:
    page = opened(url(short.path))
    name = page.locator(".lists .to h3 bdi")
    before = name.inner_text()
    other = page.locator(".words [data-token='1']")
    other.hover()
    assert name.inner_text() == other.inner_text() != before
    page.mouse.move(5, 5)
    assert name.inner_text() == before
    other.click()
    page.mouse.move(5, 5)
    assert name.inner_text() == other.inner_text()
    assert address(page)["token"] == "1"
    page.keyboard.press("Escape")
    assert page.locator(".kept").count() == 0
    assert "token" not in address(page)


def test_the_keyboard_is_enough(short: Any, opened: Any) -> None:
    page = opened(url(short.path, "layer=0&head=0&token=2"))
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator(".view.map").is_visible()
    page.keyboard.press("ArrowLeft")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "document.activeElement.closest('.head, .words, .plot canvas, .lists button')?.className ?? ''"
        )
        if "head" in here.split():
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            assert chosen(page) == "Layer 1, head 1"
            reached.add("heads")
        elif here == "words":
            page.keyboard.press("ArrowRight")
            assert page.locator(".kept").get_attribute("data-token") == "3"
            page.keyboard.press("Home")
            assert page.locator(".kept").get_attribute("data-token") == "0"
            reached.add("words")
        elif page.evaluate("document.activeElement.matches('.plot canvas')"):
            across = page.locator(".controls .row .quiet").inner_text()
            page.keyboard.press("+")
            assert page.locator(".controls .row .quiet").inner_text() != across
            page.keyboard.press("Escape")  # lets go of the token
            page.keyboard.press("Escape")  # shows the whole text
            assert page.locator(".controls .row .quiet").inner_text() == across
            page.locator(".words").focus()
            page.keyboard.press("Home")
            page.locator(".plot canvas").focus()
            reached.add("map")
        elif page.evaluate("document.activeElement.matches('.lists button')"):
            token = page.evaluate("document.activeElement.dataset.token")
            page.keyboard.press("Enter")
            assert address(page)["token"] == token
            reached.add("lists")
            break
    assert reached == {"heads", "words", "map", "lists"}


def test_the_address_says_what_is_shown(short: Any, opened: Any) -> None:
    page = opened(url(short.path, "layer=1&head=2&token=3&view=profiles"))
    assert page.locator(".view.profiles").is_visible()
    assert chosen(page) == "Layer 1, head 2"
    show(page, "explore")
    assert address(page) == {"layer": "1", "head": "2", "token": "3"}
    page.evaluate("location.hash = 'layer=0&head=1&token=4'")
    page.wait_for_function("document.querySelector('.kept').dataset.token === '4'")
    assert chosen(page) == "Layer 0, head 1"
    page.evaluate("location.hash = 'layer=99&head=-1&token=1e9&view=nothing'")
    page.wait_for_timeout(50)
    assert chosen(page) == "Layer 0, head 1"


@pytest.mark.slow
def test_two_languages(short: Any, opened: Any) -> None:
    page = opened(url(short.path), locale="en-GB")
    assert page.locator(".tabs button").all_inner_texts()[:2] == ["Explore", "Map"]
    page.get_by_role("button", name="中文").click()
    assert page.locator(".headway").get_attribute("lang") == "zh-Hans"
    assert page.locator(".tabs button").all_inner_texts() == ["探索", "热图", "角色", "分布", "数字从何而来"]
    for view in VIEWS[1:]:
        show(page, view)
        left = re.findall(r"\b(?:weight|head|layer|tokens?|query|the)\b", page.locator(".view").inner_text())
        assert [word for word in left if word not in SENTENCE] == []
    page.get_by_role("button", name="English").click()
    assert page.locator(".headway").get_attribute("lang") == "en"


@pytest.mark.slow
@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: `npm ci` in viewer/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_screen_readers(short: Any, opened: Any, scheme: str) -> None:
    page = opened(url(short.path), color_scheme=scheme, bypass_csp=True)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for view in VIEWS:
        show(page, view)
        found = page.evaluate(
            "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html]))"
        )
        assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 900, 1280])
def test_it_fits(short: Any, long: Any, opened: Any, width: int) -> None:
    for report in (short, long):
        page = opened(url(report.path), viewport={"width": width, "height": 800})
        for view in VIEWS:
            show(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if width < 1120:  # the page is as long as its parts
                assert (
                    page.evaluate("(view => view.scrollHeight - view.clientHeight)(document.querySelector('.view'))")
                    <= 1
                )


def within_a_frame(report: Path, folder: Path, *, head: str = "", sandbox: str = "") -> Path:
    """Writes a page with a report in a frame, by its srcdoc."""
    outer, inner = folder / "outer.html", html.escape(report.read_text(encoding="utf-8"))
    outer.write_text(
        f'<!doctype html><meta charset="utf-8">{head}<p class="page">A frame:</p>'
        f'<iframe {sandbox} style="width: 1280px; height: 760px" srcdoc="{inner}"></iframe>',
        encoding="utf-8",
    )
    return outer


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["", 'sandbox="allow-scripts"'], ids=["srcdoc", "sandbox"])
def test_it_works_within_a_frame(short: Any, opened: Any, tmp_path: Path, sandbox: str) -> None:
    frame = opened(url(within_a_frame(short.path, tmp_path, sandbox=sandbox))).frames[1]
    frame.locator("[data-head='1']").click()
    frame.locator(".words [data-token='2']").click()
    assert frame.locator(".words .kept").get_attribute("data-token") == "2"
    assert frame.evaluate("location.hash") == "#layer=0&head=1&token=2"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "exact"])
def test_it_works_where_a_policy_forbids_workers(
    chromium: Any, short: Any, long: Any, tmp_path: Path, form: str
) -> None:
    """As in VS Code. A frame of a srcdoc has the policies of the page around it too."""
    made = short if form == "dense" else long
    policy = "worker-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval'"
    outer = within_a_frame(made.path, tmp_path, head=f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    page = Opened(chromium, url(outer))
    frame = page.page.frames[1]
    frame.locator("[data-head='0']").click()
    frame.locator(".words [data-token='7']").click()
    weights = made.weights[0, 0, 7]
    first = frame.locator(".lists .to li button").first
    assert first.get_attribute("data-token") == str(int(weights.argmax()))
    assert float(first.locator(".weight").inner_text()) == pytest.approx(float(weights.max()), abs=6e-4)
    if form == "exact":
        zoomed = frame.locator(".plot canvas")
        zoomed.focus()
        for _ in range(4):
            zoomed.press("+")  # until tiles are computed
        page.page.wait_for_timeout(600)
    pixels = "new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)"
    assert frame.locator(".plot canvas").evaluate(f"canvas => new Set({pixels}).size") > 30
    assert page.complaints == []
    broken = frame.evaluate(
        "new Promise(resolve => { addEventListener('securitypolicyviolation', event => "
        "resolve(event.effectiveDirective)); try { new Worker(URL.createObjectURL(new Blob(['']))) } catch {} })"
    )
    assert broken == "worker-src"  # the policy does hold
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'one </script><script>alert(1)</script> <!-- & "two" ]]> <b>three</b> \\u003c',
        "def fib(n):\n    return n if n < 2 else fib(n - 1)\n\n\nprint(fib(30))",
        "لم تعبر القطة الشارع لأنها كانت متعبة ، ونام الكلب",
        "बिल्ली ने सड़क पार नहीं की क्योंकि वह थकी हुई थी",
        "小猫没有过马路，因为它太累了。 窗边看着它的狗也睡着了",
        "a👩‍👩‍👧‍👦b 🇮🇳 naïve e\u0301te\u0301",
    ],
    ids=["page", "code", "arabic", "devanagari", "chinese", "joined"],
)
def test_text_is_shown_as_it_is_written(opened: Any, tmp_path: Path, text: str) -> None:
    made = write(tmp_path / "text.html", text)
    page = opened(url(made.path))
    assert page.locator("body script").count() == len(made.report["chunks"]) + 2
    assert page.locator(".words").evaluate("element => element.textContent") == text


@pytest.mark.slow
def test_a_hundred_thousand_characters_without_a_space(opened: Any, tmp_path: Path) -> None:
    made = write(tmp_path / "text.html", "x" * 99_600 + "-x" * 200)
    page = opened(url(made.path, "layer=0&head=0&token=300"))
    assert page.locator(".words [data-token]").count() < 200
    assert page.locator(".words .kept").is_visible()


def test_the_foot_says_no_less_than_the_file(short: Any, opened: Any, tmp_path: Path) -> None:
    report = {**short.report, "exactness": {**short.report["exactness"], "dense": 0.00014}}
    (tmp_path / "report.html").write_text(framed(report, short.contents), encoding="utf-8")
    page = opened(url(tmp_path / "report.html"))
    assert "to ±0.00014." in page.locator("footer").inner_text()


def test_a_map_alone_says_nothing_of_weights(long: Any, opened: Any, tmp_path: Path) -> None:
    chunks = [chunk for chunk in long.report["chunks"] if chunk["kind"] in ("thumbs", "map")]
    heads = [{**head, "form": "list"} for head in long.report["heads"]]
    exactness = {**long.report["exactness"], "tau": None}
    contents = {chunk["id"]: long.contents[chunk["id"]] for chunk in chunks}
    report = {**long.report, "chunks": chunks, "heads": heads, "exactness": exactness}
    (tmp_path / "report.html").write_text(framed(report, contents), encoding="utf-8")
    page = opened(url(tmp_path / "report.html"))
    page.locator(".plot canvas").hover(position={"x": 80, "y": 300})
    assert page.locator(".readout strong").inner_text() == "The file holds only the map of this head."


def test_a_character_of_several_tokens_is_shown_once(opened: Any, tmp_path: Path) -> None:
    offsets, tokens = [(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4)], ["a", "Ġ", "中", "中", "中", "文"]
    path = seen(6, **FORMS["none"]).report(tmp_path / "report.html", text="a 中文", offsets=offsets, tokens=tokens)
    assert opened(url(path)).locator(".words").inner_text().strip() == "a 中文"


def test_heads_that_are_not_numbers(opened: Any, tmp_path: Path) -> None:
    broken = write(tmp_path / "broken.html", SENTENCE, nan=True)
    entry = next(entry for entry in broken.report["heads"] if entry["nan"])
    page = opened(url(broken.path, f"layer={entry['layer']}&head={entry['head']}&token=1"))
    assert "not numbers" in page.locator("footer").inner_text()
    assert page.locator(".head[aria-pressed=true]").get_attribute("aria-label").endswith("not a number")
    for view in VIEWS:
        show(page, view)


@pytest.mark.slow
def test_two_reports_follow_each_other(opened: Any, tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.html", SENTENCE, causal=name == "b", prefix=f"{name}-") for name in "ab")
    both = tmp_path / "both.html"
    report = {"format": 1, "names": ["a", "b"], "reports": [a.report, b.report]}
    both.write_text(framed(report, {**a.contents, **b.contents}), encoding="utf-8")
    page = opened(url(both), viewport={"width": 1600, "height": 900})
    left, right = page.locator(".headway").all()
    right.locator("[data-head='4']").click()
    left.locator(".words [data-token='6']").click()
    for side, made in ((left, a), (right, b)):
        assert side.locator(".head[aria-pressed=true]").get_attribute("data-head") == "4"
        assert side.locator(".kept").get_attribute("data-token") == "6"
        shown = float(side.locator(".lists .to .weight").first.inner_text())
        assert shown == pytest.approx(float(made.weights[1, 1, 6].max()), abs=6e-4)
    left.locator(".controls select").first.select_option("difference")
    plot = left.locator(".plot canvas")
    side = plot.evaluate("canvas => canvas.clientWidth - 70")
    plot.hover(position={"x": 68 + side * 2.5 / a.report["n"], "y": 60 + side * 6.5 / a.report["n"]})
    shown = float(left.locator(".readout strong").inner_text().replace("−", "-"))
    assert shown == pytest.approx(float(a.weights[1, 1, 6, 2] - b.weights[1, 1, 6, 2]), abs=1e-3)


@pytest.mark.slow
def test_pictures_and_tables_are_saved(short: Any, opened: Any, tmp_path: Path) -> None:
    page = opened(url(short.path))
    for form, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"layer,head,query")):
        with page.expect_download() as download:
            page.get_by_role("button", name=form).click()
        download.value.save_as(tmp_path / form)
        assert (tmp_path / form).read_bytes().startswith(start)
    drawn = (tmp_path / "SVG").read_text(encoding="utf-8")
    assert f">{page.locator('.words .kept').inner_text()}</text>" in drawn


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_even_in_lightness(short: Any, opened: Any, scheme: str) -> None:
    page = opened(url(short.path), color_scheme=scheme)
    fills = page.locator(".ramp rect").evaluate_all("all => all.map(rect => rect.getAttribute('fill'))")
    lightness = [_oklab_lightness([int(part) for part in re.findall(r"\d+", fill)]) for fill in fills]
    steps = [after - before for before, after in pairwise(lightness)]
    mean = sum(steps) / len(steps)
    assert all(abs(step - mean) < 0.35 * abs(mean) for step in steps)


def _oklab_lightness(colour: list[int]) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (c / 255 for c in colour))
    return (
        0.2104542553 * math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
        + 0.793617785 * math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
        - 0.0040720468 * math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    )
