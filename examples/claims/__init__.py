"""Every claim of the five source documents, by subject; `make claims` writes docs/claims.md and its Chinese twin."""

from . import heads, order, places, recurrence, relative, scores, sizes, translation, words
from ._base import DOCUMENTS as DOCUMENTS
from ._base import Claim as Claim
from ._base import Subject as Subject
from ._base import Verdict as Verdict
from ._base import numbers as numbers
from ._base import page as page

SUBJECTS: tuple[Subject, ...] = (
    scores.SUBJECT,
    order.SUBJECT,
    places.SUBJECT,
    relative.SUBJECT,
    heads.SUBJECT,
    recurrence.SUBJECT,
    translation.SUBJECT,
    words.SUBJECT,
    sizes.SUBJECT,
)
