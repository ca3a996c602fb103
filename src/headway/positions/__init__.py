"""Position encodings: ways for attention to know where a token stands, one file for each."""

from ._base import EVIDENCE as EVIDENCE
from ._base import KINDS as KINDS
from ._base import Pair as Pair
from ._base import PositionEncoding as PositionEncoding
from ._compose import Compose as Compose
from ._huggingface import from_rope_parameters as from_rope_parameters
from ._huggingface import to_rope_parameters as to_rope_parameters
from ._naming import citation as citation
from ._naming import encoding as encoding
from ._naming import encoding_name as encoding_name
from ._properties import Properties as Properties
from ._properties import Property as Property
from ._recipes import RECIPES as RECIPES
from ._recipes import Recipe as Recipe
from ._recipes import drop_positions as drop_positions
from .abacus import Abacus as Abacus
from .alibi import ALiBi as ALiBi
from .axial_rope import AxialRoPE as AxialRoPE
from .cape import CAPE as CAPE
from .carope import CARoPE as CARoPE
from .cayley_string import CayleySTRING as CayleySTRING
from .circulant_string import CirculantSTRING as CirculantSTRING
from .comrope import ComRoPE as ComRoPE
from .cope import CoPE as CoPE
from .dape import DAPE as DAPE
from .dape_v2 import DAPEv2 as DAPEv2
from .deberta import DeBERTa as DeBERTa
from .dinov3_rope import DINOv3RoPE as DINOv3RoPE
from .dynamic_interpolation import DynamicInterpolation as DynamicInterpolation
from .dynamic_ntk import DynamicNTK as DynamicNTK
from .dynamic_position_bias import DynamicPositionBias as DynamicPositionBias
from .fire import FIRE as FIRE
from .forgetting import ForgettingGate as ForgettingGate
from .gopher import Gopher as Gopher
from .grape_a import GRAPEA as GRAPEA
from .grape_ap import GRAPEAP as GRAPEAP
from .grape_m import GRAPEM as GRAPEM
from .grape_m_contextual import GRAPEMContextual as GRAPEMContextual
from .hope import HoPE as HoPE
from .index import IntegerIndex as IntegerIndex
from .interleaved_m_rope import InterleavedMRoPE as InterleavedMRoPE
from .interpolated import Interpolated as Interpolated
from .kerple_log import KERPLELog as KERPLELog
from .kerple_power import KERPLEPower as KERPLEPower
from .learned import Learned as Learned
from .learned_sink import LearnedSink as LearnedSink
from .liere import LieRE as LieRE
from .llama3 import Llama3 as Llama3
from .llama4_temperature import Llama4Temperature as Llama4Temperature
from .log_n import LogN as LogN
from .longrope import LongRoPE as LongRoPE
from .m_rope import MRoPE as MRoPE
from .mixed_rope import MixedRoPE as MixedRoPE
from .music_transformer import MusicTransformer as MusicTransformer
from .nope import NoPE as NoPE
from .nope_scaling import NoPEScaling as NoPEScaling
from .ntk_aware import NTKAware as NTKAware
from .ntk_by_parts import NTKByParts as NTKByParts
from .p_rope import ProportionalRoPE as ProportionalRoPE
from .partial_rope import PartialRoPE as PartialRoPE
from .path import PaTH as PaTH
from .path_fox import PaTHFoX as PaTHFoX
from .pope import PoPE as PoPE
from .position_coupling import PositionCoupling as PositionCoupling
from .position_interpolation import PositionInterpolation as PositionInterpolation
from .random_float import RandomFloat as RandomFloat
from .randomized import RandomizedPositions as RandomizedPositions
from .relative_projection import RelativeProjection as RelativeProjection
from .repo import RePo as RePo
from .repo_rope import RePoRoPE as RePoRoPE
from .rerope import ReRoPE as ReRoPE
from .rope import RoPE as RoPE
from .rotary_values import RotaryValues as RotaryValues
from .sandwich import Sandwich as Sandwich
from .selective_rope import SelectiveRoPE as SelectiveRoPE
from .seqpe import SeqPE as SeqPE
from .shape import SHAPE as SHAPE
from .shaw import Shaw as Shaw
from .sinusoidal import Sinusoidal as Sinusoidal
from .softmax_one import SoftmaxOne as SoftmaxOne
from .ssmax import SSMax as SSMax
from .stick_breaking import StickBreaking as StickBreaking
from .streaming import StreamingLLM as StreamingLLM
from .swin import Swin as Swin
from .swin_v2 import SwinV2 as SwinV2
from .t5 import T5 as T5
from .transformer_xl import TransformerXL as TransformerXL
from .tupe import TUPE as TUPE
from .unit_index import UnitIndex as UnitIndex
from .xpos import XPos as XPos
from .yarn import YaRN as YaRN

