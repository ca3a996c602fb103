"""Effects of ablated heads against loops that zero columns of output projections, and formulas written literally."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import head_effects
from headway.inspection._bootstrap import interval
from headway.inspection._effects import _apart, _Whole
from headway.masks import Padding
from headway.models import Decoder, Encoder, EncoderDecoder, TransformerConfig

CONFIG = TransformerConfig(vocab_size=30, embed_dim=16, num_heads=4, num_layers=2)
IDS = torch.randint(30, (5, 9), generator=torch.Generator().manual_seed(1))
LENGTHS = [9, 4, 7, 2, 9]


def decoder() -> Decoder:
    model = Decoder(CONFIG, hw.encoding("rope", head_dim=4))
    for block in model.stack.blocks:  # effects that are well above rounding
        nn.init.normal_(block.attention.out_proj.weight)
    return model.eval()


def encoder() -> Encoder:
    return Encoder(CONFIG, hw.encoding("t5", num_heads=4)).eval()


def without(model: Any, layer: int, head: int) -> Any:
    """A copy of the model in which the output projection does not read a head."""
    changed = copy.deepcopy(model)
    changed.stack.blocks[layer].attention.out_proj.weight.data[:, 4 * head : 4 * head + 4] = 0
    return changed


def surprise(model: nn.Module, ids: Tensor) -> list[float]:
    """−ln p of each next token, for one text."""
    p = model(ids[None])[0].double().softmax(-1)
    return [-math.log(p[i, ids[i + 1]]) for i in range(len(ids) - 1)]


@torch.no_grad()
def test_cross_entropy_is_that_of_a_model_with_zeroed_columns() -> None:
    model = decoder()
    found = head_effects(model, IDS.split(2), "cross_entropy")
    for layer, name in enumerate(found):
        for head in range(4):
            changed = without(model, layer, head)
            for row, ids in enumerate(IDS):
                pairs = zip(surprise(changed, ids), surprise(model, ids), strict=True)
                apart = [after - before for after, before in pairs]
                assert found[name][row, head] == pytest.approx(sum(apart) / len(apart), abs=2e-6)
    assert found.mean().abs().max() > 1e-2
    assert [row["cross_entropy"] for row in found.table()] == pytest.approx(found.mean().flatten().tolist())


@torch.no_grad()
def test_cosine_is_over_the_tokens_that_are_no_padding() -> None:
    model = encoder()
    rows = [3, 1, 0, 2, 4]  # lengths in another order than they are in the batches
    batches = [{"ids": IDS[rows[:2]], "mask": Padding([LENGTHS[row] for row in rows[:2]])}]
    batches += [{"ids": IDS[rows[2:]], "mask": Padding([LENGTHS[row] for row in rows[2:]])}]
    found = head_effects(model, batches, "cosine")
    for layer in range(2):
        for head in range(4):
            changed, total = without(model, layer, head), 0.0
            for row in rows:
                ids = IDS[row : row + 1, : LENGTHS[row]]
                alike = torch.cosine_similarity(model(ids).double(), changed(ids).double(), dim=-1)
                total += float((1 - alike).sum())
            assert float(found.mean()[layer, head]) == pytest.approx(total / sum(LENGTHS), rel=1e-3, abs=1e-8)


class OneHeadMatters(nn.Module):
    """Attention whose second head nothing reads, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.attention = hw.nn.MultiHeadAttention(16, 2)
        self.attention.out_proj.weight.data[:, 8:] = 0

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        return x + self.attention(x)


def test_a_head_that_nothing_reads_changes_nothing() -> None:
    matters, idle = head_effects(OneHeadMatters(), [IDS], "cosine").table()
    assert matters["cosine"] > 0.01
    assert 0 < matters["low"] < matters["cosine"] < matters["high"]
    assert (idle["cosine"], idle["low"], idle["high"]) == (0, 0, 0)


def test_an_output_of_zero_has_no_direction() -> None:
    def zeroed(whole: bool) -> Tensor:
        return torch.zeros(1, 1, 3) if whole else torch.tensor([[[0.0, 2.0, 0.0]]])

    for both, wanted in (((True, True), 0), ((True, False), 1), ((False, True), 1), ((False, False), 0)):
        before, after = (nn.functional.normalize(zeroed(one), dim=-1) for one in both)
        assert float(_apart(before, after)) == wanted


