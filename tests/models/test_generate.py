"""Generation equals full passes without a cache, row by row, and draws from the distribution that it says."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import HeadwayError, masks
from headway.models import (
    Decoder,
    Encoder,
    EncoderDecoder,
    Generated,
    TransformerConfig,
    generate,
    probabilities,
    stream,
)

SMALL = TransformerConfig(vocab_size=50, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, tied_head=False)
ENCODINGS = ["none", "rope", "alibi", "t5", "learned", "sinusoidal", "transformer-xl", "shaw", "fire", "forgetting"]
PROMPTS = [[7, 3, 9, 4, 1], [12, 5], [30, 31, 32, 33, 34, 35, 36, 37], [2]]
M = TypeVar("M", bound=nn.Module)


def encoding_of(name: str, bidirectional: bool = False) -> headway.positions.PositionEncoding:
    sizes = {"num_heads": 4, "head_dim": 8, "embed_dim": 32, "max_length": 40}
    return headway.encoding(name, **sizes, bidirectional=bidirectional)


def randomised(module: M) -> M:
    """In float64, and with heads that look sharply, so that what comes next hangs on all tokens before."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                size = 3 if "q_proj" in name else 1
                parameter.copy_(size * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return module.double().eval()


def decoder_of(name: str = "rope", own: list[masks.Mask | None] | None = None, **options: Any) -> Decoder:
    return randomised(Decoder(replace(SMALL, **options), encoding_of(name), own))


def both_of(name: str = "t5") -> EncoderDecoder:
    return randomised(EncoderDecoder(SMALL, encoding_of(name, True), encoding_of(name)))


def need_full_pass(found: Generated, row: int, logits_of: Callable[[Tensor], Tensor], ids: list[int]) -> None:
    """A row's ids are the likeliest in one pass over all of them, and have the log-probabilities of that."""
    new = found.ids[row]
    with torch.no_grad():
        likeliest = logits_of(torch.tensor([ids + new[:-1]]))[0, len(ids) - 1 :].log_softmax(-1).max(-1)
    assert likeliest.indices.tolist() == new
    torch.testing.assert_close(likeliest.values.float(), torch.tensor(found.log_probs[row]), rtol=0, atol=1e-5)


# ---------------------------------------------------------------- the likeliest


@pytest.mark.parametrize("name", ENCODINGS)
def test_equals_a_full_pass_in_rows_of_any_length(name: str) -> None:
    model = decoder_of(name)
    found = generate(model, PROMPTS, max_new_tokens=12)
    for row, prompt in enumerate(PROMPTS):
        need_full_pass(found, row, model, prompt)
    assert [len(row) for row in found.ids] == [12] * 4
    assert found.stopped == [False] * 4
    assert len({one for row in found.ids for one in row}) > 8
    square = torch.tensor([[3, 1, 4], [1, 5, 9]])
    found = generate(model, square, max_new_tokens=5)
    for row in range(2):
        need_full_pass(found, row, model, square[row].tolist())


def test_equals_passes_over_each_length_where_keys_are_turned_anew_at_each_length() -> None:
    """In one layer, since hidden states of earlier tokens would be those of the length they were read at."""
    encoding = headway.encoding("dynamic-ntk", head_dim=8, max_length=6)
    assert not encoding.cache_prepared
    model = randomised(Decoder(replace(SMALL, num_layers=1), encoding))
    found = generate(model, PROMPTS, max_new_tokens=12)
    for row, prompt in enumerate(PROMPTS):
        for count, one in enumerate(found.ids[row]):
            assert one == model(torch.tensor([prompt + found.ids[row][:count]]))[0, -1].argmax()


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "forgetting"])  # which is causal
def test_an_encoder_decoder_equals_a_full_pass(name: str) -> None:
    model = both_of(name)
    found = generate(model, PROMPTS, decoder_start=0, max_new_tokens=9)
    for row, source in enumerate(PROMPTS):
        need_full_pass(found, row, partial(model, torch.tensor([source])), [0])
    starts = [[4, 8, 1], [6], [2, 2], [9]]
    found = generate(model, torch.tensor([PROMPTS[0]] * 4), decoder_start=starts, max_new_tokens=6)
    for row, start in enumerate(starts):
        need_full_pass(found, row, partial(model, torch.tensor(PROMPTS[:1])), start)
    once = generate(model, [PROMPTS[0]], decoder_start=[4, 8, 1], max_new_tokens=6)
    assert once.ids == found.ids[:1]


