"""The table of families."""

from ._base import Family
from .albert import ALBERT as ALBERT
from .bart import BART as BART
from .bert import BERT as BERT
from .bloom import BLOOM as BLOOM
from .deberta import DeBERTa as DeBERTa
from .deberta_v2 import DeBERTaV2 as DeBERTaV2
from .distilbert import DistilBERT as DistilBERT
from .electra import ELECTRA as ELECTRA
from .falcon import Falcon as Falcon
from .gemma3 import Gemma3 as Gemma3
from .gpt2 import GPT2 as GPT2
from .gpt_neox import GPTNeoX as GPTNeoX
from .gptj import GPTJ as GPTJ
from .llama import LLaMA as LLaMA
from .marian import Marian as Marian
from .modernbert import ModernBERT as ModernBERT
from .mpnet import MPNet as MPNet
from .mpt import MPT as MPT
from .opt import OPT as OPT
from .phi import Phi as Phi
from .roberta import RoBERTa as RoBERTa
from .roformer import RoFormer as RoFormer
from .t5 import T5 as T5
from .t5 import T5Encoder as T5Encoder
from .transfo_xl import TransfoXL as TransfoXL
from .vit import ViT as ViT
from .vits import VITS as VITS
from .whisper import Whisper as Whisper
from .xlnet import XLNet as XLNet

FAMILIES: dict[str, type[Family]] = {
    "bert": BERT,
    "roberta": RoBERTa,
    "albert": ALBERT,
    "distilbert": DistilBERT,
    "electra": ELECTRA,
    "mpnet": MPNet,
    "roformer": RoFormer,
    "modernbert": ModernBERT,
    "deberta": DeBERTa,
    "deberta_v2": DeBERTaV2,
    "xlnet": XLNet,
    "transfo_xl": TransfoXL,
    "vit": ViT,
    "vits": VITS,
    "gpt2": GPT2,
    "opt": OPT,
    "gpt_neox": GPTNeoX,
    "gptj": GPTJ,
    "phi": Phi,
    "bloom": BLOOM,
    "mpt": MPT,
    "falcon": Falcon,
    "llama": LLaMA,
    "gemma3": Gemma3,
    "t5": T5,
    "t5_encoder": T5Encoder,
    "bart": BART,
    "marian": Marian,
    "whisper": Whisper,
}
"""The families by name, one for each file of this folder."""

ARCHITECTURES: dict[str, type[Family]] = {
    architecture: family for family in FAMILIES.values() for architecture in family.architectures
}
"""The names under "architectures" in a config.json, and the family that reads each."""
