"""Every family, over the table: headway's model of a config is transformers' own."""

from pathlib import Path
from typing import Any

import pytest

from headway.checkpoints import ARCHITECTURES, FAMILIES
from headway.testing.checkpoints import check_family

pytest.importorskip("transformers")

EXAMPLES = [
    pytest.param(config, id=f"{name}-{number}-{config['architectures'][0]}")
    for name, family in FAMILIES.items()
    if family.oracle is None
    for number, config in enumerate(family.examples)
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("config", EXAMPLES)
def test_the_model_is_that_of_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    check_family(config, tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_exists_there(architecture: str) -> None:
    import transformers

    assert hasattr(transformers, architecture) == (ARCHITECTURES[architecture].oracle is None)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_an_example_with_a_head_and_one_without(name: str) -> None:
    family = FAMILIES[name]
    shown = {family.architectures[config["architectures"][0]] for config in family.examples}
    assert shown == set(family.architectures.values())
