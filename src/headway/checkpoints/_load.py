"""Loading a model from a folder or a GGUF file, and saving it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._common.devices import device_named
from ..errors import HeadwayError, right_call, unknown
from ..models.transformer import Transformer
from ..nn.prepacked import is_prepacked
from ._base import Config, Family
from ._files import has_weights, read_config, read_tensors, write
from ._hub import local_path
from ._left_out import HEADS, Loaded, check
from ._rules import Entry, entries, is_sharded, named_tensors, outer_name, put, read, renamed, unwrapped, written
from ._table import ARCHITECTURES


@dataclass(frozen=True)
class Checkpoint:
    """The origin of a loaded model.

    Attributes:
        architecture: the name of the architecture, one of ``headway.checkpoints.ARCHITECTURES``.
        config: the config as it is in the file.
    """

    architecture: str
    config: Mapping[str, Any]


@right_call("load('SmolLM2-135M')", torch_dtype="give dtype=", device_map="give device=", model="give it as the path")
def load(
    path: str | Path,
    *,
    architecture: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Loads a published model as a model of headway.

        model = headway.load("SmolLM2-135M")                     # a folder, or a .gguf file
        model = headway.load("HuggingFaceTB/SmolLM2-135M")       # a model on the Hugging Face hub
        logits = model(ids)                                      # ids int64 [batch, n] → [batch, n, vocab_size]

    The model maps token ids, or ids and decoder ids, to logits if the checkpoint has a head, else to hidden states. It
    is in eval mode.

    Args:
        path: a folder with config.json and model.safetensors; a .gguf file, or a folder with one; or a string with an
            id on the Hugging Face hub, ``owner/name``, ``owner/name@revision``, or for a GGUF file
            ``owner/name:Q4_K_M`` or ``owner/name/file.gguf``. Files of an id are taken from the cache of
            ``huggingface_hub`` if they are there.
        architecture: one of ``headway.checkpoints.ARCHITECTURES``; the config's own if None. "BertModel" for a
            checkpoint of masked tokens leaves out its head.
        dtype: the dtype of the parameters; the config's, or that of the file, if None.
        device: the device of the parameters, or "auto" for CUDA if there is a GPU, else the CPU.

    Returns:
        The model, with the parameters of the file.

    Raises:
        HeadwayError: if there is no such folder, file, id or device, or its files cannot be downloaded; if the folder
            has no config or no weights, the architecture is unknown or not named, the config needs something that
            headway does not have, the weights are a pickle, a file is damaged, or tensors are missing, unexpected or of
            another shape. The message names all such tensors, and no model is made.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise HeadwayError(f"dtype is {dtype!r}: give a floating-point dtype, such as torch.{_meant(dtype)}")
    device = device_named(str(device))
    path = local_path(path, has_weights)
    if path.suffix.lower() == ".gguf":
        from ._gguf import read_gguf

        values, tensors = read_gguf(path)
    else:
        values, tensors = read_config(path), None
    family, name = _family(values, architecture)
    config, head = family.config({**values, "architectures": [name]}), family.architectures[name]
    model = _built(family, config, head)
    tensors = read_tensors(path) if tensors is None else tensors
    ignored = dict(family.ignored)
    if not head:  # the file may have a head, which is not read
        ignored |= {f"{rule.theirs}*": HEADS for rule in family.head(config)}
    own = named_tensors(model)
    wanted, tensors = _matched(family, name, config, own, tensors)
    if head:
        _check_head(family, name, config, wanted, tensors)
    ours, left_out = read(wanted, own, tensors, tuple(ignored))
    check(ignored, left_out, Loaded(model, head, ours))
    dtype = dtype or _dtype(config, tensors)
    put(model, {key: _ready(value, dtype, device) for key, value in ours.items()})
    left = [key for key, value in named_tensors(model).items() if value.is_meta]
    assert not left, f"never filled: {left}"
    assert isinstance(model, Transformer)
    model.checkpoint = Checkpoint(name, {**values, "architectures": [name]})
    return model.eval()


def save(model: nn.Module, path: str | Path) -> None:
    """Writes a loaded model in its current state to a folder that ``load`` and Hugging Face transformers read.

    Each file is written completely or not at all.

    Args:
        model: a model that ``load`` returned, also compiled by torch.compile or wrapped in DistributedDataParallel.
        path: the folder; it is created if needed.

    Raises:
        HeadwayError: if the model was not made by ``load``, so that its config is unknown, or if it is prepacked or
            sharded, by FSDP or by heads.
    """
    if is_sharded(model):
        raise HeadwayError(
            "the model is sharded: gather its tensors with torch.distributed.checkpoint.state_dict."
            "get_model_state_dict and StateDictOptions(full_state_dict=True), load them into a model of headway.load, "
            "and save that"
        )
    model = unwrapped(model)
    checkpoint = getattr(model, "checkpoint", None)
    if not isinstance(checkpoint, Checkpoint):
        raise HeadwayError(
            f"the model is a {type(model).__name__} that headway.load did not make, so its config is not known: save "
            "its state_dict with safetensors instead"
        )
    if is_prepacked(model):
        raise HeadwayError(
            "the model is prepacked, so its weights have no names: call headway.nn.unprepack(model) first"
        )
    family, name = _family(checkpoint.config, checkpoint.architecture)
    config, head = family.config(checkpoint.config), family.architectures[name]
    tensors = written(family.rules(config, head=head, prefix=head), model)
    dtype = next(value.dtype for value in tensors.values() if value.is_floating_point())
    said = {key: value for key, value in checkpoint.config.items() if key != "torch_dtype"}
    write(Path(path), {**said, "dtype": str(dtype).removeprefix("torch.")}, tensors)


def _meant(dtype: object) -> str:
    """The name of the dtype of torch that a text such as "bf16" means."""
    short = {"fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64"}
    name = short.get(str(dtype), str(dtype))
    return name if name in ("float16", "float32", "float64") else "bfloat16"


class _Unfilled(TorchFunctionMode):
    """Skips torch.nn.init, which on the meta device would make torch import its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given.get("tensor", args[0] if args else None)
        return func(*args, **given)


