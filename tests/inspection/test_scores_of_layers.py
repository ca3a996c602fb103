"""Scores of several layers, of values and of gradients, against their formulas in float64 on models of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway import terms as T
from headway.errors import HeadwayError
from headway.inspection import STATISTICS, statistics_of
from headway.inspection._sources import SOURCES
from headway.inspection._watch import Change, Found, Observer
from headway.inspection._weights import dense_weights
from headway.inspection.scores.norm_weighted import weighted_call
from headway.models import Decoder, EncoderDecoder, TransformerConfig

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[3, 5, 7, 5, 9, 3, 5], [2, 2, 2, 8, 2, 8, 8]])
HEADS, WIDTH = 4, 16


class Case:
    """A model with what a test reads of its layers: values [batch, heads, n, v_dim], W_O [layers][heads·v_dim, width].

    ``values`` are known after a call of the model, by hooks on the modules that compute them.
    """

    def __init__(
        self,
        model: nn.Module,
        given: Any,
        layers: list[nn.Module],
        into: Callable[[nn.Module, Tensor], Tensor],
        weights: list[Tensor],
    ) -> None:
        self.model, self.given, self.weights = model.eval().double(), given, weights
        self.values: list[Tensor] = []

        def keep(module: nn.Module, args: Any, out: Any) -> None:
            self.values.append(into(module, (args, out)))  # type: ignore[arg-type]

        for layer in layers:
            layer.register_forward_hook(keep)

    def run(self) -> Any:
        self.values.clear()
        return self.model(**self.given) if isinstance(self.given, dict) else self.model(*self.given)


def by_head(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def headway_model() -> Case:
    config = TransformerConfig(vocab_size=40, embed_dim=WIDTH, num_heads=HEADS, num_layers=2, num_kv_heads=2)
    model = Decoder(config, hw.encoding("rope", head_dim=4)).double()
    parts = [block.attention for block in model.stack.blocks]
    return Case(
        model,
        (IDS,),
        [part.v_proj for part in parts],
        lambda module, io: by_head(io[1], 2).repeat_interleave(2, 1),
        [part.out_proj.weight.T for part in parts],
    )


def gpt2() -> Case:
    config = transformers.GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=2, vocab_size=40, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).double()
    parts = [block.attn for block in model.transformer.h]
    return Case(
        model,
        {"input_ids": IDS},
        [part.c_attn for part in parts],
        lambda module, io: by_head(io[1][..., 2 * WIDTH :]),
        [part.c_proj.weight for part in parts],
    )


def bert() -> Case:
    config = transformers.BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=8, vocab_size=40
    )
    model = transformers.BertModel(config, add_pooling_layer=False).double()
    parts = [layer.attention for layer in model.encoder.layer]
    given = {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 5 + [0] * 2, [1] * 7])}
    return Case(
        model,
        given,
        [part.self.value for part in parts],
        lambda module, io: by_head(io[1]),
        [part.output.dense.weight.T for part in parts],
    )


def llama() -> Case:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=8,
        vocab_size=40,
        pad_token_id=0,
    )
    model = transformers.LlamaModel(config).double()
    parts = [layer.self_attn for layer in model.layers]
    return Case(
        model,
        {"input_ids": IDS},
        [part.v_proj for part in parts],
        lambda module, io: by_head(io[1], 2).repeat_interleave(2, 1),
        [part.o_proj.weight.T for part in parts],
    )


def torch_encoder() -> Case:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    parts = [one.self_attn for one in model.layers]

    def values(module: Any, io: Any) -> Tensor:
        return by_head(F.linear(io[0][0], module.in_proj_weight[2 * WIDTH :], module.in_proj_bias[2 * WIDTH :]))

    return Case(
        model, (torch.randn(2, 7, WIDTH).double(),), list(parts), values, [part.out_proj.weight.T for part in parts]
    )


CASES = {"headway": headway_model, "gpt2": gpt2, "bert": bert, "llama": llama, "torch": torch_encoder}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    made = CASES[request.param]()
    with torch.no_grad():
        for part in made.model.parameters():  # of order one, biases too
            part.copy_(torch.randn_like(part) * 0.5)
    return made


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours, truth, atol=1e-12, rtol=1e-11, equal_nan=True)


# ---------------------------------------------------------------- norm-weighted weights


def test_norm_weighted(case: Case) -> None:
    """‖A[i,j]·f(xⱼ)‖, with f(xⱼ) = vⱼ·W_O^h made for every key and head."""
    with torch.no_grad(), hw.capture(case.model, "qkv") as seen:
        case.run()
    weighted = seen.scores("norm_weighted")
    for layer, (v, weight) in enumerate(zip(case.values, case.weights, strict=True)):
        projected = torch.einsum("bhjd,hde->bhje", v, weight.unflatten(0, (HEADS, -1)))
        a = seen.weights(layer)
        lengths = torch.einsum("bhij,bhje->bhije", a, projected).norm(dim=-1)
        norms = seen.record(layer).value_norms
        assert norms is not None
        close(norms, projected.norm(dim=-1))
        close(a * norms[:, :, None], lengths)
        shares = lengths / lengths.sum(-1, keepdim=True)
        close(weighted.weights(layer), shares)
        found = weighted.statistics(layer, ("entropy", "received"))
        entropy = torch.special.entr(shares).sum(-1)
        close(found.entropy, entropy.masked_fill(~found.counted, torch.nan))
        close(found.received, (shares * found.counted[..., None]).sum(2))
    assert weighted.table("entropy") != seen.table("entropy")
    causal = case.model.__class__.__name__ in ("Decoder", "GPT2LMHeadModel", "LlamaModel")
    if causal:
        assert weighted.scores("induction", ids=IDS).mean().shape == (2, HEADS)


TERMS: dict[str, tuple[Any, ...]] = {
    "none": (),
    "sink": (T.Sink(torch.tensor([0.3, 1.0, -0.5])),),
    "cap": (T.SoftCap(1.5),),
    "map": (T.ScoreMap(lambda scores, allowed, q, rows: scores * 2 + 1),),
    "normalizer": (T.Normalizer(lambda scores, allowed: (torch.sigmoid(scores) / 9).masked_fill(~allowed, 0)),),
}


@pytest.mark.parametrize("terms", TERMS)
def test_norm_weighted_with_whatever_makes_the_weights(terms: str) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 6, 4).double(), torch.randn(2, 3, 6, 4).double()
    norms = torch.rand(2, 3, 6).double()
    norms[:, :, 2] = 0  # a value of zeros adds nothing
    call = hw.call.make_call(q, k, k, mask=hw.masks.Causal(), terms=TERMS[terms])
    a = hw.attention_weights(q, k, k, mask=hw.masks.Causal(), terms=TERMS[terms])
    shares = a * norms[:, :, None] / (a * norms[:, :, None]).sum(-1, keepdim=True)
    weighted = weighted_call(call, norms)
    close(dense_weights(weighted), shares)
    found = statistics_of(weighted, [STATISTICS["entropy"]()])
    close(found.entropy, torch.special.entr(shares).sum(-1))


def test_a_projection_that_is_not_known() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.gate, self.out = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.out(heads * self.gate(x).sigmoid())

    model = Gated()
    with hw.capture(model, "qkv") as seen:
        model(torch.randn(2, 5, 8))
    assert seen.weights(0).shape == (2, 2, 5, 5)
    with pytest.raises(HeadwayError, match="the output projection of '' is not known: no linear layer is given"):
        seen.scores("norm_weighted")


def test_an_adapter_is_no_linear_layer() -> None:
    """A low-rank adapter projects the heads beside the layer that it adapts, in training through dropout."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 8)
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x) + self.up(self.down(self.dropout(x)))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), Adapted()

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    for training in (True, False):
        model = Own().train(training)
        with hw.capture(model, "qkv") as seen:
            model(torch.randn(2, 5, 8))
        with pytest.raises(HeadwayError, match="several linear layers project the outputs of its heads"):
            seen.scores("norm_weighted")


