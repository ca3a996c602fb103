"""The checks that every encoding passes, on every kernel that takes it."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..attention import attention, explain
from ..call import make_call
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..kernels import KERNELS
from ..kernels import reference as spec
from ..masks import Boolean, Causal, Documents, Mask, Padding
from ..positions import Interpolated, Pair, PositionEncoding
from ._checks import by_name, run_checks
from ._rounding import in_words, narrow_operation, raised_at, rounding_operation
from .inputs import CheckSizes, Layer, gaps, on_axes, randomized, where
from .tolerances import DRAWS, GRADIENT_FACTOR, MOST_DRAWS, OUTPUT_FACTOR, Comparison, assert_close

Check = Callable[[PositionEncoding], None]
EXACT = 1e-9
"""The largest difference between two float64 computations of the same number."""


def check_encoding(encoding: PositionEncoding) -> list[str]:
    """Runs all checks of ``ENCODING_CHECKS`` on an encoding.

    The encoding is compared with its formula for a single pair (``oracle``), in every dtype and on every kernel that
    takes it. Its gradients are compared with finite differences, and decoding, packed and padded batches with plain
    ones. All checks use random parameters.

    Args:
        encoding: an encoding of any class, with small sizes. It is not changed.

    Returns:
        The names of the checks that it passed, which are all of them.

    Raises:
        HeadwayError: if it is not an encoding.
        AssertionError: at the first check that fails or in which the encoding raises an error. The message names the
            check, its result, and the line.
    """
    if not isinstance(encoding, PositionEncoding):
        given = encoding.__name__ if isinstance(encoding, type) else repr(encoding)
        example = f"{given}(num_heads=8)" if isinstance(encoding, type) else "headway.encoding('rope', head_dim=64)"
        raise HeadwayError(f"encoding is {given}: give an object of an encoding, such as {example}")
    return run_checks(type(encoding).__name__, ENCODING_CHECKS, encoding, _sizes_in_words(encoding))


# ---------------------------------------------------------------- set-up


def _sizes_in_words(encoding: PositionEncoding) -> str:
    """The sizes of the checks, and which of them the encoding does not set itself."""
    sizes, known = CheckSizes.of(encoding), encoding.sizes
    used = {"num_heads": sizes.heads, "head_dim": sizes.head_dim, "embed_dim": sizes.embed_dim}
    guessed = [name for name in used if getattr(known, name) is None]
    said = f"checked with {', '.join(f'{name}={size}' for name, size in used.items())}"
    if not guessed:
        return said
    return f"{said}; it has no {' or '.join(guessed)}, so this is a guess: give constructor arguments these names"


def _layer(encoding: PositionEncoding, seed: int = 0, dtype: torch.dtype = torch.float64) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    layer = Layer(randomized(copy.deepcopy(encoding), generator, dtype), generator, dtype)
    return layer.eval()


def _x(layer: Layer, batch: int, n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = layer.q_weight
    return torch.randn(batch, n, layer.sizes.embed_dim, generator=generator, dtype=torch.float64).to(weight.dtype)


def _span(layer: Layer, n: int, start: int = 0, length: int | None = None) -> Coordinates:
    return on_axes(Coordinates.span(n, start=start, length=length), layer.encoding.axes)


def _kernels(layer: Layer, *, mask: Mask | None = None, wants_gradient: bool = False) -> Iterator[str]:
    """The kernels that take this layer."""
    for name, reasons in kernel_reasons(layer, mask=mask, wants_gradient=wants_gradient).items():
        if not reasons:
            yield name


def kernel_reasons(layer: Layer, *, mask: Mask | None = None, wants_gradient: bool = False) -> dict[str, list[str]]:
    """Returns the reasons why each kernel does not take a call of this layer; none for those that do."""
    coordinates = _span(layer, 6)
    with torch.set_grad_enabled(wants_gradient):
        x = layer.embed(_x(layer, 1, 6), coordinates)
        q, k, v = layer.project(x)
        mask = Causal() if mask is None and layer.encoding.causal_only else mask
        explanation = explain(q, k, v, encoding=layer.in_attention, mask=mask, **where(coordinates, x))
    assert set(explanation.reasons) == set(KERNELS)
    return explanation.reasons


def _step(layer: Layer, x: Tensor, coordinates: Coordinates, kernel: str, cached: bool) -> Tensor:
    """The output of the last token, with keys as a cache stores them or with keys prepared at this length."""
    n, encoding = x.shape[1], layer.in_attention
    rows = [coordinates.rows(i, i + 1) for i in range(n)]
    if cached:
        x = torch.cat([layer.embed(x[:, i : i + 1], rows[i]) for i in range(n)], dim=1)
    else:
        x = layer.embed(x, coordinates)
    q, k, v = layer.project(x)
    arguments: dict[str, Any] = {"encoding": encoding, "mask": Causal(), "kernel": kernel, **where(coordinates, x)}
    arguments |= {"q_positions": rows[-1], "q_input": x[:, -1:]}
    if encoding is not None and cached and encoding.cache_prepared:
        placed = [encoding.place(row) for row in rows]
        k = torch.cat([encoding.prepare_key(k[:, :, i : i + 1], placed[i]) for i in range(n)], dim=2)
        v = torch.cat([encoding.prepare_value(v[:, :, i : i + 1], placed[i]) for i in range(n)], dim=2)
        arguments |= {"q_positions": placed[-1], "prepared_by": encoding}
    return attention(q[:, :, -1:], k, v, **arguments)


def depends_on_length(encoding: PositionEncoding) -> bool:
    """Returns whether an encoding gives a token another result in a longer sequence, by trying it."""
    layer = _layer(encoding)
    x = _x(layer, 1, 6)
    near, far = (_span(layer, 6, length=length) for length in (6, 12))
    return not torch.equal(layer(x, near, kernel="reference"), layer(x, far, kernel="reference"))


# ---------------------------------------------------------------- the checks


def matches_its_formula(encoding: PositionEncoding) -> None:
    """Checks embeddings, scores and values against the oracle, pair by pair in float64, at any positions."""
    _has_an_oracle(encoding)
    layer = _layer(encoding).requires_grad_(False)
    n = 7
    anywhere = gaps(n, torch.Generator().manual_seed(5), layer.sizes.max_length)
    for seed, coordinates in enumerate((_span(layer, n), on_axes(anywhere, layer.encoding.axes))):
        x = _x(layer, 1, n, seed)
        embedded = layer.embed(x, coordinates)
        _need_tensor("embed", embedded, x)
        by_oracle = layer.encoding.oracle_embed(x[0], coordinates)
        _need_tensor("oracle_embed", by_oracle, x[0])
        assert_close("embed, against oracle_embed", embedded[0], by_oracle, EXACT)
        q, k, v = (part[0].detach() for part in layer.project(embedded))
        if layer.in_attention is None:
            continue
        expected = _by_oracle(layer, q, k, v, embedded[0], coordinates)
        for kernel, reasons in kernel_reasons(layer).items():
            if not reasons:
                ours = layer(x, coordinates, kernel=kernel)[0]
                with _hint(_narrow_operation, layer, x, coordinates), _hint(_differing_score, layer, x, coordinates):
                    assert_close(f"output on {kernel}, against the oracle", ours, expected, EXACT)


ORACLES = {
    "embed": ("oracle_embed",),
    "prepare": ("oracle", "oracle_weights", "oracle_value"),
    "terms": ("oracle", "oracle_weights", "oracle_value"),
    "values": ("oracle_value",),
}
"""The methods of each hook. An encoding that acts through a hook overrides one of its methods."""


def _has_an_oracle(encoding: PositionEncoding) -> None:
    kind = type(encoding)
    example = {
        "embed": "def oracle_embed(self, x, coordinates): return x + …",
        "values": "def oracle_value(self, pair, v): return … * v[pair.h, pair.j]",
    }
    for hook in sorted(encoding.acts & set(ORACLES)):
        written = any(getattr(kind, name) is not getattr(PositionEncoding, name) for name in ORACLES[hook])
        assert written, (
            f"it has no {ORACLES[hook][0]}, the formula of its paper to compare {hook} with: add "
            + example.get(
                hook,
                "def oracle(self, pair), which returns the score of one pair, such as pair.scale * pair.dot + bias",
            )
            + " (docs/extending.md has examples)"
        )


def _score(encoding: PositionEncoding, pair: Pair) -> float:
    """The score by the oracle, which must be one number."""
    score: Any = encoding.oracle(pair)
    assert score is not None, "oracle returns None: return the score of the pair, such as pair.scale * pair.dot + bias"
    assert not isinstance(score, Tensor) or score.numel() == 1, (
        f"oracle returns a tensor of shape {tuple(score.shape)}: return the score of one pair as a number; pair.query "
        "and pair.key are its rows, pair.queries and pair.keys those of all heads and tokens"
    )
    return float(score)


def _need_tensor(hook: str, returned: Any, x: Tensor) -> None:
    """Checks that ``embed`` has returned a tensor of the shape of x."""
    assert isinstance(returned, Tensor), (
        f"{hook} returns {None if returned is None else type(returned).__name__}: return x + …"
    )
    assert returned.shape == x.shape, f"{hook} returns shape {tuple(returned.shape)} for {tuple(x.shape)}: return x + …"


def _hooks(layer: Layer, x: Tensor, coordinates: Coordinates) -> Callable[[], Any]:
    """Calls every hook of the encoding, and returns their results."""
    own, (q, k, v) = layer.encoding, layer.project(x)

    def hooks() -> Any:
        at = own.place(coordinates)
        q_at, k_at = own.relocate(at, at, x, x)
        prepared = own.prepare_query(q, q_at), own.prepare_key(k, k_at), own.prepare_value(v, k_at)
        return own.embed(x, at), *prepared, own.restore_output(v, q_at), own.terms(q_at, k_at, x, x)

    return hooks


@contextmanager
def _hint(find: Callable[..., str], *arguments: Any) -> Iterator[None]:
    """Adds the result of ``find`` to the message of an AssertionError."""
    try:
        yield
    except AssertionError as error:
        try:
            hint = find(*arguments)
        except Exception:  # an error here must not hide the result of the check
            hint = ""
        raise AssertionError(f"{error}{hint}") from error


def _narrow_operation(layer: Layer, x: Tensor, coordinates: Coordinates) -> str:
    """A hint that names an operation that computes in float32 in a layer of float64."""
    hint = narrow_operation(_hooks(layer, x, coordinates), torch.float32)
    return f"; {hint}: compute angles and positions in float64, as in coordinates.axis().double()" if hint else ""


def _rounding_operation(encoding: PositionEncoding, dtype: torch.dtype) -> str:
    """A hint that names the operation that rounds the most, far from position 0."""
    layer = _layer(encoding, dtype=dtype).requires_grad_(False)
    exact = copy.deepcopy(layer).double()
    x, n = _x(layer, 1, 9), 9
    coordinates = _span(layer, n, start=0 if layer.sizes.max_length else 4000)
    hint = rounding_operation(_hooks(layer, x, coordinates), _hooks(exact, x.double(), coordinates), dtype)
    wide = "compute angles, positions and sums over the input in float64, and round the result"
    return f"; {hint}: {wide}" if hint else ""


def _differing_score(layer: Layer, x: Tensor, coordinates: Coordinates) -> str:
    """The pair whose score differs the most from the oracle's, and both scores."""
    encoding, embedded = layer.encoding, layer.embed(x, coordinates)
    q, k, v = layer.project(embedded)
    mask = Causal() if encoding.causal_only else None
    call = make_call(q, k, v, encoding=encoding, mask=mask, **where(coordinates, embedded))
    scores = spec.steps(spec.computed(call))[1][0]
    scale = encoding.default_scale(q.shape[3])
    heads, n, _ = scores.shape
    pairs = [
        Pair(h, i, j, q[0], k[0], embedded[0], coordinates, scale)
        for h in range(heads)
        for i in range(n)
        for j in range(i + 1 if encoding.causal_only else n)
    ]
    both = [(scores[pair.h, pair.i, pair.j].item(), _score(encoding, pair), pair) for pair in pairs]
    ours, theirs, pair = max(both, key=lambda one: abs(one[0] - one[1]))
    if math.isclose(ours, theirs, rel_tol=EXACT, abs_tol=EXACT):
        return "; all scores agree with oracle: compare oracle_weights and oracle_value"
    place = f"head {pair.h}, query {pair.i}, key {pair.j} (distance {pair.distance:g})"
    width = call.q.shape[3]
    prepared = f"; prepare makes queries and keys {width} wide of {q.shape[3]}" if width != q.shape[3] else ""
    return f"; the largest difference of scores is at {place}: {ours:.6g}, and {theirs:.6g} by oracle{prepared}"


