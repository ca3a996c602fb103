"""Checks each family of published models against transformers, with random weights and small configs."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.table import Table
from ..checkpoints import ARCHITECTURES, FAMILIES, load, save
from ..checkpoints._rules import entries, named_tensors
from ..coordinates import Coordinates
from ..masks import Padding
from ..models import Decoder, Encoder, EncoderDecoder, Stack
from ..positions import ENCODINGS, Compose, PositionEncoding

CLOSE = 1e-5
"""The largest difference allowed in float32, as a share of the largest number where that is above one."""
TOKENS = 11
"""Tokens in a row."""
LENGTHS = (11, 7)
"""Tokens in each row of a padded batch."""


@dataclass(frozen=True)
class Difference:
    """The largest differences between headway's model of a config and that of transformers."""

    outputs: float
    hidden_states: float


def their_model(config: Mapping[str, Any]) -> Any:
    """Returns the model of transformers for a config, with random parameters from ``draw``."""
    import transformers

    values = copy.deepcopy(dict(config))
    (architecture,) = values["architectures"]
    # no special tokens, which a random model could generate at any step
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kind = getattr(transformers, architecture)
        if architecture in PARTS:
            kind = type(architecture, (kind,), {"forward": PARTS[architecture], "__module__": kind.__module__})
        model = kind(made).eval()
        _untie(model, values)
        draw(model)
    return model


def _text_encoder(
    self: Any, input_ids: Tensor, attention_mask: Tensor | None = None, output_hidden_states: bool = False
) -> dict[str, Any]:
    """Calls the text encoder of transformers' VitsModel."""
    real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    out = self.text_encoder(input_ids, real[..., None].float(), attention_mask, output_hidden_states=True)
    return {"logits": torch.cat([out.prior_means, out.prior_log_variances], dim=-1), "hidden_states": out.hidden_states}


PARTS = {"VitsModel": _text_encoder}
"""The ``forward`` of models that headway has in part."""


def _untie(model: Any, values: Mapping[str, Any]) -> None:
    """Gives the model a separate head if the config asks for one, since transformers always ties T5's head."""
    head = model.get_output_embeddings()
    if values.get("tie_word_embeddings") is False and head is not None:
        head.weight = nn.Parameter(head.weight.detach().clone())


def draw(model: nn.Module) -> None:
    """Sets parameters to random values large enough to matter: factors near one, others scaled by their width."""
    norms = {id(m.weight) for m in model.modules() if "norm" in type(m).__name__.lower() and hasattr(m, "weight")}
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue  # a computed table
            if id(parameter) in norms:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 1:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)


def check_family(config: Mapping[str, Any], folder: Path) -> Difference:
    """Checks the model of a config against that of transformers, and returns the largest differences.

    Outputs, hidden states, gradients, defaults of the config, saving, padding and generation are compared. An
    AssertionError names the first one that differs. The checks write to an empty folder.
    """
    theirs = their_model(config)
    theirs.save_pretrained(folder / "theirs")
    ours = load(folder / "theirs")
    difference = compare(ours, theirs)
    _check_defaults(config, ours, theirs, folder)
    _check_saving(ours, theirs, folder)
    _check_gradients(ours, theirs)
    _check_padding(ours, theirs)
    if theirs.can_generate() and not isinstance(ours, Encoder):  # XLNet generates by a second stream
        _check_generation(ours, theirs)
    return difference


def inputs(theirs: Any) -> dict[str, Tensor]:
    """Returns random inputs of transformers' model by name."""
    generator = torch.Generator().manual_seed(1)
    config, main = theirs.config, theirs.main_input_name
    rows = len(LENGTHS)
    if main == "pixel_values":
        given = {
            main: torch.randn(rows, config.num_channels, config.image_size, config.image_size, generator=generator)
        }
    elif main == "input_features":
        given = {main: torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)}
    else:
        # ids below 5 are special tokens in some family
        given = {"input_ids": torch.randint(5, config.vocab_size, (rows, TOKENS), generator=generator)}
    if "decoder_input_ids" in inspect.signature(theirs.forward).parameters:
        given["decoder_input_ids"] = torch.randint(5, config.vocab_size, (rows, TOKENS - 2), generator=generator)
        # generate() would insert the start token if it were missing
        given["decoder_input_ids"][:, 0] = getattr(config, "decoder_start_token_id", None) or 0
    return given


