"""The relative positions of Gopher."""

from .transformer_xl import TransformerXL


class Gopher(TransformerXL):
    """Uses Transformer-XL's relative positions in a model without states of earlier segments.

        score[h,i,j] = s·( ⟨qᵢ + u_h, kⱼ⟩ + ⟨qᵢ + v_h, W_R,h·R(pᵢ − pⱼ)⟩ ),   R as in TransformerXL

    The paper chooses this scheme so that the model can read sequences longer than those of training. Tutorials often
    say instead that Gopher uses T5's learned scalar for each distance; that one is ``T5``. Shapes and errors are those
    of ``TransformerXL``.

    Args:
        embed_dim: D, the width of the embeddings, even.
        num_heads: the number of heads, at least 1.
        head_dim: the width of each head, at least 1.
        base: the base of the frequencies, above 1.

    References:
        Rae et al. 2021.
    """

    name = "gopher"
    citation = "rae2021scaling"
    year = 2021
    evidence = "independent"
    same_function_as = "transformer-xl"