def test_it_is_a_method_too() -> None:
    decoder, both = decoder_of(), both_of()
    assert decoder.generate(PROMPTS, 4, temperature=1.0, seed=1) == generate(
        decoder, PROMPTS, 4, temperature=1.0, seed=1
    )
    assert both.generate(PROMPTS, max_new_tokens=3, decoder_start=0) == generate(both, PROMPTS, 3, decoder_start=0)
    assert not hasattr(Encoder, "generate")


def test_a_source_of_features() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 32)

        def forward(self, frames: Tensor) -> Tensor:
            return self.linear(frames)

    plain = both_of()
    parts = (plain.embedding, plain.encoder, plain.decoder, plain.head)
    model = randomised(EncoderDecoder.of_parts(*parts, source_embedding=Frames()))
    features = torch.randn(2, 11, 6).double()
    found = generate(model, features, decoder_start=[3, 5], max_new_tokens=7)
    for row in range(2):
        need_full_pass(found, row, partial(model, features[row : row + 1]), [3, 5])
    assert found.ids[0] != found.ids[1]


def test_windows_decode_as_a_full_pass_does() -> None:
    for own in ([masks.Window(3), None], [masks.Window(2) | masks.KeepFirst(1), masks.Chunked(4)]):
        model = decoder_of("rope", own)
        found = generate(model, PROMPTS, max_new_tokens=20)
        for row, prompt in enumerate(PROMPTS):
            need_full_pass(found, row, model, prompt)


def test_a_window_bounds_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [masks.Window(3), masks.Window(2) | masks.KeepFirst(2)]
    for model in (decoder_of("alibi", own), decoder_of("forgetting", own)):
        caches, new_cache = [], model.new_cache
        monkeypatch.setattr(model, "new_cache", lambda made=caches, new=new_cache: made.append(new()) or made[-1])
        generate(model, PROMPTS, max_new_tokens=25)
        rooms = [layer._keys.storage.shape[-2] for layer in caches[0].layers]
        held = [len(layer) for layer in caches[0].layers]
        if model.stack.encodings[0].reads_input:  # what lies between two tokens decides: nothing may be forgotten
            assert held == [8 + 24] * 2
        else:
            assert held == [3, 4]
            assert rooms[0] <= 6
            assert rooms[1] <= 8


def test_a_cache_has_room_for_all_tokens_where_a_growing_one_would_take_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, lengths = decoder_of(), []
    new_cache = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda length=None: lengths.append(length) or new_cache(length))
    prompts = [PROMPTS[0], PROMPTS[2]]  # of up to 8 tokens, so that 8 steps fit into the storage of a growing cache
    found = {new: generate(model, prompts, new) for new in (1, 9, 10)}
    assert [length for length in lengths if length is not None] == [8, 16]
    monkeypatch.setattr(model, "new_cache", lambda length=None: new_cache())
    assert found == {new: generate(model, prompts, new) for new in found}


