from typing import Any

import pytest

from adagp.program.report.groups import Chapter, chapters
from adagp.program.report.standings import equal_batches, equal_time, moments, value_at
from adagp.program.run.record import collect


def only(paths: list[Any]) -> Chapter:
    (chapter,) = chapters(collect(paths))
    return chapter


def test_an_accuracy_is_read_off_at_the_last_epoch_that_ended_in_time(write_run: Any) -> None:
    (run,) = collect([write_run("one", method="bp", best=0.8)])  # 1.1 s an epoch
    at = [value_at(run, seconds) for seconds in (1.0, 1.1, 2.3, 99.0)]
    assert at == [None, pytest.approx(0.2), pytest.approx(0.4), pytest.approx(0.8)]


def test_equal_time_is_that_of_backprop(write_run: Any) -> None:
    runs = [write_run("bp", method="bp"), write_run("ada"), write_run("short", method="bp", epochs=2)]
    moment = equal_time(only(runs))
    assert moment is not None
    assert moment.ends.label == "bp (4 epochs)"
    assert moment.seconds == pytest.approx(4.4)
    moment = equal_time(only([write_run("a", method="remap"), write_run("b", method="skip", epochs=2)]))
    assert moment is not None
    assert moment.ends.label == "skip"


def test_equal_batches_are_where_most_methods_end(write_run: Any) -> None:
    runs = [
        write_run("bp", method="bp", best=0.8),
        write_run("ada", best=0.6),
        write_run("half", method="bp", epochs=2),
    ]
    same = equal_batches(only(runs))
    assert same is not None
    assert (same.batches, same.ended) == (40, True)
    assert [(group.label, values) for group, values in same.values] == [("bp (4 epochs)", (0.8,)), ("adagp", (0.6,))]


def test_runs_under_way_are_compared_at_batches_that_they_have_in_common(write_run: Any) -> None:
    runs = [write_run("bp", method="bp", finished=False, done=3), write_run("ada", finished=False, done=2)]
    same = equal_batches(only(runs))
    assert same is not None
    assert (same.batches, same.ended) == (20, False)
    assert [group.label for group, _ in same.values] == ["bp", "adagp"]
    assert equal_batches(only(runs[:1])) is None


def test_what_is_not_finished_has_no_end(write_run: Any) -> None:
    runs = [write_run("bp", method="bp"), write_run("ada", finished=False, done=2)]
    assert [moment.ends.label for moment in moments(only(runs))] == ["bp"]
    assert [moment.ends.label for moment in moments(only(runs[1:]))] == ["adagp"]


def test_moments_that_are_close_count_once_and_are_few(write_run: Any) -> None:
    runs = [write_run(f"r{place}", method="bp", epochs=epochs) for place, epochs in enumerate((2, 4, 8, 16, 32))]
    runs += [write_run("near", method="skip", epochs=33)]
    assert [moment.ends.label for moment in moments(only(runs))] == [
        "bp (2 epochs)",
        "bp (4 epochs)",
        "bp (8 epochs)",
        "bp (32 epochs)",
    ]


def test_intervals_stay_within_what_is_possible(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.5 + 0.49 * seed) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.01 + 0.1 * seed) for seed in (0, 1)]
    moment = equal_time(only(runs))
    assert moment is not None
    for _, _, one in moment.ranking:
        assert one.low is not None
        assert one.high is not None
        assert 0 <= one.low < one.mean < one.high <= 1
