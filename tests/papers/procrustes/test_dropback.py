"""DropBack against its printed formula, step by step, and what it keeps for later."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import adagp
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import survey
from adagp.papers.procrustes.dropback import DropBack, QuantileEstimate, keep_largest, pack, unpack

START = Step(0, 0)


def small(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).to(dtype)


def bound(model: nn.Module, *arguments: Any, **options: Any) -> DropBack:
    sparse = DropBack(*arguments, **options)
    sparse.bind(survey(model))
    return sparse


def weights(model: nn.Module) -> list[Tensor]:
    return [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Linear)]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([one.reshape(-1) for one in weights(model)])


def updates(model: nn.Module, steps: int) -> Iterator[Tensor]:
    """Move the weights as an optimizer would, and yield by how much each time."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        before = flat(model).clone()
        with torch.no_grad():
            for one in weights(model):
                # Few different sizes, so that there are ties.
                one += torch.randint(-3, 4, one.shape, generator=generator).to(one.dtype) / 64
        yield flat(model) - before


def largest(sizes: Tensor, count: int) -> Tensor:
    order = sorted(range(len(sizes)), key=lambda place: (-float(sizes[place]), place))[:count]
    mask = torch.zeros(len(sizes), dtype=torch.bool)
    mask[order] = True
    return mask & (sizes > 0)


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("rule", ["accumulated", "magnitude"])
def test_every_step_is_the_printed_formula(rule: str, decay: float) -> None:
    model = small(dtype=torch.float64)
    start = flat(model).clone()
    sparse = bound(model, 0.3, decay=decay, rule=rule)
    accumulated, expected = torch.zeros_like(start), start.clone()
    for step, update in enumerate(updates(model, 8)):
        factor = decay**step
        if rule == "accumulated":
            accumulated = accumulated + update
            accumulated = torch.where(largest(accumulated.abs(), sparse.count), accumulated, 0)
            expected = factor * start + accumulated
        else:
            moved = expected + update
            expected = torch.where(largest((moved - factor * start).abs(), sparse.count), moved, factor * start)
        sparse.after_step(START)
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)
        assert sparse.figures()["kept"] * sparse.total <= sparse.count + 1e-9
        with torch.no_grad():  # roundings must not add up to other ties
            for one, part in zip(weights(model), expected.split([30, 20]), strict=True):
                one.copy_(part.view(one.shape))


def test_without_decay_both_rules_keep_the_same_masks_over_a_run() -> None:
    masks = []
    for rule in ("accumulated", "magnitude"):
        model = small(dtype=torch.float64)
        start = flat(model).clone()
        sparse = bound(model, 0.2, decay=1.0, rule=rule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=generator, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            sparse.after_step(START)
            found.append(flat(model) != start)
        masks.append(torch.stack(found))
    assert torch.equal(*masks)
    assert masks[0][-1].sum() == 10


@pytest.mark.parametrize("rule", ["accumulated", "magnitude"])
def test_dropped_weights_become_zeros_and_the_copy_is_freed(rule: str) -> None:
    model = small()
    sparse = bound(model, 0.2, decay=0.5, rule=rule)
    assert sparse.initial.stored == 4 * 50
    for _ in updates(model, 36):
        sparse.after_step(START)
    assert sparse.initial.stored == 0
    assert int((flat(model) != 0).sum()) == 10
    assert sparse.state_dict() == {"steps": 36, "estimate": None, "initial": {}}


def test_all_parameters_can_be_ranked() -> None:
    sparse = bound(small(), 0.5, over="all")
    assert (sparse.total, bound(small(), 0.5).total) == (50 + 9, 50)


@pytest.mark.parametrize("threshold", ["sort", "estimate"])
def test_weights_that_are_not_finite_stay_so(threshold: str) -> None:
    """Dropping them would hide that the run has diverged."""
    model = small()
    sparse = bound(model, 0.1, threshold=threshold)
    with torch.no_grad():
        weights(model)[0][0, 0] = torch.nan
    before = flat(model).clone()
    sparse.after_step(START)
    torch.testing.assert_close(flat(model), before, rtol=0, atol=0, equal_nan=True)


def test_initial_weights_are_drawn_again_or_copied_and_the_run_is_the_same() -> None:
    ends = []
    for options in ({}, {"regenerate": lambda: dict(small().named_parameters())}):
        for keep_initial in (True, False):
            model = small()
            sparse = bound(model, 0.3, decay=0.8, keep_initial=keep_initial, **options)
            assert sparse.initial.stored == (0 if options and not keep_initial else 200)
            for _ in updates(model, 5):
                sparse.after_step(START)
            assert bool(sparse.state_dict()["initial"]) is not bool(options)
            ends.append(flat(model).clone())
    assert all(torch.equal(ends[0], one) for one in ends)


@pytest.mark.parametrize("regenerated", [True, False])
@pytest.mark.parametrize("steps", [0, 3, 40])
def test_a_saved_state_continues_as_if_nothing_had_happened(steps: int, regenerated: bool) -> None:
    options: dict[str, Any] = {"regenerate": lambda: dict(small().named_parameters())} if regenerated else {}
    model = small()
    sparse = bound(model, 0.3, decay=0.5, threshold="estimate", **options)
    for _ in updates(model, steps):
        sparse.after_step(START)
    state, packed = sparse.state_dict(), sparse.compress(model.state_dict())
    other = small(0 if regenerated else 7)  # a user's model may have any weights by then
    resumed = bound(other, 0.3, decay=0.5, threshold="estimate", **options)
    other.load_state_dict(resumed.expand(packed))
    resumed.load_state_dict(state)
    for _ in updates(model, 4):
        sparse.after_step(START)
    for _ in updates(other, 4):
        resumed.after_step(START)
    assert torch.equal(flat(model), flat(other))
    assert sparse.figures() == resumed.figures()


@pytest.mark.parametrize("factor", [0.0, 0.25])
def test_packed_weights_are_bits_and_values(factor: float) -> None:
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    base = factor * torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(2)) < 0.2
    weight = torch.where(mask, weight, base)
    packed = pack(weight, base)
    assert packed["mask"].nbytes == 5  # 35 bits
    assert packed["values"].tolist() == weight[mask].tolist()
    assert torch.equal(unpack(packed, base), weight)


