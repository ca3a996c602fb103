"""Packages that only some parts need: imported when they are there, named with their extra when not."""

import sys

import pytest

from headway import HeadwayError
from headway.extras import need


def test_what_is_there_is_imported() -> None:
    assert need("json.decoder", "this") is sys.modules["json.decoder"]


def test_what_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(HeadwayError, match=r"counting needs no_such_package: pip install 'headway\[vectors\]'"):
        need("no_such_package.part", "counting")


def test_what_a_package_itself_lacks_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"json\.no_such_part"):
        need("json.no_such_part", "counting")
