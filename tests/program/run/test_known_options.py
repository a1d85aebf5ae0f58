from pathlib import Path

import pytest

from adagp.errors import OptionError
from adagp.program.run.known_options import read_toml


def toml(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_toml_names_take_hyphens_and_underscores(tmp_path: Path) -> None:
    path = toml(tmp_path, 'batch-size = 8\nweight_decay = 0.5\nnormalize = true\nratio = "2:1"\n')
    assert read_toml(path) == {"batch_size": 8, "weight_decay": 0.5, "normalize": True, "ratio": "2:1"}


def test_toml_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        read_toml(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"cannot read the configuration file '{tmp_path / 'none.toml'}': No such file or directory."
    )
    with pytest.raises(OptionError) as caught:
        read_toml(tmp_path)
    assert str(caught.value) == f"cannot read the configuration file '{tmp_path}': Is a directory."


@pytest.mark.parametrize("text", ["epochs = ", "epochs 3"])
def test_broken_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"'{path}' is not valid TOML: ")


def test_toml_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = toml(tmp_path, b"\xff\xfe")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"cannot read the configuration file '{path}': it is not text."


def test_toml_options_are_checked_with_the_files_name(tmp_path: Path) -> None:
    path = toml(tmp_path, 'epochs = "three"')
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: option 'epochs' is 'three'; it must be of type int."
    path = toml(tmp_path, "[train]\nepochs = 3")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: unknown option 'train'. ")


def test_an_option_twice_in_toml_is_refused(tmp_path: Path) -> None:
    path = toml(tmp_path, "batch-size = 8\nbatch_size = 9")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: option 'batch_size' is given twice, with hyphens and with underscores."