ENCODINGS: dict[str, type[PositionEncoding]] = {
    # added to the embeddings, or nothing at all
    "none": NoPE,
    "index": IntegerIndex,
    "unit-index": UnitIndex,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "abacus": Abacus,
    "position-coupling": PositionCoupling,
    "seqpe": SeqPE,
    # relative to the query, in the scores
    "shaw": Shaw,
    "music-transformer": MusicTransformer,
    "transformer-xl": TransformerXL,
    "gopher": Gopher,
    "deberta": DeBERTa,
    "tupe": TUPE,
    "t5": T5,
    "alibi": ALiBi,
    "kerple-log": KERPLELog,
    "kerple-power": KERPLEPower,
    "sandwich": Sandwich,
    "fire": FIRE,
    "dynamic-position-bias": DynamicPositionBias,
    "swin": Swin,
    "swin-v2": SwinV2,
    # turns of queries and keys
    "rope": RoPE,
    "partial-rope": PartialRoPE,
    "p-rope": ProportionalRoPE,
    "hope": HoPE,
    "xpos": XPos,
    "pope": PoPE,
    "axial-rope": AxialRoPE,
    "mixed-rope": MixedRoPE,
    "dinov3-rope": DINOv3RoPE,
    "m-rope": MRoPE,
    "interleaved-m-rope": InterleavedMRoPE,
    "liere": LieRE,
    "comrope": ComRoPE,
    "cayley-string": CayleySTRING,
    "circulant-string": CirculantSTRING,
    "rerope": ReRoPE,
    "grape-m": GRAPEM,
    # … and of values
    "rotary-values": RotaryValues,
    # … which reach further
    "position-interpolation": PositionInterpolation,
    "dynamic-interpolation": DynamicInterpolation,
    "ntk-aware": NTKAware,
    "dynamic-ntk": DynamicNTK,
    "ntk-by-parts": NTKByParts,
    "yarn": YaRN,
    "longrope": LongRoPE,
    "llama3": Llama3,
    # sharper or softer scores
    "log-n": LogN,
    "ssmax": SSMax,
    "llama4-temperature": Llama4Temperature,
    "nope-scaling": NoPEScaling,
    "sink": LearnedSink,
    "softmax-one": SoftmaxOne,
    # what content decides
    "cope": CoPE,
    "forgetting": ForgettingGate,
    "path": PaTH,
    "path-fox": PaTHFoX,
    "stick-breaking": StickBreaking,
    "dape": DAPE,
    "dape-v2": DAPEv2,
    "selective-rope": SelectiveRoPE,
    "carope": CARoPE,
    "repo-rope": RePoRoPE,
    "grape-m-contextual": GRAPEMContextual,
    "grape-a": GRAPEA,
    "grape-ap": GRAPEAP,
    "relative-projection": RelativeProjection,
    # where tokens stand, for another encoding to read
    "interpolated": Interpolated,
    "repo": RePo,
    "randomized": RandomizedPositions,
    "random-float": RandomFloat,
    "cape": CAPE,
    "shape": SHAPE,
    "streaming-llm": StreamingLLM,
}

__all__ = [
    "ENCODINGS",
    "KINDS",
    "EVIDENCE",
    "PositionEncoding",
    "Pair",
    "encoding",
    "encoding_name",
    "citation",
    "Compose",
    "Properties",
    "Property",
    "from_rope_parameters",
    "to_rope_parameters",
    "RECIPES",
    "Recipe",
    "drop_positions",
    "NoPE",
    "IntegerIndex",
    "UnitIndex",
    "Sinusoidal",
    "Learned",
    "Abacus",
    "PositionCoupling",
    "SeqPE",
    "Shaw",
    "MusicTransformer",
    "TransformerXL",
    "Gopher",
    "DeBERTa",
    "TUPE",
    "T5",
    "ALiBi",
    "KERPLELog",
    "KERPLEPower",
    "Sandwich",
    "FIRE",
    "DynamicPositionBias",
    "Swin",
    "SwinV2",
    "RoPE",
    "PartialRoPE",
    "ProportionalRoPE",
    "HoPE",
    "XPos",
    "PoPE",
    "AxialRoPE",
    "MixedRoPE",
    "DINOv3RoPE",
    "MRoPE",
    "InterleavedMRoPE",
    "LieRE",
    "ComRoPE",
    "CayleySTRING",
    "CirculantSTRING",
    "ReRoPE",
    "GRAPEM",
    "RotaryValues",
    "PositionInterpolation",
    "DynamicInterpolation",
    "NTKAware",
    "DynamicNTK",
    "NTKByParts",
    "YaRN",
    "LongRoPE",
    "Llama3",
    "LogN",
    "SSMax",
    "Llama4Temperature",
    "NoPEScaling",
    "LearnedSink",
    "SoftmaxOne",
    "CoPE",
    "ForgettingGate",
    "PaTH",
    "PaTHFoX",
    "StickBreaking",
    "DAPE",
    "DAPEv2",
    "SelectiveRoPE",
    "CARoPE",
    "RePoRoPE",
    "GRAPEMContextual",
    "GRAPEA",
    "GRAPEAP",
    "RelativeProjection",
    "Interpolated",
    "RePo",
    "RandomizedPositions",
    "RandomFloat",
    "CAPE",
    "SHAPE",
    "StreamingLLM",
]
