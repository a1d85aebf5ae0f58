"""The engine against plain PyTorch, and against doing it by hand."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.engine.trainer import Trainer
from adagp.errors import UsageError
from adagp.plan import Phase, Plan, Step
from adagp.schedules import BackpropOnly, Ladder, Rung, Schedule, WarmUp
from adagp.sites import Site
from adagp.sources import PredictedSource, Source

Batches = list[tuple[Tensor, Tensor]]


def small_model(seed: int = 0, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 5),
    )


def small_batches(count: int, size: int = 8) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(count)
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)


def gp_only(warmup: int = 0) -> Schedule:
    return WarmUp(Ladder((Rung(1, 0),)), epochs=warmup)


def trainer_for(model: nn.Module, schedule: Schedule, **options: Any) -> Trainer:
    given = {"epochs": 9, "batches_per_epoch": 4, **options}
    return adagp.attach(model, given.pop("optimizer", None) or sgd(model), schedule=schedule, **given)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("schedule", [BackpropOnly(), WarmUp(Ladder(), epochs=9)])
@pytest.mark.parametrize("make_optimizer", [sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)])
def test_phase_bp_is_bit_equal_to_a_plain_loop(
    schedule: Schedule, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    ours, plain = small_model(), small_model()
    trainer = trainer_for(ours, schedule, optimizer=make_optimizer(ours))
    optimizer = make_optimizer(plain)
    torch.manual_seed(7)
    for inputs, targets in small_batches(8):
        result = trainer.step(inputs, targets, F.cross_entropy)
        assert result.phase is (Phase.BP if isinstance(schedule, BackpropOnly) else Phase.WARMUP)
    torch.manual_seed(7)  # the same dropout
    for inputs, targets in small_batches(8):
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
    assert_equal_states(ours.state_dict(), plain.state_dict())


def test_phase_gp_is_what_one_does_by_hand() -> None:
    ours = small_model(dropout=0.0)
    trainer = trainer_for(ours, gp_only(warmup=1))
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        trainer.step(inputs, targets, F.cross_entropy)
    by_hand = copy.deepcopy(ours)
    optimizer = sgd(by_hand)
    optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))

    result = trainer.step(*batches[4], F.cross_entropy)

    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    assert result.phase is Phase.GP
    with torch.no_grad():
        hidden = batches[4][0]
        for layer in by_hand:  # type: ignore[attr-defined]  # a Sequential
            hidden = layer(hidden)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.grad = _predict(source, layer, hidden)
    for parameter in by_hand.parameters():
        if parameter.grad is None:
            assert parameter.dim() == 1
    optimizer.step()
    for (name, one), other in zip(ours.state_dict().items(), by_hand.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8, msg=name)


def _predict(source: PredictedSource, layer: nn.Conv2d | nn.Linear, output: Tensor) -> Tensor:
    network = source.network
    mean = output.mean(0)
    pictures = mean[:, None] if mean.dim() == 3 else mean[:, None, None, None].expand(-1, 1, 4, 4)
    pooled = F.adaptive_avg_pool2d(pictures, 4)
    features = F.relu(network.convolution(pooled)).flatten(1)  # type: ignore[operator]  # a Conv2d
    rows = network.readout(features)[:, : layer.weight[0].numel()]  # type: ignore[operator]  # a Linear
    return rows.reshape(layer.weight.shape).detach()  # type: ignore[no-any-return]


def test_phase_gp_changes_the_weights_of_sites_and_nothing_else() -> None:
    model = small_model()
    trainer = trainer_for(model, gp_only(warmup=1))
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        trainer.step(inputs, targets, F.cross_entropy)
    before = snapshot(model)
    predictor = copy.deepcopy(trainer.sources["predicted"].state_dict())

    result = trainer.step(*batches[4], F.cross_entropy)

    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed - {"1.running_mean", "1.running_var", "1.num_batches_tracked"} == {
        "0.weight",
        "4.weight",
        "7.weight",
    }
    assert result.output.grad_fn is None
    assert result.loss.grad_fn is None
    after = trainer.sources["predicted"].state_dict()
    assert all(torch.equal(value, after["network"][name]) for name, value in predictor["network"].items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {"0.weight", "4.weight", "7.weight"}, "gradients stay until the next batch"


def test_what_is_kept_of_an_activation_is_small() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    trainer = trainer_for(model, gp_only())
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    with trainer.batch() as batch:
        model(torch.randn(64, 1, 32, 32))
        ((mean, samples),) = source._waiting.values()
        assert samples == 64
        assert mean.untyped_storage().nbytes() == 4 * 32 * 32 * 4, "one sample for the batch, until it is pooled"
        (kept,) = source.shared(trainer.survey.sites)
        assert kept.untyped_storage().nbytes() == 4 * 16 * 4
        assert not source._waiting
        batch.backward()
        batch.step()
    assert source.shared(trainer.survey.sites) == []


@pytest.mark.parametrize("schedule", [gp_only(), WarmUp(Ladder(), epochs=1)], ids=["gp", "bp"])
def test_a_large_output_of_a_small_input_is_summarised_without_reading_it(
    schedule: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer's answer to the mean input stands in for its outputs; a layer that is called so is not watched again."""
    monkeypatch.setattr("adagp.predictor.means._LARGE", 2**20)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(inplace=True))
    trainer = trainer_for(model, schedule)
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    inputs = torch.randn(40, 3, 32, 32)
    with trainer.batch() as batch:
        loss = model(inputs).mean()
        ((site, (mean, samples)),) = source._waiting.items()
        assert samples == 40
        assert source._means[site]._matrix == (32 * 32 * 32, 1), "one answer instead of forty"
        expected = model[0].forward(inputs).detach().mean(0)
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-5)
        batch.backward(loss)
        batch.step()


