from dataclasses import FrozenInstanceError, replace

import pytest

from adagp.core.plan import BACKPROP, BACKPROP_ALL, WARM_UP, Phase, Plan


def test_a_site_that_is_not_named_has_the_default_source() -> None:
    plan = Plan(Phase.GP, default="predicted", by_site={"head": BACKPROP})
    assert plan.source_of("head") == BACKPROP
    assert plan.source_of("stem") == "predicted"


def test_sites_are_grouped_by_source_in_first_seen_order() -> None:
    plan = Plan(Phase.BP, by_site={"b": "replay", "d": "replay", "c": "zero"})
    groups = plan.sources(["b", "a", "c", "d", "e"])
    assert groups == {"replay": ["b", "d"], BACKPROP: ["a", "e"], "zero": ["c"]}
    assert list(groups) == ["replay", BACKPROP, "zero"]


def test_ready_plans_are_plain_backprop_and_freeze_nothing() -> None:
    for plan, phase in ((WARM_UP, Phase.WARMUP), (BACKPROP_ALL, Phase.BP)):
        assert plan.phase is phase
        assert plan.sources(["a", "b"]) == {BACKPROP: ["a", "b"]}
        assert not plan.hold_rest


def test_plans_compare_by_value() -> None:
    assert Plan(Phase.BP) == BACKPROP_ALL
    with pytest.raises(FrozenInstanceError):
        BACKPROP_ALL.default = "predicted"  # type: ignore[misc]


def test_phases_print_as_their_names() -> None:
    assert [f"{phase}" for phase in Phase] == ["warmup", "bp", "gp"]


def test_batches_with_true_gradients() -> None:
    assert BACKPROP_ALL.has_true_gradients
    assert Plan(Phase.GP, default="feedback", by_site={"head": "backprop"}).has_true_gradients
    assert not Plan(Phase.GP, default="feedback", hold_rest=True).has_true_gradients


def test_the_former_name_of_frozen_still_works() -> None:
    names = frozenset({"head.bias"})
    with pytest.warns(DeprecationWarning, match=r"^Plan\(held=\.\.\.\) is deprecated: use Plan\(frozen=\.\.\.\)\.$"):
        plan = Plan(Phase.BP, held=names)
    assert plan == Plan(Phase.BP, frozen=names)
    with pytest.warns(DeprecationWarning, match=r"^Plan\.held is now Plan\.frozen\.$"):
        assert plan.held == names
    assert replace(plan, hold_rest=True) == Plan(Phase.BP, hold_rest=True, frozen=names)