def _by_oracle(layer: Layer, q: Tensor, k: Tensor, v: Tensor, x: Tensor, coordinates: Coordinates) -> Tensor:
    """The output of one sequence by the oracle's formula, pair by pair."""
    encoding, (heads, n, head_dim) = layer.encoding, q.shape
    scale = encoding.default_scale(head_dim)
    expected = torch.zeros_like(v)
    for h in range(heads):
        for i in range(n):
            seen = range(i + 1) if encoding.causal_only else range(n)
            pairs = [Pair(h, i, j, q, k, x, coordinates, scale) for j in seen]
            weights = encoding.oracle_weights(h, i, [_score(encoding, pair) for pair in pairs])
            for weight, pair in zip(weights, pairs, strict=True):
                expected[h, i] += weight * encoding.oracle_value(pair, v)
    return expected


def reads_only_what_it_declares(encoding: PositionEncoding) -> None:
    """Checks that an encoding whose ``reads_input`` is False works without being given the layer's input."""
    layer = _layer(encoding).requires_grad_(False)
    if encoding.reads_input or layer.in_attention is None:
        return
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    q, k, v = layer.project(layer.embed(x, coordinates))
    shared: dict[str, Any] = {"q_positions": coordinates, "k_positions": coordinates, "mask": Causal()}
    remedy = "declare reads_input = True in the class"
    try:
        without = attention(q, k, v, encoding=layer.in_attention, **shared)
    except Exception as error:
        try:
            attention(q, k, v, encoding=layer.in_attention, q_input=x, k_input=x, **shared)
        except Exception:
            return  # it fails with the input too, and other checks report that
        at = raised_at(error)
        said = f"{type(error).__name__}: {error}" + (f"; at {in_words(at)}" if at else "")
        raise AssertionError(f"it reads q_input or k_input, which it is not given: {remedy} ({said})") from error
    given = attention(q, k, v, encoding=layer.in_attention, q_input=x, k_input=x, **shared)
    assert torch.equal(without, given), f"q_input and k_input change the output, and are not given in use: {remedy}"


