"""Tables, lists and numbers of the reports."""

import math

import pytest

from headway._markdown import bullets, signed, table


def test_a_table_has_titles_a_rule_and_rows() -> None:
    found = table(["a", "b"], [["1", "2"], ["3", ""]])
    assert found == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | |"


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(["a"], [["x|y"]]).split("\n")[-1] == "| x∣y |"


def test_a_table_without_rows_is_nothing() -> None:
    assert table(["a", "b"], []) == ""


def test_a_bullet_for_each_sentence() -> None:
    assert bullets(["One.", "Two."]) == "- One.\n- Two."
    assert bullets([]) == ""


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [(-1234.5, ",.1f", "−1,234.5"), (0.25, "+.2f", "+0.25"), (-0.25, "+.2f", "−0.25"), (math.nan, ".2f", "nan")],
)
def test_a_minus_sign_is_no_hyphen(value: float, form: str, expected: str) -> None:
    assert signed(value, form) == expected
