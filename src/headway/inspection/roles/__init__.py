"""Roles of heads, each with a definition, a baseline and an interval, by name."""

from types import ModuleType as _ModuleType

from ._base import Batch as Batch
from ._base import Evidence as Evidence
from ._base import Role as Role
from ._finding import Finding as Finding
from ._results import HeadRoles as HeadRoles
from ._run import batches as batches
from ._run import head_roles as head_roles
from ._run import longest_text as longest_text
from ._table import *  # noqa: F403 (the class of each role)
from ._table import ROLES as ROLES

# not assigned to plainly, since type checkers would take it for the whole list
globals()["__all__"] = [
    name for name, thing in globals().items() if not (name.startswith("_") or isinstance(thing, _ModuleType))
]


def __dir__() -> list[str]:
    return globals()["__all__"]
