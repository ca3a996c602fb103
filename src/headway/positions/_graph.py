"""The positions of the nodes of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import HeadwayError, need_positive


def graph_positions(adjacency: Tensor, axes: int = 8) -> Tensor:
    """Returns coordinates of the nodes of an undirected graph, by the eigenvectors of its Laplacian.

        L = D − A,   L·u_a = λ_a·u_a,   0 = λ₀ ≤ λ₁ ≤ …,   p[i,a] = √n·u_{a+1}[i]

    Nodes that many short paths connect are near each other. The first eigenvector, which is the same for all nodes of a
    connected graph, is left out. An eigenvector is determined up to its sign: here its largest entry is positive.
    If eigenvalues are equal, any basis of their eigenvectors is as good, so graphs with symmetries have several sets of
    coordinates. A graph with fewer than axes + 1 nodes gets zeros for the axes that it lacks.

    Args:
        adjacency: the weights of the edges, [n, n], symmetric and not below 0; 0 where there is none.
        axes: the number of coordinates, at least 1.

    Shape:
        Output: [n, axes] in float64

    Raises:
        HeadwayError: if adjacency is not dense, real, square and symmetric, has a weight that is below 0 or not finite,
            or axes is below 1.

    References:
        Reid et al. 2025 (WIRE).
    """
    need_positive(axes=axes)
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise HeadwayError(f"adjacency has shape {tuple(adjacency.shape)}: give [n, n]")
    if adjacency.layout != torch.strided or adjacency.is_complex():
        raise HeadwayError(
            f"adjacency is {adjacency.dtype} and {adjacency.layout}: give a dense tensor of real numbers"
        )
    weights = adjacency.double()
    if not torch.equal(weights, weights.T) or not bool(((weights >= 0) & (weights < torch.inf)).all()):
        raise HeadwayError(
            "adjacency is not symmetric, not finite or has weights below 0: give those of an undirected graph"
        )
    n = weights.shape[0]
    weights = weights - weights.diag().diag()  # an edge from a node to itself has no effect
    _, vectors = torch.linalg.eigh(weights.sum(0).diag() - weights)
    found = vectors[:, 1 : axes + 1] * n**0.5
    largest = found.gather(0, found.abs().argmax(0, keepdim=True)) if n else found
    found = found * torch.where(largest < 0, -1.0, 1.0)
    return torch.nn.functional.pad(found, (0, axes - found.shape[1]))
