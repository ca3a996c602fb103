"""Ids on the Hugging Face hub: what is one, which files it stands for, and what is said when they cannot be had."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headway
from headway import HeadwayError
from headway.checkpoints._files import has_weights
from headway.checkpoints._hub import READ, HubModel, hub_model, local_path, model_name

huggingface_hub = pytest.importorskip("huggingface_hub")
constants, errors = (pytest.importorskip(f"huggingface_hub.{name}") for name in ("constants", "errors"))
Put = Callable[..., Path]
WHOLE = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}
COMMIT = "b" * 40

IDS = {
    "owner/name": (HubModel("owner/name"), "name"),
    "owner/name-1.7B_x": (HubModel("owner/name-1.7B_x"), "name-1.7B_x"),
    "owner/name@v1.0": (HubModel("owner/name", "v1.0"), "name"),
    "owner/name@refs/pr/4": (HubModel("owner/name", "refs/pr/4"), "name"),
    f"owner/name@{COMMIT}": (HubModel("owner/name", COMMIT), "name"),
    "owner/name:Q4_K_M": (HubModel("owner/name", None, "Q4_K_M"), "name:Q4_K_M"),
    "owner/name@v1:Q4_K_M": (HubModel("owner/name", "v1", "Q4_K_M"), "name:Q4_K_M"),
    "owner/name:model.Q4_1.gguf": (HubModel("owner/name", None, "model.Q4_1.gguf"), "model.Q4_1"),
    "owner/name/model.Q4_1.gguf": (HubModel("owner/name", None, "model.Q4_1.gguf"), "model.Q4_1"),
    "owner/name/sub/model.gguf": (HubModel("owner/name", None, "sub/model.gguf"), "model"),
}
"""Ids, the models that they stand for, and what these are called."""

NO_IDS = [
    *("", "name", "name.gguf", "a/b/c", "/a/b", "./a/b", "../a", "a/..", "a/../b", "~/a", "a/b/", "a//b"),
    *("a/b@../../x", "a/b@refs/../../../x", "a/b@/etc", "a/b:../x.gguf", "a/b:/etc/x.gguf", "a/b/../x.gguf"),
    *(
        "-a/b",
        ".a/b",
        "a/-b",
        "a/b-",
        "a--b/c",
        "a/b--c",
        "a..b/c",
        "a/b.git",
        "a\\b/c",
        "a b/c",
        "猫/狗",
        "a/b\n",
        "a/b\0",
    ),
    *("hf://a/b", "https://huggingface.co/a/b", "texts/own.txt", "a/vectors.vec", "a/b.safetensors", "C:/a/b"),
    Path("owner/name"),
]


@pytest.mark.one_in(1)
@pytest.mark.parametrize("given", IDS)
def test_what_is_an_id(given: str) -> None:
    model, name = IDS[given]
    assert hub_model(given) == model
    assert model_name(given) == name
    assert hub_model(str(model)) == model


@pytest.mark.one_in(1)
@pytest.mark.parametrize("given", NO_IDS, ids=repr)
def test_what_is_none(given: str | Path) -> None:
    assert hub_model(given) is None


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub_cache: Put) -> None:
    hub_cache("owner/name", WHOLE)
    monkeypatch.chdir(tmp_path)
    assert local_path("owner/name", has_weights).parent.name == "snapshots"
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert local_path("owner/name", has_weights) == Path("owner/name")
    assert model_name("owner/name") == "name"


# ---------------------------------------------------------------- the cache


def test_the_cache_is_read_without_network(hub_cache: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_cache("owner/name", WHOLE)
    other = hub_cache("owner/name", {**WHOLE, "config.json": b"{ }"}, "refs/pr/1", COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it went to the network"))
    assert local_path("owner/name", has_weights) == snapshot
    assert local_path("owner/name@main", has_weights) == snapshot
    assert local_path("owner/name@refs/pr/1", has_weights) == other
    assert local_path(f"owner/name@{COMMIT}", has_weights) == other
    assert (snapshot / "config.json").is_symlink()


@pytest.mark.parametrize(
    ("id", "file"),
    [
        ("owner/name:Q4_1", "a.Q4_1.gguf"),
        ("owner/name:q4_1", "a.Q4_1.gguf"),
        ("owner/name:a.Q4_1.gguf", "a.Q4_1.gguf"),
        ("owner/name/a.Q4_1.gguf", "a.Q4_1.gguf"),
        ("owner/name:Q8_0", "big/a-Q8_0.gguf"),
        ("owner/name/big/a-Q8_0.gguf", "big/a-Q8_0.gguf"),
        ("owner/name@main:Q8_0", "big/a-Q8_0.gguf"),
    ],
)
def test_gguf_files_in_the_cache(hub_cache: Put, id: str, file: str) -> None:
    snapshot = hub_cache("owner/name", {"a.Q4_1.gguf": b"1", "big/a-Q8_0.gguf": b"2", "a.IQ4_1.gguf": b"3"})
    assert local_path(id, lambda folder: False) == snapshot / file


def write_tree(snapshot: Path, names: list[str]) -> None:
    """Writes the list of a repository's files that newer versions of the package keep beside a snapshot."""
    tree = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    tree.parent.mkdir()
    files = {name: {"size": 1, "blob_id": "0" * 40} for name in names}
    tree.write_text(json.dumps({"format_version": 1, "files": files}))


