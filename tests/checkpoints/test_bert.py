"""MiniLM as published: sentences that mean alike are alike."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headway
from headway import HeadwayError, masks
from headway.checkpoints import Config
from headway.checkpoints.bert import BERT


def test_minilm_compares_sentences(weights: Callable[[str], Path]) -> None:
    from weights import facts

    folder, known = weights("minilm"), facts("minilm")
    model, words = headway.load(folder), headway.checkpoints.tokenizer(folder)
    words.no_truncation()
    words.enable_padding(pad_id=0)
    ids = torch.tensor([found.ids for found in words.encode_batch(known["sentences"])])
    assert ids.tolist() == known["ids"]
    seen = torch.tensor(known["mask"])
    with torch.no_grad():
        hidden = model(ids, mask=masks.Padding(seen.sum(1)))
    torch.testing.assert_close(hidden[:, 0, :8], torch.tensor(known["hidden"]), atol=2e-5, rtol=0)
    mean = torch.nn.functional.normalize((hidden * seen[..., None]).sum(1), dim=-1)
    torch.testing.assert_close(mean @ mean.T, torch.tensor(known["similarity"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_what_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        BERT().build(Config({**BERT.examples[0], **values}), head=False)
