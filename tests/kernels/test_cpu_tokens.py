"""What the CPU kernel's library does token by token is what torch does, rounded once, on every instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import headway
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.kernels import attend_in_parts, cut
from headway.kernels.cpu import _library, _tokens
from headway.kernels.cpu._tokens import WIDEST, rms_norm
from headway.positions import ENCODINGS
from headway.positions._rotary import Rotary
from headway.terms import Rotation
from headway.terms import rotate as turned
from headway.testing.tolerances import OUTPUT_FACTOR, Comparison

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 2, 3, 15, 16, 17, 63, 64, 100, 129, 576)
LAYOUTS = ("half", "interleaved")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(params=_library.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in _library.isas():
        pytest.skip(f"{request.param} is not on this machine")
    with _library.using(request.param):
        yield request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def angles(*shape: int) -> tuple[Tensor, Tensor]:
    phases = 100 * torch.rand(shape, dtype=torch.float64)
    return phases.cos(), phases.sin()


class LeftToTorch(Rotation):
    """A rotation that torch's own operations turn into nothing."""

    def _of(self, x: Tensor) -> Tensor:
        return None  # type: ignore[return-value]


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int = 0) -> Tensor | None:
    """The library's, or None where it is left to torch."""
    return _tokens.rotate(x, LeftToTorch(cos, sin, layout, start))


def there(y: Tensor | None) -> Tensor:
    assert y is not None
    return y


# Right in every form --------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("weighted", [True, False])
def test_a_norm_is_torchs(isa: str, dtype: torch.dtype, weighted: bool) -> None:
    torch.manual_seed(0)
    compared = Comparison(f"norm on {isa}", OUTPUT_FACTOR)
    for width in WIDTHS:
        x = torch.randn(2, 9, width).to(dtype)
        weight = torch.randn(width).to(dtype) if weighted else None
        exact = F.rms_norm(x.double(), (width,), None if weight is None else weight.double(), 1e-3)
        compared.add(there(rms_norm(x, weight, 1e-3)), F.rms_norm(x, (width,), weight, 1e-3), exact)
    compared.check()


@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("start", "rest"), [(0, 0), (0, 5), (19, 0), (3, 1)])
def test_a_turn_is_torchs(isa: str, dtype: torch.dtype, layout: str, start: int, rest: int) -> None:
    torch.manual_seed(0)
    compared = Comparison(f"turn on {isa}", OUTPUT_FACTOR)
    for pairs in (1, 3, 8, 16, 17, 32, 40):
        for rows, heads in ((1, 1), (2, 1), (1, 3), (2, 3)):
            x = torch.randn(2, 3, 7, start + 2 * pairs + rest).to(dtype)
            cos, sin = angles(rows, heads, 7, pairs)
            found, stop = there(turn(x, cos, sin, layout, start)), start + 2 * pairs
            part = x[..., start:stop]
            compared.add(
                found[..., start:stop], turned(part, cos, sin, layout), turned(part.double(), cos, sin, layout)
            )
            for y in (found, turned(x, cos, sin, layout, start)):
                assert torch.equal(y[..., :start], x[..., :start])
                assert torch.equal(y[..., stop:], x[..., stop:])
            torch.testing.assert_close(found, turned(x, cos, sin, layout, start))
    compared.check()


LAID_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sliced": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "expanded": lambda x: x[:1, :, :1].expand(x.shape),
    "odd start": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


@dtypes
@pytest.mark.parametrize("laid_out", LAID_OUT)
def test_any_strides_of_rows_will_do(dtype: torch.dtype, laid_out: str) -> None:
    x = LAID_OUT[laid_out](torch.randn(2, 3, 50, 24).to(dtype))
    weight, (cos, sin) = torch.randn(24).to(dtype), angles(1, 1, 50, 12)
    dense = x.contiguous()
    assert torch.equal(there(rms_norm(x, weight, 1e-5)), there(rms_norm(dense, weight, 1e-5)))
    assert torch.equal(there(turn(x, cos, sin, "half")), there(turn(dense, cos, sin, "half")))
    if laid_out == "heads last":
        assert there(turn(x, cos, sin, "half")).stride() == x.stride()
    far = cos.transpose(1, 2).contiguous().transpose(1, 2), torch.cat([sin, sin], -1)[..., :12]
    assert torch.equal(there(turn(x, *far, "half")), there(turn(dense, cos, sin, "half")))


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert there(rms_norm(x, None, 1e-5)).shape == shape
    assert there(turn(x, *angles(1, 1, shape[2], 4), "half")).shape == shape


