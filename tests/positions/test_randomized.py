"""Randomized positions: T distinct of L, in order; one draw for the batch; an evaluation repeats itself."""

from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.models import Decoder, TransformerConfig
from headway.positions import Compose, RoPE, Sinusoidal
from headway.positions._encodings.randomized import RandomizedPositions

# google-deepmind/randomized_positional_encodings, models/positional_encodings.py, commit e8c6474, run with NumPy in
# place of JAX: noisy_fixed_positional_encodings(sinusoid_position_encoding(20, 6), 4), which drew 1, 8, 18, 19
CHOSEN = [1, 8, 18, 19]
NOISY = [
    [0.841471, 0.046399, 0.002154, 0.540302, 0.998923, 0.999998],
    [0.989358, 0.362852, 0.017235, -0.1455, 0.931847, 0.999851],
    [-0.750987, 0.741623, 0.03877, 0.660317, 0.670817, 0.999248],
    [0.149877, 0.771949, 0.040923, 0.988705, 0.635684, 0.999162],
]


def drawn(limit: int, at: Coordinates, training: bool = True, **given: Any) -> list[list[int]]:
    return RandomizedPositions(limit, **given).train(training).locate(at).axis().tolist()


def test_the_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(count: int, device: object) -> torch.Tensor:
        return torch.tensor(CHOSEN + [i for i in range(count) if i not in CHOSEN]).argsort()

    monkeypatch.setattr(torch, "randperm", ranks)
    found = Compose(RandomizedPositions(20), Sinusoidal(6)).train().embed(torch.zeros(1, 4, 6))
    theirs = torch.tensor(NOISY).reshape(4, 2, 3).transpose(1, 2).flatten(1)  # [sin | cos] to pairs
    torch.testing.assert_close(found[0], theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_distinct_rising_and_in_range(training: bool) -> None:
    for n in (1, 2, 17, 40):
        (found,) = drawn(40, Coordinates.span(n), training)
        assert len(set(found)) == n
        assert found == sorted(found)
        assert min(found) >= 0
        assert max(found) < 40


def test_every_set_is_as_likely_as_any_other() -> None:
    torch.manual_seed(0)
    at = Coordinates.span(2)
    sets = [tuple(drawn(4, at)[0]) for _ in range(1200)]
    assert len(set(sets)) == 6
    assert all(150 < sets.count(chosen) < 250 for chosen in set(sets))
    fixed = {tuple(drawn(4, at, False, seed=seed)[0]) for seed in range(60)}
    assert len(fixed) == 6


def test_one_draw_serves_the_batch_and_documents_of_one_length() -> None:
    at = Coordinates.of(torch.arange(5).expand(3, 5), 5)
    found = drawn(100, at)
    assert found[0] == found[1] == found[2]
    (packed,) = drawn(100, Coordinates.packed([4, 2, 4]))
    assert packed[:4] == packed[6:]
    assert set(packed[4:6]) < set(packed[:4])


def test_an_evaluation_repeats_itself_and_draws_from_no_generator() -> None:
    before = torch.get_rng_state()
    first = drawn(50, Coordinates.span(6), False)
    assert first == drawn(50, Coordinates.span(6), False)
    assert first != drawn(50, Coordinates.span(6), False, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    at = Coordinates.span(6)
    assert RandomizedPositions(50, draw_at_evaluation=False).eval().locate(at) is at


@pytest.mark.parametrize("training", [True, False])
def test_a_token_depends_on_its_number_and_the_length_alone(training: bool) -> None:
    """An int, one length for each row and one for each token say the same."""
    at = Coordinates.span(4, length=9)
    lengths = [9, torch.tensor([[9]]), torch.full((1, 4), 9)]
    sides = [Coordinates(at.position, at.index, length=length) for length in lengths]
    found = []
    for side in sides:
        torch.manual_seed(3)
        found.append(drawn(30, side, training))
    assert found[0] == found[1] == found[2]
    torch.manual_seed(3)
    assert drawn(30, Coordinates.span(9), training)[0][:4] == found[0][0]
    padded = Coordinates.padded([3, 9], 9)
    torch.manual_seed(3)
    rows = drawn(30, padded, training)
    assert rows[1][:4] == found[0][0]
    torch.manual_seed(3)
    assert rows[0][6:] == drawn(30, Coordinates.span(3), training)[0]


def test_a_seed_repeats_a_training_draw() -> None:
    torch.manual_seed(7)
    first = drawn(50, Coordinates.span(6))
    assert drawn(50, Coordinates.span(6)) != first
    torch.manual_seed(7)
    assert drawn(50, Coordinates.span(6)) == first


def test_decoding_is_a_full_pass_at_that_length() -> None:
    """Every step places all keys anew; with one layer there is nothing else that earlier steps could have fixed."""
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=11, embed_dim=16, num_heads=2, num_layers=1)
    decoder = Decoder(config, Compose(RandomizedPositions(32), RoPE(8))).eval()
    ids, cache = torch.randint(0, 11, (2, 6)), decoder.new_cache()
    with torch.no_grad():
        for t in range(1, 7):
            step = decoder(ids[:, t - 1 : t], cache=cache)
            torch.testing.assert_close(step[:, 0], decoder(ids[:, :t])[:, -1])
        assert not torch.allclose(decoder(ids[:, :5])[:, 4], decoder(ids)[:, 4])


@pytest.mark.parametrize("training", [True, False])
def test_compiles_and_draws_anew_in_training(training: bool) -> None:
    both = Compose(RandomizedPositions(64), RoPE(8)).train(training)
    compiled = torch.compile(
        lambda k: both.prepare_key(k, Coordinates.span(k.shape[2])), fullgraph=True, backend="eager"
    )
    k = torch.randn(1, 1, 5, 8)
    assert torch.equal(compiled(k), compiled(k)) != training


def test_lengths_above_the_limit_raise_with_the_remedy() -> None:
    wrong = "the length is 9 but positions are drawn from 8: build it with limit=18"
    for at in (Coordinates.span(9), Coordinates.padded([2, 9], 9), Coordinates.packed([9])):
        with pytest.raises(HeadwayError, match=wrong):
            RandomizedPositions(8).locate(at)
    with pytest.raises(HeadwayError, match="limit is 0: give at least 1"):
        RandomizedPositions(0)
