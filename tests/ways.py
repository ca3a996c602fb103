"""Ways in which torch runs a module, and the modules that are run in them: the table of docs/ways-of-running.md.

A way takes a module and its arguments, runs it, and returns what came out: the output, and gradients by name where the
way has any. ``plainly`` is what it is compared with.
"""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import headway as hw
from headway._common.table import Table
from headway.integrations.torch import swap_attention

Results = dict[str, Tensor]
"""The output as "output", and gradients of the parameters by their names."""

# ---------------------------------------------------------------- what is run


def layer() -> tuple[nn.Module, Tensor]:
    return hw.nn.MultiHeadAttention(32, 4, encoding=hw.encoding("rope", head_dim=8)), torch.randn(3, 7, 32)


def decoder() -> tuple[nn.Module, Tensor]:
    config = hw.models.TransformerConfig(50, embed_dim=32, num_layers=2, num_heads=4)
    return hw.models.Decoder(config, hw.encoding("t5", num_heads=4)), torch.randint(50, (3, 7))


def torch_encoder() -> tuple[nn.Module, Tensor]:
    one = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
    return swap_attention(encoder, hw.encoding("alibi", num_heads=4)), torch.randn(3, 7, 32)


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __setstate__(self, state: dict[str, Any]) -> None:
        from headway.integrations.transformers import register

        register()  # transformers keeps the names of attention implementations by process
        super().__setstate__(state)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


def llama() -> tuple[nn.Module, Tensor]:
    import transformers

    from headway.integrations.transformers import register

    register()
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="headway")
    return Logits(model), torch.randint(50, (3, 7))


MODULES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "MultiHeadAttention": layer,
    "Decoder": decoder,
    "swapped torch encoder": torch_encoder,
    "Llama of transformers": llama,
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """The module and its argument, the same numbers each time."""
    torch.manual_seed(0)
    return MODULES[name]()


# ---------------------------------------------------------------- ways


