"""The tables of a comparison."""

import csv
from dataclasses import replace
from typing import Any

import pytest

from headway._common.table import Table
from headway.study import tables
from headway.study.protocol import FixedProtocol
from headway.study.results import ComparisonResults

VIEW = 'learned(extend="interpolate")'


def compared(
    protocol: FixedProtocol, *, seeds: int = 2, settings: dict[str, Any] | None = None, **fields: Any
) -> ComparisonResults:
    """Three encodings, one with a second view, and two baselines; the losses depend on name, seed and length."""
    names = ("rope", "alibi", "learned", VIEW, "lstm (equal parameters)", "lstm (equal time)")
    rows = [
        {
            "encoding": name,
            "seed": seed,
            "length": length,
            "bits_per_byte": None if (name, length) == ("learned", 64) else 2 + place / 10 + seed / 100 + length / 1000,
            "sliding_bits_per_byte": None if (name, length) == ("learned", 64) else 2.0,
            "recall": None if "time" in name else 0.5,
            "baseline": name.startswith("lstm"),
            "view_of": "learned" if name == VIEW else None,
            "heads": None if name.startswith("lstm") else dict.fromkeys(tables.HEADS, 0.25),
            "parameters": 1000,
            "encoding_parameters": 10,
            "steps": 600 + 100 * place,
            "learning_rate": 0.005,
            "learning_rates": {},
            "train_seconds": 1.5,
            "processor_seconds": 2.5,
            "tokens_per_second": 1e4,
            "kernel": "cpu",
            "trained_dtype": "float32",
            "compiled": False,
            "peak_memory_bytes": 2**28,
            "versions": {"torch": "2.13"},
            "device": "cpu",
            "threads": 1,
            **fields,
        }
        for place, name in enumerate(names)
        for length in (16, 64)
        for seed in range(seeds)
    ]
    return ComparisonResults(rows, protocol, settings=settings)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_losses_have_encodings_then_baselines_then_counted_models(protocol: FixedProtocol) -> None:
    found = compared(protocol, settings={"counted": {"5-gram": 2.25, "2-gram": 3.31}})
    table = tables.losses(found)
    assert [row[0] for row in texts(table)] == [*found.names, "2-gram, counted", "5-gram, counted"]
    assert table.rules == [4, 6]
    assert texts(table)[-2:] == [["2-gram, counted", "3.310", "3.310"], ["5-gram, counted", "2.250", "2.250"]]
    assert texts(table)[0] == ["rope", "2.021 ± 0.064", "2.069 ± 0.064"]
    assert texts(tables.losses(found, spread=False))[0] == ["rope", "2.021", "2.069"]
    assert texts(table)[2][2] == "—"


def test_the_best_is_marked_among_encodings(protocol: FixedProtocol) -> None:
    found = compared(protocol)
    better = [row | {"bits_per_byte": 1.0} if row["baseline"] else row for row in found.rows]
    table = tables.losses(ComparisonResults(better, protocol))
    assert [row[0].text for row in table.rows if row[1].best] == ["rope"]


def test_differences_are_paired_and_marked_where_the_interval_excludes_zero(protocol: FixedProtocol) -> None:
    found = compared(protocol)
    table = tables.differences(found)
    rows = {row[0].text: row for row in table.rows}
    assert rows["rope − alibi"][1].value == pytest.approx(-0.1)
    assert rows["rope − alibi"][1].spread == pytest.approx(0.0, abs=1e-9)
    assert rows["rope − alibi"][1].best
    assert rows["lstm (equal time) − rope"][1].text == "+0.500 ± 0.000"
    assert [row[0].text for row in table.rows[: table.rules[0]]] == [  # type: ignore[index]
        *("rope − alibi", "rope − learned", "alibi − learned", f"rope − {VIEW}", f"alibi − {VIEW}"),
    ]


