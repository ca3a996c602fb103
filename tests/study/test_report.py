import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway._common.language import speaking
from headway.study import ComparisonResults, charts, compare, report
from headway.study.protocol import FixedProtocol


@pytest.fixture(scope="module")
def results(words: str, tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ComparisonResults:
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text(words)
    settings = {**tiny, "seeds": 2, "recall_steps": 2, "baselines": ("lstm",)}
    return compare(folder / "text.txt", ["learned", "rope(base=500.0)", "none"], **settings, out=folder / "out")


@pytest.mark.slow
def test_the_page_holds_everything_and_loads_nothing(results: ComparisonResults) -> None:
    assert results.out is not None
    page = (results.out / "report.html").read_text()
    read = html.unescape(page.replace("<wbr>", ""))
    assert results.protocol.corpus_sha256 in page
    for name in results.names:
        assert name in read
    for sentences in [*results.parts().values(), list(results.parts()), results.protocol.text()]:
        for sentence in sentences:
            assert sentence in read
    assert not re.findall(r"<(?:script|link|img|iframe)\b", page)
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "url(http" not in page
    assert "@import" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "—" in page


def test_the_page_has_no_colour_that_the_dark_cannot_change(results: ComparisonResults) -> None:
    picture = charts.svg(charts.draw_by_position(results))
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", picture))
    assert colours <= {"#ffffff", "#000000"}, colours
    for name in set(re.findall(r"var\(--([\w-]+)\)", picture)):
        for dark in (True, False):
            assert f"--{name}: #" in charts.css_colours(dark)


def test_the_files_are_english_whatever_is_spoken(results: ComparisonResults, tmp_path: Path) -> None:
    assert results.out is not None
    with speaking("zh"):
        report.write(results, tmp_path)
        assert results.summary()[0].startswith("在训练长度")
    for name in ("report.html", "tables/losses.csv", "tables/costs.tex", "tables/losses.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (results.out / name).read_text(encoding="utf-8"), name


def test_every_file_of_the_report_is_there(results: ComparisonResults) -> None:
    assert results.out is not None
    beginnings = {
        "png": b"\x89PNG",
        "svg": b"<?xml",
        "csv": b"encoding,",
        "md": b"| encoding",
        "tex": b"% \\usepackage",
    }
    names = report.files(results)
    assert {f"{name}.{kind}" for name in report.PICTURES for kind in ("png", "svg")} <= set(names)
    assert {f"tables/{name}.{kind}" for name in ("losses", "costs") for kind in report.KINDS} <= set(names)
    for name in names:
        content = (results.out / name).read_bytes()
        kind = name.rpartition(".")[2]
        if kind in beginnings and not name.startswith(("tables/differences", "tables/tests")):
            assert content.startswith(beginnings[kind]), name
        assert len(content) > (10_000 if kind == "png" else 100), name
    there = {str(path.relative_to(results.out)) for path in results.out.rglob("*") if path.suffix[1:] in beginnings}
    assert there | {report.PAGE} == set(names), "a file that is not named"


def test_results_without_rows_have_no_files(tmp_path: Path, protocol: FixedProtocol) -> None:
    report.write(ComparisonResults([], protocol), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_counted_models_are_on_the_page_and_in_the_pictures(results: ComparisonResults) -> None:
    found = ComparisonResults(results.rows, results.protocol, settings={"counted": {"2-gram": 0.5, "5-gram": 0.25}})
    page = report.page(found)
    assert "2-gram, counted" in page
    assert "They have hardly learned" in page
    for draw in (charts.draw_by_position, charts.draw_by_length):
        axes = draw(found).axes[0]
        flat = [line for line in axes.lines if set(line.get_ydata()) == {0.5}]
        assert flat
        assert flat[0].get_linewidth() < 1
        assert axes.get_ylim()[0] < 0.25
        assert {"2-gram", "5-gram"} <= {text.get_text() for text in axes.texts}
    recall = charts.draw_recall(found).axes[0]
    assert "2-gram" not in {text.get_text() for text in recall.texts}


def test_a_counted_model_far_below_lets_no_line_leave_the_axis() -> None:
    """A loss 0.3 above the others is not an outlier in an axis that goes down by two bits."""
    lines = [charts.Line(str(y), [8, 16], [y, y], [y, y], [y, y], 16) for y in (4.2, 4.25, 4.3, 4.6)]
    assert charts.range_of(lines, "bits")[1] < 4.5
    low, high = charts.range_of(lines, "bits", [2.3])
    assert low < 2.3
    assert high > 4.6


def test_a_page_on_tokens_says_so(results: ComparisonResults) -> None:
    found = ComparisonResults(results.rows, replace(results.protocol, tokenizer="bpe:1024", bytes_per_token=2.5))
    page = report.page(found).split("The protocol, fixed")[0]
    assert "Lengths are in tokens (bpe:1024, 2.50 bytes each on average)" in page
    assert not re.findall(r"(?<!\.[0-9]{2} )bytes|byte[ -](?:before|at)|first byte", page)
    assert "position in the window: tokens before it" in page


def test_lines_end_where_there_are_no_more_numbers(results: ComparisonResults) -> None:
    lines = {line.name: line for line in charts.by_position(results)}
    assert lines["learned"].end == 16
    assert lines['learned(extend="interpolate")'].end == 32
    by_length = {line.name: line for line in charts.by_length(results)}
    assert list(by_length["learned"].x) == [16]
    assert by_length["none"].y[0] == results.mean("none", 16)
    assert by_length["none"].low[0] <= by_length["none"].y[0] <= by_length["none"].high[0]


def test_a_second_view_has_the_colour_of_the_first(results: ComparisonResults) -> None:
    styles = charts.styles(results)
    assert styles["learned"].colour == styles['learned(extend="interpolate")'].colour
    assert styles["learned"].dashes != styles['learned(extend="interpolate")'].dashes
    assert len({styles[name].colour for name in ("learned", "rope(base=500.0)", "none")}) == 3


def test_results_come_back_from_their_folder(results: ComparisonResults, tmp_path: Path) -> None:
    assert results.out is not None
    loaded = ComparisonResults.load(results.out)
    assert loaded.rows == results.rows
    assert loaded.protocol == results.protocol
    with pytest.raises(ValueError, match="has no comparison"):
        ComparisonResults.load(tmp_path / "nowhere")


def test_pictures_cut_no_name(results: ComparisonResults) -> None:
    """Not even one as long as a line; the axes keep their size beside it."""
    name = "rope(base=500.0, layout='half', rotary_dim=8)"
    rows = [{**row, "encoding": name} if row["encoding"].startswith("rope") else row for row in results.rows]
    longer = ComparisonResults(rows, results.protocol)
    for draw in (charts.draw_by_position, charts.draw_by_length):
        figure, usual = draw(longer), draw(results)
        (text,) = [text for text in figure.axes[0].texts if text.get_text().startswith(name)]
        assert text.get_window_extent().x1 <= figure.bbox.x1
        assert figure.axes[0].bbox.width == pytest.approx(usual.axes[0].bbox.width)
