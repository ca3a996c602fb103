"""What a kernel takes today it must not refuse tomorrow: the golden table term or encoding × kernel × gradient.

Made anew by ``python tests/conformance/test_what_kernels_take.py`` after a kernel has learned something.
"""

import json
from pathlib import Path
from unittest import mock

import torch

from headway.kernels import KERNELS, FlexKernel, Problem
from headway.kernels.cpu import _library
from headway.kernels.triton import _installed
from headway.masks import Causal
from headway.positions import ENCODINGS
from headway.testing.encodings import _layer, kernel_reasons
from headway.testing.kernels import CROSSINGS, build, replaces_softmax, term_names

GOLDEN = Path(__file__).parents[1] / "golden" / "what_kernels_take.json"


@mock.patch.object(FlexKernel, "devices", frozenset({"cpu"}))  # as if there were a GPU, here and for triton's programs
@mock.patch.object(_installed, "reason_against", return_value=None)
def taken_today(_: object) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, kind in ENCODINGS.items():
        for wants_gradient in (False, True):
            layer = _layer(kind.examples()[0], dtype=torch.float32)
            reasons = kernel_reasons(layer, mask=Causal(), wants_gradient=wants_gradient)
            row = f"encoding {name}, {'training' if wants_gradient else 'inference'}"
            found[row] = {kernel: "; ".join(against) or "taken" for kernel, against in reasons.items()}
    for term in term_names():
        for crossing in CROSSINGS:
            if replaces_softmax(term) and crossing not in ("alone", "cap"):
                continue
            for wants_gradient in (False, True):
                call, _ = build(term, crossing, "causal", 0, torch.float32, torch.float32)
                row = f"term {term}, {crossing}, {'training' if wants_gradient else 'inference'}"
                with torch.set_grad_enabled(wants_gradient):
                    found[row] = {
                        name: "; ".join(kernel.why_not(Problem.of(call))) or "taken" for name, kernel in KERNELS.items()
                    }
    return found


def test_nothing_taken_is_refused() -> None:
    golden = json.loads(GOLDEN.read_text())
    found = taken_today()
    assert set(found) == set(golden), "rows have come or gone: run this file to make the golden table anew"
    for row, kernels in golden.items():
        for kernel, was in kernels.items():
            if kernel == "cpu" and _library.why_not():
                continue
            now = found[row][kernel]
            assert was != "taken" or now == "taken", f"{kernel} took {row} and now refuses it: {now}"
            assert now == was, f"{kernel} on {row} was {was!r} and is {now!r}: run this file to make the table anew"


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(taken_today(), indent=1, ensure_ascii=False) + "\n")
