"""Which runs of FAST's experiment can be timed on one array."""

from adagp.papers.fast.experiments import arithmetics, timed_arithmetics


def test_runs_in_single_precision_for_some_layers_or_batches_are_not_timed() -> None:
    timed = timed_arithmetics("quick")
    assert list(timed) == ["fp32", "bfp4", "bfp2", "adaptive", "low first", "high first", "random"]
    assert [name for name in arithmetics("quick") if name not in timed] == [
        "fp32 first",
        "fp32 last",
        "fp32 first layers",
        "fp32 last layers",
    ]
