"""One of several processes stops in the middle of a training step, for the tests of faults."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from cases import N, arguments_of
from context_cases import LENGTH, config, filled, ids_of
from torch import Tensor, nn

from headway import HeadwayError, parallel
from headway import masks as M
from headway.kernels import KERNELS
from headway.models import Decoder
from headway.parallel import Shards

SECONDS = 4
"""The timeout of the groups of these cases."""
METHODS = ("ring", "heads", "gather")


class StopError(Exception):
    """What one rank raises."""


def _stop(*_: Any, **__: Any) -> None:
    raise StopError("no memory")


def _in_kernel(name: str) -> Callable[[nn.Module], None]:
    """Makes the kernel raise in a pass of the second layer, or in the first one that the backward pass reaches."""

    def arm(model: nn.Module) -> None:
        kernel = KERNELS["cpu"]
        if name == "backward":
            kernel.__dict__[name] = _stop
        else:
            model.stack.blocks[1].register_forward_pre_hook(lambda *_: kernel.__dict__.update({name: _stop}))

    return arm


def _between(model: nn.Module) -> None:
    """Makes the second layer raise before its attention."""
    model.stack.blocks[1].register_forward_pre_hook(_stop)


def _between_backward(model: nn.Module) -> None:
    """Makes the backward pass raise between the attention of the second layer and that of the first one."""

    def watch(_: nn.Module, __: Any, out: Tensor) -> None:
        out.register_hook(_stop)

    model.stack.blocks[0].register_forward_hook(watch)


PLACES: dict[str, Callable[[nn.Module], None]] = {
    "forward": _in_kernel("forward"),
    "backward": _in_kernel("backward"),
    "between": _between,
    "between, backward": _between_backward,
}


def stops(group: Any, method: str, place: str) -> list[str]:
    """What each rank says of a training step in which rank 1 raises alone and lives on, and of its next step."""
    own = dist.new_group(list(range(dist.get_world_size(group))), timeout=timedelta(seconds=SECONDS))
    torch.manual_seed(0)
    model = filled(Decoder(config(), "t5"), torch.float32)
    shards = Shards.zigzag(LENGTH, own)
    ids, kernel = shards.take(ids_of(2, LENGTH))[0], KERNELS["cpu"]
    if dist.get_rank(group) == 1:
        PLACES[place](model)
    said = []
    for _ in range(2):
        try:
            with parallel.context(model, shards, method=method):
                model(ids).sum().backward()
        except (StopError, HeadwayError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("nothing")
        dist.barrier(group)  # rank 1 waits, so that it is missed
        for name in ("forward", "backward"):
            kernel.__dict__.pop(name, None)
        for block in model.stack.blocks:
            block._forward_pre_hooks.clear(), block._forward_hooks.clear()
    return said


def refused_alone(group: Any) -> str:
    """What each rank says of a call whose arguments are wrong on rank 1."""
    own = dist.new_group(list(range(dist.get_world_size(group))), timeout=timedelta(seconds=SECONDS))
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, own)
    q, k, v = shards.take(q, k, v, dim=2)[:3]
    try:
        parallel.attention(q[:, :, group.rank() :], k, v, shards=shards)
    except (HeadwayError, RuntimeError) as error:
        return str(error)
    return "nothing"


def goes_on(group: Any, layers: int) -> str:
    """What each rank says where rank 1 leaves a step by an error and makes the next one, while rank 0 waits."""
    torch.manual_seed(0)
    own = dist.new_group(list(range(dist.get_world_size(group))))  # which would wait for half an hour
    model = filled(Decoder(config(num_layers=layers), "t5")).eval()
    shards = Shards.zigzag(LENGTH, own)
    ids = shards.take(ids_of(2, LENGTH))[0]
    if dist.get_rank(group) == 1:
        hook = model.stack.blocks[layers - 1].register_forward_pre_hook(_stop)
        try:
            with parallel.context(model, shards):
                model(ids)
        except StopError:
            hook.remove()
    try:
        with parallel.context(model, shards):
            model(ids)
    except (HeadwayError, RuntimeError) as error:
        return str(error)
    return "nothing"


def survives(group: Any) -> list[str]:
    """What a rank is told after all of them have left a context by the same error, and have made another call."""
    torch.manual_seed(0)
    own = dist.new_group(list(range(dist.get_world_size(group))))
    model = filled(Decoder(config(), "t5")).eval()
    shards = Shards.zigzag(LENGTH, own)
    ids, told = shards.take(ids_of(2, LENGTH))[0], []
    hook = model.stack.blocks[1].register_forward_pre_hook(_stop)
    for count in range(2):
        try:
            with parallel.context(model, shards):
                model(ids)
        except StopError:
            hook.remove()
        dist.barrier(group)
        told.append(shards.group.told())
        dist.barrier(group)
        assert count or told[0]
    return told


def dies(group: Any, method: str) -> str:
    """What the others say when the last rank ends within a backward pass."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, group)
    q, k, v = (x.requires_grad_() for x in shards.take(q, k, v, dim=2)[:3])
    out = parallel.attention(q, k, v, shards=shards, method=method, mask=M.Causal())
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        os._exit(1)
    try:
        out.sum().backward()
    except (HeadwayError, RuntimeError) as error:
        return str(error)
    return "nothing"


def destroyed(group: Any) -> dict[str, Any]:
    """Whether nothing is left of process groups that shared a sequence once torch has destroyed them."""
    (q, k, v), _ = arguments_of(None)

    def shared(given: Any) -> tuple[Shards, list[ref[Any]]]:
        shards = Shards.zigzag(N, given)
        own = shards.take(q, k, v, dim=2)[:3]
        parallel.attention(*own, shards=shards, method="ring")
        assert Shards.zigzag(N, given).group is shards.group
        return shards, [ref(given), ref(shards.group._own)]

    pair, found = dist.new_group([0, 1]), dict[str, Any]()
    if dist.get_rank() < 2:
        shards, groups = shared(pair)
        dist.destroy_process_group(pair)
        del pair
        found["pair"] = [one() is None for one in groups]
        try:
            parallel.attention(*shards.take(q, k, v, dim=2)[:3], shards=shards, method="ring")
        except HeadwayError as error:
            found["said"] = str(error)
    groups = shared(dist.group.WORLD)[1]
    dist.destroy_process_group()
    gc.collect()  # shards hold themselves in what they have computed
    found["world"] = [one() is None for one in groups]
    return found
