"""The error that headway raises for wrong input, and the checks that several modules share."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from operator import index
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HeadwayError(ValueError):
    """Raised for an input that headway cannot work with.

    The message is one line: what is wrong, the values, the remedy.
    """


class WrongCallError(HeadwayError, TypeError):
    """Raised for a call with an argument that the function does not have, or without one that it needs."""


PADDING = "give mask=headway.masks.Padding(lengths), with the number of real tokens of each row"
MASK = "give mask=, one of headway.masks or a boolean tensor that is True where a query may attend to a key"
INSTEAD = {
    "alibi_slopes": "give encoding=headway.encoding('alibi', num_heads=…)",
    "attention_mask": PADDING,
    "attn_mask": MASK,
    "average_attn_weights": "leave it out: headway.attention_weights computes the weights of each head",
    "causal": "give mask=headway.masks.Causal()",
    "d_model": "give embed_dim=",
    "dim": "give embed_dim=",
    "dim_feedforward": "give feed_forward_dim=",
    "dropout_p": "give dropout=",
    "enable_gqa": "leave it out: k and v may have fewer heads than q",
    "hidden_size": "give embed_dim=",
    "intermediate_size": "give feed_forward_dim=",
    "is_causal": "give mask=headway.masks.Causal()",
    "key_padding_mask": PADDING,
    "max_seqlen_k": "leave it out",
    "max_seqlen_q": "leave it out",
    "max_length": "give it to an encoding that has a table, such as headway.encoding('learned', …)",
    "need_weights": "leave it out: headway.attention_weights computes weights",
    "softcap": "give soft_cap=",
    "softmax_scale": "give scale=",
    "src_key_padding_mask": PADDING,
    "src_mask": MASK,
    "tgt_mask": MASK,
    "window_size": "give mask=headway.masks.Window(left, right)",
}
"""What to give in place of arguments that torch and transformers have under other names."""


def wrong_argument(
    call: str, name: str, known: Iterable[str], instead: Mapping[str, str] = INSTEAD, example: str = ""
) -> WrongCallError:
    """Returns the error for an argument that a function does not have.

    Args:
        call: the name of the function, or its constructor.
        name: the argument.
        known: the arguments that it has.
        instead: names that users try, with what to give in their place.
        example: a right call.
    """
    names = [one for one in known if one != "self"]
    near = nearest(name, names)
    advice = f"did you mean {near[0]}=?" if near else example or f"it takes {', '.join(names)}"
    advice = instead.get(name, advice)
    return WrongCallError(f"{call}: there is no argument {name!r}: {advice}")


def refuses_others(function: T) -> T:
    """Hides ``**others`` in the signature of a function, which catches in it the arguments that it does not have.

    The function raises ``wrong_argument`` for them. A decorator that checked each call would cost microseconds.

    Args:
        function: the function.
    """
    shown = inspect.signature(function)  # type: ignore[arg-type]
    kept = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = shown.replace(parameters=kept)  # type: ignore[attr-defined]
    return function


def refuse(call: str, function: Callable[..., object], others: Mapping[str, object]) -> NoReturn:
    """Raises the error for the first of the arguments that a function of ``refuses_others`` does not have.

    Args:
        call: the name of the function, or the class of a module.
        function: the function.
        others: the arguments.
    """
    raise wrong_argument(call, next(iter(others)), inspect.signature(function).parameters)


def right_call(example: str, **instead: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator that turns a wrong call of a function or constructor into an error that shows a right call.

    Args:
        example: a right call.
        **instead: names of arguments that users try and the function lacks, with what to give in their place.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                extra = next((name for name in kwargs if name not in signature.parameters), None)
                said, advice = str(error), f"give {example}"
                if extra is not None:
                    function_name, known = example.partition("(")[0], signature.parameters
                    raise wrong_argument(function_name, extra, known, INSTEAD | instead, advice) from None
                raise WrongCallError(f"{example.partition('(')[0]}: {said}: {advice}") from None
            return function(*args, **kwargs)

        return checked

    return decorate


def need_positive(**sizes: float) -> None:
    """Raises HeadwayError unless each size is a number of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, str):
            raise HeadwayError(f"{name} is {value!r}: give a whole number of at least 1")
        if value < 1:
            raise HeadwayError(f"{name} is {value}: give at least 1")


def need_whole(**sizes: object) -> None:
    """Raises HeadwayError unless each size is a whole number, of Python or of another library."""
    for name, value in sizes.items():
        try:
            index(value)  # type: ignore[arg-type]
        except TypeError:
            raise HeadwayError(f"{name} is {value!r}: give a whole number") from None


def need_finite(**values: float | None) -> None:
    """Raises HeadwayError for a number that is NaN or infinite; None is accepted."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise HeadwayError(f"{name} is {value}: give a finite number")


def need_lengths(lengths: Sequence[float]) -> None:
    """Raises HeadwayError if one of the lengths of rows or documents is negative."""
    if min(lengths, default=0) < 0:
        raise HeadwayError(f"lengths are {list(lengths)!s:.60}: give numbers of tokens, from 0 up")


FEW = 15
"""The most names that a message lists."""


def nearest(name: object, known: Iterable[str]) -> list[str]:
    """Returns the known names that are spelt much like a name, at most three; case and "_" for "-" do not count."""
    spelt = {_plain(one): one for one in known}
    return [spelt[near] for near in difflib.get_close_matches(_plain(str(name)), spelt, 3, 0.55)]


def unknown(what: str, name: object, known: Iterable[str], see: str = "") -> HeadwayError:
    """Returns the error for a name that is not among those that are known.

    The message has the nearest names, or all if they are few and none is near.

    Args:
        what: the kind of thing, such as "encoding".
        name: the name.
        known: those that are known.
        see: a command, page or object that has all of them.
    """
    names = list(known)
    near = [repr(one) for one in nearest(name, names)]
    if near:
        meant = f"did you mean {' or '.join([', '.join(near[:-1]), near[-1]] if near[:-1] else near)}?"
        meant += f" {see} has all" if see else ""
    elif see and len(names) > FEW:
        meant = f"{see} has all {len(names)}"
    else:
        meant = f"give one of {', '.join(names)}"
    return HeadwayError(f"there is no {what} {name!r}: {meant}")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
