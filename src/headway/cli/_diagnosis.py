"""Checks an installation: what it has, whether it computes correctly, and how to repair it. Needs only torch."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headway

from .._common.extras import PACKAGES, Package, install_command, library_command, pip_install
from .._common.files import cache_folder, given_path
from .._common.language import chosen, columns_of, padded, said, speaking, to_say
from ..attention import attention, attention_steps, explain
from ..bench.machine import cores, processor
from ..errors import HeadwayError, nearest
from ..kernels import KERNELS, _tuned
from ..kernels.cpu import _library
from ..masks import Causal
from ..positions import encoding
from ..testing.tolerances import GRADIENT_FACTOR, OUTPUT_FACTOR, Comparison

VARIABLES = {
    "HEADWAY_ISA": "the instruction set of the CPU kernel",
    "HEADWAY_LINEAR_KERNEL": "the matrix products of linear maps: auto, onednn or torch",
    "HEADWAY_LIBRARY": "the file of the CPU kernel's C++ library",
    "HEADWAY_CACHE": "the folder in which headway keeps models that it trained, and names for completion",
    "HEADWAY_TUNED": "the table of `headway tune`, or a folder of them; off for none",
    "HEADWAY_WEIGHTS": "the folder of the published weights that `make weights` downloads",
    "HEADWAY_DATA": "the folder of texts for lessons that headway does not include",
}
"""The environment variables that headway reads, and the meaning of each."""

THREADING = ("OMP_NUM_THREADS", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_PROC_BIND", "MKL_NUM_THREADS")
"""Environment variables of OpenMP and MKL that decide how many threads torch has."""

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes in which each kernel is checked."""


@dataclass(frozen=True)
class Fault:
    """Something that is broken, missing or slow."""

    what: str
    remedy: str
    """The command or the step that mends it."""
    broken: bool = False
    """Whether something that is installed does not work."""


@dataclass
class Section:
    """The result of one check: facts by name, with notes on some of them, and faults."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers, texts and lists of texts."""
    notes: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """The sections of all checks, by their titles."""

    sections: dict[str, Section]

    @property
    def faults(self) -> list[Fault]:
        """All faults, broken things first."""
        faults = [fault for section in self.sections.values() for fault in section.faults]
        return sorted(faults, key=lambda fault: not fault.broken)

    @property
    def works(self) -> bool:
        """Whether nothing is broken."""
        return not any(fault.broken for fault in self.faults)

    def json(self) -> dict[str, Any]:
        """Returns everything as one object for JSON: "works", "faults", and the facts of each section."""
        faults = [{"what": one.what, "remedy": one.remedy, "broken": one.broken} for one in self.faults]
        return {"works": self.works, "faults": faults, **{name: its.facts for name, its in self.sections.items()}}

    def __str__(self) -> str:
        lines = []
        for title, section in self.sections.items():
            named = {said(name): (name, value) for name, value in section.facts.items()}
            width = max(map(columns_of, named), default=0)
            lines.append(said(title))
            for shown, (name, value) in named.items():
                fact = (", ".join(map(str, value)) or said("none")) if isinstance(value, list) else str(value)
                if name in section.notes:
                    fact = said("{fact} ({note})", fact=fact, note=said(section.notes[name]))
                lines.append(f"  {padded(shown, width)}  {fact}")
            lines += [] if section.facts else [f"  {said('none')}"]
            lines.append("")
        for title, broken in ((said("broken"), True), (said("missing, or to be improved"), False)):
            its = [fault for fault in self.faults if fault.broken == broken]
            lines += [title] if its else []
            for fault in its:
                lines += [f"  • {fault.what}", *([] if fault.remedy in fault.what else [f"    → {fault.remedy}"])]
            lines += [""] if its else []
        lines.append(said("What is installed works." if self.works else "Something is broken; see above."))
        return "\n".join(lines)


def examine() -> Diagnosis:
    """Runs all checks. A check that raises an error becomes a fault, and the others still run."""
    sections = {}
    for title, check in CHECKS.items():
        try:
            sections[title] = check()
        except Exception as error:  # an installation can be wrong in any way
            why = " ".join(f"{type(error).__name__}: {error}".split())
            # headway's own errors end with a remedy
            remedy = str(error) if isinstance(error, HeadwayError) else _reported()
            fault = Fault(said("{title} cannot be examined: {why}", title=said(title), why=why), remedy, True)
            sections[title] = Section({"error": why}, faults=[fault])
    return Diagnosis(sections)


