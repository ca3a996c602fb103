import re
from pathlib import Path
from typing import Any

import pytest

from headway.study import Results, charts, compare, report


@pytest.fixture(scope="module")
def results(words: str, tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text(words)
    settings = {**tiny, "seeds": 2, "recall_steps": 2, "baselines": ("lstm",)}
    return compare(folder / "text.txt", ["learned", "rope(base=500.0)", "none"], **settings, out=folder / "out")


@pytest.mark.slow
def test_the_page_holds_everything_and_loads_nothing(results: Results) -> None:
    assert results.out is not None
    page = (results.out / "report.html").read_text()
    assert results.protocol.corpus_sha256 in page
    for name in results.names:
        assert name.replace('"', "&quot;") in page.replace("<wbr>", "")
    for sentence in [*results.conclusions(), *results.protocol.text()]:
        assert sentence.replace('"', "&quot;").replace("'", "&#x27;") in page
    assert not re.findall(r"<(?:script|link|img|iframe)\b", page)
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "url(http" not in page
    assert "@import" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "—" in page


def test_the_page_has_no_colour_that_the_dark_cannot_change(results: Results) -> None:
    picture = charts.svg(charts.draw_by_position(results))
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", picture))
    assert colours <= {"#ffffff", "#000000"}, colours
    for name in set(re.findall(r"var\(--([\w-]+)\)", picture)):
        for dark in (True, False):
            assert f"--{name}: #" in charts.css_colours(dark)


def test_the_pictures_are_there(results: Results) -> None:
    assert results.out is not None
    for name in report.PICTURES:
        content = (results.out / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


def test_lines_end_where_there_are_no_more_numbers(results: Results) -> None:
    lines = {line.name: line for line in charts.by_position(results)}
    assert lines["learned"].end == 16
    assert lines['learned(extend="interpolate")'].end == 32
    by_length = {line.name: line for line in charts.by_length(results)}
    assert list(by_length["learned"].x) == [16]
    assert by_length["none"].y[0] == results.mean("none", 16)
    assert by_length["none"].low[0] <= by_length["none"].y[0] <= by_length["none"].high[0]


def test_a_second_view_has_the_colour_of_the_first(results: Results) -> None:
    styles = charts.styles(results)
    assert styles["learned"].colour == styles['learned(extend="interpolate")'].colour
    assert styles["learned"].dashes != styles['learned(extend="interpolate")'].dashes
    assert len({styles[name].colour for name in ("learned", "rope(base=500.0)", "none")}) == 3


def test_results_come_back_from_their_folder(results: Results, tmp_path: Path) -> None:
    assert results.out is not None
    loaded = Results.load(results.out)
    assert loaded.rows == results.rows
    assert loaded.protocol == results.protocol
    with pytest.raises(ValueError, match="has no comparison"):
        Results.load(tmp_path / "nowhere")