def changes_the_output(encoding: PositionEncoding) -> None:
    """Checks that the output differs from one without the encoding, unless the encoding acts on nothing."""
    layer = _layer(encoding)
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    q, k, v = layer.project(x)
    plain = attention(q, k, v, mask=Causal() if encoding.causal_only else None)
    same = torch.allclose(layer(x, coordinates), plain)
    assert same == (not encoding.acts), (
        f"the encoding acts through {sorted(encoding.acts)}, and the output {'equals' if same else 'differs from'} "
        "that without an encoding"
    )


def keeps_the_promise_in_every_dtype(encoding: PositionEncoding) -> None:
    """Checks output and gradients in float32 and bfloat16, far from position 0, against naive and exact results."""
    # gradients of parameters are sums over a batch; without parameters the draws are the sequences of one call.
    # With parameters, a gradient may have one row for each draw, and few draws give no reliable mean
    calls = DRAWS if list(encoding.parameters()) else 1
    for dtype in (torch.float32, torch.bfloat16):
        reasons = kernel_reasons(_layer(encoding, dtype=dtype), mask=Causal(), wants_gradient=True)
        taken = [kernel for kernel in KERNELS if not reasons[kernel]]
        comparisons: dict[str, Comparison] = {}
        for draw in range(calls if calls == 1 else MOST_DRAWS):
            if draw >= calls and all(comparison.holds() for comparison in comparisons.values()):
                break
            layer = _layer(encoding, draw, dtype)
            exact_layer = copy.deepcopy(layer).double()
            n = 9
            far = not layer.sizes.max_length and layer.in_attention is not None
            start = 4000 if far else 0
            x = _x(layer, DRAWS // calls, n, draw)
            coordinates = _span(layer, n, start=start)
            naive = _gradients(layer, x, coordinates, None)
            exact = _gradients(exact_layer, x.double(), coordinates, "reference")
            for kernel in taken:
                ours = _gradients(layer, x, coordinates, kernel)
                assert set(ours) == set(naive) == set(exact), (
                    f"on {kernel} gradients are missing: {set(exact) - set(ours)}"
                )
                for name in ours:
                    what, factor = f"{name} on {kernel}", OUTPUT_FACTOR if name == "output" else GRADIENT_FACTOR
                    comparison = comparisons.setdefault(what, Comparison(f"{what} in {dtype}", factor))
                    comparison.add(ours[name], naive[name], exact[name])
        for comparison in comparisons.values():
            with _hint(_rounding_operation, encoding, dtype):
                comparison.check()


def embeds_far_away_as_near(encoding: PositionEncoding) -> None:
    """Checks that embeddings are as precise at position 4000, or at the end of the table, as their dtype allows."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        layer = _layer(encoding, dtype=dtype)
        n = 9
        start = min(4000, (layer.sizes.max_length or 4009) - n)
        x, coordinates = _x(layer, 1, n), _span(layer, n, start=start)
        embedded, exact = layer.embed(x, coordinates), copy.deepcopy(layer).double().embed(x.double(), coordinates)
        assert embedded.dtype == dtype, f"embed turned {dtype} into {embedded.dtype}"
        with _hint(_rounding_operation, encoding, dtype):
            assert_close(f"embed in {dtype}", embedded, exact, 2 * torch.finfo(dtype).eps)
        with torch.autocast("cpu", torch.bfloat16):
            embedded = layer.embed(x, coordinates)
        assert_close(f"embed in {dtype} under autocast", embedded, exact, 2 * torch.finfo(dtype).eps)


def _gradients(layer: Layer, x: Tensor, coordinates: Coordinates, kernel: str | None) -> dict[str, Tensor]:
    """Output and gradients by name.

    If ``kernel`` is None, they come from the naive computation: the encoding's part is computed in float64 and rounded
    once, the rest in the dtype of x.
    """
    encoding = copy.deepcopy(layer.encoding).double() if kernel is None else layer.encoding
    x = x.detach()
    if kernel is None:
        embedded = encoding.embed(x.double(), encoding.place(coordinates)).to(x.dtype).detach()
    else:
        embedded = layer.embed(x, coordinates).detach()
    projected = [part.detach().requires_grad_() for part in layer.project(embedded)]
    leaves = dict(zip(("its q", "its k", "its v"), projected, strict=True))
    parameters = dict(encoding.named_parameters()) if layer.in_attention is not None else {}
    arguments: dict[str, Any] = {
        "encoding": None if layer.in_attention is None else encoding,
        "mask": Causal(),
        **where(coordinates, embedded if kernel else embedded.double()),
    }
    if kernel is None:
        q, k, v = (leaf.double() for leaf in leaves.values())
        call = KERNELS["reference"].rotated(make_call(q, k, v, **arguments))
        q, k, v = (part.to(x.dtype) for part in (call.q, call.k, call.v))
        out = spec.steps(replace(call, q=q, k=k, v=v, terms=spec.cast(call.terms, x.dtype)))[4]
        out = KERNELS["reference"].restored(call, out.double()).to(x.dtype)
    else:
        q, k, v = leaves.values()
        out = attention(q, k, v, kernel=kernel, **arguments)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    wanted = leaves | parameters
    grads = torch.autograd.grad(out, list(wanted.values()), upstream, allow_unused=True)
    results = {"output": out.detach()}
    for (name, leaf), grad in zip(wanted.items(), grads, strict=True):
        if grad is None:  # only the embeddings depend on it, which every_gradient_is_there checks
            assert name not in leaves, f"{name} has no gradient on {kernel or 'the naive computation'}"
            continue
        dtype = leaf.dtype if kernel or name in leaves else dict(layer.encoding.named_parameters())[name].dtype
        results[name] = grad.to(dtype)
    return results


def every_gradient_is_there(encoding: PositionEncoding) -> None:
    """Checks that no gradient is zero, and compares each, also the input's, with finite differences in float64."""
    layer = _layer(encoding, seed=3)
    n = 5
    x, coordinates = _x(layer, 1, n).requires_grad_(), _span(layer, n)
    leaves = {f"parameter {name}": leaf for name, leaf in layer.encoding.named_parameters()} | {"the input": x}

    def loss() -> Tensor:
        out = layer(x, coordinates, mask=Causal(), kernel="reference")
        return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()

    grads = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        assert grad is not None, f"{name} has no gradient"
        assert grad.abs().max() > 0, f"the gradient of {name} is zero"
        generator = torch.Generator().manual_seed(7)
        direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        step = 1e-5
        with torch.no_grad():
            leaf.add_(step * direction)
            above = loss().item()
            leaf.sub_(2 * step * direction)
            below = loss().item()
            leaf.add_(step * direction)
        expected = (above - below) / (2 * step)
        value = (grad * direction).sum().item()
        assert math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-6), (
            f"the gradient of {name} is {value:.6g} along a direction in which the output changes by {expected:.6g}"
        )


