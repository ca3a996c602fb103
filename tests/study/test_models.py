from dataclasses import replace

import pytest
import torch

import headway
from headway.errors import HeadwayError
from headway.positions import T5
from headway.study.comparison import DEFAULT_ENCODINGS
from headway.study.models import (
    ModelSizes,
    build_recurrent,
    build_transformer,
    interpolated,
    kernel_used,
    parameter_groups,
)

SIZES = ModelSizes(vocabulary=256, layers=2, width=16, heads=2, max_length=8)


def test_the_same_name_starts_from_the_same_values_in_every_model() -> None:
    plain = dict(build_transformer("none", SIZES, seed=0).named_parameters())
    for spec in DEFAULT_ENCODINGS:
        torch.manual_seed(len(spec))
        model = dict(build_transformer(spec, SIZES, seed=0).named_parameters())
        assert plain.keys() <= model.keys()
        for name, parameter in plain.items():
            assert torch.equal(parameter, model[name]), (spec, name)
    other = dict(build_transformer("none", SIZES, seed=1).named_parameters())
    assert not torch.equal(plain["embedding.weight"], other["embedding.weight"])


def test_matrices_start_with_the_spread_that_the_protocol_says() -> None:
    sizes = replace(SIZES, width=64)
    for name, parameter in build_transformer("none", sizes, 0).named_parameters():
        if parameter.ndim == 2:
            torch.testing.assert_close(parameter.std().item(), parameter.shape[1] ** -0.5, rtol=0.1, atol=0)
            assert parameter.shape[1] in (64, 256), name


def test_an_encodings_own_parameters_start_as_its_class_says_and_by_the_seed() -> None:
    first, again, other = (build_transformer("t5", SIZES, seed).stack.encodings[0].table for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.std() < 0.03


@pytest.mark.parametrize("width", [16, 64, 128])
def test_the_recurrent_model_has_as_many_parameters(width: int) -> None:
    sizes = replace(SIZES, width=width)
    transformer, recurrent = build_transformer(None, sizes, 0), build_recurrent("lstm", sizes, 0)
    apart = recurrent.num_parameters / transformer.num_parameters - 1
    assert abs(apart) <= 0.05
    assert torch.equal(recurrent.embedding.weight, transformer.embedding.weight)


def test_all_encodings_get_the_same_scale() -> None:
    for spec in DEFAULT_ENCODINGS:
        for block in build_transformer(spec, SIZES, 0).stack.blocks:
            assert block.attention.scale == 8**-0.5


def test_an_encodings_own_parameters_learn_at_the_pace_of_its_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(T5, "learning_rate_multiplier", 7.0)
    model = build_transformer("t5", SIZES, 0)
    table = model.stack.encodings[0].table
    groups = parameter_groups(model, 0.1, 0.01)
    own = [group for group in groups if any(parameter is table for parameter in group["params"])]  # type: ignore[attr-defined]
    assert [(group["lr"], group["weight_decay"]) for group in own] == [(pytest.approx(0.7), 0.0)]
    shared = [group for group in groups if group is not own[0]]
    assert {group["lr"] for group in shared} == {0.1}
    counted = sum(len(group["params"]) for group in groups)  # type: ignore[arg-type]
    assert counted == len(list(model.parameters()))


def test_learned_positions_have_a_second_view() -> None:
    assert interpolated("learned", SIZES) == 'learned(extend="interpolate")'
    assert interpolated("learned(max_length=4)", SIZES) == 'learned(max_length=4, extend="interpolate")'
    assert interpolated('learned(extend="interpolate")', SIZES) is None
    assert interpolated("rope", SIZES) is None


def test_the_kernel_is_the_one_that_explain_names() -> None:
    q = torch.zeros(2, 2, 8, 8, requires_grad=True)
    encoding = headway.encoding("rope", head_dim=8)
    assert kernel_used("rope", SIZES, 2, "cpu") == headway.explain(q, q, q, encoding=encoding).kernel
    assert kernel_used("sinusoidal", SIZES, 2, "cpu") == headway.explain(q, q, q).kernel


def test_a_baseline_that_cannot_be_as_large_is_refused() -> None:
    with pytest.raises(HeadwayError):
        build_recurrent("lstm", replace(SIZES, width=1, heads=1, vocabulary=2), 0)
