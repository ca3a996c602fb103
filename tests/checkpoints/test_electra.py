"""ELECTRA: discriminators, which have a head that is left out, and what it cannot say."""

from pathlib import Path

import pytest
import torch

from headway import HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.electra import ELECTRA
from headway.testing.checkpoints import CLOSE, distance, their_model

CONFIG = ELECTRA.examples[0]


@torch.no_grad()
def test_a_discriminator_is_read_without_its_head(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "architectures": ["ElectraForPreTraining"]})
    theirs.save_pretrained(tmp_path)
    with pytest.raises(HeadwayError, match="no architecture 'ElectraForPreTraining'"):
        load(tmp_path)
    ids = torch.randint(5, 40, (2, 11))
    assert distance(load(tmp_path, architecture="ElectraModel")(ids), theirs.electra(ids)[0]) <= CLOSE


@pytest.mark.parametrize(
    ("key", "value"),
    [("is_decoder", True), ("tie_word_embeddings", False), ("position_embedding_type", "relative_key")],
)
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        ELECTRA().build(Config({**CONFIG, key: value}), head=True)