def decoding_equals_a_full_pass(encoding: PositionEncoding) -> None:
    """Checks that decoding token by token gives the same as a full pass.

    If the encoding depends on the length of the sequence, the full pass has the length reached so far.
    """
    layer = _layer(encoding)
    n = 6
    x = _x(layer, 2, n)
    cached = not depends_on_length(encoding)
    with torch.no_grad():
        for kernel in _kernels(layer, mask=Causal()):
            for t in range(1, n + 1):
                coordinates = _span(layer, t, length=n if cached else t)
                full = layer(x[:, :t], coordinates, mask=Causal(), kernel=kernel)[:, :, -1:]
                assert_close(f"token {t} on {kernel}", _step(layer, x[:, :t], coordinates, kernel, cached), full, EXACT)


def packed_equals_separate(encoding: PositionEncoding) -> None:
    """Checks that documents packed into one row give the same results as each document by itself."""
    layer = _layer(encoding)
    lengths = [4, 1, 6]
    x = _x(layer, 1, sum(lengths))
    coordinates = on_axes(Coordinates.packed(lengths), layer.encoding.axes)
    with torch.no_grad():
        for kernel in _kernels(layer, mask=Causal() & Documents()):
            packed = layer(x, coordinates, mask=Causal() & Documents(), kernel=kernel)
            alone = [
                layer(part, _span(layer, part.shape[1]), mask=Causal(), kernel=kernel)
                for part in x.split(lengths, dim=1)
            ]
            assert_close(f"packed on {kernel}", packed, torch.cat(alone, dim=2), EXACT)


