"""What a capture keeps, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import csv
import gc
import json
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.attention import observers
from headway.inspection import STATISTICS, Classes, PooledMap, TopKeys, _weights
from headway.kernels import KERNELS
from headway.kernels.cpu._library import why_not
from headway.models import Decoder, TransformerConfig

IDS = torch.tensor([[3, 5, 7, 5, 9, 11], [2, 4, 6, 8, 10, 12]])


def decoder(layers: int = 2, **options: Any) -> Decoder:
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=layers, **options)
    return Decoder(config, hw.encoding("rope", head_dim=4)).eval()


class Own(nn.Module):
    """Attention of a user's own, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def untouched(model: nn.Module) -> bool:
    """Whether nothing is left of a capture."""
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    return not any(hooks) and not observers() and torch._C._len_torch_function_stack() == 0


# ---------------------------------------------------------------- what is kept


def test_statistics_are_those_of_the_weights() -> None:
    model = decoder()
    with hw.capture(model, statistics=("entropy", "largest", TopKeys(2))) as seen:
        model(IDS)
    with hw.capture(model, "weights") as dense:
        model(IDS)
    weights = dense.weights(1).double()
    found = seen.statistics(1)
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(weights).sum(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.largest.weight.double(), weights.amax(-1))
    assert found.top_keys.keys.shape == (2, 4, 6, 2)
    assert seen.statistics(1, "entropy").entropy is found.entropy
    assert seen.statistics(1, ["largest", TopKeys(2)]).names == ("largest", "top_keys")
    assert "largest" not in seen.table("entropy")[0]
    with pytest.raises(hw.HeadwayError, match=r"TopKeys\(count=3\) was not kept"):
        seen.statistics(1, TopKeys(3))
    with pytest.raises(hw.HeadwayError, match="'received' was not kept, but entropy, largest, top_keys"):
        seen.statistics(1, "received")


