"""Transformer-XL, which transformers has no more: its last version's numbers, which golden/transfo_xl.py made."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from headway import Coordinates
from headway.checkpoints import load, save
from headway.checkpoints.transfo_xl import SMALL, Clamped, TransfoXL
from headway.errors import HeadwayError
from headway.nn import SegmentMemory
from headway.testing import ENCODING_CHECKS
from headway.testing.checkpoints import CLOSE, distance

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS = 4
CASES = list(TransfoXL.architectures)


@pytest.fixture
def known(architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "transfo_xl.json").read_text(encoding="utf-8"))[architecture]
    return found


@pytest.fixture
def folder(known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model as a published file has it: with tied tensors twice and frequencies."""
    monkeypatch.syspath_prepend(GOLDEN)
    from transfo_xl import drawn

    tensors = drawn(known["shapes"])
    prefix = "transformer." if "crit.out_projs.0" in tensors else ""
    tensors[prefix + "pos_emb.inv_freq"] = 10000.0 ** -(torch.arange(0, 32, 2) / 32)
    if prefix:
        for number in range(4):
            weight = tensors[f"transformer.word_emb.emb_layers.{number}.weight"]
            tensors[f"crit.out_layers.{number}.weight"] = weight.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(known["config"]), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("architecture", CASES)
@torch.no_grad()
def test_segments_behind_one_another_are_those_of_transformers(folder: Path, known: dict[str, Any]) -> None:
    ours, memory = load(folder), SegmentMemory(known["config"]["mem_len"])
    ids, states, outputs = torch.tensor(known["ids"]), [], []
    for block in ours.stack.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    for segment in ids.split(TOKENS, dim=1):
        outputs.append(ours(segment, memory=memory))
    assert distance(torch.cat(outputs, dim=1).flatten(0, 1), torch.tensor(known["outputs"])) <= CLOSE
    layers = [torch.cat(states[layer::2], dim=1).flatten(0, 1) for layer in range(2)]
    assert distance(torch.cat(layers), torch.tensor(known["hidden_states"])) <= CLOSE


@pytest.mark.parametrize("architecture", CASES)
@torch.no_grad()
def test_a_memory_of_zeros_is_how_transformers_begins(folder: Path, known: dict[str, Any]) -> None:
    ours, size = load(folder), known["config"]["mem_len"]
    memory, ids = SegmentMemory(size), torch.tensor(known["ids"])[:, :TOKENS]
    memory.store([torch.zeros(len(ids), size, 32) for _ in ours.stack.layers], Coordinates.span(size))
    expected = torch.tensor(known["from_zeros"])
    assert distance(ours(ids, memory=memory).flatten(0, 1), expected) <= CLOSE
    assert distance(ours(ids).flatten(0, 1), expected) > 100 * CLOSE


@pytest.mark.parametrize("architecture", CASES)
def test_what_is_saved_is_read_again(folder: Path, tmp_path: Path) -> None:
    ours = load(folder)
    save(ours, tmp_path / "again")
    again = load(tmp_path / "again")
    for name, value in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("architecture", CASES[1:])
@torch.no_grad()
def test_what_comes_out_are_logarithms_of_probabilities(folder: Path) -> None:
    total: Tensor = load(folder)(torch.arange(40)[None]).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(1, 40))


@pytest.mark.parametrize("check", ["matches_its_formula", "padded_equals_unpadded", "decoding_equals_a_full_pass"])
def test_the_encoding_is_its_formula(check: str) -> None:
    ENCODING_CHECKS[check](Clamped(32, 4, 8, reach=3))


@pytest.mark.parametrize("architecture", CASES[1:])
def test_ids_that_are_none_are_refused(folder: Path) -> None:
    with pytest.raises(HeadwayError, match="ids go from 40 to 40: give those from 0 to 39"):
        load(folder)(torch.full((1, 3), 40))


@pytest.mark.parametrize(
    ("key", "value"), [("untie_r", False), ("attn_type", 1), ("proj_share_all_but_first", False), ("div_val", 1)]
)
def test_what_cannot_be_said_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "architectures": ["TransfoXLModel"], key: value}))
    with pytest.raises(HeadwayError, match=f"the config's {key} is {value}"):
        load(tmp_path)
