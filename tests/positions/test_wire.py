"""WIRE: coordinates of the nodes of a graph, and rotations by them."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.errors import HeadwayError
from headway.positions import WIRE, graph_positions


def path(n: int) -> Tensor:
    """Nodes in a row."""
    return torch.diag(torch.ones(n - 1), 1) + torch.diag(torch.ones(n - 1), -1)


def test_the_coordinates_of_a_path_are_cosines() -> None:
    """Eigenvector a of a path is cos(π·a·(i + 1/2)/n)."""
    n, steps = 7, torch.arange(7, dtype=torch.float64) + 0.5
    found = graph_positions(path(n), 3)
    for a in range(3):
        wave = math.sqrt(2) * torch.cos(math.pi * (a + 1) * steps / n)
        wave = wave if wave[wave.abs().argmax()] > 0 else -wave
        assert min((found[:, a] - wave).abs().max(), (found[:, a] + wave).abs().max()) < 1e-10


def test_the_distance_of_coordinates_is_that_of_the_resistance() -> None:
    """With all axes, each divided by √λ, squared distances are n times the effective resistance: 2 steps of a path."""
    adjacency = path(6).double()
    values = torch.linalg.eigvalsh(adjacency.sum(0).diag() - adjacency)[1:]
    scaled = graph_positions(adjacency, 5) / values.sqrt()
    assert (scaled[1] - scaled[3]).square().sum().item() == pytest.approx(6 * 2)


def test_the_numbering_of_nodes_has_no_effect() -> None:
    torch.manual_seed(0)
    weights = torch.rand(9, 9)
    adjacency, order = weights + weights.T, torch.randperm(9)
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    encoding = WIRE(2, 8, axes=4).double()

    def out(adjacency: Tensor, *x: Tensor) -> Tensor:
        at = graph_positions(adjacency, 4)[None]
        return attention(*x, encoding=encoding, q_positions=at, k_positions=at)

    moved = out(adjacency[order][:, order], *(x[:, :, order] for x in (q, k, v)))
    torch.testing.assert_close(moved, out(adjacency, q, k, v)[:, :, order], atol=1e-9, rtol=0)


def test_a_small_graph_and_loops() -> None:
    assert graph_positions(path(2), 3).abs().tolist() == [[pytest.approx(1), 0, 0], [pytest.approx(1), 0, 0]]
    torch.testing.assert_close(graph_positions(path(5) + torch.eye(5), 2), graph_positions(path(5), 2))


@pytest.mark.parametrize(
    ("adjacency", "said"),
    [
        (torch.zeros(2, 3), r"adjacency has shape \(2, 3\): give \[n, n\]"),
        (torch.tensor([[0.0, 1.0], [0.5, 0.0]]), "adjacency is not symmetric"),
        (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), "has weights below 0"),
        (torch.tensor([[0.0, torch.inf], [torch.inf, 0.0]]), "adjacency is not symmetric, not finite"),
        (torch.eye(2).to_sparse(), "adjacency is torch.float32 and torch.sparse_coo: give a dense tensor"),
        (torch.eye(2).to(torch.complex64), "adjacency is torch.complex64 and torch.strided: give a dense tensor"),
    ],
)
def test_wrong_graphs_are_named(adjacency: Tensor, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        graph_positions(adjacency)


def test_wrong_gain() -> None:
    with pytest.raises(HeadwayError, match=r"gain is 0\.0: no pair would rotate"):
        WIRE(2, 8, gain=0.0)