def padded_equals_unpadded(encoding: PositionEncoding) -> None:
    """Checks that padding on either side does not change the results of the real tokens."""
    layer = _layer(encoding)
    n, lengths = 7, [4, 7]
    x = _x(layer, 2, n)
    with torch.no_grad():
        for side in ("left", "right"):
            mask = Causal() & Padding(torch.tensor(lengths), side)
            for kernel in _kernels(layer, mask=Causal() & Padding()):
                coordinates = on_axes(Coordinates.padded(lengths, n, side=side), layer.encoding.axes)
                padded = layer(x, coordinates, mask=mask, kernel=kernel)
                for row, length in enumerate(lengths):
                    real = slice(n - length, n) if side == "left" else slice(0, length)
                    alone = layer(x[row : row + 1, real], _span(layer, length), mask=Causal(), kernel=kernel)
                    assert_close(f"{side} padding on {kernel}", padded[row : row + 1, :, real], alone, EXACT)


def the_future_leaves_the_past(encoding: PositionEncoding) -> None:
    """Checks that, under a causal mask, later tokens change nothing before them."""
    layer = _layer(encoding)
    n, cut = 8, 5
    x = _x(layer, 1, n)
    other = x.clone()
    other[:, cut:] = _x(layer, 1, n - cut, seed=9)
    coordinates = _span(layer, n)
    with torch.no_grad():
        for kernel in _kernels(layer, mask=Causal()):
            first, second = (layer(y, coordinates, mask=Causal(), kernel=kernel) for y in (x, other))
            assert_close(f"the past on {kernel}", second[:, :, :cut], first[:, :, :cut], 1e-12)
            assert not torch.allclose(first[:, :, cut:], second[:, :, cut:]), "the changed tokens changed nothing"


