"""What processes compute in the tests of ``context``: models on shards, beside the same models on the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cases import difference
from torch import Tensor, nn

import headway as hw
from headway import masks as M
from headway import parallel
from headway.models import Decoder, Encoder, EncoderDecoder, TransformerConfig
from headway.parallel import Shards

LENGTH = 23
"""The tokens of a sequence, which the processes do not share evenly."""
CONTEXT = 13
"""The tokens of the context of cross-attention."""
VOCABULARY = 30
LENGTHS = [9, 3, 11]
"""Documents that cross the ranks."""


def config(**changes: Any) -> TransformerConfig:
    sizes = {"vocab_size": VOCABULARY, "embed_dim": 32, "num_layers": 2, "num_heads": 4, "feed_forward_dim": 48}
    return TransformerConfig(**{**sizes, **changes})


def filled(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model with parameters of order one, so that every part has an effect."""
    generator = torch.Generator().manual_seed(3)
    model = model.to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_((noise * 0.2).to(parameter.dtype))
    return model


def ids_of(batch: int, n: int, seed: int = 5) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def places(kind: str, n: int = LENGTH) -> hw.Coordinates | None:
    if kind == "packed":
        return hw.Coordinates.packed(LENGTHS)
    if kind in ("left", "right"):
        return hw.Coordinates.padded([n, n - 6], n, side=kind)
    return None


def compared(
    model: nn.Module, whole: Callable[[nn.Module], Tensor], part: Callable[[nn.Module], Tensor], group: Any,
    rows: Callable[[Tensor], Tensor],
) -> float:  # fmt: skip
    """The largest difference of outputs and of summed gradients between a model on the whole and on shards."""
    other = copy.deepcopy(model)
    expected = whole(model)
    weights = torch.sin(torch.arange(expected.numel(), dtype=expected.dtype)).reshape(expected.shape)
    (expected * weights).sum().backward()
    found = part(other)
    if found.requires_grad:
        (found * rows(weights)).sum().backward()
    pairs = [(found.detach(), rows(expected).detach())]
    for (name, a), b in zip(other.named_parameters(), model.parameters(), strict=True):
        total = torch.zeros_like(a) if a.grad is None else a.grad.clone()
        dist.all_reduce(total, group=group)
        assert b.grad is not None, name
        pairs.append((total, b.grad))
    return max(difference(a, b) for a, b in pairs)


def decoder(
    group: Any, encoding: Any, method: str = "gather", shape: str = "zigzag", at: str = "", masks: Any = None,
    dtype: torch.dtype = torch.float64, mask: Any = None, cls: type[nn.Module] = Decoder, given: str = "coordinates",
    **changes: Any,
) -> float:  # fmt: skip
    """A model of one stack."""
    model = filled(cls(config(**changes), encoding, masks), dtype).eval()
    shards = getattr(Shards, shape)(LENGTH, group)
    coordinates = places(at)
    mask = M.Documents() if at == "packed" else mask
    ids = ids_of(1 if at == "packed" else 2, LENGTH)
    own, local = shards.take(ids, coordinates=coordinates)
    positions = {"coordinates": local, "none": None, "tensor": local.position[..., 0]}[given]

    def part(model: nn.Module) -> Tensor:
        with parallel.context(model, shards, method=method):
            return model(own, positions=positions, mask=mask)

    rows = lambda x: shards.take(x)[0]  # noqa: E731
    return compared(model, lambda model: model(ids, positions=coordinates, mask=mask), part, group, rows)


def both(
    group: Any, encoding: Any = None, method: str = "gather", *, sharded: bool, at: str = "", mask: Any = None
) -> float:
    """An encoder–decoder whose source every process has, or whose tokens they share."""
    own_encoding = None if encoding is None else hw.encoding(encoding, num_heads=4, head_dim=8, bidirectional=False)
    model = filled(EncoderDecoder(config(), encoding, own_encoding)).eval()
    shards, sources = Shards.zigzag(LENGTH, group), Shards.contiguous(CONTEXT, group)
    ids, source = ids_of(2, LENGTH), ids_of(2, CONTEXT, 6)
    there = places(at, CONTEXT)
    (own,), (own_source, own_at) = shards.take(ids)[:1], sources.take(source, coordinates=there)

    def part(model: nn.Module) -> Tensor:
        with parallel.context(model, shards, method=method, context_shards=sources if sharded else None):
            if sharded:
                return model(own_source, own, positions=own_at, mask=mask)
            return model(source, own, positions=there, mask=mask)

    rows = lambda x: shards.take(x)[0]  # noqa: E731
    return compared(model, lambda model: model(source, ids, positions=there, mask=mask), part, group, rows)


def layer(group: Any, *, sharded: bool | None, method: str = "gather") -> float:
    """A layer of its own; with cross-attention if ``sharded`` is given."""
    model = filled(hw.nn.MultiHeadAttention(32, 4, encoding="rope", sink=0.5, soft_cap=5.0, num_kv_heads=2))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, LENGTH, 32, generator=generator, dtype=torch.float64)
    y = torch.randn(2, CONTEXT, 32, generator=generator, dtype=torch.float64)
    shards, sources = Shards.zigzag(LENGTH, group), Shards.zigzag(CONTEXT, group)
    allowed = torch.rand(LENGTH, CONTEXT if sharded is not None else LENGTH, generator=generator) > 0.4

    def part(model: nn.Module) -> Tensor:
        with parallel.context(model, shards, method=method, context_shards=sources if sharded else None):
            own = shards.take(x)[0]
            return model(own, None if sharded is None else sources.take(y)[0] if sharded else y, mask=allowed)

    whole = lambda model: model(x, None if sharded is None else y, mask=allowed)  # noqa: E731
    return compared(model, whole, part, group, lambda x: shards.take(x)[0])


