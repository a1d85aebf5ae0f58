"""The table of methods: what it holds, methods of users, and what is rejected."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from adagp.core.methods import (
    METHODS,
    AcceleratorWork,
    Method,
    accelerator_work,
    add_method,
    find_method,
    find_source,
    method_options,
    methods_with,
    register_method,
)
from adagp.core.options import Option
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.schedules import parse_schedule
from adagp.sources import RunFacts, Source, build_source, default_source

OWN = '''
import adagp

class Damped(adagp.Source):
    """Halves the last true gradient.

    More about it.
    """

    own_options = (adagp.Option("damping", float, 0.5, "Factor on the last true gradient.", low=0, high=1),)
    own_schedule = "2:1"

    def __init__(self, damping=0.5):
        self.damping = damping

    def produce(self, sites):
        return [None] * len(sites)

number = 3

def function():
    pass
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user with a source, and the table as it was afterwards."""
    (tmp_path / "users_source.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    yield "users_source:Damped"
    sys.modules.pop("users_source", None)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_its_source_and_has_a_schedule(name: str) -> None:
    method = METHODS[name]
    schedule = parse_schedule(method.schedule, epochs=20, source=method.source)
    if method.builds is None:
        assert (name, schedule.sources, method.source) == ("bp", frozenset(), "")
        return
    assert schedule.sources == {method.source}
    assert find_source(method.source) == method
    assert type(build_source(method, RunFacts(seed=3, epochs=8))) is type(default_source(method.source))


def test_options_reach_the_source() -> None:
    run = RunFacts(seed=3, epochs=8)
    options = {"predictor_lr": 0.5, "predictor_parts": 2, "normalize": True}
    predicted = build_source(METHODS["adagp"], run, options)
    learning = predicted.options  # type: ignore[attr-defined]
    assert (learning.learning_rate, learning.milestones, learning.seed) == (0.5, (4, 6), 3)
    assert (learning.normalize, learning.hold_norm, predicted.parts) == (True, False, 2)  # type: ignore[attr-defined]
    assert build_source(METHODS["remap"], run).options.plateau  # type: ignore[attr-defined]
    topk = build_source(METHODS["topk"], run, {"topk": 4, "published_scale": True})
    assert (topk.k, topk.scale) == (4, "published")  # type: ignore[attr-defined]
    assert build_source(METHODS["average"], run, {"average": 7}).last == 7  # type: ignore[attr-defined]
    assert build_source(METHODS["noise"], run).seed == 3  # type: ignore[attr-defined]
    assert build_source(METHODS["dni_labels"], run).needs_targets


def test_a_users_class_is_a_method(own: str) -> None:
    method = find_method(own)
    assert find_method(own) is method
    assert find_source(own) is method
    assert (method.description, method.schedule, method.source) == ("Halves the last true gradient", "2:1", own)
    assert methods_with("damping") == [own]
    assert build_source(method, RunFacts(), {"damping": 0.25}).damping == 0.25  # type: ignore[attr-defined]
    assert default_source(own).damping == 0.5  # type: ignore[attr-defined]
    assert find_method("adagp.papers.approximation.source:TopKSource") is METHODS["topk"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_source:Dumped", "module 'users_source' has no Class 'Dumped' (from 'users_source:Dumped')."),
        ("users_source:number", "'users_source:number' is of type int, which cannot be called."),
        (
            "users_source:function",
            "'users_source:function' is not a source of gradients: it must be a class derived from adagp.Source.",
        ),
        (
            "users_nothing:Damped",
            "cannot import 'users_nothing' of 'users_nothing:Damped': ModuleNotFoundError: No module named 'users_nothing'",
        ),
        (":Damped", "cannot read ':Damped'; a method of your own is named as package.module:Class."),
    ],
)
def test_invalid_methods_are_rejected(own: str, name: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        find_method(name)
    assert str(caught.value) == message


def test_a_registered_method_has_a_short_name(own: str) -> None:
    class Nothing(Source):
        """Gives nothing."""

        accelerator = AcceleratorWork()

        def produce(self, sites: list[Site]) -> list[Tensor | None]:  # type: ignore[override]
            return [None] * len(sites)

    register_method("nothing")(Nothing)
    assert METHODS["nothing"].description == "Gives nothing"
    assert accelerator_work("nothing") == AcceleratorWork()


def test_conflicting_options_are_rejected(own: str) -> None:
    with pytest.raises(OptionError) as caught:
        add_method(Method("mine", "mine", None, options=(Option("features", float, 1.0, "Another thing."),)))
    assert str(caught.value) == (
        "method 'mine' has an option 'features', which another method declares differently; give it another name."
    )
    assert method_options()["features"].kind is int


def test_methods_without_a_cost_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._things, "dni", replace(METHODS["dni"], accelerator=None))
    with pytest.raises(OptionError) as caught:
        accelerator_work("dni")
    assert str(caught.value) == (
        "method 'dni' declares no cost on an accelerator, so it cannot be simulated. "
        "Declare it: `accelerator = AcceleratorWork(...)` in the class of its source (see adagp.core.methods)."
    )
    with pytest.raises(
        OptionError,
        match=r"^unknown source 'nonsense'\. Did you mean 'noise'\? Choose from: average, control, dfa, dni, ",
    ):
        accelerator_work("nonsense")
    with pytest.raises(OptionError) as caught:
        AcceleratorWork("all")
    assert str(caught.value) == "unknown weight gradient 'all'. Choose from: exact, none, package.module:function."