@pytest.mark.parametrize(
    ("encoding", "why"),
    [("shaw", "adds vectors to the values by distance"), ("rope + rotary-values", "transforms the values by position")],
)
def test_values_without_a_length(encoding: str, why: str) -> None:
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=1)
    model = Decoder(config, hw.encoding(encoding, head_dim=4, num_heads=4))
    with hw.capture(model, "qkv") as seen:
        model(IDS)
    with pytest.raises(HeadwayError, match=why):
        seen.scores("norm_weighted")


def test_prepacked_layers_project_too() -> None:
    case = headway_model()
    model = case.model.float()
    model.requires_grad_(False)
    with hw.capture(model, "qkv") as seen:
        model(IDS)
    hw.nn.prepack(model)
    with hw.capture(model, "qkv") as packed:
        model(IDS)
    for layer in range(2):
        ours, theirs = seen.record(layer).value_norms, packed.record(layer).value_norms
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- rollout


def test_rollout(case: Case) -> None:
    """All rows of the product of all layers, which is n×n."""
    with torch.no_grad(), hw.capture(case.model, "qk") as seen:
        case.run()
    joint = torch.eye(7).double().expand(2, 7, 7)
    for layer in range(2):
        mixed = seen.weights(layer).mean(1) / 2 + torch.eye(7) / 2
        joint = mixed @ joint
    close(seen.scores("rollout", rows=slice(None)), joint)
    close(seen.scores("rollout", rows=[-1, 0, 0]), joint[:, [6, 0, 0]])
    close(seen.scores("rollout", rows=2, layers=1), (seen.weights(1).mean(1) / 2 + torch.eye(7) / 2)[:, [2]])
    with torch.no_grad(), hw.capture(case.model, "qkv") as kept:
        case.run()
    weighted = kept.scores("norm_weighted").scores("rollout", rows=-1)
    assert weighted.shape == (2, 1, 7)