def test_a_sparse_checkpoint_takes_the_room_of_mask_and_values() -> None:
    layer = nn.Linear(100, 100)
    model = nn.Sequential(layer)
    sparse = bound(model, 0.1, decay=0.0)
    for _ in range(2):
        with torch.no_grad():
            layer.weight += torch.randn(100, 100)
        sparse.after_step(START)
    packed = sparse.compress(model.state_dict())
    assert packed["0.weight"]["mask"].nbytes == 100 * 100 / 8
    assert packed["0.weight"]["values"].numel() == 1000
    assert packed["0.bias"] is not None
    assert torch.equal(sparse.expand(packed)["0.weight"], layer.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0.0}, "keep is 0.0; it must be above 0 and at most 1."),
        ({"keep": 1.5}, "keep is 1.5; it must be above 0 and at most 1."),
        ({"keep": 0.1, "decay": 1.1}, "decay is 1.1; it must be from 0 to 1."),
        ({"keep": 0.1, "rule": "size"}, "unknown rule 'size'. Choose from: accumulated, magnitude."),
        ({"keep": 0.1, "threshold": "guess"}, "unknown threshold 'guess'. Choose from: estimate, sort."),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        DropBack(**options)
    assert str(raised.value) == message


def test_a_model_without_sites_has_nothing_to_rank() -> None:
    with pytest.raises(OptionError, match=r"^DropBack has nothing to rank: the model has no site\.$"):
        bound(nn.Sequential(nn.BatchNorm1d(3)), 0.1)


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_masked_products_are_those_of_the_sparse_matrix(layout: str) -> None:
    """Forward and both gradients: what a sparse array leaves out are exact zeros."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(8, 12, generator=generator) < 0.2
    inputs = torch.randn(12, 5, generator=generator, dtype=torch.float64).relu()
    error = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    masked = weight * mask
    sparse = masked if layout == "dense" else masked.to_sparse_coo().coalesce()
    torch.testing.assert_close(torch.sparse.mm(sparse, inputs) if layout == "csr" else sparse @ inputs, masked @ inputs)
    turned = sparse.t().coalesce() if layout == "csr" else sparse.t()
    found = torch.sparse.mm(turned, error) if layout == "csr" else turned @ error
    torch.testing.assert_close(found, masked.t() @ error)
    by_inputs = torch.sparse.mm(inputs.to_sparse_coo(), error.t()) if layout == "csr" else inputs @ error.t()
    torch.testing.assert_close(by_inputs.t(), error @ inputs.t())


class Halved(adagp.WeightUpdateHook):
    """Halves all weights after each step."""

    def bind(self, survey: Any) -> None:
        self.weights = [site.weight for site in survey.sites]
        self.steps: list[Step] = []

    def after_step(self, step: Step) -> None:
        self.steps.append(step)
        with torch.no_grad():
            for one in self.weights:
                one.mul_(0.5)


@pytest.mark.parametrize("method", ["bp", "adagp", "feedback", "skip"])
def test_weight_hooks_are_called_after_every_step_of_the_optimizer(method: str) -> None:
    model = small()
    own = Halved()
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        method=adagp.NamedMethod(method),
        schedule=None if method == "bp" else "1:1",
        warmup=None if method == "bp" else 0,
        length=adagp.Epochs(1, 6),
        engine=adagp.EngineOptions(weight_hooks=[own, DropBack(0.2)]),
    )
    for _ in range(6):
        trainer.step(torch.randn(8, 6), torch.randint(4, (8,)), nn.functional.cross_entropy)
    assert len(own.steps) == (3 if method == "skip" else 6)
    figures = trainer.read_sites()
    assert set(figures["0"]) >= {"weight_density", "input_density"}
    assert figures["0"]["input_density"] == 1.0
    assert 0 < (figures["2"]["input_density"] or 0) < 1
    trainer.load_state_dict(trainer.state_dict())


def test_weight_hooks_are_called_after_a_step_outside_the_batch() -> None:
    model, own = small(), Halved()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = adagp.attach(
        model, optimizer, method="bp", length=adagp.Epochs(1, 3), engine=adagp.EngineOptions(weight_hooks=own)
    )
    for stepped, times in ((True, 1), (False, 1)):
        batch = trainer.begin()
        batch.backward(model(torch.randn(2, 6)).sum())
        if stepped:
            optimizer.step()
        batch.finish(stepped=stepped)
        assert len(own.steps) == times
    batch = trainer.begin()
    batch.abandon()
    assert len(own.steps) == 1


def test_the_former_names_still_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"^adagp\.Upkeep is now adagp\.WeightUpdateHook\.$"):
        assert adagp.Upkeep is adagp.WeightUpdateHook  # type: ignore[attr-defined]  # for type checkers it is gone
    model, own = small(), Halved()
    former: dict[str, Any] = {"upkeep": own}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(DeprecationWarning, match=r"^attach\(upkeep=\.\.\.\) is deprecated: use engine="):
        trainer = adagp.attach(model, optimizer, method="bp", length=adagp.Epochs(1, 3), **former)
    assert trainer.weight_hooks == (own,)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=30), st.integers(0, 35), st.integers(1, 3)
)
def test_the_largest_are_kept_and_of_equal_ones_the_first(numbers: list[float], count: int, parts: int) -> None:
    sizes = list(torch.tensor(numbers).tensor_split(parts))
    masks = torch.cat(keep_largest(sizes, count)).tolist()
    order = sorted(range(len(numbers)), key=lambda place: (-numbers[place], place))
    expected = {place for place in order[:count] if numbers[place] > 0}
    assert {place for place, kept in enumerate(masks) if kept} == expected
    assert sum(masks) <= count


def scalar_loop(sizes: torch.Tensor, value: float, below: float, rate: float) -> tuple[list[bool], float]:
    """The rule for single numbers, from the last to the first."""
    kept = []
    for size in reversed(sizes.tolist()):
        kept.append(size > value)
        value *= 1 + rate * below if kept[-1] else 1 - rate * (1 - below)
    return kept[::-1], value


def test_a_chunk_of_one_number_is_the_loop_itself() -> None:
    sizes = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = QuantileEstimate(0.9, 200)
    estimate.chunk = 1
    (mask,) = estimate.masks([sizes])
    expected, value = scalar_loop(sizes, 1e-2, 0.9, 1e-3)
    assert mask.tolist() == expected
    assert estimate.value == pytest.approx(value, rel=1e-9)


def test_chunks_keep_nearly_the_share_of_the_loop() -> None:
    sizes = torch.randn(50_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).abs()
    estimate, value = QuantileEstimate(0.9, 5000), 1e-2
    for _ in range(3):
        (mask,) = estimate.masks([sizes])
        expected, value = scalar_loop(sizes, value, 0.9, 1e-3)
        assert float(mask.double().mean()) == pytest.approx(sum(expected) / len(sizes), abs=3e-3)
    assert estimate.value == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_three_passes_reach_the_share_at_any_scale(share: float, scale: float) -> None:
    """Within 1% of the weights, from a start that is far too high or too low."""
    total = 1_000_000
    sizes = scale * torch.randn(total, generator=torch.Generator().manual_seed(2)).abs()
    estimate = QuantileEstimate(1 - share, int(share * total))
    for _ in range(3):
        masks = estimate.masks(list(sizes.split(300_000)))
    assert float(torch.cat(masks).double().mean()) == pytest.approx(share, abs=0.01)


def test_the_estimate_scales_with_the_numbers() -> None:
    sizes = torch.rand(30_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    one, other = QuantileEstimate(0.8, 6000, start=0.25), QuantileEstimate(0.8, 6000, start=1.0)
    (mask,), (same) = one.masks([sizes]), other.masks([4 * sizes])
    assert torch.equal(mask, same[0])
    assert other.value == pytest.approx(4 * one.value)


def test_nothing_but_zeros_leaves_an_estimate_that_can_rise_again() -> None:
    estimate = QuantileEstimate(0.5, 10, start=1e-29, rate=0.5)
    (mask,) = estimate.masks([torch.zeros(10_000)])
    assert not mask.any()
    assert estimate.value == 1e-30
