"""Tensors of a file that are not read, and the content that each must have so that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..positions import Sinusoidal
from ..positions._formulas import rates
from ..positions._rotary import Rotary

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loaded:
    """The model that a file is read into."""

    model: nn.Module
    head: bool
    found: Mapping[str, Tensor]
    """headway's tensors with the values of the file."""


class LeftOut:
    """The base class of tensors that are not read, since headway computes them or reads them from another tensor."""

    what = ""
    """A description of the content it must have."""

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        """Whether the tensor has this content."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unused(LeftOut):
    """A tensor of a part whose outputs headway's model does not return; its content is not checked."""

    why: str
    """What the tensor is or belongs to."""

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return True


HEADS = Unused("a head that the model does not have")
POOLER = Unused("the pooler, which follows the hidden states")


@dataclass(frozen=True)
class Copy(LeftOut):
    """A copy of one of headway's tensors. The copy in a head is not checked if the model has no head."""

    of: str = "embedding.weight"
    """The name of the tensor, or a pattern: a copy of any that match."""
    head: bool = True
    """Whether the copy belongs to a head."""
    what = "a copy of another tensor, to which the config ties it"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        if self.head and not loaded.head:
            return True
        others = [other for name, other in loaded.found.items() if fnmatch(name, self.of)]
        return any(torch.equal(tensor, other.to(tensor.dtype)) for other in others)


class Counted(LeftOut):
    """The positions 0, 1, 2, …"""

    what = "the numbers 0, 1, 2, …"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return tensor.ndim > 0 and bool((tensor == torch.arange(tensor.shape[-1])).all())


class Triangle(LeftOut):
    """A causal mask, [1, 1, n, n]."""

    what = "a causal mask"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return tensor.ndim >= 2 and bool((tensor == torch.ones(tensor.shape[-2:]).tril()).all())


class Lowest(LeftOut):
    """The score of keys that a mask excludes."""

    what = "a number of −10,000 or less"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        return bool((tensor.double() <= -1e4 * (1 - 1e-2)).all())  # rounded to bfloat16


@dataclass(frozen=True)
class Frequencies(LeftOut):
    """The frequencies [pairs] of a model's rotary encodings, scaled or not."""

    sinusoids: bool = False
    """Whether they are those of Transformer-XL's distances instead, 10000^(−2c/width)."""
    what = "the frequencies of the config"

    def fits(self, tensor: Tensor, loaded: Loaded) -> bool:
        if self.sinusoids:
            width = 2 * tensor.numel()
            return _near(tensor, rates(tensor.numel(), width, 10000.0, CPU), 0)
        return any(_near(tensor, one, 0) for one in _frequencies(loaded.model))


class Turns(LeftOut):
    """The sines and cosines of a model's rotary encodings, [n, 2·pairs]: all sines, then all cosines."""

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
    """Whether tensor is exact rounded to its dtype; for ``positions`` > 0, of angles computed in float32."""
    if tensor.shape != exact.shape or not tensor.is_floating_point():
        return False
    kind = torch.finfo(tensor.dtype)
    least = positions * torch.finfo(torch.float32).eps + (4 * kind.eps if positions else kind.tiny * kind.eps)
    return torch.allclose(tensor.double(), exact.double(), rtol=4 * kind.eps, atol=least)


def check(ignored: Mapping[str, LeftOut], left_out: Mapping[str, Tensor], loaded: Loaded) -> None:
    """Raises HeadwayError if a skipped tensor differs from the one that headway uses in its place."""
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
            f"{name} is not {kinds[0].what}, which headway uses in its place: run this model in transformers, or give "
            "the files of one model"
        )
