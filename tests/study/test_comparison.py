import json
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
import headway
from headway._common import training
from headway._common.engines import Here, processes
from headway._common.store import Row
from headway._common.training import Diverged, Trained
from headway.errors import HeadwayError, WrongCallError
from headway.study import ProgressListener, compare, comparison, models, run, trainings
from headway.study.protocol import BYTES_FOR_STEP, Protocol

MINE = """
from headway.positions import PositionEncoding

class Mine(PositionEncoding):
    '''Nearer tokens count more.'''
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
    def prepare_query(self, q, coordinates):
        return q * self.factor
"""


class Stops(ProgressListener):
    """Stops the comparison at the first word of this encoding that fits."""

    def __init__(self, encoding: str, doing: str) -> None:
        self.encoding, self.doing = encoding, doing

    def progressed(self, doing: str, share: float) -> None:
        assert 0 <= share <= 1
        if doing.startswith(f"{self.encoding}, seed") and self.doing in doing:
            raise KeyboardInterrupt


class Lists(ProgressListener):
    """Which encodings and seeds were worked on."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, int]] = []
        self.rows: list[Row] = []

    def progressed(self, doing: str, share: float) -> None:
        job, _, what = doing.partition(": ")
        encoding, _, seed = job.rpartition(", seed ")
        if "step" in what and (encoding, int(seed)) not in self.trained:
            self.trained.append((encoding, int(seed)))

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        self.rows += rows


@pytest.fixture(scope="module", autouse=True)
def without_a_report() -> Iterator[None]:
    """Pictures take most of the time of a tiny comparison, and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison.report, "write", lambda results, out: None)
        yield


def numbers(rows: Sequence[Row]) -> dict[tuple[str, int, int], Any]:
    """What does not depend on the clock."""
    keys = ("bits_per_byte", "sliding_bits_per_byte", "bits_by_position", "recall", "train_loss_bits", "parameters")
    return {(row["encoding"], row["seed"], row["length"]): [row.get(key) for key in keys] for row in rows}


