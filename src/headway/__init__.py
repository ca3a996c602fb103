"""Multi-head attention for PyTorch that takes any position encoding.

A tour::

    import torch, headway as hw

    q, k, v = (torch.randn(2, 8, 100, 64) for _ in range(3))    # [batch, heads, tokens, head_dim]
    rope = hw.encoding("rope", head_dim=64)                     # help(hw.positions) lists the others
    causal = hw.masks.Causal()                                  # masks combine with & and |
    out = hw.attention(q, k, v, encoding=rope, mask=causal)     # [2, 8, 100, 64]
    print(hw.explain(q, k, v, encoding=rope, mask=causal))      # which kernel computes it, and why

    layer = hw.nn.MultiHeadAttention(512, 8, encoding=rope)     # a layer; hw.models has whole models
    with hw.capture(layer, statistics=("entropy",)) as seen:    # what each head attends to
        layer(torch.randn(2, 100, 512))
    print(seen.table())

``load`` and ``save`` read and write published models, ``inspection`` measures what heads do, ``study`` compares
encodings on a text, ``testing`` checks your own encoding, ``vectors`` makes vectors of words, ``integrations`` brings
headway's attention into other libraries, and ``parallel`` divides a model among processes. ``tune`` verifies and
measures the kernels on your machine. ``headway --help`` shows the commands.
"""

import signal as _signal
import sys as _sys
from importlib import import_module as _import_module
from os import environ as _environ
from os.path import basename as _basename
from threading import current_thread as _current_thread
from threading import main_thread as _main_thread
from typing import TYPE_CHECKING, Any

from ._common.version import __version__ as __version__

_is_command = (
    _basename("".join(_sys.orig_argv[-len(_sys.argv) :][:1])) == "headway"  # or python -m headway
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    and _current_thread() is _main_thread()
)
if _is_command:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C while torch is imported ends it without a traceback

if "_HEADWAY_COMPLETE" not in _environ:  # a shell that completes a command line does not wait for torch
    from . import masks, models, nn, positions, terms
    from .attention import attention as attention
    from .attention import attention_steps as attention_steps
    from .attention import attention_weights as attention_weights
    from .attention import attention_with_lse as attention_with_lse
    from .attention import explain as explain
    from .attention import varlen_attention as varlen_attention
    from .coordinates import Coordinates as Coordinates
    from .errors import HeadwayError as HeadwayError
    from .positions import citation as citation
    from .positions import encoding as encoding

if _is_command:
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)

if TYPE_CHECKING:
    from . import checkpoints, inspection, integrations, parallel, study, testing, tuning, vectors
    from .checkpoints import load, save
    from .inspection import ablate, attention_statistics, capture
    from .tuning import tune

__all__ = [
    "attention",
    "attention_with_lse",
    "attention_weights",
    "attention_steps",
    "varlen_attention",
    "attention_statistics",
    "capture",
    "ablate",
    "explain",
    "tune",
    "encoding",
    "citation",
    "load",
    "save",
    "positions",
    "masks",
    "terms",
    "nn",
    "models",
    "checkpoints",
    "inspection",
    "integrations",
    "parallel",
    "vectors",
    "study",
    "testing",
    "tuning",
    "Coordinates",
    "HeadwayError",
    "__version__",
]

_ON_DEMAND = ("checkpoints", "inspection", "integrations", "parallel", "vectors", "study", "testing", "tuning")
_FROM = {
    "load": "checkpoints",
    "save": "checkpoints",
    "attention_statistics": "inspection",
    "capture": "inspection",
    "ablate": "inspection",
    "tune": "tuning",
}
_ELSEWHERE = {
    "check_encoding": "testing",
    "compare": "study",
    "conversation": "checkpoints",
    "head_roles": "inspection",
    "swap_attention": "integrations.torch",
    "tokenizer": "checkpoints",
}
"""Names that users look for here, and the modules that have them, which this one does not import."""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return _import_module(f"{__name__}.{name}")
    if name in _FROM:
        return getattr(_import_module(f"{__name__}.{_FROM[name]}"), name)
    where = next((room.__name__ for room in (nn, models, masks, terms, positions) if name in vars(room)), None)
    where = f"{__name__}.{_ELSEWHERE[name]}" if name in _ELSEWHERE else where
    raise AttributeError(f"module 'headway' has no attribute {name!r}" + (f": it is {where}.{name}" if where else ""))


def __dir__() -> list[str]:
    return __all__
