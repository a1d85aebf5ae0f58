"""The contract of a source, running norms, random numbers by step, gradient hooks."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp.core.plan import Step
from adagp.errors import UsageError
from adagp.layers.sites import Site, survey
from adagp.sources import Source
from adagp.sources.base import RunningNorms, on_gradient, step_generator


class Nothing(Source):
    """The least that a source must have."""

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        return [torch.zeros_like(site.weight) for site in sites]


def test_a_source_needs_one_method_only(sites: tuple[Site, ...]) -> None:
    source = Nothing()
    assert not source.learns
    source.bind(sites, RunningNorms(sites))
    source.watch(sites[0], (), torch.zeros(1))
    source.observe(sites, [site.weight for site in sites])
    source.forget()
    source.end_epoch()
    source.load_state_dict(source.state_dict())
    assert source.state_dict() == {}


class Quick(Nothing):
    """Learns without copies of the true gradients."""

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        return lambda: None


def test_overriding_a_method_that_is_not_called_is_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        type("Mine", (Quick,), {"observe": lambda self, sites, gradients: None})
    assert str(caught.value) == (
        "Mine overrides observe(), which is not called: Quick learns in prepare_learning(). Override that one."
    )


SITES = survey(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))).sites


def running_mean(values: list[float], decay: float) -> float:
    """Average plainly while the share of the newest value is above 1 - decay, exponentially after that."""
    mean = 0.0
    for count, value in enumerate(values, start=1):
        share = 1 / count if 1 / count > 1 - decay else 1 - decay
        mean = (1 - share) * mean + share * value
    return mean


BATCHES = st.lists(st.dictionaries(st.integers(0, 2), st.floats(0, 100), min_size=1), max_size=40)


@given(BATCHES, st.sampled_from([0.5, 0.9, 0.95]))
def test_equals_a_slow_average(batches: list[dict[int, float]], decay: float) -> None:
    """Each batch has the norms of some sites, in any order."""
    norms = RunningNorms(SITES, decay)
    for batch in batches:
        norms.update([SITES[index] for index in batch], torch.tensor(list(batch.values())))
    for site in SITES:
        seen = [batch[site.index] for batch in batches if site.index in batch]
        assert norms.of([site]).item() == pytest.approx(running_mean(seen, decay), rel=1e-4, abs=1e-5)


def test_is_a_plain_mean_at_first() -> None:
    norms = RunningNorms(SITES, decay=0.95)
    for value in range(20):
        norms.update(SITES[:1], torch.tensor([float(value)]))
    assert norms.of(SITES[:1]).item() == pytest.approx(9.5)
    assert norms.of(SITES[1:]).tolist() == [0.0, 0.0]


def test_answers_in_the_order_asked_for() -> None:
    norms = RunningNorms(SITES)
    norms.update([SITES[2], SITES[0]], torch.tensor([3.0, 1.0]))
    assert norms.of(SITES).tolist() == [1.0, 0.0, 3.0]
    assert norms.of([SITES[2], SITES[1]]).tolist() == [3.0, 0.0]


def test_knows_the_newest_as_they_were() -> None:
    norms = RunningNorms(SITES)
    norms.update([SITES[2], SITES[0]], torch.tensor([3.0, 1.0]))
    norms.update([SITES[0]], torch.tensor([5.0]))
    assert norms.newest([SITES[0], SITES[2], SITES[1]]).tolist() == [5.0, 3.0, 0.0]


def test_the_state_is_a_copy_and_goes_on_exactly() -> None:
    norms, other = RunningNorms(SITES), RunningNorms(SITES)
    norms.update(SITES, torch.tensor([1.0, 2.0, 3.0]))
    state = norms.state_dict()
    norms.update(SITES, torch.tensor([5.0, 5.0, 5.0]))
    other.load_state_dict(state)
    assert other.of(SITES).tolist() == [1.0, 2.0, 3.0]
    other.update(SITES, torch.tensor([5.0, 5.0, 5.0]))
    assert torch.equal(other.of(SITES), norms.of(SITES))


def draw(seed: int, epoch: int, batch: int) -> list[float]:
    numbers: list[float] = torch.randn(4, generator=step_generator(seed, Step(epoch, batch))).tolist()
    return numbers


def test_numbers_are_a_function_of_seed_and_step() -> None:
    assert draw(3, 1, 2) == draw(3, 1, 2)
    others = [draw(4, 1, 2), draw(3, 2, 2), draw(3, 1, 3), draw(3, 2, 1)]
    assert all(draw(3, 1, 2) != other for other in others)


def test_the_global_random_state_is_not_touched() -> None:
    before = torch.get_rng_state()
    draw(0, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_gradient_is_the_one_before_changes_in_place() -> None:
    for needs in (True, False):
        seen: list[Tensor] = []
        start = torch.tensor([-1.0, 2.0], requires_grad=needs)
        output = on_gradient(start * 3, seen.append)
        assert torch.equal(output, torch.tensor([-3.0, 6.0]))
        (output.relu_() * 5).sum().backward()
        assert [one.tolist() for one in seen] == [[0.0, 5.0]]


class WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, used: Tensor, unused: Tensor) -> Tensor:
        return used.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def test_a_function_without_a_gradient_for_the_output_passes_nothing() -> None:
    seen: list[Tensor] = []
    used, unused = (torch.ones(2, requires_grad=True) * factor for factor in (1, 2))
    result: Tensor = WithoutGradient.apply(used, on_gradient(unused, seen.append))  # type: ignore[no-untyped-call]
    result.sum().backward()
    assert seen == []


def test_without_autograd_nothing_happens() -> None:
    output = torch.ones(2)
    with torch.no_grad():
        assert on_gradient(output, lambda gradient: None) is output
    assert not output.requires_grad


def test_the_former_name_of_takes_sharded_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Source\.takes_spread is now Source\.takes_sharded\.$"):

        class Older(Nothing):
            takes_spread = True

    assert Older.takes_sharded
