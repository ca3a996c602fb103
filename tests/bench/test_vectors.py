import random
from pathlib import Path
from typing import Any

import pytest

from headway.bench import Watch, vectors
from headway.bench.vectors import (
    GLOVE,
    SKIP_GRAM,
    VectorCase,
    VectorPlan,
    bench_vectors,
    epochs_of_equal_time,
    line,
    verdicts,
)
from headway.errors import HeadwayError

TINY = VectorPlan(glove=({"epochs": 2}, {"x_max": 10.0, "epochs": 3}), dim=4, min_count=1, epochs=2)
PAIRS = "a\tb\t9\nb\tc\t4\na\tc\t1\nd\te\t5\nd\tnowhere\t5\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    draw = random.Random(0)
    text, pairs = tmp_path / "text.txt", tmp_path / "pairs.tsv"
    text.write_text("\n\n".join(" ".join(draw.choices("abcdefgh", k=30)) for _ in range(20)))
    pairs.write_text(PAIRS)
    return text, pairs


class Noted(Watch):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.plan: tuple[int, int] | None = None
        self.cases: list[str] = []

    def planned(self, where: dict[str, Any], done: int, total: int) -> None:
        self.plan = done, total

    def doing(self, said: str) -> None:
        self.said.append(said)

    def measured(self, case: Any, row: Any) -> None:
        self.cases.append(f"{case}: {line(row)}")


def a_row(way: str, spearman: float, seconds: float = 1.0, epochs: int = 5, **options: Any) -> dict[str, Any]:
    case = VectorCase(way, "t", tuple(options.items()))
    return {"case": case.fields(), "spearman": spearman, "seconds": seconds, "epochs": epochs}


def test_the_whole_of_it(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, pairs = files
    watch = Noted()
    results = bench_vectors(TINY, text, tmp_path / "out", pairs=pairs, watch=watch, command="headway bench --vectors t")
    assert watch.plan == (0, 4)
    assert [row["case"]["way"] for row in results.rows] == [GLOVE, GLOVE, SKIP_GRAM, SKIP_GRAM]
    for row in results.rows:
        assert -1 <= row["spearman"] <= 1
        assert (row["used"], row["pairs"]) == (4, 5)
        assert (row["tokens"], row["words"], row["documents"]) == (600, 8, 20)
        assert row["words_a_second"] == pytest.approx(600 * row["epochs"] / row["seconds"])
    assert [row["epochs"] for row in results.rows[:3]] == [2, 3, 2]
    assert any(said.endswith(": 100 %") for said in watch.said)
    assert "epochs as long as GloVe: Spearman" in watch.cases[3]
    written = (tmp_path / "out" / "vectors.md").read_text()
    for said in (
        "## Word vectors, against gensim",
        "headway bench --vectors t",
        "20 documents, 600 tokens of a vocabulary of 8 words",
        "| GloVe, headway | dim 4, seed 0, x_max 10, window 10 | 3 |",
        "| skip-gram, gensim | dim 4, seed 0, window 5, negative 5 | 2 |",
        "GloVe with x_max 100 against 2 epochs of skip-gram: ",
    ):
        assert said in written, said
    monkeypatch.setattr(vectors, "learned", None)
    again = Noted()
    assert bench_vectors(TINY, text, tmp_path / "out", pairs=pairs, watch=again).rows == results.rows
    assert again.plan == (4, 4), "what is there is not learned again"


def test_another_text_is_another_case(files: tuple[Path, Path], tmp_path: Path) -> None:
    text, pairs = files
    plan = VectorPlan(glove=({"epochs": 1},), dim=2, min_count=1, epochs=1)
    bench_vectors(plan, text, tmp_path / "out", pairs=pairs)
    text.write_text(text.read_text() + "\na b c")
    watch = Noted()
    assert len(bench_vectors(plan, text, tmp_path / "out", pairs=pairs, watch=watch).rows) == 6
    assert watch.plan == (0, 3)
    assert (tmp_path / "out" / "vectors.md").read_text().count("The text text.txt") == 2


def test_what_is_wrong_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"none\.txt cannot be read .*: give a text in UTF-8"):
        bench_vectors(TINY, tmp_path / "none.txt", tmp_path / "out")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeadwayError, match="binary cannot be read"):
        bench_vectors(TINY, tmp_path / "binary", tmp_path / "out")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(HeadwayError, match="the corpus has no words"):
        bench_vectors(TINY, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(HeadwayError, match="dim is 0"):
        VectorPlan(dim=0)
    with pytest.raises(HeadwayError, match="x_max is -1"):
        VectorPlan(glove=({"x_max": -1.0},))


def test_equal_time_is_the_first_gloves() -> None:
    cases = [VectorCase(GLOVE, "t", (("x_max", x),)) for x in (100.0, 10.0)] + [VectorCase(SKIP_GRAM, "t")]
    rows = [a_row(GLOVE, 0, 60, x_max=100.0), a_row(GLOVE, 0, 600, x_max=10.0), a_row(SKIP_GRAM, 0, 20)]
    assert epochs_of_equal_time(rows, cases) == 15
    rows[0]["seconds"] = 0.1
    assert epochs_of_equal_time(rows, cases) == 1


def test_the_verdict_is_on_the_difference() -> None:
    rows = [a_row(GLOVE, spearman, x_max=10.0) for spearman in (0.451, 0.449, float("nan"))]
    said = verdicts([*rows, a_row(SKIP_GRAM, 0.5)])
    assert [one.rpartition(": ")[2] for one in said] == ["met", "missed", "missed"]
    assert "x_max 10 against 5 epochs of skip-gram: -0.049, wanted ≥ −0.05" in said[0]


def test_the_plan_is_what_was_asked() -> None:
    [default, small, skip_gram, equal] = VectorPlan().cases("text")
    assert dict(default.options) == {"dim": 100, "min_count": 5, "seed": 0, "x_max": 100, "epochs": 50, "window": 10}
    assert dict(small.options)["x_max"] == 10
    assert dict(skip_gram.options) == {"dim": 100, "min_count": 5, "seed": 0, "window": 5, "negative": 5, "epochs": 5}
    assert "as long as GloVe" in str(equal)
