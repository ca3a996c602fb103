"""The tokenizer of a checkpoint, as a Tokenizer of the package ``tokenizers``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.extras import need
from ..errors import HeadwayError
from ._files import _text, check_folder
from ._gguf import CONTROL, NORMAL, USER_DEFINED, read_metadata
from ._hub import local_path
from ._special_tokens import SETTINGS, add_tokens, read_settings, special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE, WORDS = "tokenizer.json", "vocab.txt"
OF_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Keys of tokenizer_config.json that change how BERT's normalizer works, and its attributes."""
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Values of tokenizer_class for which transformers reads only tokenizer.json."""

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "llama-bpe": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
}
"""Patterns that split text before bytes are merged, by tokenizer.ggml.pre, other than GPT-2's."""
GPT2 = ("gpt-2", "gpt2", "phi-2")
DIGITS = ("smollm", "starcoder")
"""Those that split as GPT-2 does, and each digit by itself."""


def tokenizer(path: str | Path) -> Tokenizer:
    """Loads the tokenizer of a model.

        ids = tokenizer("SmolLM2-135M").encode("The capital of France is").ids

    A folder's tokenizer.json is read with the tokens and settings, such as do_lower_case, that tokenizer_config.json
    adds to it, as in transformers; padding and truncation are switched off. A vocab.txt becomes a WordPiece tokenizer,
    which lower-cases unless tokenizer_config.json says otherwise. A GGUF file becomes a byte-pair tokenizer
    (tokenizer.ggml.model "gpt2"). Special tokens are added if the file adds them; ``encode(text,
    add_special_tokens=False)`` leaves them out.

    Args:
        path: the model's folder or .gguf file, or its id on the Hugging Face hub, as for ``headway.load``.

    Returns:
        A Tokenizer of the package ``tokenizers``.

    Raises:
        HeadwayError: if the folder has none of these files, a file is damaged, or the GGUF file has an unknown kind of
            tokenizer.

    References:
        Sennrich et al. 2016; Radford et al. 2019 (bytes); Wu et al. 2016 (WordPiece).
    """
    tokenizers = need("tokenizers", "reading a tokenizer", "checkpoints")
    path = local_path(path, lambda folder: (folder / FILE).is_file() or (folder / WORDS).is_file())
    if path.suffix.lower() == ".gguf":
        return _of_pairs(path, read_metadata(path))
    check_folder(path)
    settings = read_settings(path)
    if (path / FILE).is_file():
        try:
            loaded = tokenizers.Tokenizer.from_str(_text(path / FILE))
        except HeadwayError:
            raise
        except Exception as error:  # the package raises Exception itself
            raise HeadwayError(f"{path / FILE} cannot be read: {error}") from error
        loaded.no_padding()  # files of sentence encoders pad every text to one length
        loaded.no_truncation()
        if settings.get("tokenizer_class") not in GENERAL:
            _set(loaded, path, settings)
    elif (path / WORDS).is_file():
        loaded = _of_words(path, settings)
    else:
        raise HeadwayError(f"{path} has neither {FILE} nor {WORDS}: give a model's folder, or a .gguf file")
    add_tokens(loaded, path, settings)
    return loaded


def _set(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Applies the settings in which tokenizer_config.json overrides tokenizer.json, as transformers does."""
    from tokenizers import normalizers, pre_tokenizers

    # each is a copy, which is put back
    normalizer, cutter = tokenizer.normalizer, tokenizer.pre_tokenizer
    try:
        if isinstance(normalizer, normalizers.BertNormalizer):
            for key in OF_NORMALIZER.keys() & settings.keys():
                setattr(normalizer, OF_NORMALIZER[key], settings[key])
            tokenizer.normalizer = normalizer
        if isinstance(cutter, pre_tokenizers.ByteLevel) and "add_prefix_space" in settings:
            cutter.add_prefix_space = settings["add_prefix_space"]
            tokenizer.pre_tokenizer = cutter
    except TypeError:
        raise HeadwayError(
            f"{', '.join(OF_NORMALIZER)} and add_prefix_space of {folder / SETTINGS} must be true or false"
        ) from None


def _of_words(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    lines = _text(folder / WORDS).split("\n")
    words = {word.rstrip("\r"): number for number, word in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    named = special_tokens(folder, settings)
    special = {role: named.get(f"{role}_token") or f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    missing = [word for role, word in special.items() if role in ("unk", "cls", "sep") and word not in words]
    if missing:
        raise HeadwayError(f"{folder / WORDS} has no {', '.join(missing)}: give the vocabulary of a BERT")
    tokenizer = Tokenizer(models.WordPiece(words, unk_token=special["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([word for word in special.values() if word in words])
    cls, sep = special["cls"], special["sep"]
    tokenizer.post_processor = processors.BertProcessing((sep, words[sep]), (cls, words[cls]))
    return tokenizer


def _of_pairs(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    model, before = get("model"), get("pre", "gpt-2")
    if model != "gpt2":
        raise HeadwayError(f"tokenizer.ggml.model is {model!r}: headway reads 'gpt2', byte pairs; {_remedy(path)}")
    tokens, merges = get("tokens", ()), get("merges", ())
    kinds = get("token_type", (NORMAL,) * len(tokens))
    if not tokens or len(kinds) != len(tokens) or not all(isinstance(token, str) for token in tokens):
        raise HeadwayError(f"{path} has {len(tokens)} tokens of {len(kinds)} types: {_remedy(path)}")
    ids = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    lost = [pair for pair in pairs if not {*pair, "".join(pair)} <= ids.keys()]
    if lost:
        raise HeadwayError(f"{path} merges {' and '.join(lost[0])}, which are not tokens: {_remedy(path)}")
    # Llama 3 keeps a word that is a token, whatever the merges would give
    bpe: Any = models.BPE(ids, pairs, ignore_merges=before == "llama-bpe")
    tokenizer = Tokenizer(bpe)
    _cut(tokenizer, before, path)
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        of_kind = [token for token, its in zip(tokens, kinds, strict=True) if its == kind]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(
            [AddedToken(token, special=special, normalized=False) for token in of_kind]
        )
    first = _added(tokens, get("bos_token_id"), get("add_bos_token", before == "llama-bpe"), path)
    last = _added(tokens, get("eos_token_id"), get("add_eos_token", False), path)
    if first or last:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)],
            special_tokens=[(token, ids[token]) for token in {*first, *last}],
        )
    return tokenizer


def _cut(tokenizer: Tokenizer, before: str, path: Path) -> None:
    """Sets how text is split into pieces. Each piece is merged separately."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    if before in GPT2:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif before in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif before in SPLITS:
        pieces = pre_tokenizers.Split(Regex(SPLITS[before]), behavior="isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
        if before == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    else:
        known = ", ".join((*GPT2, *DIGITS, *SPLITS))
        raise HeadwayError(f"tokenizer.ggml.pre is {before!r}: headway knows {known}; {_remedy(path)}")


def _added(tokens: tuple[str, ...], number: Any, wanted: Any, path: Path) -> list[str]:
    """A list of the token that is added to a text, or an empty list."""
    if not wanted or number is None:
        return []
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise HeadwayError(f"{path} adds token {number} of {len(tokens)}: {_remedy(path)}")
    return [tokens[number]]


def _remedy(path: Path) -> str:
    return f"put the model's {FILE} into a folder and read that instead of {path.name}"