def swapped(group: Any, kind: str, method: str = "gather") -> float:
    """Models of torch whose attention is swapped."""
    from headway.integrations.torch import swap_attention

    options: dict[str, Any] = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": kind != "tokens first"}
    shards, sources = Shards.zigzag(LENGTH, group), Shards.contiguous(CONTEXT, group)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, LENGTH, 16, generator=generator, dtype=torch.float64)
    y = torch.randn(2, CONTEXT, 16, generator=generator, dtype=torch.float64)
    hidden = torch.arange(LENGTH) >= torch.tensor([LENGTH, LENGTH - 5])[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    dim = 0 if kind == "tokens first" else 1
    rows = lambda x: shards.take(x, dim=dim)[0]  # noqa: E731
    if kind in ("both", "both sharded"):
        model: nn.Module = nn.Transformer(16, 2, 1, 1, **options)
        model = filled(swap_attention(model, "rope")).eval()
        context = sources if kind == "both sharded" else None

        def part(model: nn.Module) -> Tensor:
            with parallel.context(model, shards, method=method, context_shards=context):
                source = y if context is None else context.take(y)[0]
                return model(source, rows(x), tgt_mask=causal, tgt_is_causal=True)

        return compared(model, lambda model: model(y, x, tgt_mask=causal, tgt_is_causal=True), part, group, rows)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, **options), 2, enable_nested_tensor=False)
    model = filled(swap_attention(model, "rope")).eval()
    x = x.transpose(0, 1) if dim == 0 else x
    masks = {"mask": causal} if kind == "causal" else {"src_key_padding_mask": hidden}

    def inside(model: nn.Module) -> Tensor:
        with parallel.context(model, shards, method=method):
            return model(rows(x), **masks)

    return compared(model, lambda model: model(x, **masks), inside, group, rows)


def drawn(group: Any) -> float:
    """An encoding that draws positions in training: the same on every process, once for all layers."""
    model = filled(Decoder(config(), hw.encoding("randomized(limit=64) + rope", head_dim=8)))
    shards, ids = Shards.zigzag(LENGTH, group), ids_of(2, LENGTH)

    def whole(model: nn.Module) -> Tensor:
        torch.manual_seed(11)
        torch.manual_seed(int(torch.randint(0, 1 << 62, (1,))))
        return model(ids)

    def part(model: nn.Module) -> Tensor:
        torch.manual_seed(11 + shards.group.rank)
        with parallel.context(model, shards):
            return model(shards.take(ids)[0])

    return compared(model, whole, part, group, lambda x: shards.take(x)[0])


def checkpointed(group: Any, method: str, later: bool = False) -> float:
    """Blocks that the backward pass computes again."""
    from torch.utils.checkpoint import checkpoint

    shards, ids = Shards.zigzag(LENGTH, group), ids_of(2, LENGTH)
    model = filled(Decoder(config(), "rope"))
    weights = torch.sin(torch.arange(2 * LENGTH * VOCABULARY, dtype=torch.float64)).reshape(2, LENGTH, VOCABULARY)
    other = copy.deepcopy(model)
    (model(ids) * weights).sum().backward()
    for block in other.stack.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    with parallel.context(other, shards, method=method):
        loss = (other(shards.take(ids)[0]) * shards.take(weights)[0]).sum()
        if not later:
            loss.backward()
    if later:
        loss.backward()
    for parameter in other.parameters():
        dist.all_reduce(parameter.grad, group=group)
    return max(difference(a.grad, b.grad) for a, b in zip(other.parameters(), model.parameters(), strict=True))


