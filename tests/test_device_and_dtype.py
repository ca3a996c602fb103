"""Every module of headway.nn and headway.models takes device= and dtype=, as those of torch do."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import HeadwayError
from headway.models import Decoder, Encoder, EncoderDecoder, RecurrentLM, Stack, Transformer, TransformerConfig
from headway.nn import (
    Block,
    CrossLayerAttention,
    DifferentialAttention,
    ElementGate,
    Embedding,
    ExclusiveSelfAttention,
    FeedForward,
    FirstValues,
    Head,
    HeadGate,
    KeyValueCache,
    LatentAttention,
    MultiHeadAttention,
    ParallelBlock,
    Part,
    ValueResidual,
)
from headway.positions import ENCODINGS, PositionEncoding
from headway.testing.inputs import Layer, on_axes

CONFIG = TransformerConfig(50, 16, 2, 2, activation="swiglu", sink=0.5, tied_head=False)
LAYER: dict[str, Any] = {"qk_norm": "rms", "sink": 0.5}
BLOCK: dict[str, Any] = {"norm": "rms", "norm_after": nn.LayerNorm, "activation": "swiglu", "sink": 0.5}


def ids() -> Tensor:
    return torch.arange(6).reshape(2, 3)


def vectors(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 3, 16).to(dtype)


class Case:
    """How a module is made, and called with numbers of a dtype."""

    def __init__(self, make: Callable[..., nn.Module], *arguments: Any, call: Callable[..., Any], **options: Any):
        self.make, self.arguments, self.options, self.call = make, arguments, options, call

    def __call__(self, **where: Any) -> Any:
        torch.manual_seed(5)
        return self.make(*self.arguments, **self.options, **where)


def on_vectors(module: nn.Module, dtype: torch.dtype) -> Tensor:
    return module(vectors(dtype))


def on_ids(module: nn.Module, dtype: torch.dtype) -> Tensor:
    return module(ids())


def on_heads(part: Part, dtype: torch.dtype) -> Tensor:
    width = 16 if isinstance(part, DifferentialAttention) else 8
    return part.output(*(torch.randn(shape).to(dtype) for shape in ((2, 2, 3, width), (2, 3, 16), (2, 2, 3, width))))


def on_values(part: Part, dtype: torch.dtype) -> Tensor:
    first = FirstValues()
    first.values = torch.randn(2, 2, 3, 8).to(dtype)
    return part.values(torch.randn(2, 2, 3, 8).to(dtype), first)


def on_cache(module: nn.Module, dtype: torch.dtype) -> Tensor:
    x, cache = vectors(dtype), KeyValueCache()
    MultiHeadAttention(16, 2, dtype=dtype)(x, cache=cache)
    return module(x, cache=cache)


CASES: dict[type[nn.Module], list[Case]] = {
    MultiHeadAttention: [
        Case(MultiHeadAttention, 16, 2, call=on_vectors),
        Case(MultiHeadAttention, 16, 2, **LAYER, bias="qvo", num_kv_heads=1, call=on_vectors),
        Case(MultiHeadAttention, 16, 2, qk_norm=nn.LayerNorm, call=on_vectors),
        Case(MultiHeadAttention, 16, 2, parts=["differential", "exclusive", "element-gate"], call=on_vectors),
    ],
    LatentAttention: [
        Case(LatentAttention, 16, 2, latent_dim=6, rotary_dim=4, parts=parts, call=on_vectors, **options)
        for parts, options in (((), {}), (["head-gate"], {"query_latent_dim": 5, "bias": True, "encoding": "rope"}))
    ],
    CrossLayerAttention: [
        Case(CrossLayerAttention, 16, 2, call=on_cache),
        Case(CrossLayerAttention, 16, 2, qk_norm="rms", bias=False, parts=["head-gate"], call=on_cache),
    ],
    HeadGate: [Case(HeadGate, 16, 2, call=on_heads)],
    ElementGate: [Case(ElementGate, 16, 2, 8, call=on_heads)],
    ExclusiveSelfAttention: [Case(ExclusiveSelfAttention, 2, alpha, call=on_heads) for alpha in (None, 0.5)],
    ValueResidual: [Case(ValueResidual, layer, call=on_values) for layer in (0, 1)],
    DifferentialAttention: [Case(DifferentialAttention, 2, 2, 8, 1, call=on_heads)],
    FeedForward: [Case(FeedForward, 16, 32, one, call=on_vectors) for one in ("gelu", "swiglu")],
    Block: [
        Case(Block, 16, 2, call=on_vectors),
        Case(Block, 16, 2, **BLOCK, call=on_vectors),
        Case(Block, 16, 2, cross_attention=True, call=lambda m, t: m(vectors(t), context=vectors(t))),
    ],
    ParallelBlock: [
        Case(ParallelBlock, 16, 2, shared_norm=shared, norm="rms", call=on_vectors) for shared in (False, True)
    ],
    Embedding: [Case(Embedding, 50, 16, num_types=types, scale=2.0, call=on_ids) for types in (0, 2)],
    Head: [Case(Head, 16, 50, bias=True, tied=tied, call=lambda m, t: m(*both(t))) for tied in (False, True)],
    Stack: [Case(Stack.of, CONFIG, cross_attention=False, call=on_vectors)],
    Encoder: [Case(Encoder, CONFIG, call=on_ids)],
    Decoder: [Case(Decoder, CONFIG, call=on_ids)],
    EncoderDecoder: [Case(EncoderDecoder, CONFIG, None, None, call=lambda m, t: m(ids(), ids()))],
    RecurrentLM: [
        Case(RecurrentLM, 50, 16, 24, 2, cell, tied_head=tied, call=on_ids)
        for cell in ("lstm", "rnn")
        for tied in (False, True)
    ],
}
NOTHING_OF_ITS_OWN = {Transformer, Part}
"""Made of parts that are handed over."""

EACH = [
    pytest.param(case, id=f"{kind.__name__}-{number}")
    for kind, cases in CASES.items()
    for number, case in enumerate(cases)
]


def both(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return vectors(dtype), torch.randn(50, 16).to(dtype)


def public_modules() -> list[type[nn.Module]]:
    return [
        thing
        for owner in (headway.nn, headway.models)
        for name, thing in vars(owner).items()
        if not name.startswith("_") and inspect.isclass(thing) and issubclass(thing, nn.Module)
        if thing.__module__.startswith("headway.")
    ]


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def draws_alike(dtype: torch.dtype) -> bool:
    """Whether torch draws the same numbers from a seed as in float32: not float64, nor of a half before torch 2.13."""
    drawn = []
    for kind in (dtype, torch.float32):
        torch.manual_seed(0)
        drawn.append(torch.empty(5, dtype=kind).uniform_().float())
    return torch.allclose(*drawn, atol=0.01)


def test_every_public_module_is_looked_at() -> None:
    assert set(public_modules()) == set(CASES) | NOTHING_OF_ITS_OWN
    for kind, cases in CASES.items():
        for case in cases:
            for name in ("device", "dtype"):
                parameter = inspect.signature(case.make).parameters[name]
                assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None), (kind, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", EACH)
def test_parameters_are_of_the_dtype_and_begin_alike(case: Case, dtype: torch.dtype) -> None:
    module, wanted = case(dtype=dtype), case().to(dtype)
    assert {one.dtype for one in tensors(module).values()} <= {dtype}
    assert list(module.state_dict()) == list(wanted.state_dict())
    if draws_alike(dtype):
        for name, found in tensors(module).items():
            other = tensors(wanted)[name]
            torch.testing.assert_close(found.abs(), other.abs(), rtol=1e-2, atol=4e-3, msg=name)
            # torch's uniform draws of few bits that round to the upper bound become the lower one
            assert ((found - other).abs() > 1e-2).sum() <= 1 + 0.02 * found.numel(), name
    else:
        for name, found in tensors(module).items():
            other = tensors(wanted)[name]
            if found.numel() > 200:
                torch.testing.assert_close(found.std(), other.std(), rtol=0.2, atol=0)
            elif other.unique().numel() == 1:
                assert torch.equal(found, other)
    out = case.call(module.eval(), dtype)
    assert out.dtype == dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("case", EACH)
def test_parameters_are_on_the_device(case: Case) -> None:
    for device in ("meta", torch.device("meta")):
        module = case(device=device, dtype=torch.bfloat16)
        assert {(one.device.type, one.dtype) for one in tensors(module).values()} <= {("meta", torch.bfloat16)}
    with torch.device("meta"):
        module = case()
        assert {one.device.type for one in tensors(module).values()} <= {"meta"}
        module = case(device="cpu")  # what is said of one module goes before what is said of all
        assert {one.device.type for one in tensors(module).values()} <= {"cpu"}
    wanted = case(dtype=torch.float64).eval()
    module = case(device="meta").to_empty(device="cpu").double().eval()
    module.load_state_dict(wanted.state_dict())
    torch.manual_seed(1)
    found = case.call(module, torch.float64)
    torch.manual_seed(1)
    torch.testing.assert_close(found, case.call(wanted, torch.float64), rtol=0, atol=0)


def attended(encoding: PositionEncoding, device: str) -> Tensor:
    """What a layer with an encoding computes, of the same numbers each time."""
    layer = Layer(encoding, torch.Generator().manual_seed(0), torch.float32).to(device).eval()
    x = torch.randn(2, 6, layer.sizes.embed_dim, generator=torch.Generator().manual_seed(1))
    return layer(x.to(device), on_axes(headway.Coordinates.span(6, device=device), encoding.axes))


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_is_built_without_data(name: str) -> None:
    """On the meta device, where it computes shapes; once its parameters are loaded, it is as one built with data."""
    with torch.device("meta"):
        empty = ENCODINGS[name].examples()
    for one, wanted in zip(empty, ENCODINGS[name].examples(), strict=True):
        assert {x.device.type for x in tensors(one).values()} <= {"meta"}
        expected = attended(wanted, "cpu")
        assert attended(one, "meta").shape == expected.shape
        one.to_empty(device="cpu").load_state_dict(wanted.state_dict())
        assert torch.equal(attended(one, "cpu"), expected)


@pytest.mark.parametrize("case", EACH)
def test_skip_init(case: Case) -> None:
    if not inspect.isclass(case.make):
        pytest.skip("a function, which skip_init does not take")
    module = nn.utils.skip_init(case.make, *case.arguments, **case.options, dtype=torch.bfloat16)
    assert {(one.device.type, one.dtype) for one in tensors(module).values()} <= {("cpu", torch.bfloat16)}
    assert {name: one.shape for name, one in tensors(module).items()} == {
        name: one.shape for name, one in tensors(case()).items()
    }


@pytest.mark.parametrize("case", EACH)
def test_first_values_can_be_drawn_again_in_any_dtype(case: Case) -> None:
    module = case(dtype=torch.bfloat16)
    begin = getattr(module, "initialise", None) or getattr(module, "reset_parameters", None)
    if begin is None:
        return
    with torch.no_grad():
        for one in module.parameters():
            one.fill_(7.0)
    begin(*([0.02] if isinstance(module, Stack) else []))
    own = dict(module.named_parameters(recurse=not isinstance(module, (MultiHeadAttention, CrossLayerAttention))))
    assert all((one != 7).any() for name, one in own.items() if ".types." not in f".{name}")


def test_what_is_handed_over_stays_as_it_is() -> None:
    """As torch has it; to() afterwards takes all along."""
    table = headway.encoding("t5", num_heads=2)
    own = nn.Linear(16, 16)
    sink = nn.Parameter(torch.zeros(2))
    made = [
        MultiHeadAttention(16, 2, encoding=table, sink=sink, dtype=torch.bfloat16),
        Block(16, 2, feed_forward=own, dtype=torch.bfloat16),
        Head(16, 50, transform=own, dtype=torch.bfloat16),
        Decoder(CONFIG, table, dtype=torch.bfloat16),
    ]
    handed = {id(one) for one in (*table.parameters(), *own.parameters(), sink)}
    for module in made:
        assert {one.dtype for one in module.parameters() if id(one) in handed} == {torch.float32}
        assert {one.dtype for one in module.parameters() if id(one) not in handed} == {torch.bfloat16}
    assert made[-1].eval()(ids()).dtype == torch.bfloat16  # terms are float32 beside any q
    assert {one.dtype for one in made[-1].to(torch.bfloat16).parameters()} == {torch.bfloat16}


def test_errors_come_before_anything_is_made() -> None:
    for make in (lambda: MultiHeadAttention(15, 2, device="meta"), lambda: FeedForward(16, 0, dtype=torch.bfloat16)):
        with pytest.raises(HeadwayError):
            make()
