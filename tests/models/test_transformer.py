"""The Transformer as encoder, decoder and both: caches, padding, memory and who owns the encodings."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import headway
from headway import Coordinates, HeadwayError, masks
from headway.models import Decoder, Encoder, EncoderDecoder, Stack, TransformerConfig
from headway.nn import Block, Embedding, Head, SegmentMemory, StackCache
from headway.positions import PositionEncoding, RoPE

ENCODINGS = ["none", "rope", "t5", "alibi", "shaw", "transformer-xl", "sinusoidal", "learned"]
RELATIVE = ["none", "rope", "t5", "alibi", "shaw", "transformer-xl"]
SMALL = TransformerConfig(vocab_size=50, embed_dim=32, num_layers=3, num_heads=4, num_kv_heads=2)
M = TypeVar("M", bound=nn.Module)


def encoding_of(name: str, *, bidirectional: bool = False) -> PositionEncoding:
    """An encoding for 4 heads of 8, as the models here have them."""
    return headway.encoding(name, num_heads=4, head_dim=8, embed_dim=32, max_length=64, bidirectional=bidirectional)


def randomised(module: M) -> M:
    """The module with every parameter of a size at which it shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return module


def decoder_of(name: str, **options: Any) -> Decoder:
    return randomised(Decoder(replace(SMALL, **options), encoding_of(name))).eval()


def some_ids(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape)


# ---------------------------------------------------------------- the decoder


