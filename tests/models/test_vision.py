"""What is said where torchvision or timm is missing."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from adagp.errors import ModelError
from adagp.models import vision


def hide(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == hidden else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torchvision")
    with pytest.raises(ModelError) as caught:
        vision._prepare.__wrapped__()  # past the cache, which must keep what it declared
    expected = "torchvision is needed here and is not installed: pip install '.[models]'."
    assert str(caught.value) == expected


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "timm")
    with pytest.raises(ModelError) as caught:
        vision.load_timm()
    assert str(caught.value) == "timm is needed here and is not installed: pip install '.[models]'."
