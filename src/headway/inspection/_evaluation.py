"""Forward passes without side effects on gradients, random numbers and the modes of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadwayError

IDS = ("ids", "input_ids")
"""The names of token ids in a model's arguments."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a model in eval mode without gradients, and leaves modes, gradients and random numbers as they were."""
    modes = {module: module.training for module in model.modules()}
    devices = {x.device for x in model.parameters() if x.device.type == "cuda"}
    with torch.random.fork_rng(sorted(device.index for device in devices)), torch.no_grad():
        try:
            if any(modes.values()):
                model.eval()
            yield
        finally:
            if any(modes.values()):
                model.train()
                for module, mode in modes.items():
                    module.training = mode


def called(model: nn.Module, inputs: Any) -> Any:
    """The output of a model for a tensor, a tuple of arguments or a mapping of named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def ids_in(inputs: Any) -> Tensor | None:
    """The token ids [rows, tokens] that a model is given; None if there are none."""
    if isinstance(inputs, Mapping):
        ids = next((inputs[name] for name in IDS if inputs.get(name) is not None), None)
    else:
        ids = inputs[0] if isinstance(inputs, (tuple, list)) and inputs else inputs
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2:
        return None
    return ids


def checked_inputs(inputs: Any, name: str) -> Any:
    """Inputs that ``called`` takes. Raises HeadwayError for others."""
    if not isinstance(inputs, (Tensor, Mapping, tuple, list)) or (not isinstance(inputs, Tensor) and not inputs):
        raise HeadwayError(
            f"{name} is {type(inputs).__name__}: give the model's inputs, a tensor such as ids [rows, tokens], a tuple "
            "of arguments, or a dictionary of named ones"
        )
    return inputs