@pytest.mark.parametrize("name", [*ENCODINGS, "fire"])
@torch.no_grad()
def test_a_step_without_coordinates_has_the_bits_of_one_with_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a stack count the tokens of a stream, but not those of steps that are given positions."""
    model, ids, made = decoder_of(name), some_ids(2, 20), []
    step = Stack._step
    monkeypatch.setattr(Stack, "_step", lambda self, *rest: made.append(len(rest[2])) or step(self, *rest))

    def read(given: set[int]) -> list[Tensor]:
        """Logits of a prompt and of steps, those in ``given`` with positions; a crop and a reorder are in between."""
        cache = model.new_cache()
        out, at = [model(ids[:, :8], cache=cache)], 8
        while at < 20:
            n = 2 if at == 12 else 1
            positions = Coordinates.span(n, start=at) if at in given else None
            out.append(model(ids[:, at : at + n], positions=positions, cache=cache))
            at += n
            if at == 11 and len(out) == 4:
                cache.crop(9)
                at = 9
            elif at == 16:
                cache.reorder(torch.tensor([1, 0]))
        assert cache.coordinates is not None
        assert cache.coordinates.index[0].tolist() == list(range(20))
        return out

    expected = read(set(range(20)))
    assert made == []
    found = read({10, 17})
    assert all(map(torch.equal, found, expected))
    assert (len(made) > 4) == (name not in ("transformer-xl", "fire")), made


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_future_does_not_change_the_past(name: str) -> None:
    model, ids = decoder_of(name), some_ids(2, 9)
    logits = model(ids)
    assert logits.shape == (2, 9, 50)
    changed = ids.clone()
    changed[:, 5:] = some_ids(2, 4)
    torch.testing.assert_close(model(changed)[:, :5], logits[:, :5])
    assert not torch.allclose(model(changed)[:, 6:], logits[:, 6:], atol=1e-3)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_encoding_is_used(name: str) -> None:
    model, ids = decoder_of(name), some_ids(1, 9)
    swapped = ids[:, [1, 0, 3, 2, 5, 4, 7, 6, 8]]
    without = Decoder(model.config)
    without.load_state_dict(model.state_dict(), strict=False)
    same = torch.allclose(without.eval()(ids), model(ids), atol=1e-4)
    assert same == (name == "none")
    assert not torch.allclose(model(swapped)[:, -1], model(ids)[:, -1], atol=1e-4)


@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1]])
@pytest.mark.parametrize("name", ENCODINGS)
def test_decoding_with_a_cache_equals_one_pass(name: str, chunks: list[int]) -> None:
    model, ids = decoder_of(name), some_ids(2, 9)
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(part, cache=cache) for part in ids.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), rtol=1e-4, atol=1e-5)
    assert len(cache) == 9


@pytest.mark.parametrize("name", ENCODINGS)
def test_left_padding_equals_no_padding(name: str) -> None:
    model, lengths, n, more = decoder_of(name), [4, 7, 1], 7, 3
    rows = [some_ids(1, length + more) for length in lengths]
    ids = torch.zeros(3, n, dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, n - length :] = rows[row][0, :length]
    cache = model.new_cache()
    with torch.no_grad():
        logits = [model(ids, positions=Coordinates.padded(lengths, n), mask=masks.Padding(), cache=cache)]
        for step in range(more):
            token = torch.stack([row[0, length + step] for row, length in zip(rows, lengths, strict=True)])
            logits.append(model(token[:, None], mask=masks.Padding(), cache=cache))
        whole = torch.cat(logits, dim=1)
        for row, length in enumerate(lengths):
            torch.testing.assert_close(whole[row, n - length :], model(rows[row])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENCODINGS)
def test_packed_equals_apart(name: str) -> None:
    model, lengths = decoder_of(name), [4, 1, 6]
    parts = [some_ids(1, length) for length in lengths]
    packed = model(torch.cat(parts, dim=1), positions=Coordinates.packed(lengths), mask=masks.Documents())
    for part, logits in zip(parts, packed.split(lengths, dim=1), strict=True):
        torch.testing.assert_close(logits, model(part), rtol=1e-4, atol=1e-5)


def test_a_cache_can_be_cropped_and_reordered() -> None:
    model, ids = decoder_of("rope"), some_ids(2, 8)
    cache, rows = model.new_cache(), torch.tensor([1, 0, 1])
    with torch.no_grad():
        model(ids, cache=cache)
        cache.crop(6)
        cache.reorder(rows)
        again = model(ids[rows][:, 6:], cache=cache)
        torch.testing.assert_close(again, model(ids)[rows][:, 6:], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- a call that raises


class _Stop(BaseException):
    """Neither of headway's errors nor of torch's: as Ctrl-C is."""


def windowed() -> Decoder:
    layer_masks = [masks.Window(3), None, masks.Window(2) | masks.KeepFirst(2)]
    return randomised(Decoder(SMALL, encoding_of("rope"), layer_masks)).eval()


TELLERS: dict[str, Callable[[], Decoder | EncoderDecoder]] = {
    "plain": lambda: decoder_of("t5"),
    "windows": windowed,
    "post norm": lambda: decoder_of("rope", norm_first=False),
    "cross": lambda: both_of("rope"),
}
PARTS = [3, 1, 4, 1, 1]
CHANGES: dict[int, Callable[[StackCache], None]] = {
    3: lambda cache: cache.keep(2, 3),
    4: lambda cache: cache.reorder(torch.tensor([1, 0])),
}


def told(
    model: Decoder | EncoderDecoder, failing: Callable[[int], bool] | None = None, *, grad: bool = False
) -> tuple[list[Tensor], list[list[int]]]:
    """Logits of a text read in parts, with a keep and a reorder on the way, and how many tokens each layer has.

    Before each part for which ``failing`` says so, a call is made that raises.
    """
    torch.manual_seed(3)
    ids, context = some_ids(2, sum(PARTS)), torch.randn(2, 5, 32)
    cache, out, held = model.new_cache(), [], []

    def read(part: Tensor) -> Tensor:
        padding = masks.Padding()
        if isinstance(model, Decoder):
            return model(part, mask=padding, cache=cache)
        return model.decode(part, context, mask=padding, cache=cache)

    for number, part in enumerate(ids.split(PARTS, dim=1)):
        CHANGES.get(number, lambda _: None)(cache)
        if failing is not None and failing(number):
            before = _state(cache)
            failing(number)
            with pytest.raises(_Stop), torch.set_grad_enabled(grad):
                read((part + 1) % 50)
            failing(-1)  # no more
            assert all(map(torch.equal, before, _state(cache)))
        with torch.set_grad_enabled(grad):
            out.append(read(part))
        held.append([len(layer) for layer in (*cache.layers, *cache.context)])
    return out, held


def _state(cache: StackCache) -> list[Tensor]:
    """All that a cache holds."""
    at = [one.index for one in cache._coordinates.values()]
    layers = [layer for layer in (*cache.layers, *cache.context) if len(layer)]
    return [torch.tensor(len(layers)), *at, *(x.clone() for layer in layers for x in (layer.keys, layer.values))]


def places_that_can_raise(model: nn.Module) -> list[tuple[str, bool]]:
    """Behind every module that a call comes through, and before each layer; before a part is behind the last one.

    The outermost module's own hooks are beside its call.
    """
    names = [name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)]
    behind = [(name, True) for name in names if name.split(".")[0] not in ("", "encoder")]
    return behind + [(name, False) for name, _ in behind if name.split(".")[-2:-1] == ["blocks"]]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", TELLERS)
def test_a_call_that_raises_leaves_no_token_behind(kind: str) -> None:
    """Wherever it raises: the cache is as it was, and all that follows has the bits of a text without failures."""
    model = TELLERS[kind]()
    wanted, held = told(model)
    armed, reached = [False], 0

    def stop(*_: object) -> None:
        if armed[0]:
            raise _Stop

    for turn, (name, after) in enumerate(places_that_can_raise(model)):
        once = ".cross_attention.k" in name or ".cross_attention.v" in name

        def arm(number: int, turn: int = turn, once: bool = once) -> bool:
            armed[0] = number == 0 or (number > 0 and not once and (number - turn) % 2 == 0)
            return armed[0]

        part = model.get_submodule(name)
        hook = part.register_forward_hook(stop) if after else part.register_forward_pre_hook(stop)
        try:
            found, sizes = told(model, arm)
        except pytest.fail.Exception:  # nothing came by: a dropout outside of training, an encoding
            assert name.endswith("dropout") or "encodings" in name, name
            continue
        finally:
            hook.remove()
        reached += 1
        assert sizes == held
        assert all(map(torch.equal, found, wanted)), (name, after)
    assert reached > 3 * 10


@pytest.mark.parametrize("kind", TELLERS)
@pytest.mark.parametrize("where", ["attention", "append", "settle"])
def test_gradients_after_a_call_that_raises(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of a layer too, in the first, in the last, or once all have gone through."""
    model = TELLERS[kind]()
    layers = [module for module in model.modules() if isinstance(module, headway.nn.MultiHeadAttention)]
    owners, name = {
        "attention": (layers, "attend"),
        "append": ([headway.nn.KeyValueCache], "append"),
        "settle": ([StackCache], "settle"),
    }[where]
    wanted, _ = told(model, grad=True)
    gradients = torch.autograd.grad(
        torch.cat(wanted, dim=1).square().sum(), list(model.parameters()), allow_unused=True
    )
    real, left = getattr(owners[0], name), [-1]

    def stops(*arguments: Any, **options: Any) -> Any:
        out = real(*arguments, **options)
        left[0] -= 1
        if left[0] == 0:
            raise _Stop
        return out

    for owner in owners:
        monkeypatch.setattr(owner, name, stops)
    for layer in (1, 2, 3):

        def arm(number: int, layer: int = layer) -> bool:
            left[0] = layer if number >= 0 else -1
            return True

        found, _ = told(model, arm, grad=True)
        assert all(map(torch.equal, found, wanted))
        again = torch.autograd.grad(torch.cat(found, dim=1).square().sum(), list(model.parameters()), allow_unused=True)
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(again, gradients, strict=True))


