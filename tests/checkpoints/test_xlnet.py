"""XLNet: types of tokens as a third product in every layer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.checkpoints import load
from headway.checkpoints.xlnet import SMALL, Segmented
from headway.errors import HeadwayError
from headway.masks import Padding
from headway.testing import ENCODING_CHECKS
from headway.testing.checkpoints import CLOSE, distance, their_model

pytest.importorskip("transformers")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Any]:
    """Theirs and ours."""
    theirs = their_model({**SMALL, "architectures": ["XLNetModel"]})
    theirs.save_pretrained(tmp_path)
    return theirs, load(tmp_path)


@pytest.mark.parametrize("check", ["matches_its_formula", "padded_equals_unpadded"])
def test_the_encoding_is_its_formula(check: str) -> None:
    ENCODING_CHECKS[check](Segmented(32, 4, 8))


@torch.no_grad()
def test_types_of_tokens_are_read_in_every_layer(pair: tuple[Any, Any]) -> None:
    theirs, ours = pair
    ids, types = torch.randint(5, 40, (2, 11)), torch.randint(5, (2, 11))
    assert distance(ours(ids, types=types), theirs(ids, token_type_ids=types)[0]) <= CLOSE
    seen = (torch.arange(11) < torch.tensor([[11], [7]])).long()
    padded = theirs(ids, token_type_ids=types, attention_mask=seen)[0]
    assert distance(ours(ids, types=types, mask=Padding([11, 7]))[1, :7], padded[1, :7]) <= CLOSE


@torch.no_grad()
def test_one_segment_is_as_none(pair: tuple[Any, Any]) -> None:
    ids, types = torch.randint(5, 40, (2, 11)), torch.full((2, 11), 3)
    torch.testing.assert_close(pair[1](ids, types=types), pair[1](ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("types", "said"),
    [(torch.full((1, 11), 5), "from 5 to 5"), (torch.zeros(11).long(), r"\[11\]"), (torch.zeros(1, 11), "float32")],
)
def test_types_that_are_none_are_refused(pair: tuple[Any, Any], types: torch.Tensor, said: str) -> None:
    with pytest.raises(HeadwayError, match=f"types .*{said}"):
        pair[1](torch.full((1, 11), 5), types=types)


@pytest.mark.parametrize(("key", "value"), [("attn_type", "uni"), ("clamp_len", 400), ("bi_data", True)])
def test_what_cannot_be_said_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "architectures": ["XLNetModel"], key: value}))
    with pytest.raises(HeadwayError, match=f"the config's {key} is {value!r}"):
        load(tmp_path)
