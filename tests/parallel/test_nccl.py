"""Exchanges under the rules of nccl, by gloo: orders, tensors and buffers; and the devices of groups."""

from __future__ import annotations

from typing import Any

import nccl_cases as cases
import pytest
import torch
from processes import Pool

from headway import HeadwayError
from headway.parallel import METHODS
from headway.parallel._group import Group

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-10


def far(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in found.items() if isinstance(one, str) or not one < CLOSE}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", ["contiguous", "zigzag"])
@pytest.mark.parametrize("method", METHODS)
def test_calls_of_two_processes(pool: Pool, method: str, shape: str) -> None:
    for found in pool.run(2, cases.calls, method, shape):
        assert far(found) == {}


@pytest.mark.slow
def test_a_ring_of_four_processes(pool: Pool) -> None:
    """Keys and gradients of several steps are under way at once."""
    for found in pool.run(4, cases.calls, "ring", "zigzag"):
        assert far(found) == {}


def test_models(pool: Pool) -> None:
    for found in pool.run(2, cases.models):
        assert far(found) == {}


def test_only_the_first_call_of_a_kind_is_compared(pool: Pool) -> None:
    for batches, said in pool.run(2, cases.agreements):
        assert batches == [3, 2, 2]  # words, keys, values
        assert "disagree on scale: 1.0 on rank 0; 2.0 on rank 1" in said


class Backend:
    """A backend of some name."""

    def __init__(self, name: str) -> None:
        self.name = lambda: name


class Processes:
    """A process group with backends for kinds of devices."""

    def __init__(self, **backends: str) -> None:
        self._device_types = [torch.device(kind) for kind in backends]
        self.backends = backends

    def _get_backend(self, device: torch.device) -> Backend:
        if device.type not in self.backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return Backend(self.backends[device.type])


def group_of(monkeypatch: pytest.MonkeyPatch, **backends: str) -> Group:
    made = Group(None)
    made._find = lambda: Processes(**backends)  # type: ignore[assignment, return-value]
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    config = ",".join(f"{kind}:{name}" for kind, name in backends.items())
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda _: config)
    return made


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ({"cpu": "gloo", "cuda": "gloo"}, None),
        ({"cpu": "gloo", "cuda": "nccl"}, None),  # as init_device_mesh("cuda") makes it
        ({"cuda": "nccl"}, torch.device("cuda", 3)),
        ({"xpu": "xccl"}, torch.device("xpu", 3)),
    ],
)
def test_small_numbers_travel_on_a_device_of_the_group(
    monkeypatch: pytest.MonkeyPatch, backends: dict[str, str], device: torch.device | None
) -> None:
    assert group_of(monkeypatch, **backends).device == device


@pytest.mark.parametrize(
    ("backends", "device", "said"),
    [
        ({"cpu": "gloo", "cuda": "gloo"}, "cuda", "cuda:gloo, which sends no tensors of cuda: give one with nccl"),
        ({"cuda": "nccl"}, "cpu", "cuda:nccl, which sends no tensors of cpu: move the call to a GPU"),
    ],
)  # fmt: skip
def test_tensors_that_a_group_cannot_send_are_refused(
    monkeypatch: pytest.MonkeyPatch, backends: dict[str, str], device: str, said: str
) -> None:
    with pytest.raises(HeadwayError, match=said):
        group_of(monkeypatch, **backends).need_exchanges(torch.device(device))


@pytest.mark.parametrize("backends", [{"cpu": "gloo", "cuda": "nccl"}, {"cuda": "nccl"}, {"cuda": "fake"}])
def test_tensors_that_a_group_can_send(monkeypatch: pytest.MonkeyPatch, backends: dict[str, str]) -> None:
    group_of(monkeypatch, **backends).need_exchanges(torch.device("cuda"))