def test_log_probs_are_the_models_own() -> None:
    model = decoder_of()
    for options in ({}, {"temperature": 3.0, "top_k": 5, "seed": 0}):
        found = generate(model, PROMPTS, max_new_tokens=4, **options)
        for prompt, new, log_probs in zip(PROMPTS, found.ids, found.log_probs, strict=True):
            with torch.no_grad():
                wanted = model(torch.tensor([prompt + new])).log_softmax(-1)[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(torch.tensor(log_probs).double(), wanted[range(4), new], rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- where rows end


def test_rows_end_each_at_its_own_stop() -> None:
    model = decoder_of()
    free = generate(model, PROMPTS, max_new_tokens=15).ids
    stop = {free[0][2], free[1][6], free[3][0]}
    found = generate(model, PROMPTS, max_new_tokens=15, stop=stop)
    ends = [next((i for i, one in enumerate(row) if one in stop), None) for row in free]
    assert found.ids == [row[:end] for row, end in zip(free, ends, strict=True)]
    assert found.stopped == [end is not None for end in ends]
    assert found.ids[3] == []
    assert any(found.stopped)
    assert [len(row) for row in found.log_probs] == [len(row) for row in found.ids]
    only = generate(model, PROMPTS[3:], stop=free[3][0])
    assert (only.ids, only.log_probs, only.stopped) == ([[]], [[]], [True])


def test_an_encoder_decoder_drops_its_source_with_the_row() -> None:
    model = both_of()
    free = generate(model, PROMPTS, decoder_start=0, max_new_tokens=12).ids
    stop = [free[0][1], free[2][4]]
    found = generate(model, PROMPTS, decoder_start=0, max_new_tokens=12, stop=stop)
    ends = [next((i for i, one in enumerate(row) if one in stop), None) for row in free]
    assert found.ids == [row[:end] for row, end in zip(free, ends, strict=True)]
    assert len(set(ends)) > 2


def test_rows_that_have_ended_are_no_longer_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = decoder_of(), []
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda ids, **rest: batches.append(len(ids)) or hidden(ids, **rest))
    prompts = [[one, 3] for one in range(8)]
    free = generate(model, prompts, max_new_tokens=6).ids
    assert batches == [8] * 6
    batches.clear()
    stop = [free[0][0], free[1][1], free[2][2]]
    left = 8
    expected = [8]
    going = [True] * 8
    for step in range(5):
        going = [on and row[step] not in stop for on, row in zip(going, free, strict=True)]
        if left - sum(going) >= left / 4:
            left = sum(going)
        expected.append(left)
    assert expected[-1] < 8
    found = generate(model, prompts, max_new_tokens=6, stop=stop)
    assert batches == expected[: len(batches)]
    ends = [next((i for i, one in enumerate(row) if one in stop), 6) for row in free]
    assert found.ids == [row[:end] for row, end in zip(free, ends, strict=True)]
    assert len(batches) == 6 or all(found.stopped)


def test_a_row_that_has_ended_stays_so_while_it_is_computed_with_the_others() -> None:
    model, prompts = decoder_of(), [[one, 3] for one in range(8)]
    free = generate(model, prompts, max_new_tokens=8).ids
    rows_with = Counter(one for row in free for one in set(row))
    row, stop = next((row, one) for row in range(8) for one in free[row][:6] if rows_with[one] == 1)
    found = generate(model, prompts, max_new_tokens=8, stop=stop)
    assert found.ids == [*free[:row], free[row][: free[row].index(stop)], *free[row + 1 :]]
    assert found.stopped == [one == row for one in range(8)]


def test_a_stream_gives_each_step() -> None:
    model = decoder_of()
    free = generate(model, PROMPTS, max_new_tokens=8)
    steps = list(stream(model, PROMPTS, max_new_tokens=8))
    assert [list(row) for row in zip(*(step.ids for step in steps), strict=True)] == free.ids
    assert [list(row) for row in zip(*(step.log_probs for step in steps), strict=True)] == free.log_probs
    end = next(i for i in range(2, 8) if free.ids[0][i] not in free.ids[0][:i])
    stop = free.ids[0][end]
    rows = [step.ids[0] for step in stream(model, PROMPTS, max_new_tokens=8, stop=stop)]
    assert rows == free.ids[0][:end] + [None] * (8 - end)
    alone = [one for (one,), _ in stream(model, PROMPTS[:1], max_new_tokens=8, stop=stop)]
    assert alone == free.ids[0][:end]


# ---------------------------------------------------------------- what is drawn

LOGITS = torch.tensor([2.0, 0.0, 1.0, 1.0, -1.0])


def by_hand(kept: list[int], temperature: float = 1.0) -> Tensor:
    weights = torch.zeros(5, dtype=torch.float64)
    weights[kept] = (LOGITS[kept].double() / temperature).exp()
    return (weights / weights.sum()).float()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.0}, [0]),
        ({"temperature": 1e-40}, [0]),
        ({"top_k": 1}, [0]),
        ({"top_k": 2}, [0, 2, 3]),  # two are equal in the second place
        ({"top_k": 4, "temperature": 2.0}, [0, 1, 2, 3]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.01}, [0]),
        ({"top_p": 0.52}, [0]),  # e² of e² + 2e + 1 + 1/e is 0.5307
        ({"top_p": 0.54}, [0, 2]),
        ({"top_p": 0.75}, [0, 2, 3]),  # 0.5307 + 2·0.1952 = 0.9211
        ({"top_p": 0.93}, [0, 1, 2, 3]),
        ({"top_k": 3, "top_p": 0.57}, [0]),  # of e² + 2e, e² is 0.5761
        ({"temperature": 4.0, "top_p": 0.57}, [0, 2, 3]),  # 0.2952, 0.2299, 0.2299, 0.1790, 0.1394
    ],
)
def test_probabilities_by_hand(options: dict[str, Any], kept: list[int]) -> None:
    wanted = by_hand(kept, options.get("temperature") or 1.0) if len(kept) > 1 else torch.eye(5)[kept[0]]
    for dtype in (torch.float32, torch.bfloat16):
        found = probabilities(torch.stack([LOGITS, LOGITS.flip(0)]).to(dtype), **options)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found[0], wanted, rtol=1e-6, atol=1e-7)
        if kept != [0, 2]:  # of equals the first
            torch.testing.assert_close(found[1], wanted.flip(0), rtol=1e-6, atol=1e-7)


