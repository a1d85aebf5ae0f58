import pytest

from adagp.errors import AdagpError, DataError, ModelError, OptionError, RunError, UsageError, unknown_name


def test_unknown_name_lists_the_options_in_order() -> None:
    error = unknown_name("colour", "qq", ["red", "blue"])
    assert str(error) == "unknown colour 'qq'. Choose from: blue, red."


def test_unknown_name_offers_the_nearest_match_whatever_its_case() -> None:
    error = unknown_name("colour", "Redd", ["red", "blue"])
    assert str(error) == "unknown colour 'Redd'. Did you mean 'red'? Choose from: blue, red."


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (OptionError, ValueError),
        (ModelError, ValueError),
        (DataError, ValueError),
        (UsageError, RuntimeError),
        (RunError, RuntimeError),
    ],
)
def test_every_error_is_one_family_and_an_ordinary_python_error(
    kind: type[AdagpError], builtin: type[Exception]
) -> None:
    assert issubclass(kind, AdagpError)
    assert issubclass(kind, builtin)