@pytest.mark.parametrize("learned", ["", "q_proj", "blocks.2.attention.q_proj", "encodings", "head"])
@pytest.mark.parametrize("kind", TELLERS)
def test_gradients_through_a_cache_are_those_of_one_pass(kind: str, learned: str) -> None:
    """Whatever is learned; layers under a window write over what they forget."""
    model = TELLERS[kind]().double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learned in name)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids, context, cache = some_ids(2, 12), torch.randn(2, 5, 32).double(), model.new_cache()

    def read(part: Tensor, cache: StackCache | None = None) -> Tensor:
        if isinstance(model, Decoder):
            return model(part, cache=cache)
        return model.decode(part, context, cache=cache)

    steps = torch.cat([read(part, cache) for part in ids.split([4, 1, 1, 1, 2, 1, 1, 1], dim=1)], dim=1)
    whole = read(ids)
    torch.testing.assert_close(steps, whole)
    if parameters and whole.requires_grad:
        found, wanted = (
            torch.autograd.grad(out.square().sum(), parameters, allow_unused=True) for out in (steps, whole)
        )
        for one, two in zip(found, wanted, strict=True):
            assert (one is None) == (two is None)
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.ones(7, 9, dtype=torch.bool)}, "mask has shape"),
        (
            {"positions": torch.zeros(3, 2, dtype=torch.long)},
            "positions are for a batch of 3 but there is a batch of 2",
        ),
        ({"positions": torch.arange(2, device="meta")}, "positions are on meta but the tokens on cpu"),
        ({"positions": torch.arange(5)}, "there are 2 tokens"),
        ({"mask": "casual"}, "there is no mask 'casual': did you mean 'causal'"),
    ],
)
def test_masks_and_positions_are_checked_before_the_first_layer(options: dict[str, Any], message: str) -> None:
    model = windowed()
    for cache in (model.new_cache(), None):
        if cache is not None:
            model(some_ids(2, 4), cache=cache)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Block, "forward", lambda *_, **__: pytest.fail("a layer ran"))
            with pytest.raises(HeadwayError, match=message):
                model(some_ids(2, 2), cache=cache, **options)
        assert cache is None or [len(layer) for layer in cache.layers] == [3, 4, 4]


@pytest.mark.parametrize("layers", [2, 4])
def test_the_cache_of_another_model_is_refused(layers: int) -> None:
    with pytest.raises(HeadwayError, match=f"the cache has {layers} layers but the model 3: give its own new_cache"):
        decoder_of("rope")(some_ids(1, 2), cache=StackCache(layers))


def test_a_context_mask_is_checked_before_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = both_of("rope")
    monkeypatch.setattr(Block, "forward", lambda *_, **__: pytest.fail("a layer ran"))
    with pytest.raises(HeadwayError, match="mask has shape"):
        model.decode(some_ids(2, 2), torch.randn(2, 5, 32), context_mask=torch.ones(1, 4, dtype=torch.bool))


