"""The log of a training: numbers against loops over dense weights, the training as without it, kills and resumes."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import HeadLog, plot_head_log, read_head_log
from headway.masks import Padding
from headway.models import Decoder, Encoder, EncoderDecoder, TransformerConfig

CONFIG = TransformerConfig(vocab_size=30, embed_dim=16, num_heads=4, num_layers=2, dropout=0.3)
IDS = torch.randint(30, (3, 9), generator=torch.Generator().manual_seed(1))


def decoder() -> Decoder:
    model = Decoder(CONFIG, hw.encoding("t5", num_heads=4))
    for block in model.stack.blocks:  # weights that are far from equal
        nn.init.normal_(block.attention.q_proj.weight)
        nn.init.normal_(block.attention.k_proj.weight)
    return model


def dense(model: nn.Module, ids: Tensor) -> list[Tensor]:
    with torch.no_grad(), hw.capture(model, "weights") as seen:
        model(ids)
    return [weights.double() for weights in seen.attentions]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_numbers_are_those_of_dense_weights(tmp_path: Path) -> None:
    model = decoder()
    log = HeadLog(model, tmp_path / "heads.jsonl")
    log(0, IDS)
    rows = {(row["layer"], row["head"]): row for row in log.table()}
    generator = torch.Generator().manual_seed(0)
    repeated = torch.stack([torch.randperm(30, generator=generator)[:4] for _ in range(4)]).repeat(1, 2)
    for number, (weights, of_repeated) in enumerate(
        zip(dense(model.eval(), IDS), dense(model.eval(), repeated), strict=True)
    ):
        for head in range(4):
            row = rows[f"stack.blocks.{number}.attention", head]
            entropy, first, previous, induction = [], [], [], []
            for one in weights[:, head]:
                for i, of_query in enumerate(one.tolist()):
                    first.append(of_query[0])
                    if i:
                        previous.append(of_query[i - 1])
                        entropy.append(-sum(a * math.log(a) for a in of_query[: i + 1] if a > 0) / math.log(i + 1))
            for one in of_repeated[:, head]:
                induction += [float(one[i, i - 4 + 1]) for i in range(4, 8)]
            assert row["normalized_entropy"] == pytest.approx(mean(entropy), abs=2e-6)
            assert row["first"] == pytest.approx(mean(first), abs=2e-6)
            assert row["previous_token"] == pytest.approx(mean(previous), abs=2e-6)
            assert row["induction"] == pytest.approx(mean(induction), abs=2e-6)
            assert row["sink"] == 0


def test_numbers_of_weights_that_are_nan_are_not_known(tmp_path: Path) -> None:
    """Not those of the other rows, as a loss that diverges in one row of a batch would pass unseen."""

    class Damaged(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            q = torch.ones(len(ids), 2, ids.shape[1], 4)
            k = q.clone()
            k[1, 0, 2] = torch.nan
            return F.scaled_dot_product_attention(q, k, q)

    log = HeadLog(Damaged(), tmp_path / "heads.jsonl", vocab_size=30)
    log(0, IDS)
    whole, damaged = (next(row for row in log.table() if row["head"] == head) for head in (1, 0))
    for name in ("normalized_entropy", "first", "previous_token", "induction"):
        assert math.isfinite(whole[name])
        assert math.isnan(damaged[name]), name


class Trained(nn.Module):
    """A model with everything that a look at it could change: dropout, running statistics, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(30)
        self.decoder = Decoder(CONFIG, hw.encoding("randomized + rope", head_dim=4))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.norm(self.decoder(ids).transpose(1, 2)).transpose(1, 2)
        return x + 0.1 * torch.rand_like(x)


