"""Rules that convert the tensors of a published checkpoint to headway's and back.

"Theirs" are the tensors of the checkpoint, "ours" those of headway's model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from ..errors import HeadwayError

LEAVES = ("weight", "bias")
SHARDED = "_fsdp_wrapped_module"
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", SHARDED)
"""What DataParallel, torch.compile, activation checkpointing and FSDP put into the names of the modules they wrap."""
Shape = torch.Size | tuple[int, ...]


class Change:
    """The base class of conversions between one tensor of theirs and one or more of ours."""

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Returns our tensors, of these shapes."""
        raise NotImplementedError

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        """Returns their tensor."""
        raise NotImplementedError

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        """The shape that theirs must have, given the shapes of ours; by default that of ours, which is one."""
        return tuple(shapes[0])


class AsItIs(Change):
    """The same numbers in another shape, such as a matrix for a convolution of width 1."""

    def __init__(self, *theirs: int) -> None:
        self.theirs = theirs
        """Their shape, empty if it is ours; one of its sizes may be −1."""

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        one = torch.empty(shapes[0], device="meta")
        return tuple(one.reshape(self.theirs).shape) if self.theirs else tuple(shapes[0])

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs.reshape(shapes[0])]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].reshape(self.theirs) if self.theirs else ours[0]


class Transposed(Change):
    """Their matrices are [in, out], ours [out, in]; vectors are equal."""

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        return tuple(reversed(shapes[0]))

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs.t()]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].t()


@dataclass(frozen=True)
class Plus(Change):
    """Ours is theirs plus a number, as for a norm that multiplies by 1 + weight."""

    number: float

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs + self.number]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0] - self.number


@dataclass(frozen=True)
class After(Change):
    """Ours are their rows from ``first`` on. The rows before are not read, and are written as zeros."""

    first: int

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        return self.first + shapes[0][0], *shapes[0][1:]

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs[self.first :]]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([ours[0].new_zeros(self.first, *ours[0].shape[1:]), ours[0]])


@dataclass(frozen=True)
class Fused(Change):
    """Theirs is the concatenation of ours along the outputs."""

    groups: int = 0
    """If 0, ours are concatenated as a whole. If g > 0, the outputs are g groups, and each holds one g-th of each of
    ours, in their order (GPT-NeoX and BLOOM: as many groups as heads)."""
    transposed: bool = False
    """Whether theirs is [in, out]."""

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        whole = sum(shape[0] for shape in shapes), *shapes[0][1:]
        return whole[::-1] if self.transposed else whole

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        theirs = theirs.t() if self.transposed else theirs
        if not self.groups:
            return list(theirs.split([shape[0] for shape in shapes]))
        parts = theirs.unflatten(0, (self.groups, -1)).split([shape[0] // self.groups for shape in shapes], dim=1)
        return [part.flatten(0, 1) for part in parts]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        if self.groups:
            whole = torch.cat([one.unflatten(0, (self.groups, -1)) for one in ours], dim=1).flatten(0, 1)
        else:
            whole = torch.cat(list(ours))
        return whole.t() if self.transposed else whole


@dataclass(frozen=True)
class Paired(Change):
    """The outputs of each head in the order of RoPE's pairs: ours are (c, c + d/2), theirs (2c, 2c + 1)."""

    heads: int

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs.unflatten(0, (self.heads, -1, 2)).transpose(1, 2).flatten(0, 2)]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].unflatten(0, (self.heads, 2, -1)).transpose(1, 2).flatten(0, 2)


AS_IT_IS = AsItIs()
TRANSPOSED = Transposed()
QKV = tuple(f"stack.blocks.{{}}.attention.{name}_proj" for name in "qkv")
"""Our projections of queries, keys and values, which many checkpoints store as one matrix."""


@dataclass(frozen=True)
class Rule:
    """Maps one name of theirs to our name or names.

        Rule("encoder.layer.{}.attention.self.query", "stack.blocks.{}.attention.q_proj")

    The name of a module stands for its weight and bias, if ours has them; the name of a tensor for itself. {} is the
    number of a layer, for each layer of our model.
    """

    theirs: str
    ours: str | tuple[str, ...]
    """Our name, or several for one tensor of theirs."""
    change: Change = AS_IT_IS


def projections(theirs: str, q: str, k: str, v: str, out: str, block: str = "stack.blocks.{}.") -> list[Rule]:
    """The rules of the projections in the attention of a block, for modules of their attention with these names."""
    names = zip((q, k, v, out), ("q", "k", "v", "out"), strict=True)
    return [Rule(theirs + name, f"{block}attention.{ours}_proj") for name, ours in names]


@dataclass(frozen=True)
class Entry:
    """The names of one tensor of theirs and of ours that hold the same values."""

    theirs: str
    ours: tuple[str, ...]
    change: Change


def unwrapped_name(name: str) -> str:
    """The name of a tensor without the names of wrappers in it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP or tensor parallelism has sharded the model, so that each process has parts of its tensors."""
    wrapped = any(SHARDED in name.split(".") for name, _ in model.named_modules())
    return wrapped or any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that wrappers such as torch.compile or DistributedDataParallel hold."""
    while (inner := next((model._modules[name] for name in WRAPPERS if name in model._modules), None)) is not None:
        model = inner
    return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers of a model, under all their names, without those of wrappers."""
    held = {unwrapped_name(name) for name in model.state_dict()}
    parameters, buffers = (
        {unwrapped_name(name): value for name, value in named(remove_duplicate=False)}
        for named in (model.named_parameters, model.named_buffers)
    )
    return {**parameters, **{name: value for name, value in buffers.items() if name in held}}


