"""Old names work, warn, and say the new one."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

from headway import attention_with_lse
from headway._common.deprecated import deprecated_names
from headway.nn import Head, StackCache
from headway.positions import ALiBi
from headway.study.word_vectors import Comparison

RENAMED = [
    ("headway.nn", "pack", "prepack"),
    ("headway.nn", "unpack", "unprepack"),
    ("headway.study.word_vectors", "chosen_ways", "chosen_methods"),
    ("headway.study.word_vectors", "ways", "methods"),
    ("headway.terms", "Steps", "Bucketize"),
    ("headway.terms", "Temperature", "QueryScale"),
]
"""Module, old name, new name."""


ATTRIBUTES = [
    (StackCache(2), "held", "retention"),
    (Head(4, 5), "packed", "prepacked"),
    (Comparison([], {}, []), "ways", "methods"),
]
"""Object, old attribute, new attribute."""


@pytest.mark.parametrize(("thing", "old", "new"), ATTRIBUTES)
def test_an_attribute_that_was_renamed(thing: object, old: str, new: str) -> None:
    name = type(thing).__name__
    with pytest.warns(DeprecationWarning, match=rf"{name}\.{old} is deprecated .*: use {name}\.{new}") as seen:
        assert getattr(thing, old) == getattr(thing, new)
    assert seen[0].filename == __file__


def test_held_is_a_field_of_sizes() -> None:
    encoding = ALiBi(4)
    for name, size in encoding.sizes._asdict().items():
        with pytest.warns(DeprecationWarning, match=r"held\(name\) is deprecated .*: use PositionEncoding.sizes"):
            assert encoding.held(name) == size
    assert encoding.sizes.num_heads == 4


def test_partial_is_the_opposite_of_include_sink() -> None:
    q, k, v, sink = *torch.randn(3, 1, 2, 4, 8), torch.randn(2)
    for partial in (True, False):
        with pytest.warns(DeprecationWarning, match=f"use include_sink={not partial}") as seen:
            found = attention_with_lse(q, k, v, sink=sink, partial=partial)
        assert seen[0].filename == __file__
        expected = attention_with_lse(q, k, v, sink=sink, include_sink=not partial)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_a_name_that_was_renamed(module: str, old: str, new: str) -> None:
    room = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is deprecated .*: use {new}"):
        assert getattr(room, old) is getattr(room, new)
    assert old not in getattr(room, "__all__", ())


def test_other_names_are_missing_as_ever() -> None:
    attribute = deprecated_names("headway.errors", {"Error": "HeadwayError"})
    with pytest.raises(AttributeError, match=r"module 'headway\.errors' has no attribute 'Errors'"):
        attribute("Errors")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert attribute("Error").__name__ == "HeadwayError"
    assert [w.category for w in seen] == [DeprecationWarning]
