"""Prepacked weights give the same numbers, no gradients, and come back as they were."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import headway
from headway import HeadwayError
from headway.checkpoints.gpt2 import GPT2
from headway.kernels.cpu import _library
from headway.models import Decoder, Encoder, TransformerConfig
from headway.nn import Embedding, Head, RMSNorm, prepack, unprepack
from headway.nn.prepacked import PrepackedLinear, PrepackedRMSNorm, is_prepacked

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
CONFIG = TransformerConfig(vocab_size=50, embed_dim=32, num_layers=2, num_heads=4, activation="swiglu")


def model_of() -> Decoder:
    return Decoder(CONFIG, headway.encoding("rope", head_dim=8)).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(19,), (1, 19), (2, 3, 19), (0, 19), (70, 19)])
def test_a_prepacked_map_is_the_map(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    linear, x = nn.Linear(19, 37, bias=bias, dtype=dtype), torch.randn(shape, dtype=dtype)
    prepacked = PrepackedLinear(linear.weight, linear.bias)
    torch.testing.assert_close(prepacked(x), linear(x).detach())
    assert torch.equal(prepacked.weight, linear.weight)
    for again in (copy.deepcopy(prepacked), pickle.loads(pickle.dumps(prepacked))):
        torch.testing.assert_close(again(x), prepacked(x))


@pytest.mark.parametrize("tied", [True, False])
def test_a_prepacked_model_is_the_model(tied: bool) -> None:
    model = Decoder.of_parts(Embedding(50, 32), model_of().stack, Head(32, 50, tied=tied, bias=True))
    assert model.head is not None
    assert model.head.bias is not None
    nn.init.normal_(model.head.bias)
    ids = torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        wanted = model(ids)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert prepack(model) is model
    assert is_prepacked(model)
    assert not any(type(one) is nn.Linear for one in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(model(ids), wanted)
        cache = model.new_cache()
        steps = [model(ids[:, i : i + 1], cache=cache) for i in range(7)]
        torch.testing.assert_close(torch.cat(steps, dim=1), wanted)
    unprepack(model)
    assert not is_prepacked(model)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(ids).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_prepacking_twice_is_prepacking_once() -> None:
    model = prepack(model_of())
    maps = {id(one) for one in model.modules() if isinstance(one, PrepackedLinear)}
    prepack(model)
    assert {id(one) for one in model.modules() if isinstance(one, PrepackedLinear)} == maps


def test_a_gradient_is_refused() -> None:
    model = prepack(model_of())
    with pytest.raises(HeadwayError, match=r"x requires a gradient.*inference_mode"):
        model(torch.tensor([[1, 2]]))


def test_maps_that_terms_read_stay_as_they_are() -> None:
    deberta = headway.encoding("deberta", embed_dim=32, num_heads=4, head_dim=8)
    model = prepack(Encoder(CONFIG, deberta))
    assert all(type(one) is nn.Linear for one in (deberta.key, deberta.query))
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).isfinite().all()


def test_other_dtypes_stay_as_they_are() -> None:
    model = prepack(model_of().double())
    assert not is_prepacked(model)


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(HeadwayError, match="is not on the CPU"):
        prepack(nn.Sequential(nn.Linear(2, 2, device="meta")))


def test_a_torch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(HeadwayError, match="without oneDNN"):
        prepack(model_of())


def test_a_prepacked_model_is_not_saved(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from headway.testing.checkpoints import their_model

    their_model(GPT2.examples[0]).save_pretrained(tmp_path / "there")
    model = prepack(headway.load(tmp_path / "there"))
    with pytest.raises(HeadwayError, match=r"the model is prepacked.*unprepack\(model\) first"):
        headway.save(model, tmp_path / "here")
    headway.save(unprepack(model), tmp_path / "here")


def test_a_shared_map_stays_shared() -> None:
    linear = nn.Linear(8, 8)
    both = prepack(nn.Sequential(linear, nn.ReLU(), linear))
    assert both[0] is both[2]
    assert isinstance(unprepack(both)[0], nn.Linear)
    assert both[0] is both[2]


# Few passes over memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prepacked_norm_is_the_norm(dtype: torch.dtype) -> None:
    for norm in (RMSNorm(40, eps=1e-3), RMSNorm(40), RMSNorm(40, elementwise_affine=False), RMSNorm((5, 40))):
        norm, x = norm.to(dtype), torch.randn(2, 5, 40, dtype=dtype)
        with torch.no_grad():
            wanted = norm(x)
            torch.testing.assert_close(prepack(nn.Sequential(norm))(x), wanted)
        assert type(norm) is PrepackedRMSNorm
    with_gradient = prepack(nn.Sequential(RMSNorm(40)))(torch.randn(2, 40)).sum()
    with_gradient.backward()


def test_one_pass_is_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if _library.why_not():
        pytest.skip("the library is not there")
    taken = []
    real = _library.rms_norm
    monkeypatch.setattr(_library, "rms_norm", lambda words: (taken.append("rms_norm"), real(words)))
    config = TransformerConfig(50, 32, num_layers=2, num_heads=4, activation="swiglu", norm="rms")
    model = Decoder(config, headway.encoding("rope", head_dim=8)).eval()
    ids = torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        wanted = model(ids)
        assert not taken
        torch.testing.assert_close(prepack(model)(ids), wanted)
        assert taken == ["rms_norm"] * 5
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            taken.clear()
            torch.testing.assert_close(again(ids), wanted)
            assert len(taken) == 5
        unprepack(model)
        taken.clear()
        torch.testing.assert_close(model(ids), wanted)
        assert not taken
    assert not any(isinstance(one, PrepackedRMSNorm) for one in model.modules())