def test_rollout_of_heads_that_look_back_by_one() -> None:
    """Of two exact previous-token layers the last output has a quarter of itself, half of the one before, a quarter of
    the second before.
    """

    class Back(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            one_back = torch.full((5, 5), -1e4).double()
            one_back[range(5), [0, 0, 1, 2, 3]] = 0
            q = torch.zeros(2, 1, 5, 4).double()
            return x + F.scaled_dot_product_attention(q, q, q, one_back).sum()

    model = nn.Sequential(Back(), Back())
    with hw.capture(model, "qk") as seen:
        model(torch.zeros(1).double())
    assert seen.scores("rollout", rows=-1)[0, 0].tolist() == [0, 0, 0.25, 0.5, 0.25]


def test_rollout_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = headway_model()
    with torch.no_grad(), hw.capture(case.model, "qk") as seen:
        case.run()
    whole = seen.scores("rollout", rows=slice(None))
    monkeypatch.setattr("headway.kernels.reference.BLOCK", 100)
    close(seen.scores("rollout", rows=slice(None)), whole)


def test_rollout_needs_layers_over_the_same_tokens() -> None:
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=1)
    model = EncoderDecoder(config, hw.encoding("rope", head_dim=4), hw.encoding("rope", head_dim=4))
    with hw.capture(model, "qk") as seen:
        model(IDS, IDS[:, :3])
    with pytest.raises(HeadwayError, match="rollout needs layers over the same tokens, choose them by layers="):
        seen.scores("rollout", rows=-1)
    cross = [record.layer for record in seen.records if record.kind == "cross"]
    with pytest.raises(HeadwayError, match="'rollout' is a score of self-attention, and there is none"):
        seen.scores("rollout", rows=-1, layers=cross)
    encoder = next(record.layer for record in seen.records if record.n == 7)
    assert seen.scores("rollout", rows=-1, layers=[encoder]).shape == (2, 1, 7)
    with pytest.raises(HeadwayError, match="there is no row 9: the nearest is 6"):
        seen.scores("rollout", rows=9, layers=[encoder])


# ---------------------------------------------------------------- importance


@contextmanager
def scaled_heads(model: nn.Module, layer: str, heads: Tensor) -> Iterator[None]:
    """The outputs of the heads of a layer times ξ [batch, n, heads], whose gradient is what importance is made of."""

    class Scaled(Observer):
        def around(self, found: Found) -> tuple[Any, Change | None]:
            name, _, _ = self.label(found)
            change = (lambda out: out * heads.permute(0, 2, 1)[..., None]) if name == layer else None
            return found.run(change), change

    with Scaled(model, "test", SOURCES.values()).watching():
        yield