def show(as_json: bool) -> int:
    """Examines the installation, prints the result, and returns the exit code: 0, or 1 if something is broken."""
    with speaking("en" if as_json else chosen()):
        diagnosis = examine()
        print(json.dumps(diagnosis.json(), indent=2, ensure_ascii=False) if as_json else diagnosis)
    return 0 if diagnosis.works else 1


def _reported() -> str:
    return said(
        "{command} builds the library again; if that does not help, report it with this page", command=library_command()
    )


# ---------------------------------------------------------------- versions


def versions() -> Section:
    """The versions of headway, Python and the packages, and the purpose of each missing package."""
    place = said("{version}, in {folder}", version=headway.__version__, folder=Path(headway.__file__).parent)
    section = Section({"headway": place})
    section.facts["Python"] = f"{platform.python_version()}, {sys.executable}"
    lacking: list[Package] = []
    wanted = _least_versions()
    for module, package in {"torch": None, **PACKAGES, "transformers": None}.items():
        name = module if package is None else package.name
        there, least = _version(name), wanted.get(_key(name))
        section.facts[name] = there or said("missing")
        if package is not None:
            section.notes[name] = package.needed_for
        elif there is None:
            section.notes[name] = said(
                "models of transformers on headway's attention: {command}", command=pip_install(name)
            )
        if there is None:
            if package is not None:
                lacking.append(package)
        elif least is not None and _numbers(there) < _numbers(least):
            remedy = pip_install("--upgrade", f"{name}>={least}")
            older = "{name} {there} is older than {least}, which headway needs"
            section.faults.append(Fault(said(older, name=name, there=there, least=least), remedy, True))
        elif not _found(module):
            remedy = pip_install("--force-reinstall", name)
            lost = said("{name} {there} is installed, and Python does not find it", name=name, there=there)
            section.faults.append(Fault(lost, remedy, True))
    if lacking:
        names = said(", ").join(
            said("{fact} ({note})", fact=package.name, note=said(package.needed_for)) for package in lacking
        )
        extras = ",".join(dict.fromkeys(package.extra for package in lacking))
        section.faults.append(Fault(said("not installed: {names}", names=names), install_command(extras)))
    return section


def _key(package: str) -> str:
    """The name of a package as pip normalizes it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _found(module: str) -> bool:
    """Whether Python finds a module; it is not imported."""
    try:
        return find_spec(module) is not None
    except ValueError:
        return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _least_versions() -> dict[str, str]:
    """The least version of each package in headway's metadata; empty for a source tree without metadata."""
    named = [] if _version("headway") is None else requires("headway") or []
    matches = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in named)
    return {_key(one[1]): one[2] for one in matches if one is not None}


def _numbers(text: str) -> list[int]:
    """The numbers at the beginning of a version: 2.13.0+cpu is 2, 13, 0."""
    return [int(part) for part in re.match(r"[\d.]*", text)[0].strip(".").split(".") if part]  # type: ignore[index]


# ---------------------------------------------------------------- the machine


def machine() -> Section:
    """The processor and the number of threads."""
    threads, there = torch.get_num_threads(), cores()
    section = Section({"system": platform.platform(), "processor": processor(), "cores": there, "threads": threads})
    section.facts |= {name: os.environ[name] for name in THREADING if name in os.environ}
    if threads > there:
        section.faults.append(
            Fault(
                said(
                    "torch has {threads} threads for {cores} cores, which slows it down", threads=threads, cores=there
                ),
                said("set OMP_NUM_THREADS={cores}, or call torch.set_num_threads({cores})", cores=there),
            )
        )
    return section


def graphics() -> Section:
    """CUDA as torch sees it, and the precision of float32 products."""
    section = Section({"float32 matmul precision": torch.get_float32_matmul_precision()})
    driver = shutil.which("nvidia-smi") is not None
    if torch.version.cuda is None:
        section.facts["CUDA"] = said("none: this torch was built without it")
        if driver:
            section.faults.append(
                Fault(
                    said("this machine has an NVIDIA driver, and this torch was built without CUDA"),
                    said("install another build of torch: https://pytorch.org/get-started/locally"),
                )
            )
        return section
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
    section.facts["CUDA"] = f"{torch.version.cuda}, {', '.join(devices) if devices else said('no device')}"
    if driver and not there:
        why = " ".join(str(warned[0].message).split()) if warned else said("it gives no reason")
        section.faults.append(
            Fault(
                said("this machine has an NVIDIA driver, but torch finds no device: {why}", why=why),
                said("run nvidia-smi; if it shows a device, install the build of torch for its CUDA version"),
            )
        )
    return section


# ---------------------------------------------------------------- kernels


