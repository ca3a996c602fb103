import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.study import corpora
from headway.study.ngrams import ngram_bits
from headway.study.protocol import FixedProtocol, Protocol
from headway.study.tasks import LanguageModel


class Uniform(nn.Module):
    def __init__(self, vocabulary: int = 256) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.vocabulary = vocabulary

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, self.vocabulary) + self.weight


def decoded(corpus: corpora.Corpus, ids: Tensor) -> bytes:
    if corpus.tokens.library is None:
        return bytes(ids.tolist())
    return corpus.tokens.library.decode(ids.tolist()).encode()


def task(text_file: Path, protocol: FixedProtocol) -> LanguageModel:
    return LanguageModel(corpora.load(text_file, train_length=16, longest=32), protocol)


def test_a_batch_follows_from_seed_and_step_alone(text_file: Path, protocol: FixedProtocol) -> None:
    language = task(text_file, protocol)
    inputs, targets = language.step(protocol.language(0.1), seed=0, step=3)
    torch.manual_seed(123)
    again, _ = language.step(protocol.language(0.1), seed=0, step=3)
    assert torch.equal(inputs, again)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.shape == targets.shape == (2, 16)
    for seed, step in ((0, 4), (1, 3)):
        assert not torch.equal(inputs, language.step(protocol.language(0.1), seed, step)[0])


def test_a_model_that_knows_nothing_needs_eight_bits(text_file: Path, protocol: FixedProtocol) -> None:
    measured = task(text_file, protocol).measure(Uniform(), 32)
    assert abs(measured["bits_per_byte"] - 8) < 1e-6
    assert abs(measured["sliding_bits_per_byte"] - 8) < 1e-6
    assert measured["held_out_bytes"] == 64
    assert [found[:2] for found in measured["bits_by_position"]] == [[17, 32]]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_losses_are_those_of_the_same_bytes_whatever_a_token_is(words: str, tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(words * 3)
    corpus = corpora.load(path, train_length=16, longest=32, tokenizer=tokenizer)
    language = LanguageModel(corpus, Protocol(lengths=(16, 32), train_length=16, evaluation_bytes=600).fixed("", ""))
    each = math.log2(language.vocabulary)  # of a model that knows nothing
    first, count = language.start + 1, language.count
    size = corpus.held_out.bytes_of(first, count)
    assert size == len(decoded(corpus, corpus.held_out.ids[first : first + count]))
    assert 400 < size <= 700
    for length in (16, 32):
        measured = language.measure(Uniform(language.vocabulary), length)
        assert measured["held_out_bytes"] == size
        assert measured["bits_per_byte"] == pytest.approx(each * count / size)
        assert measured["sliding_bits_per_byte"] == pytest.approx(each * count / size)
    chosen = corpus.validation
    asked = min(count, len(chosen) - 1) // 16 * 16
    assert language.validate(Uniform(language.vocabulary)) == pytest.approx(each * asked / chosen.bytes_of(1, asked))


def test_n_grams_are_measured_on_the_same_bytes(text_file: Path, protocol: FixedProtocol) -> None:
    language = task(text_file, protocol)
    counted = language.counted()
    text = language.corpus.held_out.ids
    first = language.start + 1
    for order in (2, 5):
        whole = ngram_bits(language.corpus.train.ids, text, order, 256)
        assert counted[f"{order}-gram"] == pytest.approx(float(whole[first : first + language.count].mean()))
    assert counted["5-gram"] < counted["2-gram"] < 8


def test_nothing_of_the_held_out_part_is_trained_on(text_file: Path, protocol: FixedProtocol) -> None:
    language = task(text_file, protocol)
    language.corpus.validation.ids.fill_(0)
    language.corpus.held_out.ids.fill_(0)
    for step in range(200):
        inputs, targets = language.step(protocol.language(0.1), 0, step)
        assert inputs.all()
        assert targets.all()


def test_the_tokens_of_a_measurement_are_counted(text_file: Path, protocol: FixedProtocol) -> None:
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
