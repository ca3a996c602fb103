"""An unknown name gets the nearest ones, wherever a name is looked up."""

from collections.abc import Callable

import pytest
import torch

import headway as hw
from headway import HeadwayError, models
from headway.bench.cases import Plan
from headway.checkpoints import ARCHITECTURES
from headway.errors import FEW, nearest, unknown
from headway.inspection import ROLES, STATISTICS, head_roles
from headway.kernels import KERNELS
from headway.nn import Block, FeedForward, MultiHeadAttention
from headway.positions import ENCODINGS
from headway.study import compare
from headway.study.extension import METHODS, need_method
from headway.study.planted import named_language
from headway.study.word_vectors import chosen_methods
from headway.vectors import VECTORS

Q = torch.zeros(1, 1, 2, 4)

LOOK_UPS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "encoding": (hw.encoding, "rop", "rope"),
    "part of a sum": (lambda name: hw.encoding(f"rope + {name}", head_dim=4), "shw", "shaw"),
    "kernel": (lambda name: hw.attention(Q, Q, Q, kernel=name), "spda", "sdpa"),
    "statistic": (lambda name: hw.attention_statistics(Q, Q, statistics=name), "entrpy", "entropy"),
    "role": (lambda name: head_roles(torch.nn.Identity(), [], name), "inductoin", "induction"),
    "activation": (lambda name: FeedForward(8, 8, name), "gleu", "gelu"),
    "method of extending": (need_method, "yam", "yarn"),
    "method for word vectors": (lambda name: chosen_methods([name]), "two-hot", "one-hot"),
    "baseline": (lambda name: compare(encodings=["rope"], baselines=[name]), "lstn", "lstm"),
    "language": (named_language, "chines", "chinese"),
    "mask of a benchmark": (lambda name: Plan(masks=(name,)), "casual", "causal"),
    "dtype of a benchmark": (lambda name: Plan(dtypes=(name,)), "float23", "float32"),
}


@pytest.mark.parametrize("what", LOOK_UPS)
def test_an_unknown_name_gets_the_nearest_and_no_list(what: str) -> None:
    look_up, wrong, meant = LOOK_UPS[what]
    with pytest.raises(HeadwayError) as raised:
        look_up(wrong)
    said = str(raised.value)
    assert said.startswith("there is no ")
    assert f" {wrong!r}: did you mean " in said
    assert repr(meant) in said
    assert said.count("'") <= 2 + 2 * 3
    assert "\n" not in said


def decoder() -> models.Decoder:
    config = models.TransformerConfig(vocab_size=9, embed_dim=8, num_layers=1, num_heads=1)
    return models.Decoder(config, hw.encoding("rope", head_dim=8))