def library() -> Section:
    """The C++ library of the CPU kernel."""
    place = _library.place()
    section = Section({"file": str(place), "interface": _library.VERSION})
    try:
        loaded = _library.load()
    except HeadwayError as error:  # HEADWAY_ISA
        cannot = said("the kernel cpu cannot run: {why}", why=error)
        section.faults.append(Fault(cannot, said("unset {variable}", variable="HEADWAY_ISA"), True))
        return section
    if loaded.c is None:
        there = place.exists() or "HEADWAY_LIBRARY" in os.environ
        compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
        section.facts |= {"loaded": said("no"), "compiler": compiler or said("none found")}
        remedy = library_command()
        if "HEADWAY_LIBRARY" in os.environ:
            remedy = said("unset {variable}", variable="HEADWAY_LIBRARY")
        slower = said("the kernel cpu cannot run, and auto takes slower ones: {why}", why=loaded.why_not)
        section.faults.append(Fault(slower, remedy, there))
        return section
    section.facts["instruction set"] = said("{isa}, of {isas}", isa=_library.isa(), isas=", ".join(loaded.isas))
    if note := _library.note():
        section.faults.append(
            Fault(f"the kernel cpu {note}", said("report it with this page, which names the build of torch"))
        )
    return section


def kernels() -> Section:
    """The kernels that compute a call with ALiBi on the CPU, and the reasons against the others."""
    section = Section()
    q, k, v = _inputs(torch.float32, "cpu")
    for name, reasons in explain(q, k, v, **_arguments("cpu")).reasons.items():
        reasons = [reason.removesuffix(", and q is on cpu") for reason in reasons]  # the q of this function
        section.facts[name] = said("available") if not reasons else "; ".join(reasons)
    return section


def tables() -> Section:
    """The results of `headway tune` for each device."""
    found = Section()
    for place in ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))):
        own, shipped, dropped = _tuned.known(place)
        if own is not None:
            wrong = {name: parts for name, parts in own.failed.items() if parts}
            found.facts[place] = said(
                "verified and measured on {date}, {count} rows", date=own.date, count=len(own.rows)
            )
            for name, parts in wrong.items():
                what = "; ".join(f"{part}: {why}" for part, why in parts.items())
                wrongly = said("the kernel {name} is wrong on {place}: {what}", name=name, place=place, what=what)
                found.faults.append(Fault(wrongly, _reported(), True))
        else:
            known = said("auto leaves what it can to torch")
            if shipped:
                known = said(
                    "as measured on other machines ({names})", names=said(", ").join(table.name for table in shipped)
                )
            found.facts[place] = said("not verified on this machine: {known}", known=known)
            if dropped or not shipped:
                nothing = dropped or said("nothing was measured on {place}", place=place)
                found.faults.append(Fault(nothing, "headway tune"))
    return found


def results() -> Section:
    """Output and gradients of each kernel against float64, as multiples of the naive error (DESIGN.md)."""
    bounds = "{output:g} for outputs, {gradient:g} for gradients"
    section = Section({"bounds": said(bounds, output=OUTPUT_FACTOR, gradient=GRADIENT_FACTOR)})
    section.notes["bounds"] = to_say("times the error of the naive computation in the same dtype")
    exact = _computed(torch.float64, "cpu", "reference")
    for device, dtype, name in product(("cpu", "cuda") if torch.cuda.is_available() else ("cpu",), DTYPES, KERNELS):
        q, k, v = _inputs(dtype, device)
        if explain(q, k, v, kernel=name, **_arguments(device)).kernel is None:
            continue
        what = f"{name}, {str(dtype).removeprefix('torch.')}" + (f", {device}" if device != "cpu" else "")
        try:
            output, *gradients = _errors(_computed(dtype, device, name), _computed(dtype, device, None), exact)
            right = "right: output {output:.2f}, gradients {gradients:.2f}"
            section.facts[what] = said(right, output=output, gradients=max(gradients))
        except Exception as error:  # also of a kernel that cannot be called
            why = " ".join(f"{error}".split())
            section.facts[what] = said("wrong: {why}", why=why)
            wrong = said("the kernel {what} computes wrong numbers: {why}", what=what, why=why)
            section.faults.append(Fault(wrong, _reported(), True))
    return section


