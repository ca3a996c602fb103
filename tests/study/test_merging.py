"""Results of several machines become those of one; what does not belong together is refused first."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError
from headway._common.store import Row
from headway.study import ComparisonResults
from headway.study.merging import merge
from headway.study.suite import SuiteProtocol, SuiteResults, measure

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "comparison-chinese"
TINY = SuiteProtocol(steps=2, layers=1, width=16, heads=2, batch=4, times=(1, 2))


def part(place: Path, wanted: Callable[[Row], bool], change: Callable[[Row], Row] = dict, **settings: Any) -> Path:
    """A folder with some of the rows of a kept comparison, changed."""
    place.mkdir()
    kept = json.loads((KEPT / "settings.json").read_text(encoding="utf-8"))
    (place / "settings.json").write_text(json.dumps({**kept, **settings}), encoding="utf-8")
    rows = map(json.loads, (KEPT / "results.jsonl").read_text(encoding="utf-8").splitlines())
    text = "".join(json.dumps(change(row)) + "\n" for row in rows if wanted(row))
    (place / "results.jsonl").write_text(text, encoding="utf-8")
    return place


def of_seed(seed: int, *names: str) -> Callable[[Row], bool]:
    return lambda row: row["seed"] == seed and (row["encoding"] in names if names else "lstm" not in row["encoding"])


def test_two_halves_are_the_whole(tmp_path: Path) -> None:
    whole = ComparisonResults.load(KEPT)
    halves = [part(tmp_path / f"{seed}", lambda row, seed=seed: row["seed"] == seed) for seed in whole.seeds]  # type: ignore[misc]
    found = merge(halves, tmp_path / "all")
    assert isinstance(found, ComparisonResults)
    assert found.conclusions() == whole.conclusions()
    assert ComparisonResults.load(tmp_path / "all").summary() == whole.summary()
    assert (tmp_path / "all" / "report.html").exists()
    with pytest.raises(HeadwayError, match="all has results: give a new folder"):
        merge(halves, tmp_path / "all")


def test_a_share_is_every_nth_training(tmp_path: Path) -> None:
    asked = (["parity", "majority"], ["none", "rope", "alibi"], TINY)
    whole = measure(*asked, seeds=(0, 1))
    shares = [measure(*asked, seeds=(0, 1), share=(number, 4), out=tmp_path / f"{number}") for number in (1, 2, 3, 4)]
    assert [len(one.rows) // 2 for one in shares] == [3, 3, 3, 3]
    found = merge([tmp_path / f"{number}" for number in (1, 2, 3, 4)], tmp_path / "all")
    assert isinstance(found, SuiteResults)
    numbers = [
        sorted([row["task"], row["encoding"], row["seed"], row["times"], row["exact"]] for row in one.rows)
        for one in (found, whole)
    ]
    assert numbers[0] == numbers[1]


def test_a_share_without_a_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="share 3 of 4 is empty, since there are 2 trainings"):
        measure(["parity"], ["none", "rope"], TINY, share=(3, 4), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_learning_rates_that_were_tried_come_along(tmp_path: Path) -> None:
    slow, fast = ({"bits_per_byte": bits, "peak_memory_bytes": 1} for bits in (2.0, 2.5))
    rates: list[dict[str, Any]] = [{"0.004": slow}, {"0.004": slow, "0.008": fast}]
    tried = [{"learning_rates_tried": {"rope": one}} for one in rates]
    folders = [part(tmp_path / f"{seed}", of_seed(seed), **tried[seed]) for seed in (0, 1)]
    assert merge(folders, tmp_path / "all").settings["learning_rates_tried"]["rope"] == rates[1]


def test_a_training_that_two_folders_have_is_there_once(tmp_path: Path) -> None:
    other = part(tmp_path / "b", of_seed(0, "rope"), lambda row: {**row, "train_seconds": 1.0, "processor": "another"})
    found = merge([part(tmp_path / "a", of_seed(0, "rope", "alibi")), other], tmp_path / "c")
    assert len(found.rows) == 8
    assert {row["train_seconds"] for row in found.rows} != {1.0}


def test_logs_of_heads_come_along(tmp_path: Path) -> None:
    folders = [part(tmp_path / f"{seed}", of_seed(seed, "rope")) for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        (folder / "heads").mkdir()
        (folder / "heads" / f"rope-seed{seed}.jsonl").write_text("{}\n")
    merge(folders, tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all" / "heads").iterdir()) == [
        "rope-seed0.jsonl",
        "rope-seed1.jsonl",
    ]


def rate(row: Row) -> Row:
    return {**row, "learning_rate": 0.5}


def loss(row: Row) -> Row:
    return {**row, "bits_per_byte": 0.5}


def place(row: Row) -> Row:
    return {**row, "processor": "another"}


LSTM = ("rope", "lstm (equal time)")


@pytest.mark.parametrize(
    ("first", "second", "change", "settings", "said"),
    [
        (
            of_seed(0),
            of_seed(1),
            dict,
            {"steps": 5},
            r"has steps = 2000 and .*b has steps = 5: merge folders of the same",
        ),
        (of_seed(0), of_seed(1), dict, {"corpus_sha256": "0"}, "corpus_sha256 = "),
        (of_seed(0), of_seed(1), rate, {}, "has the learning rates 0.004 and 0.5 in these folders"),
        (of_seed(0), of_seed(0), loss, {}, "both have encoding .*, seed 0, length 128, with other numbers"),
        (of_seed(0), lambda row: False, dict, {}, "b has no results yet"),
        (
            of_seed(0, *LSTM),
            of_seed(1, *LSTM),
            place,
            {},
            r"lstm \(equal time\) was trained for as long .* machines differ",
        ),
        (of_seed(0), of_seed(1), dict, {"lengths": "all"}, "b/settings.json is damaged"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, first: Any, second: Any, change: Any, settings: dict[str, Any], said: str
) -> None:
    folders = [part(tmp_path / "a", first), part(tmp_path / "b", second, change, **settings)]
    with pytest.raises(HeadwayError, match=said):
        merge(folders, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_suite_is_not_a_text(tmp_path: Path) -> None:
    shutil.copytree(KEPT.parent / "suite", tmp_path / "suite")
    with pytest.raises(HeadwayError, match="merge folders of the same settings"):
        merge([part(tmp_path / "a", of_seed(0)), tmp_path / "suite"], tmp_path / "c")
