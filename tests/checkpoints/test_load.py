"""Folders that are whole, and all the ways in which they are not."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import headway
from headway import HeadwayError, models
from headway.checkpoints import unpickle
from headway.checkpoints.bert import BERT
from headway.checkpoints.gpt2 import GPT2
from headway.checkpoints.llama import LLaMA
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")
CONFIG = GPT2.examples[0]
LLAMA = next(
    one for one in LLaMA.examples if one["architectures"] == ["LlamaForCausalLM"] and not one.get("tie_word_embeddings")
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    their_model(CONFIG).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change_config(folder: Path, **values: Any) -> None:
    held = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**held, **values}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


IDS = torch.tensor([[5, 7, 9, 11]])


def test_a_model_comes_ready_to_use(whole: Path) -> None:
    model = headway.load(whole)
    assert isinstance(model, models.Decoder)
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(value.is_meta for value in model.state_dict().values())
    assert model(IDS).shape == (1, 4, 40)


def test_loading_draws_no_random_numbers(whole: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    headway.load(whole)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_dtype_is_the_files_or_the_one_asked_for(folder: Path) -> None:
    assert {p.dtype for p in headway.load(folder, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    change_config(folder, dtype="float16")
    assert {p.dtype for p in headway.load(folder).parameters()} == {torch.float16}
    change_config(folder, dtype=None)
    change_tensors(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    assert {p.dtype for p in headway.load(folder).parameters()} == {torch.bfloat16}


def test_a_body_without_the_head_that_the_file_has(whole: Path) -> None:
    body = headway.load(whole, architecture="GPT2Model")
    model = headway.load(whole)
    torch.testing.assert_close(body(IDS), model.hidden(IDS))
    assert body.head is None


def test_a_file_of_the_body_alone_has_no_prefix(whole: Path, folder: Path) -> None:
    def strip(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    change_tensors(folder, strip)
    torch.testing.assert_close(headway.load(folder)(IDS), headway.load(whole)(IDS))


def test_names_that_were_tensorflows(tmp_path: Path) -> None:
    """bert-base-uncased says gamma and beta."""
    their_model(BERT.examples[0]).save_pretrained(tmp_path)
    expected = headway.load(tmp_path)(IDS)

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[older] = tensors.pop(name)

    change_tensors(tmp_path, rename)
    torch.testing.assert_close(headway.load(tmp_path)(IDS), expected)


def test_a_file_without_the_head_that_its_config_names(tmp_path: Path) -> None:
    """Sentence encoders are published so: all-mpnet-base-v2 says MPNetForMaskedLM."""
    their_model(BERT.examples[0]).save_pretrained(tmp_path)
    body = headway.load(tmp_path, architecture="BertModel")
    change_tensors(tmp_path, lambda t: [t.pop(name) for name in list(t) if name.startswith("cls.")])
    with pytest.raises(HeadwayError, match=r"the file has no head \(cls.*give architecture='BertModel'"):
        headway.load(tmp_path)
    torch.testing.assert_close(headway.load(tmp_path, architecture="BertModel")(IDS), body(IDS))


def test_a_file_in_several_parts(whole: Path, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    where = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    torch.testing.assert_close(headway.load(folder)(IDS), headway.load(whole)(IDS))
    (folder / "b.safetensors").unlink()
    with pytest.raises(HeadwayError, match=r"b\.safetensors is missing"):
        headway.load(folder)
    for wrong in ([], {"a": 3}, {"a": ["b"]}):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(HeadwayError, match="has no weight_map from tensors to files"):
            headway.load(folder)


def test_a_pickle_is_refused_with_the_way_out(whole: Path, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(HeadwayError, match=r"a pickle.*headway\.checkpoints\.unpickle\(folder\)"):
        headway.load(folder)
    unpickle(folder)
    torch.testing.assert_close(headway.load(folder)(IDS), headway.load(whole)(IDS))


class Evil:
    def __reduce__(self) -> Any:
        return (Path("ran").write_text, ("code",))


def test_a_pickle_that_runs_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadwayError, match="holds more than tensors, or is damaged"):
        unpickle(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("known", [True, False])
def test_the_code_that_a_config_names_is_left_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(folder)
    (folder / "modeling_own.py").write_text(f"import os\n\nos.mkdir({str(tmp_path / 'ran')!r})\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"trust_remote_code": True, "auto_map": dict.fromkeys(("AutoConfig", "AutoModel"), "modeling_own.Own")}
    if not known:
        config |= {"architectures": ["modeling_own.Own"], "model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {"auto_map": {"AutoTokenizer": ["modeling_own.Own", None]}, "tokenizer_class": "modeling_own.Own"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    assert headway.checkpoints.tokenizer(folder).encode("a").ids == [1, 3, 2]
    if known:
        headway.load(folder)(IDS)
    else:
        with pytest.raises(HeadwayError, match=r"modeling_own\.Own"):
            headway.load(folder)
    assert not (tmp_path / "ran").exists()
    runpy.run_path(str(folder / "modeling_own.py"))
    assert (tmp_path / "ran").exists(), "the code does nothing"


def test_a_pickle_of_numbers_that_repeat_is_refused(tmp_path: Path) -> None:
    """A file of a kilobyte would be one of 4 GB."""
    torch.save({"a": torch.zeros(1).expand(10**9)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadwayError, match="holds more than tensors, or is damaged"):
        unpickle(tmp_path)
    torch.save([torch.zeros(1)], tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadwayError, match="holds more than tensors, or is damaged"):
        unpickle(tmp_path)


class Holder(torch.nn.Module):
    """A module that holds a model under a name, as PyTorch Lightning's do."""

    def __init__(self, name: str, model: torch.nn.Module) -> None:
        super().__init__()
        self.add_module(name, model)


