"""The base class keeps what a constructor was given, so that a class need not hold it under the same name."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.positions import PositionEncoding, encoding_name
from headway.terms import Clip, DistanceBias, Rows


class Bias(PositionEncoding):
    """Keeps none of its arguments."""

    def __init__(self, num_heads: int, reach: int = 4, *, table: Tensor | None = None) -> None:
        super().__init__()
        rows = torch.zeros(num_heads, 2 * reach + 1) if table is None else table
        self.rows = nn.Parameter(rows)

    def terms(self, *_: Any) -> tuple[DistanceBias, ...]:
        reach = self.rows.shape[1] // 2
        return (DistanceBias(Rows(self.rows, Clip(-reach, reach))),)


class Fixed(Bias):
    """Names a size only for its base."""

    def __init__(self, *, steep: float = 2.0, **others: Any) -> None:
        super().__init__(6, **others)


class Twice(Bias):
    """Gives its base another number than it was given."""

    def __init__(self, reach: int) -> None:
        super().__init__(4, 2 * reach)


class Holds(Bias):
    """Holds an attribute of an argument's name."""

    def __init__(self, num_heads: int, reach: int) -> None:
        super().__init__(num_heads, reach)
        self.reach = min(reach, 3)


class Inherits(Bias):
    """Has no constructor of its own."""


class Stretches(PositionEncoding):
    """Has an argument of the name of an attribute of the base class."""

    def __init__(self, axes: int = 1, *widths: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("built", "arguments", "heads", "name"),
    [
        (lambda: Bias(8), {"num_heads": 8, "reach": 4, "table": None}, 8, "Bias"),
        (lambda: Bias(num_heads=8, reach=2), {"num_heads": 8, "reach": 2, "table": None}, 8, "Bias(reach=2)"),
        (lambda: Bias(2, 1, table=torch.ones(2, 3)), {"num_heads": 2, "reach": 1}, 2, "Bias(reach=1)"),
        (lambda: Fixed(steep=1.0, reach=3), {"steep": 1.0}, 6, "Fixed(steep=1.0)"),
        (lambda: Twice(3), {"reach": 3}, 4, "Twice(reach=3)"),
        (lambda: Holds(5, 9), {"num_heads": 5, "reach": 3}, 5, "Holds(reach=3)"),
        (lambda: Inherits(3, 7), {"num_heads": 3, "reach": 7, "table": None}, 3, "Inherits(reach=7)"),
        (lambda: Stretches(3, 1, 2), {"axes": 3}, None, "Stretches(axes=3)"),
    ],
)
def test_what_a_constructor_was_given(built: Any, arguments: dict[str, Any], heads: int | None, name: str) -> None:
    encoding = built()
    for each in (encoding, copy.deepcopy(encoding), copy.copy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert each.arguments() == arguments
        assert each.sizes.num_heads == heads
        assert encoding_name(each) == name
        assert all(f"{key}={value!r}" in repr(each) for key, value in arguments.items())


def test_a_wrong_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'num_heads'"):
        Bias()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        Bias(4, depth=3)  # type: ignore[call-arg]
    with pytest.raises(hw.HeadwayError, match="needs num_heads"):
        hw.encoding(Bias)


def test_a_part_gives_its_sizes() -> None:
    sizes = hw.positions.Compose(Bias(6), hw.encoding("rope", head_dim=16)).sizes
    assert (sizes.num_heads, sizes.head_dim) == (6, 16)


def test_no_tensor_is_kept() -> None:
    table = torch.ones(2, 3)
    encoding = Bias(2, 1, table=table)
    assert not [value for value in vars(encoding).get("_given", {}).values() if isinstance(value, Tensor)]


def test_a_checkpoint_has_no_arguments() -> None:
    assert list(Bias(2).state_dict()) == ["rows"]


def test_a_compiled_function_builds_one() -> None:
    torch.compiler.reset()
    q, k, v = torch.randn(3, 1, 2, 6, 8)

    def run(q: Tensor) -> Tensor:
        return hw.attention(q, k, v, encoding=hw.positions.ALiBi(num_heads=2))

    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(q), run(q))
