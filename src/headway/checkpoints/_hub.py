"""Models by their ids on the Hugging Face hub: the package ``huggingface_hub`` keeps their files in its cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.extras import need
from .._common.files import given_path
from ..errors import HeadwayError

READ = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
"""The files of a repository that are downloaded: neither pickles nor code are among them."""

NAME = r"[A-Za-z0-9_](?:[\w.-]*\w)?"
PATH = r"[\w+][\w.+-]*(?:/[\w+][\w.+-]*)*"
ID = re.compile(rf"({NAME}/{NAME})(?:@({PATH}))?(?::({PATH}))?|({NAME}/{NAME})/({PATH}\.gguf)", re.ASCII)
"""owner/name, owner/name@revision, each with :type or :file.gguf; or owner/name/file.gguf."""

FILES = {
    *(".bin", ".conll", ".conllu", ".csv", ".git", ".gz", ".json", ".md", ".npy", ".pt", ".safetensors", ".tsv"),
    *(".txt", ".vec", ".zip"),
}
"""Endings of file names: "folder/name" with such an ending is not an id of a model."""


@dataclass(frozen=True)
class HubModel:
    """A model on the hub, in a repository "owner/name"."""

    repository: str
    revision: str | None = None
    """A branch, tag or commit; the default branch if None."""
    gguf: str | None = None
    """A GGUF file of the repository, or the type of one, such as "Q4_K_M"; None for safetensors."""

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "") + (f":{self.gguf}" if self.gguf else "")


def hub_model(given: str | Path) -> HubModel | None:
    """Returns the model of an id; None for a path that exists, or that cannot be an id."""
    if not isinstance(given, str) or (match := ID.fullmatch(given)) is None or os.path.exists(given):
        return None
    repository, revision, gguf, its, file = match.groups()
    if its is not None:
        repository, gguf = its, file
    if ".." in repository or "--" in repository or Path(repository).suffix.lower() in FILES:
        return None
    return HubModel(repository, revision, gguf)


def model_name(given: str | Path) -> str:
    """Returns the name of a model for reports: that of its folder, file or repository."""
    model = hub_model(given)
    if model is None:
        path = given_path(given)
        return path.stem if path.suffix.lower() == ".gguf" else path.resolve().name
    if model.gguf is not None and model.gguf.endswith(".gguf"):
        return Path(model.gguf).stem
    return model.repository.partition("/")[2] + (f":{model.gguf}" if model.gguf else "")


def local_path(given: str | Path, complete: Callable[[Path], bool]) -> Path:
    """Returns the folder or file of a model on this machine.

    A path that exists is returned unchanged. A folder with one GGUF file and no config.json gives that file. Files of
    an id are taken from the cache of ``huggingface_hub``, without network. They are downloaded unless ``complete`` says
    that a folder has all files that the caller needs.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise HeadwayError(
            f"path is {given!r}: give a folder, a .gguf file, or an id on the Hugging Face hub, 'owner/name'"
        )
    model = hub_model(given)
    if model is None:
        return _of_one_file(given_path(given))
    hub: Any = need("huggingface_hub", f"{given} is not a file or folder here; as an id on the hub it", "checkpoints")
    try:
        place = _fetched(hub, model, offline=True)
        if place.is_file() or complete(place):
            return place
    except HeadwayError:
        raise
    except Exception:  # it is not in the cache, or not all of it
        pass
    try:
        place = _fetched(hub, model, offline=False)
    except HeadwayError:
        raise
    except Exception as error:  # from the package, its HTTP client or the disk
        partial = getattr(error, "snapshot_path", None)  # the files in the cache, if the hub cannot be reached
        if partial is None or not complete(Path(partial)):
            raise _why(model, error) from None  # the traceback of the original fills pages and says nothing more
        place = Path(partial)
    if not place.is_file() and not complete(place):
        raise _incomplete(hub, model, place)
    return place


def _of_one_file(path: Path) -> Path:
    """The one GGUF file of a folder that has no config.json, else the path itself."""
    if not os.path.isdir(path) or (path / "config.json").exists():
        return path
    models = sorted(path.glob("*.gguf"))
    if len(models) > 1:
        names = ", ".join(file.name for file in models)
        raise HeadwayError(f"{path} has {len(models)} models, {names}: give one of these files")
    return models[0] if models else path


