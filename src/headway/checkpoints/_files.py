"""The files of a checkpoint's folder: config and tensors, read without running anything that stands in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..extras import need
from ..files import atomic_write

CONFIG = "config.json"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
OLDER = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Names in files that were made of TensorFlow's, such as those of bert-base-uncased, and what all others have."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    check_folder(folder)
    return _json(folder / CONFIG)


def check_folder(folder: Path) -> None:
    """Raises where there is no such folder, as where it is the name of a model on the hub."""
    if not folder.is_dir():
        raise HeadwayError(
            f"{folder} is not a folder: give one with {CONFIG} and {TENSORS}, or a .gguf file; headway downloads "
            "nothing, 'hf download NAME --local-dir FOLDER' does"
        )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of the folder's safetensors files, which stay on disk until they are used, by today's names.

    Raises HeadwayError where there are none, where one of several is missing, and where a file is damaged.
    """
    if (folder / INDEX).is_file():
        files = _parts(folder / INDEX)
    elif (folder / TENSORS).is_file():
        files = [TENSORS]
    elif list(folder.glob("pytorch_model*.bin")):
        raise HeadwayError(
            f"{folder} holds {PICKLE} alone, a pickle, which can run code when it is read: "
            f"headway.checkpoints.unpickle(folder) reads its tensors alone and writes {TENSORS} beside it"
        )
    else:
        raise HeadwayError(f"{folder} has no {TENSORS}: give a folder with the model's weights")
    tensors: dict[str, Tensor] = {}
    for name in files:
        tensors.update(_safetensors(folder / name))
    return {_todays(name): tensor for name, tensor in tensors.items()}


def _parts(index: Path) -> list[str]:
    """The files that an index names."""
    named = _json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise HeadwayError(f"{index} has no weight_map from tensors to files: give a folder that is whole")
    for name in (found := sorted(set(named.values()))):
        if Path(name).name != name:
            raise HeadwayError(f"{index} names {name}, which lies elsewhere: give a folder that is whole")
    return found


def _todays(name: str) -> str:
    for old, new in OLDER:
        name = name.replace(old, new)
    return name


def unpickle(folder: str | Path) -> Path:
    """Writes ``model.safetensors`` beside the folder's ``pytorch_model*.bin``; tensors alone are read, code is not run.

    Raises HeadwayError for a folder without them, and for pickles that hold anything but tensors.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise HeadwayError(f"{folder} has no {PICKLE}: give the folder of a model")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            held = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise HeadwayError(
                f"{file} holds more than tensors, or is damaged: get the model as safetensors"
            ) from error
        # a copy of each: tensors that share memory cannot be written apart
        tensors.update({name: value.clone().contiguous() for name, value in held.items() if isinstance(value, Tensor)})
    out = folder / TENSORS
    with atomic_write(out) as part:
        save_file(tensors, part, metadata={"format": "pt"})
    return out


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Config and tensors into a folder, each file whole or not at all."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    with atomic_write(folder / TENSORS) as part:
        save_file(own, part, metadata={"format": "pt"})
    with atomic_write(folder / CONFIG) as part:
        part.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HeadwayError(f"{path.parent} has no {path.name}: give the folder of a model as Hugging Face keeps it")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HeadwayError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise HeadwayError(f"{path} holds a {type(found).__name__}: it should be an object with the model's sizes")
    return found


def _safetensors(path: Path) -> dict[str, Tensor]:
    library = need("safetensors", "reading checkpoints", "checkpoints")
    if not path.is_file():
        raise HeadwayError(f"{path} is missing: the index names it, give a folder that is whole")
    try:
        with library.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (library.SafetensorError, OSError) as error:
        raise HeadwayError(f"{path} is damaged ({error}): get it again") from error
