"""The data file of published figures: complete sources, numbers where they are, and what is said of a wrong name."""

from collections.abc import Iterator
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.program.reproduce.published import INHERITED, Number, published, published_sections


def numbers(content: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all plain numbers below `content`, settings and claims aside."""
    for name, value in content.items():
        if isinstance(value, dict) and name != "claims":
            yield from numbers(value, *path, name)
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in INHERITED:
            yield (*path, name)


@pytest.mark.parametrize("name", published_sections())
def test_every_number_has_a_source(name: str) -> None:
    section = published(name)
    assert section.paper
    assert len({item.path for item in section.items()}) == len(section.items())
    for path in numbers(section.content):
        number = section.number(*path)
        assert number.source
        assert number.tolerance is None or number.tolerance >= 0


def test_what_holds_around_a_number_holds_for_it() -> None:
    assert published("adagp-table1").number("cifar10", "vgg13", "bp") == Number(
        91.52, "% top-1", "Table 1, page 9", 1.0, path="adagp-table1/cifar10/vgg13/bp"
    )
    gain = published("adagp-table1").number("gain", "average", "cifar10")
    path = "adagp-table1/gain/average/cifar10"
    assert gain == Number(0.75, "points", "section 6.1.1, page 9", 0.01, path=path)
    assert published("adagp-figure15").number("mse", "largest").read_off
    assert not published("adagp-figure15").number("mape", "first_layer_end").read_off


def test_numbers_leave_settings_out() -> None:
    assert published("adagp-figure20").numbers("steps_gp_bp") == {"gpipe": 25, "dapple": 25, "chimera": 20}


def test_an_unknown_section_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"^unknown published section 'adagp-table'\. Did you mean 'adagp-table\d'\?"):
        published("adagp-table")
