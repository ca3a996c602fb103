"""The table of encodings: one import for each, in the order of the table, by the name of the class."""

from ._base import PositionEncoding

# isort: off
# added to the embeddings, or nothing at all
from ._encodings.nope import NoPE as NoPE
from ._encodings.index import IntegerIndex as IntegerIndex
from ._encodings.unit_index import UnitIndex as UnitIndex
from ._encodings.sinusoidal import Sinusoidal as Sinusoidal
from ._encodings.learned import Learned as Learned
from ._encodings.abacus import Abacus as Abacus
from ._encodings.position_coupling import PositionCoupling as PositionCoupling
from ._encodings.seqpe import SeqPE as SeqPE

# relative positions, in the scores
from ._encodings.shaw import Shaw as Shaw
from ._encodings.music_transformer import MusicTransformer as MusicTransformer
from ._encodings.transformer_xl import TransformerXL as TransformerXL
from ._encodings.gopher import Gopher as Gopher
from ._encodings.deberta import DeBERTa as DeBERTa
from ._encodings.tupe import TUPE as TUPE
from ._encodings.t5 import T5 as T5
from ._encodings.alibi import ALiBi as ALiBi
from ._encodings.kerple_log import KERPLELog as KERPLELog
from ._encodings.kerple_power import KERPLEPower as KERPLEPower
from ._encodings.sandwich import Sandwich as Sandwich
from ._encodings.fire import FIRE as FIRE
from ._encodings.dynamic_position_bias import DynamicPositionBias as DynamicPositionBias
from ._encodings.swin import Swin as Swin
from ._encodings.swin_v2 import SwinV2 as SwinV2
from ._encodings.irpe import IRPE as IRPE

# rotations of queries and keys
from ._encodings.rope import RoPE as RoPE
from ._encodings.partial_rope import PartialRoPE as PartialRoPE
from ._encodings.p_rope import ProportionalRoPE as ProportionalRoPE
from ._encodings.hope import HoPE as HoPE
from ._encodings.clipped_rope import ClippedRoPE as ClippedRoPE
from ._encodings.resonance_rope import ResonanceRoPE as ResonanceRoPE
from ._encodings.fope import FoPE as FoPE
from ._encodings.lerope import LeRoPE as LeRoPE
from ._encodings.rope_pp import RoPEPP as RoPEPP
from ._encodings.xpos import XPos as XPos
from ._encodings.pope import PoPE as PoPE
from ._encodings.axial_rope import AxialRoPE as AxialRoPE
from ._encodings.mixed_rope import MixedRoPE as MixedRoPE
from ._encodings.harope import HARoPE as HARoPE
from ._encodings.dinov3_rope import DINOv3RoPE as DINOv3RoPE
from ._encodings.m_rope import MRoPE as MRoPE
from ._encodings.interleaved_m_rope import InterleavedMRoPE as InterleavedMRoPE
from ._encodings.multimodal_rope import MultimodalRoPE as MultimodalRoPE
from ._encodings.liere import LieRE as LieRE
from ._encodings.comrope import ComRoPE as ComRoPE
from ._encodings.wire import WIRE as WIRE
from ._encodings.cayley_string import CayleySTRING as CayleySTRING
from ._encodings.circulant_string import CirculantSTRING as CirculantSTRING
from ._encodings.rerope import ReRoPE as ReRoPE
from ._encodings.grape_m import GRAPEM as GRAPEM

# … of values
from ._encodings.rotary_values import RotaryValues as RotaryValues

# … for longer sequences
from ._encodings.position_interpolation import PositionInterpolation as PositionInterpolation
from ._encodings.dynamic_interpolation import DynamicInterpolation as DynamicInterpolation
from ._encodings.ntk_aware import NTKAware as NTKAware
from ._encodings.dynamic_ntk import DynamicNTK as DynamicNTK
from ._encodings.ntk_by_parts import NTKByParts as NTKByParts
from ._encodings.yarn import YaRN as YaRN
from ._encodings.longrope import LongRoPE as LongRoPE
from ._encodings.llama3 import Llama3 as Llama3

# factors of scores, and sinks
from ._encodings.log_n import LogN as LogN
from ._encodings.ssmax import SSMax as SSMax
from ._encodings.llama4_temperature import Llama4Temperature as Llama4Temperature
from ._encodings.nope_scaling import NoPEScaling as NoPEScaling
from ._encodings.learned_sink import LearnedSink as LearnedSink
from ._encodings.softmax_one import SoftmaxOne as SoftmaxOne

# dependent on content
from ._encodings.cope import CoPE as CoPE
from ._encodings.forgetting import ForgettingGate as ForgettingGate
from ._encodings.cable import Cable as Cable
from ._encodings.path import PaTH as PaTH
from ._encodings.path_fox import PaTHFoX as PaTHFoX
from ._encodings.wall import Wall as Wall
from ._encodings.stick_breaking import StickBreaking as StickBreaking
from ._encodings.tra import TRA as TRA
from ._encodings.dape import DAPE as DAPE
from ._encodings.dape_v2 import DAPEv2 as DAPEv2
from ._encodings.selective_rope import SelectiveRoPE as SelectiveRoPE
from ._encodings.carope import CARoPE as CARoPE
from ._encodings.repo_rope import RePoRoPE as RePoRoPE
from ._encodings.grape_m_contextual import GRAPEMContextual as GRAPEMContextual
from ._encodings.grape_a import GRAPEA as GRAPEA
from ._encodings.grape_ap import GRAPEAP as GRAPEAP
from ._encodings.relative_projection import RelativeProjection as RelativeProjection

# changes of coordinates, for another encoding
from ._encodings.interpolated import Interpolated as Interpolated
from ._encodings.repo import RePo as RePo
from ._encodings.randomized import RandomizedPositions as RandomizedPositions
from ._encodings.random_float import RandomFloat as RandomFloat
from ._encodings.cape import CAPE as CAPE
from ._encodings.shape import SHAPE as SHAPE
from ._encodings.streaming import StreamingLLM as StreamingLLM
# isort: on

ENCODINGS: dict[str, type[PositionEncoding]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, PositionEncoding) and cls.name
}
"""The encodings by name, in the order of the imports above."""
