"""Whose code a run folder may name."""

from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.run.origin import admit_code


@pytest.mark.parametrize(
    "config",
    [
        {"model": "resnet20", "method": "feedback"},
        {"model": "timm:resnet18"},
        {"model": "torchvision:resnet18"},
        {"model": "torchvision.models:resnet18"},
        {"model": "hf:a/config.json"},
    ],
)
def test_models_of_installed_libraries_are_no_code_of_the_folder(config: dict[str, Any]) -> None:
    admit_code(config, Path("run"))


@pytest.mark.parametrize(
    ("option", "name"),
    [("model", "own:model"), ("model", "hf.own:model"), ("model", "torchvisions:it"), ("method", "timm:Source")],
)
def test_other_code_needs_the_users_word(option: str, name: str) -> None:
    with pytest.raises(RunError) as caught:
        admit_code({option: name}, Path("run"))
    assert str(caught.value) == (
        f"the run in 'run' wants to run code that it names itself: --{option} {name}. If you know it and trust it, give "
        f"--{option} {name} as well, or --trust."
    )
    admit_code({option: name}, Path("run"), [name])
    admit_code({option: name}, Path("run"), trust=True)
