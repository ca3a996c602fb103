from typing import Any

import pytest

from headway.study.protocol import Protocol
from headway.study.results import Results

Losses = dict[str, dict[int, list[float | None]]]


def results(protocol: Protocol, losses: Losses, **fields: Any) -> Results:
    rows = [
        {
            "encoding": name,
            "seed": seed,
            "length": length,
            "bits_per_byte": bits,
            "baseline": name.startswith("lstm"),
            "view_of": "learned" if "interpolate" in name else None,
            **{field: values.get(name) for field, values in fields.items()},
        }
        for name, by_length in losses.items()
        for length, by_seed in by_length.items()
        for seed, bits in enumerate(by_seed)
    ]
    return Results(rows, protocol)


def test_the_best_are_named_at_the_trained_length_and_at_four_times(protocol: Protocol) -> None:
    found = results(
        protocol,
        {"rope": {16: [2.0, 2.1], 64: [3.0, 3.1], 128: [9, 9]}, "alibi": {16: [2.2, 2.3], 64: [2.1, 2.2], 128: [9, 9]}},
    )
    said = " ".join(found.conclusions())
    assert "At the trained length (16 bytes) rope is best: 2.050 bits per byte (mean of 2 seeds)" in said
    assert "next is alibi with 2.250, in every seed behind" in said
    assert "At 4× the trained length (64 bytes) alibi is best: 2.150" in said
    assert "No worse at 64 bytes than at 16: alibi." in said
    assert "Worse at 64 bytes than at 16: rope by 1.000 bits per byte." in said
    assert "At 16 bytes the 2 seeds separate every pair." in said


def test_pairs_that_the_seeds_cannot_separate_are_named_with_their_differences(protocol: Protocol) -> None:
    found = results(protocol, {"a": {16: [2.0, 2.3, 2.0]}, "b": {16: [2.1, 2.2, 2.1]}, "c": {16: [5.0, 5.0, 5.0]}})
    pairs = found.not_separated(16)
    assert [(pair.a, pair.b) for pair in pairs] == [("a", "b")]
    assert pairs[0].smallest == pytest.approx(-0.1)
    assert pairs[0].largest == pytest.approx(0.1)
    said = " ".join(found.conclusions())
    assert "cannot separate (smallest to largest difference): a − b: −0.1000 to +0.1000." in said
    assert "which the seeds cannot separate from it" in said


def test_differences_are_taken_seed_by_seed(protocol: Protocol) -> None:
    """The spread over seeds is far larger than the difference, and the same seed always puts a in front."""
    found = results(protocol, {"a": {16: [1.0, 3.0]}, "b": {16: [1.1, 3.1]}})
    assert found.not_separated(16) == []


def test_one_seed_separates_nothing(protocol: Protocol) -> None:
    said = " ".join(results(protocol, {"a": {16: [1.0]}, "b": {16: [7.0]}}).conclusions())
    assert "One seed separates nothing" in said
    assert "a is best: 1.000 bits per byte (one seed)" in said


def test_what_ends_with_its_table_is_said_to_have_no_number(protocol: Protocol) -> None:
    view = 'learned(extend="interpolate")'
    found = results(protocol, {"learned": {16: [2.0], 64: [None]}, view: {16: [2.0], 64: [4.0]}})
    assert found.mean("learned", 64) is None
    assert found.ranking(16) == [(2.0, "learned")], "one model is not ranked twice"
    assert found.ranking(64) == [(4.0, view)]
    assert "Without a number at 64 bytes: learned." in found.conclusions()


def test_a_baseline_that_wins_is_shown(protocol: Protocol) -> None:
    found = results(
        protocol, {"lstm": {16: [1.0], 64: [3.0]}, "a": {16: [2.0], 64: [2.0]}, "b": {16: [3.0], 64: [4.0]}}
    )
    said = " ".join(found.conclusions())
    assert "lstm is better than every Transformer at 16 bytes." in said
    assert "lstm is better than b and behind a at 64 bytes." in said
    assert found.encodings == ["a", "b", "lstm"]


def test_the_best_encoding_is_named_behind_two_baselines(protocol: Protocol) -> None:
    found = results(protocol, {"lstm 1": {16: [1.0]}, "lstm 2": {16: [1.5]}, "a": {16: [2.0]}, "b": {16: [3.0]}})
    assert "next is lstm 2 with 1.500; of the encodings a with 2.000." in found.conclusions()[0]


def test_recall_that_was_not_learned_says_nothing_about_distance(protocol: Protocol) -> None:
    found = results(protocol, {"a": {16: [2.0], 64: [2.0]}, "b": {16: [2.0], 64: [2.0]}}, recall={"a": 0.95, "b": 0.2})
    said = " ".join(found.conclusions())
    assert "Recall in sequences of 64, of those that learned it at 16: a 95 %." in said
    assert "Recall was not learned in 3 steps by b (20 %)" in said


def test_no_rows_conclude_nothing(protocol: Protocol) -> None:
    assert Results([], protocol).conclusions() == ["Nothing has been measured yet."]