def _built(family: Family, config: Config, head: bool) -> nn.Module:
    """The family's model of a config, on the meta device."""
    try:
        with torch.device("meta"), _Unfilled():
            return family.build(config, head=head)
    except HeadwayError:
        raise
    except Exception as error:  # a wrong config can raise anything, for example a list in place of a number
        said = " ".join(str(error).split())
        raise HeadwayError(
            f"no model can be built from the config ({type(error).__name__}: {said}): give the config.json that "
            "belongs to the weights"
        ) from error


def _family(values: Mapping[str, Any], architecture: str | None) -> tuple[Family, str]:
    named = values.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise HeadwayError(f"the config's architectures are {named!r}: give a list of names")
    if architecture is None and not named:
        raise HeadwayError("the config names no architectures: give architecture=, one of docs/models.md")
    name = architecture or named[0]
    if name not in ARCHITECTURES:
        raise HeadwayError(
            f"{unknown('architecture', name, ARCHITECTURES, see='docs/models.md')}; any other model of transformers "
            "runs with attn_implementation='headway', see headway.integrations.transformers"
        )
    return ARCHITECTURES[name](), name


def _matched(
    family: Family, name: str, config: Config, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> tuple[list[Entry], dict[str, Tensor]]:
    """The wanted tensors, and the tensors of the file under the wanted names.

    Tensors of the body may have the family's prefix or not. All may have the name of a module that held the model, such
    as "model." in PyTorch Lightning. The choice with the most matching names wins.
    """
    head = family.architectures[name]
    options = [entries(family.rules(config, head=head, prefix=prefix), own) for prefix in (True, False)]
    fits = [(*outer_name(wanted, tensors), wanted) for wanted in options]
    there, before, wanted = max(fits, key=lambda one: (one[0], -len(one[1])))
    if not there:
        sharded = any(key.endswith("_flat_param") for key in tensors)
        raise HeadwayError(
            f"the file has no tensor of a {name}, which has {wanted[0].theirs}: it has "
            f"{', '.join([*tensors][:3]) or 'none'}: "
            f"{'save the full state dict, which FSDP gathers' if sharded else 'give the files of one model'}"
        )
    return wanted, renamed(tensors, lambda key: key.removeprefix(before))


def _check_head(
    family: Family, name: str, config: Config, wanted: Sequence[Entry], tensors: Mapping[str, Tensor]
) -> None:
    """Raises HeadwayError if the config names a head and the file has no tensor of it, as for sentence encoders."""
    of_head = tuple(rule.theirs for rule in family.head(config))
    names = [entry.theirs for entry in wanted if entry.theirs.startswith(of_head)]
    bare = [one for one, head in family.architectures.items() if not head]
    if names and bare and not any(one in tensors for one in names):
        (own,) = get_close_matches(name, bare, n=1, cutoff=0)
        raise HeadwayError(
            f"the file has no head ({', '.join(names)}), though the config says {name}: give architecture={own!r} for "
            "hidden states"
        )


def _dtype(config: Config, tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The config's dtype, or that of most numbers in the file."""
    named = getattr(torch, str(config.get("dtype", config.get("torch_dtype", ""))).removeprefix("torch."), None)
    if isinstance(named, torch.dtype) and named.is_floating_point:
        return named
    counts: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        if tensor.is_floating_point():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)


def _ready(value: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype).contiguous()
