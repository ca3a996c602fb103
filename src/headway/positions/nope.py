"""No position encoding."""

from ._base import PositionEncoding


class NoPE(PositionEncoding):
    """No positions at all: under a causal mask a model still learns where it is, without one it cannot.

        score[i,j] = s·⟨qᵢ, kⱼ⟩

    Cite: Haviv et al. 2022; Kazemnejad et al. 2023.
    """

    name = "none"
    axes = None

    citation = "haviv2022transformer kazemnejad2023impact"
    year = 2022
    evidence = "independent"
    extrapolates = True
