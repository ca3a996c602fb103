import torch

from headway.study.memory import Peak


def test_the_peak_sees_what_is_gone_again() -> None:
    peak = Peak("cpu")
    before = peak.bytes()
    held = torch.ones(64 * 2**20)
    del held
    assert peak.bytes() >= before + 200 * 2**20


def test_what_was_freed_before_does_not_hide_what_is_held_now() -> None:
    small = [torch.ones(2**14) for _ in range(2**11)]  # pieces that the allocator keeps when they are freed
    keep = small[::64]
    del small
    peak = Peak("cpu")
    before = peak.bytes()
    again = [torch.ones(2**14) for _ in range(2**11)]
    assert peak.bytes() >= before + 0.8 * sum(piece.nbytes for piece in again)
    del keep
