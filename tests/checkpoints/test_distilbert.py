"""DistilBERT: its size as published, and what it cannot say."""

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints import Config
from headway.checkpoints.distilbert import DistilBERT


def test_it_is_as_large_as_published() -> None:
    sizes = {"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
    with torch.device("meta"):
        model = DistilBERT().build(Config({**sizes, "max_position_embeddings": 512}), head=False)
    assert model.num_parameters == 66_362_880


def test_a_head_of_its_own_is_refused() -> None:
    with pytest.raises(HeadwayError, match="config's tie_word_embeddings is False"):
        DistilBERT().build(Config({**DistilBERT.examples[0], "tie_word_embeddings": False}), head=True)
