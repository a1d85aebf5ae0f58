import doctest

import pytest

import adagp.core.registry
from adagp.core.registry import Registry
from adagp.errors import OptionError


@pytest.fixture
def colours() -> Registry[int]:
    registry = Registry[int]("colour")
    registry.add("red", 1)
    registry.add("blue", 2)
    return registry


def test_keeps_insertion_order(colours: Registry[int]) -> None:
    assert list(colours) == ["red", "blue"]
    assert len(colours) == 2
    assert "red" in colours
    assert "green" not in colours
    assert [colours[name] for name in colours] == [1, 2]


def test_rejects_duplicate_names_and_keeps_the_first(colours: Registry[int]) -> None:
    with pytest.raises(OptionError) as caught:
        colours.add("red", 3)
    assert str(caught.value) == "colour 'red' is registered already; pick another name."
    assert colours["red"] == 1


def test_unknown_names_list_the_options(colours: Registry[int]) -> None:
    with pytest.raises(OptionError) as caught:
        colours["bleu"]
    assert str(caught.value) == "unknown colour 'bleu'. Did you mean 'blue'? Choose from: blue, red."
    assert caught.value.__suppress_context__


def test_register_returns_what_it_decorates() -> None:
    registry = Registry[type]("kind")

    @registry.register("own")
    class Own:
        pass

    assert registry["own"] is Own


def test_docstring_example() -> None:
    results = doctest.testmod(adagp.core.registry)
    assert results.attempted == 3
    assert results.failed == 0