def test_a_memory_after_a_call_that_raises() -> None:
    model, ids = decoder_of("rope"), some_ids(2, 8)
    memory = SegmentMemory(6)
    wanted = [model(part, memory=memory) for part in ids.split(4, dim=1)]
    memory = SegmentMemory(6)
    for part, logits in zip(ids.split(4, dim=1), wanted, strict=True):
        before = len(memory)
        for name in ("stack.norm", "head", "stack.blocks.1.attention"):
            hook = model.get_submodule(name).register_forward_hook(lambda *_: (_ for _ in ()).throw(_Stop))
            with pytest.raises(_Stop):
                model(part, memory=memory)
            hook.remove()
            assert len(memory) == before
        assert torch.equal(model(part, memory=memory), logits)


def test_a_cache_in_two_calls_at_once_is_refused() -> None:
    """As from two threads: here the second call comes out of a hook of the first."""
    model = decoder_of("rope")
    cache, ids = model.new_cache(), some_ids(1, 3)
    hook = model.get_submodule("stack.blocks.1").register_forward_pre_hook(
        lambda *_: (model(ids, cache=cache), None)[1]
    )
    with pytest.raises(HeadwayError, match="the StackCache is in use by another call"):
        model(ids, cache=cache)
    hook.remove()
    assert len(cache) == 0
    assert torch.equal(model(ids, cache=cache), model(ids, cache=model.new_cache()))


@pytest.mark.parametrize("reads", [False, True], ids=["a second call", "coordinates"])
def test_a_step_goes_on_when_a_hook_looks_at_its_cache(reads: bool) -> None:
    """In a step layers count their tokens, which neither a refused call nor a look at coordinates may end."""
    model, ids = decoder_of("rope"), some_ids(1, 6)
    cache, seen = model.new_cache(), []

    def looks(*_: object) -> None:
        if reads:
            seen.append(cache.coordinates)
        else:
            with pytest.raises(HeadwayError, match="the StackCache is in use by another call"):
                model(ids, cache=cache)

    with torch.no_grad():
        wanted = model(ids)[:, 4:]
        model(ids[:, :4], cache=cache)
        hook = model.get_submodule("stack.blocks.1").register_forward_pre_hook(looks)
        found = torch.cat([model(one, cache=cache) for one in ids[:, 4:].split(1, dim=1)], dim=1)
        hook.remove()
    torch.testing.assert_close(found, wanted)
    assert len(seen) == 2 * reads
    assert len(cache) == 6


