from dataclasses import asdict
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError, RunError
from adagp.program.run.metrics import ACCURACY, SHARE, Metric, read_metrics

ERROR = Metric("mean_squared_error", higher_is_better=False)
LENGTH = Metric("length", "m", title="path")


def test_how_values_are_written() -> None:
    written = {
        one.name: (one.words, one.heading, one.bare(0.98765), one.text(0.98765)) for one in (ACCURACY, ERROR, LENGTH)
    }
    assert written == {
        "accuracy": ("accuracy", "accuracy, %", "98.77", "98.77%"),
        "mean_squared_error": ("mean squared error", "mean squared error", "0.9877", "0.9877"),
        "length": ("path", "path, m", "0.9877", "0.9877 m"),
    }


@pytest.mark.parametrize("name", ["loss", "seconds", "top 1", ""])
def test_names_that_files_cannot_have_are_rejected(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        Metric(name)
    assert str(caught.value) == (
        f"a metric cannot be called '{name}'; use letters, digits and underscores, and none of: batches, epoch, group, "
        "loss, method, name, peak_memory, ratio, regime, run, runs, seconds, seed, seeds, sites."
    )


def test_the_best_of_values_that_are_there() -> None:
    values = [0.5, None, nan, 0.25, 0.75, inf]
    assert (ACCURACY.best(values), ERROR.best(values), ERROR.best([None, nan])) == (0.75, 0.25, None)


def test_targets() -> None:
    assert [ACCURACY.reaches(value, 0.5) for value in (0.4, 0.5, 0.6, None)] == [False, True, True, False]
    assert [ERROR.reaches(value, 0.5) for value in (0.4, 0.5, 0.6, None)] == [True, True, False, False]
    ACCURACY.check_target(1)
    ERROR.check_target(-3)
    for metric, target, words in (
        (ACCURACY, 0.0, "above 0 and at most 1"),
        (ACCURACY, 1.5, "above 0 and at most 1"),
        (ERROR, inf, "a finite number"),
    ):
        with pytest.raises(OptionError, match=f"^--target is {target}; it must be {words}.$"):
            metric.check_target(target)


POINTS = st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9)


@given(POINTS, st.sampled_from([ACCURACY, ERROR]))
def test_the_front_is_what_nobody_beats(points: dict[str, tuple[float, float]], metric: Metric) -> None:
    front = metric.front(points)
    for name, (seconds, value) in points.items():
        beaten = any(
            other != (seconds, value) and other[0] <= seconds and metric.reaches(other[1], value)
            for other in points.values()
        )
        assert (points[name] in [points[one] for one in front]) == (not beaten)
    assert [points[one][0] for one in front] == sorted(points[one][0] for one in front)


def test_metrics_are_read_as_they_were_written() -> None:
    declared = (ERROR, LENGTH, Metric("top5", SHARE))
    assert read_metrics({"metrics": [asdict(metric) for metric in declared]}) == declared
    assert read_metrics({"method": "bp"}) == (ACCURACY,)


@pytest.mark.parametrize(
    "content", [[], 5, None, ["accuracy"], [{"name": "loss"}], [{"name": 5}], [{"name": "a", "unit": 5}], [{"x": 1}]]
)
def test_metrics_that_cannot_be_read_are_rejected(content: Any) -> None:
    with pytest.raises(RunError, match="^its metrics cannot be read.$"):
        read_metrics({"metrics": content})


def test_what_values_lie_between() -> None:
    assert (ACCURACY.bounds, ERROR.bounds) == ((0.0, 1.0), (None, None))
    perplexity = Metric("perplexity", higher_is_better=False, lowest=1.0)
    assert perplexity.bounds == (1.0, None)
    assert perplexity == Metric("perplexity", higher_is_better=False)  # as older runs have it
    assert read_metrics({"metrics": [asdict(perplexity)]})[0].bounds == (1.0, None)
    for end in ("x", nan, [1]):
        with pytest.raises(RunError, match="^its metrics cannot be read.$"):
            read_metrics({"metrics": [{"name": "perplexity", "lowest": end}]})