def test_importance(case: Case) -> None:
    """|∂L/∂ξ_h| of a factor of the head's output, which is the definition that the formula is derived from."""

    def loss() -> Tensor:
        out = case.run()
        out = next(iter(out.values())) if isinstance(out, dict) else out
        return out.square().sum() / 7

    with hw.capture(case.model, "gradients") as seen:
        loss().backward()
    padding = seen.records[0].padding
    real = torch.ones(2, 7).bool() if padding is None else padding
    for layer in seen.layers:
        factors = torch.ones(2, 7, HEADS, dtype=torch.float64, requires_grad=True)
        with scaled_heads(case.model, layer, factors):
            (gradient,) = torch.autograd.grad(loss(), factors)
        gradient = gradient * real[..., None]
        close(seen.scores("importance")[layer], gradient.sum(1).abs().mean(0)[None])
        tokens = gradient.abs().sum((0, 1)) / real.sum()
        close(seen.scores("importance", over="tokens")[layer], tokens[None])
        close(seen.scores("importance", normalized=True)[layer].norm(), torch.ones(()).double())


def test_importance_over_several_batches() -> None:
    case = headway_model()
    batches = [IDS, IDS[:1] + 1, IDS + 2]
    with hw.capture(case.model, "gradients") as seen:
        for ids in batches:
            case.model(ids).square().sum().backward()
    expected = torch.zeros(1, HEADS).double()
    for ids in batches:
        with hw.capture(case.model, "gradients") as one:
            case.model(ids).square().sum().backward()
        expected += one.scores("importance")[0] * len(ids) / 5
    close(seen.scores("importance")[0], expected)


def test_capturing_gradients_changes_none() -> None:
    case = headway_model()
    case.model(IDS).square().sum().backward()
    before = [part.grad.clone() for part in case.model.parameters() if part.grad is not None]
    case.model.zero_grad()
    with hw.capture(case.model, "gradients") as seen:
        case.model(IDS).square().sum().backward()
    after = [part.grad for part in case.model.parameters() if part.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    held = case.model(IDS)
    with hw.capture(case.model, "gradients") as late:
        out = case.model(IDS)
    out.sum().backward()
    held.sum().backward()
    assert seen.scores("importance").mean().shape == (2, HEADS)
    with pytest.raises(
        HeadwayError, match=r"no gradient reached the heads of 'stack.blocks.0.attention' in call 0: call "
    ):
        late.scores("importance")


@pytest.mark.parametrize("keep", ["statistics", "qk", "weights"])
def test_what_was_not_kept(keep: str) -> None:
    case = headway_model()
    with hw.capture(case.model, keep) as seen:
        case.run()
    with pytest.raises(HeadwayError, match=f"'importance' needs gradients, and the capture kept '{keep}'"):
        seen.scores("importance")
    with pytest.raises(HeadwayError, match=f"'norm_weighted' needs the lengths of the values, and the .* '{keep}'"):
        seen.scores("norm_weighted")
    if keep != "qk":
        with pytest.raises(HeadwayError, match="'rollout' is computed from queries and keys, which were not kept"):
            seen.scores("rollout", rows=0)


def test_gradients_are_all_that_is_kept() -> None:
    case = headway_model()
    with hw.capture(case.model, "gradients") as seen:
        case.run().sum().backward()
    assert seen.size == seen.memory(2, 7)
    with pytest.raises(HeadwayError, match="keep='gradients' keeps no weights"):
        seen.weights(0)
    with pytest.raises(HeadwayError, match="keep='gradients' keeps no statistics"):
        seen.statistics(0)
    with pytest.raises(HeadwayError, match="over is 'rows': give 'examples' or 'tokens'"):
        seen.scores("importance", over="rows")
    with hw.capture(case.model, "qkv") as seen:
        case.run()
    coordinates = 6 * 7 * 8  # which the layers share
    assert seen.size == seen.memory(2, 7) + coordinates
