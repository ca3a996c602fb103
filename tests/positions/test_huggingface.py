"""rope_parameters in and out, against what transformers computes from them."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import PositionEncoding, RoPE
from headway.positions._encodings.dynamic_ntk import DynamicNTK
from headway.positions._encodings.hope import HoPE
from headway.positions._encodings.llama3 import Llama3
from headway.positions._encodings.longrope import LongRoPE
from headway.positions._encodings.ntk_aware import NTKAware
from headway.positions._encodings.p_rope import ProportionalRoPE
from headway.positions._encodings.partial_rope import PartialRoPE
from headway.positions._encodings.position_interpolation import PositionInterpolation
from headway.positions._encodings.yarn import YaRN
from headway.positions._huggingface import from_rope_parameters, to_rope_parameters
from headway.positions._rotary import Rotary

LONGEST = 4096
ORIGINAL = "original_max_position_embeddings"


def grid() -> list[dict[str, Any]]:
    """Parameters of every kind, without rope_theta."""
    found: list[dict[str, Any]] = [{"rope_type": "linear", "factor": f} for f in (1.0, 2, 7.5)]
    found += [{"rope_type": "dynamic", "factor": f} for f in (1.0, 2.0, 4)]
    for factor, length, fast in itertools.product((1.0, 4.0, 40), (256, 4096), (32, 8.0)):
        found.append({"rope_type": "yarn", "factor": factor, ORIGINAL: length, "beta_fast": fast})
    yarn = {"rope_type": "yarn", "factor": 16.0, ORIGINAL: 1024}
    found += [
        yarn,
        yarn | {"truncate": False},
        yarn | {"beta_slow": 2.0, "attention_factor": 1.2},
        yarn | {"mscale": 0.707, "mscale_all_dim": 1.0},
        yarn | {"mscale": 1.0},
        yarn | {"attention_factor": 1.0, "mscale": 0.707, "mscale_all_dim": 1.0},
        yarn | {"mscale": 0.5, "mscale_all_dim": 0},
    ]
    for factor, length in itertools.product((8.0, 32), (1024, 8192)):
        low_high = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        found.append({"rope_type": "llama3", "factor": factor, ORIGINAL: length, **low_high})
    found.append({"rope_type": "llama3", "factor": 4.0, ORIGINAL: 512, "low_freq_factor": 2, "high_freq_factor": 16})
    found += [{"rope_type": "proportional", "partial_rotary_factor": p} for p in (0.25, 0.3, 1.0)]
    found.append({"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 4.0})
    return found


def with_lists(parameters: dict[str, Any], pairs: int) -> dict[str, Any]:
    lists = {"short_factor": [1 + 0.01 * c for c in range(pairs)], "long_factor": [1.5 + c for c in range(pairs)]}
    return parameters | lists


def theirs(parameters: dict[str, Any], head_dim: int, base: float, length: int | None = None) -> tuple[Any, float]:
    """What transformers makes of a config, in float64: the inverse frequencies and the attention factor."""
    package = pytest.importorskip("transformers.modeling_rope_utils")
    config = llama_config(parameters | {"rope_theta": base}, head_dim)
    with pytest.MonkeyPatch.context() as patch:  # its float32 is 1e-6 off by itself
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        return package.ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, seq_len=length)


def llama_config(parameters: dict[str, Any], head_dim: int) -> Any:
    package = pytest.importorskip("transformers.models.llama.modeling_llama")
    return package.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=LONGEST,
        rope_parameters=dict(parameters),
    )


def assert_same(ours: PositionEncoding, inverse: torch.Tensor, attention: float, length: int = 1) -> None:
    assert isinstance(ours, Rotary)
    found = ours.frequencies(Coordinates.span(1, length=length)).flatten()
    torch.testing.assert_close(found, inverse, rtol=1e-12, atol=0)
    assert ours.magnitude == pytest.approx(attention, rel=1e-12)


@pytest.mark.parametrize("parameters", grid(), ids=lambda p: "-".join(map(str, p.values())))
@pytest.mark.parametrize(("head_dim", "base"), [(64, 1e4), (128, 5e5), (16, 100.0)])
def test_frequencies_and_attention_factor(parameters: dict[str, Any], head_dim: int, base: float) -> None:
    ours = from_rope_parameters(parameters, head_dim, base=base, max_position_embeddings=LONGEST)
    for length in (None, 100, LONGEST, LONGEST + 1, 20_000):
        assert_same(ours, *theirs(parameters, head_dim, base, length), length or 1)
        if parameters["rope_type"] != "dynamic":
            break


@pytest.mark.parametrize("part", [0.25, 0.42, 0.75])
@pytest.mark.parametrize("parameters", [p for p in grid()[::3] if p["rope_type"] != "proportional"], ids=str)
def test_a_part_of_a_head(parameters: dict[str, Any], part: float) -> None:
    given = parameters | {"partial_rotary_factor": part}
    ours = from_rope_parameters(given, 64, base=1e4, max_position_embeddings=LONGEST)
    assert_same(ours, *theirs(given, 64, 1e4, 9000), 9000)


@pytest.mark.parametrize("extra", [{"factor": 8.0}, {}, {"attention_factor": 1.19}, {"factor": 1.0}], ids=str)
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_longrope_by_length(extra: dict[str, Any], part: float) -> None:
    given = with_lists({"rope_type": "longrope", ORIGINAL: 1024, **extra}, int(32 * part))
    given |= {"partial_rotary_factor": part} if part < 1 else {}
    ours = from_rope_parameters(given, 64, base=1e4, max_position_embeddings=LONGEST)
    for length in (1, 1024, 1025, 9000):
        assert_same(ours, *theirs(given, 64, 1e4, length), length)


TURNED = [
    {"rope_type": "default"},
    *grid()[:6],
    *grid()[18:22],
    *grid()[-8:],
    with_lists({"rope_type": "longrope", ORIGINAL: 100, "factor": 40.96}, 8),
]


@pytest.mark.parametrize("parameters", TURNED, ids=lambda p: "-".join(map(str, list(p.values())[:3])))
@pytest.mark.parametrize("n", [90, 130])
def test_queries_and_keys_are_turned_as_in_llama(parameters: dict[str, Any], n: int) -> None:
    package = pytest.importorskip("transformers.models.llama.modeling_llama")
    at = torch.arange(n)[None]
    q, k = torch.randn(2, 1, 2, n, 16)
    cos, sin = package.LlamaRotaryEmbedding(llama_config(parameters | {"rope_theta": 1e4}, 16))(q, at)
    ours = from_rope_parameters(parameters, 16, base=1e4, max_position_embeddings=LONGEST)
    where = ours.place(Coordinates.span(n))
    expected = package.apply_rotary_pos_emb(q, k, cos, sin)
    given = (ours.prepare_query(q, where), ours.prepare_key(k, where))
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=0)


def test_old_spellings() -> None:
    linear = from_rope_parameters({"type": "linear", "factor": 4.0}, 8, base=5e5)
    assert repr(linear) == repr(PositionInterpolation(8, 4.0, 5e5, "half"))
    both = from_rope_parameters({"rope_type": "dynamic", "type": "dynamic", "factor": 2}, 8, max_position_embeddings=64)
    assert repr(both) == repr(DynamicNTK(8, 2, 64, layout="half"))
    yarn = {"type": "yarn", "factor": 16.0, ORIGINAL: 4096, "finetuned": True, "attention_factor": None}
    assert repr(from_rope_parameters(yarn, 8)) == repr(YaRN(8, layout="half"))
    su = from_rope_parameters(with_lists({"type": "su", ORIGINAL: 64}, 4), 8, max_position_embeddings=512)
    assert isinstance(su, LongRoPE)
    assert (su.factor, su.max_length) == (8.0, 64)
    for nothing in (None, {}, {"rope_type": "default", "rope_theta": None}):
        assert repr(from_rope_parameters(nothing, 8)) == repr(RoPE(8, layout="half"))
    assert from_rope_parameters({"rope_theta": 2e4}, 8, base=1e4).base == 2e4
    assert from_rope_parameters({"rope_type": "proportional"}, 8).fraction == 1.0
    assert from_rope_parameters(None, 8, layout="interleaved").layout == "interleaved"


def test_what_follows_from_the_config() -> None:
    yarn = from_rope_parameters({"rope_type": "yarn", ORIGINAL: 1024}, 8, max_position_embeddings=4096)
    assert (yarn.factor, yarn.max_length) == (4.0, 1024)
    shorter = from_rope_parameters({"rope_type": "yarn", ORIGINAL: 1024}, 8, max_position_embeddings=512)
    assert (shorter.factor, shorter.max_length) == (1.0, 1024)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert from_rope_parameters(llama3, 8, max_position_embeddings=4096).max_length == 4096


ROUND = [
    RoPE(64, 5e5, "half"),
    PartialRoPE(64, fraction=0.25, layout="half"),
    PositionInterpolation(64, 4.0, layout="half"),
    PositionInterpolation(80, 4.0, 5e5, "half", rotary_dim=32),
    DynamicNTK(64, 2.0, LONGEST, layout="half"),
    DynamicNTK(64, 1.0, LONGEST, layout="half", rotary_dim=16),
    YaRN(64, 40.0, 4096, layout="half", rotary_dim=32, mscale=1.0, mscale_all_dim=0.707),
    YaRN(64, 32.0, 4096, 150000.0, "half", truncate=False, attention_factor=1.3, beta_fast=16.0, beta_slow=2.0),
    LongRoPE(8, [1.0, 1.1, 1.3, 1.7], [1.0, 2.0, 3.5, 8.0], 8.0, 1024, layout="half", attention_factor=1.2),
    LongRoPE(96, [1.0] * 36, [2.0] * 36, 32.0, layout="half", rotary_dim=72),
    Llama3(64, 32.0, layout="half"),
    Llama3(64, 8.0, 1024, 1e4, "half", low_freq_factor=2.0, high_freq_factor=5.0),
    ProportionalRoPE(512, 0.25, 1e6, "half"),
    ProportionalRoPE(64, 1.0, 1e6, "half", factor=8.0),
]


@pytest.mark.parametrize("encoding", ROUND, ids=repr)
def test_an_encoding_comes_back_as_it_was(encoding: Any) -> None:
    parameters = to_rope_parameters(encoding)
    again = from_rope_parameters(parameters, encoding.head_dim, max_position_embeddings=LONGEST)
    assert repr(again) == repr(encoding)
    assert to_rope_parameters(again) == parameters


@pytest.mark.parametrize("encoding", ROUND, ids=repr)
def test_transformers_takes_what_goes_out(encoding: Any) -> None:
    parameters = to_rope_parameters(encoding)
    if parameters["rope_type"] == "default":
        return
    head_dim, base = encoding.head_dim, parameters.pop("rope_theta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(encoding, *theirs(parameters, head_dim, base))


@pytest.mark.parametrize(
    "parameters", [*grid(), with_lists({"rope_type": "longrope", ORIGINAL: 64, "factor": 2.0}, 8)], ids=str
)
def test_a_dictionary_comes_back_as_it_was(parameters: dict[str, Any]) -> None:
    """All but what says the default or nothing."""
    given = {"rope_theta": 5e5, "partial_rotary_factor": 0.25} | parameters
    usual = {"beta_fast": 32, "mscale_all_dim": 0} | ({"factor": 1.0} if given["rope_type"] == "proportional" else {})
    again = to_rope_parameters(from_rope_parameters(given, 64, max_position_embeddings=LONGEST))
    assert again == {key: value for key, value in given.items() if (key, value) not in usual.items()}


def test_any_even_part_survives() -> None:
    for head_dim in range(4, 260, 4):
        for width in range(4, head_dim, 2):
            encoding = PositionInterpolation(head_dim, rotary_dim=width, layout="half")
            assert repr(from_rope_parameters(to_rope_parameters(encoding), head_dim)) == repr(encoding)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rope_type": "ntk", "factor": 2.0}, "no rope_type 'ntk': give one of default, linear, dynamic, yarn"),
        ({"type": "mrope", "mrope_section": [1, 1, 2]}, "no rope_type 'mrope'"),
        ({"rope_type": "linear"}, "of the rope_type 'linear' have no factor: give it$"),
        ({"rope_type": "linear", "factor": "4"}, "factor is '4': give a number"),
        ({"rope_type": "linear", "factor": True}, "factor is True: give a number"),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5: give at least 1"),
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' needs the config's max_position_embeddings"),
        ({"rope_type": "yarn", "factor": 2.0}, f"have no {ORIGINAL}: give it or max_position_embeddings="),
        ({"rope_type": "yarn", ORIGINAL: 64}, "have no factor: give it or max_position_embeddings="),
        ({"rope_type": "llama3", "factor": 8.0, ORIGINAL: 64}, "have no low_freq_factor: give it$"),
        ({"rope_type": "longrope", "factor": 8.0, "short_factor": [1], "long_factor": [1]}, "which Phi-3 keeps beside"),
        (
            {"rope_type": "longrope", "short_factor": 1.0, "long_factor": [1], "factor": 2, ORIGINAL: 9},
            "give a list of",
        ),
        ({"rope_type": "longrope", "short_factor": ["a"], "long_factor": [1], "factor": 2, ORIGINAL: 9}, "is 'a'"),
        (
            {"rope_type": "default", "mrope_section": [1, 1, 2]},
            r"mrope_section is \[1, 1, 2\]: the rope_type 'default'",
        ),
        ({"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}, "alpha is 1000.0: the rope_type 'dynamic' does not"),
        (
            {"full_attention": {"rope_type": "default"}, "sliding": {}},
            "a set for each of full_attention, sliding: give",
        ),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4': give a number"),
        ({"partial_rotary_factor": [1]}, r"partial_rotary_factor is \[1\]: give a number"),
    ],
)
def test_what_cannot_be_read_raises(parameters: dict[str, Any], said: str) -> None:
    longest = 64 if "alpha" in parameters else None
    with pytest.raises(HeadwayError, match=said):
        from_rope_parameters(parameters, 8, max_position_embeddings=longest)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (HoPE(8), "HoPE has no rope_type: there are default, linear"),
        (NTKAware(8), "NTKAware has no rope_type"),
        (YaRN(8, ramp="paper"), "ramp is 'paper': rope_parameters have no key for it, leave 'code'"),
        (YaRN(8, mscale_all_dim=1.0, scale_scores=True), "scale_scores is True: rope_parameters have no key"),
        (LongRoPE(8, use="long"), "use is 'long': rope_parameters have no key for it, leave 'length'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_hugging_face_has_not_raises(encoding: PositionEncoding, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        to_rope_parameters(encoding)