def rows_without_keys_are_zero(encoding: PositionEncoding) -> None:
    """Checks that a query without keys gives zeros, and that all gradients are finite."""
    layer = _layer(encoding)
    n = 6
    allowed = torch.ones(n, n, dtype=torch.bool)
    allowed[2] = False
    allowed[:, 3] = False
    coordinates = _span(layer, n)
    mask: Mask = Boolean(allowed) & Causal() if encoding.causal_only else Boolean(allowed)
    for kernel in _kernels(layer, mask=mask, wants_gradient=True):
        x = _x(layer, 1, n).requires_grad_()
        out = layer(x, coordinates, mask=mask, kernel=kernel)
        assert torch.isfinite(out).all(), f"the output is not finite on {kernel}"
        blind = out[:, :, 2].abs().max().item()
        assert blind == 0, f"a query without keys gives {blind} on {kernel}"
        layer.zero_grad()
        out.sum().backward()
        for name, leaf in [("x", x), *layer.named_parameters()]:
            if leaf.grad is not None:
                assert torch.isfinite(leaf.grad).all(), f"the gradient of {name} is not finite on {kernel}"


def survives_saving(encoding: PositionEncoding) -> None:
    """Checks that state_dict, safetensors, pickle and deepcopy after a forward pass reproduce the output."""
    layer = _layer(encoding)
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    expected = layer(x, coordinates)
    fresh = _layer(encoding, seed=11)
    fresh.load_state_dict(layer.state_dict())
    buffer = io.BytesIO()
    pickle.dump(layer, buffer)
    buffer.seek(0)
    copies = {"state_dict": fresh, "pickle": pickle.load(buffer), "deepcopy": copy.deepcopy(layer)}
    try:
        from safetensors.torch import load, save
    except ImportError:
        pass
    else:
        copies["safetensors"] = _layer(encoding, seed=12)
        copies["safetensors"].load_state_dict(load(save(layer.state_dict())))
    for name, other in copies.items():
        assert torch.equal(other(x, coordinates), expected), f"{name} gives another output"


def instances_share_nothing(encoding: PositionEncoding) -> None:
    """Checks that calls of another instance, or with other lengths, dtypes or coordinates, do not change a result."""
    layer, other = _layer(encoding), _layer(encoding, seed=2)
    x = _x(layer, 1, 6)
    first = layer(x, _span(layer, 6))
    other(_x(other, 2, 9), _span(layer, 9))
    copy.deepcopy(layer).float()(x.float()[:, :4], _span(layer, 4, start=3))
    assert torch.equal(layer(x, _span(layer, 6)), first), "the output changed after other calls"


