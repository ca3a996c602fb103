"""``torch.onnx.export`` of headway's modules: the files compute the same in onnxruntime, at lengths of their own."""

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway import masks as M
from headway.kernels import KERNELS, reference
from headway.models import Decoder, Encoder, TransformerConfig
from headway.positions import ENCODINGS
from headway.tracing import searchsorted
from onnx_exports import DYNAMIC, GOLDEN, WITHIN, Exported, Layers, difference, quiet

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CONFIG = TransformerConfig(50, embed_dim=32, num_layers=1, num_heads=4)
ROWS, TOKENS = {0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC}


class Masked(nn.Module):
    """Attention under several masks, each of which reads another of the inputs."""

    def forward(self, x: Tensor, context: Tensor, lengths: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        q, k = x[:, None].expand(-1, 4, -1, -1), context[:, None]
        own = {"q": q, "k": q[:, :2], "v": q[:, :2], "encoding": ALIBI}
        left = hw.Coordinates.padded(lengths, x.shape[1], side="left")
        return (
            hw.attention(**own, mask=M.Documents(ids) & (M.Window(3, 0) | M.KeepFirst(1))),
            hw.attention(**own, mask=M.Causal() & M.Padding(lengths, side="left"), q_positions=left, k_positions=left),
            hw.attention(q, k, k, mask=M.Causal()),
        )

    @staticmethod
    def inputs(lengths: list[int], context: int) -> tuple[Tensor, ...]:
        batch, n = len(lengths), max(lengths) + 1
        ids = torch.randint(3, (batch, n)).sort(1).values
        return torch.randn(batch, n, 8), torch.randn(batch, context, 8), torch.tensor(lengths), ids


ALIBI = hw.encoding("alibi", num_heads=4)


@pytest.mark.slow
def test_masks_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths of the example decide nothing: it has more scores than a block, and as many queries as keys."""
    monkeypatch.setattr(reference, "BLOCK", 16)
    model = Masked()
    file = Exported(model, model.inputs([6, 2], 7), (TOKENS, TOKENS, ROWS, TOKENS))
    for inputs in (model.inputs([6, 2], 7), model.inputs([1], 1), model.inputs([19, 0, 7], 23)):
        for found, right in zip(file(*inputs), model(*inputs), strict=True):
            assert difference(found, right) <= WITHIN


@pytest.mark.slow
def test_a_decoder_from_a_program_that_keeps_its_operators() -> None:
    """What ``torch.export`` makes has headway's operator, as before; ONNX replaces it."""
    model = Decoder(CONFIG, hw.encoding("t5", num_heads=4)).eval()
    tokens = torch.export.Dim("n", max=1000)
    with quiet():
        program = torch.export.export(model, (torch.randint(50, (2, 7)),), dynamic_shapes=({1: tokens},))
        program = program.run_decompositions()
    called = [str(node.target) for node in program.graph.nodes if "headway" in str(node.target)]
    assert len(called) == CONFIG.num_layers
    file = Exported(program)
    assert {domain for domain, _ in file.operators} == {""}
    for n in (2, 7, 31):
        ids = torch.randint(50, (2, n))
        assert difference(file(ids)[0], model(ids)) <= WITHIN


def test_half_precision_and_torchs_own_attention() -> None:
    """``kernel="sdpa"`` becomes the operator that ONNX has for attention."""
    layer = hw.nn.MultiHeadAttention(32, 4, encoding=hw.encoding("rope", head_dim=8), kernel="sdpa").half().eval()
    x = torch.randn(2, 5, 32).half()
    file = Exported(layer, (x,), opset_version=23)
    assert ("", "Attention") in file.operators
    assert difference(file(x)[0], layer(x)) <= 2e-3


def chain(error: BaseException | None) -> str:
    """What an error and its causes say."""
    return "" if error is None else f"{error}\n{chain(error.__cause__)}"


def test_what_cannot_be_exported_says_why() -> None:
    model = Layers({"liere": ENCODINGS["liere"].examples()[0]}).eval()
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as raised:
        Exported(model, model.inputs(1, 5))
    assert json.loads(GOLDEN.read_text(encoding="utf-8"))["liere"] in chain(raised.value)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN, which prepacks")
def test_prepacked_weights_are_refused() -> None:
    model = hw.nn.prepack(Encoder(CONFIG).eval())
    with torch.no_grad(), pytest.raises(torch.onnx.errors.OnnxExporterError) as raised:
        Exported(model, (torch.randint(50, (1, 5)),))
    assert re.search(r"ONNX cannot keep prepacked weights: call headway\.nn\.unprepack", chain(raised.value))


def test_the_old_exporter_is_refused() -> None:
    with quiet(), pytest.raises(hw.HeadwayError, match=r"onnx\.export\(dynamo=False\) would keep .*: leave out dynamo"):
        torch.onnx.export(
            nn.Sequential(hw.nn.MultiHeadAttention(8, 2)).eval(), (torch.randn(1, 5, 8),), "unwritten", dynamo=False
        )


def test_flexattention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels import flex

    monkeypatch.setattr(flex, "to_onnx", lambda: True)
    monkeypatch.setattr(flex.FlexKernel, "devices", frozenset({"cpu"}))
    q = torch.randn(1, 2, 5, 16)
    assert "ONNX has no FlexAttention" in hw.explain(q, q, q).reasons["flex"]


def test_counted_as_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an export, over edges of one dimension and of more, from either side."""
    generator = torch.Generator().manual_seed(0)
    cases: list[tuple[Any, ...]] = []
    for edges, x in (((5,), (2, 3, 4)), ((2, 5), (2, 7)), ((0,), (3,)), ((2, 3, 4), (2, 3, 5))):
        sorted_edges = torch.randint(9, edges, generator=generator).sort(-1).values
        cases += [(sorted_edges, torch.randint(9, x, generator=generator), right) for right in (False, True)]
    expected = [searchsorted(edges, x, right=right) for edges, x, right in cases]
    monkeypatch.setattr("headway.tracing.to_onnx", lambda: True)
    for (edges, x, right), searched in zip(cases, expected, strict=True):
        assert torch.equal(searchsorted(edges, x, right=right), searched)


def test_every_kernel_with_operators_has_a_decomposition() -> None:
    for name in ("cpu", "triton", "reference"):
        assert KERNELS[name].forward_op.default in torch._decomp.decomposition_table