def test_files_that_are_not_needed_may_be_missing(hub_cache: Put) -> None:
    """Without network, what is in the cache is enough."""
    snapshot = hub_cache("owner/name", WHOLE)
    write_tree(snapshot, [*WHOLE, "chat_template.jinja", "pytorch_model.bin"])
    assert local_path("owner/name", has_weights) == snapshot
    with pytest.raises(HeadwayError, match="HF_HUB_OFFLINE is set"):
        local_path("owner/name", lambda folder: (folder / "vocab.txt").is_file())


def test_other_gguf_files_may_be_missing(hub_cache: Put) -> None:
    snapshot = hub_cache("owner/name", {"a.Q4_1.gguf": b"1"})
    write_tree(snapshot, ["a.Q4_1.gguf", "a.IQ4_1.gguf", "b.Q4_1.gguf", "config.json"])
    assert local_path("owner/name:Q4_1", has_weights) == snapshot / "a.Q4_1.gguf"


def test_a_type_that_is_not_clear(hub_cache: Put) -> None:
    hub_cache("owner/name", {"a.Q4_1.gguf": b"1", "b.Q4_1.gguf": b"2"})
    with pytest.raises(HeadwayError, match=r"2 GGUF files of owner/name are of type Q4_1.*a.Q4_1.gguf, b.Q4_1.gguf"):
        local_path("owner/name:Q4_1", has_weights)


@pytest.mark.slow
def test_environment_variables_of_the_package_are_obeyed(hub_cache: Put, tmp_path: Path) -> None:
    hub_cache("owner/name", WHOLE)
    script = (
        "from headway.checkpoints._hub import local_path\n"
        "from headway.checkpoints._files import has_weights\n"
        "print(local_path('owner/name', has_weights))\n"
        "print(__import__('sys').modules.get('transformers'))\n"
        "local_path('owner/other', has_weights)"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(tmp_path / "hub/models--owner--name/snapshots" / ("a" * 40)), "None"]
    assert "HeadwayError: owner/other is neither a file or folder here nor in the cache" in done.stderr
    assert "(HF_HUB_OFFLINE is set): run `hf download owner/other`" in done.stderr


# ---------------------------------------------------------------- what is downloaded


Hub = Callable[[dict[str, bytes]], list[dict[str, Any]]]


@pytest.fixture
def online(hub_cache: Put, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """online(files) is a hub with files, of which only those that are asked for get into the cache."""
    from huggingface_hub.utils import filter_repo_objects

    real = huggingface_hub.snapshot_download

    def with_files(files: dict[str, bytes]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def snapshot_download(repo_id: str, **options: Any) -> str:
            if options["local_files_only"]:
                return str(real(repo_id, **options))
            calls.append(options)
            names = filter_repo_objects(files, allow_patterns=options["allow_patterns"])
            return str(hub_cache(repo_id, {name: files[name] for name in names}, commit=COMMIT))

        def hf_hub_download(repo_id: str, filename: str, **options: Any) -> str:
            if options["local_files_only"]:
                raise errors.LocalEntryNotFoundError("not there")
            calls.append({"filename": filename})
            return str(hub_cache(repo_id, {filename: files[filename]}) / filename)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
        siblings = [SimpleNamespace(rfilename=name) for name in files]
        monkeypatch.setattr(huggingface_hub, "model_info", lambda *_, **__: SimpleNamespace(siblings=siblings))
        return calls

    return with_files


def test_neither_pickles_nor_code_are_downloaded(online: Hub) -> None:
    extra = ("pytorch_model.bin", "modeling_own.py", "onnx/model.onnx", "README.md", "tf_model.h5", "a.gguf")
    parts = {
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}}).encode(),
        "model-1-of-2.safetensors": b"1",
    }
    chat = dict.fromkeys(
        ("chat_template.jinja", "additional_chat_templates/rag.jinja", "special_tokens_map.json", "added_tokens.json"),
        b"b",
    )
    files = {**WHOLE, **parts, **dict.fromkeys(chat, b"b"), "vocab.txt": b"a", **dict.fromkeys(extra, b"x")}
    calls = online(files)
    found = local_path("owner/name", has_weights)
    there = {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()}
    assert there == set(files) - set(extra)
    assert [call["allow_patterns"] for call in calls] == [list(READ)]
    local_path("owner/name", has_weights)
    assert len(calls) == 1


def test_what_is_missing_in_the_cache_is_downloaded(online: Hub, hub_cache: Put) -> None:
    hub_cache("owner/name", {"config.json": b"{}"})
    calls = online(WHOLE)
    assert has_weights(local_path("owner/name", has_weights))
    assert len(calls) == 1