def trained(log_to: Path | None, *, autocast: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """The state of a model and of torch's random numbers after a few steps, with the log or without."""
    torch.manual_seed(3)
    model = Trained()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    log = None if log_to is None else HeadLog(model, log_to, every=2, vocab_size=30)
    for step in range(5):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if log is not None:
                log(step, IDS)  # where it could spoil most
            logits = model(IDS)[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1).float(), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if log is not None:
            log(step, IDS)
        optimizer.step()
    return model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_is_the_same_bit_by_bit(tmp_path: Path, autocast: bool) -> None:
    plain, logged = trained(None, autocast=autocast), trained(tmp_path / "heads.jsonl", autocast=autocast)
    assert plain[0].keys() == logged[0].keys()
    assert all(torch.equal(plain[0][name], logged[0][name]) for name in plain[0])
    assert torch.equal(plain[1], logged[1])
    assert [row["step"] for row in read_head_log(tmp_path / "heads.jsonl")] == [0] * 8 + [2] * 8 + [4] * 8


def test_nothing_is_kept_for_gradients(tmp_path: Path) -> None:
    model, outputs = decoder(), []
    model.register_forward_hook(lambda module, given, out: outputs.append(out))
    HeadLog(model, tmp_path / "heads.jsonl")(0, IDS)
    assert len(outputs) == 2
    assert not any(out.requires_grad for out in outputs)


def test_modules_keep_the_mode_that_each_had(tmp_path: Path) -> None:
    model = decoder().train()
    model.stack.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    HeadLog(model, tmp_path / "heads.jsonl")(0, IDS)
    assert [module.training for module in model.modules()] == modes
    model.embedding.register_forward_hook(boom)
    with pytest.raises(RuntimeError, match="boom"):
        HeadLog(model, tmp_path / "other.jsonl")(0, IDS)
    assert [module.training for module in model.modules()] == modes
    assert not (tmp_path / "other.jsonl").exists()


def boom(*_: Any) -> None:
    raise RuntimeError("boom")


# ---------------------------------------------------------------- the file


def test_a_line_every_so_many_steps(tmp_path: Path) -> None:
    log = HeadLog(decoder(), tmp_path / "heads.jsonl", every=3)
    for step in range(8):
        log(step, IDS)
        assert len((tmp_path / "heads.jsonl").read_text().splitlines()) == step // 3 + 1  # on disk at once
    log.write(7, IDS)
    assert log.steps == [0, 3, 6, 7]
    assert log.table() == read_head_log(tmp_path / "heads.jsonl")
    assert len(log.table()) == 4 * 2 * 4


def test_a_resumed_training_doubles_no_steps(tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "heads.jsonl"
    log = HeadLog(model, file, every=10)
    for step in (0, 10, 20, 30):
        log(step, IDS)
    before = read_head_log(file)
    with file.open("a") as half:
        half.write('{"step": 40, "lay')  # as a kill leaves it
    with torch.no_grad():
        model.stack.blocks[0].attention.q_proj.weight.mul_(0)
    resumed = HeadLog(model, file, every=10)
    assert resumed.steps == [0, 10, 20, 30]
    resumed(20, IDS)
    assert resumed.steps == [0, 10, 20]
    after = read_head_log(file)
    assert [row["step"] for row in after] == [0] * 8 + [10] * 8 + [20] * 8
    assert after[:16] == before[:16]
    assert after[16]["normalized_entropy"] != before[16]["normalized_entropy"]
    with file.open("a") as half:
        half.write('{"step": 40, "lay')
    HeadLog(model, file, every=10)(30, IDS)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 10, 20, 30]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "heads.jsonl"
    log = HeadLog(decoder(), file, every=1)
    for step in range(3):
        log(step, IDS)
    whole = file.read_text()
    for damage, message in (
        (whole.replace('{"step": 1', '{"step" 1'), "line 2 is damaged"),
        (whole.replace('{"step": 1', '{"stop": 1'), "line 2 is not a line of HeadLog"),
        (whole.replace('"step": 1', '"step": true'), "line 2 is not a line of HeadLog"),
        (whole.replace('"first": [', '"first": ["a", '), "line 1 is not a line of HeadLog"),
        (whole.replace('"first": [', '"first": [0.5, '), "line 1 is not a line of HeadLog"),
        (whole.replace("normalized_entropy", "entropy"), "line 1 is not a line of HeadLog"),
        (re.sub(r'"first": \[[^]]*]', '"first": 0.5', whole), "line 1 is not a line of HeadLog"),
        (whole.replace('"first": [', '"first": [1e999, '), "line 1 is damaged"),
        ("[]\n" + whole, "line 1 is damaged"),
    ):
        file.write_text(damage)
        with pytest.raises(HeadwayError, match=message):
            read_head_log(file)
        with pytest.raises(HeadwayError, match=message):
            HeadLog(decoder(), file)
        assert file.read_text() == damage


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "heads.jsonl"
    HeadLog(decoder(), file)(0, IDS)
    kept = file.read_text()
    other = Decoder(TransformerConfig(vocab_size=30, embed_dim=16, num_heads=2, num_layers=2))
    with pytest.raises(HeadwayError, match="has lines of a model with other layers or heads: give another file"):
        HeadLog(other, file)(100, IDS)
    assert file.read_text() == kept


# ---------------------------------------------------------------- models and inputs


def test_a_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_head=4, n_layer=2, vocab_size=30, n_positions=9)
    model = transformers.GPT2LMHeadModel(config)
    log = HeadLog(model, tmp_path / "heads.jsonl", every=1)
    mask = torch.ones_like(IDS)
    mask[1, 4:] = 0
    log(0, {"input_ids": IDS, "attention_mask": mask, "labels": IDS})
    log(1, {"input_ids": IDS[:, :4]})
    assert all(0 < row["induction"] < 1 for row in log.table())
    log = HeadLog(model, tmp_path / "row.jsonl")
    log(0, {"input_ids": IDS[1:2, :4]})
    alone = HeadLog(model, tmp_path / "alone.jsonl")
    alone(0, {"input_ids": IDS[1:2], "attention_mask": mask[1:2]})
    for one, padded in zip(log.table(), alone.table(), strict=True):  # padding does not count
        assert one["first"] == pytest.approx(padded["first"], abs=2e-6)
        assert one["normalized_entropy"] == pytest.approx(padded["normalized_entropy"], abs=2e-6)