def test_users_own_loop_with_clipping_scheduler_and_micro_batches() -> None:
    """The own-loop form, two micro-batches per batch, equals a plain loop with the joined batch; no dropout or batch norm."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    plain = copy.deepcopy(ours)
    trainer = trainer_for(ours, BackpropOnly())
    optimizer = sgd(plain)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (trainer.optimizer, optimizer)]
    for inputs, targets in small_batches(6):
        with trainer.batch() as batch:
            for part in (slice(0, 4), slice(4, 8)):
                loss = F.cross_entropy(ours(inputs[part]), targets[part]) / 2
                batch.backward(loss, more=part.start == 0)
            nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
            batch.step()
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs), targets).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_micro_batches_of_a_gp_batch_equal_the_joined_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    twin = copy.deepcopy(model)
    trainers = [trainer_for(one, gp_only(warmup=1)) for one in (model, twin)]
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        for trainer in trainers:
            trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches[4]
    with trainers[0].batch() as batch:
        assert batch.phase is Phase.GP
        for part in (slice(0, 2), slice(2, 8)):  # unequal parts are weighted
            model(inputs[part])
            batch.backward(more=part.start == 0)
        batch.step()
    trainers[1].step(inputs, targets, F.cross_entropy)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # setting any flag of mkldnn says so
@torch.backends.mkldnn.flags(
    enabled=False
)  # its bfloat16 kernels crash on virtual machines that announce AMX without it
def test_autocast_works_in_both_phases() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))
    trainer = trainer_for(model, WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for inputs, targets in small_batches(8):
        with trainer.batch() as batch:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(inputs)
                loss = F.cross_entropy(output, targets)
            assert output.dtype is torch.bfloat16
            batch.backward(loss)
            batch.step()
    assert all(parameter.dtype is torch.float32 and parameter.isfinite().all() for parameter in model.parameters())


def test_gradient_scaler_gives_the_same_weights_as_no_scaler() -> None:
    one, other = small_model(dropout=0.0), small_model(dropout=0.0)
    schedule = WarmUp(Ladder((Rung(1, 1),)), epochs=1)
    scaled = trainer_for(one, schedule, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    plain = trainer_for(other, schedule)
    for inputs, targets in small_batches(8):
        scaled.step(inputs, targets, F.cross_entropy)
        plain.step(inputs, targets, F.cross_entropy)
    assert_equal_states(one.state_dict(), other.state_dict())  # powers of two scale exactly


def test_recomputed_forwards_are_not_watched_twice() -> None:
    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.last = nn.Linear(6, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(self.first, inputs, use_reentrant=False)
            return self.last(hidden)  # type: ignore[no-any-return]

    model = Recomputing()
    seen: list[str] = []

    class Counting(PredictedSource):
        def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
            seen.append(site.name)
            super().watch(site, inputs, output)

    trainer = trainer_for(model, WarmUp(Ladder(), epochs=1), sources={"predicted": Counting()})
    trainer.step(torch.randn(4, 6), torch.tensor([0, 1, 2, 3]), F.cross_entropy)
    assert seen == ["first", "last"]


def test_a_layer_called_twice_learns_from_the_mean_of_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(self.layer(inputs))  # type: ignore[no-any-return]

    model = Twice()
    trainer = trainer_for(model, gp_only())
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    inputs = torch.randn(3, 5)
    with trainer.batch() as batch:
        once = model.layer(inputs)
        twice = model.layer(once)
        expected = (once.mean(0) + twice.mean(0)) / 2
        (summary,) = source.shared(trainer.survey.sites)
        torch.testing.assert_close(summary[:, 0, 0, 0], expected)
        batch.backward()
        batch.step()


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
        epochs=1,
        batches_per_epoch=2,
        schedule=schedule,
        sources=sources,
        metrics_every=1,
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
def test_the_guard_refuses_and_the_phase_goes_on_by_backprop(value: float) -> None:
    """4:1 with a source that goes bad: GP is refused once a phase, changes nothing, and backprop takes over."""
    schedule = WarmUp(Ladder((Rung(3, 1),), source="broken"), epochs=1)
    model = small_model(dropout=0.0)

    class Broken(Constant):
        learns = True

    trainer = trainer_for(model, schedule, batches_per_epoch=8, sources={"broken": Broken(value)})
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


def test_calls_in_the_wrong_order_are_refused() -> None:
    model = small_model()
    trainer = trainer_for(model, BackpropOnly())
    inputs, targets = small_batches(1)[0]

    with pytest.raises(UsageError, match=r"^step\(\) was called before backward\(\)\.$"), trainer.batch() as batch:
        batch.step()
    with (
        pytest.raises(UsageError, match=r"^a BP batch needs the loss: call backward\(loss\)\.$"),
        trainer.batch() as batch,
    ):
        batch.backward()
    with (
        pytest.raises(UsageError, match=r"^the batch ended without step\(\)\. One batch\(\) is one step"),
        trainer.batch() as batch,
    ):
        batch.backward(F.cross_entropy(model(inputs), targets))
    with (
        pytest.raises(UsageError, match=r"^backward\(\) was called again after the last micro-batch; pass more=True"),
        trainer.batch() as batch,
    ):
        batch.backward(F.cross_entropy(model(inputs), targets))
        batch.backward(F.cross_entropy(model(inputs), targets))
    with pytest.raises(UsageError, match=r"^step\(\) was called twice in one batch\.$"), trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(inputs), targets))
        batch.step()
        batch.step()
    assert trainer.at == Step(0, 0), "a batch that failed does not count"


def test_gradients_from_before_a_batch_are_refused() -> None:
    model = small_model()
    trainer = trainer_for(model, BackpropOnly())
    inputs, targets = small_batches(1)[0]
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(UsageError, match="adagp cannot accumulate gradients across batches, as a GP batch has none"):
        trainer.step(inputs, targets, F.cross_entropy)


def test_an_error_in_the_body_leaves_all_as_it_was() -> None:
    model = small_model()
    trainer = trainer_for(model, OneSite("4"), sources={"constant": Constant(0.0)})
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError), trainer.batch():
        raise ZeroDivisionError
    assert_equal_states(before, model.state_dict())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_non_finite_true_gradients_teach_nothing() -> None:
    model = small_model(dropout=0.0)
    trainer = trainer_for(model, WarmUp(Ladder(), epochs=1))
    inputs, targets = small_batches(1)[0]
    predictor = copy.deepcopy(trainer.sources["predicted"].state_dict()["network"])
    trainer.step(inputs, targets, lambda output, aims: F.cross_entropy(output, aims) * float("inf"))
    after = trainer.sources["predicted"].state_dict()["network"]
    assert all(torch.equal(value, after[name]) for name, value in predictor.items())
    assert trainer.norms.counts.sum() == 0


def test_attaching_and_training_leave_no_trace_in_the_model() -> None:
    model = small_model()
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    trainer = trainer_for(model, WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for inputs, targets in small_batches(8):
        trainer.step(inputs, targets, F.cross_entropy)
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == names
    trainer.detach()
    assert all(not module._forward_hooks for module in model.modules())


def test_attaching_does_not_touch_the_global_random_state() -> None:
    model = small_model()
    before = torch.get_rng_state()
    trainer_for(model, Ladder())
    assert torch.equal(torch.get_rng_state(), before)


def test_several_inputs_are_passed_as_arguments() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.layer(one + other)  # type: ignore[no-any-return]

    trainer = trainer_for(Sum(), WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for _ in range(8):
        trainer.step((torch.randn(4, 3), torch.randn(4, 3)), torch.tensor([0, 1, 2, 3]), F.cross_entropy)
    assert trainer.at == Step(2, 0)
