"""A compiled model against the same one run as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.marks import slow
from torch import nn

from adagp import EngineOptions, Epochs, attach
from adagp.engine.trainer import Trainer
from adagp.errors import OptionError
from adagp.schedules import parse_schedule

pytestmark = pytest.mark.medium


def build(change: Callable[[nn.Module], nn.Module] = lambda model: model, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return attach(change(model), optimizer, **{"method": "adagp", "length": Epochs(2, 4), **options})


def train(trainer: Trainer) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        inputs = torch.randn(5, 2, 7, 6, generator=generator)
        trainer.step(inputs, torch.randint(0, 3, (5,), generator=generator), F.cross_entropy)
    return trainer.model.state_dict()


@pytest.mark.parametrize("source", ["predicted", slow("remapped")])
def test_a_compiled_model_trains_as_it_does_uncompiled(source: str) -> None:
    """Warm-up, BP and GP batches. The backend here traces and differentiates, but makes no machine code."""
    schedule = parse_schedule("1:1", 2, source=source)
    expected = train(build(method=None, schedule=schedule))
    found = train(build(method=None, schedule=schedule, engine=EngineOptions(compile="aot_eager")))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_model_that_its_user_compiled_trains_as_well() -> None:
    expected = train(build(schedule="1:1"))
    found = train(build(lambda model: torch.compile(model, backend="aot_eager"), schedule="1:1"))  # type: ignore[arg-type, return-value]
    for name, value in expected.items():
        torch.testing.assert_close(found[f"_orig_mod.{name}"], value, rtol=1e-4, atol=1e-5, msg=name)


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(OptionError) as caught:
        build(schedule="1:1", engine=EngineOptions(compile=True))
    assert str(caught.value) == (
        "compiling a model for the CPU needs a C++ compiler; g++ and clang++ cannot be found. "
        "Install one, name it in the environment variable CXX, or do not compile."
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(OptionError, match=r"^compiling .* C\+\+ compiler; no-such-compiler cannot be found\."):
        build(schedule="1:1", engine=EngineOptions(compile=True))
