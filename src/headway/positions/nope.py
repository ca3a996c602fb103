"""No position encoding."""

from ._base import PositionEncoding


class NoPE(PositionEncoding):
    """No positions at all: under a causal mask a model still learns where it is, without one it cannot.

        score[i,j] = s·⟨qᵢ, kⱼ⟩

    Cite: Haviv et al. 2022; Kazemnejad et al. 2023.
    """

    citation = """@inproceedings{haviv2022transformer,
  title     = {Transformer Language Models without Positional Encodings Still Learn Positional Information},
  author    = {Haviv, Adi and Ram, Ori and Press, Ofir and Izsak, Peter and Levy, Omer},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2022},
  year      = {2022},
  eprint    = {2203.16634},
  archivePrefix = {arXiv},
}
@inproceedings{kazemnejad2023impact,
  title     = {The Impact of Positional Encoding on Length Generalization in Transformers},
  author    = {Kazemnejad, Amirhossein and Padhi, Inkit and Natesan Ramamurthy, Karthikeyan and Das, Payel and
               Reddy, Siva},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {36},
  year      = {2023},
  eprint    = {2305.19466},
  archivePrefix = {arXiv},
}"""
