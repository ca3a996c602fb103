"""One table, written in each format."""

import csv
import io

import pytest

from headway._common.table import IN_LATEX, Cell, Table, signed

NAME = 'learned_50%(extend="interpolate") & <b>{x}$ #1 ~^\\ |'
"""A name with every sign that some format reads otherwise."""


def table() -> Table:
    rows = [
        [Cell(NAME, dot="ink"), Cell.of(2.05, ".3f", 0.0312, best=True), Cell.of(None, ".3f")],
        ["b", Cell.of(-1234.5, ",.1f"), Cell.of(3.0, ".1f")],
    ]
    return Table(["encoding", Cell("1,024", 1024), "far"], rows, rules=[1])


def test_markdown_has_titles_a_rule_and_rows() -> None:
    lines = table().markdown().splitlines()
    assert lines[:2] == ["| encoding | 1,024 | far |", "| --- | --- | --- |"]
    assert lines[2] == f"| {NAME.replace('|', '∣')} | **2.050 ± 0.031** | — |"
    assert lines[3] == "| b | −1,234.5 | 3.0 |"
    assert Table(["a"], []).markdown() == ""
    assert Table(["a", "b"], [["3", ""]]).markdown().endswith("| 3 | |")


def test_columns_are_aligned_as_they_are_told() -> None:
    assert r"\begin{tabular}{lrl}" in Table(["a", "b", "c"], [], right=[1]).latex()


def test_a_rule_above_the_first_row_is_that_of_the_titles() -> None:
    assert Table(["a"], [["1"], ["2"]], rules=[0]).latex() == Table(["a"], [["1"], ["2"]]).latex()


def test_latex_is_a_tabular_of_booktabs_with_escaped_names() -> None:
    lines = table().latex().splitlines()
    assert lines[1:5] == [r"\begin{tabular}{lrr}", r"\toprule", r"encoding & 1,024 & far \\", r"\midrule"]
    name = (
        r"learned\_50\%(extend={\char34}interpolate{\char34}) \& \textless{}b\textgreater{}\{x\}\$ \#1 "
        r"\textasciitilde{}\textasciicircum{}\textbackslash{} \textbar{}"
    )
    assert lines[5] == rf"{name} & \textbf{{2.050 $\pm$ 0.031}} & --- \\"
    assert lines[6:] == [r"\midrule", r"b & $-$1,234.5 & 3.0 \\", r"\bottomrule", r"\end{tabular}"]


def test_every_special_sign_of_latex_is_escaped() -> None:
    assert set("&%$#_{}~^\\") <= set(IN_LATEX)


def test_csv_has_numbers_as_they_are_and_intervals_in_their_own_columns() -> None:
    first, *rows = csv.reader(io.StringIO(table().csv()))
    assert first == ["encoding", "1024", "1024 ±", "far"]
    assert rows == [[NAME, "2.05", "0.0312", ""], ["b", "-1234.5", "", "3.0"]]


def test_html_is_escaped_and_marks_the_best() -> None:
    html = table().html()
    assert "<b>" not in html
    assert "&lt;b&gt;{x}$" in html
    assert '<td class="best">2.050 ± 0.031</td>' in html
    assert 'style="background: var(--ink)"' in html
    assert html.count('<tr class="rule">') == 1


def test_a_terminal_gets_names_as_they_are() -> None:
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=100, file=io.StringIO(), highlight=False)
    console.print(Table(["[bold]", "n"], [["a[1]", Cell("2", best=True)], ["b", "3"]], rules=[1]).rich())
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["[bold]", "n"] in lines
    assert ["a[1]", "2"] in lines


@pytest.mark.parametrize(
    ("value", "form", "spread", "expected"),
    [
        (2.0, ".3f", None, "2.000"),
        (-0.0521, "+.3f", 0.012, "−0.052 ± 0.012"),
        (None, ".3f", None, "—"),
        (12345.6, ",.0f", None, "12,346"),
    ],
)
def test_numbers(value: float | None, form: str, spread: float | None, expected: str) -> None:
    assert Cell.of(value, form, spread).text == expected


def test_a_minus_sign_is_no_hyphen() -> None:
    assert signed(-1234.5, ",.1f") == "−1,234.5"
