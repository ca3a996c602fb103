"""The roles, one line for each: its import is its row."""

from ._base import Role

# isort: off
from .induction import Induction as Induction
from .duplicate_token import DuplicateToken as DuplicateToken
from .syntactic import Syntactic as Syntactic
from .coreferential import Coreferential as Coreferential
from .rare_word import RareWord as RareWord
from .positional import Positional as Positional
from .sink import Sink as Sink
from .delimiter import Delimiter as Delimiter
from .block import Block as Block
from .local import Local as Local
from .broad import Broad as Broad
# isort: on

ROLES: dict[str, type[Role]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Role) and cls is not Role
}
"""The roles by name, from the most to the least specific. The first of a head's roles in this order is primary."""
