"""The special tokens of a folder, and the tokens added to its tokenizer, by the rules of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HeadwayError
from ._files import _json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

SETTINGS, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that every tokenizer may have."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_settings(folder: Path) -> dict[str, Any]:
    """The folder's tokenizer_config.json, an empty dictionary if there is none.

    In older folders the tokens in special_tokens_map.json come before its own.
    """
    settings = _optional(folder / SETTINGS)
    return settings if "added_tokens_decoder" in settings else {**settings, **_optional(folder / SPECIAL)}


def special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens by their names, such as "bos_token", including names that only one model has."""
    return {name: _spelled(folder, name, token) for name, token in _named(settings).items()}


def add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Adds to a tokenizer the tokens that other files name and its own file lacks, or has with other flags."""
    try:
        wanted = _added(folder, settings)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise HeadwayError(
            f"the added tokens in {SETTINGS} or {ADDED} of {folder} are damaged: give the files of one model"
        ) from None
    present = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    new = [token for token in wanted if repr(token) not in present]
    known = {token.content for token in [*tokenizer.get_added_tokens_decoder().values(), *new]}
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    for name, token in [*_named(settings).items(), *(("special token", one) for one in _list(extra))]:
        if (text := _spelled(folder, name, token)) not in known:
            known.add(text)
            new.append(_token({**(token if isinstance(token, Mapping) else {}), "content": text, "special": True}))
    tokenizer.add_tokens(new)


def _optional(path: Path) -> dict[str, Any]:
    return _json(path) if path.is_file() else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens by their names, as texts or as objects with a text."""
    extra = settings.get("extra_special_tokens")
    held = {**settings, **(extra if isinstance(extra, Mapping) else {})}
    tokens = {name: held[name] for name in NAMED if held.get(name) is not None}
    # tokens of one model, such as image_token; add_bos_token is a switch
    own = (name for name in held if name.endswith("_token") and name not in NAMED)
    return tokens | {name: held[name] for name in own if isinstance(held[name], (str, Mapping))}


def _spelled(folder: Path, name: str, token: Any) -> str:
    """The text of a special token, which is the text itself or an object with it."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise HeadwayError(f"the {name} of {folder} is {token!r:.60}: give its text")
    return text


def _added(folder: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    """The tokens that tokenizer_config.json adds, or in older folders added_tokens.json."""
    if (listed := settings.get("added_tokens_decoder")) is not None:
        return [_token(listed[number]) for number in sorted(listed, key=int)]
    special = {*special_tokens(folder, settings).values()}
    ids = _optional(folder / ADDED)
    return [_token({"content": text, "special": text in special}) for text in sorted(ids, key=ids.__getitem__)]


def _token(said: Mapping[str, Any]) -> AddedToken:
    from tokenizers import AddedToken

    flags = {flag: bool(said[flag]) for flag in FLAGS if flag in said}
    return AddedToken(said["content"], **{"normalized": not flags.get("special", False), **flags})
