"""Every task of the table: its examples, the program that solves it, chance, and the rule that knows no order."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway import HeadwayError
from headway.study.protocol import Training, derived_seed
from headway.study.tasks import SEQUENCE_TASKS, SequenceTask, sequence_task
from headway.study.tasks._base import IGNORED

OWN = '''
import torch
from headway.study.tasks import Examples, SequenceTask, continued

class Last(SequenceTask):
    """Tells the last letter again: a b → b."""

    name, source, counts, scored = "last", "none", "letters", "the one letter"
    symbols, answers, trained = ("a", "b"), 2, 4

    def examples(self, count, length, generator):
        text = torch.randint(2, (count, length), generator=generator)
        return continued(text, text[:, -1:])

    def answer(self, prefix):
        return prefix[-1]

    def order_free(self, length):
        return 0.75
'''


@pytest.fixture(params=SEQUENCE_TASKS)
def task(request: pytest.FixtureRequest) -> SequenceTask:
    return sequence_task(request.param)


def drawn(task: SequenceTask, count: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.examples(count, length, torch.Generator().manual_seed(seed))


class Program(nn.Module):
    """The program of a task as a model, which a number of wrong answers may be asked of."""

    def __init__(self, task: SequenceTask, wrong: bool = False) -> None:
        super().__init__()
        self.task, self.wrong = task, wrong
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        _, targets = drawn(self.task, 1, self.length)
        asked = (targets[0] != IGNORED).nonzero().flatten().tolist()
        logits = torch.zeros(*ids.shape, self.task.vocabulary)
        for row, tokens in enumerate(ids.tolist()):
            for place in asked:
                logits[row, place, self.task.answer(tokens[: place + 1])] = 1.0
            if self.wrong and row % 2:
                logits[row, asked[-1]] *= -1.0
        return logits

    def of(self, length: int) -> "Program":
        self.length = length
        return self


def test_its_program_scores_1_at_the_trained_length_and_twice_that(task: SequenceTask) -> None:
    for length in (task.trained, 2 * task.trained):
        measured = task.measure(Program(task).of(length), length)
        assert measured["exact"] == measured["accuracy"] == 1.0


def test_an_example_with_one_wrong_token_is_wrong(task: SequenceTask) -> None:
    measured = task.measure(Program(task, wrong=True).of(task.trained), task.trained)
    assert measured["exact"] == 0.5
    assert measured["exact"] <= measured["accuracy"] < 1.0


def test_examples_follow_from_the_seed_at_any_length(task: SequenceTask) -> None:
    for length in (task.shortest, task.trained, 8 * task.trained):
        inputs, targets = drawn(task, 3, length)
        assert torch.equal(inputs, drawn(task, 3, length)[0])
        assert inputs.shape == targets.shape == (3, task.tokens(length))
        assert not torch.equal(inputs, drawn(task, 3, length, seed=1)[0]) or length == task.shortest
        known = targets[targets != IGNORED]
        assert 0 <= int(inputs.min()) <= int(inputs.max()) < task.vocabulary
        assert 0 <= int(known.min()) <= int(known.max()) < task.vocabulary


def test_a_step_draws_the_same_whatever_was_drawn_before(task: SequenceTask) -> None:
    training = Training(steps=4, batch=2, length=task.trained, learning_rate=0.1)
    with torch.random.fork_rng(devices=[]):
        first, _ = task.step(training, 0, 3)
        positions = torch.rand(3)
        torch.manual_seed(5)
        again, _ = task.step(training, 0, 3)
        assert torch.equal(torch.rand(3), positions)
    assert torch.equal(first, again)


def test_a_step_has_examples_of_all_lengths(task: SequenceTask) -> None:
    """Each is an example of its length, and after it nothing is asked."""
    training = Training(steps=4, batch=400, length=task.trained, learning_rate=0.1)
    with torch.random.fork_rng(devices=[]):
        inputs, targets = task.step(training, 0, 3)
    assert inputs.shape == targets.shape == (400, task.tokens(task.trained))
    generator = torch.Generator().manual_seed(derived_seed(0, task.name, "batch", 3))
    lengths = torch.randint(task.shortest, task.trained + 1, (400,), generator=generator).sort().values.tolist()
    assert set(lengths) == set(range(task.shortest, task.trained + 1))
    for row, asked, length in zip(inputs.tolist(), targets.tolist(), lengths, strict=True):
        tokens = task.tokens(length)
        right = [task.answer(row[: place + 1]) for place, token in enumerate(asked) if token != IGNORED]
        assert [token for token in asked if token != IGNORED] == right
        assert set(asked[tokens:]) <= {IGNORED}
        assert asked[tokens - 1] != IGNORED


SMALL = {
    **dict.fromkeys(("parity", "majority", "modular-counting"), 3),
    **dict.fromkeys(("copy", "reverse", "repeat-copy"), 2),
    **dict.fromkeys(("addition", "marked-addition", "associative-recall"), 1),
    **dict.fromkeys(("token-count", "induction", "retrieval", "dyck-depth"), 2),
}
"""Lengths at which all examples can be drawn so often that each bag of tokens shows its best answer."""


@pytest.mark.parametrize("name", SMALL)
def test_the_rule_that_knows_no_order(name: str) -> None:
    """Estimated from examples: the most frequent answer for each bag of tokens before it, and the last of them."""
    task, length = sequence_task(name), SMALL[name]
    inputs, targets = drawn(task, 20_000, length)
    if name in ("induction", "retrieval"):  # the symbols are exchangeable: a few stand for all
        assert task.order_free(length) == 1 / (length - (name == "induction"))
        return
    first = int((targets[0] != IGNORED).nonzero()[0])
    found: dict[Sequence[int], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for read, asked in zip(inputs.tolist(), targets.tolist(), strict=True):
        answer = tuple(token for token in asked if token != IGNORED)
        bag = read if name == "dyck-depth" else read[: first + 1]
        found[(*sorted(bag), bag[-1])][answer] += 1
    if name == "associative-recall":  # one pair, whose value is shown
        assert task.order_free(1) == 1.0
    best = sum(max(counts.values()) for counts in found.values()) / len(inputs)
    assert best == pytest.approx(task.order_free(length), abs=0.02)


def test_chance_is_a_guess_at_each_token() -> None:
    assert sequence_task("parity").chance(5) == 0.5
    assert sequence_task("copy").chance(2) == 1 / 64
    assert [sequence_task("majority").chance(length) for length in (2, 3, 4)] == [3 / 4, 1 / 2, 11 / 16]
    assert sequence_task("associative-recall").chance(3) == 16.0**-3


def test_two_lines_of_sums() -> None:
    addition = sequence_task("addition")
    assert addition.answer([9, 9, 10, 1, 0, 11]) == 0
    assert addition.answer([9, 9, 10, 1, 0, 11, 0, 0]) == 1
    assert addition.order_free(1) == 1.0
    assert addition.order_free(8) == addition.order_free(3) < addition.order_free(2) < 1.0


@pytest.mark.parametrize(
    ("name", "most"),
    [("induction", 144), ("retrieval", 144), ("indirect-indexing", 72), ("associative-recall", 144),
     ("marked-addition", 39)],
)  # fmt: skip
def test_there_is_no_longer_example_than_symbols(name: str, most: int) -> None:
    task = sequence_task(name)
    task.examples(2, most, torch.Generator().manual_seed(0))
    with pytest.raises(HeadwayError, match=f"length is {most + 1} but there are .*: give at most {most}"):
        task.examples(2, most + 1, torch.Generator().manual_seed(0))


def test_depths_of_retrieval() -> None:
    task = sequence_task("retrieval")
    measured = task.measure(Program(task).of(16), 16)
    assert measured["by_depth"] == [1.0] * 4


def test_a_task_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    task = sequence_task(f"{path}:Last")
    assert task.measure(Program(task).of(4), 4) == {"exact": 1.0, "accuracy": 1.0}
    with pytest.raises(HeadwayError, match="has no class Other"):
        sequence_task(f"{path}:Other")
    with pytest.raises(HeadwayError, match="is not a file"):
        sequence_task(f"{tmp_path}/other.py:Last")
    with pytest.raises(HeadwayError, match="did you mean 'copy'"):
        sequence_task("copi")


@pytest.mark.parametrize("name", SEQUENCE_TASKS)
def test_a_task_has_the_name_of_its_row(name: str) -> None:
    task = SEQUENCE_TASKS[name]()
    assert task.name == name
    assert "→" in task.written(max(4, task.shortest))
    assert all((task.source, task.scored, task.counts))
