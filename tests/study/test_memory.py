import torch

from headway.study.memory import Peak


def test_the_peak_sees_what_is_gone_again() -> None:
    peak = Peak("cpu")
    before = peak.bytes()
    held = torch.ones(64 * 2**20)
    del held
    assert peak.bytes() >= before + 200 * 2**20