@pytest.mark.skipif(bool(why_not()), reason=str(why_not()))
@pytest.mark.parametrize("build", [decoder, Own])
@torch.no_grad()
def test_statistics_take_the_pass_of_a_kernel(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kernel="cpu") if build is decoder else build()
    x = IDS if build is decoder else torch.randn(2, 6, 8)
    passes: list[str] = []
    for name in ("reduce", "run_and_reduce"):
        whole = getattr(KERNELS["cpu"], name)

        def counted(*given: Any, name: str = name, whole: Any = whole) -> Any:
            passes.append(name)
            return whole(*given)

        monkeypatch.setattr(KERNELS["cpu"], name, counted)
    before = model(x)
    with hw.capture(model) as inner:
        assert torch.equal(model(x), before)
    assert passes == (["run_and_reduce"] * 2 if build is decoder else ["reduce"])
    with hw.capture(model) as outer, hw.capture(model, "qk") as kept:
        assert torch.equal(model(x), before)
    for one, two, three in zip(inner.records, outer.records, kept.records, strict=True):
        expected = two.statistics().entropy
        torch.testing.assert_close(one.statistics().entropy, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(three.statistics("entropy").entropy, expected, atol=1e-6, rtol=1e-6)
    assert untouched(model)


def test_queries_and_keys_give_any_statistic_and_weights_afterwards() -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
    with hw.capture(model, statistics=("entropy", "received")) as kept:
        model(IDS)
    for name in ("entropy", "received"):
        torch.testing.assert_close(seen.statistics(0, name)[name], kept.statistics(0)[name])
    whole = seen.weights(0)
    assert torch.equal(seen.weights(0, 2), whole[:, 2])
    assert torch.equal(seen.weights(0, rows=-1), whole[:, :, [5]])
    assert torch.equal(seen.weights(0, 1, rows=[4, 2, 4]), whole[:, 1, [4, 2, 4]])
    assert torch.equal(seen.weights(0, rows=slice(1, 3)), whole[:, :, 1:3])
    some = torch.tensor([True, False, True, False, True, True])
    assert not seen.statistics(0, "entropy", queries=some).counted[..., 1].any()


def test_what_is_kept_is_a_copy() -> None:
    model = decoder()
    held: list[Tensor] = []
    attention = model.stack.layers[0].attention
    hook = attention.k_proj.register_forward_hook(lambda _, args, out: held.append(out))
    with hw.capture(model, "qk") as seen:
        model(IDS)
    hook.remove()
    before = seen.weights(0).clone()
    held[0].detach().zero_()
    with torch.no_grad():
        for part in model.parameters():
            part.zero_()
    assert torch.equal(seen.weights(0), before)


def test_layers_share_the_copy_of_what_they_share() -> None:
    model = decoder()
    mask = torch.ones(64, 64).bool().tril()
    ids = torch.randint(40, (1, 64))
    with hw.capture(model, "qk") as seen:
        model(ids, mask=mask)
    masks = [record._kept_call.mask for record in seen.records]  # type: ignore[union-attr]
    storages = {
        part.values.data_ptr() for one in masks for part in getattr(one, "masks", (one,)) if hasattr(part, "values")
    }
    assert len(storages) == 1
    assert mask.data_ptr() not in storages


def test_what_is_seen_does_not_keep_the_model() -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert seen.memory(1, 4) > 0


def test_chosen_layers_heads_and_rows() -> None:
    model = decoder(3)
    with hw.capture(model, "weights") as whole:
        model(IDS)
    with hw.capture(model, "weights", layers=[0, -1], heads=[3, 1], rows=[-1, 0]) as seen:
        model(IDS)
    assert seen.layers == [whole.layers[0], whole.layers[2]]
    assert len(seen) == 2
    assert seen.records[1]._weights is not None
    assert seen.records[1]._weights.shape == (2, 2, 2, 6)
    assert torch.equal(seen.weights(whole.layers[2], 3), whole.weights(2)[:, 3][:, [0, 5]])
    assert torch.equal(seen.weights(1, 1, rows=5), whole.weights(2)[:, 1, [5]])
    with pytest.raises(hw.HeadwayError, match="head 0 was not kept: the capture kept 3, 1"):
        seen.weights(1, 0)
    with pytest.raises(hw.HeadwayError, match="row 2 was not kept"):
        seen.weights(1, 1, rows=2)
    with pytest.raises(hw.HeadwayError, match="only some heads or rows"):
        _ = seen.attentions


@pytest.mark.parametrize("rows", [None, [0, 3, 4, 9], [9], []])
def test_dense_weights_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, rows: list[int] | None) -> None:
    q, k = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8)
    call = hw.call.make_call(q, k, k, mask=hw.masks.Causal() & hw.masks.Window(left=4))
    whole = hw.attention_weights(q, k, k, mask=hw.masks.Causal() & hw.masks.Window(left=4))
    monkeypatch.setattr("headway.kernels.reference.BLOCK", 3 * 2 * 4 * 10)
    expected = whole[:, [2, 0]] if rows is None else whole[:, [2, 0]][:, :, rows]
    torch.testing.assert_close(_weights.dense_weights(call, [2, 0], rows), expected, atol=1e-7, rtol=1e-6)