@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 5, 24)])
def test_a_norm_takes_fewer_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(there(rms_norm(x, None, 1e-5)), F.rms_norm(x, (24,), None, 1e-5))


@dtypes
def test_nan_and_infinity_stay_in_their_row(isa: str, dtype: torch.dtype) -> None:
    x = torch.randn(1, 1, 4, 40).to(dtype)
    x[0, 0, 1, 3], x[0, 0, 2, 39] = torch.nan, torch.inf
    cos, sin = angles(1, 1, 4, 20)
    for found, wanted in (
        (there(rms_norm(x, None, 1e-5)), F.rms_norm(x, (40,), None, 1e-5)),
        (there(turn(x, cos, sin, "half")), turned(x, cos, sin, "half")),
    ):
        assert torch.equal(found.isnan(), wanted.isnan())
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_no_epsilon_is_torchs() -> None:
    x = 1e-4 * torch.randn(3, 24)
    torch.testing.assert_close(there(rms_norm(x, None, None)), F.rms_norm(x, (24,)))


# Differentiated -------------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("start", [0, 1])
def test_the_gradient_of_a_turn_is_torchs(dtype: torch.dtype, layout: str, start: int) -> None:
    cos, sin = angles(2, 3, 7, 5)
    x, weight = torch.randn(2, 3, 7, 12).to(dtype), torch.randn(2, 3, 7, 12).to(dtype)
    row, column = weight[:, :, :1].expand_as(weight), weight[..., :1].expand_as(weight)
    for grad in (weight, row, column, weight.mT.contiguous().mT):
        ours, torchs = (x.clone().requires_grad_() for _ in "12")
        there(turn(ours, cos, sin, layout, start)).backward(grad)
        turned(torchs, cos, sin, layout, start).backward(grad)
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, torchs.grad)


def test_a_turn_is_differentiated_twice() -> None:
    cos, sin = angles(1, 1, 4, 3)
    found = []
    for way in (turn, turned):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 4, 6, requires_grad=True)
        (first,) = torch.autograd.grad(there(way(x, cos, sin, "half")).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append(second)
    torch.testing.assert_close(*found)


def test_a_turn_keeps_no_more_than_its_angles() -> None:
    kept = []
    cos, sin = angles(1, 1, 4, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved.data_ptr()), lambda saved: saved):
        there(turn(torch.randn(1, 2, 4, 6, requires_grad=True), cos, sin, "half"))
    assert kept == [cos.data_ptr(), sin.data_ptr()]


WHOLE = ("cayley-string", "rerope")
"""Rotary encodings whose ``prepare`` is more than a rotation: one changes the basis, one turns within the product."""


@pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if issubclass(kind, Rotary)])
def test_every_rotary_encoding_is_itself(name: str) -> None:
    for encoding in ENCODINGS[name].examples():
        assert isinstance(encoding, Rotary)
        if encoding.reads_input:
            continue
        heads, axes = encoding.sizes.num_heads or 3, encoding.axes or 1
        x, at = torch.randn(2, heads, 6, encoding.head_dim), Coordinates.of(torch.randint(0, 9, (1, 6, axes)), 6)
        found = []
        for rotate in (_tokens.rotate, lambda x, rotation: rotation.of(x)):
            wants = x.clone().requires_grad_()
            before, rotation = encoding.split("query", wants, encoding.place(at))
            assert rotation is not None or name in WHOLE
            y = before if rotation is None else rotate(before, rotation)
            found.append((y, *torch.autograd.grad(y.square().sum(), [wants, *encoding.parameters()])))
        for ours, torchs in zip(*found, strict=True):
            torch.testing.assert_close(ours, torchs)


def test_attention_turns_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = _library.rotate
    monkeypatch.setattr(_library, "rotate", lambda words: (taken.append("rotate"), real(words)))
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in "qkv")
    headway.attention(q, k, v, encoding=headway.encoding("rope", head_dim=8)).sum().backward()
    assert len(taken) == 4  # q and k, there and back
    at = torch.randint(0, 9, (5, 2))[None]
    mixed = headway.encoding("mixed-rope", num_heads=2, head_dim=8)
    headway.attention(q, k, v, encoding=mixed, q_positions=at, k_positions=at)
    assert len(taken) == 4  # learned angles are torch's


