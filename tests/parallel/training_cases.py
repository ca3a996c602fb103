"""Training of a decoder of four layers over processes: data parallel, sharded, with tensor parallelism, and resumed."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tensor_cases import drawn, whole
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy

import headway as hw
from headway.parallel import Shards, context, tensor_plan

IDS = (torch.arange(4 * 9).view(4, 9) * 7) % 40
STEPS = 2


def decoder() -> nn.Module:
    """Layers that share a learned bias and rotate, with a sink and grouped keys."""
    sizes: dict[str, Any] = {"embed_dim": 32, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "sink": 0.1}
    encoding = hw.encoding("fire + rope", num_heads=4, head_dim=8)
    return drawn(hw.models.Decoder(hw.models.TransformerConfig(40, **sizes), encoding, dtype=torch.float64))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor = IDS, count: int = STEPS) -> None:
    for _ in range(count):
        logits = model(ids[:, :-1])
        cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_on_shards(
    divided: nn.Module, model: nn.Module, mesh: DeviceMesh, ids: Tensor, method: str, world: int
) -> None:
    """As ``steps``, where ``world`` processes reduce gradients, and those of a mesh share the tokens of some rows."""
    shards, optimizer = Shards.zigzag(ids.shape[1] - 1, mesh), optimizer_of(model)
    for _ in range(STEPS):
        own, targets, at = shards.take(ids[:, :-1], ids[:, 1:])
        with context(divided, shards, method=method):
            logits = divided(own, positions=at)
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            (loss * world / IDS[:, 1:].numel()).backward()
        optimizer.step()
        optimizer.zero_grad()


def parameters(model: nn.Module) -> dict[str, Tensor]:
    names = (name.replace("_checkpoint_wrapped_module.", "") for name, _ in model.named_parameters())
    return {name: whole(x.detach()).clone() for name, x in zip(names, model.parameters(), strict=True)}


def farthest(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert found.keys() == right.keys()
    return max(float((found[name] - one).abs().max()) for name, one in right.items())


def recomputing(model: nn.Module) -> nn.Module:
    blocks = model.stack.blocks
    for number, block in enumerate(blocks):
        blocks[number] = checkpoint_wrapper(block)
    return model


def fully_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model.stack.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, tensor_plan(model, mesh))


def one_process(count: int = STEPS) -> dict[str, Tensor]:
    model = decoder()
    steps(model, optimizer_of(model), count=count)
    return parameters(model)


def two(group: dist.ProcessGroup) -> dict[str, float]:
    """The largest difference of a parameter after two steps, by each way of training."""
    mesh, rank = DeviceMesh.from_group(group, "cpu"), dist.get_rank(group)
    right, rows = one_process(), IDS[2 * rank : 2 * rank + 2]

    def in_ddp(model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model, process_group=group)

    ways: dict[str, tuple[Callable[[nn.Module], nn.Module], Tensor]] = {
        "DDP": (in_ddp, rows),
        "DDP, recomputing": (lambda model: in_ddp(recomputing(model)), rows),
        "FSDP2, recomputing": (lambda model: fully_sharded(recomputing(model), mesh), rows),
        "tensor, recomputing": (lambda model: recomputing(tensor_sharded(model, mesh)), IDS),
    }
    found = {}
    for name, (divide, ids) in ways.items():
        model = decoder()
        divided = divide(model)
        steps(divided, optimizer_of(divided), ids)
        found[name] = farthest(parameters(model), right)
    return found


def four(group: dist.ProcessGroup) -> dict[str, float]:
    """A mesh of two by two: FSDP2 over rows or tokens, and tensors over heads; DDP over rows and tokens."""
    mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "tensor"))
    at, right = mesh["data"].get_local_rank(), one_process()
    model = fully_sharded(tensor_sharded(decoder(), mesh["tensor"]), mesh["data"])
    steps(model, optimizer_of(model), IDS[2 * at : 2 * at + 2])
    found = {"FSDP2 × tensor": farthest(parameters(model), right)}
    for method in ("ring", "gather"):  # each process has one head of keys, which heads cannot divide
        model = fully_sharded(recomputing(tensor_sharded(decoder(), mesh["tensor"])), mesh["data"])
        steps_on_shards(model, model, mesh["data"], IDS, method, 2)
        found[f"FSDP2 × tensor, {method} over tokens"] = farthest(parameters(model), right)
    model = decoder()
    divided = nn.parallel.DistributedDataParallel(model, process_group=group)
    steps_on_shards(divided, model, mesh["tensor"], IDS[2 * at : 2 * at + 2], "ring", 4)
    return found | {"DDP, rows × tokens": farthest(parameters(model), right)}


# ---------------------------------------------------------------- checkpoints


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def resume(model: nn.Module, folder: Path, ids: Tensor, **where: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters that were saved, and those after another step."""
    optimizer = optimizer_of(model)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder, **where)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = parameters(model)
    steps(model, optimizer, ids, count=1)
    return loaded, parameters(model)


def saved(group: dist.ProcessGroup, folder: Path) -> dict[str, float]:
    """Saves what two processes have trained, and resumes it with both, sharded in the same and in another way."""
    mesh, rank = DeviceMesh.from_group(group, "cpu"), dist.get_rank(group)
    rows, found = IDS[2 * rank : 2 * rank + 2], {}
    before, after = one_process(), one_process(STEPS + 1)
    ways = {"FSDP2": (fully_sharded, rows), "tensor": (tensor_sharded, IDS)}
    for name, (divide, ids) in ways.items():
        model = divide(decoder(), mesh)
        optimizer = optimizer_of(model)
        steps(model, optimizer, ids)
        dcp.save(state_of(model, optimizer), checkpoint_id=folder / name, process_group=group)
        trained = parameters(model)
        found[name] = farthest(trained, before)
        for other, (redivide, others) in ways.items():
            model = redivide(drawn(copy.deepcopy(decoder()), seed=1), mesh)
            loaded, further = resume(model, folder / name, others, process_group=group)
            assert all(torch.equal(loaded[key], one) for key, one in trained.items())
            found[f"{name} as {other}"] = farthest(further, after)
    return found


class DyingWriter(dcp.FileSystemWriter):
    """Ends the process while it writes."""

    def write_data(self, *_: Any) -> Any:
        os._exit(1)


def dies_while_saving(group: dist.ProcessGroup, folder: Path) -> str:
    """What the first process says when the other one ends in the middle of the second checkpoint."""
    rank = dist.get_rank(group)
    model = fully_sharded(decoder(), DeviceMesh.from_group(group, "cpu"))
    optimizer = optimizer_of(model)
    steps(model, optimizer, IDS[2 * rank : 2 * rank + 2], count=1)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder / "1", process_group=group)
    steps(model, optimizer, IDS[2 * rank : 2 * rank + 2], count=1)
    writer = (DyingWriter if rank else dcp.FileSystemWriter)(folder / "2")
    try:
        dcp.save(state_of(model, optimizer), storage_writer=writer, process_group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def alone(folder: Path) -> dict[str, float]:
    """Resumes with this process alone what two have saved."""
    found = {}
    for name in ("FSDP2", "tensor"):
        loaded, further = resume(drawn(decoder(), seed=1), folder / name, IDS, no_dist=True)
        found[name] = max(farthest(loaded, one_process()), farthest(further, one_process(STEPS + 1)))
    return found
