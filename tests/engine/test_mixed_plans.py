"""Plans of several sources, and what the guard does about one that is wrong."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_convnet import assert_equal_states, small_batches, small_model, snapshot, trainer_for
from torch import Tensor, nn

import adagp
from adagp.core.plan import Phase, Plan, Step
from adagp.layers.sites import Site
from adagp.schedules import Ladder, Rung, Schedule, WarmUp
from adagp.sources import Source


class Constant(Source):
    """Every entry of every gradient is `value`."""

    def __init__(self, value: float) -> None:
        self.value = value

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        return [torch.full_like(site.weight, self.value) for site in sites]


@dataclass(frozen=True)
class OneSite(Schedule):
    """`site` from the source `constant`, the rest by backprop (held if `hold_rest`)."""

    site: str
    hold_rest: bool = False

    def plan(self, step: Step) -> Plan:
        return Plan(Phase.BP, by_site={self.site: "constant"}, hold_rest=self.hold_rest)

    def label(self, epoch: int) -> str:
        return "one site"

    @property
    def text(self) -> str:
        return "one"

    @property
    def sources(self) -> frozenset[str]:
        return frozenset({"constant"})


def test_a_mixed_plan_takes_each_gradient_from_its_source() -> None:
    model = small_model(dropout=0.0)
    reference = copy.deepcopy(model)
    inputs, targets = small_batches(1)[0]
    F.cross_entropy(reference(inputs), targets).backward()
    trainer = trainer_for(model, OneSite("4"), sources={"constant": Constant(0.25)})
    with trainer.batch() as batch:
        loss = F.cross_entropy(model(inputs), targets)
        batch.backward(loss)
        for (name, one), other in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            expected = torch.full_like(one, 0.25) if name == "4.weight" else other.grad
            assert torch.equal(one.grad, expected), name
        batch.step()


class Scaled(Source):
    """Learns nothing but the last truth, and predicts `factor` times as much."""

    learns = True

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.last: dict[Site, Tensor] = {}

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        return [self.factor * self.last[site] if site in self.last else None for site in sites]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        self.last = {site: one.clone() for site, one in zip(sites, gradients, strict=True)}


class TwoLearners(OneSite):
    """Backprop, with two sources that learn beside it."""

    def plan(self, step: Step) -> Plan:
        return Plan(Phase.BP)

    @property
    def sources(self) -> frozenset[str]:
        return frozenset({"opposite", "double"})


def test_the_quality_of_every_learner_is_recorded() -> None:
    model = small_model(dropout=0.0)
    schedule, sources = TwoLearners(""), {"opposite": Scaled(-1.0), "double": Scaled(2.0)}
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        length=adagp.Epochs(1, 2),
        schedule=schedule,
        sources=sources,
        engine=adagp.EngineOptions(metrics_every=1),
    )
    inputs, targets = small_batches(1)[0]
    for _ in range(2):  # the same gradient twice
        trainer.step(inputs, targets, F.cross_entropy)
    found = trainer.quality.read()
    names = [site.name for site in trainer.survey.sites]
    assert list(found) == [f"{name} ({learner})" for name in names for learner in ("double", "opposite")]
    for name in names:
        assert found[f"{name} (double)"]["norm_ratio"] == pytest.approx(2, abs=1e-3)
        assert found[f"{name} (double)"]["cosine"] == pytest.approx(1, abs=1e-3)
        assert found[f"{name} (opposite)"]["cosine"] == pytest.approx(-1, abs=1e-3)
        assert found[f"{name} (opposite)"]["cosine_previous"] == pytest.approx(1, abs=1e-3)


def test_autograd_does_not_compute_what_the_plan_replaces() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 5))
    trainer = trainer_for(model, OneSite("0", hold_rest=True), sources={"constant": Constant(0.0)})
    with trainer.batch() as batch:
        hidden = model[0](torch.randn(2, 1, 8, 8))
        assert not hidden.requires_grad, "the graph must stop above the first site"
        loss = F.cross_entropy(model[3](model[2](model[1](hidden))), torch.tensor([0, 1]))
        batch.backward(loss)
        assert model[1].bias is not None
        assert model[1].bias.grad is None
        batch.step()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_the_guard_rejects_and_the_phase_goes_on_by_backprop(value: float) -> None:
    """4:1 with a source that goes bad: GP is rejected once a phase, changes nothing, and backprop takes over."""
    schedule = WarmUp(Ladder((Rung(3, 1),), source="broken"), epochs=1)
    model = small_model(dropout=0.0)

    class Broken(Constant):
        learns = True

    trainer = trainer_for(model, schedule, length=adagp.Epochs(9, 8), sources={"broken": Broken(value)})
    history = []
    for inputs, targets in small_batches(16):
        before = snapshot(model)
        result = trainer.step(inputs, targets, F.cross_entropy)
        history.append("guarded" if result.guarded else str(result.phase))
        if result.guarded:
            weights = {name for name, _ in model.named_parameters()}
            assert all(torch.equal(model.state_dict()[name], before[name]) for name in weights)
    assert history == ["warmup"] * 8 + ["guarded", "bp", "bp", "bp"] * 2


def test_a_guarded_phase_ends_with_its_epoch() -> None:
    trainer = trainer_for(
        small_model(), Ladder((Rung(1, 0),), source="broken"), sources={"broken": Constant(float("nan"))}
    )
    phases = [trainer.step(*batch, F.cross_entropy) for batch in small_batches(6)]
    assert [one.guarded for one in phases] == [True, False, False, False, True, False]


def test_an_error_in_the_body_leaves_all_as_it_was() -> None:
    model = small_model()
    trainer = trainer_for(model, OneSite("4"), sources={"constant": Constant(0.0)})
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError), trainer.batch():
        raise ZeroDivisionError
    assert_equal_states(before, model.state_dict())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()