class AlwaysDropout(nn.Dropout):
    """Drops in evaluation, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.p, training=True)


def test_a_step_calls_the_dropout_of_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, found = decoder_of("rope"), some_ids(1, 6), []
    model.stack.dropout = AlwaysDropout(0.5)
    for _ in range(2):
        torch.manual_seed(0)
        cache = model.new_cache()
        with torch.no_grad():
            found.append(torch.cat([model(one, cache=cache) for one in ids.split(1, dim=1)], dim=1))
        monkeypatch.setattr(Stack, "_needs_no_coordinates", lambda *_: False)
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["reorder", "take", "_rollback"])
def test_a_cache_that_could_not_be_put_back_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the second of three layers, where the first is changed already."""
    model, ids = decoder_of("rope"), some_ids(2, 3)
    cache = model.new_cache()
    model(ids, cache=cache)
    change: Callable[[], object] = {
        "reorder": lambda: cache.reorder(torch.tensor([0, 0])),
        "take": lambda: cache.keep(1, 1),
        "_rollback": lambda: model(ids, cache=cache, mask=Fails()),
    }[name]
    real, left = getattr(headway.nn.KeyValueCache, name), [2]

    def stops(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise _Stop
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(headway.nn.KeyValueCache, name, stops)
        with pytest.raises(_Stop):
            change()
    for again in (lambda: model(ids, cache=cache), lambda: cache.reorder(torch.tensor([0])), lambda: cache.keep(1, 1)):
        with pytest.raises(HeadwayError, match=r"StackCache was left half changed .* start a new one"):
            again()


class Fails(masks.Mask):
    """A mask that a layer trips over."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        raise ValueError("as a user's mask may")


def test_rows_that_are_not_there_reorder_nothing() -> None:
    model, ids = decoder_of("rope"), some_ids(2, 3)
    cache = model.new_cache()
    model(ids, cache=cache)
    before = _state(cache)
    with pytest.raises(IndexError):
        cache.reorder(torch.tensor([0, 2]))
    assert all(map(torch.equal, before, _state(cache)))
    model(ids, cache=cache)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("name", RELATIVE)
def test_segments_with_a_memory_equal_one_pass(name: str, norm_first: bool) -> None:
    model, ids = decoder_of(name, norm_first=norm_first), some_ids(2, 12)
    memory = SegmentMemory(12)
    parts = [model(part, memory=memory) for part in ids.split([4, 3, 5], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), rtol=1e-4, atol=1e-5)


def test_a_short_memory_reaches_back_one_length_in_each_layer() -> None:
    """With as many tokens of memory as in a segment, layer by layer one more segment comes into reach."""
    model, ids = decoder_of("rope"), some_ids(1, 16)

    def last(ids: Tensor) -> Tensor:
        memory = SegmentMemory(4)
        return [model(part, memory=memory) for part in ids.split(4, dim=1)][-1]

    for changed, reached in ((0, True), (3, True), (4, True), (11, True)):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % 50
        assert torch.equal(last(other), last(ids)) != reached
    shallow = decoder_of("rope", num_layers=1)
    memory = SegmentMemory(4)
    segments = torch.cat([shallow(part, memory=memory) for part in ids.split(4, dim=1)], dim=1)
    first_of_each = slice(4, None, 4)  # these see four tokens before them, as under the window
    windowed = shallow(ids, mask=masks.Window(left=4))
    torch.testing.assert_close(segments[:, first_of_each], windowed[:, first_of_each], rtol=1e-4, atol=1e-5)


def test_memory_carries_no_gradient_and_its_own_batch() -> None:
    model, memory = decoder_of("rope"), SegmentMemory(4)
    model(some_ids(2, 4), memory=memory)
    assert not any(state.requires_grad for state in memory.states)
    with pytest.raises(HeadwayError, match="the batch is 3 but the memory holds 2 rows"):
        model(some_ids(3, 4), memory=memory)
    with pytest.raises(HeadwayError, match="cache and memory are both given"):
        model(some_ids(2, 4), memory=memory, cache=model.new_cache())


# ---------------------------------------------------------------- the encoder, and both


@pytest.mark.parametrize("name", ENCODINGS)
def test_encoder_padding(name: str) -> None:
    model = randomised(Encoder(SMALL, encoding_of(name, bidirectional=True))).eval()
    ids = some_ids(2, 8)
    hidden = model(ids, mask=masks.Padding([8, 5]))
    assert hidden.shape == (2, 8, 32)
    torch.testing.assert_close(hidden[1:, :5], model(ids[1:, :5]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(ids)[1, :5], hidden[1, :5], atol=1e-3)
    assert model.logits(hidden).shape == (2, 8, 50)


def both_of(name: str) -> EncoderDecoder:
    return randomised(
        EncoderDecoder(SMALL, encoding_of(name, bidirectional=True), encoding_of(name, bidirectional=False))
    ).eval()


@pytest.mark.parametrize("name", ENCODINGS)
def test_encoder_decoder(name: str) -> None:
    model, ids, decoder_ids = both_of(name), some_ids(2, 8), some_ids(2, 5)
    padding = masks.Padding([8, 6])
    logits = model(ids, decoder_ids, mask=padding)
    assert logits.shape == (2, 5, 50)
    torch.testing.assert_close(logits[1:], model(ids[1:, :6], decoder_ids[1:]), rtol=1e-4, atol=1e-5)
    changed = decoder_ids.clone()
    changed[:, 3:] = some_ids(2, 2)
    torch.testing.assert_close(model(ids, changed, mask=padding)[:, :3], logits[:, :3])
    assert not torch.allclose(model(some_ids(2, 8), decoder_ids, mask=padding), logits, atol=1e-3)
    with torch.no_grad():
        context, cache = model.encode(ids, mask=padding), model.new_cache()
        steps = [model.decode(one, context, context_mask=padding, cache=cache) for one in decoder_ids.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), logits, rtol=1e-4, atol=1e-5)
        # beams: the context goes with them
        cache.reorder(torch.tensor([1, 1, 0]))
        assert cache.context[0].keys.shape[0] == 3


def test_a_left_padded_source() -> None:
    model, ids, decoder_ids = both_of("rope"), some_ids(1, 5), some_ids(1, 4)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], dim=1)
    out = model(padded, decoder_ids, positions=Coordinates.padded([5], 8), mask=masks.Padding())
    torch.testing.assert_close(out, model(ids, decoder_ids), rtol=1e-4, atol=1e-5)
    positions = torch.arange(5)
    torch.testing.assert_close(model(ids, decoder_ids, positions=positions), model(ids, decoder_ids))


def test_one_table_for_two_sides_is_refused() -> None:
    shared = encoding_of("t5")
    with pytest.raises(HeadwayError, match="T5 is given to encoder and decoder"):
        EncoderDecoder(SMALL, shared, shared)
    rope = encoding_of("rope")
    EncoderDecoder(SMALL, rope, rope)


# ---------------------------------------------------------------- who owns the encodings


def test_a_shared_table_is_one_tensor() -> None:
    model = decoder_of("t5")
    tables = [name for name in model.state_dict() if "table" in name]
    assert tables == ["stack.encodings.0.table"]
    assert model.num_parameters == sum(parameter.numel() for parameter in model.state_dict().values())


def test_one_encoding_for_each_layer() -> None:
    first, second = randomised(encoding_of("t5")), randomised(encoding_of("rope"))
    model = randomised(Decoder(SMALL, [first, None, first])).eval()
    assert [name for name in model.state_dict() if "encodings" in name] == ["stack.encodings.0.table"]
    ids = some_ids(2, 6)
    for encodings in ([first] * 3, [None, first, first], [first, second, first]):
        other = Decoder(SMALL, encodings)
        other.load_state_dict(model.state_dict(), strict=False)
        assert not torch.allclose(other.eval()(ids), model(ids), atol=1e-4)
    with pytest.raises(HeadwayError, match="there are 2 encodings but 3 layers"):
        Decoder(SMALL, [first, second])
    with pytest.raises(HeadwayError, match="encoding is 8: give a PositionEncoding"):
        Decoder(SMALL, 8)  # type: ignore[arg-type]


def test_places_are_computed_once_for_a_forward() -> None:
    class Counts(type(encoding_of("rope"))):  # type: ignore[misc]
        placed = 0

        def tables(self, coordinates: Coordinates) -> Any:
            self.placed += 1
            return super().tables(coordinates)

    counts = Counts(8)
    model = Decoder(SMALL, counts)
    model(some_ids(1, 5))
    assert counts.placed == 1
    with torch.no_grad():
        cache = model.new_cache()
        for one in some_ids(1, 3).split(1, dim=1):
            model(one, cache=cache)
    assert counts.placed == 4


def test_embedding_happens_at_the_bottom() -> None:
    sinusoidal = encoding_of("sinusoidal")
    model = Decoder(SMALL, sinusoidal).eval()
    ids = some_ids(2, 6)
    seen: list[Tensor] = []
    model.stack.blocks[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model(ids)
    torch.testing.assert_close(seen[0], sinusoidal.embed(model.embedding(ids)))
    assert not torch.allclose(seen[0], model.embedding(ids) * 32**0.5)


# ---------------------------------------------------------------- how it begins


def test_first_values() -> None:
    config = TransformerConfig(vocab_size=500, embed_dim=128, num_layers=8, num_heads=4, sink=0.5, tied_head=False)
    model = EncoderDecoder(config, None, None)
    state = model.state_dict()
    assert state["embedding.weight"].std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert model.vectors(some_ids(4, 50)).std().item() == pytest.approx(1, rel=0.05)
    assert state["decoder.blocks.3.attention.q_proj.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert state["encoder.blocks.3.attention.out_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert state["encoder.blocks.3.feed_forward.down_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert state["decoder.blocks.3.cross_attention.out_proj.weight"].std().item() == pytest.approx(
        0.02 / 24**0.5, rel=0.05
    )
    assert state["decoder.blocks.0.attention.sink"].tolist() == [0.5] * 4
    assert all(tensor.abs().max() == 0 for name, tensor in state.items() if name.endswith("bias"))
    torch.manual_seed(1)
    model.initialise()
    assert not torch.equal(model.state_dict()["embedding.weight"], state["embedding.weight"].new_zeros(500, 128))


def test_encodings_begin_as_they_say() -> None:
    encoding = randomised(encoding_of("t5"))
    before = encoding.state_dict()["table"].clone()
    torch.testing.assert_close(Decoder(SMALL, encoding).state_dict()["stack.encodings.0.table"], before)

    class WithALinear(PositionEncoding):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 4)

    linear = WithALinear()
    before = linear.linear.bias.clone()
    Decoder(SMALL, linear)
    torch.testing.assert_close(linear.linear.bias, before)


def test_a_study_replaces_initialise() -> None:
    class AllOnes(Decoder):
        def initialise(self) -> None:
            for parameter in self.parameters():
                nn.init.ones_(parameter)

    assert all((parameter == 1).all() for parameter in AllOnes(SMALL).parameters())


def test_a_head_of_its_own() -> None:
    tied, own = decoder_of("none"), decoder_of("none", tied_head=False)
    assert own.num_parameters - tied.num_parameters == 50 * 32
    assert "head.weight" not in tied.state_dict()
    own.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight})
    ids = some_ids(1, 4)
    torch.testing.assert_close(own(ids), tied(ids))


def test_attention_scale_and_embedding_scale() -> None:
    model, ids = decoder_of("t5"), some_ids(1, 6)
    for options, same in (
        ({"attention_scale": 1.0}, True),  # T5's own
        ({"attention_scale": 8**-0.5}, False),
        ({"embedding_scale": 32**0.5}, True),
        ({"embedding_scale": 1.0}, False),
    ):
        other = decoder_of("t5", **options)
        other.load_state_dict(model.state_dict())
        assert torch.allclose(other(ids), model(ids), atol=1e-5) == same


# ---------------------------------------------------------------- at home in torch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "t5", "transformer-xl", "learned"])
def test_compiles_as_one_graph(name: str) -> None:
    model, ids = decoder_of(name, num_layers=1), some_ids(2, 9)
    compiled, found = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    for run in (model, compiled):
        out = run(ids)
        torch.testing.assert_close(out, model(ids), rtol=1e-4, atol=1e-5)
        found.append(torch.autograd.grad(out.square().mean(), list(model.parameters())))
    for (key, _), eager, in_one_graph in zip(model.named_parameters(), *found, strict=True):
        torch.testing.assert_close(
            in_one_graph, eager, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )
    torch.testing.assert_close(compiled(ids[:, :5]), model(ids[:, :5]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_encoder_decoder_compiles_and_compiles_seldom() -> None:
    config = replace(SMALL, num_layers=1)
    model = EncoderDecoder(config, encoding_of("t5", bidirectional=True), encoding_of("t5"))
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for n in (3, 4, 6, 11):
        ids, decoder_ids = some_ids(2, n + 2), some_ids(2, n)
        torch.testing.assert_close(compiled(ids, decoder_ids), model(ids, decoder_ids), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ENCODINGS)
def test_round_trips(name: str, tmp_path: Path) -> None:
    model, ids = decoder_of(name), some_ids(2, 6)
    logits = model(ids)
    logits.sum().backward()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = Decoder(SMALL, encoding_of(name)).eval()
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        torch.testing.assert_close(other(ids), logits)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = both_of(name)
    model(some_ids(2, 8), some_ids(2, 6)).square().sum().backward()
    without = {
        key for key, parameter in model.named_parameters() if parameter.grad is None or parameter.grad.abs().max() == 0
    }
    # Adding to all keys of a query the same number changes no weight.
    assert {key for key in without if not key.endswith("k_proj.bias")} == set()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    model, ids = decoder_of("rope"), some_ids(2, 6)
    wanted = model(ids)
    logits = copy.deepcopy(model).to(dtype)(ids)
    assert logits.dtype == dtype
    close = 1e-4 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(logits.float(), wanted, rtol=close, atol=close)


@pytest.mark.parametrize("name", ENCODINGS)
def test_autocast(name: str) -> None:
    model, ids = decoder_of(name), some_ids(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
        logits.float().square().mean().backward()
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(ids), rtol=0.1, atol=0.1)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_begins_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Decoder(SMALL, encoding_of("rope"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    source = decoder_of("rope")
    model.to_empty(device="cpu").load_state_dict(source.state_dict())
    ids = some_ids(1, 5)
    torch.testing.assert_close(model.eval()(ids), source(ids))


def test_dropout_in_training_alone() -> None:
    model, ids = decoder_of("rope", dropout=0.5), some_ids(1, 5)
    torch.testing.assert_close(model(ids), model(ids), rtol=0, atol=0)
    model.train()
    assert not torch.equal(model(ids), model(ids))


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Decoder(SMALL)(torch.zeros(1, 4)), r"ids are torch\.float32: give an int64 tensor"),
        (lambda: Decoder(SMALL)([[1, 2]]), "ids are list: give an int64 tensor"),
        (lambda: Decoder(SMALL)(some_ids(4)), r"ids have shape \(4,\): give \[batch, n\]"),
        (lambda: Decoder(SMALL)(some_ids(1, 4), positions=torch.arange(3)), "there are 4 tokens"),
        (lambda: TransformerConfig(vocab_size=0), "vocab_size is 0: give at least 1"),
        (lambda: TransformerConfig(vocab_size=5, num_layers=0), "num_layers is 0: give at least 1"),
        (lambda: TransformerConfig(vocab_size=5, dropout=1.5), "dropout is 1.5"),
        (
            lambda: Decoder(TransformerConfig(vocab_size=5, embed_dim=30, num_heads=4)),
            "choose embed_dim = 28 or 32",
        ),
        (lambda: Decoder(TransformerConfig(vocab_size=5, activation="tanh")), "no activation 'tanh'"),
        (lambda: Decoder(TransformerConfig(vocab_size=5, norm="batch")), "norm is 'batch'"),
    ],
)
def test_wrong_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        call()


# ---------------------------------------------------------------- of parts


def test_a_block_that_stands_in_several_layers_is_stored_once() -> None:
    block, other = Block(32, 4), Block(32, 4)
    stack = Stack([block, other, block], encoding_of("t5"))
    assert len(stack.blocks) == 2
    assert [layer is block for layer in stack.layers] == [True, False, True]
    x = torch.randn(2, 5, 32)
    wanted = x
    for one in (block, other, block):
        wanted = one(wanted, encoding=stack.encodings[0])
    torch.testing.assert_close(stack(x), wanted)
    cache = StackCache(3)
    steps = [stack(x[:, i : i + 1], mask=masks.Causal(), cache=cache) for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), stack(x, mask=masks.Causal()))


def test_what_stands_between_embeddings_and_the_first_block() -> None:
    """Positions are added before the norm and the projection that some models have there."""
    entry = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 48))
    positions = encoding_of("sinusoidal")
    stack = Stack([Block(48, 4)], positions, entry=entry, norm=nn.LayerNorm(48))
    x = torch.randn(2, 5, 32)
    wanted = stack.norm(stack.blocks[0](entry(positions.embed(x))))
    torch.testing.assert_close(stack(x), wanted)


def test_models_of_parts() -> None:
    embedding, stack = Embedding(50, 32), Stack.of(SMALL, encoding_of("rope"))
    ids = some_ids(2, 6)
    hidden = Decoder.of_parts(embedding, stack)(ids)
    torch.testing.assert_close(hidden, stack(embedding(ids), mask=masks.Causal()))
    tied = Decoder.of_parts(embedding, stack, Head(32, 50, tied=True))
    torch.testing.assert_close(tied(ids), hidden @ embedding.weight.T)
    torch.testing.assert_close(tied.hidden(ids), hidden)
    both = Encoder.of_parts(embedding, stack, Head(32, 50, bias=True))
    torch.testing.assert_close(both(ids), both.logits(both.hidden(ids)))


def test_types_of_tokens_reach_the_embeddings() -> None:
    model = Encoder.of_parts(Embedding(50, 32, num_types=2), Stack.of(SMALL))
    ids, types = some_ids(2, 6), torch.randint(0, 2, (2, 6))
    assert types.any()
    assert not torch.allclose(model(ids, types=types), model(ids))
    with pytest.raises(HeadwayError, match="no types of tokens"):
        Encoder(SMALL)(ids, types=types)


def test_a_source_that_is_no_ids() -> None:
    source = nn.Linear(7, 32)
    encoder, decoder = Stack.of(SMALL), Stack.of(SMALL, encoding_of("rope"), cross_attention=True)
    model = EncoderDecoder.of_parts(Embedding(50, 32), encoder, decoder, source_embedding=source)
    features, ids = torch.randn(2, 9, 7), some_ids(2, 4)
    wanted = decoder(model.embedding(ids), mask=masks.Causal(), context=encoder(source(features)))
    torch.testing.assert_close(model(features, ids), wanted)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoder_without_an_encoding_does_not_notice_order(name: str) -> None:
    """The other words exchanged, with no mask: the last word's vector stays without an encoding, and with none else."""
    encoding = None if name == "none" else encoding_of(name, bidirectional=True)
    model, ids = randomised(Encoder(SMALL, encoding)).eval(), some_ids(2, 9)
    swapped = ids[:, [1, 0, 3, 2, 5, 4, 7, 6, 8]]
    same = torch.allclose(model(swapped)[:, -1], model(ids)[:, -1], atol=1e-4)
    assert same == (name == "none")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_layer_looks_one_window_further(depth: int) -> None:
    """What stacking adds where a layer sees only its neighbours: after L layers an output depends on L neighbours."""
    model, ids = decoder_of("rope", num_layers=depth), some_ids(1, 9)
    window = masks.Window(left=1)
    for back in range(5):
        other = ids.clone()
        other[0, 8 - back] = (other[0, 8 - back] + 1) % 50
        changed = not torch.equal(model(other, mask=window)[0, 8], model(ids, mask=window)[0, 8])
        assert changed == (back <= depth)


def test_an_encoding_that_writes_into_the_embeddings_is_told() -> None:
    class Writes(type(encoding_of("sinusoidal"))):  # type: ignore[misc]
        def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
            return x.add_(1)

    stack = Stack.of(SMALL, Writes(32))
    with pytest.raises(HeadwayError, match=r"Writes\.embed writes into the embeddings"):
        stack(torch.randn(1, 3, 32))


@pytest.mark.slow
def test_decoding_compiles_as_one_graph_for_all_lengths() -> None:
    """A layer under a window, whose keys begin later at each step, and one that holds all: no step is compiled anew."""
    stack = Stack([Block(16, 2) for _ in range(2)], RoPE(8), masks=[masks.Window(5), None]).eval()
    counter, graphs = CompileCounter(), []
    compiled = torch.compile(stack, fullgraph=True, backend=counter)
    with torch.no_grad():
        caches = [StackCache(2, stack.masks) for _ in range(2)]
        for i in range(30):
            x = torch.randn(1, 1 if i else 6, 16)
            runs = zip((compiled, stack), caches, strict=True)
            found, expected = (run(x, mask=masks.Causal(), cache=cache) for run, cache in runs)
            torch.testing.assert_close(found, expected)
            graphs.append(counter.frame_count)
    assert graphs[-1] <= 6, graphs
    assert graphs[-1] == graphs[-18], graphs


def test_peft_merges_its_weights_into_a_model_of_parts() -> None:
    """As headway.load makes them: peft reads the config of a model that has one."""
    peft = pytest.importorskip("peft")
    made = Decoder(TransformerConfig(vocab_size=20, embed_dim=32, num_layers=2, num_heads=4), RoPE(8))
    model = Decoder.of_parts(made.embedding, made.stack, made.head).eval()
    assert not hasattr(model, "config")
    options = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, options)
    ids = torch.arange(6)[None]
    expected = adapted(ids)
    merged = adapted.merge_and_unload()
    assert isinstance(merged, Decoder)
    torch.testing.assert_close(merged(ids), expected, atol=1e-5, rtol=1e-5)
