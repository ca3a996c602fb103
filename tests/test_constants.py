"""What is made once: it serves a later call of any kind, and nothing that looks on is handed to another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import headway as hw
from headway import constants
from headway.constants import constant
from headway.positions._formulas import numbers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    constants._kept.made.clear()
    yield
    constants._kept.made.clear()


def test_it_is_made_once() -> None:
    made = constant(numbers, (1.0, 2.0), device=CPU)
    assert made.tolist() == [1.0, 2.0]
    assert constant(numbers, (1.0, 2.0), device=CPU) is made
    assert constant(numbers, (1.0, 3.0), device=CPU) is not made


def test_what_is_made_on_the_default_device_is_nobody_elses() -> None:
    encoding = hw.encoding("alibi", num_heads=4)
    with torch.device("meta"):
        assert encoding.slopes().is_meta
        assert not encoding.slopes(CPU).is_meta
    assert not encoding.slopes().is_meta


def test_nothing_is_kept_on_another_device() -> None:
    meta = torch.device("meta")
    assert constant(numbers, (1.0,), device=meta) is not constant(numbers, (1.0,), device=meta)
    q = torch.empty(1, 2, 4, 8, device=meta)
    hw.attention(q, q, q, encoding=hw.encoding("rope", head_dim=8), kernel="reference")
    assert not constants._kept.made


def test_a_mode_sees_tensors_of_its_own() -> None:
    with FakeTensorMode():
        assert isinstance(constant(numbers, (4.0,), device=CPU), FakeTensor)
    made = constant(numbers, (4.0,), device=CPU)
    assert not isinstance(made, FakeTensor)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(constant(numbers, (4.0,), device=CPU), FakeTensor)


@pytest.mark.parametrize("name", ["none", "alibi", "t5", "rope", "transformer-xl"])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_what_inference_makes_serves_training(name: str, kernel: str) -> None:
    encoding = None if name == "none" else hw.encoding(name, num_heads=4, head_dim=8, embed_dim=32)
    q, k, v = (torch.randn(1, 4, 10, 8) for _ in range(3))
    arguments = {"encoding": encoding, "mask": hw.masks.Causal(), "kernel": kernel}
    with torch.inference_mode():
        expected = hw.attention(q, k, v, **arguments)
    q.requires_grad_()
    out = hw.attention(q, k, v, **arguments)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()


def test_frequencies_that_are_given_out_are_nobody_elses() -> None:
    encoding = hw.encoding("rope", head_dim=4)
    at = hw.Coordinates.span(3, device=CPU)
    encoding.frequencies(at).zero_()
    assert encoding.frequencies(at).tolist() == [1.0, 0.01]


def test_slopes_that_are_given_out_are_nobody_elses() -> None:
    encoding = hw.encoding("alibi", num_heads=4)
    encoding.slopes(CPU).zero_()
    assert encoding.slopes(CPU).tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]


@pytest.mark.parametrize("name", ["none", "t5", "rope"])
def test_what_somebody_writes_into_is_made_anew(name: str) -> None:
    """Of whatever is kept: the next call is right."""
    encoding = None if name == "none" else hw.encoding(name, num_heads=2, head_dim=8, embed_dim=16)
    q = torch.randn(1, 2, 5, 8)
    arguments = {"encoding": encoding, "mask": hw.masks.Causal()}
    expected = hw.attention(q, q, q, **arguments)
    for made, watched, _ in list(constants._kept.made.values()):
        with torch.inference_mode():
            (made.position if isinstance(made, hw.Coordinates) else watched[-1]).add_(7)
    assert torch.equal(hw.attention(q, q, q, **arguments), expected)


def test_each_thread_has_its_own() -> None:
    made = constant(numbers, (1.0, 2.0), device=CPU)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(constant, numbers, (1.0, 2.0), device=CPU).result()
    assert theirs is not made
    theirs.data.zero_()
    assert constant(numbers, (1.0, 2.0), device=CPU).tolist() == [1.0, 2.0]


def test_only_so_much_is_kept() -> None:
    for number in range(constants.MOST + 5):
        constant(numbers, (float(number),), device=CPU)
    assert len(constants._kept.made) == constants.MOST
