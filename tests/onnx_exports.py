"""Exports to ONNX, run in onnxruntime: what tests of it share, and a command that exports every encoding.

    python tests/onnx_exports.py [NAME …] [--write]

exports each encoding of the table (twenty minutes), prints the outcome, and with --write keeps those of all in
tests/golden/onnx.json. An outcome is "equal", or the operator of torch that ONNX does not have.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.coordinates import Coordinates
from headway.positions import ENCODINGS, PositionEncoding
from headway.testing.inputs import Layer, on_axes, randomized

GOLDEN = Path(__file__).parent / "golden" / "onnx.json"
WITHIN = 1e-5
"""The largest difference from the plain call, in units of its largest number."""
FAR = 10**6
"""A position at which float32 would not hold an angle to 1e-5."""
DYNAMIC = torch.export.Dim.DYNAMIC


@contextmanager
def quiet() -> Iterator[None]:
    """Torch and onnxscript warn of themselves."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class Exported:
    """A module as ONNX, in onnxruntime on a CPU.

    Args:
        module: a module that returns a tensor or a tuple of tensors, or an exported program of one.
        arguments: tensors to export it with.
        shapes: torch's ``dynamic_shapes``.
        options: further arguments of ``torch.onnx.export``.
    """

    def __init__(self, module: Any, arguments: Sequence[Tensor] = (), shapes: Any = None, **options: Any) -> None:
        import onnxruntime

        with quiet():
            made = torch.onnx.export(
                module, tuple(arguments), dynamo=True, dynamic_shapes=shapes, verbose=False, **options
            )
        self.operators = {(node.domain, node.op_type) for node in made.model.graph}
        self.file: bytes = made.model_proto.SerializeToString()
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self.file, settings)

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        given = {one.name: x.numpy() for one, x in zip(self._session.get_inputs(), arguments, strict=True)}
        return [torch.from_numpy(np.asarray(x)) for x in self._session.run(None, given)]


def difference(found: Tensor, right: Tensor) -> float:
    """The largest difference in units of the largest number; infinite for another shape or dtype, and with NaN."""
    if found.shape != right.shape or found.dtype != right.dtype or found.isnan().any() or right.isnan().any():
        return float("inf")
    return ((found - right).abs().max() / right.abs().max()).item()


def end_of(layer: Layer) -> int:
    """Positions that the layer's encoding takes are below it."""
    parts = list(layer.encoding.modules())
    ends = [part.limit for part in parts if hasattr(part, "limit")]
    ends += [10**part.max_digits for part in parts if hasattr(part, "max_digits")]
    return layer.sizes.max_length or min(ends, default=1 << 40)


class Layers(nn.Module):
    """A layer for each encoding, with random parameters, all of which read the first columns of one input."""

    def __init__(self, encodings: Mapping[str, PositionEncoding]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(
            Layer(randomized(copy.deepcopy(one), generator, torch.float32), generator, torch.float32)
            for one in encodings.values()
        )
        self.width = max(layer.sizes.embed_dim for layer in self.layers)
        self.ends = [end_of(layer) for layer in self.layers]

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        found = []
        for layer, end in zip(self.layers, self.ends, strict=True):
            at = Coordinates.of(positions % end, x.shape[1])
            found.append(layer(x[..., : layer.sizes.embed_dim], on_axes(at, layer.encoding.axes)))
        return tuple(found)

    def inputs(self, batch: int, n: int, start: int = 0) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, n, self.width), torch.arange(start, start + n)[None]


def differences(names: Sequence[str]) -> dict[str, float]:
    """Exports the first example of each encoding, all in one file, and compares outputs at several lengths and places.

    Returns:
        The largest difference for each name.
    """
    model = Layers({name: ENCODINGS[name].examples()[0] for name in names}).eval()
    exported = Exported(model, model.inputs(2, 6), ({0: DYNAMIC, 1: DYNAMIC}, {1: DYNAMIC}))
    assert {domain for domain, _ in exported.operators} == {""}
    worst = dict.fromkeys(names, 0.0)
    for inputs in (model.inputs(2, 6), model.inputs(1, 1), model.inputs(3, 19), model.inputs(1, 9, FAR)):
        with torch.no_grad():
            pairs = zip(names, exported(*inputs), model(*inputs), strict=True)
        for name, found, right in pairs:
            worst[name] = max(worst[name], difference(found, right))
    return worst


def outcome(name: str) -> str:
    """The outcome of one encoding."""
    try:
        worst = differences([name])[name]
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(error))
        return missing[1] if missing else f"{type(error).__name__}: {error!s:.200}"
    return "equal" if worst <= WITHIN else f"{worst:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ENCODINGS))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = {}
    for name in given.names:
        found[name] = outcome(name)
        print(f"{name}: {found[name]}", flush=True)
    if given.write:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
