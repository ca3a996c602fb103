"""Weights that another library keeps elsewhere between calls: headway's models are right with them, or refuse.

accelerate's cpu_offload leaves parameters on meta, and fetches those of a module in its ``forward``. Whatever reads the
parameters of a module without calling it finds none, and some of torch's products with them are uninitialized memory.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway import HeadwayError
from headway.checkpoints import FAMILIES
from headway.inspection._projection import weight_of
from headway.models import Encoder, EncoderDecoder, RecurrentLM, Stack
from headway.nn import Embedding, Head, MultiHeadAttention
from headway.positions import ENCODINGS
from headway.testing.checkpoints import draw
from ways import offload

CASES = [
    pytest.param(family, example, id=f"{name}-{number}")
    for name, family in FAMILIES.items()
    for number, example in enumerate(family.examples)
    if number < 2 or "sliding_window" in example
]


def made(family: type, example: dict[str, Any]) -> tuple[Any, list[Tensor]]:
    model = family().build(family().config(example), head=family.architectures[example["architectures"][0]]).eval()
    draw(model)
    if "image_size" in example:
        return model, [torch.randn(2, example.get("num_channels", 3), 12, 12)]
    ids = torch.randint(5, example["vocab_size"] - 1, (2, 9))
    if "num_mel_bins" in example:
        return model, [torch.randn(2, example["num_mel_bins"], 32), ids]
    return model, [ids, ids] if isinstance(model, EncoderDecoder) else [ids]


@torch.no_grad()
@pytest.mark.parametrize(("family", "example"), CASES)
def test_a_model_is_right_or_refuses(family: type, example: dict[str, Any]) -> None:
    """Encodings have no call of their own that would fetch their parameters; without them, all of a model works."""
    model, inputs = made(family, example)
    expected = model(*inputs)
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    read = [parameter for stack in stacks for parameter in stack.encodings.parameters()]
    if not read and model.embedding.weight is not None:
        assert torch.equal(offload(model)(*inputs), expected)
        return
    blocks = [block for stack in stacks for block in stack.blocks]
    if not {id(one) for one in read} & {id(one) for block in blocks for one in block.parameters()}:  # DeBERTa v2 shares
        for block in blocks:
            offload(block)
        assert torch.equal(model(*inputs), expected)
    with pytest.raises(HeadwayError, match=r"of .* is on meta, without numbers, .*: cpu_offload\(block\)"):
        offload(model)(*inputs)


@torch.no_grad()
@pytest.mark.parametrize("tied_head", [True, False])
def test_a_recurrent_model(tied_head: bool) -> None:
    model = RecurrentLM(20, 8, 6, tied_head=tied_head).eval()
    ids = torch.randint(20, (2, 5))
    expected = model(ids)
    assert torch.equal(offload(model)(ids), expected)


@torch.no_grad()
def test_the_type_of_tokens_that_have_none() -> None:
    embedding = Embedding(20, 8, num_types=2)
    ids = torch.randint(20, (2, 5))
    expected = embedding(ids)
    assert torch.equal(embedding(ids, torch.zeros_like(ids)), expected)
    assert torch.equal(offload(embedding)(ids), expected)


@torch.no_grad()
def test_a_head_tied_to_a_module_of_ones_own() -> None:
    model = Encoder.of_parts(nn.Embedding(20, 8), Stack([]), Head(8, 20, tied=True))
    ids = torch.randint(20, (2, 5))
    expected = model(ids)
    torch.testing.assert_close(expected, model.embedding(ids) @ model.embedding.weight.T)
    with pytest.raises(HeadwayError, match="weight of the token embeddings is on meta"):
        offload(model)(ids)


class OwnHead(Head):
    def forward(self, x: Tensor, embeddings: Any = None) -> Tensor:
        return super().forward(x, embeddings)


@torch.no_grad()
def test_a_head_of_ones_own_reads_no_weights_that_are_away() -> None:
    model = Encoder.of_parts(hw.nn.Embedding(20, 8), Stack([]), OwnHead(8, 20, tied=True))
    ids = torch.randint(20, (2, 5))
    torch.testing.assert_close(model(ids), model.embedding(ids) @ model.embedding.weight.T)
    with pytest.raises(HeadwayError, match="weight of the token embeddings, which the head reads, is on meta"):
        offload(model)(ids)


def test_hooks_on_embeddings_see_embeddings_alone() -> None:
    """Noise on the embeddings, as some train with, is not noise on the logits of a tied head."""
    model = hw.models.Decoder(hw.models.TransformerConfig(vocab_size=20, embed_dim=8, num_layers=1, num_heads=2))
    seen: list[torch.Size] = []
    model.embedding.register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    model(torch.randint(20, (2, 5)))
    assert seen == [(2, 5, 8)]


LEARNED = [name for name, kind in ENCODINGS.items() if any(True for _ in kind.examples()[0].parameters())]


@pytest.mark.parametrize("name", LEARNED)
def test_an_encoding_without_numbers_places_no_tokens(name: str) -> None:
    """Whoever uses an encoding places tokens first."""
    encoding = ENCODINGS[name].examples()[0].to("meta")
    with pytest.raises(HeadwayError, match=f"of {type(encoding).__name__}.* is on meta, without numbers"):
        encoding.place(hw.Coordinates.span(5))


@pytest.mark.parametrize("name", ["t5", "transformer-xl", "forgetting"])
def test_a_layer_whose_encoding_loses_its_numbers(name: str) -> None:
    layer = MultiHeadAttention(16, 4, encoding=hw.encoding(name, num_heads=4, head_dim=4, embed_dim=16))
    x, mask = torch.randn(2, 6, 16), hw.masks.Causal()
    for _ in range(3):
        layer(x, mask=mask)
    layer.encoding.to("meta")
    with pytest.raises(HeadwayError, match="is on meta, without numbers"):
        layer(x, mask=mask)


def test_a_projection_on_meta_is_none_that_inspection_can_read() -> None:
    assert weight_of(nn.Linear(4, 4)) is not None
    assert weight_of(nn.Linear(4, 4, device="meta")) is None


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, inputs = made(FAMILIES["llama"], FAMILIES["llama"].examples[7])
    with torch.no_grad():
        expected = model(*inputs)
        assert torch.equal(accelerate.cpu_offload(model, torch.device("cpu"))(*inputs), expected)
