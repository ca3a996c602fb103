"""What heads do: roles with definition, baseline and interval, by name."""

from ._base import Batch as Batch
from ._base import Evidence as Evidence
from ._base import Role as Role
from ._results import Finding as Finding
from ._results import HeadRoles as HeadRoles
from ._run import batches as batches
from ._run import head_roles as head_roles
from ._run import longest_text as longest_text
from ._table import ROLES as ROLES
