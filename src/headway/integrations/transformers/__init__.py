"""headway's attention inside the models of Hugging Face transformers.

``register()`` makes "headway" an attention implementation, with its mask function, for every model whose attention goes
through ``ALL_ATTENTION_FUNCTIONS``. The mask function passes its mask to the attention function as a tensor
[batch, 1, n, m] without storage, which holds a mask of ``headway.masks`` and the coordinates of the tokens. It is a
tensor because models slice, move and test their masks. An operation that it does not support converts it to the plain
boolean mask; adding it to scores raises HeadwayError. A model whose attention never goes through the interface raises
an error when it is made. A model that supports only eager attention gets the floats that eager adds to scores.
"""

from ...sharing import libraries
from ._attention import attend
from ._bias_table import use_bias_table
from ._library import NAME, TABLE, import_transformers
from ._mask_function import make_mask
from ._models import refuse_early
from ._sharing import Transformers

__all__ = ["register", "use_bias_table"]


def __dir__() -> list[str]:
    return __all__


def register() -> None:
    """Makes "headway" an attention implementation of transformers.

    Afterwards ``from_pretrained(…, attn_implementation="headway")`` and ``model.set_attn_implementation("headway")``
    select it, in training and in ``generate``. A second call has no effect.

    The results differ from those of eager attention in two cases. A query that may attend to no key, which is padding,
    gives zeros, where eager gives the mean of all values. The weights that ``output_attentions`` asks for are those
    before dropout.

    A model whose attention does not go through the interface, such as BLOOM, raises HeadwayError when it is made; for
    this, ``PreTrainedModel.get_correct_attn_implementation`` is wrapped.

    Raises:
        HeadwayError: if transformers is not installed or too old.
    """
    transformers = import_transformers()
    # without the second, transformers would build no mask for an implementation whose name it does not know
    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    transformers.AttentionMaskInterface.register(TABLE, make_mask)
    refuse_early(transformers.PreTrainedModel)
    libraries["ALL_ATTENTION_FUNCTIONS"] = Transformers()