def _fetched(hub: Any, model: HubModel, *, offline: bool) -> Path:
    """The folder or GGUF file in the cache, once it is there. Raises the errors of the package."""
    of: dict[str, Any] = {"repo_id": model.repository, "revision": model.revision}
    if model.gguf is None:
        return Path(hub.snapshot_download(**of, allow_patterns=list(READ), local_files_only=offline))
    file = model.gguf
    if not file.endswith(".gguf"):
        if offline:
            # only files in the cache; the repository is not asked for others
            folder = Path(hub.snapshot_download(**of, allow_patterns=[], local_files_only=True))
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
        else:
            names = _files_of(hub, model)
        fitting = [name for name in names if re.search(rf"(^|[-._/]){re.escape(file)}\.gguf$", name, re.IGNORECASE)]
        if not fitting and offline:
            raise FileNotFoundError(f"no {file} in the cache")
        if len(fitting) != 1:
            files = fitting or [name for name in names if name.endswith(".gguf")] or ["no GGUF file"]
            raise HeadwayError(
                f"{len(fitting) or 'no'} GGUF files of {model.repository} are of type {file}: it has "
                f"{', '.join(files)}; give one as {model.repository}:FILE.gguf"
            )
        file = fitting[0]
    elif not offline:
        _files_of(hub, model)  # fails at once without a network; a download would retry for half a minute
    return Path(hub.hf_hub_download(**of, filename=file, local_files_only=offline))


def _files_of(hub: Any, model: HubModel) -> list[str]:
    """The names of the files of a repository."""
    return [file.rfilename for file in hub.model_info(model.repository, revision=model.revision, timeout=10).siblings]


def _why(model: HubModel, error: Exception) -> HeadwayError:
    """The error for a failed download."""
    from huggingface_hub import constants, errors

    page = f"https://huggingface.co/{model.repository}"
    if isinstance(error, errors.GatedRepoError):
        return HeadwayError(
            f"{model.repository} is a gated model: accept its terms at {page}, then run `hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HeadwayError(f"{model.repository} has no revision {model.revision}: {page}/commits/main lists them")
    if isinstance(error, errors.RepositoryNotFoundError):
        return HeadwayError(
            f"there is no file or folder {model} here, and the Hugging Face hub has no model {model.repository}: check "
            "the spelling; if the model is private, run `hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return HeadwayError(f"{model.repository} has no file {model.gguf}: {page}/tree/main lists its files")
    if isinstance(error, errors.HFValidationError):
        return HeadwayError(
            f"there is no file or folder {model} here, and it is not an id on the Hugging Face hub: {error}"
        )
    said = " ".join(str(error).split())
    options = f" --revision {model.revision}" if model.revision else ""
    if model.gguf is not None:
        options += f" --include '*{model.gguf}{'' if model.gguf.endswith('.gguf') else '.gguf'}'"
    if constants.HF_HUB_OFFLINE:
        said = "HF_HUB_OFFLINE is set"
    elif isinstance(error, errors.LocalEntryNotFoundError) or _of_the_network(error):
        said = "the hub cannot be reached"
    return HeadwayError(
        f"{model} is neither a file or folder here nor in the cache of Hugging Face, and cannot be downloaded "
        f"({said}): run `hf download {model.repository}{options}` where there is a network, or give a "
        f"{'folder' if model.gguf is None else '.gguf file'}"
    )


def _of_the_network(error: Exception) -> bool:
    """Whether an error is one of the network, in any version of the client for HTTP."""
    return any(kind.__name__ in ("TransportError", "ConnectionError", "Timeout") for kind in type(error).__mro__)


def _incomplete(hub: Any, model: HubModel, folder: Path) -> HeadwayError:
    """The error for a repository without the files that are wanted."""
    try:
        names = _files_of(hub, model)
    except Exception:  # only the message needs the names
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf:
        return HeadwayError(
            f"{model} has GGUF files in place of safetensors: give one, such as {model.repository}:{gguf[0]}"
        )
    if any(name.startswith("pytorch_model") for name in names):
        return HeadwayError(
            f"{model} has its weights as a pickle, which can run code when it is read, and not as safetensors: give a "
            f"revision that has them, such as {model.repository}@refs/pr/1, or run `hf download {model.repository} "
            "--local-dir FOLDER` and headway.checkpoints.unpickle(FOLDER)"
        )
    has = ", ".join(name for name in sorted(names) if "/" not in name and not name.startswith("."))
    return HeadwayError(
        f"{model} lacks files that headway reads, such as config.json, model.safetensors or tokenizer.json: it has "
        f"{has or 'none'}; give another model"
    )
