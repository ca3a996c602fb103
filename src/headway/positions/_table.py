"""The table of encodings: one import for each, in the order of the table, by the name of the class."""

from ._base import PositionEncoding

# isort: off
# added to the embeddings, or nothing at all
from .nope import NoPE as NoPE
from .index import IntegerIndex as IntegerIndex
from .unit_index import UnitIndex as UnitIndex
from .sinusoidal import Sinusoidal as Sinusoidal
from .learned import Learned as Learned
from .abacus import Abacus as Abacus
from .position_coupling import PositionCoupling as PositionCoupling
from .seqpe import SeqPE as SeqPE

# relative positions, in the scores
from .shaw import Shaw as Shaw
from .music_transformer import MusicTransformer as MusicTransformer
from .transformer_xl import TransformerXL as TransformerXL
from .gopher import Gopher as Gopher
from .deberta import DeBERTa as DeBERTa
from .tupe import TUPE as TUPE
from .t5 import T5 as T5
from .alibi import ALiBi as ALiBi
from .kerple_log import KERPLELog as KERPLELog
from .kerple_power import KERPLEPower as KERPLEPower
from .sandwich import Sandwich as Sandwich
from .fire import FIRE as FIRE
from .dynamic_position_bias import DynamicPositionBias as DynamicPositionBias
from .swin import Swin as Swin
from .swin_v2 import SwinV2 as SwinV2

# rotations of queries and keys
from .rope import RoPE as RoPE
from .partial_rope import PartialRoPE as PartialRoPE
from .p_rope import ProportionalRoPE as ProportionalRoPE
from .hope import HoPE as HoPE
from .xpos import XPos as XPos
from .pope import PoPE as PoPE
from .axial_rope import AxialRoPE as AxialRoPE
from .mixed_rope import MixedRoPE as MixedRoPE
from .dinov3_rope import DINOv3RoPE as DINOv3RoPE
from .m_rope import MRoPE as MRoPE
from .interleaved_m_rope import InterleavedMRoPE as InterleavedMRoPE
from .liere import LieRE as LieRE
from .comrope import ComRoPE as ComRoPE
from .cayley_string import CayleySTRING as CayleySTRING
from .circulant_string import CirculantSTRING as CirculantSTRING
from .rerope import ReRoPE as ReRoPE
from .grape_m import GRAPEM as GRAPEM

# … of values
from .rotary_values import RotaryValues as RotaryValues

# … for longer sequences
from .position_interpolation import PositionInterpolation as PositionInterpolation
from .dynamic_interpolation import DynamicInterpolation as DynamicInterpolation
from .ntk_aware import NTKAware as NTKAware
from .dynamic_ntk import DynamicNTK as DynamicNTK
from .ntk_by_parts import NTKByParts as NTKByParts
from .yarn import YaRN as YaRN
from .longrope import LongRoPE as LongRoPE
from .llama3 import Llama3 as Llama3

# factors of scores, and sinks
from .log_n import LogN as LogN
from .ssmax import SSMax as SSMax
from .llama4_temperature import Llama4Temperature as Llama4Temperature
from .nope_scaling import NoPEScaling as NoPEScaling
from .learned_sink import LearnedSink as LearnedSink
from .softmax_one import SoftmaxOne as SoftmaxOne

# dependent on content
from .cope import CoPE as CoPE
from .forgetting import ForgettingGate as ForgettingGate
from .path import PaTH as PaTH
from .path_fox import PaTHFoX as PaTHFoX
from .stick_breaking import StickBreaking as StickBreaking
from .dape import DAPE as DAPE
from .dape_v2 import DAPEv2 as DAPEv2
from .selective_rope import SelectiveRoPE as SelectiveRoPE
from .carope import CARoPE as CARoPE
from .repo_rope import RePoRoPE as RePoRoPE
from .grape_m_contextual import GRAPEMContextual as GRAPEMContextual
from .grape_a import GRAPEA as GRAPEA
from .grape_ap import GRAPEAP as GRAPEAP
from .relative_projection import RelativeProjection as RelativeProjection

# changes of coordinates, for another encoding
from .interpolated import Interpolated as Interpolated
from .repo import RePo as RePo
from .randomized import RandomizedPositions as RandomizedPositions
from .random_float import RandomFloat as RandomFloat
from .cape import CAPE as CAPE
from .shape import SHAPE as SHAPE
from .streaming import StreamingLLM as StreamingLLM
# isort: on

ENCODINGS: dict[str, type[PositionEncoding]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, PositionEncoding) and cls.name
}
"""The encodings by name, in the order of the imports above."""