def test_t_tests_of_all_pairs_with_the_correction_for_them(protocol: FixedProtocol) -> None:
    apart = {("rope", 0): 0.0, ("rope", 1): 0.01, ("rope", 2): 0.02, ("alibi", 1): 0.5}
    rows = [
        row | {"bits_per_byte": row["bits_per_byte"] + apart.get((row["encoding"], row["seed"]), 0.0)}
        for row in compared(protocol, seeds=3).rows
        if row["encoding"] in ("rope", "alibi", VIEW)
    ]
    found = ComparisonResults(rows, protocol)
    table = tables.tests(found)
    assert [title.text for title in table.titles] == ["pair", "bytes", "n", "difference", "p", "p (Holm)"]
    for length in found.compared_lengths:
        ps = {row[0].text: (row[4].value, row[5].value) for row in table.rows if row[1].value == length}
        least = min(ps, key=lambda pair: ps[pair][0])
        assert len(ps) == 3
        assert ps[least][1] == pytest.approx(3 * ps[least][0])
        assert all(p <= corrected <= 1 for p, corrected in ps.values())
    assert {row[2].text for row in table.rows} == {"3"}
    assert "with Holm's correction" in " ".join(found.conclusions())
    assert "tests" not in tables.tables_of(compared(protocol, seeds=1))


def test_a_row_for_each_run(protocol: FixedProtocol) -> None:
    found = compared(protocol)
    rows = list(csv.DictReader(tables.runs(found).splitlines()))
    assert len(rows) == len(found.rows)
    for written, row in zip(rows, found.rows, strict=True):
        loss = row["bits_per_byte"]
        assert (written["encoding"], int(written["seed"])) == (row["encoding"], row["seed"])
        assert written["bits_per_byte"] == ("" if loss is None else repr(loss))
        assert written["kind"] == ("baseline" if row["baseline"] else "encoding")
        assert written["version_torch"] == row["versions"].get("torch", "")


def test_one_seed_has_no_intervals(protocol: FixedProtocol) -> None:
    for name, table in tables.tables_of(compared(protocol, seeds=1)).items():
        assert "±" not in table.csv(), name


def test_rows_without_numbers_are_left_out(protocol: FixedProtocol) -> None:
    found = compared(protocol)
    assert [row[0] for row in texts(tables.recall(found))] == found.names[:-1]
    assert tables.recall(found).rules == [4]
    assert [row[0] for row in texts(tables.heads(found))] == ["rope", "alibi", "learned"]
    assert [title.text for title in tables.heads(found).titles][2:4] == ["first byte", "byte before"]


def test_learning_rates_are_shown_if_several_were_tried(protocol: FixedProtocol) -> None:
    assert "learning-rates" not in tables.tables_of(compared(protocol))
    tried = {"0.01": None, "0.002": 2.5, "0.005": 2.4}
    table = tables.learning_rates(compared(protocol, learning_rates=tried, learning_rate=0.005))
    assert [title.text for title in table.titles] == ["encoding", "0.002", "0.005", "0.01"]
    assert texts(table)[0] == ["rope", "2.500", "2.400", "—"]
    assert [cell.best for cell in table.rows[0]] == [False, False, True, False]
    assert VIEW not in [row[0] for row in texts(table)]


def test_how_a_model_was_trained_is_shown_if_it_is_not_the_usual(protocol: FixedProtocol) -> None:
    def columns(**fields: Any) -> list[str]:
        return [title.text for title in tables.costs(compared(protocol, **fields)).titles]

    assert columns() == columns(trained_dtype="float32", compiled=False)
    assert columns(trained_dtype="bfloat16", compiled=True)[-2:] == ["dtype", "compiled"]


def test_lengths_in_tokens_are_called_tokens(protocol: FixedProtocol) -> None:
    found = compared(replace(protocol, tokenizer="bpe:1024"))
    titles = [title.text for table in tables.tables_of(found).values() for title in table.titles]
    assert {"tokens/s", "first token", "token before"} <= set(titles)
    assert not [title for title in titles if "byte" in title]
