"""The text encoder of VITS: vectors only for near distances, convolutions that see no padding, and a real voice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headway import attention
from headway.checkpoints import load
from headway.checkpoints.vits import SMALL, Near
from headway.masks import Boolean, Padding, Window
from headway.testing import ENCODING_CHECKS
from headway.testing.checkpoints import CLOSE, distance, their_model

pytest.importorskip("transformers")


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    their_model(SMALL).save_pretrained(tmp_path)
    return load(tmp_path)


@pytest.mark.parametrize("check", ["matches_its_formula", "decoding_equals_a_full_pass", "padded_equals_unpadded"])
def test_the_encoding_is_its_formula(check: str) -> None:
    ENCODING_CHECKS[check](Near(8, max_distance=2))


def test_a_distance_beyond_the_window_adds_nothing() -> None:
    q, k, v = torch.randn(3, 1, 4, 9, 8).unbind()
    far = {"q_positions": torch.arange(9), "k_positions": torch.arange(11, 20)}
    near = {"q_positions": torch.arange(9), "k_positions": torch.arange(10, 19)}
    plain, encoding = attention(q, k, v), Near(8, max_distance=2)
    torch.testing.assert_close(attention(q, k, v, encoding=encoding, **far), plain)
    assert distance(attention(q, k, v, encoding=encoding, **near), plain) > CLOSE


@torch.no_grad()
def test_padding_is_what_nobody_may_see_however_the_mask_says_it(ours: Any) -> None:
    ids = torch.randint(5, 40, (2, 11))
    expected = ours(ids, mask=Padding([11, 7]))
    seen = (torch.arange(11) < torch.tensor([[11], [7]]))[:, None, None, :]
    for mask in (seen, Boolean(seen.expand(2, 4, 11, 11)), Padding([11, 7]) & Boolean(torch.ones(11, 11).bool())):
        torch.testing.assert_close(ours(ids, mask=mask), expected)
    torch.testing.assert_close(expected[1, :7], ours(ids[1:, :7])[0])
    assert distance(expected[1, :7], ours(ids)[1, :7]) > 100 * CLOSE


@torch.no_grad()
def test_what_somebody_sees_is_no_padding(ours: Any) -> None:
    seen = []
    ours.stack.blocks[1].feed_forward.register_forward_pre_hook(
        lambda _module, _inputs, given: seen.append(given["real"]), with_kwargs=True
    )
    ours(torch.randint(5, 40, (2, 11)), mask=Window(2, 2) & Padding([11, 7]))
    assert seen[0].squeeze(-1).sum(1).tolist() == [11, 7]


@torch.no_grad()
def test_a_real_voice_reads_phonemes_as_it_does_in_transformers(weights: Callable[[str], Path]) -> None:
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsTextEncoder

    from weights import facts

    folder, known = weights("piper"), facts("piper")
    ours = load(folder)
    ids = torch.tensor([known["ids"]])
    means, log_variances = ours(ids)[0, known["tokens"]].chunk(2, dim=-1)
    close = {"rtol": 0, "atol": 2e-6}  # as many digits as are kept there
    torch.testing.assert_close(ours.hidden(ids)[0, known["tokens"], :8], torch.tensor(known["hidden"]), **close)
    torch.testing.assert_close(means[:, :8], torch.tensor(known["means"]), **close)
    torch.testing.assert_close(log_variances[:, :8], torch.tensor(known["log_variances"]), **close)

    theirs = VitsTextEncoder(VitsConfig.from_pretrained(folder)).eval()
    tensors = load_file(folder / "model.safetensors")
    theirs.load_state_dict({name.removeprefix("text_encoder."): value for name, value in tensors.items()})
    ids = torch.randint(1, 100, (1, 300))
    out = theirs(ids, padding_mask=torch.ones(1, 300, 1))
    assert distance(ours.hidden(ids), out.last_hidden_state) <= CLOSE
    assert distance(ours(ids), torch.cat([out.prior_means, out.prior_log_variances], -1)) <= CLOSE
