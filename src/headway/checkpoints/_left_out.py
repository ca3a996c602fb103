"""What a file holds besides a model's own tensors, and what each has to be for nothing to be lost without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..positions import Sinusoidal
from ..positions._base import rates
from ..positions._rotary import Rotary

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loaded:
    """The model that a file is read into."""

    model: nn.Module
    head: bool
    found: Mapping[str, Tensor]
    """Our tensors, as the file has them."""


class LeftOut:
    """A tensor that headway does not read, since it computes the same or has the same from another tensor."""

    what = ""
    """What it has to be."""

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        """Whether it is that."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unused(LeftOut):
    """Of a part whose outputs headway's model does not give; it may be anything."""

    why: str

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return True


HEADS = Unused("of a head that the model has not")
POOLER = Unused("hidden states are given before it")


@dataclass(frozen=True)
class Copy(LeftOut):
    """A copy of one of our tensors. That of a head may be anything where the model has no head.

    of     its name, or a pattern: a copy of any of them
    """

    of: str = "embedding.weight"
    head: bool = True
    what = "a copy of another tensor, to which the config ties it"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        if self.head and not loaded.head:
            return True
        others = [other for name, other in loaded.found.items() if fnmatch(name, self.of)]
        return any(torch.equal(tensor, other.to(tensor.dtype)) for other in others)


class Counted(LeftOut):
    """The numbers 0, 1, 2, … of positions."""

    what = "the numbers 0, 1, 2, …"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return tensor.ndim > 0 and bool((tensor == torch.arange(tensor.shape[-1])).all())


class Triangle(LeftOut):
    """Which tokens a causal mask allows, [1, 1, n, n]."""

    what = "a causal mask"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return tensor.ndim >= 2 and bool((tensor == torch.ones(tensor.shape[-2:]).tril()).all())


class Lowest(LeftOut):
    """The score of what a mask forbids."""

    what = "a number of −10,000 or less"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return bool((tensor.double() <= -1e4 * (1 - 1e-2)).all())  # rounded to bfloat16


@dataclass(frozen=True)
class Frequencies(LeftOut):
    """The frequencies of a model's rotations, or what they are before a scaling changes them; [pairs].

    sinusoids   those of Transformer-XL's distances instead, 10000^(−2c/width)
    """

    sinusoids: bool = False
    what = "the frequencies that the config says"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        if self.sinusoids:
            width = 2 * tensor.numel()
            return _near(tensor, rates(tensor.numel(), width, 10000.0, CPU), 0)
        return any(_near(tensor, one, 0) for one in _frequencies(loaded.model))


class Turns(LeftOut):
    """The sines and cosines of a model's rotations, [n, 2·pairs]: all sines, then all cosines."""

    what = "the sines and cosines that headway computes"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        n = len(tensor)
        angles = [one.phases(Coordinates.span(n))[0] for one in _rotations(loaded.model)]
        return any(_near(tensor, torch.cat([one.sin(), one.cos()], dim=-1), n) for one in angles)


class Sines(LeftOut):
    """The table of a model's sinusoidal positions, [n, width]."""

    what = "the sines and cosines that headway computes"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        n, width = tensor.shape
        codes = [one for one in loaded.model.modules() if isinstance(one, Sinusoidal) and one.embed_dim == width]
        return any(_near(tensor, one.embed(torch.zeros(1, n, width, dtype=torch.float64))[0], n) for one in codes)


def _rotations(model: nn.Module) -> list[Rotary]:
    return [one for one in model.modules() if isinstance(one, Rotary)]


def _frequencies(model: nn.Module) -> Iterator[Tensor]:
    for one in _rotations(model):
        yield one.frequencies(Coordinates.span(1)).flatten()
        if isinstance(base := getattr(one, "base", None), float):
            yield rates(one.pairs, 2 * one.pairs, base, CPU)


def _near(tensor: Tensor, exact: Tensor, positions: int) -> bool:
    """Whether the numbers are these in float64, rounded to the tensor's dtype; angles of ``positions`` to float32."""
    if tensor.shape != exact.shape or not tensor.is_floating_point():
        return False
    kind = torch.finfo(tensor.dtype)
    least = positions * torch.finfo(torch.float32).eps + (4 * kind.eps if positions else kind.tiny * kind.eps)
    return torch.allclose(tensor.double(), exact.double(), rtol=4 * kind.eps, atol=least)


def check(ignored: Mapping[str, LeftOut], left_out: Mapping[str, Tensor], loaded: Loaded) -> None:
    """Raises HeadwayError where a tensor that is left out is not what headway has in its place."""
    for name, tensor in left_out.items():
        kinds = [kind for pattern, kind in ignored.items() if fnmatch(name, pattern)]
        if any(kind.fits(tensor, loaded) for kind in kinds):
            continue
        if all(isinstance(kind, Copy) and kind.of == "embedding.weight" for kind in kinds):
            raise HeadwayError(
                f"{name} differs from the token embeddings, to which the config ties it: set tie_word_embeddings to "
                "false in the config, or give the files of one model"
            )
        raise HeadwayError(
            f"{name} is not {kinds[0].what}, which headway has in its place: run this model in transformers, or give "
            "the files of one model"
        )