def test_no_more_ids_than_have_top_p_together() -> None:
    found = probabilities(torch.zeros(4), top_p=0.5)
    assert found.tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("options", [{"top_k": 7}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9, "temperature": 0.7}])
def test_probabilities_equal_those_of_transformers(options: dict[str, Any]) -> None:
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = 3 * torch.randn(64, 300)
    wanted = warpers.TemperatureLogitsWarper(options.get("temperature", 1.0))(None, logits)
    if "top_k" in options:
        wanted = warpers.TopKLogitsWarper(options["top_k"])(None, wanted)
    if "top_p" in options:
        wanted = warpers.TopPLogitsWarper(options["top_p"])(None, wanted)
    found = probabilities(logits, **options)
    assert torch.equal(found > 0, wanted > -torch.inf)
    torch.testing.assert_close(found, wanted.softmax(-1), rtol=1e-5, atol=1e-7)


def test_ids_are_drawn_with_these_probabilities() -> None:
    model, draws = decoder_of(), 4000
    prompt = torch.tensor([[7, 3, 9]]).expand(draws, -1)
    options: dict[str, Any] = {"temperature": 0.8, "top_k": 12}
    with torch.no_grad():
        p = probabilities(model(prompt[:1])[0, -1], **options)
    ids = torch.tensor(generate(model, prompt, max_new_tokens=1, seed=3, **options).ids)[:, 0]
    counts = ids.bincount(minlength=50)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    chi_square = ((counts - draws * p)[kept] ** 2 / (draws * p[kept])).sum().item()
    assert chi_square < 31.3  # 11 degrees of freedom: one in a thousand lies beyond
    plain = probabilities(model(prompt[:1])[0, -1].detach())
    assert ((counts - draws * plain) ** 2 / (draws * plain)).sum() > 100  # a test that can fail