FIRST_TRIES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "Decoder()": (lambda: models.Decoder(), ("'config'", "give Decoder(TransformerConfig(vocab_size=")),
    "Decoder(512)": (lambda: models.Decoder(512), ("config is 512", "give Decoder(TransformerConfig(")),
    "Decoder('rope')": (lambda: models.Decoder("rope"), ("config is 'rope'", "give Decoder(TransformerConfig(")),
    "Decoder(512, 8, 6, 4)": (lambda: models.Decoder(512, 8, 6, 4), ("too many", "give Decoder(TransformerConfig(")),
    "Decoder(vocab_size=9)": (lambda: models.Decoder(vocab_size=9), ("'vocab_size'", "give Decoder(Tr")),
    "Encoder(vocab_size=9)": (lambda: models.Encoder(vocab_size=9), ("'vocab_size'", "give Encoder(Tr")),
    "Encoder(512)": (lambda: models.Encoder(512), ("config is 512", "give Encoder(TransformerConfig(")),
    "EncoderDecoder(512)": (lambda: models.EncoderDecoder(512), ("'encoding'", "give EncoderDecoder(Tr")),
    "EncoderDecoder(512, ..)": (lambda: models.EncoderDecoder(512, None, None), ("config is 512", "give Enc")),
    "Attention()": (lambda: MultiHeadAttention(), ("'embed_dim'", "give MultiHeadAttention(embed_dim=512")),
    "Attention(512)": (lambda: MultiHeadAttention(512), ("'num_heads'", "give MultiHeadAttention(embed_dim=512")),
    "Attention(512, 7)": (lambda: MultiHeadAttention(512, 7), ("num_heads 7", "choose embed_dim = 511 or 518")),
    "Attention(512, 8, 'rope')": (lambda: MultiHeadAttention(512, 8, "rope"), ("too many", "encoding=headway.")),
    "Attention('512', 8)": (lambda: MultiHeadAttention("512", 8), ("embed_dim is '512'", "give a whole number")),
    "Attention(512.0, 8)": (lambda: MultiHeadAttention(512.0, 8), ("embed_dim is 512.0", "give a whole number")),
    "Attention(causal=)": (lambda: MultiHeadAttention(8, 1, causal=True), ("'causal'", "mask=headway.masks.Causal()")),
    "Attention(heads=)": (lambda: MultiHeadAttention(8, heads=1), ("'heads'", "did you mean num_heads=?")),
    "Attention(encoding='rope')": (
        lambda: MultiHeadAttention(8, 1, encoding="rope"),
        ("encoding is 'rope'", "headway.encoding('rope', head_dim=64)"),
    ),
    "Block(512)": (lambda: Block(512), ("'num_heads'", "give Block(embed_dim=512, num_heads=8)")),
    "FeedForward(512)": (lambda: FeedForward(512), ("'hidden_dim'", "give FeedForward(embed_dim=512, hid")),
    "encoding()": (lambda: hw.encoding(), ("'spec'", "give encoding('rope', head_dim=64)")),
    "encoding('rope')": (lambda: hw.encoding("rope"), ("rope needs head_dim", "give encoding('rope', head_dim=")),
    "encoding('rope', 64)": (lambda: hw.encoding("rope", 64), ("too many", "give encoding('rope', head_dim=64)")),
    "encoding(dim=)": (lambda: hw.encoding("rope", dim=64), ("no argument 'dim'", "it takes head_dim")),
    "encoding(head_dim='64')": (lambda: hw.encoding("rope", head_dim="64"), ("head_dim is '64'", "give a whole")),
    "attention(encoding=)": (lambda: hw.attention(Q, Q, Q, encoding="rope"), ("'rope'", "headway.encoding('rope', ")),
    "attention(mask='causal')": (lambda: hw.attention(Q, Q, Q, mask="causal"), ("mask is 'causal'", "Causal()")),
    "attention(mask=Causal)": (lambda: hw.attention(Q, Q, Q, mask=hw.masks.Causal), ("the class Causal", "Causal()")),
    "attention([1])": (lambda: hw.attention([1], [1], [1]), ("q is a list", "give a tensor")),
    "generate('text')": (lambda: models.generate(decoder(), "text"), ("prompt is 'text'", "give ids in rows")),
    "generate([1], '8')": (lambda: models.generate(decoder(), [[1]], "8"), ("max_new_tokens is '8'", "give a whole")),
    "generate(max_length=)": (lambda: models.generate(decoder(), [[1]], max_length=8), ("'max_length'", "max_new_")),
    "generate(do_sample=)": (lambda: models.generate(decoder(), [[1]], do_sample=True), ("'do_sample'", "temperature")),
}
"""What users type first, and what the error says."""


@pytest.mark.parametrize("typed", FIRST_TRIES)
def test_a_wrong_call_names_the_argument_and_the_remedy(typed: str) -> None:
    call, wanted = FIRST_TRIES[typed]
    with pytest.raises(HeadwayError) as raised:
        call()
    for said in wanted:
        assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_call_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match="'num_heads'"):
        MultiHeadAttention(512)


def test_generate_takes_the_number_of_tokens() -> None:
    ids = torch.ones(1, 3, dtype=torch.int64)
    assert models.generate(decoder(), ids, 8).ids == models.generate(decoder(), ids, max_new_tokens=8).ids
    assert len(models.generate(decoder(), ids, 8).ids[0]) == 8
    assert len(list(models.stream(decoder(), ids, 2))) == 2


@pytest.mark.parametrize(
    ("name", "where"),
    [("Decoder", "headway.models.Decoder"), ("MultiHeadAttention", "headway.nn.M"), ("Causal", "headway.masks.Causal")],
)
def test_a_name_of_another_room_is_found(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': it is {where}"):
        getattr(hw, name)
    assert not hasattr(hw, "no_such_thing")


@pytest.mark.parametrize("table", [ENCODINGS, ARCHITECTURES, STATISTICS, ROLES, KERNELS, METHODS, VECTORS])
def test_each_name_is_the_nearest_to_itself_without_a_letter(table: dict[str, object]) -> None:
    for name in table:
        if len(name) > 3:
            assert name in nearest(name[:-1], table)


def test_case_and_hyphens_do_not_count() -> None:
    assert nearest("Transformer_XL", ENCODINGS)[0] == "transformer-xl"
    assert nearest("Previous-Token", ["previous_token"]) == ["previous_token"]


def test_of_many_names_none_is_listed() -> None:
    many = [f"{number:03}" for number in range(FEW + 1)]
    assert str(unknown("thing", "xyz", many, see="the page")) == "there is no thing 'xyz': the page has all 16"
    assert str(unknown("thing", "xyz", many[:2], see="the page")) == "there is no thing 'xyz': give one of 000, 001"
    assert str(unknown("thing", "012", ["0122", "0123", "0124", "0125"])).count("'") == 8
