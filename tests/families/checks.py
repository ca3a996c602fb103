"""What a model of transformers has to give with headway as with eager attention, and what it gave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map_only
from transformers import GenerationMixin

from headway.errors import HeadwayError
from headway.integrations.transformers import _attention

from .configs import PAD, small
from .inputs import Inputs, candidates, padded

CLOSE, EXACT = 1e-5, 1e-9
"""The largest difference in float32 and in float64, relative to the largest number if that is above one; of a gradient
ten times as much, relative to its own largest number, or to a hundredth of the largest of all."""
NEW = 6
"""Tokens that are generated: with the prompt more than a sliding window has."""
SAME = "same"

Numbers = dict[str, Tensor]


class NotTriedError(Exception):
    """Raised where eager attention fails too, or a model has no such way."""


class Subject:
    """A model of a class with a small config and random weights, and the first inputs that it takes.

    Raises:
        NotTriedError: if it cannot be made so, or takes none of the inputs.
    """

    def __init__(self, kind: Any) -> None:
        try:
            torch.manual_seed(0)
            self.model: Any = kind._from_config(small(kind.config_class), attn_implementation="eager").eval()
        except HeadwayError:
            raise
        except Exception as error:
            raise NotTriedError(f"not made: {said(error)}") from error
        randomize(self.model)
        self.inputs = self._found()

    def _found(self) -> Inputs:
        first = ""
        for inputs in candidates(self.model):
            self.inputs = inputs
            try:
                with torch.no_grad():
                    if self.states():
                        return inputs
            except Exception as error:
                first = first or said(error)
        raise NotTriedError(f"no inputs: {first or 'none known'}")

    def states(self, side: str | None = None, **more: Any) -> Numbers:
        """All floating-point numbers of a forward pass, with padding on a side, whose own numbers are left out."""
        torch.manual_seed(0)
        np.random.seed(0)  # masks of time steps, in training
        text = padded(side) if side else {}
        found = numbers(self.model(**{**self.inputs, **text}, **more, return_dict=True))
        return {name: of_tokens(name, x, text["attention_mask"]) for name, x in found.items()} if side else found

    @property
    def is_text(self) -> bool:
        """Whether rows of the inputs can be padded."""
        return next(iter(self.inputs)) == "input_ids" and len(self.inputs["input_ids"]) == 3

    def double(self) -> Subject:
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).double()
        other.inputs = tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, self.inputs)
        return other


def randomize(model: nn.Module) -> None:
    """Weights large enough that attention is far from even, none of them zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1 and parameter.numel():
                parameter.copy_(noise * 1.1 / max(1, parameter[0].numel()) ** 0.5)
            else:
                parameter.copy_(parameter.nan_to_num() + 0.1 * noise)


def numbers(output: Any) -> Numbers:
    kept = {name: value for name, value in output.items() if "past" not in name and "attentions" not in name}
    leaves, _ = tree_flatten_with_path(kept)
    return {"".join(map(str, at)): x for at, x in leaves if isinstance(x, Tensor) and x.is_floating_point()}


def of_tokens(name: str, x: Tensor, mask: Tensor) -> Tensor:
    """The numbers of tokens that are no padding; of three of them where a model adds or drops a token."""
    if "decoder" in name or x.ndim < 3 or len(x) != len(mask):
        return x
    if x.shape[1] == mask.shape[1]:
        return x[mask.bool()]
    if abs(x.shape[1] - mask.shape[1]) == 1:
        return x[:, -3:] if mask[:, -1].all() else x[:, :3]
    return x


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip() or '(no message)'}".splitlines()[0][:160]


# ---------------------------------------------------------------- ways


def forward(subject: Subject) -> Numbers:
    with torch.no_grad():
        return subject.states(output_hidden_states=True)


def left(subject: Subject, side: str = "left") -> Numbers:
    if not subject.is_text:
        raise NotTriedError("takes no padded text")
    with torch.no_grad():
        return subject.states(side, output_hidden_states=True)


def right(subject: Subject) -> Numbers:
    return left(subject, "right")


def training(subject: Subject) -> Numbers:
    """The gradients of all parameters, with padding where there is any."""
    model = subject.model.train()
    model.zero_grad()
    try:
        found = subject.states("right" if subject.is_text else None)
        generator = torch.Generator().manual_seed(3)
        total = sum((x * torch.randn(x.shape, generator=generator)).mean() for x in found.values() if x.requires_grad)
        if not isinstance(total, Tensor):
            raise NotTriedError("its outputs have no gradient")
        total.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    finally:
        model.eval().zero_grad()


def generated(subject: Subject, **setting: Any) -> Numbers:
    model = subject.model
    if not isinstance(model, GenerationMixin) or not model.can_generate():
        raise NotTriedError("does not generate")
    inputs = dict(subject.inputs)
    inputs.pop("decoder_input_ids", None)
    if subject.is_text:
        inputs |= padded("left")
    if model.config.is_encoder_decoder and model.generation_config.decoder_start_token_id is None:
        model.generation_config.decoder_start_token_id = PAD
    torch.manual_seed(0)
    with torch.no_grad():
        out = model.generate(
            **inputs,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **setting,
        )
    logits = dict(enumerate(out.logits or ())) if setting.get("num_beams", 1) == 1 else {}
    return {"ids": out.sequences.double(), **{f"logits of token {at}": x for at, x in logits.items()}}