@pytest.mark.slow
def test_there_is_a_row_for_each_encoding_seed_and_length(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    watch = Lists()
    settings = {**tiny, "seeds": 2, "recall_steps": 2, "baselines": ("lstm",)}
    results = compare(text_file, ["learned", "rope"], **settings, out=out, watch=watch)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert lines == results.rows
    assert len(watch.rows) == len(lines)
    assert all(row in lines for row in watch.rows)  # in the order in which trainings end
    names = ["learned", 'learned(extend="interpolate")', "rope", "lstm (equal parameters)", "lstm (equal time)"]
    assert results.names == names
    assert set(numbers(lines)) == {(name, seed, length) for name in names for seed in (0, 1) for length in (16, 32)}
    for row in lines:
        assert row["corpus_sha256"] == results.protocol.corpus_sha256
        assert row["versions"]["torch"] == torch.__version__
        assert row["threads"] == torch.get_num_threads()
        assert row["tokens_per_second"] > 0
        assert row["peak_memory_bytes"] > 2**20
        assert row["kernel"]
        if (row["encoding"], row["length"]) == ("learned", 32):
            assert row["bits_per_byte"] is None
            assert "max_length 16" in row["reason"]
        else:
            assert 0 < row["bits_per_byte"] < 20
            assert 0 < row["sliding_bits_per_byte"] < 20
        assert ("recall" in row) == (row["encoding"] != "lstm (equal time)")
    learned = results.any_row("learned")
    assert learned["parameters"] - results.any_row("rope")["parameters"] == learned["encoding_parameters"] == 16 * 16
    # At the trained length the second view is the same model.
    assert results.mean(names[0], 16) == results.mean(names[1], 16)


def test_another_encoding_and_another_seed_train_only_what_is_new(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    first = compare(text_file, ["rope"], **tiny, out=tmp_path)
    watch = Lists()
    second = compare(text_file, ["rope", "alibi"], **tiny, out=tmp_path, watch=watch)
    assert watch.trained == [("alibi", 0)]
    assert second.rows[:2] == first.rows
    watch = Lists()
    compare(text_file, ["alibi"], **{**tiny, "seeds": 2}, out=tmp_path, watch=watch)
    assert watch.trained == [("alibi", 1)]
    again = Lists()
    assert compare(text_file, ["rope"], **tiny, out=tmp_path, watch=again).names == ["rope", "alibi"]
    assert again.trained == []


def test_seeds_by_their_numbers_and_settings_again(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    first = compare(text_file, ["rope"], **tiny, out=tmp_path / "first")
    protocol = Protocol.read(tmp_path / "first" / "settings.json", device=first.protocol.device)
    watch = Lists()
    again = compare(text_file, ["rope"], protocol, seeds=(2, 0), baselines=(), out=tmp_path / "again", watch=watch)
    assert watch.trained == [("rope", 2), ("rope", 0)]
    assert again.protocol == first.protocol
    assert numbers([row for row in again.rows if row["seed"] == 0]) == numbers(first.rows)
    with pytest.raises(HeadwayError, match="has no settings of a comparison"):
        Protocol.read(tmp_path / "first" / "results.jsonl")


@pytest.fixture(scope="module")
def whole(words: str, tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What rope and t5 come to when nothing interrupts them."""
    text = tmp_path_factory.mktemp("whole") / "text.txt"
    text.write_text(words)
    return numbers(compare(text, ["rope", "t5"], **{**tiny, "recall_steps": 3}).rows)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stop", [("rope", "language model, step 3"), ("t5", "measuring"), ("t5", "recall, step 2")])
def test_what_was_interrupted_goes_on_to_the_same_numbers(
    text_file: Path,
    tiny: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[Any, Any],
    stop: tuple[str, str],
) -> None:
    settings = {**tiny, "recall_steps": 3}
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope", "t5"], **settings, out=tmp_path, watch=Stops(*stop))
    gone_on = compare(text_file, ["rope", "t5"], **settings, out=tmp_path)
    assert numbers(gone_on.rows) == whole


@pytest.mark.slow
def test_what_was_killed_goes_on_to_the_same_numbers(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    program = f"""
import os, signal, torch
torch.set_num_threads({torch.get_num_threads()})
from headway._common import training
from headway._common.engines import Here
from headway.study import ProgressListener, compare
training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
class Kills(ProgressListener):
    def progressed(self, doing, share):
        if doing.startswith("t5, seed 0: ") and "step 3" in doing:
            os.kill(os.getpid(), signal.SIGKILL)
compare({str(text_file)!r}, ["rope", "t5"], **{tiny!r}, out={str(tmp_path / "out")!r}, watch=Kills())
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    watch = Lists()
    gone_on = compare(text_file, ["rope", "t5"], **tiny, out=tmp_path / "out", watch=watch)
    assert watch.trained == [("t5", 0)]
    assert numbers(gone_on.rows) == numbers(compare(text_file, ["rope", "t5"], **tiny).rows)


def test_a_row_that_a_kill_cut_off_is_measured_again(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    first = compare(text_file, ["rope"], **tiny, out=tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-30])
    assert numbers(compare(text_file, ["rope"], **tiny, out=tmp_path).rows) == numbers(first.rows)


def test_all_encodings_see_the_same_batches(
    text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    step = comparison.LanguageModel.step

    def spied(self: Any, training: Any, seed: int, number: int) -> Any:
        inputs, targets = step(self, training, seed, number)
        seen.append(inputs.flatten().tolist())
        return inputs, targets

    monkeypatch.setattr(comparison.LanguageModel, "step", spied)
    compare(text_file, ["rope", "learned", "shaw"], **tiny)
    seen = seen[-12:]  # before them some are seen to measure the speed
    assert seen[:4] == seen[4:8] == seen[8:]
    assert seen[0] != seen[1]


def test_an_encoding_of_ones_own_is_compared_by_the_name_of_its_file(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    specs = [f"{file}:Mine", f"{file}:Mine(factor=3.0)", str(file), "none"]
    results = compare(text_file, specs, **tiny, out=tmp_path / "out")
    assert results.names == specs
    losses = [results.mean(spec, 16) for spec in specs]
    assert losses[0] == losses[2] == losses[3] != losses[1]
    file.write_text(MINE + "\n# changed\n")
    with pytest.raises(HeadwayError, match="has changed"):
        compare(text_file, specs, **tiny, out=tmp_path / "out")


RATES = (1e-4, 3e-2, 1e-2)


def test_the_learning_rate_of_a_model_is_chosen_on_the_validation_part_with_the_first_seed(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: dict[str, float] = {}

    def validate(self: Any, model: Any) -> float:
        """The loss of a model that says which rate would be right for it."""
        rate = len(losses) % len(RATES)
        wanted = {"rope": 1, "alibi": 2}["alibi" if len(losses) >= len(RATES) else "rope"]
        losses[f"{len(losses)}"] = 3.0 + abs(rate - wanted)
        return 3.0 + abs(rate - wanted)

    monkeypatch.setattr(comparison.LanguageModel, "validate", validate)
    settings = {**tiny, "seeds": 2, "learning_rates": RATES}
    results = compare(text_file, ["rope", "alibi"], **settings, out=tmp_path / "tried")
    chosen = {(row["encoding"], row["seed"]): row["learning_rate"] for row in results.rows}
    assert chosen == {("rope", 0): 3e-2, ("rope", 1): 3e-2, ("alibi", 0): 1e-2, ("alibi", 1): 1e-2}
    assert results.any_row("alibi")["learning_rates"] == {"0.0001": 5.0, "0.03": 4.0, "0.01": 3.0}
    # What was tried is what is measured: the same numbers as with this learning rate alone.
    alone = compare(text_file, ["rope"], **{**tiny, "seeds": 2, "learning_rate": 3e-2})
    assert {key: value for key, value in numbers(results.rows).items() if key[0] == "rope"} == numbers(alone.rows)


def test_learning_rates_that_were_tried_are_not_tried_again(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**tiny, "learning_rates": RATES, "baselines": ("lstm",)}
    whole = compare(text_file, ["rope", "t5"], **settings)
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope", "t5"], **settings, out=tmp_path, watch=Stops("t5", "learning rate 0.01, step 2"))
    tried = json.loads((tmp_path / "settings.json").read_text())["learning_rates_tried"]
    assert {name: list(rates) for name, rates in tried.items()} == {
        "rope": ["0.0001", "0.03", "0.01"],
        "t5": ["0.0001", "0.03"],
    }
    watch = Lists()
    again = compare(text_file, ["rope", "t5"], **settings, out=tmp_path, watch=watch)
    assert watch.trained == [("t5", 0), ("lstm (equal parameters)", 0), ("lstm (equal time)", 0)]
    by_steps = {key: value for key, value in numbers(again.rows).items() if "time" not in key[0]}
    assert by_steps == {key: numbers(whole.rows)[key] for key in by_steps}
    equals = [again.any_row(f"lstm (equal {what})") for what in ("parameters", "time")]
    assert equals[0]["learning_rate"] == equals[1]["learning_rate"]
    rates = equals[0]["learning_rates"]
    assert min(rates, key=rates.get) == f"{equals[0]['learning_rate']:g}"


def test_recall_and_evaluation_follow_the_steps(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "recall_steps": None, "evaluation_bytes": None, "steps": 9, "lengths": (16, 20)}
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope"], **settings, out=tmp_path, watch=Stops("rope", "step"))
    said = json.loads((tmp_path / "settings.json").read_text())
    assert (said["recall_steps"], said["evaluation_bytes"]) == (3, 9 * BYTES_FOR_STEP)


def test_what_is_counted_stands_beside_the_results(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    compare(text_file, ["rope"], **tiny, out=tmp_path)
    counted = json.loads((tmp_path / "settings.json").read_text())["counted"]
    assert 0 < counted["5-gram"] < counted["2-gram"] < 8


@pytest.mark.parametrize("tokenizer", ["bpe:280", "bytes"])
def test_tokens_of_a_text_are_compared_in_bits_per_byte(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, tokenizer: str
) -> None:
    settings = {**tiny, "tokenizer": tokenizer, "lengths": (16, 24)}
    results = compare(text_file, ["rope"], **settings, out=tmp_path)
    near = results.rows[0]
    assert 0 < near["bits_per_byte"] < 9
    assert near["held_out_bytes"] == pytest.approx(64, abs=64)
    assert results.protocol.unit == ("bytes" if tokenizer == "bytes" else "tokens")
    assert results.protocol.bytes_per_token >= 1
    with pytest.raises(HeadwayError, match="tokenizer"):
        compare(text_file, ["rope"], **{**settings, "tokenizer": "bpe:270"}, out=tmp_path)


def test_the_expected_time_has_all_parts(text_file: Path, tiny: dict[str, Any]) -> None:
    found: list[dict[str, float]] = []

    class Expects(ProgressListener):
        def expected(self, seconds: Any) -> None:
            found.append(dict(seconds))
            raise KeyboardInterrupt

    settings = {**tiny, "recall_steps": 2, "learning_rates": RATES, "baselines": ("lstm",)}
    for steps in (4, 40):
        with pytest.raises(KeyboardInterrupt):
            compare(text_file, ["learned", "rope"], **{**settings, "steps": steps}, watch=Expects())
    parts = ["training", "trying learning rates", "measuring", "recall", "the report"]
    assert [list(one) for one in found] == [parts, parts]
    assert all(seconds > 0 for one in found for seconds in one.values())
    assert found[1]["training"] > 2 * found[0]["training"]


def test_minutes_choose_the_steps_once(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "steps": None, "minutes": 5.0, "recall_steps": 1, "baselines": ("lstm",)}
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope"], **settings, out=tmp_path, watch=Stops("rope", "step 2"))
    steps = json.loads((tmp_path / "settings.json").read_text())["steps"]
    assert steps >= comparison.FEWEST_STEPS
    with pytest.raises(KeyboardInterrupt):
        compare(text_file, ["rope"], **settings, out=tmp_path, watch=Stops("rope", f"step 3 of {steps:,}"))


def test_too_few_minutes_are_refused_with_what_would_do(text_file: Path, tiny: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=r"minutes 0\.01 is too short .* give at least 0\.\d"):
        compare(text_file, ["rope"], **{**tiny, "steps": None, "minutes": 0.01})


@pytest.mark.parametrize(
    ("encodings", "change", "said"),
    [
        (["rop"], {}, "no encoding 'rop'"),
        (["rope(head_dim=7)"], {}, "head_dim is 7"),
        (["none.py:Mine"], {}, "none.py is not a file"),
        ([], {}, "encodings is empty"),
        (["rope"], {"seeds": 0}, "seeds is 0"),
        (["rope"], {"seeds": (3, 3)}, "none twice"),
        (["rope"], {"seeds": ()}, "at least one"),
        (["rope"], {"seeds": (0, 1.5)}, "give whole numbers"),
        (["rope"], {"minutes": 1.0}, "both given"),
        (["rope"], {"learning_rate": 0.1, "learning_rates": (0.1, 0.2)}, "both given"),
        (["rope"], {"learning_rates": (0.1, -0.2)}, "learning_rate is -0.2"),
        (["rope"], {"tokenizer": "bpe:3"}, "tokenizer is 'bpe:3'"),
        (["rope"], {"dtype": "float16"}, "no dtype 'float16'"),
        (["rope"], {"steps": None, "minutes": -1.0}, "minutes is -1"),
        (["rope"], {"steps": 0}, "steps is 0"),
        (["rope"], {"device": "abacus"}, "no device 'abacus'"),
        (["rope"], {"baselines": ("gru",)}, "no baseline 'gru': give one of lstm, rnn, none"),
        (["rope"], {"lengths": (10**6,)}, "too short for a length of 1,000,000"),
        (["rope"], {"width": 15}, "width 15 is not divisible by heads 2"),
    ],
)
def test_wrong_input_is_said_before_anything_is_trained_or_written(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, encodings: list[str], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(HeadwayError, match=said) as raised:
        compare(text_file, encodings, **{**tiny, **change}, out=tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_settings_that_differ_from_the_folders_are_refused(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    compare(text_file, ["none"], **tiny, out=tmp_path / "out")
    for change, said in (
        ({"steps": 5}, "steps = 4, now steps = 5"),
        ({"width": 32}, "width = 16"),
        ({"lengths": (16,)}, "lengths"),
    ):
        with pytest.raises(HeadwayError, match=said):
            compare(text_file, ["none"], **{**tiny, **change}, out=tmp_path / "out")
    text_file.write_text(text_file.read_text().upper())
    with pytest.raises(HeadwayError, match="corpus_sha256"):
        compare(text_file, ["none"], **tiny, out=tmp_path / "out")


def test_a_training_that_diverges_has_a_reason_and_no_numbers(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    mine = f"{file}:Mine(factor=1e39)"
    settings = {**tiny, "recall_steps": 2, "baselines": ("lstm",)}
    results = compare(text_file, [mine, "rope"], **settings, out=tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert rows == results.rows
    for row in rows:
        if row["encoding"] != mine:
            assert row["bits_per_byte"] > 0
            assert "reason" not in row
            continue
        times = ("train_seconds", "processor_seconds", "tokens_per_second")
        numbers = ("bits_per_byte", "recall", "train_loss_bits", *times, "heads")
        assert [row[name] for name in numbers] == [None] * len(numbers)
        assert row["steps"] == 0
        assert row["reason"] == (
            "language model: training diverged: the loss is nan in step 1 of 4: give a learning rate below 0.005; "
            "recall: training diverged: the loss is nan in step 1 of 2: give a learning rate below 0.01"
        )
    watch = Lists()
    compare(text_file, [mine, "rope"], **settings, out=tmp_path / "out", watch=watch)
    assert watch.trained == []


@pytest.mark.parametrize("spoilt", ["rope", "lstm_equal_parameters"])
def test_equal_time_is_that_of_the_trainings_that_ended_well(
    text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    train = run.train

    def spoils(model: torch.nn.Module, *given: Any, **named: Any) -> Trained:
        if named["checkpoint"].name.startswith(spoilt):
            raise Diverged("the loss is nan", step=2)
        return train(model, *given, **named)

    monkeypatch.setattr(run, "train", spoils)
    results = compare(text_file, ["rope"], **{**tiny, "baselines": ("lstm",)})
    assert [row["steps"] for row in results.rows if row["train_seconds"] is None] == [1, 1]
    assert results.any_row("lstm (equal time)")["steps"] == 4  # those of the others, since one of them is missing


def test_equal_time_is_that_of_the_processor(
    text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program that takes the processor makes seconds longer, and changes no number of steps."""
    train = run.train

    def busy(*given: Any, **named: Any) -> Trained:
        trained = train(*given, **named)
        work = 6.0 if named["checkpoint"].name.startswith("rope") else 2.0
        return replace(trained, seconds=1.0 if work == 6.0 else 500.0, processor_seconds=work)

    monkeypatch.setattr(run, "train", busy)
    results = compare(text_file, ["rope"], **{**tiny, "baselines": ("lstm",)})
    assert results.any_row("rope")["processor_seconds"] == 6.0
    assert results.any_row("lstm (equal time)")["steps"] == 3 * tiny["steps"]


def test_equal_time_beside_rows_of_an_earlier_version(
    text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which have no time of the processor: seconds decide then."""
    train = run.train

    def timed(*given: Any, **named: Any) -> Trained:
        seconds = 6.0 if named["checkpoint"].name.startswith("rope") else 2.0
        return replace(train(*given, **named), seconds=seconds)

    monkeypatch.setattr(run, "train", timed)
    compare(text_file, ["rope"], **{**tiny, "baselines": ()}, out=tmp_path)
    file = tmp_path / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, "processor_seconds": None}) + "\n" for row in rows))
    results = compare(text_file, ["rope"], **{**tiny, "baselines": ("lstm",)}, out=tmp_path)
    assert results.any_row("lstm (equal time)")["steps"] == 3 * tiny["steps"]


def test_settings_stand_in_place_of_the_protocols(text_file: Path, tiny: dict[str, Any]) -> None:
    of = {"baselines": tiny["baselines"], "seeds": tiny["seeds"]}
    settings = {name: value for name, value in tiny.items() if name not in of}
    whole = compare(text_file, ["none"], Protocol(**{**settings, "steps": 2}), **of)
    assert whole.protocol == compare(text_file, ["none"], Protocol(**settings), steps=2, **of).protocol
    with pytest.raises(WrongCallError, match=r"compare: there is no argument 'stepz': did you mean steps=\?"):
        compare(text_file, ["none"], stepz=2)


def test_it_is_reached_as_headway_study() -> None:
    assert headway.study.compare is compare


@pytest.mark.parametrize("used_by_shaw", ["sdpa", "triton", "reference"])
def test_auto_takes_a_gpu_only_if_a_fused_kernel_trains_every_encoding(
    used_by_shaw: str, text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Placed(ProgressListener):
        def noted(self, note: str) -> None:
            notes.append(note)

    def expected(_: Any, protocol: Any, missing: Any) -> None:
        devices.append(protocol.device)
        raise KeyboardInterrupt

    def used(spec: str | None, sizes: Any, batch: int, device: str, dtype: Any = None) -> str:
        return used_by_shaw if spec == "shaw" and device == "cuda" else "sdpa"

    notes: list[str] = []
    devices: list[str] = []
    monkeypatch.setattr(comparison._Comparison, "_expected", expected)
    monkeypatch.setattr(comparison, "device_named", lambda name: "cuda" if name == "auto" else name)
    monkeypatch.setattr(models, "kernel_used", used)
    for device in ("auto", "cuda"):
        with pytest.raises(KeyboardInterrupt):
            compare(text_file, ["rope", "shaw"], **{**tiny, "baselines": ["rnn"], "device": device}, watch=Placed())
    if used_by_shaw == "reference":
        assert devices == ["cpu", "cuda"]
        [note] = notes
        assert note.startswith("It runs on the CPU: ")
        assert "no fused kernel computes the attention of shaw. Give --device cuda" in note
    else:
        assert devices == ["cuda", "cuda"]
        assert notes == ["It runs on cuda, where a fused kernel computes the attention of every model."]


# ------------------------------------------------------------ several processes and machines


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Of which processes have one each too: sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Kills(Lists):
    """Kills a process of this one in the first training that reports a step."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {child.pid for child in multiprocessing.active_children()}  # those of other tests
        self.killed: list[Any] = []

    def progressed(self, doing: str, share: float) -> None:
        assert 0 <= share <= 1
        if "step" in doing and not self.killed:
            self.killed = [child for child in multiprocessing.active_children() if child.pid not in self.others][:1]
            self.killed[0].kill()


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_processes_of_which_one_is_killed_give_the_rows_of_one(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learning rates that are tried, recall, a table that is interpolated, and baselines."""
    forked.instead_of_new(processes, monkeypatch)
    settings = {**tiny, "seeds": 2, "steps": 60, "recall_steps": 3, "learning_rates": RATES[:2], "baselines": ("lstm",)}
    alone = compare(text_file, ["rope", "learned"], **settings, out=tmp_path / "alone")
    watch = Kills()
    together = compare(text_file, ["rope", "learned"], **settings, jobs=2, out=tmp_path / "together", watch=watch)
    assert watch.killed[0].exitcode == -9
    assert {row["threads"] for row in together.rows} == {1}

    def without_the_clock(rows: Sequence[Row]) -> dict[Any, Any]:
        return {key: value for key, value in numbers(rows).items() if "time" not in key[0]}

    assert without_the_clock(together.rows) == without_the_clock(alone.rows)
    assert {row["encoding"] for row in together.rows} == {row["encoding"] for row in alone.rows}
    for name in sorted(path.name for path in (tmp_path / "alone" / "heads").iterdir()):
        assert (tmp_path / "together" / "heads" / name).read_text() == (tmp_path / "alone" / "heads" / name).read_text()
    tried = [json.loads((tmp_path / name / "settings.json").read_text()) for name in ("alone", "together")]
    losses = [
        {name: {rate: its["bits_per_byte"] for rate, its in rates.items()} for name, rates in one.items()}
        for one in (settings["learning_rates_tried"] for settings in tried)
    ]
    assert losses[0] == losses[1]


class Reversed(Here):
    """Begins with the last job."""

    def run(self, jobs: Any, work: Any, **listeners: Any) -> None:
        super().run(dict(reversed(jobs.items())), work, **listeners)


def test_rows_are_in_the_order_of_the_encodings_whichever_ends_first(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**tiny, "out": tmp_path, "engine": Reversed()}
    assert compare(text_file, ["rope", "none", "alibi"], **settings).encodings == ["rope", "none", "alibi"]
    compare(text_file, ["rope", "none", "alibi"], **{**settings, "seeds": 2})
    saved = headway.study.ComparisonResults.load(tmp_path).rows
    names = [(row["seed"], row["encoding"], row["length"]) for row in saved]
    assert names == [
        (seed, name, length) for seed in (0, 1) for name in ("rope", "none", "alibi") for length in (16, 32)
    ]
    compare(text_file, ["t5"], **settings)
    assert headway.study.ComparisonResults.load(tmp_path).encodings == ["rope", "none", "alibi", "t5"]


def test_long_work_takes_all_processors_unless_it_is_told(
    text_file: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []

    class Counted(Here):
        def __init__(self, jobs: int, gpus: int = 0) -> None:
            made.append((jobs, gpus))

    monkeypatch.setattr(comparison, "Processes", Counted)
    monkeypatch.setattr(comparison, "processors", lambda: 3)
    compare(text_file, ["none", "rope"], **tiny, jobs=None)
    assert made == [], "it is short"
    monkeypatch.setattr(comparison, "LONG", 0.0)
    compare(text_file, ["none", "rope"], **tiny)
    assert made == [], "one at a time, unless a caller says otherwise"
    compare(text_file, ["none", "rope"], **tiny, jobs=None)
    compare(text_file, ["none", "rope"], **{**tiny, "seeds": 2}, jobs=None)
    compare(text_file, ["none", "rope"], **{**tiny, "seeds": 2}, jobs=2)
    assert made == [(2, 0), (3, 0), (2, 0)], "no more than there are trainings"


def test_shares_of_machines_are_the_whole(text_file: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "learning_rates": RATES[:2], "seeds": 2}
    whole = compare(text_file, ["none", "rope"], **settings)
    parts = [compare(text_file, ["none", "rope"], **settings, share=(number, 2)) for number in (1, 2)]
    assert [len(part.rows) for part in parts] == [4, 4]
    assert numbers([row for part in parts for row in part.rows]) == numbers(whole.rows)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": Here(), "baselines": ("lstm",)}, "with engine machines may differ: give --baselines none"),
        ({"share": (1, 2), "baselines": ("lstm",)}, "with share machines may differ: give --baselines none"),
        ({"engine": Here(), "minutes": 3.0, "steps": None}, "engine uses others: give steps"),
        ({"share": (3, 2)}, "share is 3 of 2"),
        ({"share": (2, 2)}, "share 2 of 2 is empty"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_machines_share_no_clock(text_file: Path, tiny: dict[str, Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        compare(text_file, ["rope"], **{**tiny, **given})


def test_equal_time_is_refused_on_another_processor(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(text_file, ["rope"], **tiny, out=tmp_path)
    here = trainings.processor.name()
    monkeypatch.setattr(trainings.processor, "name", lambda: "another processor")
    with pytest.raises(HeadwayError, match=f"{re.escape(here)} trained those of seed 0: give --baselines none"):
        compare(text_file, ["rope"], **{**tiny, "baselines": ("lstm",)}, out=tmp_path)
    compare(text_file, ["rope", "none"], **tiny, out=tmp_path)
