"""MPNet: positions of two kinds, distances beyond the near buckets, and the published sentence encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import Coordinates, HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.mpnet import MPNet
from headway.masks import Padding
from headway.testing.checkpoints import CLOSE, distance, their_model


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("mpnet")
    theirs = their_model({**MPNet.examples[0], "max_position_embeddings": 302, "num_hidden_layers": 1})
    with torch.no_grad():  # so that each bucket shows
        theirs.mpnet.encoder.relative_attention_bias.weight.normal_(std=3)
    theirs.save_pretrained(folder)
    return load(folder), theirs


@torch.no_grad()
def test_far_distances_have_the_same_buckets(both: tuple[Any, Any]) -> None:
    ours, theirs = both
    ids = torch.randint(5, 40, (1, 300))
    assert distance(ours(ids), theirs(ids).logits) <= CLOSE


@torch.no_grad()
def test_padding_in_front_moves_neither_positions_nor_distances(both: tuple[Any, Any]) -> None:
    ours, theirs = both
    at = Coordinates.padded([11, 6], 11)
    real = at.index >= 0
    ids = torch.randint(5, 40, (2, 11)).masked_fill(~real, 1)
    expected = theirs(ids, attention_mask=real.long()).logits
    assert distance(ours(ids, positions=at, mask=Padding())[real], expected[real]) <= CLOSE


@pytest.mark.parametrize(("key", "value"), [("relative_attention_num_buckets", 16), ("tie_word_embeddings", False)])
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        MPNet().build(Config({**MPNet.examples[0], key: value}), head=True)


@torch.no_grad()
def test_the_published_model_embeds_sentences(weights: Callable[[str], Path]) -> None:
    from weights import facts

    folder, known = weights("mpnet"), facts("mpnet")
    with pytest.raises(HeadwayError, match=r"has no head \(lm_head\.dense\.weight, .*architecture='MPNetModel'"):
        load(folder)  # its config promises a head that the file lacks
    model = load(folder, architecture="MPNetModel")
    seen = torch.tensor(known["mask"])
    hidden = model(torch.tensor(known["ids"]), mask=Padding(seen.sum(1)))
    pooled = torch.nn.functional.normalize((hidden * seen[..., None]).sum(1), dim=-1)
    close = {"rtol": 0, "atol": 2e-6}
    torch.testing.assert_close(hidden[:, 0, :8], torch.tensor(known["hidden"]), **close)
    torch.testing.assert_close(pooled[:, :8], torch.tensor(known["embeddings"]), **close)
    torch.testing.assert_close(pooled @ pooled.T, torch.tensor(known["similarity"]), **close)
