"""An unknown name gets the nearest ones, wherever a name is looked up."""

import importlib
import inspect
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
from headway.nn import Block, FeedForward, MultiHeadAttention, prepack
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


class Own(hw.masks.Mask):
    """A user's mask, which returns what it is given."""

    def __init__(self, found: object) -> None:
        self.found = found

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> torch.Tensor:
        return self.found


def masked(found: object) -> object:
    return hw.attention(Q, Q, Q, mask=Own(found))


def max_of(a: int, b: int) -> int:
    return max(a, b)


LAYER, BLOCK = MultiHeadAttention(4, 1), Block(4, 1)
X, IDS = torch.zeros(1, 2, 4), torch.tensor([[1, 2]])

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
    "Attention(512, 8, 'rope')": (lambda: MultiHeadAttention(512, 8, "rope"), ("too many", "encoding='rope'")),
    "Attention('512', 8)": (lambda: MultiHeadAttention("512", 8), ("embed_dim is '512'", "give a whole number")),
    "Attention(512.0, 8)": (lambda: MultiHeadAttention(512.0, 8), ("embed_dim is 512.0", "give a whole number")),
    "Attention(causal=)": (lambda: MultiHeadAttention(8, 1, causal=True), ("'causal'", "mask=headway.masks.Causal()")),
    "Attention(heads=)": (lambda: MultiHeadAttention(8, heads=1), ("'heads'", "did you mean num_heads=?")),
    "Attention(encoding=8)": (
        lambda: MultiHeadAttention(24, 2, encoding=8),
        ("encoding is 8", "headway.encoding('rope', head_dim=12)"),
    ),
    "Attention(encoding='ropes')": (lambda: MultiHeadAttention(8, 1, encoding="ropes"), ("did you mean", "'rope'")),
    "Attention(encoding='learned')": (
        lambda: MultiHeadAttention(8, 1, encoding="learned"),
        ("learned needs max_length", "'learned(max_length=…)' as a name"),
    ),
    "layer(encoding='t5')": (lambda: LAYER(X, encoding="t5"), ("'t5' has parameters", "num_heads=1, head_dim=4")),
    "layer(mask='casual')": (lambda: LAYER(X, mask="casual"), ("no mask 'casual'", "did you mean 'causal'?")),
    "stack(encoding=8)": (
        lambda: models.Stack([Block(24, 2)], encoding=8),
        ("encoding is 8", "headway.encoding('rope', head_dim=12)"),
    ),
    "Block(512)": (lambda: Block(512), ("'num_heads'", "give Block(embed_dim=512, num_heads=8)")),
    "FeedForward(512)": (lambda: FeedForward(512), ("'hidden_dim'", "give FeedForward(embed_dim=512, hid")),
    "encoding()": (lambda: hw.encoding(), ("'spec'", "give encoding('rope', head_dim=64)")),
    "encoding('rope')": (lambda: hw.encoding("rope"), ("rope needs head_dim", "give encoding('rope', head_dim=")),
    "encoding('rope', 64)": (lambda: hw.encoding("rope", 64), ("too many", "give encoding('rope', head_dim=64)")),
    "encoding(dim=)": (lambda: hw.encoding("rope", dim=64), ("no argument 'dim'", "it takes head_dim")),
    "encoding(head_dim='64')": (lambda: hw.encoding("rope", head_dim="64"), ("head_dim is '64'", "give a whole")),
    "attention(encoding=)": (lambda: hw.attention(Q, Q, Q, encoding=8), ("is 8", "headway.encoding('rope', head_dim=")),
    "attention(encoding='t5')": (
        lambda: hw.attention(Q, Q, Q, encoding="t5"),
        ("the encoding 't5' has parameters", "make it once, by headway.encoding('t5', num_heads="),
    ),
    "attention(encoding='rop')": (lambda: hw.attention(Q, Q, Q, encoding="rop"), ("no encoding 'rop'", "'rope'")),
    "attention(mask='casual')": (
        lambda: hw.attention(Q, Q, Q, mask="casual"),
        ("no mask 'casual'", "did you mean 'causal'?"),
    ),
    "attention(mask='window')": (
        lambda: hw.attention(Q, Q, Q, mask="window"),
        ("'window' needs arguments", "headway.masks.Window(…)"),
    ),
    "attention(mask=8)": (lambda: hw.attention(Q, Q, Q, mask=8), ("mask is 8", "(b, h, q_idx, kv_idx)")),
    "attention(mask=layer)": (lambda: hw.attention(Q, Q, Q, mask=LAYER), ("mask is a MultiHeadAttention", "Causal()")),
    "attention(mask=function of 2)": (
        lambda: hw.attention(Q, Q, Q, mask=max_of),
        ("the function max_of, which does not take four arguments", "(b, h, q_idx, kv_idx)"),
    ),
    "attention(mask=not boolean)": (
        lambda: hw.attention(Q, Q, Q, mask=lambda b, h, q_idx, kv_idx: q_idx - kv_idx),
        ("the mask function <lambda> returns torch.int64", "return one boolean"),
    ),
    "attention(mask=branches)": (
        lambda: hw.attention(Q, Q, Q, mask=lambda b, h, q_idx, kv_idx: q_idx if q_idx > kv_idx else kv_idx),
        ("the mask function <lambda> fails", "tensors without dimensions"),
    ),
    "attention(mask=Causal)": (lambda: hw.attention(Q, Q, Q, mask=hw.masks.Causal), ("the class Causal", "Causal()")),
    "attention([1])": (lambda: hw.attention([1], [1], [1]), ("q is a list", "give a tensor")),
    "attention(is_causal=)": (
        lambda: hw.attention(Q, Q, Q, is_causal=True),
        ("'is_causal'", "mask=headway.masks.Causal()"),
    ),
    "attention(attn_mask=)": (
        lambda: hw.attention(Q, Q, Q, attn_mask=Q),
        ("'attn_mask'", "give mask=, one of headway"),
    ),
    "attention(dropout_p=)": (lambda: hw.attention(Q, Q, Q, dropout_p=0.1), ("'dropout_p'", "give dropout=")),
    "attention(encodings=)": (
        lambda: hw.attention(Q, Q, Q, encodings=None),
        ("'encodings'", "did you mean encoding=?"),
    ),
    "weights(causal=)": (
        lambda: hw.attention_weights(Q, Q, Q, causal=True),
        ("'causal'", "mask=headway.masks.Causal()"),
    ),
    "explain(is_causal=)": (lambda: hw.explain(Q, Q, Q, is_causal=True), ("'is_causal'", "headway.masks.Causal()")),
    "layer(key_padding_mask=)": (
        lambda: LAYER(X, key_padding_mask=None),
        ("MultiHeadAttention: there is no argument 'key_padding_mask'", "mask=headway.masks.Padding(lengths)"),
    ),
    "layer(attn_mask=)": (lambda: LAYER(X, X, X, attn_mask=None), ("'attn_mask'", "give mask=, one of headway.masks")),
    "layer(is_causal=)": (lambda: LAYER(X, is_causal=True), ("'is_causal'", "give mask=headway.masks.Causal()")),
    "layer(need_weights=)": (lambda: LAYER(X, need_weights=True), ("'need_weights'", "headway.attention_weights")),
    "block(src_mask=)": (lambda: BLOCK(X, src_mask=None), ("Block: there is no argument 'src_mask'", "give mask=")),
    "decoder(attention_mask=)": (lambda: decoder()(IDS, attention_mask=IDS), ("Decoder: there", "Padding(lengths)")),
    "decoder(ids beyond)": (lambda: decoder()(torch.tensor([[1, 99]])), ("go from 1 to 99", "ids from 0 to 8")),
    "TransformerConfig(heads=)": (
        lambda: models.TransformerConfig(9, heads=4),
        ("'heads'", "did you mean num_heads=?"),
    ),
    "TransformerConfig(d_model=)": (lambda: models.TransformerConfig(9, d_model=4), ("'d_model'", "give embed_dim=")),
    "TransformerConfig()": (lambda: models.TransformerConfig(), ("'vocab_size'", "TransformerConfig(vocab_size=1000)")),
    "load(3)": (lambda: hw.load(3), ("path is 3", "owner/name")),
    "load()": (lambda: hw.load(), ("'path'", "give load(")),
    "load(torch_dtype=)": (lambda: hw.load("m", torch_dtype=None), ("'torch_dtype'", "give dtype=")),
    "load(dtype='bf16')": (lambda: hw.load("m", dtype="bf16"), ("dtype is 'bf16'", "torch.bfloat16")),
    "load(dtype='half')": (lambda: hw.load("m", dtype="half"), ("dtype is 'half'", "torch.float16")),
    "load(device='gpu')": (lambda: hw.load("m", device="gpu"), ("no device 'gpu'", "cuda")),
    "conversation('m', 'hello')": (
        lambda: hw.checkpoints.conversation("m", "hello"),
        ("messages is 'hello'", "[{'role': 'user', 'content': 'hello'}]"),
    ),
    "conversation of no model": (lambda: hw.checkpoints.conversation("m", []), ("m is not a folder",)),
    "tokenizer(3)": (lambda: hw.checkpoints.tokenizer(3), ("path is 3", "owner/name")),
    "swap_attention('m')": (
        lambda: hw.integrations.torch.swap_attention("m"),
        ("model is 'm'", "nn.TransformerEncoder"),
    ),
    "prepack(5)": (lambda: prepack(5), ("model is 5", "headway.load(path)")),
    "Padding([50, 60]) on 2": (lambda: hw.attention(Q, Q, Q, mask=hw.masks.Padding([60])), ("up to 60", "are 2 keys")),
    "Padding([2]) on 2 rows": (
        lambda: hw.attention(*[Q.expand(2, 1, 2, 4)] * 3, mask=hw.masks.Padding([2])),
        ("lengths of shape (1,)", "one for each row, [2]"),
    ),
    "packed(cu_seqlens)": (lambda: hw.Coordinates.packed(torch.tensor([0, 3, 7])), ("cu_seqlens.diff()",)),
    "packed(5)": (lambda: hw.Coordinates.packed(5), ("lengths is 5", "such as [5]")),
    "own mask, 3-D": (
        lambda: masked(torch.ones(1, 2, 2).bool()),
        ("Own.allowed returns torch.bool", "allowed[:, None]"),
    ),
    "own mask, floats": (lambda: masked(torch.ones(1, 1, 2, 2)), ("returns torch.float32", "a boolean tensor")),
    "own mask, no return": (lambda: masked(None), ("returns NoneType", "a boolean tensor")),
    "own mask, other sizes": (lambda: masked(torch.ones(1, 1, 3, 2).bool()), ("(1, 1, 3, 2)", "[batch, heads, 2, 2]")),
    "heads and tokens swapped": (
        lambda: hw.attention(*[torch.zeros(1, 6, 3, 4)] * 3, encoding=hw.encoding("alibi", num_heads=3)),
        ("shape (3,): give [1 or 6]", "give q.transpose(1, 2)"),
    ),
    "rope of another width": (
        lambda: hw.attention(Q, Q, Q, encoding=hw.encoding("rope", head_dim=8)),
        ("built with head_dim=8", "last dimension of 4: build it with head_dim=4"),
    ),
    "generate(ids of one row)": (lambda: models.generate(decoder(), IDS[0]), ("of shape (2,)", "ids[None]")),
    "generate([1], 2.5)": (lambda: models.generate(decoder(), [[1]], 2.5), ("max_new_tokens is 2.5", "whole number")),
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
    [
        ("Decoder", "headway.models.Decoder"),
        ("MultiHeadAttention", "headway.nn.M"),
        ("Causal", "headway.masks.Causal"),
        *((name, f"headway.{room}.{name}") for name, room in hw._ELSEWHERE.items()),
    ],
)
def test_a_name_of_another_room_is_found(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': it is {where}"):
        getattr(hw, name)
    assert not hasattr(hw, "no_such_thing")


@pytest.mark.parametrize("name", hw._ELSEWHERE)
def test_it_is_there(name: str) -> None:
    assert hasattr(importlib.import_module(f"headway.{hw._ELSEWHERE[name]}"), name)


@pytest.mark.parametrize(
    "function",
    [hw.attention, MultiHeadAttention.forward, Block.forward, models.Encoder.forward, models.EncoderDecoder.forward],
)
def test_what_is_refused_is_no_argument(function: Callable[..., object]) -> None:
    assert "others" not in inspect.signature(function).parameters


def test_own_masks_may_leave_out_batch_and_heads() -> None:
    q = torch.randn(2, 3, 4, 8)
    expected = hw.attention(q, q, q, mask=hw.masks.Causal())
    torch.testing.assert_close(hw.attention(q, q, q, mask=Own(torch.ones(4, 4).tril().bool())), expected)


def test_lengths_that_are_no_ends_are_packed() -> None:
    assert hw.Coordinates.packed(torch.tensor([3, 4])) == hw.Coordinates.packed([3, 4])
    assert hw.Coordinates.packed([0, 3, 7]).document[0].tolist() == [1] * 3 + [2] * 7


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
