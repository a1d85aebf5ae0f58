"""A compiled model against the same one run as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.marks import slow
from torch import nn

from adagp import METHODS, EngineOptions, Epochs, attach
from adagp.engine.trainer import Trainer
from adagp.errors import OptionError
from adagp.schedules import parse_schedule

# torch's compiler looks at `.grad` of tensors inside the graph, and hides the warning in a way that -W error does not see.
pytestmark = [
    pytest.mark.medium,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def build(change: Callable[[nn.Module], nn.Module] = lambda model: model, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return attach(change(model), optimizer, **{"method": "adagp", "length": Epochs(2, 4), **options})


def train(trainer: Trainer, batches: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(batches):
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


def compiled_block(model: nn.Module) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    model[0] = torch.compile(nn.Sequential(model[0], model[1]), backend="aot_eager")  # type: ignore[assignment]
    model[1] = nn.Identity()
    return model


def same_block(model: nn.Module) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    model[0] = nn.Sequential(model[0], model[1])
    model[1] = nn.Identity()
    return model


# Sources that differ in how they watch layers; the others watch nothing, or as these do.
DIFFERENT = ("adagp", "feedback", "dni", "dni_decoupled", "topk", "fa", "dfa", "replay")
WITH_SOURCE = [name if name in DIFFERENT else slow(name) for name in METHODS if name != "bp"]


@pytest.mark.parametrize("method", WITH_SOURCE)
def test_every_source_acts_in_a_compiled_model(method: str) -> None:
    """Also where a block alone is compiled, whose hooks torch's compiler traces."""
    expected = train(build(same_block, method=method, schedule="1:1", warmup=0), 4)
    found = train(build(compiled_block, method=method, schedule="1:1", warmup=0), 4)
    whole = train(
        build(same_block, method=method, schedule="1:1", warmup=0, engine=EngineOptions(compile="aot_eager")), 4
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name.replace("0.", "0._orig_mod.", 1) if name[0] == "0" else name], value)
        torch.testing.assert_close(whole[name], value, msg=name)


@pytest.mark.parametrize("method", ["feedback", "dni", "topk"])
def test_gradient_hooks_act_in_a_model_that_its_user_compiled(method: str) -> None:
    expected = train(build(method=method, schedule="1:1", warmup=0), 4)
    compiled: Any = lambda model: torch.compile(model, backend="aot_eager")  # noqa: E731
    found = train(build(compiled, method=method, schedule="1:1", warmup=0), 4)
    for name, value in expected.items():
        torch.testing.assert_close(found[f"_orig_mod.{name}"], value)


def test_without_a_compiler_it_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