def test_attention_turns_values_and_the_output_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """In attention, in its parts, and for a cache."""
    taken = []
    real = _library.rotate
    monkeypatch.setattr(_library, "rotate", lambda words: (taken.append("rotate"), real(words)))
    both = headway.encoding("rope + rotary-values", head_dim=8)
    for kernel in ("cpu", "sdpa"):
        q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in "qkv")
        headway.attention(q, k, v, encoding=both, kernel=kernel).sum().backward()
        assert len(taken) == 8  # q, k, v and the output, there and back
        taken.clear()
    call = make_call(q, k, v, encoding=both)
    attend_in_parts([cut(call, "keys", 0, 2), cut(call, "keys", 2, 5)], "cpu")
    assert len(taken) == 7  # q for each part
    taken.clear()
    layer = headway.nn.MultiHeadAttention(16, 2, encoding=both)
    layer(torch.randn(1, 5, 16), cache=headway.nn.KeyValueCache())
    assert len(taken) == 4


def test_the_reference_kernel_runs_none_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in attention nor for the keys and values of a cache."""

    def fail(*arguments: object) -> None:
        raise AssertionError("C++ was called")

    monkeypatch.setattr(_library, "_call", fail)
    monkeypatch.setattr(_library, "run", fail)
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in "qkv")
    for name in ("rope", "rotary-values", "rope + rotary-values"):
        encoding = headway.encoding(name, head_dim=8)
        headway.attention(q, k, v, encoding=encoding, kernel="reference").sum().backward()
        headway.attention_weights(q, k, v, encoding=encoding, kernel="reference")
        headway.attention_steps(q, k, v, encoding=encoding, kernel="reference")
        call = make_call(q, k, v, encoding=encoding)
        attend_in_parts([cut(call, "keys", 0, 2), cut(call, "keys", 2, 5)], "reference")[0].sum().backward()
        layer = headway.nn.MultiHeadAttention(16, 2, encoding=encoding, kernel="reference")
        layer(torch.randn(1, 5, 16), cache=headway.nn.KeyValueCache())
        with pytest.raises(AssertionError, match="was called"):
            headway.attention(q, k, v, encoding=encoding, kernel="cpu")


# Threads --------------------------------------------------------------------------------------------------------------


@dtypes
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype, two_threads: None) -> None:
    x, weight = torch.randn(2, 3, 1001, 64).to(dtype).transpose(1, 2).contiguous().transpose(1, 2), torch.randn(64)
    cos, sin = angles(1, 1, 1001, 32)

    def both() -> tuple[Tensor, Tensor]:
        return there(rms_norm(x, weight.to(dtype), 1e-5)), there(turn(x, cos, sin, "half"))

    spread = both()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(both(), spread, strict=True))


FORK = """
import os, signal, torch
from headway.kernels.cpu._tokens import rms_norm, rotate
from headway.terms import Rotation
torch.set_num_threads(2)
x = torch.randn(600, 600)
(x @ x).exp().sum()  # torch's threads start
q, table = torch.randn(2, 4, 900, 16), torch.rand(1, 1, 900, 8, dtype=torch.float64)

def work():
    return rms_norm(q, None, 1e-5), rotate(q, Rotation(table, table, "half"))

