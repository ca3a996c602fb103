import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway._common.table import Cell
from headway.errors import HeadwayError
from headway.study import tables
from headway.study.protocol import FixedProtocol
from headway.study.results import ComparisonResults

Losses = dict[str, dict[int, list[float | None]]]


def results(
    protocol: FixedProtocol, losses: Losses, settings: dict[str, Any] | None = None, **fields: Any
) -> ComparisonResults:
    rows = [
        {
            "encoding": name,
            "seed": seed,
            "length": length,
            "bits_per_byte": bits,
            "baseline": name.startswith("lstm"),
            "view_of": "learned" if "interpolate" in name else None,
            "steps": protocol.steps,
            "learning_rate": 0.005,
            "learning_rates": {},
            **{field: values.get(name) for field, values in fields.items()},
        }
        for name, by_length in losses.items()
        for length, by_seed in by_length.items()
        for seed, bits in enumerate(by_seed)
    ]
    return ComparisonResults(rows, protocol, settings=settings)


def said_by(found: ComparisonResults) -> str:
    return " ".join(found.conclusions())


def test_the_best_are_named_at_the_trained_length_and_at_four_times(protocol: FixedProtocol) -> None:
    found = results(
        protocol,
        {"rope": {16: [2.0, 2.1], 64: [3.0, 3.1], 128: [9, 9]}, "alibi": {16: [2.2, 2.3], 64: [2.1, 2.2], 128: [9, 9]}},
    )
    said = said_by(found)
    assert "At the trained length (16 bytes) rope is best: 2.050 bits per byte (mean of 2 seeds)" in said
    assert "next is alibi with 2.250; rope − alibi: −0.200 (95 % interval −0.200 to −0.200)." in said
    assert "At 4× the trained length (64 bytes) alibi is best: 2.150" in said
    assert "Better at 64 bytes than at 16, in bits per byte: alibi −0.100 (95 % interval −0.100 to −0.100)." in said
    assert "Worse at 64 bytes than at 16, in bits per byte: rope +1.000 (95 % interval +1.000 to +1.000)." in said
    assert "At 16 bytes the 2 seeds separate every pair of encodings." in said


def test_intervals_are_paired_over_seeds(protocol: FixedProtocol) -> None:
    """The spread over seeds is far larger than the difference, which is nearly the same in each."""
    found = results(protocol, {"a": {16: [1.0, 3.0, 2.0]}, "b": {16: [1.1, 3.12, 2.11]}, "c": {16: [1.2, 2.9, 2.3]}})
    pair = found.difference("a", "b", 16)
    assert pair is not None
    assert pair.separated
    assert (pair.mean, pair.half) == (pytest.approx(-0.11), pytest.approx(4.302653 * 0.01 / 3**0.5))
    assert str(pair) == "a − b: −0.110 (95 % interval −0.135 to −0.085)"
    assert [(close.a, close.b) for close in found.not_separated(16)] == [("b", "c"), ("a", "c")]
    assert "which the seeds do not separate" not in found.parts()["Encodings, trained for 6 steps"][0]


def test_seeds_are_paired_by_their_number(protocol: FixedProtocol) -> None:
    found = results(protocol, {"a": {16: [None, 1.0, 2.0]}, "b": {16: [9.0, 3.0, 4.5]}})
    pair = found.difference("b", "a", 16)
    assert pair is not None
    assert (pair.mean, pair.seeds) == (2.25, 2)


def test_pairs_that_the_seeds_do_not_separate_are_named_with_their_intervals(protocol: FixedProtocol) -> None:
    found = results(protocol, {"a": {16: [2.0, 2.3, 2.0]}, "b": {16: [2.1, 2.2, 2.1]}, "c": {16: [5.0, 5.0, 5.1]}})
    said = said_by(found)
    assert "which the seeds do not separate from it; a − b: −0.033 (95 % interval −0.320 to +0.254)." in said
    assert "do not separate 1 of 3 pairs of encodings: a − b: −0.033 (95 % interval −0.320 to +0.254)." in said
    assert "at 95 % by itself and not jointly: of 3 pairs" in said


def test_a_sentence_lists_few_pairs(protocol: FixedProtocol) -> None:
    found = results(protocol, {name: {16: [2.0 + place, 2.5, 3.0 - place]} for place, name in enumerate("abcdef")})
    assert "; and 9 more, in the table of differences." in said_by(found)