@torch.no_grad()
def test_a_mean_is_over_the_tokens_of_a_batch() -> None:
    model = encoder()
    found = head_effects(model, [IDS], "cosine", replacement="mean", layers=[1])
    assert list(found) == ["stack.blocks.1.attention"]
    assert found.replacement == "mean"
    before = model(IDS)

    def averaged(_: nn.Module, given: tuple[Tensor]) -> Tensor:
        x = given[0].clone()
        x[..., 8:12] = x[..., 8:12].mean((0, 1))
        return x

    model.stack.blocks[1].attention.out_proj.register_forward_pre_hook(averaged)
    alike = torch.cosine_similarity(before.double(), model(IDS).double(), dim=-1)
    assert float(found.mean()[0, 2]) == pytest.approx(float((1 - alike).mean()), rel=1e-3)


@torch.no_grad()
def test_a_model_of_transformers_with_padding() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_head=4, n_layer=2, vocab_size=30, n_positions=9)
    model = transformers.GPT2LMHeadModel(config).eval()
    rows = model.transformer.h[0].attn.c_proj.weight
    right = torch.tensor([[1] * length + [0] * (9 - length) for length in LENGTHS])
    for mask in (right, right.flip(1)):
        batch = {"input_ids": IDS, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        found = head_effects(model, [batch], "cross_entropy")

        def losses(mask: Tensor = mask, batch: Any = batch) -> list[float]:
            p = model(**batch).logits.double().log_softmax(-1)
            both = [(row, i) for row in range(5) for i in range(8) if mask[row, i] and mask[row, i + 1]]
            return [-float(p[row, i, IDS[row, i + 1]]) for row, i in both]

        before, kept = losses(), rows[4:8].clone()
        rows[4:8] = 0
        after = losses()
        rows[4:8] = kept
        assert len(before) == sum(LENGTHS) - 5
        wanted = (sum(after) - sum(before)) / len(before)
        assert float(found.mean()[0, 1]) == pytest.approx(wanted, abs=1e-6)


def test_a_function_of_ones_own() -> None:
    model, given = decoder(), []

    def most_likely(whole: Tensor, without: Tensor, batch: Any) -> Tensor:
        given.append(batch)
        return (whole.argmax(-1) != without.argmax(-1)).float()

    found = head_effects(model, [IDS], most_likely)
    assert found.name == "most_likely"
    assert all(one is IDS for one in given)
    assert len(given) == 8
    with torch.no_grad(), hw.ablate(model, {(1, 3): "zero"}):
        without = model(IDS).argmax(-1)
    assert float(found.mean()[1, 3]) == pytest.approx(float((model(IDS).argmax(-1) != without).float().mean()))
    each = head_effects(model, [IDS], lambda whole, without, batch: most_likely(whole, without, batch).mean(1))
    torch.testing.assert_close(each.mean(), found.mean())


def test_padding_does_not_count_in_a_function_of_ones_own() -> None:
    batch = {"ids": IDS, "mask": Padding(LENGTHS)}

    def in_padding(whole: Tensor, without: Tensor, batch: Any) -> Tensor:
        return (torch.arange(9) >= torch.tensor(LENGTHS)[:, None]).float()

    assert float(head_effects(encoder(), [batch], in_padding).mean().max()) == 0


# ---------------------------------------------------------------- intervals


def test_an_interval_is_that_of_the_mean() -> None:
    totals = torch.randn(400, 2, dtype=torch.float64).exp() + torch.tensor([3.0, 0.0])
    low, high = interval(totals, torch.ones_like(totals))
    error = totals.std(0) / 20  # of 400 texts
    torch.testing.assert_close((high - low) / 2, 1.96 * error, rtol=0.15, atol=0)
    torch.testing.assert_close((high + low) / 2, totals.mean(0), rtol=0.02, atol=0)
    narrow = interval(totals, torch.ones_like(totals), level=0.5)
    assert bool((low < narrow[0]).all() and (narrow[1] < high).all())


def test_texts_are_drawn_whole() -> None:
    """A text counts by its tokens: of (0, 1 token) and (9, 9 tokens), samples give only 0, 0.9 and 1."""
    totals, counts = torch.tensor([0.0, 9.0]), torch.tensor([1.0, 9.0])
    low, high = interval(totals, counts, level=0.4)
    assert (float(low), float(high)) == (0.9, 0.9)
    low, high = interval(totals, counts)
    assert (float(low), float(high)) == (0, 1)


def test_one_text_has_no_interval() -> None:
    assert all(math.isnan(row["low"]) and math.isnan(row["high"]) for row in effects_of_one().table())
    assert all(math.isfinite(row["cosine"]) for row in effects_of_one().table())


def effects_of_one() -> hw.inspection.HeadEffects:
    return head_effects(encoder(), [IDS[:1]], "cosine")


# ---------------------------------------------------------------- what remains


def passes(model: nn.Module, *arguments: Any, **options: Any) -> tuple[Any, int]:
    """The effects, and how often the model ran."""
    counted = []
    hook = model.register_forward_hook(lambda *_: counted.append(1))
    found = head_effects(model, *arguments, **options)
    hook.remove()
    return found, len(counted)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "effects.jsonl"
    whole, count = passes(model, IDS.split(3), "cross_entropy")
    assert count == 2 + 2 * 8

    def stop(done: int, total: int) -> None:
        assert total == 16
        if done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        head_effects(model, IDS.split(3), "cross_entropy", file=file, watch=stop)
    with file.open("a") as half:
        half.write('{"batch": 1, "lay')  # as a kill leaves it
    seen: list[int] = []
    resumed, count = passes(
        model, IDS.split(3), "cross_entropy", file=file, watch=lambda done, total: seen.append(done)
    )
    assert count == 2 + 5
    assert seen == list(range(1, 17))
    assert resumed.table() == whole.table()
    assert passes(model, IDS.split(3), "cross_entropy", file=file)[1] == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "effects.jsonl"
    head_effects(model, [IDS], "cross_entropy", file=file)
    kept = file.read_text()
    with pytest.raises(HeadwayError, match="has measurements with replacement 'zero': give another file"):
        head_effects(model, [IDS], "cross_entropy", file=file, replacement="mean")
    with pytest.raises(HeadwayError, match="of another model or effect, or other batches"):
        head_effects(model, [IDS[:4]], "cross_entropy", file=file)
    model.stack.blocks[0].attention.out_proj.weight.data[0, 0] += 1e-3
    with pytest.raises(HeadwayError, match="of another model or effect, or other batches"):
        head_effects(model, [IDS], "cross_entropy", file=file)
    assert file.read_text() == kept
    file.write_text(kept.replace('"head": 2', '"heat": 2', 1))
    model.stack.blocks[0].attention.out_proj.weight.data[0, 0] -= 1e-3
    with pytest.raises(HeadwayError, match=r"(effects.jsonl line 4 is not a measurement|of another model)"):
        head_effects(model, [IDS], "cross_entropy", file=file)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"totals": [1.0], "counts": [1.0]}, "of other texts"),
        ({"totals": [1.0]}, "line 2 is not a measurement"),
        ({"layer": ["a"]}, "line 2 is not a measurement"),
        ({"totals": "a"}, "line 2 is not a measurement"),
    ],
)
def test_a_damaged_measurement_is_named(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    model, file = decoder(), tmp_path / "effects.jsonl"
    head_effects(model, [IDS], "cross_entropy", file=file)
    header, first, *others = file.read_text().splitlines()
    file.write_text("\n".join([header, json.dumps({**json.loads(first), **wrong}), *others]) + "\n")
    with pytest.raises(HeadwayError, match=said):
        head_effects(model, [IDS], "cross_entropy", file=file)


@pytest.mark.parametrize("other", [hw.encoding("rope", head_dim=4, base=10.0), hw.encoding("alibi", num_heads=4), None])
def test_a_file_of_the_same_weights_with_another_encoding_is_refused(other: Any, tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "effects.jsonl"
    head_effects(model, [IDS], "cross_entropy", file=file)
    same = Decoder(CONFIG, other).eval()
    same.load_state_dict(model.state_dict(), strict=False)
    with pytest.raises(HeadwayError, match="of another model or effect, or other batches"):
        head_effects(same, [IDS], "cross_entropy", file=file)


def test_a_file_of_another_function_is_refused(tmp_path: Path) -> None:
    model, file = encoder(), tmp_path / "effects.jsonl"
    head_effects(model, [IDS], lambda whole, without, _: (whole - without).abs().sum(-1), file=file)
    for other in (
        lambda whole, without, _: (whole - without).square().sum(-1),
        lambda whole, without, _: (whole - without).abs().sum(-2),
    ):
        with pytest.raises(HeadwayError, match="of another model or effect, or other batches"):
            head_effects(model, [IDS], other, file=file)
    head_effects(model, [IDS], lambda whole, without, _: (whole - without).abs().sum(-1), file=file)


@pytest.mark.parametrize("effect", ["cosine", "cross_entropy"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_no_numbers_are_refused(effect: str, value: float) -> None:
    class Damaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder()

        def forward(self, ids: Tensor, mask: Any = None) -> Tensor:
            out: Tensor = self.decoder(ids, mask=mask).clone()
            out[1, 5] = value
            return out

    with pytest.raises(HeadwayError, match="needs outputs that are finite numbers, and those of row 1, token 5 are"):
        head_effects(Damaged(), [IDS], effect)
    padded = {"ids": IDS, "mask": Padding(LENGTHS)}  # the token is padding, as row 1 has 4
    assert head_effects(Damaged(), [padded], effect).mean().isfinite().all()


def test_the_model_is_as_it_was() -> None:
    model = Decoder(TransformerConfig(vocab_size=30, embed_dim=16, num_heads=4, num_layers=2, dropout=0.5)).train()
    model.stack.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    first = head_effects(model, [IDS], "cross_entropy")
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert first.table() == head_effects(model.eval(), [IDS], "cross_entropy").table()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "batches", "effect", "options", "message"),
    [
        (encoder, [IDS], "cosin", {}, "effect is 'cosin': give 'cosine', 'cross_entropy' or a function"),
        (encoder, [IDS], "cosine", {"replacement": "none"}, "replacement is 'none': give 'zero' or 'mean'"),
        (encoder, IDS, "cosine", {}, "batches is one Tensor: give a list of batches, such as [ids]"),
        (encoder, [], "cosine", {}, "batches is empty: give at least one, such as [ids]"),
        (encoder, ["text"], "cosine", {}, "batch 0 is str: give the model's inputs"),
        (encoder, [IDS], "cosine", {"layers": [2]}, "there is no layer 2: the nearest is 1"),
        (encoder, [IDS], "cosine", {"file": "nowhere/x.jsonl"}, "nowhere/x.jsonl cannot be written"),
        (encoder, [IDS], "cross_entropy", {}, "the next token, to which 'stack.blocks.0.attention' may attend"),
        (encoder, [IDS], lambda *_: 1.0, {}, "the effect is float: return floating-point numbers [rows] or"),
        (encoder, [IDS], lambda *_: IDS, {}, "the effect is torch.int64 (5, 9): return floating-point numbers"),
        (lambda: nn.Sequential(encoder(), nn.Flatten()), [IDS], "cosine", {}, "this one is of shape (5, 144): give a"),
        (lambda: EncoderDecoder(CONFIG, None, None), [(IDS, IDS)], "cross_entropy", {}, "the next token, to which"),
    ],
)  # fmt: skip
def test_what_is_refused(model: Any, batches: Any, effect: Any, options: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(message)) as error:
        head_effects(model(), batches, effect, **options)
    assert "\n" not in str(error.value)


def test_padding_is_that_of_the_last_layer_with_as_many_tokens() -> None:
    """An encoder comes before the decoder whose output is measured."""
    source, target, longer = torch.rand(2, 5) < 0.5, torch.rand(2, 5) < 0.5, torch.rand(2, 6) < 0.5
    whole = object.__new__(_Whole)
    whole.seen = SimpleNamespace(records=[SimpleNamespace(padding=one) for one in (source, target, longer, None)])
    assert whole.real(torch.Size([2, 5, 8])) is target
    assert whole.real(torch.Size([2, 7])) is None