def layers_wrapped(model: Any) -> Any:
    (layers,) = (one for one in model.modules() if isinstance(one, torch.nn.ModuleList))
    layers[0], layers[1] = torch.compile(layers[0]), Holder("_fsdp_wrapped_module", layers[1])
    layers[2] = Holder("_checkpoint_wrapped_module", Holder("module", layers[2]))
    return model


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "compiled": torch.compile,
    "parallel": torch.nn.DataParallel,
    "compiled and parallel": lambda model: torch.nn.DataParallel(torch.compile(model)),
    "parallel and compiled": lambda model: torch.compile(torch.nn.DataParallel(model)),
    "its layers": layers_wrapped,
    "held": lambda model: Holder("model", model),
    "held and its layers": lambda model: Holder("0", Holder("auto_model", layers_wrapped(torch.compile(model)))),
}
"""Modules that change the names of a model's tensors."""


@pytest.mark.one_in(1)
@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("config", [CONFIG, LLAMA], ids=lambda config: config["model_type"])
def test_names_that_were_wrapped(config: dict[str, Any], wrap: str, tmp_path: Path) -> None:
    model = their_model({**config, "num_hidden_layers": 3, "n_layer": 3})
    model.save_pretrained(tmp_path)
    expected = headway.load(tmp_path)(IDS)
    state = WRAPPED[wrap](model).state_dict()
    assert not any(name in model.state_dict() for name in state) or "layers" in wrap
    save_file({name: value.clone() for name, value in state.items()}, tmp_path / "model.safetensors")
    torch.testing.assert_close(headway.load(tmp_path)(IDS), expected, rtol=0, atol=0)


def test_a_body_whose_names_were_wrapped(whole: Path, folder: Path) -> None:
    """The file has no head, and the remedy helps."""
    change_config(folder, architectures=["LlamaForCausalLM"])
    their_model(LLAMA).save_pretrained(folder)
    body = headway.load(folder, architecture="LlamaModel")(IDS)
    state = load_file(folder / "model.safetensors")
    held = {
        f"module.net.{name.removeprefix('model.')}": value for name, value in state.items() if "lm_head" not in name
    }
    save_file(held, folder / "model.safetensors")
    with pytest.raises(HeadwayError, match=r"the file has no head \(lm_head\.weight\).*give architecture='LlamaModel'"):
        headway.load(folder)
    torch.testing.assert_close(headway.load(folder, architecture="LlamaModel")(IDS), body, rtol=0, atol=0)


def beside(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)
    tensors["loss.weight"] = torch.zeros(2)


def twice(tensors: dict[str, Tensor]) -> None:
    tensors["module.transformer.wpe.weight"] = tensors["transformer.wpe.weight"] + 1


def twice_held(tensors: dict[str, Tensor]) -> None:
    beside(tensors)
    tensors["transformer.wpe.weight"] = tensors["model.transformer.wpe.weight"] + 1


def two_models(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        tensors |= {f"student.{name}": tensors[name], f"teacher.{name}": tensors.pop(name) + 1}


def another_model(tensors: dict[str, Tensor]) -> None:
    tensors.clear()
    tensors.update({f"layers.{n}.w": torch.zeros(2) for n in range(9)})


def flat(tensors: dict[str, Tensor]) -> None:
    tensors.clear()
    tensors["_fsdp_wrapped_module._flat_param"] = torch.zeros(20)


@pytest.mark.one_in(1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (flat, r"no tensor of a GPT2LMHeadModel.*: it has _flat_param: save the full state dict, which FSDP gathers"),
        (beside, r"unexpected are loss\.weight: "),
        (twice, r"both module\.transformer\.wpe\.weight and transformer\.wpe\.weight, and each is transf"),
        (twice_held, r"both model\.transformer\.wpe\.weight and transformer\.wpe\.weight, and each is transf"),
        (two_models, r"unexpected are (teacher|student)\.transformer"),
        (
            another_model,
            r"no tensor of a GPT2LMHeadModel, which has transformer\..*: it has layers\.0\.w, .*2\.w: give",
        ),
    ],
)
def test_names_that_are_not_clear(folder: Path, change: Callable[[dict[str, Tensor]], None], said: str) -> None:
    change_tensors(folder, change)
    with pytest.raises(HeadwayError, match=said):
        headway.load(folder)


