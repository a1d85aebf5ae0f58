from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.sources import BatchContext, MixedSource, ReplaySource, RunningNorms, Source, ZeroSource
from adagp.sources.base import ModelCall


class Noting(Source):
    """Answers with a constant, or nothing, and notes what it was called with."""

    learns = needs_error = True

    def __init__(self, value: float | None) -> None:
        self.value = value
        self.calls: list[str] = []

    def begin(self, context: BatchContext) -> None:
        self.calls.append("begin")

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        self.calls.append("watch")
        return output + 1

    def observe_error(self, call: ModelCall) -> None:
        self.calls.append("observe_error")

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        return [None if self.value is None else torch.full_like(site.weight, self.value) for site in sites]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        self.calls.append("observe")

    def forget(self) -> None:
        self.calls.append("forget")

    def end_epoch(self) -> None:
        self.calls.append("end_epoch")

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_adds_up_with_weights(sites: tuple[Site, ...]) -> None:
    mixture = MixedSource([(Noting(2.0), 0.5), (Noting(3.0), -1.0)])
    for one in mixture.produce(sites):
        assert one is not None
        assert torch.equal(one, torch.full_like(one, -2.0))
    assert MixedSource([(Noting(2.0), 0.5), (Noting(None), 1.0)]).produce(sites) == [None, None]


def test_every_part_is_told_everything(sites: tuple[Site, ...]) -> None:
    parts = Noting(1.0), Noting(2.0)
    mixture = MixedSource([(part, 1.0) for part in parts])
    mixture.bind(sites, RunningNorms(sites))
    mixture.begin(BatchContext(Step(0, 0)))
    changed = mixture.watch(sites[0], (), torch.zeros(1))
    assert changed is not None
    assert changed.item() == 2, "each part continues with what the one before made of the output"
    mixture.observe_error(ModelCall())
    mixture.observe(sites, [site.weight for site in sites])
    mixture.forget()
    mixture.end_epoch()
    for part in parts:
        assert part.calls == ["begin", "watch", "observe_error", "observe", "forget", "end_epoch"]
    assert mixture.learns
    assert mixture.needs_error
    assert not mixture.needs_backward
    other = MixedSource([(Noting(0.0), 1.0), (Noting(0.0), 1.0)])
    other.load_state_dict(mixture.state_dict())
    assert other.state_dict() == {"parts": [{"value": 1.0}, {"value": 2.0}]}


def test_parts_that_want_less_get_less(sites: tuple[Site, ...]) -> None:
    mixture = MixedSource([(ZeroSource(), 1.0), (ReplaySource(), 1.0)])
    mixture.bind(sites, RunningNorms(sites))
    mixture.observe_error(ModelCall())
    truths = [torch.ones_like(site.weight) for site in sites]
    mixture.observe(sites, truths)
    assert all(
        one is not None and torch.equal(one, truth) for one, truth in zip(mixture.produce(sites), truths, strict=True)
    )
    assert not mixture.needs_error


def test_a_mixture_of_nothing_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^a mixture needs at least one source\.$"):
        MixedSource([])