def places_anew_what_another_placed(encoding: PositionEncoding) -> None:
    """Checks that coordinates which another encoding has placed give the same results as unplaced ones."""
    layer = _layer(encoding)
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    expected = layer(x, coordinates)
    for other in (_layer(encoding, seed=2).encoding, Interpolated(4.0)):
        again = layer(x, other.place(coordinates))
        assert torch.equal(again, expected), f"it uses positions or tables of another {type(other).__name__}"


def tables_are_of_coordinates_alone(encoding: PositionEncoding) -> None:
    """Checks that tables do not depend on parameters and buffers.

    This matters because placed coordinates may be kept across an update of the parameters.
    """
    layer = _layer(encoding)
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    first = layer(x, coordinates)
    placed = layer.encoding.place(coordinates)
    tables = [table.clone() for table in _tensors(placed.tables)]
    assert not any(table.requires_grad for table in tables), "a table requires a gradient"
    randomized(layer.encoding, torch.Generator().manual_seed(5), torch.float64)
    with torch.no_grad():
        for buffer in layer.encoding.buffers():
            buffer.mul_(2)
    for before, after in zip(tables, _tensors(layer.encoding.place(coordinates).tables), strict=True):
        assert torch.equal(before, after), "a table changes with the parameters"
    second = layer(x, coordinates)
    assert torch.equal(layer(x, placed), second), "coordinates placed before an update give another output"
    assert not list(layer.encoding.parameters()) or not torch.equal(first, second), "the parameters change nothing"


def writes_into_nothing_it_is_given(encoding: PositionEncoding) -> None:
    """Checks that no hook writes to coordinates, tables, queries, keys, values, outputs or inputs."""
    layer = _layer(encoding).requires_grad_(False)
    own, x, coordinates = layer.encoding, _x(layer, 2, 6), _span(layer, 6)
    coordinates = replace(coordinates, position=coordinates.position.clone(), index=coordinates.index.clone())
    q, k, v = (part.contiguous() for part in layer.project(x))
    given = {
        "x": x,
        "q": q,
        "k": k,
        "v or the output": v,
        "the positions": coordinates.position,
        "the index": coordinates.index,
    }

    def unchanged(hook: str, result: Any) -> Any:
        for name, tensor in given.items():
            assert torch.equal(tensor, copies[name]), f"{hook} writes to {name}"
        return result

    copies = {name: tensor.clone() for name, tensor in given.items()}
    at = unchanged("locate or tables", own.place(coordinates))
    given |= {f"table {number}": table for number, table in enumerate(_tensors(at.tables))}
    copies = {name: tensor.clone() for name, tensor in given.items()}
    unchanged("embed", own.embed(x, at))
    q_at, k_at = unchanged("relocate", own.relocate(at, at, x, x))
    unchanged("prepare_query", own.prepare_query(q, q_at))
    unchanged("prepare_key", own.prepare_key(k, k_at))
    unchanged("prepare_value", own.prepare_value(v, k_at))
    unchanged("restore_output", own.restore_output(v, q_at))
    unchanged("terms", own.terms(q_at, k_at, x, x))


def computes_the_same_twice(encoding: PositionEncoding) -> None:
    """Checks that in evaluation two calls, and in training two runs of one call, are equal to the last bit.

    Functions in terms run again in the backward pass, so one that draws or counts would have a wrong gradient.
    """
    layer = _layer(encoding).requires_grad_(False)
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    with torch.no_grad():
        first, second = layer(x, coordinates), layer(x, coordinates)
    assert torch.equal(first, second), "in evaluation a second call gives another output"
    if layer.in_attention is None:
        return
    layer.train()
    q, k, v = layer.project(x)
    call = make_call(q, k, v, encoding=layer.in_attention, mask=Causal(), **where(coordinates, x))
    first, second = spec.forward(spec.computed(call))[0], spec.forward(spec.computed(call))[0]
    assert torch.equal(first, second), "a function in its terms gives another result when it runs again"


def _tensors(part: Any) -> list[Tensor]:
    """The tensors of an encoding's tables."""
    if isinstance(part, Tensor):
        return [part]
    return [tensor for item in part for tensor in _tensors(item)] if isinstance(part, (tuple, list)) else []


def compiles_as_one_graph(encoding: PositionEncoding) -> None:
    """Checks numbers and gradients under torch.compile(fullgraph=True), and that all lengths share one graph.

    The length is marked as dynamic, so that it is a symbol in the first graph. The kernel is the one that "auto" takes
    in training; the checks of kernels cover the compilation of each kernel.
    """
    layer = _layer(encoding, dtype=torch.float32)
    _has_one_graph(layer, lambda x: layer(x, _span(layer, x.shape[1]), mask=Causal()))


