"""The small models that come with headway: reading their files, and making them."""

from ._files import Pretrained as Pretrained
from ._files import pretrained as pretrained
from ._make import TEXTS as TEXTS
from ._make import held_out_texts as held_out_texts
from ._make import pretrain as pretrain

__all__ = ["TEXTS", "Pretrained", "held_out_texts", "pretrain", "pretrained"]
