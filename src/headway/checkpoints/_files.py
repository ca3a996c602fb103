"""The files of a checkpoint's folder, config and tensors, which are read without running code from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._common.extras import need
from .._common.files import from_json, make_folder, write_tensors, write_text
from .._common.text_files import read_text
from ..errors import HeadwayError
from ._rules import renamed, unwrapped_name

CONFIG = "config.json"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE, PARTS, CHECKPOINTS = "pytorch_model.bin", "pytorch_model*.bin", ("*.ckpt", "*.pt", "*.pth")
MOST_SHARED = 16
"""How many times its file the tensors of a pickle may be: some share their memory, and 10⁹ numbers may be one."""
OLDER = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Names in files that were converted from TensorFlow, such as those of bert-base-uncased, and the current names."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    check_folder(folder)
    return _json(folder / CONFIG)


def check_folder(folder: Path) -> None:
    """Raises HeadwayError if the folder does not exist."""
    if not os.path.isdir(folder):  # False for an impossible name too, for which Path.is_dir raises
        raise HeadwayError(
            f"{folder} is not a folder: give one with {CONFIG} and {TENSORS}, a .gguf file, or an id on the Hugging "
            "Face hub, owner/name"
        )


def has_weights(folder: Path) -> bool:
    """Whether a folder has a config and all its safetensors files."""
    if not (folder / CONFIG).is_file():
        return False
    if (folder / INDEX).is_file():
        return all((folder / name).is_file() for name in _parts(folder / INDEX))
    return (folder / TENSORS).is_file()


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of the folder's safetensors files under their current names; they stay on disk until used.

    Raises HeadwayError if there are no such files, one of several is missing, or a file is damaged.
    """
    if (folder / INDEX).is_file():
        files = _parts(folder / INDEX)
    elif (folder / TENSORS).is_file():
        files = [TENSORS]
    elif pickles := _pickles(folder):
        raise HeadwayError(
            f"{folder} has only {pickles[0].name}, a pickle, which can run code when it is read: "
            f"headway.checkpoints.unpickle(folder) reads only its tensors and writes {TENSORS} beside it"
        )
    else:
        raise HeadwayError(f"{folder} has no {TENSORS}: give a folder with the model's weights")
    tensors: dict[str, Tensor] = {}
    for name in files:
        tensors.update(_safetensors(folder / name))
    return renamed(tensors, _todays)


def _parts(index: Path) -> list[str]:
    """The names of the files in an index."""
    named = _json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise HeadwayError(f"{index} has no weight_map from tensors to files: give a complete folder")
    for name in (files := sorted(set(named.values()))):
        if Path(name).name != name:
            raise HeadwayError(f"{index} names {name}, which is not in the folder: give a complete folder")
    return files


def _todays(name: str) -> str:
    name = unwrapped_name(name)
    for old, new in OLDER:
        name = name.replace(old, new)
    return name


def unpickle(folder: str | Path) -> Path:
    """Converts the ``pytorch_model*.bin`` of a folder, or a training checkpoint in it, to ``model.safetensors``.

    Only tensors are read; no code of the pickles is run. A checkpoint is a file ``*.ckpt``, ``*.pt`` or ``*.pth`` with
    a state dict, by itself or under a name such as "state_dict" (PyTorch Lightning).

    Args:
        folder: the folder of a model.

    Returns:
        The path of the new file.

    Raises:
        HeadwayError: if the folder has no such file, or several checkpoints, or a file holds anything but tensors or
            the tensors of several models.
    """
    folder = Path(folder)
    files = _pickles(folder)
    if not files:
        raise HeadwayError(f"{folder} has no {PICKLE}: give the folder of a model")
    if len(files) > 1 and not files[0].match(PARTS):
        names = ", ".join(file.name for file in files)
        raise HeadwayError(f"{folder} has {len(files)} checkpoints, {names}: leave the one of the model in it")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            held = torch.load(file, map_location="cpu", weights_only=True)
            state = {str(name): value for name, value in _state(file, held).items() if isinstance(value, Tensor)}
            if sum(value.numel() * value.element_size() for value in state.values()) > MOST_SHARED * os.path.getsize(
                file
            ):
                raise ValueError("its tensors repeat what is in the file")
            # copies, since safetensors refuses tensors that share memory
            tensors.update({name: value.clone().contiguous() for name, value in state.items()})
        except HeadwayError:
            raise
        except Exception as error:
            raise HeadwayError(
                f"{file} holds more than tensors, or is damaged: get the model as safetensors"
            ) from error
    out = folder / TENSORS
    try:
        write_tensors(out, tensors, {"format": "pt"})
    except HeadwayError:
        raise
    except (KeyError, ValueError) as error:  # for example a dtype without a name in safetensors
        raise HeadwayError(f"{folder} cannot be written as safetensors ({error}): get the model as such") from error
    return out


def _pickles(folder: Path) -> list[Path]:
    return sorted(folder.glob(PARTS)) or sorted(file for pattern in CHECKPOINTS for file in folder.glob(pattern))


def _state(file: Path, held: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The state dict of a pickle: the whole, or the one part of it that is a state dict."""
    parts = {
        str(name): part
        for name, part in held.items()
        if isinstance(part, Mapping) and any(isinstance(value, Tensor) for value in part.values())
    }
    if len(parts) > 1:
        raise HeadwayError(f"{file} has the tensors of several models, {', '.join(parts)}: save the one to be read")
    state = next(iter(parts.values()), held)
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise HeadwayError(f"{file} has no tensors: give a file with the state_dict of a model")
    return state


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes config and tensors to a folder, each file completely or not at all."""
    make_folder(folder)
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    write_tensors(folder / TENSORS, own, {"format": "pt"})
    write_text(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _text(path: Path) -> str:
    return read_text(path, zeros=True).replace("\r\n", "\n")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HeadwayError(f"{path.parent} has no {path.name}: give the folder of a model as Hugging Face keeps it")
    text = _text(path)
    try:
        values = from_json(text)
    except ValueError as error:
        raise HeadwayError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise HeadwayError(f"{path} holds a {type(values).__name__}: give an object with the model's sizes")
    return values


def _safetensors(path: Path) -> dict[str, Tensor]:
    library = need("safetensors", "reading checkpoints", "checkpoints")
    if not os.path.isfile(path):  # False for an impossible name too, for which Path.is_file raises
        raise HeadwayError(f"{path} is missing, and the index names it: give a complete folder")
    try:
        with library.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (library.SafetensorError, OSError) as error:
        raise HeadwayError(f"{path} is damaged ({error}): download it again") from error