def test_every_difference_has_its_interval(protocol: FixedProtocol) -> None:
    """Numbers with a sign are differences: each is followed by an interval, or says that there is none."""
    losses: Losses = {
        name: {16: [2.0 + place / 10, 2.2 + place / 20], 64: [3.0, 3.1 + place / 30]}
        for place, name in enumerate(("a", "b", "c", "lstm 1", "lstm 2"))
    }
    one_seed: Losses = {name: {16: its[16][:1], 64: its[64][:1]} for name, its in losses.items()}
    for found, follows in ((results(protocol, losses), "95 % interval"), (results(protocol, one_seed), "one seed")):
        differences = re.findall(r"(?<!interval )(?<!to )[−+][0-9]\.[0-9]{3}(.{15})", said_by(found))
        assert len(differences) >= 10
        assert all(after.startswith(f" ({follows}") for after in differences), differences


def test_one_seed_separates_nothing(protocol: FixedProtocol) -> None:
    said = said_by(results(protocol, {"a": {16: [1.0]}, "b": {16: [7.0]}}))
    assert "One seed separates nothing" in said
    assert "a is best: 1.000 bits per byte (one seed); next is b with 7.000; a − b: −6.000 (one seed)." in said


def test_what_ends_with_its_table_is_said_to_have_no_number(protocol: FixedProtocol) -> None:
    view = 'learned(extend="interpolate")'
    found = results(protocol, {"learned": {16: [2.0], 64: [None]}, view: {16: [2.0], 64: [4.0]}})
    assert found.mean("learned", 64) is None
    assert found.ranking(16) == [(2.0, "learned")], "one model is not ranked twice"
    assert found.ranking(64) == [(4.0, view)]
    assert "Without a number at 64 bytes: learned." in found.conclusions()


def test_baselines_come_after_the_encodings_with_their_steps(protocol: FixedProtocol) -> None:
    found = results(
        protocol,
        {
            "lstm": {16: [1.0, 1.1], 64: [3.0, 3.1]},
            "a": {16: [2.0, 2.1], 64: [2.0, 2.2]},
            "b": {16: [3, 3], 64: [4, 4]},
        },
        steps={"lstm": 900, "a": 600, "b": 600},
    )
    assert (found.names, found.encodings, found.baselines) == (["a", "b", "lstm"], ["a", "b"], ["lstm"])
    assert [name for _, name in found.ranking(16)] == ["a", "b"]
    encodings, baselines = found.parts().items()
    assert encodings[0] == "Encodings, trained for 600 steps"
    assert baselines[0] == "Recurrent baselines: lstm, trained for 900 steps"
    assert "lstm" not in " ".join(encodings[1])
    assert "At 16 bytes lstm, with 1.050, is better than every encoding; lstm − a: −1.000" in " ".join(baselines[1])
    assert "At 64 bytes lstm, with 3.050, is not better than the best encoding; lstm − a: +0.950" in " ".join(
        baselines[1]
    )


def test_baselines_alone_have_conclusions(protocol: FixedProtocol) -> None:
    found = results(protocol, {"lstm": {16: [1.0], 64: [2.0]}})
    assert "At 16 bytes lstm cannot be compared with an encoding." in found.conclusions()


def test_models_that_have_hardly_learned_are_named(protocol: FixedProtocol) -> None:
    losses: Losses = {"a": {16: [2.0]}, "b": {16: [2.4]}, "c": {16: [3.31]}, "d": {16: [4.0]}, "lstm": {16: [3.5]}}
    found = results(protocol, losses, {"counted": {"5-gram": 2.25, "2-gram": 3.31}})
    assert list(found.counted) == ["2-gram", "5-gram"]
    encodings, baselines = found.parts().values()
    assert (
        "(3.310 bits per byte), at 16 bytes: c 3.310, d 4.000. They have hardly learned and are not ranked"
        in encodings[0]
    )
    assert "(2.250 bits per byte), at 16 bytes: b 2.400. They have learned little" in encodings[1]
    assert "lstm 3.500. They have hardly learned" in baselines[0]
    well = results(protocol, {"a": {16: [2.0]}}, {"counted": {"2-gram": 3.31, "5-gram": 2.25}})
    assert "All encodings are below a 5-gram model" in well.conclusions()[1]