def _errors(computed: list[Tensor], naive: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Each error as a multiple of the naive computation's. Raises AssertionError if one is above its bound."""
    errors = []
    for name, a, b, c in zip(
        ("output", "gradient of q", "gradient of k", "gradient of v"), computed, naive, exact, strict=True
    ):
        comparison = Comparison(name, OUTPUT_FACTOR if name == "output" else GRADIENT_FACTOR)
        comparison.add(a, b, c)
        comparison.check()
        errors.append(comparison.actual[0].mean().item() / max(comparison.naive[0].mean().item(), 1e-30))
    return errors


def _inputs(dtype: torch.dtype, device: str) -> list[Tensor]:
    """q, k and v, the same numbers in every dtype."""
    draw = torch.Generator().manual_seed(0)
    values = [torch.randn(2, 4, 48, 16, generator=draw, dtype=torch.float64).bfloat16() for _ in range(3)]
    return [value.to(device, dtype).requires_grad_() for value in values]


def _arguments(device: str) -> dict[str, Any]:
    return {"encoding": encoding("alibi", num_heads=4).to(device), "mask": Causal()}


def _computed(dtype: torch.dtype, device: str, kernel: str | None) -> list[Tensor]:
    """The output and the gradients of q, k and v, on the CPU; by the naive computation if ``kernel`` is None."""
    inputs = _inputs(dtype, device)
    with torch.enable_grad():
        if kernel is None:
            out = attention_steps(*inputs, **_arguments(device)).output
        else:
            out = attention(*inputs, kernel=kernel, **_arguments(device))
        upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
        return [part.detach().cpu() for part in (out, *torch.autograd.grad(out, inputs, upstream))]


# ---------------------------------------------------------------- surroundings


def settings() -> Section:
    """The environment variables of headway that are set."""
    section = Section({name: os.environ[name] for name in VARIABLES if name in os.environ}, dict(VARIABLES))
    for name in sorted(os.environ):
        if name.startswith("HEADWAY_") and name not in VARIABLES:
            near = nearest(name, VARIABLES)
            meant = said("there are {names}", names=", ".join(VARIABLES))
            if near:
                meant = said("did you mean {names}?", names=said(" or ").join(near))
            section.faults.append(Fault(said("{name} is set, and headway does not read it", name=name), meant))
    if (data := os.environ.get("HEADWAY_DATA")) and not os.path.isdir(given_path(data)):
        no_folder = said("HEADWAY_DATA is {data}, which is not a folder", data=data)
        section.faults.append(Fault(no_folder, said("name a folder, or unset it")))
    return section


def files() -> Section:
    """The folders in which models are kept, and whether they can be written to."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    weights = given_path(os.environ.get("HEADWAY_WEIGHTS") or f"{home}/headway/weights")
    section, folders = Section(), {}
    try:
        folders["cache of headway"] = cache_folder(), "HEADWAY_CACHE"
    except HeadwayError as error:
        section.faults.append(Fault(f"{error}", said("set HEADWAY_CACHE to a folder"), True))
    section.facts |= {what: str(folder) for what, (folder, _) in folders.items()}
    section.facts["published weights"] = str(weights)
    section.facts["weights there"] = sorted(path.parent.name for path in weights.glob("*/headway.json"))
    if _version("huggingface_hub") is not None:
        from huggingface_hub import constants

        hub = given_path(constants.HF_HUB_CACHE)
        section.facts["cache of the hub"] = str(hub)
        names = (path.name.removeprefix("models--") for path in hub.glob("models--*") if path.is_dir())
        section.facts["models there"] = sorted(name.replace("--", "/") for name in names)
        folders["cache of the Hugging Face hub"] = hub, "HF_HOME"
    for what, (folder, variable) in folders.items():
        if (why := _not_writable(folder)) is not None:
            remedy = said("make it writable, or set {variable} to another folder", variable=variable)
            refused = said("the {what}, {folder}, cannot be written to: {why}", what=said(what), folder=folder, why=why)
            section.faults.append(Fault(refused, remedy, True))
    return section


def _not_writable(folder: Path) -> str | None:
    """Why a folder, or the folder that would contain it, cannot be written to; None if it can."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return said("{there} is a file", there=there)
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror or str(error)


def fonts() -> Section:
    """The fonts of pictures with Chinese text."""
    from .._common.fonts import fonts_for

    if _version("matplotlib") is None:
        return Section({"Chinese in pictures": said("no pictures without matplotlib")})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            return Section({"Chinese in pictures": fonts_for(["中文"])})
    except UserWarning as warning:
        what = str(warning).partition(":")[0]
        return Section({"Chinese in pictures": said("none")}, faults=[Fault(what, install_command("plot"))])


CHECKS: dict[str, Callable[[], Section]] = {
    "versions": versions,
    "machine": machine,
    "graphics": graphics,
    "library": library,
    "kernels": kernels,
    "tables": tables,
    "results": results,
    "settings": settings,
    "files": files,
    "fonts": fonts,
}
"""The checks by the titles of their sections."""