def test_a_table_and_its_files(tmp_path: Path) -> None:
    model = decoder()
    with hw.capture(model) as seen:
        model(IDS)
    table = seen.table()
    assert len(table) == 8
    assert type(table[0]) is dict
    assert list(table[0]) == ["layer", "head", "call", "kind", "queries", "left_out", "entropy", "largest"]
    expected = seen.statistics(1).entropy[:, 2].mean().item()
    assert table[6]["layer"] == seen.layers[1]
    assert table[6]["head"] == 2
    assert table[6]["queries"] == 12
    assert table[6]["entropy"] == pytest.approx(expected, rel=1e-5)
    table[0]["entropy"] = float("nan")
    table.csv(tmp_path / "heads.csv")
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[0]["entropy"] == ""
    assert float(rows[6]["entropy"]) == table[6]["entropy"]
    table.json(tmp_path / "heads.json")
    read = json.loads((tmp_path / "heads.json").read_text())
    assert read[0]["entropy"] is None
    assert read[1:] == table[1:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads.csv", "heads.json"]
    with pytest.raises(hw.HeadwayError, match="cannot be written"):
        table.csv(tmp_path / "nowhere" / "heads.csv")
    assert str(table).splitlines()[0].split() == list(table[0])


def test_memory_is_known_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(num_kv_heads=2)
    for keep in ("weights", "statistics", "qk"):
        with hw.capture(model, keep) as seen:
            stated = seen.memory(2, 6)
            model(IDS)
        kept = seen.size
        assert stated <= kept <= stated * 1.1 + 2000, keep  # coordinates and the like are on top
    with hw.capture(model, "weights", layers=[0], heads=[1], rows=-1) as seen:
        assert seen.memory(2, 6) == 2 * 1 * 1 * 6 * 4
        assert seen.memory(1, 1 << 15) == 4 << 15
        model(IDS)
        assert seen.size == 2 * 6 * 4
    monkeypatch.setattr(_weights, "LIMIT", 2 * 4 * 36 * 4 * 2 - 1)  # a byte less than both layers
    computed: list[int] = []
    monkeypatch.setattr("headway.inspection._capture.dense_weights", lambda *_: computed.append(1))
    with (
        pytest.raises(
            hw.HeadwayError,
            match=r"0.attention': its weights and those of 1 more layer would take 2.2 KiB, above the limit of 2.2 KiB",
        ),
        hw.capture(model, "weights") as seen,
    ):
        model(IDS)
    assert not computed
    assert len(seen) == 0
    assert untouched(model)


def test_weights_above_the_limit_are_refused_afterwards_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
    monkeypatch.setattr(_weights, "LIMIT", 6 * 6 * 4 * 2)
    assert seen.weights(0, 1).shape == (2, 6, 6)
    with pytest.raises(hw.HeadwayError, match="above the limit"):
        seen.weights(0)
    with pytest.raises(hw.HeadwayError, match="above the limit"):
        _ = seen.attentions


def test_calls_are_counted() -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
        inside = seen.weights(0)
        model(IDS[:, :4])
    assert seen.calls == 2
    assert [record.call for record in seen.records] == [0, 0, 1, 1]
    with pytest.raises(hw.HeadwayError, match="attended in 2 calls of the model: give call="):
        seen.weights(0)
    assert torch.equal(seen.weights(0, call=0), inside)
    assert torch.equal(seen.of_call(0).weights(0), inside)
    assert seen.weights(0, call=-1).shape == (2, 4, 4, 4)
    assert len(seen.of_call(-1)) == 2
    with pytest.raises(hw.HeadwayError, match="has no call 2"):
        seen.weights(0, call=2)
    with pytest.raises(hw.HeadwayError, match="there is no call 2: the nearest is 1"):
        seen.of_call(2)
    assert len(seen.table()) == 16
    assert "call 1" in repr(seen)
    assert "2 layers, 2 calls, keep='qk'" in repr(seen)


def test_what_users_see() -> None:
    model = decoder(10)
    with hw.capture(model) as seen:
        model(IDS)
    lines = repr(seen).splitlines()
    assert lines[0].startswith("Seen(Decoder: 10 layers, 1 call, keep='statistics', ")
    assert lines[1].split() == [
        "stack.blocks.0.attention",
        "self",
        "4",
        "heads,",
        "2",
        "×",
        "6",
        "queries,",
        "6",
        "keys",
    ]
    assert lines[-1] == "  … and 2 more"
    assert len(lines) == 10
    assert repr(seen.records[0]) == (
        "AttentionRecord('stack.blocks.0.attention', self, call 0: batch 2, heads 4, n 6, m 6)"
    )


# ---------------------------------------------------------------- who sees what


def test_captures_nest() -> None:
    model, other = decoder(), Own()
    x = torch.randn(2, 5, 8)
    with hw.capture(model, "qk") as outer:
        with hw.capture(model, "weights", layers=[1]) as inner, hw.capture(other) as others:
            model(IDS)
            other(x)
        assert not untouched(model)
        model(IDS)
    assert len(outer) == 4
    assert len(inner) == 1
    assert len(others) == 1
    torch.testing.assert_close(inner.weights(0), outer.weights(1, call=0))
    assert untouched(model)
    assert untouched(other)


def test_a_part_of_a_model_sees_its_own_calls() -> None:
    model = nn.Sequential(Own(), Own())
    with hw.capture(model[1]) as seen:
        model(torch.randn(2, 5, 8))
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 4))
    assert seen.layers == [""]
    assert len(seen) == 1