before = work()
child = os.fork()
if child == 0:
    signal.alarm(60)  # one that hangs does not stay behind
    after = work()
    torch.set_num_threads(1)  # torch itself would hang over the comparison
    os._exit(7 if all(torch.equal(a, b) for a, b in zip(after, before)) else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_after_a_fork() -> None:
    setting = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=setting, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# What does not fit is left to torch -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, (cos, sin) = torch.randn(1, 2, 3, 8), torch.ones(8), angles(1, 1, 3, 4)
    assert rms_norm(x.double(), None, 1e-5) is None
    assert rms_norm(x.mT, None, 1e-5) is None
    assert rms_norm(x[None], None, 1e-5) is None
    assert rms_norm(x.to("meta"), None, 1e-5) is None
    assert rms_norm(x, weight.bfloat16(), 1e-5) is None
    assert rms_norm(x, weight[:1], 1e-5) is None
    assert rms_norm(x, weight.repeat(2)[::2], 1e-5) is None
    assert rms_norm(x, weight.clone().requires_grad_(), 1e-5) is None
    assert rms_norm(x.bfloat16(), None, None) is None
    assert turn(x, cos.float(), sin.float(), "half") is None
    assert turn(x, cos[..., :2], sin, "half") is None
    assert turn(x, cos[:, :, :2], sin[:, :, :2], "half") is None
    assert turn(x, cos.mT.contiguous().mT, sin, "half") is None
    assert turn(x[..., :6], cos, sin, "half") is None
    assert turn(x, cos, sin, "half", 1) is None
    assert turn(x, cos, sin, "half", -1) is None
    with pytest.raises(RuntimeError):
        turned(x, cos, sin, "half", 1)
    assert turn(x, cos.clone().requires_grad_(), sin, "half") is None
    assert torch.func.vmap(lambda row: 0 * row if turn(row, cos, sin, "half") is None else row)(x[None]).sum() == 0
    wide = angles(1, 1, 1, WIDEST // 2 + 1)
    assert turn(torch.randn(1, 1, 1, WIDEST + 2), *wide, "half") is None
    assert torch.func.vmap(lambda row: F.rms_norm(row, (8,)) if rms_norm(row, None, 1e-5) is None else row)(x) is not x
    with torch.no_grad():
        assert rms_norm(x, weight.clone().requires_grad_(), 1e-5) is not None
    monkeypatch.setattr(_library, "why_not", lambda: "it is not there")
    assert rms_norm(x, None, 1e-5) is None
    assert turn(x, cos, sin, "half") is None


NORM, ROTATE = 16, 25
"""Words of a call."""


@pytest.mark.parametrize(
    ("call", "word", "value"),
    [
        (_library.rms_norm, 1, 3),
        (_library.rms_norm, 1, -1),
        (_library.rms_norm, 2, 0),
        (_library.rms_norm, 10, -1),
        (_library.rms_norm, 13, 0),
        (_library.rotate, 14, 0),
        (_library.rotate, 14, 5),
        (_library.rotate, 16, -1),
        (_library.rotate, 16, 1),
    ],
)
def test_words_that_are_wrong_are_refused(call: Callable[[array[int]], None], word: int, value: int) -> None:
    x, y, table = torch.randn(8), torch.empty(8), torch.ones(4, dtype=torch.float64)
    rows = [1, 0, x.data_ptr(), 0, 0, 0, y.data_ptr(), 0, 0, 0, 1, 1, 1, 8]
    rest = [0, 0] if call is _library.rms_norm else [4, 0, 0, *2 * [table.data_ptr(), 0, 0, 0]]
    words = array("q", rows + rest)
    assert len(words) == (NORM if call is _library.rms_norm else ROTATE)
    call(words)
    with pytest.raises(HeadwayError, match="word 0 of a call"):
        call(words[:-1])
    words[word] = value
    with pytest.raises(HeadwayError, match=f"word {word} of a call"):
        call(words)


@dtypes
@pytest.mark.parametrize("odd", ["x", "weight", "cos"])
def test_tensors_at_odd_addresses_are_left_to_torch(dtype: torch.dtype, odd: str) -> None:
    def move(x: Tensor) -> Tensor:
        kept = bytearray([0, *x.flatten().view(torch.uint8).tolist()])
        return torch.frombuffer(kept, dtype=x.dtype, offset=1).view(x.shape)

    x, weight = torch.randn(1, 2, 3, 8).to(dtype), torch.rand(8).to(dtype)
    cos, sin = angles(1, 1, 3, 4)
    assert rms_norm(x, weight, 1e-5) is not None
    assert turn(x, cos, sin, "half") is not None
    x, weight, cos = (move(y) if name == odd else y for name, y in (("x", x), ("weight", weight), ("cos", cos)))
    assert (rms_norm(x, weight, 1e-5) is None) == (odd != "cos")
    assert (turn(x, cos, sin, "half") is None) == (odd != "weight")


@pytest.mark.parametrize("word", [2, 6, 17, 21])
def test_an_address_that_is_missing_is_a_word_that_is_wrong(word: int) -> None:
    """x, out, cos and sin of csrc/tokens.h."""
    y, (cos, sin) = torch.randn(1, 1, 2, 8), angles(1, 1, 2, 4)
    row = [1, 0, y.data_ptr(), 16, 16, 8, y.data_ptr(), 16, 16, 8, 1, 1, 2, 8, 4, 0, 0]
    row += [cos.data_ptr(), 0, 0, 4, sin.data_ptr(), 0, 0, 4]
    _library.rotate(list(row))
    row[word] = 0
    with pytest.raises(HeadwayError, match=f"word {word} "):
        _library.rotate(row)
