from typing import Any

import pytest

from adagp.program.compare.verdict import ONE_SEED, SIGNIFICANCE, verdict_lines


def row(method: str, accuracy: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"method": method, "accuracy_mean": accuracy, "ahead_low": low, "ahead_high": high}


@pytest.mark.parametrize(
    ("interval", "word"), [((-0.02, 0.01), "no clear difference"), ((0.01, 0.02), "ahead"), ((-0.02, -0.01), "behind")]
)
def test_a_sentence_for_each_regime(interval: tuple[float, float], word: str) -> None:
    methods = {
        "plain": row("bp", 0.9),
        "feedback@1:1": row("feedback", 0.88, *interval),
        "skip": row("skip", 0.8, *interval),
    }
    document = {
        "batches": 440,
        "seeds": 3,
        "regimes": {regime: {"methods": methods} for regime in ("batches", "seconds", "accelerator")},
    }
    rest = f"plain reaches accuracy 90.00%; feedback@1:1 88.00% ({word}) and skip 80.00% ({word})."
    equal = ("equal batches (440 each)", "equal seconds", "equal cost on the modelled accelerator")
    assert verdict_lines(document) == [*(f"At {cost}, {rest}" for cost in equal), SIGNIFICANCE]


def test_one_seed_other_metrics_and_nothing_finished() -> None:
    methods = {"bp": row("bp", 0.9), "adagp": row("adagp", None)}
    document: dict[str, Any] = {"batches": 9, "seeds": 1, "regimes": {"batches": {"methods": methods}}}
    assert verdict_lines(document) == [
        "At equal batches (9 each), bp reaches accuracy 90.00%; adagp has no finite value.",
        ONE_SEED,
    ]
    methods["bp"]["accuracy_mean"] = None
    assert verdict_lines(document) == []


def test_batch_sizes_are_named() -> None:
    methods = {"bp": row("bp", 0.9), "skip": row("skip", 0.8, -0.2, -0.1)}
    document: dict[str, Any] = {
        "batches": 100,
        "batch_size": 128,
        "batch_sizes": {"bp": 64, "skip": 128},
        "backprop_batch_sizes": [32, 64, 128],
        "seeds": 3,
        "regimes": {"batches": {"methods": methods}},
    }
    assert verdict_lines(document) == [
        "At equal samples (12,800 each), bp (batch size 64) reaches accuracy 90.00%; skip (batch size 128) 80.00% (behind).",
        f"{SIGNIFICANCE} Backprop was tried with batches of 32, 64 and 128 samples.",
    ]
    single = {**document, "batch_sizes": {"bp": 128, "skip": 128}, "backprop_batch_sizes": [128]}
    assert verdict_lines(single) == [
        "At equal batches (100 each), bp reaches accuracy 90.00%; skip 80.00% (behind).",
        f"{SIGNIFICANCE} Backprop was trained with batches of 128 samples only. Smaller batches, which give more steps at "
        "equal cost, were not tried (add batch_size=... to --tune).",
    ]
