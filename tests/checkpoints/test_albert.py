"""ALBERT: layers that share their parameters, and the published model of chemical reactions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.albert import ALBERT
from headway.testing.checkpoints import CLOSE, compare, distance, their_model

CONFIG = ALBERT.examples[0]


def test_layers_share_one_block() -> None:
    model: Any = ALBERT().build(Config({**CONFIG, "num_hidden_layers": 12}), head=False)
    assert (len(model.stack.layers), len(model.stack.blocks)) == (12, 1)


def test_layers_of_uneven_groups_are_rounded_as_in_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "num_hidden_layers": 18, "num_hidden_groups": 14})
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.stack._block_of_layer[9] != 9 * 14 // 18  # which is what is rounded
    compare(model, theirs)


@torch.no_grad()
def test_types_of_tokens_are_as_wide_as_the_embeddings(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model(CONFIG)
    theirs.save_pretrained(tmp_path)
    ids, types = torch.randint(5, 40, (2, 11)), torch.randint(0, 2, (2, 11))
    assert distance(load(tmp_path)(ids, types=types), theirs(ids, token_type_ids=types).logits) <= CLOSE


@pytest.mark.parametrize(
    ("key", "value"), [("position_embedding_type", "relative_key"), ("tie_word_embeddings", False)]
)
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        ALBERT().build(Config({**CONFIG, key: value}), head=True)


@torch.no_grad()
def test_the_published_model_reads_reactions(weights: Callable[[str], Path]) -> None:
    from weights import facts

    model = load(weights("rxnmapper"))
    close = {"rtol": 0, "atol": 2e-5}
    for known in facts("rxnmapper")["reactions"].values():
        logits = model(torch.tensor([known["ids"]]))
        torch.testing.assert_close(logits[0, known["atoms"][-1], :8], torch.tensor(known["logits"]), **close)
        assert logits.square().mean().item() == pytest.approx(known["mean_square"], rel=1e-6)
        guessed = model(torch.tensor([known["masked"]["ids"]]))[0, known["atoms"][-1]].topk(5)
        assert guessed.indices.tolist() == known["masked"]["top"]
        torch.testing.assert_close(guessed.values, torch.tensor(known["masked"]["logits"]), **close)


@torch.no_grad()
def test_the_published_model_is_that_of_transformers(weights: Callable[[str], Path]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, exact = weights("rxnmapper"), torch.float64  # in float32, transformers errs by 1.6e-5 on such ids
    ids = torch.randint(15, 591, (2, 512))
    expected = transformers.AlbertForMaskedLM.from_pretrained(folder, dtype=exact)(ids).logits
    assert distance(load(folder, dtype=exact)(ids), expected) <= 1e-12
