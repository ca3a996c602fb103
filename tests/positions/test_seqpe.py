"""SeqPE: the authors' encoder gives the same vectors; what a word of digits is and where it ends."""

import pytest
import torch

from headway.errors import HeadwayError
from headway.positions._encodings.seqpe import SeqPE

# ghrua/seqpe, text_seqpe/src/transformers/custom_modules/sequential_pe.py, commit 4c4b908: SequentialPE(8, 2, 2,
# max_digits, use_last_layernorm=True, mask_padding=False, data_dim) in evaluation, its parameter number k (in the order
# of ``theirs``) being ½·cos((0.3 + 0.07k)·(0, 1, 2, …)); positions 0, 7, 123, 40321, then (0, 7), (12, 345)
ONE_AXIS = [
    [2.12801, 1.26365, 1.60902, 1.73388, 0.73924, 1.40151, 0.5548, 0.12955],
    [2.12752, 1.26367, 1.60954, 1.73489, 0.74069, 1.40333, 0.55693, 0.13187],
    [2.12191, 1.26917, 1.62592, 1.76142, 0.77621, 1.44629, 0.60545, 0.18383],
    [2.1205, 1.2675, 1.62406, 1.75945, 0.77422, 1.44437, 0.60367, 0.18228],
]
TWO_AXES = [
    [1.49291, 0.6592, 1.09343, 1.00617, 0.0569, 0.64741, -0.52269, -0.54264],
    [1.5502, 0.71996, 1.15027, 1.05218, 0.0865, 0.65699, -0.53429, -0.57401],
]


def theirs(seqpe: SeqPE) -> SeqPE:
    """The parameters as the authors' code was given them, whose linear maps are stored the other way round but one."""
    order = [(seqpe.axis, False)] if seqpe.axis is not None else []
    order += [(seqpe.last, False), (seqpe.places.weight, False), (seqpe.digits.weight, False)]
    for layer in seqpe.layers:
        parts = (layer.qkv, layer.join, layer.norm_1, layer.norm_2, layer.up, layer.down)
        for part in parts:
            order += [(part.weight, part.weight.ndim == 2), (part.bias, False)]
    order += [(part, False) for part in (seqpe.norm.weight, seqpe.norm.bias, seqpe.out.weight, seqpe.out.bias)]
    with torch.no_grad():
        for k, (parameter, turned) in enumerate(order):
            drawn = 0.5 * torch.cos(torch.arange(parameter.numel()) * (0.3 + 0.07 * k))
            shape = parameter.T.shape if turned else parameter.shape
            parameter.copy_(drawn.reshape(shape).T if turned else drawn.reshape(shape))
    return seqpe.eval()


def test_vectors_are_the_authors() -> None:
    found = theirs(SeqPE(8, 2)).embed(torch.zeros(1, 4, 8), torch.tensor([[0, 7, 123, 40321]]))
    torch.testing.assert_close(found[0], torch.tensor(ONE_AXIS), atol=2e-5, rtol=0)
    found = theirs(SeqPE(8, 2, max_digits=3, axes=2)).embed(torch.zeros(1, 2, 8), torch.tensor([[[0, 7], [12, 345]]]))
    torch.testing.assert_close(found[0], torch.tensor(TWO_AXES), atol=2e-5, rtol=0)


def test_a_position_is_told_from_each_of_its_digits() -> None:
    seqpe = theirs(SeqPE(8, 2, max_digits=3))
    codes = seqpe.embed(torch.zeros(1, 1000, 8, dtype=torch.float64))[0]
    assert torch.pdist(codes).min() > 1e-6


def test_dropout_is_for_training_and_a_seed_repeats_it() -> None:
    seqpe, x = SeqPE(8, 2), torch.zeros(1, 3, 8)
    plain = seqpe.eval().embed(x)
    assert torch.equal(seqpe.embed(x), plain)
    torch.manual_seed(0)
    first = seqpe.train().embed(x)
    assert not torch.equal(first, plain)
    torch.manual_seed(0)
    assert torch.equal(seqpe.embed(x), first)
    still = SeqPE(8, 2, dropout=0).train()
    assert torch.equal(still.embed(x), still.embed(x))


def test_it_begins_small() -> None:
    seqpe = SeqPE(64, 4)
    assert 0.019 < seqpe.layers[0].up.weight.std() < 0.021  # type: ignore[union-attr]
    assert not seqpe.out.bias.any()
    assert (seqpe.norm.weight == 1).all()


def test_words_of_more_digits_and_bad_arguments_raise() -> None:
    x = torch.zeros(1, 1, 8)
    with pytest.raises(HeadwayError, match=r"position 100 cannot have 2 digits: .* max_digits=3"):
        SeqPE(8, 2, max_digits=2).embed(x, torch.tensor([[100]]))
    with pytest.raises(HeadwayError, match="position -1 cannot have 5 digits"):
        SeqPE(8, 2).embed(x, torch.tensor([[-1]]))
    with pytest.raises(HeadwayError, match="embed_dim 8 is not divisible by num_heads 3"):
        SeqPE(8, 3)
    with pytest.raises(HeadwayError, match="dropout is 1"):
        SeqPE(8, 2, dropout=1)
    with pytest.raises(HeadwayError, match="temperature is 0"):
        SeqPE(8, 2, temperature=0)
    with pytest.raises(HeadwayError, match="max_digits is 0"):
        SeqPE(8, 2, max_digits=0)