def test_draws_repeat_with_their_seed() -> None:
    model = decoder_of()

    def drawn(**given: Any) -> list[list[int]]:
        return generate(model, PROMPTS, max_new_tokens=6, temperature=1.0, **given).ids

    state = torch.get_rng_state()
    first = drawn(seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn(seed=1) == first != drawn(seed=2)
    assert drawn(generator=torch.Generator().manual_seed(1)) == first
    generator = torch.Generator().manual_seed(1)
    assert drawn(generator=generator) == first != drawn(generator=generator)
    torch.manual_seed(5)
    from_torch = drawn()
    torch.manual_seed(5)
    assert drawn() == from_torch != drawn()


# ---------------------------------------------------------------- what it leaves as it was


def test_gradients_and_modes_stay_as_they_were() -> None:
    model = decoder_of(dropout=0.5)
    wanted = generate(model, PROMPTS, max_new_tokens=4)
    model.train()
    model.stack.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    within: list[bool] = []
    model.embedding.register_forward_pre_hook(lambda *_: within.append(torch.is_grad_enabled()))
    steps = []
    for step in stream(model, PROMPTS, max_new_tokens=4):
        assert torch.is_grad_enabled()
        assert [module.training for module in model.modules()] == modes
        steps.append(step.ids)
    assert [list(row) for row in zip(*steps, strict=True)] == wanted.ids
    next(stream(model, PROMPTS))  # left half-way
    assert torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert within == [False] * 5

    def breaks(*_: Any) -> None:
        raise RuntimeError("no")

    model.stack.blocks[1].register_forward_pre_hook(breaks)
    with pytest.raises(RuntimeError, match="no"):
        generate(model, PROMPTS)
    assert [module.training for module in model.modules()] == modes


def test_logits_of_half_precision_are_processed_in_float32() -> None:
    model = decoder_of().to(torch.bfloat16)
    found = generate(model, [[1, 2]], max_new_tokens=2)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2]]))[0, -1]
    assert logits.dtype == torch.bfloat16
    assert found.log_probs[0][0] == pytest.approx(logits.float().log_softmax(-1).max().item(), rel=1e-6)


