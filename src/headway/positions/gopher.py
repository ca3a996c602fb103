"""The relative positions of Gopher."""

from .transformer_xl import TransformerXL


class Gopher(TransformerXL):
    """Transformer-XL's relative positions in a model that keeps no states of earlier segments.

        score[h,i,j] = s·( ⟨qᵢ + u_h, kⱼ⟩ + ⟨qᵢ + v_h, W_R,h·R(pᵢ − pⱼ)⟩ ),   R as in ``TransformerXL``

    Shapes and errors: those of ``TransformerXL``. The paper takes this scheme so that sequences longer than those of
    training can be read. Tutorials often say instead that Gopher took over T5's learned scalar for each distance:
    that one is ``T5``.
    Cite: Rae et al. 2021.
    """

    name = "gopher"
    citation = "rae2021scaling"
    year = 2021
    evidence = "independent"
    same_function_as = "transformer-xl"
