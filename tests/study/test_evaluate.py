import torch
from torch import Tensor, nn

from headway.study.evaluate import doublings, overlapping_windows, predictions, separate_windows

TEXT = torch.arange(200, dtype=torch.uint8)


class Knows(nn.Module):
    """Gives the byte that follows a probability of one half, and the rest of 256 bytes what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        share = torch.full((*ids.shape, 256), 0.5 / 255)
        return share.scatter(-1, (ids[..., None] + 1) % 256, 0.5).log() + self.weight


def test_bits_are_logarithms_to_the_base_of_two() -> None:
    inputs, targets = separate_windows(TEXT, 10, 40, 8)
    bits, right = predictions(Knows(), inputs, targets)
    torch.testing.assert_close(bits, torch.ones(5, 8, dtype=torch.float64), rtol=0, atol=1e-5)
    assert right.all()
    assert not predictions(Knows(), inputs, targets + 1).right.any()


def test_separate_windows_cover_the_bytes_once() -> None:
    inputs, targets = separate_windows(TEXT, 10, 40, 8)
    assert targets.flatten().tolist() == list(range(11, 51))
    assert torch.equal(targets, inputs + 1)


def test_overlapping_windows_predict_the_same_bytes_at_every_length() -> None:
    for length in (1, 2, 3, 8, 20):
        inputs, targets = overlapping_windows(TEXT, 60, 40, length)
        asked = targets != -100
        assert targets[asked].tolist() == list(range(61, 101))
        assert inputs.shape[1] == length
        assert torch.equal(targets[asked], inputs[asked] + 1)
        # Each prediction has at least half a window before it.
        assert int(asked.nonzero()[:, 1].min()) == length // 2


def test_doublings_come_down_to_what_was_measured_before() -> None:
    assert doublings(128, 0) == [2, 8, 32, 64, 128]
    assert doublings(256, 128) == [256]
    assert doublings(1024, 128) == [256, 512, 1024]
    assert doublings(1, 0) == [1]


def test_evaluation_leaves_the_mode_as_it_was() -> None:
    model = Knows().train()
    predictions(model, *separate_windows(TEXT, 0, 16, 8))
    assert model.training