def test_models_that_pairs_of_symbols_beat_are_not_ranked(protocol: FixedProtocol) -> None:
    losses: Losses = {"a": {16: [2.0, 2.1], 64: [4.0, 4.1]}, "b": {16: [3.4, 3.5], 64: [2.0, 2.1]}}
    counted = {"counted": {"2-gram": 3.31, "5-gram": 2.25}}
    found = results(protocol, losses, counted)
    assert found.learned == ["a"]
    assert (found.ranking(16), found.ranking(64)) == ([(2.05, "a")], [(pytest.approx(4.05), "a")])
    assert found.pairs(64) == []
    marked = [cell.best for row in tables.losses(found).rows for cell in row if isinstance(cell, Cell)]
    assert sum(marked) == 2, "the losses of a"
    with_lstm = results(protocol, {**losses, "lstm": {16: [2.2, 2.3], 64: [3.0, 3.1]}}, counted)
    assert "At 64 bytes lstm, with 3.050, is better than every encoding that has learned; " in said_by(with_lstm)
    none = results(protocol, {name: {16: [3.4, 3.5], 64: [3.6, 3.5]} for name in "ab"}, counted)
    said = "At the trained length (16 bytes) none is ranked, since none is below a 2-gram model of the same text"
    assert none.summary() == [f"{said}: train longer."]
    beside = results(protocol, {"a": {16: [3.4, 3.5]}, "lstm": {16: [2.2, 2.3]}}, counted)
    assert beside.summary() == [f"{said}: train longer."], "only a baseline has learned"
    assert none.warnings()[0].startswith("Not below a 2-gram model of the same text")
    assert not any(cell.best for row in tables.losses(none).rows for cell in row if isinstance(cell, Cell))


def test_the_summary_is_three_sentences(protocol: FixedProtocol) -> None:
    losses: Losses = {"a": {16: [2.0, 2.4], 64: [4.0, 4.1]}, "b": {16: [2.1, 2.1], 64: [2.0, 2.1]}}
    assert results(protocol, losses).summary() == [
        "At the trained length (16 bytes) b is best: 2.100 bits per byte (mean of 2 seeds); next is a with 2.200, "
        "which the seeds do not separate from it.",
        "At 4× the trained length (64 bytes) b is best: 2.050 bits per byte (mean of 2 seeds); next is a with 4.050.",
        "The 2 seeds do not separate 1 of 1 pairs at 16 and 0 of 1 pairs at 64 bytes.",
    ]
    one = results(protocol, {name: {length: its[:1] for length, its in by.items()} for name, by in losses.items()})
    assert one.summary()[-1] == "One seed separates nothing: any of these differences may be chance."
    alone = results(protocol, {"a": {16: [2.0, 2.2]}})
    assert alone.summary()[-1] == "There is no other encoding to compare with."


def test_uneven_times_are_named(protocol: FixedProtocol) -> None:
    found = results(
        protocol,
        {"a": {16: [2.0, 2.1]}, "lstm (equal time)": {16: [2.6, 4.0]}},
        train_seconds={"a": 9.0, "lstm (equal time)": 9.0},
    )
    assert not any("Trained by time" in said or "shared the machine" in said for said in found.warnings())
    found.rows[1]["train_seconds"], found.rows[3]["steps"] = 14.0, 1
    assert found.warnings()[-2:] == [
        "The seconds of a step differ between seeds by more than 1.5× (a 1.6×, lstm (equal time) 6.0×): other work "
        "shared the machine, and seconds and tokens a second say little.",
        "Trained by time and not alike between seeds: lstm (equal time) 1 to 6 steps. Their means say little.",
    ]
    assert found.warnings()[-1] in found.conclusions()
    for row in found.rows:  # as ``merge`` joins them
        row["processor"] = f"of seed {row['seed']}"
    assert "6.0×): machines differ, or other work shared them, and seconds" in found.warnings()[-2]


def test_a_model_that_diverged_is_named(protocol: FixedProtocol) -> None:
    losses: Losses = {"a": {16: [2.0], 64: [2.1]}, "b": {16: [None], 64: [None]}}
    said = said_by(results(protocol, losses, {"counted": {"5-gram": 2.25}}))
    assert "Without a finite loss at 16 bytes, since training diverged: b." in said
    assert "All encodings" not in said
    assert "Without a number" not in said


