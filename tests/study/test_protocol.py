import dataclasses
import json

import pytest

from headway.errors import HeadwayError
from headway.study.protocol import FixedProtocol, Protocol, derived_seed


def test_a_derived_seed_is_the_same_in_every_process() -> None:
    assert derived_seed(0, "model") == 1774364661312384809
    assert len({derived_seed(seed, name) for seed in range(20) for name in ("a", "b")}) == 40


def test_settings_come_back_from_json(protocol: FixedProtocol) -> None:
    assert FixedProtocol.from_settings(json.loads(json.dumps(protocol.settings()))) == protocol


def test_the_text_says_what_was_fixed(protocol: FixedProtocol) -> None:
    text = " ".join(dataclasses.replace(protocol, minutes=3).text())
    for said in (protocol.corpus_sha256, "6 steps of 2 windows of 16 bytes", "16, 32", "1/√head_dim", "3 minutes"):
        assert said in text


def test_what_differs_from_the_usual_training_is_said(protocol: FixedProtocol) -> None:
    usual = " ".join(protocol.text())
    change = {"dtype": "bfloat16", "compile": True, "tokenizer": "bpe:500", "learning_rates": (0.1, 0.2)}
    other = " ".join(dataclasses.replace(protocol, **change).text())  # type: ignore[arg-type]
    for said in (
        "bfloat16 autocast, measured in float32",
        "torch.compile",
        "tokens of bpe:500",
        "0.1, 0.2",
        "16 tokens",
    ):
        assert said in other
        assert said not in usual


def test_recall_is_not_spoken_of_where_it_is_left_out(protocol: FixedProtocol) -> None:
    assert "Recall:" in " ".join(protocol.text())
    assert "Recall:" not in " ".join(dataclasses.replace(protocol, recall_steps=0).text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 0}, "layers is 0: give at least 1"),
        ({"steps": -3}, "steps is -3"),
        ({"lengths": ()}, "give at least one length"),
        ({"lengths": (16, 1)}, "none below 2"),
        ({"width": 17}, r"width 17 is not divisible by heads 2: choose width = 16 or 20"),
        ({"recall_steps": -1}, "recall_steps is -1"),
        ({"learning_rates": (0.1, 0.0)}, "learning_rate is 0.0"),
        ({"learning_rates": ()}, "learning_rates is empty"),
        ({"dtype": "float8"}, "there is no dtype 'float8': did you mean 'float32'"),
    ],
)
def test_sizes_that_will_not_do(protocol: FixedProtocol, change: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        dataclasses.replace(protocol, **change)  # type: ignore[arg-type]


def test_what_is_not_given_follows_from_what_is() -> None:
    usual = Protocol().fixed("text", "")
    assert (usual.steps, usual.learning_rates, usual.recall_steps) == (600, (0.005,), 200)
    assert (usual.lengths, usual.evaluation_bytes) == ((128, 256, 512, 1024), 28 * 600)
    quick = Protocol(quick=True).fixed("text", "", bytes_per_token=4.0)
    assert (quick.steps, quick.recall_steps, quick.evaluation_bytes) == (150, 0, 2 * 1024 * 4)
    given = Protocol(quick=True, train_length=16, steps=90, learning_rates=[0.2, 0.1, 0.2], lengths=[64, 16])
    fixed = given.fixed("text", "")
    assert (fixed.steps, fixed.learning_rates, fixed.lengths) == (90, (0.2, 0.1), (16, 64))
    assert given.fixed("text", "", steps=10**6).evaluation_bytes == 2**16


def test_a_fixed_protocol_asks_for_itself(protocol: FixedProtocol) -> None:
    assert protocol.fixed(protocol.corpus, protocol.corpus_sha256) == protocol