def test_padding_does_not_count(tmp_path: Path) -> None:
    model = Encoder(CONFIG, hw.encoding("t5", num_heads=4))
    HeadLog(model, tmp_path / "a.jsonl")(0, {"ids": IDS[:1], "mask": Padding([5])})
    HeadLog(model, tmp_path / "b.jsonl")(0, IDS[:1, :5])
    for a, b in zip(read_head_log(tmp_path / "a.jsonl"), read_head_log(tmp_path / "b.jsonl"), strict=True):
        for name in ("normalized_entropy", "first", "previous_token"):
            assert a[name] == pytest.approx(b[name], abs=2e-6)


def test_induction_can_be_left_out(tmp_path: Path) -> None:
    model = EncoderDecoder(CONFIG, None, None)
    log = HeadLog(model, tmp_path / "heads.jsonl", vocab_size=0)
    log(0, (IDS, IDS[:, :5]))
    assert len(log.table()) == 2 * 2 * 4  # self-attention alone
    assert all(math.isnan(row["induction"]) for row in log.table())
    figure = plot_head_log(log.table())
    assert [axes.get_ylabel() for axes in figure.axes if axes.lines] == [
        "entropy / ln(keys seen)", "weight of the first token", "weight of the previous token"
    ]  # fmt: skip
    log = HeadLog(model, tmp_path / "other.jsonl", vocab_size=30)
    with pytest.raises(HeadwayError, match="give vocab_size=0 to leave induction out"):
        log(0, (IDS, IDS[:, :5]))
    assert not (tmp_path / "other.jsonl").exists()


@pytest.mark.parametrize(
    ("model", "path", "options", "message"),
    [
        (decoder, "heads.jsonl", {"every": 0}, "every is 0: give at least 1"),
        (decoder, "nowhere/heads.jsonl", {}, "nowhere/heads.jsonl cannot be written: give a file in a folder that"),
        (decoder, ".", {}, "cannot be written: give a file in a folder that exists"),
        (decoder, "heads.jsonl", {"vocab_size": -1}, "the vocabulary of Decoder is -1: give vocab_size, or 0 to"),
        (Trained, "heads.jsonl", {}, "the vocabulary of Trained is None: give vocab_size, or 0 to leave induction out"),
    ],
)
def test_what_is_refused(tmp_path: Path, model: Any, path: str, options: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(message)):
        HeadLog(model(), tmp_path / path, **options)
    assert not list(tmp_path.iterdir())


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    log = HeadLog(decoder(), tmp_path / "heads.jsonl")
    with pytest.raises(HeadwayError, match="inputs is str: give the model's inputs"):
        log(0, "text")
    with pytest.raises(HeadwayError, match="inputs have 1 tokens in a row: give at least 2, or vocab_size=0"):
        log(0, IDS[:, :1])
    with pytest.raises(HeadwayError, match="missing: give a file that HeadLog wrote"):
        read_head_log(tmp_path / "heads.jsonl")


# ---------------------------------------------------------------- the picture


def test_a_picture_has_a_line_for_each_head(tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "heads.jsonl"
    log = HeadLog(model, file, every=5)
    for step in (0, 5, 10):
        log(step, IDS)
    figure = plot_head_log(file, out=tmp_path / "heads.svg", title="小猫")
    panels = [axes for axes in figure.axes if axes.lines]
    assert len(panels) == 4
    rows = read_head_log(file)
    for axes, name in zip(panels, ("normalized_entropy", "first", "previous_token", "induction"), strict=True):
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
        wanted = [[row[name] for row in rows if (row["layer"], row["head"]) == (layer, head)]
                  for layer in dict.fromkeys(row["layer"] for row in rows) for head in range(4)]  # fmt: skip
        assert drawn == [([0, 5, 10], values) for values in wanted]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["layer 0", "layer 1"]
    assert (tmp_path / "heads.svg").stat().st_size > 1000


def test_an_empty_log_has_no_picture(tmp_path: Path) -> None:
    (tmp_path / "heads.jsonl").write_text("")
    with pytest.raises(HeadwayError, match="has no steps: log some first"):
        plot_head_log(tmp_path / "heads.jsonl")
    with pytest.raises(HeadwayError, match="log has no steps"):
        plot_head_log([])
    assert copy.copy(read_head_log(tmp_path / "heads.jsonl")) == []