def test_a_table_of_positions_is_used_to_its_end() -> None:
    model = decoder_of("learned")
    prompt = [1] * 38
    assert len(generate(model, [prompt], max_new_tokens=3).ids[0]) == 3
    stretched = headway.encoding("learned", embed_dim=32, max_length=8, extend="interpolate")
    assert len(generate(randomised(Decoder(SMALL, stretched)), [prompt], max_new_tokens=3).ids[0]) == 3


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "prompt has no rows: give at least one"),
        ({"prompt": [[1], []]}, "prompt is empty in row 1: give at least one id"),
        ({"prompt": torch.zeros(2, 0, dtype=torch.int64)}, "prompt is empty in row 0"),
        ({"prompt": torch.zeros(0, 2, dtype=torch.int64)}, "prompt has no rows"),
        ({"prompt": [1, 2]}, r"prompt is \[1, 2\]: give ids in rows, such as \[\[1, 2, 3\]"),
        ({"prompt": ["ab"]}, r"prompt is \['ab'\]: give ids in rows"),
        ({"prompt": [[1.5]]}, "give ids in rows"),
        ({"prompt": torch.zeros(2, 3)}, r"prompt is torch.float32 of shape \(2, 3\): give int64"),
        ({"prompt": torch.zeros(3, dtype=torch.int64)}, r"of shape \(3,\): give int64 \[batch, n\]"),
        ({"prompt": [[1], [3, 50]]}, "prompt holds the id 50 but the model has ids 0 to 49"),
        ({"prompt": [[-1]]}, "prompt holds the id -1"),
        ({"stop": 50}, "stop holds the id 50 but the model has ids 0 to 49"),
        ({"stop": "ab"}, "stop is 'ab': give an id or several"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0: give at least 1"),
        ({"temperature": -1.0}, "temperature is -1.0: give 0 for the likeliest id"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0: give at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0: give more than 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": 5}, "top_k is 5 but temperature is 0, which takes the likeliest id: give temperature=1.0"),
        ({"top_p": 0.5}, "top_p is 0.5 but temperature is 0"),
        ({"seed": 1, "generator": torch.Generator()}, "seed and generator are both given"),
        ({"decoder_start": 0}, "decoder_start is given but the model is a Decoder"),
        ({"prompt": [[1] * 41]}, "prompt has 41 ids but the model's table of positions ends at 40: give at most 40"),
        (
            {"prompt": [[1] * 30], "max_new_tokens": 12},
            "prompt of 30 ids and max_new_tokens 12 need 41 positions but the model's table has 40: "
            "give max_new_tokens=11",
        ),
    ],
)
def test_wrong_input_before_any_work(arguments: dict[str, Any], message: str) -> None:
    model = decoder_of("learned")

    def works(*_: Any) -> None:
        raise AssertionError("the model was called")

    model.register_forward_pre_hook(works)
    model.embedding.register_forward_pre_hook(works)
    arguments = {"prompt": [[1, 2]], "max_new_tokens": 2} | arguments
    prompt = arguments.pop("prompt")
    with pytest.raises(HeadwayError, match=message):
        generate(model, prompt, **arguments)
    with pytest.raises(HeadwayError, match=message):
        stream(model, prompt, **arguments)  # by the call itself


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ([[1]], {}, "decoder_start is not given"),
        ([[1]], {"decoder_start": 50}, "decoder_start holds the id 50"),
        ([[1]], {"decoder_start": []}, "decoder_start is empty in row 0"),
        ([[1]], {"decoder_start": [[1], [2]]}, "decoder_start has 2 rows but the source 1"),
        ([[1] * 41], {"decoder_start": 0}, "source has 41 ids but the model's table of positions ends at 40"),
        ([[1]], {"decoder_start": 0, "max_new_tokens": 41}, "give max_new_tokens=40"),
        ([[77]], {"decoder_start": 0}, "source holds the id 77"),
        (torch.zeros(0, 4, 6), {"decoder_start": 0}, r"the source has shape \(0, 4, 6\): give a batch"),
    ],
)
def test_wrong_sources(source: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        generate(both_of("learned"), source, **({"max_new_tokens": 2} | arguments))


def test_models_that_do_not_generate() -> None:
    with pytest.raises(HeadwayError, match="the model is of type Encoder: give a Decoder or an EncoderDecoder"):
        generate(Encoder(SMALL), [[1]])  # type: ignore[arg-type]
    plain = decoder_of()
    with pytest.raises(HeadwayError, match="the Decoder has no head"):
        generate(Decoder.of_parts(plain.embedding, plain.stack), [[1]])
    with torch.no_grad():
        plain.embedding.weight.fill_(float("nan"))
    with pytest.raises(HeadwayError, match="logits hold NaN"):
        generate(plain, [[1]])


def test_a_stream_that_is_stopped_leaves_nothing_behind() -> None:
    """The caller's own error between two steps, and one in the model: the next stream is whole, and so is the model."""
    model = decoder_of().train()
    wanted = list(stream(model, PROMPTS, max_new_tokens=6))
    steps, seen = stream(model, PROMPTS, max_new_tokens=6), []
    while len(seen) < 6:
        try:
            seen.append(next(steps))
            raise ValueError("the caller's own")
        except ValueError:
            assert torch.is_grad_enabled()
    assert seen == wanted
    steps = stream(model, PROMPTS, max_new_tokens=6)
    next(steps)
    hook = model.stack.blocks[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    hook.remove()
    assert next(steps, None) is None  # a generator that raised is over
    assert torch.is_grad_enabled()
    assert all(module.training for module in model.modules())
    assert list(stream(model, PROMPTS, max_new_tokens=6)) == wanted
