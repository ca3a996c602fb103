"""No position encoding."""

from .._base import PositionEncoding


class NoPE(PositionEncoding):
    """Applies no position encoding: a causal mask still lets a model learn positions; without one it cannot.

        score[i,j] = s·⟨qᵢ, kⱼ⟩

    References:
        Haviv et al. 2022; Kazemnejad et al. 2023.
    """

    name = "none"
    axes = None

    citation = "haviv2022transformer kazemnejad2023impact"
    year = 2022
    evidence = "independent"
    extrapolates = True
