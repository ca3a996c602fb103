"""Whisper: its features from sound, its table of sinusoids, and what it hears in ten seconds of Beckett."""

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import HeadwayError
from headway.checkpoints import load
from headway.checkpoints.whisper import Convolutions, Whisper, log_mel, mel_filters
from headway.models import generate
from headway.positions import Sinusoidal
from headway.testing.checkpoints import CLOSE, compare, inputs, their_model

pytest.importorskip("transformers")

RATE = 16000


def sound(seconds: float, seed: int = 0) -> Tensor:
    """A rising tone, loud and soft in turn, with noise."""
    time = torch.arange(int(seconds * RATE)) / RATE
    generator = torch.Generator().manual_seed(seed)
    tone = 0.3 * torch.sin(2 * torch.pi * (100 + 150 * time) * time) * torch.sin(5 * time).clamp(min=0)
    return tone + 1e-3 * torch.randn(len(time), generator=generator)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize(
    "samples", [sound(2), sound(30), torch.zeros(1000), sound(1) * 1e-6, sound(3).clamp(-0.1, 0.1), torch.ones(1)]
)
def test_features_are_those_of_transformers(samples: Tensor, num_mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    expected = extractor(samples.numpy(), sampling_rate=RATE, return_tensors="np").input_features
    features = log_mel(samples, num_mels=num_mels)
    assert (features.shape, features.dtype) == ((1, num_mels, 3000), torch.float32)
    torch.testing.assert_close(features, torch.from_numpy(expected), rtol=0, atol=1e-4)


def test_features_of_a_batch_are_those_of_each() -> None:
    loud, soft = sound(1, seed=1), 0.01 * sound(1, seed=2)
    assert torch.equal(log_mel(torch.stack([loud, soft])), torch.cat([log_mel(loud), log_mel(soft)]))
    assert torch.equal(log_mel(loud.double().numpy()), log_mel(loud.tolist()))


def test_each_band_has_the_same_area_and_a_tone_falls_into_its_own() -> None:
    filters = mel_filters(20)  # so few that a band is wider than the 40 Hz between frequencies
    torch.testing.assert_close(filters.sum(1) * 40, torch.ones(20, dtype=torch.float64), rtol=0.02, atol=0)
    assert filters.argmax(1).diff().gt(0).all()
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(RATE) / RATE)
    heard = log_mel(tone, num_mels=20)[0, :, 50]
    assert heard.argmax() == filters[:, 25].argmax()  # 25 · 40 Hz


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: log_mel(sound(1), 44100), "sampling_rate is 44100: resample"),
        (lambda: log_mel(torch.zeros(30 * RATE + 1)), "30 s"),
        (lambda: log_mel(torch.zeros(0)), "n from 1 to 480000"),
        (lambda: log_mel(torch.zeros(1, 1, 9)), r"\(1, 1, 9\)"),
        (lambda: log_mel(sound(1), num_mels=0), "num_mels is 0"),
        (lambda: Convolutions(80, 32)(torch.zeros(1, 128, 3000)), r"give \[batch, 80, frames\]"),
        (lambda: Convolutions(80, 32)(torch.zeros(80, 3000)), r"give \[batch, 80, frames\]"),
    ],
)
def test_other_input_is_refused(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        wrong()


def test_the_table_of_the_encoder_is_taken_as_it_is_stored_and_not_learned(tmp_path: Path) -> None:
    theirs = their_model(Whisper.examples[0])
    table = theirs.model.encoder.embed_positions.weight
    computed = Sinusoidal(32, variant="tensor2tensor").embed(torch.zeros(1, 16, 32))[0]
    torch.testing.assert_close(table.data, computed, rtol=0, atol=1e-5)
    with torch.no_grad():
        table.copy_(torch.randn_like(table))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert compare(ours, theirs).outputs <= CLOSE
    assert [name for name, one in ours.named_parameters() if not one.requires_grad] == ["encoder.encodings.0.table"]


@torch.no_grad()
def test_a_model_in_half_precision_reads_the_features_as_they_are_made() -> None:
    vectors = Convolutions(80, 32).bfloat16()(log_mel(sound(1)))
    assert (vectors.shape, vectors.dtype) == ((1, 1500, 32), torch.bfloat16)


@torch.no_grad()
def test_more_frames_than_positions_are_refused_and_fewer_are_not(tmp_path: Path) -> None:
    theirs = their_model(Whisper.examples[0])
    theirs.save_pretrained(tmp_path)
    ours, features = load(tmp_path), inputs(theirs)["input_features"]
    assert ours.encode(features[..., :20]).shape == (2, 10, 32)
    with pytest.raises(HeadwayError, match="max_length 16"):
        ours.encode(torch.cat([features, features], dim=-1))


@torch.no_grad()
def test_what_is_said_is_written_down(weights: Callable[[str], Path]) -> None:
    from tokenizers import Tokenizer

    from weights import facts

    folder, known = weights("whisper"), facts("whisper")
    with wave.open(str(weights("audio") / known["sound"])) as file:
        samples = torch.frombuffer(bytearray(file.readframes(known["samples"])), dtype=torch.int16) / 32768
    features, model = log_mel(samples, known["rate"]), load(folder, dtype=torch.float32)
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(features[0, known["bands"]][:, known["frames"]], torch.tensor(known["mel"]), **close)
    heard = model.encode(features)
    rows = heard[0, [50 * second for second in known["seconds"]], :8]
    torch.testing.assert_close(rows, torch.tensor(known["heard"]), **close)
    logits = model.decode(torch.tensor([known["start"]]), heard)[0, -1]
    torch.testing.assert_close(logits[known["top"]], torch.tensor(known["logits"]), **close)
    spoken = generate(model, features, decoder_start=known["start"], stop=known["end"])
    assert [*spoken.ids[0], known["end"]] == known["greedy"]
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(spoken.ids[0])
    assert text.strip() == known["transcript"]
