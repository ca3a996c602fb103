"""A text becomes a device, or an error that says what is missing."""

import pytest
import torch

from headway import HeadwayError
from headway._common.devices import device_named


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_named("auto") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto") == "cpu"
    assert device_named("cpu") == "cpu"


@pytest.mark.parametrize(
    ("name", "built", "gpus", "said"),
    [
        ("cuda", None, 0, r"this torch \(.*\) has no CUDA: give cpu, or install a torch with CUDA, see https://"),
        ("cuda:1", None, 0, "has no CUDA"),
        ("cuda", "12.8", 0, "torch finds no GPU: give cpu"),
        ("cuda:3", "12.8", 2, "there are 2 GPUs: give cuda:0 to cuda:1"),
        ("cud", None, 0, "there is no device 'cud': did you mean 'cuda'?"),
        ("gpu", None, 0, "there is no device 'gpu': torch calls a GPU cuda"),
        ("cpu:x", None, 0, "device is 'cpu:x', which cannot be used here"),
    ],
)
def test_what_cannot_be(name: str, built: str | None, gpus: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(HeadwayError, match=said):
        device_named(name)
