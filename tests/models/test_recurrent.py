"""The recurrent baseline: its equations written out, its state, its size."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway import HeadwayError
from headway.models import RecurrentLM


def by_hand(model: RecurrentLM, ids: Tensor) -> Tensor:
    """The logits for one sequence of ids, gate by gate and token by token."""
    p = dict(model.recurrence.named_parameters())
    width, layers = model.recurrence.hidden_size, model.recurrence.num_layers
    h = [torch.zeros(width, dtype=torch.float64) for _ in range(layers)]
    c = [torch.zeros(width, dtype=torch.float64) for _ in range(layers)]
    logits = []
    for token in ids:
        x = model.embedding.weight[token] * model.embed_dim**0.5
        for layer in range(layers):
            W, U = p[f"weight_ih_l{layer}"], p[f"weight_hh_l{layer}"]
            a = W @ x + U @ h[layer] + p[f"bias_ih_l{layer}"] + p[f"bias_hh_l{layer}"]
            if model.cell == "lstm":
                i, f, g, o = a.split(width)
                c[layer] = torch.sigmoid(f) * c[layer] + torch.sigmoid(i) * torch.tanh(g)
                h[layer] = torch.sigmoid(o) * torch.tanh(c[layer])
            else:
                h[layer] = torch.tanh(a)
            x = h[layer]
        if model.project is not None:
            x = model.project.weight @ x + model.project.bias
        logits.append((model.embedding.weight if model.head is None else model.head.weight) @ x)
    return torch.stack(logits)


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("hidden_dim", [8, 12])
@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_its_equations(cell: str, hidden_dim: int, tied_head: bool) -> None:
    model = RecurrentLM(20, 8, hidden_dim, 2, cell, tied_head=tied_head).double()
    ids = torch.randint(0, 20, (3, 7))
    logits = model(ids)
    assert logits.shape == (3, 7, 20)
    for row in range(3):
        torch.testing.assert_close(logits[row], by_hand(model, ids[row]))


def test_the_state_carries_on() -> None:
    model, ids = RecurrentLM(20, 8, 12, 2), torch.randint(0, 20, (2, 9))
    first, state = model.step(ids[:, :4])
    second, _ = model.step(ids[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), model(ids))
    assert not torch.allclose(model(ids[:, 4:]), second, atol=1e-4)


@pytest.mark.parametrize("budget", [1_000, 20_000, 777_777])
@pytest.mark.parametrize("options", [{}, {"tied_head": False}, {"num_layers": 3}, {"cell": "rnn", "num_layers": 2}])
def test_hidden_dim_for_a_budget(budget: int, options: dict[str, object]) -> None:
    hidden = RecurrentLM.hidden_dim_for(budget, vocab_size=30, embed_dim=16, **options)  # type: ignore[arg-type]
    sizes = [
        RecurrentLM(30, 16, size, **options).num_parameters  # type: ignore[arg-type]
        for size in (hidden, hidden + 1)
    ]
    assert sizes[0] <= budget < sizes[1]


def test_first_values() -> None:
    model = RecurrentLM(500, 64, 32, 2)
    assert model.embedding.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    for layer in range(2):
        bias = dict(model.recurrence.named_parameters())[f"bias_ih_l{layer}"]
        assert bias[32:64].tolist() == [1.0] * 32
        assert bias[:32].abs().max() < 1


def test_dropout_in_training_alone() -> None:
    model, ids = RecurrentLM(20, 8, 12, dropout=0.5), torch.randint(0, 20, (2, 5))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    torch.testing.assert_close(model(ids), model(ids), rtol=0, atol=0)


def test_round_trips(tmp_path: Path) -> None:
    model, ids = RecurrentLM(20, 8, 12), torch.randint(0, 20, (2, 5))
    logits = model(ids)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = RecurrentLM(20, 8, 12)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        torch.testing.assert_close(other(ids), logits)


def test_refuses() -> None:
    with pytest.raises(HeadwayError, match="cell is 'gru': give 'lstm' or 'rnn'"):
        RecurrentLM(20, 8, 12, cell="gru")
    with pytest.raises(HeadwayError, match="hidden_dim is 0: give at least 1"):
        RecurrentLM(20, 8, 0)
    with pytest.raises(HeadwayError, match="dropout is 1"):
        RecurrentLM(20, 8, 12, dropout=1.0)
    with pytest.raises(HeadwayError, match=r"ids are torch\.float32: give an int64 tensor"):
        RecurrentLM(20, 8, 12)(torch.zeros(1, 4))
    with pytest.raises(HeadwayError, match="100 parameters are too few"):
        RecurrentLM.hidden_dim_for(100, vocab_size=30, embed_dim=16)


def test_a_step_that_raises_changes_no_state() -> None:
    """The state is handed in and out: what was handed in is never written to."""
    model = RecurrentLM(20, 8, 8).eval()
    ids = torch.randint(0, 20, (2, 5))
    _, state = model.step(ids)
    before = [one.clone() for one in state]
    hook = model.recurrence.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.step(ids, state)
    hook.remove()
    model.step(ids, state)
    assert all(map(torch.equal, state, before))
