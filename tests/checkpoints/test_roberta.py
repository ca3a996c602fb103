"""RoBERTa: where its table of positions begins, and what padding does to it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headway import Coordinates, HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.roberta import RoBERTa
from headway.masks import Padding
from headway.testing.checkpoints import CLOSE, distance, their_model

LENGTHS = torch.tensor([11, 6])
CONFIG = RoBERTa.examples[0]


@pytest.fixture(scope="module", params=RoBERTa.examples[:3], ids=lambda config: config["architectures"][0])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("roberta")
    theirs = their_model(request.param)
    theirs.save_pretrained(folder)
    return load(folder), theirs


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_ids_of_padding_stand_nowhere(both: tuple[Any, Any], side: str) -> None:
    ours, theirs = both
    at = Coordinates.padded(LENGTHS, 11, side=side)
    real = (at.index >= 0) & (at.index < LENGTHS[:, None])
    ids = torch.randint(5, 40, (2, 11)).masked_fill(~real, theirs.config.pad_token_id)
    found = ours(ids, positions=at, mask=Padding(None if side == "left" else LENGTHS))
    expected = theirs(ids, attention_mask=real.long())[0]
    assert distance(found[real], expected[real]) <= CLOSE


@torch.no_grad()
def test_the_table_is_shorter_by_the_rows_that_stand_for_no_token(both: tuple[Any, Any]) -> None:
    ours, theirs = both
    first = theirs.config.pad_token_id + 1
    ids = torch.randint(5, 40, (1, 66 - first))
    assert distance(ours(ids), theirs(ids)[0]) <= CLOSE
    with pytest.raises(HeadwayError, match=f"position {66 - first} .* lies beyond the learned table"):
        ours(torch.cat([ids, ids[:, :1]], dim=1))


@pytest.mark.parametrize(
    ("key", "value"),
    [("is_decoder", True), ("tie_word_embeddings", False), ("hidden_act", "relu"), ("position_embedding_type", "k")],
)
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        RoBERTa().build(Config({**CONFIG, key: value}), head=True)


def test_the_saved_file_has_all_rows_again(both: tuple[Any, Any], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from headway.checkpoints import save

    ours, theirs = both
    first = theirs.config.pad_token_id + 1
    save(ours, tmp_path)
    (table,) = (value for name, value in load_file(tmp_path / "model.safetensors").items() if "position" in name)
    assert table.shape == (66, 32)
    assert not table[:first].any()
    assert torch.equal(table[first:], ours.stack.encodings[0].table)