def test_one_gguf_file_is_downloaded(online: Hub) -> None:
    calls = online({"a.Q4_1.gguf": b"1", "a.Q8_0.gguf": b"2"})
    assert local_path("owner/name:Q8_0", has_weights).name == "a.Q8_0.gguf"
    assert calls == [{"filename": "a.Q8_0.gguf"}]
    with pytest.raises(HeadwayError, match=r"no GGUF files of owner/name are of type Q2_K: it has a.Q4_1.gguf, a.Q8_0"):
        local_path("owner/name:Q2_K", has_weights)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "pytorch_model.bin"], "weights as a pickle.*owner/name@refs/pr/1.*checkpoints.unpickle"),
        (["b.Q8_0.gguf", "a.Q8_0.gguf"], r"GGUF files in place of safetensors.* such as owner/name:a.Q8_0.gguf"),
        (["README.md", "adapter_model.safetensors"], "lacks files.*it has README.md, adapter_model.safetensors"),
    ],
)
def test_a_repository_without_what_is_read(online: Hub, files: list[str], message: str) -> None:
    online(dict.fromkeys(files, b"x"))
    with pytest.raises(HeadwayError, match=message) as error:
        headway.load("owner/name")
    assert "\n" not in str(error.value)


RESPONSE = SimpleNamespace(headers={}, request=None, status_code=404)
FAULTS: dict[str, tuple[Any, str]] = {
    "gated": (
        errors.GatedRepoError("no", response=RESPONSE),
        r"owner/name is a gated model: accept its terms at https://huggingface.co/owner/name, then run `hf auth login`",
    ),
    "no such model": (
        errors.RepositoryNotFoundError("no", response=RESPONSE),
        "there is no file or folder owner/name@v1 here, and the Hugging Face hub has no model owner/name: check",
    ),
    "no such revision": (
        errors.RevisionNotFoundError("no", response=RESPONSE),
        "owner/name has no revision v1: https://huggingface.co/owner/name/commits",
    ),
    "no network": (
        errors.LocalEntryNotFoundError("no\nnetwork"),
        r"nor in the cache of Hugging Face, .*\(the hub cannot be reached\): run `hf download owner/name --revision v1",
    ),
    "a name that the package refuses": (
        errors.HFValidationError("too long"),
        "here, and it is not an id on the Hugging Face hub: too long",
    ),
    "anything": (OSError("No space\nleft"), r"cannot be downloaded \(No space left\)"),
}


@pytest.mark.one_in(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_download_is_one_line(hub_cache: Put, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    error, message = FAULTS[fault]

    def snapshot_download(repo_id: str, *, local_files_only: bool, **_: Any) -> str:
        raise errors.LocalEntryNotFoundError("not in the cache") if local_files_only else error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(HeadwayError, match=message) as raised:
        headway.load("owner/name@v1")
    assert "\n" not in str(raised.value)
    printed = "".join(traceback.format_exception(raised.value))
    assert "During handling" not in printed
    assert "direct cause" not in printed


TransportError = type("TransportError", (Exception,), {})


@pytest.mark.parametrize(("id", "files"), [("owner/name:Q4_1", "*Q4_1.gguf"), ("owner/name/a/b.gguf", "*a/b.gguf")])
def test_without_network_a_gguf_file_is_not_tried_again(
    hub_cache: Put, monkeypatch: pytest.MonkeyPatch, id: str, files: str
) -> None:
    """The package tries downloads and lists of files six times, and prints each."""
    asked = []

    def model_info(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise type("ConnectError", (TransportError,), {})("no\nname")

    def download(*_: Any, local_files_only: bool, **__: Any) -> None:
        assert local_files_only
        raise errors.LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(HeadwayError) as raised:
        headway.load(id)
    assert len(asked) == 1
    assert "(the hub cannot be reached)" in str(raised.value)
    assert f"run `hf download owner/name --include '{files}'` where" in str(raised.value)
    assert str(raised.value).endswith("or give a .gguf file")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert local_path(tmp_path, has_weights) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(HeadwayError, match=r"has 2 models, a.gguf, b.gguf: give one of these files"):
        local_path(tmp_path, has_weights)
    (tmp_path / "config.json").touch()
    assert local_path(tmp_path, has_weights) == tmp_path


def test_what_is_in_the_cache_is_taken_if_the_hub_cannot_be_reached(
    hub_cache: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package knows that a file is missing, such as one that no caller needs."""
    snapshot = hub_cache("owner/name", WHOLE)

    def snapshot_download(repo_id: str, **_: Any) -> str:
        error = errors.LocalEntryNotFoundError("incomplete")
        error.snapshot_path = str(snapshot)
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert local_path("owner/name", has_weights) == snapshot
    with pytest.raises(HeadwayError, match="HF_HUB_OFFLINE is set"):
        local_path("owner/name", lambda folder: False)


def test_an_id_that_the_package_refuses(hub_cache: Put) -> None:
    with pytest.raises(HeadwayError, match="not an id on the Hugging Face hub: Repo id must"):
        headway.load(f"owner/{'a' * 97}")


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        HeadwayError, match=r"owner/name is not a file or folder here; as an id on the hub it needs .*\[che"
    ):
        headway.load("owner/name")