@torch.no_grad()
def compare(ours: Any, theirs: Any) -> Difference:
    """Returns the largest differences of outputs and hidden states; raises AssertionError if they are too large."""
    given = inputs(theirs)
    reference = theirs(**given, output_hidden_states=True)
    states: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _module, _inputs, output: states.append(output))
        for stack in ours.modules()
        if isinstance(stack, Stack)
        for block in [*stack.blocks, stack.norm]
    ]
    out = ours(*given.values())
    for hook in hooks:
        hook.remove()
    expected = list(reference.get("hidden_states") or ())
    if expected == [] and "encoder_hidden_states" in reference:
        expected = [*reference["encoder_hidden_states"], *reference["decoder_hidden_states"]]
    # each of their states must be one of ours, except inputs of a first block, which the hooks do not see
    layers = [state for state in expected if any(state.shape == own.shape for own in states)]
    apart = [min(distance(own, state) for own in states) for state in layers if not _first(state, expected, reference)]
    first = _output(reference)
    difference = Difference(distance(out, first), max(apart, default=0.0))
    assert difference.outputs <= CLOSE, f"outputs differ by {difference.outputs:.1e}"
    assert apart, "no hidden state was compared"
    assert difference.hidden_states <= CLOSE, f"hidden states differ by {[f'{one:.1e}' for one in apart]}"
    return difference


def _output(reference: Any) -> Tensor:
    """Logits if transformers' model has them, else its first output."""
    out: Tensor = reference["logits"] if "logits" in reference else reference[0]
    return out


def _first(state: Tensor, expected: list[Tensor], reference: Any) -> bool:
    """Whether a state is the input of a stack before its first block."""
    starts = [expected[0]]
    if "decoder_hidden_states" in reference:
        starts.append(reference["decoder_hidden_states"][0])
    return any(state is start for start in starts)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Returns the largest difference, relative to the largest number if that is above 1; infinite if shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()


def _check_defaults(config: Mapping[str, Any], ours: Any, theirs: Any, folder: Path) -> None:
    """A config.json without the defaults is read in the same way as one with all of them, as transformers writes it."""
    shutil.copytree(folder / "theirs", folder / "brief")
    (folder / "brief" / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    brief = load(folder / "brief")
    apart = [f"{a} is {b}" for a, b in zip(_said(brief), _said(ours), strict=False) if a != b]
    assert _said(brief) == _said(ours), f"defaults of the config are read otherwise: {'; '.join(apart)}"
    compare(brief, theirs)


def _said(model: Any) -> list[str]:
    """The lines of a model's repr, and the masks of its stacks."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return [line.strip() for line in repr(model).splitlines()] + [repr(stack.masks) for stack in stacks]


def _check_saving(ours: Any, theirs: Any, folder: Path) -> None:
    """A saved model is read again unchanged, by headway and by transformers."""
    save(ours, folder / "ours")
    again = load(folder / "ours")
    before, after = named_tensors(ours), named_tensors(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before), "saving changed a tensor"
    back, said = type(theirs).from_pretrained(folder / "ours", output_loading_info=True)
    wrong = {key: value for key, value in said.items() if value and key in ("unexpected_keys", "mismatched_keys")}
    assert not wrong, f"transformers reads what was saved with {wrong}"
    compare(ours, back.eval())


def _check_gradients(ours: Any, theirs: Any) -> None:
    """Every gradient equals that of transformers, for parameters that have the same name there and in the file."""
    given = inputs(theirs)
    for model in (ours, theirs):
        out = model(**given) if model is theirs else model(*given.values())
        out = out if isinstance(out, Tensor) else _output(out)
        torch.manual_seed(0)
        (out * torch.randn_like(out)).sum().backward()
    family = ARCHITECTURES[ours.checkpoint.architecture]()
    config = family.config(ours.checkpoint.config)
    head = family.architectures[ours.checkpoint.architecture]
    tensors, parameters = named_tensors(ours), dict(theirs.named_parameters())
    wanted, compared = entries(family.rules(config, head=head, prefix=head), tensors), []
    for entry in wanted:
        parameter, held = parameters.get(entry.theirs), [tensors[name] for name in entry.ours]
        if parameter is None or parameter.grad is None:
            continue
        grads = [one.grad for one in held if one.grad is not None]
        assert len(grads) == len(held), f"{' or '.join(entry.ours)} has no gradient"
        # a change is affine; a gradient maps by its linear part
        own = entry.change.write(grads) - entry.change.write([torch.zeros_like(one) for one in grads])
        if entry.ours[0].endswith("embedding.weight"):
            for grad in (own, parameter.grad):  # transformers gives a target's first id, the padding, no gradient
                grad[theirs.config.pad_token_id or 0] = 0
        compared.append((entry.theirs, distance(own, parameter.grad)))
    worst, apart = max(compared, key=lambda one: one[1])
    assert apart <= 10 * CLOSE, f"the gradient of {worst} differs by {apart:.1e}"
    assert len(compared) > 3, f"of {len(wanted)} gradients only {len(compared)} were compared"
    ours.zero_grad()
    theirs.zero_grad()


@torch.no_grad()
def _check_padding(ours: Any, theirs: Any) -> None:
    """Padding behind the tokens has no effect."""
    given = inputs(theirs)
    if "input_ids" not in given:
        return
    mask = Padding(torch.tensor(LENGTHS))
    changed = given["input_ids"].clone()
    changed[1, LENGTHS[1] :] = 5 + (changed[1, LENGTHS[1] :] - 4) % (theirs.config.vocab_size - 5)
    rest = [value for name, value in given.items() if name != "input_ids"]
    first, second = (ours(ids, *rest, mask=mask) for ids in (given["input_ids"], changed))
    seen = slice(None) if rest else slice(LENGTHS[1])
    assert torch.equal(first[1, seen], second[1, seen]), "the ids in the padding change a token"
    attention = (torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]).long()
    reference = _output(theirs(**given, attention_mask=attention))
    apart = distance(first[1, seen], reference[1, seen])
    assert apart <= CLOSE, f"outputs of a padded batch differ by {apart:.1e}"


@torch.no_grad()
def _check_generation(ours: Any, theirs: Any) -> None:
    """Greedy generation is equal token by token, on headway's side with padding in front and a cache."""
    given, count = inputs(theirs), 9
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "num_beams": 1}
    theirs.generation_config.eos_token_id = theirs.generation_config.forced_eos_token_id = None
    if isinstance(ours, EncoderDecoder):
        from transformers import GenerationMixin

        plain: Any = GenerationMixin.generate  # Whisper's own cuts the source up and leaves out the ids given
        expected = plain(theirs, **given, **options)[:, given["decoder_input_ids"].shape[1] :]
        source, ids = given.values()
        context, cache = ours.encode(source), ours.new_cache()
        steps = []
        for _ in range(count):
            ids = ours.decode(ids, context, cache=cache)[:, -1:].argmax(-1)
            steps.append(ids)
    else:
        assert isinstance(ours, Decoder)
        lengths = torch.tensor(LENGTHS)
        attention = (torch.arange(TOKENS) >= TOKENS - lengths[:, None]).long()
        expected = theirs.generate(**given, attention_mask=attention, **options)[:, TOKENS:]
        cache, ids = ours.new_cache(), given["input_ids"]
        at: Any = Coordinates.padded(lengths, TOKENS)
        steps = []
        for _ in range(count):
            ids = ours(ids, positions=at, mask=Padding(), cache=cache)[:, -1:].argmax(-1)
            at = None
            steps.append(ids)
    written = torch.cat(steps, dim=1)
    assert torch.equal(written, expected), f"generates {written.tolist()}, transformers {expected.tolist()}"


