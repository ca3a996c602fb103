"""No tensor of a file is lost in silence: each changes what the model gives, or has to be what headway has instead."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import HeadwayError
from headway.checkpoints import ARCHITECTURES, FAMILIES, Config, _load, load
from headway.checkpoints._left_out import (
    Copy,
    Counted,
    Frequencies,
    LeftOut,
    Loaded,
    Lowest,
    Sines,
    Triangle,
    Turns,
    Unused,
)
from headway.checkpoints._rules import named_tensors, written
from headway.models import EncoderDecoder
from headway.testing.checkpoints import draw

ROWS = 70
EXAMPLES = [
    pytest.param(next(one for one in family.examples if family.architectures[one["architectures"][0]] == head), id=id_)
    for name, family in FAMILIES.items()
    for head in sorted(set(family.architectures.values()))
    for id_ in [f"{name}-{'head' if head else 'body'}"]
]
KEYS = r"self\.key|k_lin|attn\.k|self_attn\.k_proj|encoder_attn\.k_proj|attention\.key|attention\.k_proj|pos_key_proj"
"""Their biases no output can tell: the same number on all scores of a query, where no encoding turns keys."""


def file_of(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a model as a file has them, and all that older files hold besides."""
    (architecture,) = config["architectures"]
    family, read = ARCHITECTURES[architecture](), Config(config)
    head = family.architectures[architecture]
    torch.manual_seed(0)
    model = family.build(read, head=head)
    draw(model)
    for buffer in named_tensors(model).values():
        if not isinstance(buffer, torch.nn.Parameter) and buffer.is_floating_point():
            buffer.copy_(torch.randn_like(buffer))
    tensors = written(family.rules(read, head=head, prefix=head), model)
    for pattern, kind in family.ignored.items():
        name = pattern.replace("*", "x.")
        if not any(fnmatch(one, pattern) for one in tensors) and (value := besides(kind, config, named_tensors(model))):
            tensors[name] = value[0]
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def besides(kind: LeftOut, config: Mapping[str, Any], ours: Mapping[str, Tensor]) -> list[Tensor]:
    """What a file has there, from its formula; nothing where the model has nothing like it."""
    if isinstance(kind, Unused):
        return [torch.randn(3, 5)]
    if isinstance(kind, Copy):
        return [tensor for name, tensor in ours.items() if fnmatch(name, kind.of)]
    if isinstance(kind, Counted):
        return [torch.arange(ROWS)[None]]
    if isinstance(kind, Triangle):
        return [torch.tensor([[j <= i for j in range(ROWS)] for i in range(ROWS)])[None, None]]
    if isinstance(kind, Lowest):
        return [torch.tensor(-1e4)]
    width = config.get("hidden_size", config.get("n_embd", config.get("d_model", 32)))
    each = config.get("head_dim", width // config.get("num_attention_heads", config.get("n_head", 1)))
    base = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
    if isinstance(kind, Sines):
        angles = [[p / 10000 ** (2 * (c // 2) / width) for c in range(0, width, 2)] for p in range(ROWS)]
        return [torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles])]
    part = (config.get("rope_parameters") or {}).get("partial_rotary_factor", config.get("partial_rotary_factor"))
    part = config.get("rotary_pct", 0.5 if config["model_type"] == "phi" else None) if part is None else part
    turned = config.get("rotary_dim") or int(each * (1 if part is None else part))
    if isinstance(kind, Frequencies):
        turned = width if kind.sinusoids else turned
        return [torch.tensor([base ** (-c / turned) for c in range(0, turned, 2)])]
    assert isinstance(kind, Turns)
    angles = [[p / base ** (c / turned) for c in range(0, turned, 2)] for p in range(ROWS)]
    return [torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles])]


@torch.no_grad()
def output(config: Mapping[str, Any]) -> Any:
    model, generator = load("anywhere"), torch.Generator().manual_seed(1)
    if "patch_size" in config:
        size = config["image_size"]
        return model(torch.randn(2, config.get("num_channels", 3), size, size, generator=generator))
    ids = torch.randint(5, config["vocab_size"], (4, 40), generator=generator)
    if "num_mel_bins" in config:
        frames = 2 * config["max_source_positions"]
        return model(torch.randn(2, config["num_mel_bins"], frames, generator=generator), ids[:2, :9])
    if config["model_type"] == "xlnet":
        return model(ids, types=ids % 2)
    return model(ids, ids.flip(1)[:, :9]) if isinstance(model, EncoderDecoder) else model(ids)


def one_of_each_rule(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the tensors of all layers, which one rule names, those of the last layer."""
    last = {re.sub(r"\d+", "{}", name): name for name in tensors}
    return {name: tensors[name] for name in last.values()}


def changed(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.flip(-1)
    return tensor + 0.3 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)).to(tensor.dtype) + 0.1


@pytest.mark.one_in(5)
@pytest.mark.parametrize("config", EXAMPLES)
def test_every_tensor_of_a_file_counts(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = file_of(config)
    held = dict(tensors)
    monkeypatch.setattr(_load, "read_config", lambda path: dict(config))
    monkeypatch.setattr(_load, "read_tensors", lambda path: dict(held))
    ignored = FAMILIES[next(n for n, f in FAMILIES.items() if config["architectures"][0] in f.architectures)].ignored
    whole, silent, refused, said = output(config), [], [], []
    for name, tensor in one_of_each_rule(tensors).items():
        held[name] = changed(tensor) if tensor.ndim else tensor * 0
        try:
            if torch.allclose(output(config), whole, rtol=1e-5, atol=1e-6):
                silent.append(name)
        except HeadwayError as error:
            refused.append(name)
            said.append(str(error))
        held[name] = tensor
    kinds = {name: next((kind for pattern, kind in ignored.items() if fnmatch(name, pattern)), None) for name in silent}
    unused = [
        name for name, kind in kinds.items() if isinstance(kind, Unused) or (isinstance(kind, Copy) and kind.head)
    ]
    assert [name for name in silent if name not in unused and not re.fullmatch(rf".*({KEYS})\.bias", name)] == []
    needs = [name for name, kind in ignored.items() if not isinstance(kind, Unused | Copy)]
    assert all(any(fnmatch(name, one) for name in refused) for one in needs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_computed_table_is_compared_to_its_rounding(dtype: torch.dtype) -> None:
    """Rounded once it is the same; with one position more, or another base, it is not."""
    model = ARCHITECTURES["RoFormerModel"]().build(Config(FAMILIES["roformer"].examples[0]), head=False)
    loaded, table = Loaded(model, False, {}), besides(Turns(), FAMILIES["roformer"].examples[0], {})[0]
    assert Turns().fits(table.to(dtype), loaded)
    assert not Turns().fits(table.roll(1, 0).to(dtype), loaded)
    frequencies = besides(Frequencies(), FAMILIES["roformer"].examples[0], {})[0]
    assert Frequencies().fits(frequencies.to(dtype), loaded)
    assert not Frequencies().fits((frequencies * 1.05).to(dtype), loaded)


def test_frequencies_before_a_scaling_are_taken() -> None:
    """Older files hold those, and the config says by what they are scaled."""
    config = {
        **FAMILIES["llama"].examples[0],
        "rope_parameters": None,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    }
    model = ARCHITECTURES["LlamaForCausalLM"]().build(Config(config), head=True)
    plain = besides(Frequencies(), config, {})[0]
    assert Frequencies().fits(plain, Loaded(model, True, {}))
    assert Frequencies().fits(plain / 4, Loaded(model, True, {}))
    assert not Frequencies().fits(plain / 2, Loaded(model, True, {}))
