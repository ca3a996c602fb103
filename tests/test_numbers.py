"""A number that several pages give for one measurement is the same on all of them, but for its rounding."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = r"(\d+(?:\.\d+)?)"
ROW = rf" · [^|]*\| {NUMBER}× \| {NUMBER}× \|"


@dataclass(frozen=True)
class Shared:
    """A measurement on several pages.

    Attributes:
        first: the page with the most digits, and a pattern whose groups are the numbers.
        others: other pages, with patterns of as many groups.
        inverse: whether the others give one divided by the numbers.
    """

    first: tuple[str, str]
    others: tuple[tuple[str, str], ...]
    inverse: bool = False


MEASUREMENTS = {
    "4,096 tokens forward against SDPA": Shared(
        ("BENCHMARKS.md", "4,096 tokens, causal, no encoding, forward" + ROW),
        (
            ("README.md", rf"SDPA's forward pass takes {NUMBER} times as long .* and {NUMBER} times in bfloat16"),
            ("README.zh-CN.md", rf"SDPA 前向用时是 `cpu` 的 {NUMBER} 倍（float32）和 {NUMBER} 倍"),
        ),
    ),
    "a learned T5 bias backward against SDPA": Shared(
        ("BENCHMARKS.md", "4,096 tokens, causal, a learned T5 bias, backward" + ROW),
        (
            ("README.md", rf"a learned T5 bias takes {NUMBER} and {NUMBER} times as long"),
            ("README.zh-CN.md", rf"带可学习 T5 偏置的反向是 {NUMBER} 倍和 {NUMBER} 倍"),
        ),
    ),
    "32 tokens with ALiBi": Shared(
        ("BENCHMARKS.md", rf"32 tokens in one row, full, ALiBi, forward · [^|]*\| {NUMBER}×"),
        (
            ("README.md", rf"32 tokens takes {NUMBER} times as long as SDPA with ALiBi"),
            ("README.zh-CN.md", rf"ALiBi 的用时是 SDPA 的 {NUMBER} 倍"),
        ),
        inverse=True,
    ),
    "32 tokens with T5": Shared(
        ("BENCHMARKS.md", rf"32 tokens in one row, full, T5, forward · [^|]*\| {NUMBER}×"),
        (
            ("README.md", rf"with ALiBi, and {NUMBER} times with T5"),
            ("README.zh-CN.md", rf"T5 是 {NUMBER} 倍"),
        ),
        inverse=True,
    ),
    "the time of a call before the kernel": Shared(
        ("docs/performance.md", rf"{NUMBER} to {NUMBER} µs without a gradient, {NUMBER} to {NUMBER} for"),
        (
            ("README.md", rf"{NUMBER} to {NUMBER} µs before the kernel starts, {NUMBER} to {NUMBER} for"),
            (
                "README.zh-CN.md",
                rf"要 {NUMBER} 到 {NUMBER} 微秒；需要求梯度时，前向和反向一共 {NUMBER} 到 {NUMBER} 微秒",
            ),
        ),
    ),
    "time by length of attention and of an RNN": Shared(
        (
            "docs/lessons.md",
            rf"grew as n\^{NUMBER} between 512 and 4096 tokens.* the RNN's as n\^{NUMBER}\. Attention was slower than "
            rf"the RNN from {NUMBER} tokens on, and slower than the LSTM from {NUMBER}",
        ),
        (
            (
                "docs/zh-CN/lessons.md",
                rf"从 512 到 4096 个词元，它的用时按 n\^{NUMBER} 增长.*RNN 按 n\^{NUMBER}；"
                rf"从 {NUMBER} 个词元起注意力比 RNN 慢，从 {NUMBER} 起比 LSTM 慢",
            ),
        ),
    ),
    "architectures of transformers": Shared(
        ("docs/models.md", rf"\*\*They agree\*\* \({NUMBER}\)"),
        (
            ("README.md", rf"Small models of {NUMBER} of transformers'"),
            ("README.zh-CN.md", rf"有 {NUMBER} 种的小模型"),
        ),
    ),
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_all_pages_give_the_same_number(name: str) -> None:
    shared = MEASUREMENTS[name]
    known = [1 / value if shared.inverse else value for value in map(float, numbers(*shared.first))]
    for page, pattern in shared.others:
        for given, exact in zip(numbers(page, pattern), known, strict=True):
            digits = len(given.partition(".")[2])
            assert float(given) == pytest.approx(exact, abs=0.51 * 10**-digits), f"{page} gives {given} for {exact}"


def numbers(page: str, pattern: str) -> list[str]:
    """The numbers that a page gives, which it gives once."""
    found = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert len(found) == 1, f"{page} has {len(found)} places of the form {pattern}"
    return [found[0]] if isinstance(found[0], str) else list(found[0])


TWINS = sorted(path.name for path in (ROOT / "docs" / "zh-CN").glob("*.md") if path.name != "coverage.md")
"""Pages in both languages; test_coverage.py compares those of coverage."""
IN_TABLES = re.compile(r"\d+(?:[.,]\d+)*")


def in_tables(page: Path) -> list[str]:
    """The numbers in the tables of a page, in each row in order of size, since languages order words differently."""
    text = re.sub(r"\]\([^)]*\)|https?://\S+|<!--.*?-->", "", page.read_text(encoding="utf-8"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [number for row in rows for number in sorted(IN_TABLES.findall(row))]


@pytest.mark.parametrize("name", TWINS)
def test_tables_of_twins_have_the_same_numbers(name: str) -> None:
    assert in_tables(ROOT / "docs" / "zh-CN" / name) == in_tables(ROOT / "docs" / name)