def entries(rules: Sequence[Rule], tensors: Mapping[str, Tensor]) -> list[Entry]:
    """The entries of the rules for one model; raises HeadwayError if a tensor has no rule, a mistake of the family."""
    named = [entry for rule in rules for entry in _spelled(rule, tensors)]
    reached = {id(tensors[name]) for entry in named for name in entry.ours}
    forgotten = [name for name, tensor in tensors.items() if id(tensor) not in reached]
    if forgotten:
        raise HeadwayError(
            f"no rule names the tensors for {', '.join(forgotten)}: the family lacks a rule, or the model was changed "
            "after headway.load, such as by adapters: merge them first"
        )
    return named


def _spelled(rule: Rule, tensors: Mapping[str, Tensor]) -> Iterator[Entry]:
    ours = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
    layers = range(_layers(ours[0], tensors)) if any("{}" in name for name in ours) else [None]
    for layer in layers:
        here = tuple(name if layer is None else name.replace("{}", str(layer)) for name in ours)
        there = rule.theirs if layer is None else rule.theirs.replace("{}", str(layer))
        if here[0] in tensors:
            yield Entry(there, here, rule.change)
        for leaf in LEAVES:
            leaves = tuple(f"{name}.{leaf}" for name in here)
            if leaves[0] in tensors:
                yield Entry(f"{there}.{leaf}", leaves, rule.change)


def _layers(pattern: str, tensors: Mapping[str, Tensor]) -> int:
    """The number of layers of a pattern: one more than the largest index among our names."""
    before = pattern.partition("{}")[0]
    numbers = {int(name[len(before) :].partition(".")[0]) for name in tensors if name.startswith(before)}
    return max(numbers, default=-1) + 1


def outer_name(wanted: Sequence[Entry], tensors: Iterable[str]) -> tuple[int, str]:
    """The number of wanted tensors in a file, and the prefix of their names there, such as "model." or nothing."""
    names, counts = {entry.theirs for entry in wanted}, Counter[str]()
    for name in tensors:
        starts = [0, *(at + 1 for at, letter in enumerate(name) if letter == ".")]
        counts.update(name[:start] for start in starts if name[start:] in names)
    before = max(counts, key=lambda before: (counts[before], -len(before)), default="")
    return counts[before], before


def renamed(tensors: Mapping[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    """The tensors under other names; raises HeadwayError if two get the same."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (new := rename(name)) in result:
            both = " and ".join(sorted(one for one in tensors if rename(one) == new))
            raise HeadwayError(f"the file has both {both}, and each is {new}: give the files of one model")
        result[new] = tensor
    return result


def read(
    wanted: Sequence[Entry], tensors: Mapping[str, Tensor], theirs: Mapping[str, Tensor], ignored: Sequence[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns our tensors, converted from theirs to the model's shapes, and those of theirs that are not read.

    Raises HeadwayError if tensors are missing, unexpected, of another shape or of integers; it names all of them.
    """
    names = {entry.theirs for entry in wanted}
    ours: dict[str, Tensor] = {}
    wrong: dict[str, list[str]] = {"missing": [], "of another shape": [], "of integers": []}
    for entry in wanted:
        shapes = [tensors[name].shape for name in entry.ours]
        shape = entry.change.shape(shapes)
        given = theirs.get(entry.theirs)
        if given is None:
            wrong["missing"].append(entry.theirs)
        elif tuple(given.shape) != shape:
            wrong["of another shape"].append(f"{entry.theirs} {list(given.shape)}, which should be {list(shape)}")
        elif tensors[entry.ours[0]].is_floating_point() and not given.is_floating_point():  # quantized by others
            wrong["of integers"].append(entry.theirs)
        else:
            ours.update(zip(entry.ours, entry.change.read(given, shapes), strict=True))
    left = {name: tensor for name, tensor in theirs.items() if name not in names}
    wrong["unexpected"] = [name for name in left if not any(fnmatch(name, pattern) for pattern in ignored)]
    said = [f"{what} are {', '.join(which)}" for what, which in wrong.items() if which]
    if said:
        raise HeadwayError(f"the tensors do not fit the config: {'; '.join(said)}: give the files of one model")
    return ours, left


def written(rules: Sequence[Rule], model: nn.Module) -> dict[str, Tensor]:
    """Returns their tensors, converted from ours."""
    tensors = named_tensors(model)
    return {
        entry.theirs: entry.change.write([tensors[name].detach() for name in entry.ours])
        for entry in entries(rules, tensors)
    }


def put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replaces the tensors of a model by these, under all names of each."""
    tensors = named_tensors(model)
    new = {id(tensors[name]): value for name, value in values.items()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(new[id(parameter)], nn.Parameter):
                new[id(parameter)] = nn.Parameter(new[id(parameter)], requires_grad=parameter.requires_grad)
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) in new:
                module._buffers[name] = new[id(buffer)]