def greedy(subject: Subject) -> Numbers:
    return generated(subject)


def static(subject: Subject) -> Numbers:
    return generated(subject, cache_implementation="static", disable_compile=True)


def beams(subject: Subject) -> Numbers:
    return generated(subject, num_beams=3)


def compiled(subject: Subject) -> Numbers:
    """What torch.compile traces, run by torch's own operators; padding on the left, if there is any."""
    torch._dynamo.reset()
    subject = copy.copy(subject)
    subject.model = torch.compile(subject.model, backend="eager")
    try:
        with torch.no_grad():
            return subject.states("left" if subject.is_text else None)
    finally:
        torch._dynamo.reset()


Way = Callable[[Subject], Numbers]
WAYS: dict[str, Way] = {way.__name__: way for way in (forward, left, right, training, greedy, static, beams, compiled)}


# ---------------------------------------------------------------- the comparison


def outcomes(kind: Any) -> dict[str, str]:
    """Returns "same", "as SDPA", "refused: …", "differs: …" or "not tried: …" by way; under "all" if it is one."""
    try:
        subject = Subject(kind)
    except NotTriedError as error:
        return {"all": f"not tried: {error}"}
    return {name: outcome(way, subject) for name, way in WAYS.items()}


def outcome(way: Way, subject: Subject) -> str:
    try:
        eager = run(way, subject, "eager")
    except NotTriedError as error:
        return f"not tried: {error}"
    except Exception as error:
        return f"not tried: eager too gives {said(error)}"
    if any(x.isnan().any() for x in eager.values()):
        return "not tried: eager gives NaN"
    try:
        with Counted() as counted:
            ours = run(way, subject, "headway")
    except HeadwayError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"differs: {said(error)}"
    if not counted.calls:
        return "not tried: its attention does not call the interface"
    apart, where = difference(eager, ours, gradients=way is training)
    if apart <= CLOSE or rounded_alone(way, subject, eager, ours):
        return SAME
    return "as SDPA" if as_sdpa(way, subject, ours) else f"differs: {apart:.1e} at {where}"


def run(way: Way, subject: Subject, implementation: str) -> Numbers:
    subject.model.set_attn_implementation(implementation)
    return way(subject)


def rounded_alone(way: Way, subject: Subject, eager: Numbers, ours: Numbers) -> bool:
    """Whether results agree in float64, and the error of those in float32 is at most four times eager's."""
    wide = subject.double()
    try:
        exact, found = (run(way, wide, name) for name in ("eager", "headway"))
    except Exception:
        return False
    kind = way is training
    if difference(exact, found, gradients=kind)[0] > EXACT:
        return False
    error = difference(exact, eager, gradients=kind)[0]
    return difference(exact, ours, gradients=kind)[0] <= 4 * max(error, CLOSE)


def as_sdpa(way: Way, subject: Subject, ours: Numbers) -> bool:
    """Whether torch's SDPA gives ours, as where a result depends on what padding attends to."""
    try:
        return difference(run(way, subject, "sdpa"), ours, gradients=way is training)[0] <= CLOSE
    except Exception:
        return False


class Counted:
    """Counts the calls of headway's attention."""

    def __enter__(self) -> Counted:
        self.calls, self.before = 0, _attention.attention

        def counting(*given: Any, **more: Any) -> Tensor:
            self.calls += 1
            return self.before(*given, **more)

        _attention.attention = counting
        return self

    def __exit__(self, *_: Any) -> None:
        _attention.attention = self.before


def difference(expected: Numbers, found: Numbers, gradients: bool = False) -> tuple[float, str]:
    """The largest relative difference, and where it is; a gradient that is missing is zero."""
    if gradients:
        names = expected.keys() | found.keys()
        expected, found = ({name: one.get(name, torch.zeros(())) for name in names} for one in (expected, found))
    if expected.keys() != found.keys():
        return float("inf"), ", ".join(sorted(expected.keys() ^ found.keys()))
    largest = max((x.double().abs().max().item() for x in expected.values() if x.numel()), default=0.0)
    worst = (0.0, "")
    for name, a in expected.items():
        a, b = a.double(), found[name].double()
        if a.shape != b.shape and not gradients:
            return float("inf"), f"{name}, of shape {tuple(a.shape)} and {tuple(b.shape)}"
        if a.numel() and b.numel():
            apart, own = ((a - b).abs().masked_fill(a == b, 0.0).max().item(), a.abs().max().item())
            relative = apart / max(own, largest / 100, 1e-30) / 10 if gradients else apart / max(1.0, own)
            if not relative <= worst[0]:
                worst = (relative, name)
    return worst