def trained(call: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Results:
    """Output and gradients of a call that trains."""
    module.train()
    out = call(x)
    out.float().square().mean().backward()
    found = {"output": out.detach()}
    found |= {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return found


def plainly(module: nn.Module, x: Tensor) -> Results:
    return trained(module, module, x)


@torch.no_grad()
def read(call: Callable[..., Tensor], x: Tensor) -> Results:
    return {"output": call(x)}


def compiled(module: nn.Module, x: Tensor) -> Results:
    return trained(torch.compile(module, fullgraph=True, backend="aot_eager"), module, x)


def compiled_by_inductor(module: nn.Module, x: Tensor) -> Results:
    return trained(torch.compile(module, fullgraph=True), module, x)


def exported(module: nn.Module, x: Tensor) -> Results:
    return read(torch.export.export(module.eval(), (x,)).module(), x)


def by_aot_inductor(module: nn.Module, x: Tensor) -> Results:
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(
            torch.export.export(module.eval(), (x,)), package_path=str(Path(folder) / "model.pt2")
        )
        return read(torch._inductor.aoti_load_package(path), x)


def by_onnxruntime(module: nn.Module, x: Tensor) -> Results:
    from onnx_exports import Exported

    return {"output": Exported(module.eval(), (x,))(x)[0]}


def traced(module: nn.Module, x: Tensor) -> Results:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(torch.jit.trace(module.eval(), (x,), check_trace=False), x)


def checkpointed(module: nn.Module, x: Tensor) -> Results:
    return trained(lambda x: checkpoint(module, x, use_reentrant=False), module, x)


def functionally(module: nn.Module, x: Tensor) -> Results:
    parameters = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    out = torch.func.functional_call(module.train(), parameters, (x,))
    out.square().mean().backward()
    return {"output": out.detach()} | {name: p.grad for name, p in parameters.items() if p.grad is not None}


def by_vmap(module: nn.Module, x: Tensor) -> Results:
    return read(torch.func.vmap(lambda one: module.eval()(one[None])[0]), x)


def by_sample(module: nn.Module, x: Tensor) -> Results:
    """The mean of the gradients of each sequence is that of the batch."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, values, (one[None],))
        return out.square().mean()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    return {name: each.mean(0) for name, each in found.items()}


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def in_parallel(module: nn.Module, x: Tensor) -> Results:
    with alone():
        wrapped = nn.parallel.DistributedDataParallel(module)
        found = trained(wrapped, wrapped, x)
        del wrapped  # which holds the group: freed later, it may wait for gloo's threads, and they for Python's lock
    return {name.removeprefix("module."): value for name, value in found.items()}


def sharded(module: nn.Module, x: Tensor) -> Results:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with alone():
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        found = trained(module, module, x)
        return {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in found.items()}


def as_dtensors(module: nn.Module, x: Tensor) -> Results:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor

    with alone():
        mesh = init_device_mesh("cpu", (1,))
        distribute_module(module, mesh)
        out = module.eval()(distribute_tensor(x, mesh, [Replicate()]))
        assert isinstance(out, DTensor)
        return {"output": out.full_tensor().detach()}


def quantized(module: nn.Module, x: Tensor) -> Results:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.ao.quantization.quantize_dynamic(module.eval(), {nn.Linear}, dtype=torch.qint8)
    assert any("quantized" in type(part).__module__ for part in made.modules()), "nothing was quantized"
    return read(made, x)


def copied(module: nn.Module, x: Tensor) -> Results:
    twin = copy.deepcopy(module)
    return trained(twin, twin, x)


def pickled(module: nn.Module, x: Tensor) -> Results:
    twin = pickle.loads(pickle.dumps(module))
    return trained(twin, twin, x)


def saved(module: nn.Module, x: Tensor) -> Results:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    return trained(twin, twin, x)


class Outputs(Dataset[Tensor]):
    """What a module makes of each sequence."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.module, self.x = module.eval(), x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.module(self.x[i : i + 1])[0]
        return out


def by_workers(module: nn.Module, x: Tensor) -> Results:
    torch.set_num_threads(1)
    return {"output": torch.cat(list(DataLoader(Outputs(module, x), batch_size=2, num_workers=2)))}


def by_threads(module: nn.Module, x: Tensor) -> Results:
    """Eight threads at once; all have the same."""
    found: list[Results] = []
    threads = [threading.Thread(target=lambda: found.append(read(module.eval(), x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(one["output"], found[0]["output"]) for one in found)
    return found[0]


def _into(pipe: Any, module: nn.Module, x: Tensor) -> None:
    torch.set_num_threads(1)
    pipe.send(read(module.eval(), x)["output"].numpy())


def _in_a_process(start: str, module: nn.Module, x: Tensor) -> Results:
    context = multiprocessing.get_context(start)
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=_into, args=(other, module, x))
    process.start()
    try:
        assert mine.poll(120), "no answer within two minutes"
        return {"output": torch.from_numpy(mine.recv())}
    finally:
        process.kill()
        process.join()


def after_a_fork(module: nn.Module, x: Tensor) -> Results:
    return _in_a_process("fork", module, x)


def in_a_new_process(module: nn.Module, x: Tensor) -> Results:
    return _in_a_process("spawn", module, x)


def on_meta(module: nn.Module, x: Tensor) -> Results:
    return read(module.eval().to("meta"), x.to("meta"))


def with_fake_tensors(module: nn.Module, x: Tensor) -> Results:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return read(module.eval(), mode.from_tensor(x))


def linears(module: nn.Module) -> list[nn.Module]:
    found = [part for part in module.modules() if isinstance(getattr(part, "weight", None), nn.Parameter)]
    return [part for part in found if part.weight.ndim == 2 and not isinstance(part, nn.Embedding)]


def weight_normed(module: nn.Module, x: Tensor) -> Results:
    for part in linears(module):
        parametrizations.weight_norm(part)
    return read(module.eval(), x)


def pruned(module: nn.Module, x: Tensor) -> Results:
    """Half of the weights are 0; compared with a module whose weights are."""
    for part in linears(module):
        prune.l1_unstructured(part, "weight", amount=0.5)
    return read(module.eval(), x)


def offload(model: nn.Module) -> nn.Module:
    """What accelerate's cpu_offload does to a model."""
    for module in model.modules():
        held: dict[str, Any] = {name: value for name, value in module._parameters.items() if value is not None}
        if held:
            module._parameters.update({name: nn.Parameter(value.to("meta")) for name, value in held.items()})
            module.forward = fetching(module, module.forward, held)  # type: ignore[method-assign]
    return model


def fetching(module: nn.Module, forward: Callable[..., Any], held: dict[str, Any]) -> Callable[..., Any]:
    def fetched(*args: Any, **kwargs: Any) -> Any:
        if any(getattr(one, "is_meta", False) for one in args):  # arguments are moved to the device
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        away = dict(module._parameters)
        module._parameters.update(held)
        try:
            return forward(*args, **kwargs)
        finally:
            module._parameters.update(away)

    return fetched


def offloaded(module: nn.Module, x: Tensor) -> Results:
    return read(offload(module.eval()), x)


def with_zeros(module: nn.Module, x: Tensor) -> Results:
    for part in linears(module):
        prune.l1_unstructured(part, "weight", amount=0.5)
        prune.remove(part, "weight")
    return read(module.eval(), x)


def under_autocast(module: nn.Module, x: Tensor) -> Results:
    with torch.autocast("cpu", torch.bfloat16):
        return trained(module, module, x)


@dataclass(frozen=True)
class Way:
    """A way of running.

    Args:
        run: runs a module in it.
        against: what it is compared with.
        within: the largest difference of outputs and of gradients, in units of the largest number of all outputs or
            all gradients; None compares shapes alone.
        refused: by module, what the error of a refusal says.
        slow: whether it takes more than some seconds.
        needs: packages without which it is not run.
    """

    run: Callable[[nn.Module, Tensor], Results]
    against: Callable[[nn.Module, Tensor], Results] = plainly
    within: float | None = 1e-5
    refused: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    needs: tuple[str, ...] = ()


EVERYWHERE = ("MultiHeadAttention", "Decoder", "swapped torch encoder", "Llama of transformers")
TRACE = dict.fromkeys(EVERYWHERE, "torch.jit.trace would keep .*: use torch.export.export")
DTENSOR = {
    **dict.fromkeys(EVERYWHERE[:3], "attention of a DTensor is not defined: give its to_local"),
    EVERYWHERE[3]: "got mixed torch.Tensor and DTensor",  # torch's own, of the rotation in transformers
}
AWAY = {EVERYWHERE[1]: "table of T5 is on meta, without numbers"}
META = {EVERYWHERE[3]: "cannot be called on meta tensors"}  # transformers reads positions to find packed sequences

WAYS: dict[str, Way] = {
    "torch.compile, one graph": Way(compiled, slow=True),
    "torch.compile with inductor": Way(compiled_by_inductor, slow=True),
    "torch.export": Way(exported),
    "AOTInductor": Way(by_aot_inductor, slow=True),
    "ONNX, in onnxruntime": Way(by_onnxruntime, needs=("onnxscript", "onnxruntime")),
    "torch.jit.trace": Way(traced, refused=TRACE),
    "activation checkpointing": Way(checkpointed),
    "functional_call": Way(functionally),
    "vmap": Way(by_vmap),
    "gradients by sample (vmap of grad)": Way(by_sample),
    "DistributedDataParallel": Way(in_parallel),
    "FSDP2 (fully_shard)": Way(sharded),
    "DTensor": Way(as_dtensors, refused=DTENSOR),
    "dynamic quantization": Way(quantized, within=0.1),
    "deepcopy": Way(copied, within=0.0),
    "pickle": Way(pickled, within=0.0),
    "torch.save of the module": Way(saved, within=0.0),
    "workers of a DataLoader": Way(by_workers),
    "eight threads": Way(by_threads),
    "fork": Way(after_a_fork),
    "spawn": Way(in_a_new_process, slow=True),
    "meta tensors": Way(on_meta, within=None, refused=META),
    "fake tensors": Way(with_fake_tensors, within=None),
    "weight norm": Way(weight_normed),
    "pruning": Way(pruned, against=with_zeros),
    "weights on meta between calls": Way(offloaded, refused=AWAY),
    "autocast to bfloat16": Way(under_autocast, within=0.03),
}


def differences(found: Results, right: Results) -> dict[str, float]:
    """The largest difference of the output and of the gradients, in units of their largest number."""
    worst: dict[str, float] = {}
    for kind in ("output", "gradients"):
        names = [name for name in found if (name == "output") == (kind == "output")]
        if names:
            most = max(right[name].abs().max().item() for name in names)
            worst[kind] = max((found[name].float() - right[name].float()).abs().max().item() for name in names) / most
    return worst


def outcome(way: Way, module: str) -> str:
    """What the page says of a way and a module."""
    if module in way.refused:
        return "refused"
    if way.within is None:
        return "shapes"
    return "bit by bit" if way.within == 0 else f"≤ {way.within:g}".replace("e-0", "e-")


def table() -> str:
    """The table of docs/ways-of-running.md."""
    rows = [[name, *(outcome(way, module) for module in MODULES)] for name, way in WAYS.items()]
    return Table(["", *MODULES], rows).markdown()
