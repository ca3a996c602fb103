"""Parts that a layer computes around attention: gates, value residuals, differences of attention maps."""

from ._base import FirstValues as FirstValues
from ._base import LayerSizes as LayerSizes
from ._base import Part as Part
from ._base import PartLike as PartLike
from ._base import make_part as make_part
from ._base import parts_of as parts_of
from .differential import DifferentialAttention as DifferentialAttention
from .exclusive import ExclusiveSelfAttention as ExclusiveSelfAttention
from .output_gate import ElementGate as ElementGate
from .output_gate import HeadGate as HeadGate
from .value_residual import ValueResidual as ValueResidual

PARTS = {
    "head-gate": HeadGate,
    "element-gate": ElementGate,
    "exclusive": ExclusiveSelfAttention,
    "value-residual": ValueResidual,
    "differential": DifferentialAttention,
}
"""The parts of a layer that can be given by name."""