# ---------------------------------------------------------------- the table of docs/models.md


def markdown() -> str:
    """Returns the table of docs/models.md, measured on the examples of each family.

    Command: python -m headway.testing.checkpoints.
    """
    rows: list[tuple[str, ...]] = []
    for name, family in FAMILIES.items():
        title, encodings, reads = cells(name)
        if family.oracle is not None:
            rows.append((title, encodings, family.oracle, "", reads))
            continue
        with tempfile.TemporaryDirectory() as folder:
            differences = [
                check_family(config, Path(folder) / str(number)) for number, config in enumerate(family.examples)
            ]
        outputs, states = max(one.outputs for one in differences), max(one.hidden_states for one in differences)
        rows.append((title, encodings, f"{outputs:.0e}", f"{states:.0e}", reads))
    return Table(("family", "positions", "outputs differ by", "hidden states by", "reads"), rows).markdown()


def cells(name: str) -> tuple[str, str, str]:
    """Returns the cells of a family that are not measured: its title, its encodings, its architectures."""
    family = FAMILIES[name]
    title = family.title or (inspect.getmodule(family).__doc__ or "").strip().rstrip(".")
    encodings: list[str] = []
    for config in family.examples:
        with torch.device("meta"):
            model = family().build(family().config(config), head=family.architectures[config["architectures"][0]])
        held = [one for stack in model.modules() if isinstance(stack, Stack) for one in stack.encodings]
        encodings += [_known(one) for one in held if isinstance(one, PositionEncoding)]
    said = ", ".join(f"`{one}`" for one in dict.fromkeys(encodings)) or "none"
    return title, said, ", ".join(f"`{one}`" for one in family.architectures)


def _known(encoding: PositionEncoding) -> str:
    """The name in ENCODINGS of an encoding, or of the class that it derives from."""
    if isinstance(encoding, Compose):
        return " + ".join(map(_known, encoding.each))
    names = {cls: name for name, cls in ENCODINGS.items()}
    return next(names[cls] for cls in type(encoding).__mro__ if cls in names)


if __name__ == "__main__":
    print(markdown())
