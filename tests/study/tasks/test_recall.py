import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.study.protocol import FixedProtocol
from headway.study.tasks import Recall
from headway.study.tasks.recall import KEYS, VALUES


class Remembers(nn.Module):
    """Looks for the card of the key that is asked, up to a distance."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.reach = reach

    def forward(self, ids: Tensor) -> Tensor:
        answer = torch.zeros_like(ids)
        for row, tokens in enumerate(ids.tolist()):
            cards: dict[int, tuple[int, int]] = {}
            for place, token in enumerate(tokens):
                if token < KEYS * VALUES:
                    cards[token // VALUES] = (place, token % VALUES)
                else:
                    where, value = cards[token - KEYS * VALUES]
                    answer[row, place] = value if place - where <= self.reach else VALUES
        return F.one_hot(answer, Recall.vocabulary).float() + self.weight


def test_every_question_is_answered_by_a_card_before_it() -> None:
    measured = Recall().measure(Remembers(reach=10**6), 64)
    assert measured["recall"] == 1
    assert set(measured["recall_by_distance"].values()) == {1.0}


def test_distances_are_told_apart() -> None:
    by_distance = Recall().measure(Remembers(reach=16), 64)["recall_by_distance"]
    assert by_distance == {"1": 1.0, "2": 1.0, "4": 1.0, "8": 1.0, "16": 1.0, "32": 0.0, "64": 0.0}


def test_each_key_is_shown_once(protocol: FixedProtocol) -> None:
    inputs, targets = Recall().step(protocol.recall, 0, 0)
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        cards = [token // VALUES for token in row if token < KEYS * VALUES]
        assert sorted(cards) == list(range(KEYS))
        assert all((answer == -100) == (token < KEYS * VALUES) for token, answer in zip(row, wanted, strict=True))


def test_windows_shorter_than_the_cards_work() -> None:
    assert Recall().measure(Remembers(reach=9), 4)["recall"] == 1