def ours_wrapped(model: Any) -> Any:
    model.stack.blocks[0] = torch.compile(model.stack.blocks[0])
    model.stack.blocks[1] = checkpoint_wrapper(model.stack.blocks[1])
    return model


@pytest.mark.one_in(1)
@pytest.mark.parametrize(
    "wrap",
    [*(WRAPPED[name] for name in WRAPPED if "held" not in name and "layers" not in name), ours_wrapped],
)
def test_a_wrapped_model_is_saved(whole: Path, tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    headway.save(wrap(headway.load(whole)), tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(whole / "model.safetensors").keys()
    torch.testing.assert_close(headway.load(tmp_path)(IDS), headway.load(whole)(IDS), rtol=0, atol=0)


@pytest.fixture
def one_process() -> Iterator[None]:
    """Distributed torch with only this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_distributed_model_is_saved_unless_it_is_sharded(one_process: None, whole: Path, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    headway.save(torch.nn.parallel.DistributedDataParallel(headway.load(whole)), tmp_path / "parallel")
    torch.testing.assert_close(headway.load(tmp_path / "parallel")(IDS), headway.load(whole)(IDS), rtol=0, atol=0)
    sharded: Any = fully_shard(headway.load(whole))
    for model in (sharded, Holder("_fsdp_wrapped_module", headway.load(whole))):
        with pytest.raises(HeadwayError, match="the model is sharded: gather its tensors with"):
            headway.save(model, tmp_path / "sharded")
    assert not (tmp_path / "sharded").exists()
    model = headway.load(whole)
    state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
    model.load_state_dict({name: value * 2 for name, value in state.items()})
    headway.save(model, tmp_path / "gathered")
    wte = load_file(whole / "model.safetensors")["transformer.wte.weight"]
    assert torch.equal(load_file(tmp_path / "gathered" / "model.safetensors")["transformer.wte.weight"], wte * 2)


@pytest.mark.one_in(1)
@pytest.mark.parametrize(
    ("file", "name"), [("last.ckpt", "state_dict"), ("best.pt", "model_state_dict"), ("pytorch_model.bin", "model")]
)
def test_a_checkpoint_of_a_training(whole: Path, folder: Path, file: str, name: str) -> None:
    state = {f"model.{key}": value for key, value in load_file(whole / "model.safetensors").items()}
    moments = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    (folder / "model.safetensors").unlink()
    torch.save({"epoch": torch.tensor(3), name: state, "optimizer_states": [moments], "opt": moments}, folder / file)
    with pytest.raises(HeadwayError, match=rf"has only {file}, a pickle.*headway\.checkpoints\.unpickle"):
        headway.load(folder)
    unpickle(folder)
    torch.testing.assert_close(headway.load(folder)(IDS), headway.load(whole)(IDS), rtol=0, atol=0)


def test_checkpoints_that_are_not_clear(tmp_path: Path) -> None:
    one = {"a": torch.zeros(2)}
    for held, said in (
        ({"ema": one, "model": one}, r"last\.ckpt has the tensors of several models, ema, model: save the one"),
        ({"epoch": 3}, r"last\.ckpt has no tensors: give a file with the state_dict of a model"),
    ):
        torch.save(held, tmp_path / "last.ckpt")
        with pytest.raises(HeadwayError, match=said):
            unpickle(tmp_path)
    torch.save(one, tmp_path / "best.ckpt")
    with pytest.raises(HeadwayError, match=r"has 2 checkpoints, best\.ckpt, last\.ckpt: leave the one of the model"):
        unpickle(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def lying_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[:8] = (1 << 60).to_bytes(8, "little")
    path.write_bytes(data)


def one_missing(folder: Path) -> None:
    change_tensors(folder, lambda t: (t.pop("transformer.h.1.ln_1.bias"), t.pop("transformer.wpe.weight")))


def one_too_many(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({"transformer.h.7.new": torch.zeros(2)}))


def one_of_another_shape(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({"transformer.wte.weight": torch.zeros(39, 32)}))


def one_of_whole_numbers(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({"transformer.wpe.weight": torch.zeros(64, 32, dtype=torch.int8)}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_config, r"has no config\.json"),
        (broken_config, r"config\.json cannot be read"),
        (no_weights, r"has no model\.safetensors"),
        (truncated, r"model\.safetensors is damaged"),
        (lying_header, r"model\.safetensors is damaged"),
        (one_missing, r"missing are transformer\.wpe\.weight, transformer\.h\.1\.ln_1\.bias"),
        (one_too_many, r"unexpected are transformer\.h\.7\.new"),
        (one_of_another_shape, r"of another shape are transformer\.wte\.weight \[39, 32\], which should be \[40, 32\]"),
        (one_of_whole_numbers, r"of integers are transformer\.wpe\.weight"),
        (
            lambda folder: change_config(folder, architectures=["NewModel"]),
            "no architecture 'NewModel': .*docs/models.md has all",
        ),
        (lambda folder: change_config(folder, architectures=None), "names no architectures: give architecture="),
        (lambda folder: change_config(folder, n_head=None), "the config has no n_head"),
        (lambda folder: change_config(folder, n_head=5), "embed_dim 32 is not divisible by num_heads 5"),
        (lambda folder: change_config(folder, add_cross_attention=True), "add_cross_attention is True"),
        (lambda folder: change_config(folder, activation_function="mish"), "config's activation_function.* 'mish'"),
        (
            lambda folder: change_config(folder, activation_function=["gelu"]),
            "activation_function is .*: give a text",
        ),
        (lambda folder: change_config(folder, resid_pdrop="a"), "resid_pdrop is 'a': give a number"),
        (lambda folder: change_config(folder, n_layer=10**9), "n_layer is 1000000000: headway builds 10000 at most"),
        (lambda folder: change_config(folder, n_layer="3"), r"no model can be built from the config \(TypeError"),
        (lambda folder: change_config(folder, vocab_size=-1), r"no model can be built from the config \(RuntimeError"),
        (lambda folder: change_config(folder, n_positions=[[64]]), "no model can be built from the config"),
        (lambda folder: change_config(folder, architectures=[["GPT2Model"]]), "architectures are .*a list of names"),
        (lambda folder: change_config(folder, architectures=-1), "architectures are -1: give a list"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), r"config\.json cannot be read"),
    ],
)
def test_a_folder_that_is_not_whole(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    with pytest.raises(HeadwayError, match=message) as raised:
        headway.load(folder)
    assert "\n" not in str(raised.value)


def test_numbers_have_a_point(folder: Path) -> None:
    with pytest.raises(HeadwayError, match=r"dtype is torch\.int8: give a floating-point dtype"):
        headway.load(folder, dtype=torch.int8)
    change_config(folder, dtype="int8")
    assert {p.dtype for p in headway.load(folder).parameters()} == {torch.float32}


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"none is not a folder.*or an id on the Hugging Face hub, owner/name"):
        headway.load(tmp_path / "none")


def test_an_unknown_architecture_has_the_nearest(whole: Path) -> None:
    with pytest.raises(HeadwayError, match=r"did you mean 'LlamaModel'.*docs/models.md has all"):
        headway.load(whole, architecture="LamaModel")
    with pytest.raises(HeadwayError, match=r"no architecture 'XYZ': docs/models.md has all"):
        headway.load(whole, architecture="XYZ")


def test_saving_a_changed_model(whole: Path, tmp_path: Path) -> None:
    model = headway.load(whole)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    headway.save(model, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]
    torch.testing.assert_close(headway.load(tmp_path / "new")(IDS), model(IDS))


def test_what_was_saved_half_leaves_the_old(whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    model = headway.load(whole)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", stop)
    with pytest.raises(KeyboardInterrupt):
        headway.save(model, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_model_that_was_not_loaded_has_no_config_to_save(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"a Decoder that headway\.load did not make"):
        headway.save(models.Decoder(models.TransformerConfig(9, 8, 1, 2)), tmp_path)


def test_a_copy_of_the_embeddings_that_is_none(folder: Path) -> None:
    """A file with a head of its own under a config that ties it: leaving it out would be another model in silence."""
    embeddings = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    change_tensors(folder, lambda t: t.update({"lm_head.weight": embeddings.clone()}))
    headway.load(folder)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": embeddings + 1}))
    with pytest.raises(HeadwayError, match=r"lm_head\.weight differs from the token embeddings"):
        headway.load(folder)
    headway.load(folder, architecture="GPT2Model")


@pytest.mark.slow
def test_loading_is_quick_to_begin_with(whole: Path) -> None:
    """First values on the meta device would load torch's compiler, which takes seconds."""
    code = f"import headway, sys; headway.load({str(whole)!r}); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_the_type_of_a_loaded_model_is_known() -> None:
    """A type checker sees the methods of a Transformer, not anything at all."""
    assert get_type_hints(headway.load)["return"] is headway.models.transformer.Transformer