def trained(group: Any, wrap: str, encoding: Any = "rope", method: str = "auto", at: str = "") -> dict[str, float]:
    """Loss and gradients of a decoder under DDP or FSDP2, in float32, with a loss that is a sum over processes."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = Decoder(config(), encoding, [M.Window(6, 0), None])
    other = copy.deepcopy(model)
    coordinates = places(at)
    mask = M.Documents() if at == "packed" else None
    ids = ids_of(1 if at == "packed" else 2, LENGTH)
    targets = ids.roll(-1, 1)
    shards = Shards.zigzag(LENGTH, group)
    world = dist.get_world_size(group)

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / ids.numel()

    expected = loss_of(model(ids, positions=coordinates, mask=mask), targets)
    expected.backward()
    own, own_targets, local = shards.take(ids, targets, coordinates=coordinates)
    if wrap == "ddp":
        wrapped: nn.Module = DistributedDataParallel(other, process_group=group)
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in other.stack.blocks:
            fully_shard(block, mesh=mesh)
        wrapped = fully_shard(other, mesh=mesh)
    with parallel.context(wrapped, shards, method=method):
        loss = loss_of(wrapped(own, positions=local, mask=mask), own_targets) * world
        loss.backward()
    total = loss.detach() / world
    dist.all_reduce(total, group=group)
    grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in other.parameters()]
    gaps = [difference(a, b.grad) for a, b in zip(grads, model.parameters(), strict=True)]
    return {"loss": difference(total, expected.detach()), "gradients": max(gaps)}


def every(group: Any, names: list[str]) -> dict[str, Any]:
    """The result of each case of ``CASES``, which are computed in one run of the processes."""
    cases = CASES | HUGGING_FACE
    return {name: seeded(partial(cases[name], group)) for name in names}


def seeded(case: Callable[[], Any]) -> Any:
    """What a case returns whose models are the same on every process."""
    torch.manual_seed(0)
    return case()


CASES: dict[str, Callable[[Any], Any]] = {
    "none, gather": partial(decoder, encoding=None),
    "rope, ring": partial(decoder, encoding="rope", method="ring"),
    "t5, heads": partial(decoder, encoding="t5", method="heads"),
    "alibi, ring, contiguous": partial(decoder, encoding="alibi", method="ring", shape="contiguous"),
    "fire, auto": partial(decoder, encoding="fire", method="auto"),
    "forgetting, ring": partial(decoder, encoding="forgetting", method="ring"),
    "learned, no positions": partial(decoder, encoding="learned(max_length=64)", given="none"),
    "rope, positions as a tensor": partial(decoder, encoding="rope", given="tensor", method="ring"),
    "padding on the left, ring": partial(decoder, encoding="t5", method="ring", at="left"),
    "padding on the right, gather": partial(decoder, encoding="rope", at="right"),
    "packed, ring": partial(decoder, encoding="rope", method="ring", at="packed"),
    "packed, learned": partial(decoder, encoding="learned(max_length=64)", at="packed"),
    "a windowed layer, ring": partial(decoder, encoding="rope", method="ring", masks=[M.Window(4, 0), None]),
    "a mask of the whole": partial(decoder, encoding="rope", mask=torch.arange(LENGTH**2).view(LENGTH, -1) % 3 != 1),
    "parts, ring": partial(
        decoder,
        encoding="rope",
        method="ring",
        num_kv_heads=2,
        parts=("value-residual", "differential", "exclusive", "element-gate"),
    ),
    "encoder": partial(decoder, encoding="sinusoidal", cls=Encoder),
    "whole context": partial(both, encoding="rope", sharded=False, mask=M.Padding([13, 9])),
    "whole context, ring": partial(both, encoding="t5", method="ring", sharded=False, at="right"),
    "sharded context": partial(both, encoding="rope", sharded=True, mask=M.Padding([13, 9])),
    "sharded context, ring": partial(both, encoding="t5", method="ring", sharded=True, at="right"),
    "layer": partial(layer, sharded=None, method="ring"),
    "layer, whole context": partial(layer, sharded=False),
    "layer, sharded context": partial(layer, sharded=True, method="heads"),
    "torch, causal": partial(swapped, kind="causal", method="ring"),
    "torch, padding": partial(swapped, kind="padding"),
    "torch, tokens first": partial(swapped, kind="tokens first"),
    "torch, whole context": partial(swapped, kind="both"),
    "torch, sharded context": partial(swapped, kind="both sharded", method="ring"),
    "drawn positions": drawn,
    "checkpointed": partial(checkpointed, method="ring"),
    "checkpointed, backward later": partial(checkpointed, method="gather", later=True),
}


def inspected(
    group: Any, encoding: Any, shape: str = "zigzag", at: str = "", masks: Any = None, mask: Any = None,
    method: str = "ring",
) -> dict[str, float]:  # fmt: skip
    """The largest differences of what inspection records of a decoder on shards and on the whole."""
    model = filled(Decoder(config(), encoding, masks)).eval()
    shards, coordinates = getattr(Shards, shape)(LENGTH, group), places(at)
    mask = M.Documents() if at == "packed" else mask
    ids = ids_of(1 if at == "packed" else 2, LENGTH)
    own, local = shards.take(ids, coordinates=coordinates)
    by_query = ("entropy", "distance", "previous", "lse", "largest")

    def seen(keep: str, run: Callable[[], Tensor], **options: Any) -> tuple[Any, Tensor]:
        with torch.no_grad(), hw.inspection.capture(model, keep, **options) as found:
            out = run()
        return found, out

    def on_shards() -> Tensor:
        with parallel.context(model, shards, method=method):
            return model(own, positions=local, mask=mask)

    differences: dict[str, float] = {}
    for keep, options in (("statistics", {"statistics": (*by_query, "received")}), ("weights", {})):
        part, out = seen(keep, on_shards, **options)
        whole, expected = seen(keep, lambda: model(ids, positions=coordinates, mask=mask), **options)
        pairs = [("output", out, shards.take(expected)[0])]
        for a, b in zip(part.records, whole.records, strict=True):
            assert (a.layer, a.n, a.m) == (b.layer, shards.length, LENGTH)
            if keep == "weights":
                pairs.append(("weights", a.weights(), shards.take(b.weights(), dim=2)[0]))
                continue
            one, all_of = a.statistics(), b.statistics()
            pairs += [(name, one[name], shards.take(all_of[name], dim=2)[0]) for name in by_query[:-1]]
            pairs += [
                ("largest", x, shards.take(y, dim=2)[0]) for x, y in zip(one.largest, all_of.largest, strict=True)
            ]
            received = one.received.clone()
            dist.all_reduce(received, group=group)
            pairs.append(("received", received, all_of.received))
        for name, a, b in pairs:
            assert torch.equal(a.isnan(), b.isnan()), name
            apart = difference(a.nan_to_num(), b.nan_to_num())
            differences[name] = max(differences.get(name, 0.0), apart)
    return differences


INSPECTED: dict[str, Callable[[Any], dict[str, float]]] = {
    "none, contiguous": partial(inspected, encoding=None, shape="contiguous"),
    "rope": partial(inspected, encoding="rope"),
    "alibi, padding on the left": partial(inspected, encoding="alibi", at="left"),
    "rope, a mask of padding": partial(inspected, encoding="rope", mask=M.Padding([LENGTH, LENGTH - 5])),
    "t5, packed": partial(inspected, encoding="t5", at="packed", method="heads"),
    "rope, a window, a mask of the whole": partial(
        inspected, encoding="rope", masks=[M.Window(4, 0), None], mask=torch.arange(LENGTH**2).view(LENGTH, -1) % 3 != 1
    ),
}


def measured(group: Any) -> dict[str, float]:
    """The largest differences of the statistics of a call on shards from those of the whole."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, LENGTH, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    sink, counted = torch.tensor([0.1, -0.2, 0.3, 0.4]).double(), torch.arange(LENGTH) % 4 != 1
    names = ("entropy", "distance", "received")
    differences: dict[str, float] = {}
    cases: dict[str, dict[str, Any]] = {
        "rope": {"encoding": "rope", "mask": M.Causal(), "sink": sink, "soft_cap": 4.0},
        "alibi, padding": {"encoding": "alibi", "q_positions": places("left")},
        "a mask of padding": {"mask": M.Causal() & M.Padding([LENGTH, LENGTH - 5])},
        "a mask of padding on the left": {"encoding": "rope", "mask": M.Padding([LENGTH, LENGTH - 5], side="left")},
        "some queries": {"queries": counted, "mask": M.Window(5, 0)},
    }
    for name, given in cases.items():
        whole = hw.attention_statistics(q, k, v, names, **given)
        for shape in ("contiguous", "zigzag"):
            shards = getattr(Shards, shape)(LENGTH, group)
            *own, at = shards.take(q, k, v, dim=2, coordinates=given.get("q_positions"))
            options = {key: one for key, one in given.items() if key != "queries"} | {"q_positions": at}
            if "queries" in given:
                options["queries"] = shards.take(given["queries"][None])[0][0]
            part = hw.attention_statistics(*own, names, shards=shards, **options)
            pairs = [(part[one], shards.take(whole[one], dim=2)[0]) for one in names[:-1]]
            pairs.append((part.received, whole.received))
            assert all(torch.equal(a.isnan(), b.isnan()) for a, b in pairs)
            differences[f"{name}, {shape}"] = max(difference(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    return differences


def every_inspected(group: Any, **changes: Any) -> dict[str, dict[str, float]]:
    return {name: seeded(partial(case, group, **changes)) for name, case in INSPECTED.items()}


def inspected_by(group: Any, method: str) -> dict[str, dict[str, float]]:
    return every_inspected(group, method=method)


def nested(group: Any) -> dict[str, float]:
    """Captures in captures and contexts in contexts: what the outer and the inner one record of rows with padding."""
    model = filled(Decoder(config(), "rope")).eval()
    ids, there = ids_of(2, LENGTH), places("left")
    layouts = {name: getattr(Shards, name)(LENGTH, group) for name in ("zigzag", "contiguous")}
    names = ("entropy", "received")

    def seen(run: Callable[[], Tensor]) -> tuple[Any, Any]:
        with torch.no_grad(), hw.capture(model, "weights") as outer, hw.capture(model, statistics=names) as inner:
            run()
        return outer.records, inner.records

    def on(shards: Shards) -> Callable[[], Tensor]:
        own, local = shards.take(ids, coordinates=there)

        def run() -> Tensor:
            with parallel.context(model, shards, method="ring"):
                return model(own, positions=local)

        return run

    def in_contexts() -> Tensor:
        """Of the second layout, inside a context of the first one, which counts again afterwards."""
        with parallel.context(model, layouts["zigzag"]):
            on(layouts["contiguous"])()
            own, local = layouts["zigzag"].take(ids, coordinates=there)
            return model(own, positions=local)

    weights, statistics = seen(lambda: model(ids, positions=there))
    differences = {}
    for name, run, of in (
        ("zigzag", on(layouts["zigzag"]), ["zigzag"]),
        ("contexts", in_contexts, ["contiguous", "zigzag"]),
    ):
        outer, inner = seen(run)
        assert len(outer) == len(inner) == len(of) * len(weights)
        for number, (a, b) in enumerate(zip(outer, inner, strict=True)):
            shards, layer = layouts[of[number // len(weights)]], number % len(weights)
            pairs = [(a.weights(), shards.take(weights[layer].weights(), dim=2)[0])]
            pairs.append((a.padding.double(), shards.take(weights[layer].padding)[0].double()))
            found, expected = b.statistics(), statistics[layer].statistics()
            pairs.append((found.entropy, shards.take(expected.entropy, dim=2)[0]))
            received = found.received.clone()
            dist.all_reduce(received, group=group)
            pairs.append((received, expected.received))
            assert all(torch.equal(x.isnan(), y.isnan()) for x, y in pairs)
            differences[f"{name} {number}"] = max(difference(x.nan_to_num(), y.nan_to_num()) for x, y in pairs)
    return differences


def ablated(group: Any, at: str, shape: str = "zigzag", captured: bool = False) -> float:
    """Heads that are replaced by zeros, and by their means over the queries of all processes."""
    model = filled(Decoder(config(), "rope")).eval()
    shards, there = getattr(Shards, shape)(LENGTH, group), places(at)
    ids = ids_of(2, LENGTH)
    own, local = shards.take(ids, coordinates=there)
    heads = {(0, 1): "mean", (0, 3): "mean", (1, 0): "zero", (1, 2): "mean"}

    def part(model: nn.Module) -> Tensor:
        seen = hw.capture(model, statistics=("entropy",)) if captured else nullcontext()
        with parallel.context(model, shards, method="ring"), seen, hw.ablate(model, heads):
            return model(own, positions=local)

    def whole(model: nn.Module) -> Tensor:
        with hw.ablate(model, heads):
            return model(ids, positions=there)

    return compared(model, whole, part, group, lambda x: shards.take(x)[0])


ABLATED: dict[str, Callable[[Any], float]] = {
    "no padding": partial(ablated, at=""),
    "padding on the left": partial(ablated, at="left", shape="contiguous"),
    "padding on the right, captured": partial(ablated, at="right", captured=True),
}


def every_ablated(group: Any) -> dict[str, float]:
    return {name: seeded(partial(case, group)) for name, case in ABLATED.items()}


def decoded(
    group: Any, encoding: Any, shape: str = "zigzag", at: str = "", method: str = "ring", **changes: Any
) -> float:
    """The largest difference of logits: of a prompt, of one token, and of three at once; ids are compared here."""
    model = filled(Decoder(config(**changes), encoding)).eval()
    shards, coordinates = getattr(Shards, shape)(LENGTH, group), places(at)
    ids, later = ids_of(2, LENGTH), ids_of(2, 4, seed=6).split([1, 3], dim=1)
    rows = [row[row.shape[0] - int(n) :] for row, n in zip(ids, (LENGTH, LENGTH - 6 * bool(at)), strict=True)]
    own, local = shards.take(ids, coordinates=coordinates)
    with torch.no_grad():
        whole_cache = model.new_cache()
        whole = model(ids, positions=coordinates, cache=whole_cache)
        expected = [shards.take(whole)[0], *(model(x, cache=whole_cache) for x in later)]
        with parallel.context(model, shards, method=method):
            cache = model.new_cache()
            found = [model(own, positions=local, cache=cache), *(model(x, cache=cache) for x in later)]
            generated = model.generate(rows, 6)
    assert cache.layers[0].values.shape[1] == whole_cache.layers[0].values.shape[1]
    assert generated.ids == model.generate(rows, 6).ids
    with parallel.context(model, shards):
        sampled = model.generate(rows, 3, temperature=1.0, generator=torch.Generator().manual_seed(group.rank())).ids
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, sampled, group=group)
    assert all(one == sampled for one in every)  # though each rank draws by a seed of its own
    return max(difference(a, b) for a, b in zip(found, expected, strict=True))


def rounded(group: Any) -> list[list[int]]:
    """Ids that the processes generate of equal logits, which one of them rounds differently."""
    model = filled(Decoder(config(), "rope")).eval()
    with torch.no_grad():
        model.embedding.weight.zero_()
    if group.rank() == 1:
        model.head.register_forward_hook(lambda _, __, out: out + 1e-12 * torch.arange(out.shape[-1]))
    with parallel.context(model, Shards.zigzag(LENGTH, group)):
        return model.generate(ids_of(2, LENGTH), 3).ids


def room(group: Any) -> list[int]:
    """The tokens for which each layer of a cache has room after a prompt and two steps of ``generate``."""
    model, made = filled(Decoder(config(), "rope")).eval(), []
    new_cache = model.new_cache
    model.new_cache = lambda *length: made.append(new_cache(*length)) or made[-1]
    shards = Shards.zigzag(LENGTH, group)
    with parallel.context(model, shards):
        model.generate(ids_of(2, LENGTH), 3)
    return [max(layer._keys.storage.shape[-2] for layer in made[-1].layers), 2 * shards.length]


def full(group: Any) -> list[Any]:
    """How many steps follow a prompt until a static cache refuses one, and what it says."""
    model = filled(Decoder(config(), "rope")).eval()
    shards, steps = Shards.zigzag(LENGTH, group), 0
    own, local = shards.take(ids_of(2, LENGTH))
    with torch.no_grad(), parallel.context(model, shards):
        cache = model.new_cache(LENGTH + 2)
        model(own, positions=local, cache=cache)
        try:
            for steps in range(4):  # noqa: B007
                model(ids_of(2, 1), cache=cache)
        except hw.HeadwayError as error:
            return [steps, str(error)]
    return [steps, ""]


DECODED: dict[str, Callable[[Any], float]] = {
    "none, contiguous": partial(decoded, encoding=None, shape="contiguous"),
    "alibi": partial(decoded, encoding="alibi"),
    "rope, parts": partial(
        decoded, encoding="rope", num_kv_heads=2, parts=("value-residual", "differential", "exclusive", "element-gate")
    ),
    "rope, padding": partial(decoded, encoding="rope", at="left"),
    "t5, gather": partial(decoded, encoding="t5", method="gather"),
    "rope + fire, sinks, fewer heads of keys": partial(
        decoded, encoding="rope + fire", sink=0.5, num_kv_heads=2, method="heads"
    ),
}


def every_decoded(group: Any, names: list[str] | None = None) -> dict[str, float]:
    return {name: seeded(partial(DECODED[name], group)) for name in names or DECODED}


TRAINED: dict[str, tuple[Any, ...]] = {
    "none, DDP": ("ddp", None),
    "rope, FSDP2": ("fsdp", "rope", "ring"),
    "t5, DDP, packed": ("ddp", "t5", "ring", "packed"),
    "alibi, FSDP2, padding": ("fsdp", "alibi", "heads", "right"),
    "fire, DDP": ("ddp", "fire", "gather"),
    "learned, DDP, packed": ("ddp", "learned(max_length=64)", "auto", "packed"),
}


def every_trained(group: Any) -> dict[str, dict[str, float]]:
    return {name: seeded(partial(trained, group, *arguments)) for name, arguments in TRAINED.items()}


# ---------------------------------------------------------------- what is refused


class Scaled(nn.Module):
    """A layer that calls torch's attention."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Own(nn.Module):
    """A layer that calls headway's attention by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return hw.attention(x, x, x)


class Declared(nn.Module):
    """A layer that says that it calls the shared attention."""

    def why_not_shared(self) -> str | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        return hw.attention(x, x, x)


def _entering(group: Any) -> dict[str, Callable[[], Any]]:
    from headway.integrations.torch import swap_attention

    shards = Shards.zigzag(LENGTH, group)
    attention = hw.nn.MultiHeadAttention

    def enter(model: Any, *others: Any, **options: Any) -> None:
        with parallel.context(model, *(others or (shards,)), **options):
            pass

    def compiled() -> None:
        model = Decoder(config())
        model.compile()
        enter(model)

    def add_bias_kv() -> None:
        enter(swap_attention(nn.ModuleList([nn.MultiheadAttention(16, 2, add_bias_kv=True)])))

    def other_thread() -> None:
        from threading import Thread

        model, said = Decoder(config()), []

        def work() -> None:
            try:
                enter(model)
            except hw.HeadwayError as error:
                said.append(error)

        with parallel.context(model, shards):
            thread = Thread(target=work)
            thread.start()
            thread.join()
        enter(model)
        raise said[0]

    def one_layer_of_both() -> None:
        model = nn.Transformer(16, 2, 1, 1, batch_first=True)
        model.decoder.layers[0].self_attn = model.encoder.layers[0].self_attn
        enter(swap_attention(model))

    return {
        "no model": lambda: enter("model"),
        "no shards": lambda: enter(Decoder(config()), LENGTH),
        "shards of another group": lambda: enter(Decoder(config()), context_shards=Shards.contiguous(CONTEXT, None)),
        "unknown method": lambda: enter(Decoder(config()), method="rings"),
        "no attention": lambda: enter(nn.Linear(2, 2)),
        "torch's attention": lambda: enter(nn.Transformer(16, 2, 1, 1, batch_first=True)),
        "an attend of its own": lambda: enter(nn.ModuleList([attention(16, 2, attend=lambda q, *_, **__: q)])),
        "torch's function": lambda: enter(nn.ModuleList([attention(16, 2), Scaled()])),
        "headway's function": lambda: enter(nn.ModuleList([attention(16, 2), Own()])),
        "a recurrent layer": lambda: enter(nn.ModuleList([attention(16, 2), nn.LSTM(4, 4)])),
        "a layer of the encoder and the decoder": one_layer_of_both,
        "compiled": compiled,
        "add_bias_kv": add_bias_kv,
        "another thread": other_thread,
    }


def _calling(group: Any) -> dict[str, Callable[[], Any]]:
    from headway.integrations.torch import swap_attention

    shards, ids = Shards.zigzag(LENGTH, group), ids_of(2, LENGTH)
    own, at = shards.take(ids)
    model = Decoder(config(), "rope").eval()
    torchs = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 1, enable_nested_tensor=False
    )
    torchs = swap_attention(torchs.eval())
    vectors, context = torch.randn(2, LENGTH, 32), torch.randn(2, shards.length + group.rank(), 32)
    layer = hw.nn.MultiHeadAttention(32, 4)

    def inside(call: Callable[[], Any], of: nn.Module = model, **options: Any) -> Callable[[], Any]:
        def run() -> None:
            with parallel.context(of, shards, **options):
                call()

        return run

    def numbers() -> None:
        torchs(vectors[:, : shards.length, :16], mask=torch.ones(LENGTH, LENGTH))

    def weights() -> None:
        torchs.layers[0].self_attn(*[vectors[:, : shards.length, :16]] * 3)

    gated = Decoder(config(), "forgetting").eval()

    def observed() -> None:
        with hw.inspection.capture(gated, statistics=("entropy",)):
            gated(own)

    def twice() -> None:
        x = vectors[:, : shards.length].clone().requires_grad_()
        (grad,) = torch.autograd.grad(model.stack(x).square().sum(), x, create_graph=True)
        grad.sum().backward()

    embedding = Decoder(config(), "sinusoidal").eval()

    def captured() -> None:
        with hw.capture(model):
            model.generate(ids, 2)

    moved = Decoder(config(), "streaming-llm + rope").eval()
    drawing = Decoder(config(), "randomized(limit=64) + rope")

    @torch.no_grad()
    def draws() -> None:
        drawing(own, cache=drawing.new_cache())

    windowed, mapped = Decoder(config(), "rope", [M.Window(4, 0), None]).eval(), Decoder(config(), "cope").eval()

    @torch.no_grad()
    def filled_by(given: Tensor, within: bool) -> Any:
        cache = model.new_cache()
        with parallel.context(model, shards) if within else nullcontext():
            model(given, cache=cache)
        return cache

    @torch.no_grad()
    def decodes(cache: Any) -> None:
        model(ids[:, :1], cache=cache)

    outside = filled_by(ids, False)
    return {
        "outside": lambda: model(own, positions=at),
        "outside, without an encoding": lambda: Decoder(config())(own, positions=at),
        "outside, an encoding that embeds": lambda: embedding(own, positions=at),
        "outside, a layer": lambda: layer(vectors[:, : shards.length], positions=at),
        "cache": inside(lambda: model(own, cache=model.new_cache())),
        "memory": inside(lambda: model(own, memory=hw.nn.SegmentMemory(4))),
        "a cache of outside": inside(lambda: decodes(outside)),
        "a shared cache outside": lambda: decodes(filled_by(own, True)),
        "cropping a shared cache": lambda: filled_by(own, True).crop(3),
        "a window in a cache": inside(lambda: windowed.generate(ids, 2), windowed),
        "gates in a cache": inside(lambda: gated.generate(ids, 2), gated),
        "observed steps": inside(captured),
        "moved tokens in a cache": inside(lambda: moved.generate(ids, 2), moved),
        "drawing in a cache": inside(draws, drawing),
        "functions in a cache": inside(lambda: mapped.generate(ids, 2), mapped),
        "generate": inside(lambda: model.generate(ids[:, 1:], 2)),
        "cache of a layer": inside(lambda: layer(vectors[:, : shards.length], cache=hw.nn.KeyValueCache()), layer),
        "all tokens": inside(lambda: model(ids)),
        "coordinates of no shard": inside(lambda: model(own, positions=hw.Coordinates.span(shards.length))),
        "coordinates of other shards": inside(
            lambda: model(own, positions=hw.Coordinates.span(30).take(((0, shards.length),)))
        ),
        "a mask of the shard": inside(lambda: model(own, mask=torch.ones(shards.length, shards.length).bool())),
        "different contexts": inside(lambda: layer(vectors[:, : shards.length], context), layer),
        "numbers in a mask": inside(numbers, torchs),
        "weights": inside(weights, torchs),
        "statistics": inside(observed, gated),
        "torch.func": inside(lambda: torch.vmap(lambda row: model(row[None]))(own)),
        "second derivatives": inside(twice),
    }


def refused(group: Any, kind: str) -> dict[str, str]:
    """What is said of each model and call that a context cannot compute."""
    torch.manual_seed(0)
    said = {}
    for name, call in {"entering": _entering, "calling": _calling}[kind](group).items():
        try:
            call()
        except (hw.HeadwayError, RuntimeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
        else:
            said[name] = "nothing"
    return said


def states(group: Any) -> dict[str, Any]:
    """Contexts that nest, end in errors, end in another order, and of several models."""
    from headway.sharing import entered

    torch.manual_seed(0)
    shards, ids = Shards.zigzag(LENGTH, group), ids_of(2, LENGTH)
    others = Shards.contiguous(LENGTH, group)
    model = filled(Decoder(config(), "rope")).eval()
    second = copy.deepcopy(model)
    whole = model(ids).detach()
    found: dict[str, Any] = {}

    def gap(of: Shards, model: nn.Module = model) -> float:
        return difference(model(of.take(ids)[0]).detach(), of.take(whole)[0])

    with parallel.context(model, shards, method="ring") as shared:
        found["outer"] = gap(shards)
        with parallel.context(model, others, method="gather"):
            found["inner"] = gap(others)
        found["outer again"] = gap(shards)
        with parallel.context(second, others):
            found["another model"] = gap(others, second)
        try:
            with parallel.context(model, others):
                raise KeyError("stop")
        except KeyError:
            found["after an error"] = gap(shards)
    found["table"] = str(shared)
    first, last = parallel.context(model, shards), parallel.context(model, others)
    first.__enter__(), last.__enter__()
    first.__exit__(None, None, None)
    found["in another order"] = gap(others)
    last.__exit__(None, None, None)
    found["left"] = len(entered)
    found["outside"] = difference(model(ids).detach(), whole)
    with parallel.context(nn.ModuleList([hw.nn.MultiHeadAttention(8, 2), Declared()]), shards):
        found["declared"] = 0.0
    alone = Shards.contiguous(LENGTH, None)
    with parallel.context(model, alone):
        found["one process"] = difference(model(alone.take(ids)[0]).detach(), whole)
    return found


def rehearsed(group: Any) -> dict[str, Any]:
    """What ``explain_model`` says, beside what the layers then do; the first rank asks alone."""
    torch.manual_seed(0)
    shards, sources = Shards.zigzag(LENGTH, group), Shards.contiguous(CONTEXT, group)
    model = filled(EncoderDecoder(config(dropout=0.1), "t5", "randomized(limit=64) + rope"))
    own, at = shards.take(ids_of(2, LENGTH))
    source, there = sources.take(ids_of(2, CONTEXT, 6))
    given, options = (source, own), {"positions": there, "context_shards": sources, "method": "ring"}
    sent, state = shards.group.sent, torch.get_rng_state()
    alone = str(parallel.explain_model(model, shards, *given, **options)) if group.rank() == 0 else ""
    said = parallel.explain_model(model, shards, *given, **options)
    found = {"sent": shards.group.sent - sent, "drawn": not torch.equal(state, torch.get_rng_state())}
    with parallel.context(model, shards, method="ring", context_shards=sources) as shared:
        model(*given, positions=there).sum().backward()
    made = {name: (one.method, one.traffic[one.method]) for name, one in said.layers.items()}
    refused = filled(Decoder(config(), "cope"))
    reasons = str(parallel.explain_model(refused, shards, own, positions=at))
    try:
        parallel.explain_model(refused, shards, own, positions=at.position[..., 0])
    except hw.HeadwayError as error:
        found["tensors"] = str(error)
    return found | {"differ": made != shared.rows, "alone": alone in ("", str(said)), "text": str(said) + reasons}


def compiled(group: Any) -> dict[str, str]:
    """Functions that are compiled, called in a context."""
    shards, ids = Shards.zigzag(LENGTH, group), ids_of(2, LENGTH)
    model = Decoder(config(num_layers=1), "rope").eval()
    said = {}
    for name, fullgraph in {"graph": False, "whole graph": True}.items():
        function = torch.compile(lambda ids: model(ids), backend="eager", fullgraph=fullgraph)
        try:
            with parallel.context(model, shards):
                function(shards.take(ids)[0])
        except Exception as error:
            said[name] = str(error)
    return said


# ---------------------------------------------------------------- models of transformers


def hugging_face(group: Any, kind: str, positions: str = "none", method: str = "ring", checkpoint: bool = False) -> Any:
    """A model of transformers; gradients and logits on shards."""
    import transformers

    from headway.integrations.transformers import register

    register()
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {
        "Llama": {"intermediate_size": 48, "num_key_value_heads": 2},
        "Mistral": {"intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 5},
        "GPT2": {
            "n_positions": 64,
            "bos_token_id": None,
            "eos_token_id": None,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        "Bert": {"intermediate_size": 48, "max_position_embeddings": 64},
    }[kind]
    made = getattr(transformers, f"{kind}Config")(**sizes, **more, attn_implementation="headway")
    suffix = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM"}.get(kind, f"{kind}ForCausalLM")
    model = filled(getattr(transformers, suffix)(made)).eval()
    if checkpoint:
        model.train()
        model.activation_checkpointing_enable()
    shards, ids = Shards.zigzag(LENGTH, group), ids_of(1, LENGTH)
    whole = {"position_ids": hw.Coordinates.packed(LENGTHS).position[..., 0]} if positions == "packed" else {}
    local = {name: shards.take(x)[0] for name, x in whole.items()}

    def part(model: nn.Module) -> Tensor:
        with parallel.context(model, shards, method=method):
            return model(shards.take(ids)[0], **local).logits

    rows = lambda x: shards.take(x)[0]  # noqa: E731
    return compared(model, lambda model: model(ids, use_cache=False, **whole).logits, part, group, rows)


HUGGING_FACE = {
    "Llama": partial(hugging_face, kind="Llama"),
    "Llama, packed": partial(hugging_face, kind="Llama", positions="packed"),
    "Llama, checkpointed": partial(hugging_face, kind="Llama", method="gather", checkpoint=True),
    "Mistral, a window": partial(hugging_face, kind="Mistral"),
    "GPT-2, packed": partial(hugging_face, kind="GPT2", positions="packed", method="heads"),
    "BERT": partial(hugging_face, kind="Bert"),
}


def hugging_face_refused(group: Any) -> dict[str, str]:
    """What is said of models of transformers that a context does not reach, and of calls that it cannot compute."""
    import transformers

    from headway.integrations.transformers import register

    register()
    shards = Shards.zigzag(LENGTH, group)
    own, hidden = shards.take(ids_of(1, LENGTH), torch.arange(LENGTH)[None] > 2)[:2]
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}

    def llama(implementation: str = "headway") -> nn.Module:
        made = transformers.LlamaConfig(**sizes, intermediate_size=24, attn_implementation=implementation)
        return transformers.LlamaForCausalLM(made).eval()

    def call(model: nn.Module, **arguments: Any) -> None:
        with parallel.context(model, shards):
            model(own, **arguments)

    def t5(kind: str) -> nn.Module:
        made = transformers.T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
        made._attn_implementation = "headway"
        return getattr(transformers, kind)(made)

    calls = {
        "another implementation": lambda: call(llama("sdpa")),
        "encoder-decoder": lambda: call(t5("T5ForConditionalGeneration")),
        "no positions": lambda: call(t5("T5EncoderModel")),
        "labels": lambda: call(llama(), labels=own),
        "padding": lambda: call(llama(), attention_mask=hidden),
        "a cache": lambda: call(llama(), past_key_values=transformers.DynamicCache()),
        "vectors": lambda: call(llama(), inputs_embeds=torch.randn(1, shards.length, 16)),
        "weights": lambda: call(llama(), output_attentions=True),
        "all tokens": lambda: call(llama(), position_ids=torch.arange(LENGTH)[None]),
    }
    said = {}
    for name, one in calls.items():
        try:
            one()
        except hw.HeadwayError as error:
            said[name] = str(error)
        else:
            said[name] = "nothing"
    return said