@pytest.mark.parametrize("build", [decoder, Own])
def test_a_capture_sees_its_own_thread(build: Any) -> None:
    model = build()
    x = IDS if build is decoder else torch.randn(2, 5, 8)
    inside, done = threading.Event(), threading.Event()
    shapes: list[int] = []

    def work() -> None:
        with hw.capture(model, "qk") as own:
            inside.set()
            model(x[:1])
            done.wait(20)
            model(x[:1])
        shapes.extend(record.batch for record in own.records)

    thread = threading.Thread(target=work)
    with hw.capture(model, "qk") as seen:
        thread.start()
        inside.wait(20)
        model(x)
    done.set()  # the other goes on after this one has ended
    thread.join()
    assert {record.batch for record in seen.records} == {2}
    assert set(shapes) == {1}
    assert seen.calls == 1
    assert untouched(model)


@pytest.mark.parametrize("name", ["none", "rope", "t5", "transformer-xl", "fire", "cope", "forgetting", "wall"])
def test_other_threads_compute_the_same_bits_meanwhile(name: str) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=40, embed_dim=32, num_heads=2, num_layers=2)
    encoding = None if name == "none" else hw.encoding(name, num_heads=2, head_dim=16, embed_dim=32, max_length=64)
    model = Decoder(config, encoding).eval()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter)

    def generated() -> Tensor:
        return torch.tensor(
            [model.generate(ids, 6).log_probs for ids in torch.randint(40, (4, 1, 9), generator=seeded())]
        )

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    before, found = generated(), []
    with hw.capture(model) as seen:
        thread = threading.Thread(target=lambda: found.append(generated()))
        thread.start()
        thread.join()
    assert not seen.records
    assert torch.equal(found[0], before)


def test_hooks_are_taken_out_whatever_happens() -> None:
    model = nn.Sequential(Own(), Own())
    with pytest.raises(RuntimeError), hw.capture(model) as seen:
        model(torch.randn(2, 5, 7))
    assert untouched(model)
    assert len(seen) == 0

    with hw.capture(model) as seen:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5, 7))  # raises within a layer: the stack of modules is as before
        for _ in range(2):
            model(torch.randn(2, 5, 8))
    assert [record.layer for record in seen.records] == ["0", "1"] * 2
    assert seen.calls == 2
    assert untouched(model)


def test_interface_of_transformers_is_put_back() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_head=4, n_layer=1, vocab_size=40, n_positions=8)
    model, before = transformers.GPT2Model(config), transformers.AttentionInterface.get_interface
    with pytest.raises(IndexError), hw.capture(model), hw.capture(model):
        model(IDS + 40)
    assert transformers.AttentionInterface.get_interface is before
    assert untouched(model)


def test_what_is_captured_holds_no_graph() -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        out = model(IDS)
        out.sum().backward()
    kept = seen.records[0]._kept_call
    assert kept is not None
    assert not kept.q.requires_grad
    assert kept.q.grad_fn is None
    del seen, out, kept
    gc.collect()


def test_inference_mode() -> None:
    model = decoder()
    with torch.inference_mode(), hw.capture(model, "qk") as seen:
        model(IDS)
    assert seen.weights(0).shape == (2, 4, 6, 6)
    assert len(seen.table()) == 8


# ---------------------------------------------------------------- what is refused


