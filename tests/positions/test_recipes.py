"""Encodings of whole stacks, in a Decoder, and what dropping them leaves."""

from dataclasses import replace

import pytest
import torch

from headway.errors import HeadwayError
from headway.models import Decoder, TransformerConfig
from headway.nn import MultiHeadAttention
from headway.positions import RECIPES, ALiBi, Compose, NoPE, RoPE, drop_positions
from headway.positions._encodings.axial_rope import AxialRoPE
from headway.positions._encodings.llama4_temperature import Llama4Temperature
from headway.positions._encodings.log_n import LogN
from headway.positions._encodings.mixed_rope import MixedRoPE

CONFIG = TransformerConfig(vocab_size=11, embed_dim=32, num_layers=8, num_heads=4, num_kv_heads=2, kernel="reference")


def kinds(name: str, num_layers: int = 8) -> list[str]:
    return [type(encoding).__name__ for encoding in RECIPES[name](num_layers, 8).encodings]


def test_which_layers_have_what() -> None:
    assert kinds("llama-4") == ["RoPE", "RoPE", "RoPE", "Llama4Temperature"] * 2
    assert kinds("smollm-3") == kinds("rnope-swa") == ["RoPE", "RoPE", "RoPE", "NoneType"] * 2
    assert [e.base for e in RECIPES["gemma-3"](8, 8).encodings] == [1e4] * 5 + [1e6] + [1e4] * 2
    bases = {name: (e.base, e.layout) for name in RECIPES for e in RECIPES[name](1, 8).encodings}
    assert bases == {
        "llama-4": (5e5, "interleaved"),
        "smollm-3": (2e6, "half"),
        "rnope-swa": (1e4, "interleaved"),
        "gemma-3": (1e4, "half"),
    }


def test_layers_of_one_kind_share_one_object() -> None:
    assert len({id(encoding) for encoding in RECIPES["llama-4"](8, 8).encodings}) == 2
    decoder = Decoder(CONFIG, *RECIPES["gemma-3"](8, 8))
    assert sum(isinstance(module, RoPE) for module in decoder.modules()) == 2


@pytest.mark.parametrize("name", RECIPES)
def test_a_decoder_takes_it_and_decodes_token_by_token(name: str) -> None:
    extra = {"step": 2} if name == "llama-4" else {}
    decoder = Decoder(CONFIG, *RECIPES[name](8, 8, **extra)).double().eval()
    ids = torch.randint(11, (2, 6))
    whole, cache = decoder(ids), decoder.new_cache()
    steps = torch.cat([decoder(ids[:, i : i + 1], cache=cache) for i in range(6)], dim=1)
    torch.testing.assert_close(steps, whole)
    plain = Decoder(CONFIG, None).double().eval()
    plain.load_state_dict(decoder.state_dict())
    assert not torch.allclose(plain(ids), whole)


@pytest.mark.parametrize("arguments", [{"num_layers": 0}, {"interval": 0}])
def test_wrong_sizes_raise(arguments: dict) -> None:
    with pytest.raises(HeadwayError, match="is 0: give at least 1"):
        RECIPES["smollm-3"](**({"num_layers": 4, "head_dim": 8} | arguments))


def test_a_model_without_its_rotations_is_one_that_never_had_any() -> None:
    decoder = Decoder(CONFIG, [RoPE(8), None] * 4).double().eval()
    ids = torch.randint(11, (2, 6))
    before = decoder(ids)
    assert drop_positions(decoder) == 1
    plain = Decoder(CONFIG, None).double().eval()
    plain.load_state_dict(decoder.state_dict())
    after = decoder(ids)
    assert torch.equal(after, plain(ids))
    assert not torch.allclose(after, before)
    cache = decoder.new_cache()
    steps = torch.cat([decoder(ids[:, i : i + 1], cache=cache) for i in range(6)], dim=1)
    torch.testing.assert_close(steps, after)


def test_what_is_no_rotation_stays() -> None:
    model = torch.nn.ModuleDict(
        {
            "both": Compose(RoPE(8), LogN(3)),
            "bias": ALiBi(4),
            "layer": MultiHeadAttention(32, 4, encoding=RoPE(8)),
            "image": AxialRoPE(8),
            "learned": MixedRoPE(4, 8),
        }
    )
    assert drop_positions(model) == 4
    left = [type(module).__name__ for module in model["both"].each]
    assert left == ["NoPE", "LogN"]
    assert isinstance(model["bias"], ALiBi)
    assert isinstance(model["layer"].encoding, NoPE)
    assert not list(model["learned"].parameters())


def test_kinds_can_be_named_and_none_raises() -> None:
    layers = torch.nn.ModuleList([Llama4Temperature(), RoPE(8)])
    assert drop_positions(layers, (Llama4Temperature,)) == 1
    assert isinstance(layers[1], RoPE)
    with pytest.raises(HeadwayError, match="the model holds no encoding of the kinds ALiBi"):
        drop_positions(layers, (ALiBi,))


def test_transformers_has_the_same_layers() -> None:
    pytest.importorskip("transformers")
    from transformers import Cohere2Config, Gemma3TextConfig, Llama4TextConfig, SmolLM3Config

    for name, config in (("llama-4", Llama4TextConfig), ("smollm-3", SmolLM3Config)):
        theirs = config(num_hidden_layers=8)
        ours = RECIPES[name](8, 8).encodings
        assert [int(isinstance(encoding, RoPE)) for encoding in ours] == theirs.no_rope_layers
        assert ours[0].base == theirs.rope_parameters["rope_theta"]
    windows = [kind == "sliding_attention" for kind in Cohere2Config(num_hidden_layers=8).layer_types]
    assert [encoding is not None for encoding in RECIPES["rnope-swa"](8, 8).encodings] == windows
    assert [mask is not None for mask in RECIPES["rnope-swa"](8, 8).masks] == windows
    gemma = Gemma3TextConfig(num_hidden_layers=8)
    expected = [gemma.rope_parameters[kind]["rope_theta"] for kind in gemma.layer_types]
    assert [encoding.base for encoding in RECIPES["gemma-3"](8, 8).encodings] == expected


def test_layers_see_what_their_masks_allow() -> None:
    """A window of 2 in all but the last layer: what the first token says reaches the last in two steps at most."""
    recipe = RECIPES["rnope-swa"](3, 8, window=2)
    config = replace(CONFIG, num_layers=3)
    decoder = Decoder(config, *recipe).double().eval()
    ids = torch.randint(11, (1, 6))
    other = torch.cat([(ids[:, :1] + 1) % 11, ids[:, 1:]], dim=1)
    reached = (decoder(ids) != decoder(other)).any(-1)[0].tolist()
    assert reached == [True, True, True, True, False, False]
    with pytest.raises(HeadwayError, match="2 masks but 3 layers"):
        Decoder(config, recipe.encodings, recipe.masks[:2])