def test_an_encoding_with_fewer_seeds_says_how_many(protocol: FixedProtocol) -> None:
    said = said_by(results(protocol, {"a": {16: [2.0]}, "b": {16: [2.5, 2.6]}}))
    assert "a is best: 2.000 bits per byte (one seed); next is b with 2.550; a − b: −0.500 (one seed)." in said


def test_results_without_counted_models_say_nothing_of_them(protocol: FixedProtocol) -> None:
    found = results(protocol, {"a": {16: [9.0]}})
    assert found.counted == {}
    assert "gram" not in said_by(found)


def test_a_learning_rate_at_the_edge_of_those_tried_is_named(protocol: FixedProtocol) -> None:
    tried = {"0.01": None, "0.001": 2.2, "0.003": 2.1}
    found = results(
        protocol,
        {"a": {16: [2.0]}, "b": {16: [2.0]}, "c": {16: [2.0]}},
        learning_rates={"a": tried, "b": tried, "c": {"0.003": 2.0}},
        learning_rate={"a": 0.001, "b": 0.003, "c": 0.003},
    )
    assert found.learning_rates("a") == {0.001: 2.2, 0.003: 2.1, 0.01: None}
    assert "at the edge of those tried for a (0.001, the lowest): a rate beyond" in said_by(found)


def test_lengths_in_tokens_are_called_tokens(protocol: FixedProtocol) -> None:
    found = results(
        replace(protocol, tokenizer="bpe:1024"),
        {"a": {16: [2.0], 64: [2.1]}, "lstm": {16: [1.0], 64: [1.0]}},
        {"counted": {"2-gram": 3.0}},
    )
    said = said_by(found)
    assert found.unit == "tokens"
    assert " bytes" not in said
    assert "(16 tokens) a is best: 2.000 bits per byte" in said


def test_recall_that_was_not_learned_says_nothing_about_distance(protocol: FixedProtocol) -> None:
    found = results(protocol, {"a": {16: [2.0], 64: [2.0]}, "b": {16: [2.0], 64: [2.0]}}, recall={"a": 0.95, "b": 0.2})
    said = said_by(found)
    assert "Recall in sequences of 64, of those that learned it at 16: a 95 %." in said
    assert "Recall was not learned in 3 steps by b (20 %)" in said


@pytest.mark.parametrize("settings", ["{", "[]", '{"corpus": "a.txt", "lengths": [16]}'])
def test_a_folder_of_other_work_is_refused(tmp_path: Path, settings: str) -> None:
    (tmp_path / "settings.json").write_text(settings)
    with pytest.raises(HeadwayError, match=r"settings\.json is damaged, or that of other work"):
        ComparisonResults.load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"length": "128"}, {"baseline": None}, {"bits_per_byte": "3"}, {"bits_by_position": [[1, 2]]}, {"heads": {}}],
)
def test_a_damaged_row_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "comparison-chinese"
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    first, *others = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert ComparisonResults.load(tmp_path).rows == [json.loads(line) for line in (first, *others)]
    (tmp_path / "results.jsonl").write_text("\n".join([json.dumps({**json.loads(first), **wrong}), *others, ""]))
    with pytest.raises(HeadwayError, match="line 1 is damaged"):
        ComparisonResults.load(tmp_path)


def test_no_rows_conclude_nothing(protocol: FixedProtocol) -> None:
    assert ComparisonResults([], protocol).conclusions() == ["Nothing has been measured yet."]


def test_labels_stand_in_place_of_the_names_of_encodings(protocol: FixedProtocol) -> None:
    named, table = 'rope(base=5000, label="RoPE 5k")', 'learned(label="table")'
    both = 'learned(label="table", extend="interpolate")'
    found = results(
        protocol,
        {name: {16: [2.0 + i, 2.1 + i]} for i, name in enumerate((named, table, both, "lstm (equal parameters)"))},
        settings={"learning_rates_tried": {named: {"0.005": {"0": 2.0}}}},
    )
    shown = found.labelled()
    assert shown.encodings == ["RoPE 5k", table, both]  # two with one label keep their names
    assert shown.baselines == found.baselines
    assert shown.settings["learning_rates_tried"] == {"RoPE 5k": {"0.005": {"0": 2.0}}}
    assert tables.losses(shown, spread=False).rows[0][0].text == "RoPE 5k"
    assert found.encodings[0] == named
