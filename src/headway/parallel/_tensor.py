"""Tensor parallelism: each process computes some of the heads and some of the hidden features of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel

from ..errors import HeadwayError
from ..heads import HeadShard
from ..nn import CrossLayerAttention, FeedForward, MultiHeadAttention


class HeadwiseParallel(ParallelStyle):
    """Gives each process of a mesh some of the query heads of a MultiHeadAttention, and their key heads.

    The projections of queries, keys and values are sharded by their outputs, the output projection by its inputs.
    Inputs and output are whole on each process: the forward pass sums the outputs of the processes once, and the
    backward pass sums the gradients of each input once. The encoding, the sink and the norms of queries and keys stay
    whole on each process, which uses their results for its own heads; the backward pass sums their gradients.

    References:
        Shoeybi et al. 2019, section 3.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, MultiHeadAttention):
            raise HeadwayError(f"module is a {type(module).__name__}: give a headway.nn.MultiHeadAttention")
        if module.head_shard is not None:
            raise HeadwayError("the layer computes some of its heads already: parallelize it once")
        if module.parts is not None:
            raise HeadwayError("the layer has parts, which need all of its heads: leave them out, or do without a plan")
        _check({"num_heads": module.num_heads, "num_kv_heads": module.num_kv_heads}, device_mesh)
        for projection in (module.q_proj, module.k_proj, module.v_proj):
            for name, parameter in list(projection.named_parameters(recurse=False)):
                sharded = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank)
                projection.register_parameter(name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))
        RowwiseParallel()._apply(module.out_proj, device_mesh)
        module.out_proj.register_forward_hook(_arrived)
        count = module.num_heads // device_mesh.size()
        first = device_mesh.get_local_rank() * count
        module.head_shard = HeadShard(first, count, module.num_heads, partial(_shared, device_mesh))
        return module


def _arrived(projection: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Returns a sum over processes as a plain tensor; torch's own tensor waits for the sum in its first operation."""
    return output if type(output) is Tensor else output.clone()


def _shared(mesh: DeviceMesh, x: Tensor) -> Tensor:
    """Returns a tensor whose gradient is the sum over all processes; of a sharded one, this process's part."""
    if isinstance(x, DTensor):
        gradients: list[Placement] = [Partial() if one.is_replicate() else one for one in x.placements]
        return x.to_local(grad_placements=gradients)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def tensor_plan(module: nn.Module, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """Returns the plan by which torch's ``parallelize_module`` shards headway's layers in a module.

        parallelize_module(model, mesh, tensor_plan(model, mesh))

    The heads of each ``MultiHeadAttention`` and the hidden features of each ``FeedForward`` are divided among the
    processes; everything else stays whole on each. Outputs and gradients equal those of one process, up to rounding,
    with any encoding that computes each head separately. An encoding that is built for a number of heads and mixes
    their scores, such as DAPE, is refused in the first call. An encoding that transforms queries or keys by head, but
    not by a rotation, does so for all heads on each process.

    Each process must get the same inputs, and the same seed where there is dropout.

    Args:
        module: a layer, a block, or a model.
        mesh: the processes, in one dimension, such as ``init_device_mesh("cuda", (2, 4),
            mesh_dim_names=("data", "tensor"))["tensor"]``.

    Returns:
        The plan for ``torch.distributed.tensor.parallel.parallelize_module``: a style for each submodule, by its name.

    Raises:
        HeadwayError: if the mesh has several dimensions, heads or hidden features do not divide among its processes, or
            the module has no layer to shard or has a CrossLayerAttention.

    References:
        Shoeybi et al. 2019.
    """
    if mesh.ndim != 1:
        raise HeadwayError(f"mesh has {mesh.ndim} dimensions: give one of them, such as mesh['tensor']")
    plan: dict[str, ParallelStyle] = {}
    sizes: dict[str, int] = {}
    for name, part in module.named_modules():
        within = f"{name}." if name else ""
        if isinstance(part, CrossLayerAttention):
            raise HeadwayError(
                f"{name or 'the module'} is a CrossLayerAttention, which needs all heads of the keys in a cache, where "
                "each process would have some: give a module without one"
            )
        if isinstance(part, MultiHeadAttention):
            sizes |= {f"{within}num_heads": part.num_heads, f"{within}num_kv_heads": part.num_kv_heads}
            plan[name] = HeadwiseParallel()
        elif isinstance(part, FeedForward):
            sizes[f"{within}hidden_dim"] = part.up_proj.out_features
            # converted once, so that backward adds the gradients of the input once
            plan[name] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
            plan |= {f"{within}{projection}": style for projection, style in _styles(part)}
    if not plan:
        raise HeadwayError(
            f"a {type(module).__name__} has no MultiHeadAttention and no FeedForward of headway.nn: give a layer, a "
            "block or a model that has"
        )
    _check(sizes, mesh)
    return plan


def _styles(layer: FeedForward) -> Iterator[tuple[str, ParallelStyle]]:
    yield "up_proj", ColwiseParallel()
    if layer.gate_proj is not None:
        yield "gate_proj", ColwiseParallel()
    yield "down_proj", RowwiseParallel()


def _check(sizes: dict[str, int], mesh: DeviceMesh) -> None:
    """Raises HeadwayError unless each size divides among the processes of a mesh."""
    for name, size in sizes.items():
        if size % mesh.size():
            common = math.gcd(*sizes.values())
            choices = ", ".join(str(count) for count in range(1, common + 1) if common % count == 0)
            raise HeadwayError(f"{name} is {size}, which {mesh.size()} processes do not divide: use {choices}")
