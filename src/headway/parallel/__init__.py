"""Runs a model in several processes of torch.distributed that share its tokens or heads, and computes the costs."""

from ..heads import HeadShard as HeadShard
from ._attention import Explanation as Explanation
from ._attention import attention as attention
from ._attention import explain as explain
from ._context import Context as Context
from ._context import context as context
from ._explain_model import ModelExplanation as ModelExplanation
from ._explain_model import explain_model as explain_model
from ._plan import MethodCost as MethodCost
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._shards import Shards as Shards
from ._tensor import HeadwiseParallel as HeadwiseParallel
from ._tensor import tensor_plan as tensor_plan
from .methods import METHODS as METHODS

__all__ = [
    "attention",
    "explain",
    "Explanation",
    "METHODS",
    "Shards",
    "context",
    "Context",
    "explain_model",
    "ModelExplanation",
    "plan",
    "Plan",
    "MethodCost",
    "tensor_plan",
    "HeadwiseParallel",
    "HeadShard",
]


def __dir__() -> list[str]:
    return __all__