def _has_one_graph(layer: Layer, run: Callable[[Tensor], Tensor]) -> None:
    """Checks the numbers, gradients and number of graphs of a function ``run`` of a layer's input."""
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend=count)
    names, leaves = zip(*layer.named_parameters(), strict=True)
    for n in (5, 6, 7, 11):
        x = _x(layer, 2, n)
        torch._dynamo.mark_dynamic(x, 1)
        actual, expected = compiled(x), run(x)
        assert_close("compiled", actual, expected, 1e-5)
        upstream = torch.linspace(-1, 1, actual.numel()).view_as(actual)
        both = (torch.autograd.grad(out, leaves, upstream, allow_unused=True) for out in (actual, expected))
        for name, a, b in zip(names, *both, strict=True):
            assert (a is None) == (b is None), f"compiled, {name} has no gradient"
            if a is not None and b is not None:
                assert_close(f"compiled gradient of {name}", a, b, 1e-4)
    assert len(graphs) == 1, f"{len(graphs)} graphs over 4 lengths"
    torch.compiler.reset()


def trains_with_dropout(encoding: PositionEncoding) -> None:
    """Checks that dropout differs from draw to draw and keeps the mean of the outputs."""
    layer = _layer(encoding)  # in eval mode, since random positions would spread the outputs too
    calls, rows = 20, 20  # draws must be independent between calls and between rows of a batch
    x, coordinates = _x(layer, 1, 6), _span(layer, 6)
    torch.manual_seed(0)
    with torch.no_grad():
        many = x.expand(rows, -1, -1)
        draws = torch.cat([layer(many, coordinates, dropout=0.2, kernel="reference") for _ in range(calls)])
        plain = layer(x, coordinates, kernel="reference")[0]
    spread = draws.std(0)
    assert spread.max() > 0, "dropout changes nothing"
    error = spread / math.sqrt(calls * rows)
    off = ((draws.mean(0) - plain).abs() / (error + 1e-9)).mean().item()
    assert off < 1.6, f"the mean under dropout is off by {off:.2f} standard errors"


def says_where_it_acts(encoding: PositionEncoding) -> None:
    """Checks that attention refuses an encoding that acts only on embeddings, with an error that names ``.embed``."""
    layer = _layer(encoding)
    if layer.in_attention is not None:
        return
    q, k, v = layer.project(_x(layer, 1, 4))
    said = "there is no error, it took an encoding that acts on embeddings alone"
    try:
        attention(q, k, v, encoding=layer.encoding)
    except HeadwayError as error:
        said = str(error)
    assert ".embed" in said, f"attention does not name .embed: {said}"


def measures_its_properties(encoding: PositionEncoding) -> None:
    """Checks that ``properties()`` gives four verdicts, and a number for each yes or no."""
    rows = list(_layer(encoding).encoding.properties())
    assert len(rows) == 4, f"{len(rows)} properties instead of 4"
    for row in rows:
        assert row.verdict in ("yes", "no", "not its job", "unknown"), f"{row.demand}: {row.verdict!r}"
        assert row.verdict == "not its job" or math.isfinite(row.number), f"{row.demand}: {row.number}"


def is_documented(encoding: PositionEncoding) -> None:
    """Checks that the class has a docstring and that its sizes are consistent."""
    assert (type(encoding).__doc__ or "").strip(), f"{type(encoding).__name__} has no docstring"
    sizes = CheckSizes.of(encoding)
    assert sizes.embed_dim % sizes.heads == 0, f"{sizes} do not fit: embed_dim is not a multiple of heads"


ENCODING_CHECKS: dict[str, Check] = by_name(
    reads_only_what_it_declares,
    matches_its_formula,
    changes_the_output,
    keeps_the_promise_in_every_dtype,
    embeds_far_away_as_near,
    every_gradient_is_there,
    decoding_equals_a_full_pass,
    packed_equals_separate,
    padded_equals_unpadded,
    the_future_leaves_the_past,
    rows_without_keys_are_zero,
    survives_saving,
    instances_share_nothing,
    places_anew_what_another_placed,
    tables_are_of_coordinates_alone,
    writes_into_nothing_it_is_given,
    computes_the_same_twice,
    compiles_as_one_graph,
    trains_with_dropout,
    says_where_it_acts,
    measures_its_properties,
    is_documented,
)
"""The checks of an encoding by name: functions that take an encoding and raise AssertionError if it fails."""