class Hand(nn.Module):
    """Attention written by hand, which nothing can see."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x


class HandAttention(Hand):
    pass


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (HandAttention, r"no attention was found in Sequential, which ran 1 \(HandAttention\)"),
        (Hand, r"which ran the model \(Sequential\), 0 \(Linear\), 1 \(Hand\)"),
    ],
)
def test_a_model_without_attention_names_what_was_looked_at(build: type[nn.Module], said: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), build())
    with pytest.raises(hw.HeadwayError, match=said), hw.capture(model):
        model(torch.randn(2, 5, 8))
    assert untouched(model)


def test_layers_that_cannot_be_seen_are_said() -> None:
    model = nn.Sequential(Own(), HandAttention())
    with (
        pytest.warns(UserWarning, match=r"1 \(HandAttention\) ran and its attention could not be seen"),
        hw.capture(model) as seen,
    ):
        model(torch.randn(2, 5, 8))
    assert seen.missed == {"1": "HandAttention"}
    assert repr(seen).endswith("could be seen: 1")


def test_a_model_that_is_not_called() -> None:
    with hw.capture(Own()) as seen:
        pass
    assert len(seen) == 0
    assert seen.layers == []
    for ask in (lambda: seen.weights(0), seen.table, lambda: seen.attentions, lambda: seen.statistics(0)):
        with pytest.raises(hw.HeadwayError, match="nothing was captured: call the model inside"):
            ask()


def test_compiled_and_scripted_models_are_refused() -> None:
    model = Own()
    compiled = torch.compile(model, backend="eager")
    for one in (compiled, nn.Sequential(compiled)):  # type: ignore[arg-type]
        said = "compiled, and compiled code does not show its attention"
        with pytest.raises(hw.HeadwayError, match=said), hw.capture(one):  # type: ignore[arg-type]
            pass
    in_place = Own()
    in_place.compile(backend="eager")
    with pytest.raises(hw.HeadwayError, match=r"before torch\.compile"), hw.capture(in_place):
        pass
    with pytest.raises(hw.HeadwayError, match="scripted"), hw.capture(torch.jit.script(nn.Linear(2, 2))):
        pass


@pytest.mark.one_in(4)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("build", [Own, lambda: decoder(1)], ids=["own", "decoder"])
@torch.no_grad()
def test_compiled_code_that_runs_a_captured_module_is_seen_right(build: Any, warm: bool) -> None:
    model = build()
    x = IDS if isinstance(model, Decoder) else torch.randn(2, 5, 8)
    with hw.capture(model, "weights") as plain:
        model(x)
    compiled = torch.compile(model, backend="eager")
    if warm:
        compiled(x)
    with hw.capture(model, "weights") as seen:
        compiled(x)
    assert seen.layers == plain.layers
    for layer in seen.layers:
        torch.testing.assert_close(seen.weights(layer), plain.weights(layer))
    assert untouched(model)


def test_transforms_are_refused() -> None:
    model = Own()
    with pytest.raises(hw.HeadwayError, match=r"transform of torch\.func"), hw.capture(model):
        torch.func.vmap(model)(torch.randn(3, 2, 5, 8))
    assert untouched(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": "weight"}, "keep is 'weight': give one of 'statistics', 'qk', 'qkv', 'weights', 'gradients'"),
        ({"statistics": "entropi"}, "no statistic 'entropi': did you mean 'entropy'?"),
        ({"statistics": "entropy", "keep": "qk"}, "statistics is given with keep='qk': it goes with keep='statistics'"),
        ({"heads": [0]}, "heads is given with keep='statistics': it goes with keep='weights'"),
        ({"rows": 0, "keep": "qk"}, "rows is given with keep='qk'"),
        ({"heads": slice(0, 2), "keep": "weights"}, "heads is slice(0, 2, None): give whole numbers, such as 0 or"),
        ({"rows": 1.5, "keep": "weights"}, "rows is 1.5: give whole numbers"),
        (
            {"rows": torch.tensor([True, False]), "keep": "weights"},
            "rows is tensor([ True, False]): give whole numbers",
        ),
        ({"statistics": 3}, "statistics is 3: give names such as 'entropy'"),
        ({"layers": 1.5}, "there is no layer 1.5: the nearest is 'stack.blocks."),
        ({"layers": [7]}, "there is no layer 7: the nearest is 1, 'stack.blocks.1.attention'"),
        (
            {"layers": ["stack.blocks.1.attn"]},
            "no layer 'stack.blocks.1.attn': the nearest is 'stack.blocks.1.attention'",
        ),
    ],
)
def test_bad_arguments_are_refused_before_the_block(options: dict[str, Any], said: str) -> None:
    model, entered = decoder(), False
    with pytest.raises(hw.HeadwayError, match=re.escape(said)), hw.capture(model, **options):
        entered = True
    assert not entered
    assert untouched(model)


def test_a_function_is_no_model() -> None:
    with (
        pytest.raises(hw.HeadwayError, match=r"model is a function: capture takes an nn\.Module"),
        hw.capture(lambda x: x),
    ):  # type: ignore[arg-type]
        pass


def test_heads_and_rows_that_do_not_exist() -> None:
    model = decoder()
    for options, said in (
        ({"heads": [4]}, "no head 4: the nearest is 3"),
        ({"rows": [6]}, "no row 6: the nearest is 5"),
    ):
        with pytest.raises(hw.HeadwayError, match=said), hw.capture(model, "weights", **options):  # type: ignore[arg-type]
            model(IDS)
    with hw.capture(model, "qk") as seen:
        model(IDS)
    with pytest.raises(hw.HeadwayError, match="no head -1: the nearest is 0"):
        seen.weights(0, -1)
    with pytest.raises(hw.HeadwayError, match=r"no layer 2: the nearest is 1"):
        seen.weights(2)
    with hw.capture(model, "weights") as dense, hw.capture(model) as few:
        model(IDS)
    with pytest.raises(hw.HeadwayError, match="keep='weights' keeps no statistics"):
        dense.table()
    with pytest.raises(hw.HeadwayError, match="keep='statistics' keeps no weights"):
        few.weights(0)


def test_numbers_of_numpy_and_torch() -> None:
    model, one = decoder(), np.int64(1)
    with hw.capture(model, "weights", layers=[one], heads=np.array([0, 3]), rows=torch.tensor([-1, 2])) as seen:
        model(IDS)
    with hw.capture(model, "qk") as whole:
        model(IDS)
    expected = whole.weights(1)[:, 3, [2, 5]]
    torch.testing.assert_close(seen.weights(torch.tensor(0), np.int64(3), rows=np.array([2, 5])), expected)
    torch.testing.assert_close(whole.weights(one, np.int64(3), rows=torch.tensor([2, -1]), call=np.int64(0)), expected)


def test_memory_of_every_statistic() -> None:
    model, ids = decoder(), torch.arange(70)[None] % 9
    classes = Classes(torch.arange(70) % 3, ("a", "b", "c"))
    others = [name for name in STATISTICS if name not in ("classes", "top_keys", "pooled_map")]
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        for statistics in ([classes], [TopKeys(60)], [PooledMap(64, 3)], others):
            with hw.capture(model, statistics=statistics) as seen:
                stated = seen.memory(1, 70)
                model(ids)
            assert seen.size == stated, statistics
    with pytest.raises(hw.HeadwayError, match=r"batch is 1.5: give a whole number"):
        seen.memory(1.5, 4)  # type: ignore[arg-type]


def test_a_mask_that_is_written_into_between_layers() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return hw.attention(q, k, v, mask=hw.masks.Boolean(mask)).transpose(1, 2).flatten(2)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Masked(), Masked()

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(1, 1, 5, 5).bool()
            x = self.a(x, mask)
            return self.b(x, mask.tril_())

    model, x = Both(), torch.randn(1, 5, 8)
    with hw.capture(model, "qk") as seen, hw.capture(model, "weights") as dense:
        model(x)
    for layer in ("a", "b"):
        torch.testing.assert_close(seen.weights(layer), dense.weights(layer))


def test_a_class_does_not_take_a_column_of_the_table() -> None:
    labels = torch.zeros(6, dtype=torch.long)
    model = decoder()
    with hw.capture(model, statistics=Classes(labels, ("layer",))) as seen:
        model(IDS)
    with pytest.raises(hw.HeadwayError, match="a column 'layer' already: give Classes other names"):
        seen.table()


def test_a_layer_that_did_not_run() -> None:
    model = nn.ModuleDict({"a": Own(), "b": Own()})
    model.forward = lambda x: model["a"](x)  # type: ignore[method-assign]
    with pytest.raises(hw.HeadwayError, match=r"attended, but not in layers \['b'\]"), hw.capture(model, layers=["b"]):
        model(torch.randn(2, 5, 8))
