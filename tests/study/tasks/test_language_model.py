from pathlib import Path

import torch
from torch import Tensor, nn

from headway.study import corpora
from headway.study.protocol import Protocol
from headway.study.tasks import LanguageModel


class Uniform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, 256) + self.weight


def task(text_file: Path, protocol: Protocol) -> LanguageModel:
    return LanguageModel(corpora.load(text_file, train_length=16, longest=32), protocol)


def test_a_batch_follows_from_seed_and_step_alone(text_file: Path, protocol: Protocol) -> None:
    language = task(text_file, protocol)
    inputs, targets = language.step(protocol.language, seed=0, step=3)
    torch.manual_seed(123)
    again, _ = language.step(protocol.language, seed=0, step=3)
    assert torch.equal(inputs, again)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.shape == targets.shape == (2, 16)
    for seed, step in ((0, 4), (1, 3)):
        assert not torch.equal(inputs, language.step(protocol.language, seed, step)[0])


def test_a_model_that_knows_nothing_needs_eight_bits(text_file: Path, protocol: Protocol) -> None:
    measured = task(text_file, protocol).measure(Uniform(), 32)
    assert abs(measured["bits_per_byte"] - 8) < 1e-6
    assert abs(measured["sliding_bits_per_byte"] - 8) < 1e-6
    assert measured["held_out_bytes"] == 64
    assert [found[:2] for found in measured["bits_by_position"]] == [[17, 32]]


def test_nothing_of_the_held_out_part_is_trained_on(text_file: Path, protocol: Protocol) -> None:
    language = task(text_file, protocol)
    language.corpus.validation.fill_(0)
    for step in range(200):
        inputs, targets = language.step(protocol.language, 0, step)
        assert inputs.all()
        assert targets.all()


def test_the_tokens_of_a_measurement_are_counted(text_file: Path, protocol: Protocol) -> None:
    language = task(text_file, protocol)
    seen = 0

    class Counts(Uniform):
        def forward(self, ids: Tensor) -> Tensor:
            nonlocal seen
            seen += ids.numel()
            return super().forward(ids)

    for length in protocol.lengths:
        language.measure(Counts(), length)
    assert seen == language.measured_tokens
