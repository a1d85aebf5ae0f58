import json
from pathlib import Path
from typing import Any

import pytest

from adagp.program.report.run_groups import Chapter, chapters, final_value, training_seconds
from adagp.program.report.tables import options_table
from adagp.program.run.metrics import ACCURACY, Metric
from adagp.program.run.record import collect


def only(paths: list[Any]) -> Chapter:
    (chapter,) = chapters(collect(paths))
    return chapter


def test_seeds_belong_together_and_backprop_comes_first(write_run: Any) -> None:
    runs = [write_run(f"{method}{seed}", method=method, seed=seed) for method in ("adagp", "bp") for seed in (0, 1)]
    chapter = only(runs)
    assert chapter.title == "digits_cnn on digits"
    assert {group.label: len(group.runs) for group in chapter.groups} == {"bp": 2, "adagp": 2}


def test_methods_of_a_comparison_are_in_its_order(write_run: Any, tmp_path: Path) -> None:
    """The page's colours go by this order, as those of the comparison's own plots do."""
    names = ("bp", "feedback", "adagp", "skip")
    runs = [write_run(f"runs/{name}-44-seed0", method=name) for name in sorted(names)]
    entries = [{"name": name} for name in names]
    (tmp_path / "comparison.json").write_text(json.dumps({"entries": entries}))
    assert [group.label for group in only(runs).groups] == list(names)


def test_groups_of_one_method_are_labelled_by_the_options_that_differ(write_run: Any) -> None:
    runs = [write_run("a", method="bp"), write_run("b", method="bp", epochs=2), write_run("c", ratio="2:1")]
    assert [group.label for group in only(runs).groups] == ["bp (4 epochs)", "bp (2 epochs)", "adagp"]
    lower = write_run("d", lr=0.5, ratio=None)
    labels = [group.label for group in only([runs[2], lower]).groups]
    assert labels == ["adagp (1)", "adagp (2)"]
    (table,) = options_table(only([runs[2], lower]))
    assert table.columns == ("method", "lr", "ratio")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["adagp (1)", "0.001", "2:1"],
        ["adagp (2)", "0.5", "–"],
    ]


def test_two_runs_of_one_seed_are_two_curves(write_run: Any) -> None:
    runs = [write_run("a", best=0.96), write_run("b", best=0.81), write_run("c", best=0.9, seed=1)]
    groups = only(runs).groups
    assert [[run.name for run in group.runs] for group in groups] == [["a", "c"], ["b"]]
    assert [group.label for group in groups] == ["adagp (1)", "adagp (2)"]


def test_a_curve_ends_where_the_first_of_its_runs_ends(write_run: Any) -> None:
    """A mean over fewer runs than before would splice curves together."""
    runs = [write_run("a", finished=False, done=3), write_run("b", seed=1, finished=False, done=1)]
    (group,) = only(runs).groups
    assert (group.length, group.common_length) == (3, 1)


def test_other_models_are_another_chapter(write_run: Any) -> None:
    runs = [write_run("a"), write_run("b", model="resnet20", width=0.5), write_run("c", method="bp")]
    found = chapters(collect(runs))
    assert [chapter.title for chapter in found] == ["digits_cnn on digits", "resnet20 on digits, width 0.5"]
    assert [len(chapter.groups) for chapter in found] == [2, 1]


def test_runs_of_other_metrics_are_another_chapter_and_old_runs_have_accuracy(write_run: Any) -> None:
    error, bleu = Metric("error", higher_is_better=False), Metric("bleu")
    runs = [write_run("a"), write_run("b", metrics=(error,)), write_run("c", seed=1, metrics=(ACCURACY, bleu))]
    found = chapters(collect(runs))
    assert [chapter.metrics for chapter in found] == [(ACCURACY, bleu), (error,)]
    assert [len(chapter.groups[0].runs) for chapter in found] == [2, 1]


def test_runs_without_a_configuration_are_groups_of_their_own(write_run: Any) -> None:
    runs = [write_run(name) for name in ("a", "b")]
    for run in runs:
        (run / "config.json").write_text("no")
    found = chapters(collect(runs))
    assert [chapter.title for chapter in found] == ["Runs without a configuration"] * 2
    assert [chapter.groups[0].label for chapter in found] == ["a", "b"]


def test_unfinished_runs_count_only_without_finished_ones(write_run: Any) -> None:
    runs = [write_run("a", best=0.8), write_run("b", best=0.4, seed=1, finished=False, done=2)]
    (group,) = only(runs).groups
    accuracy = group.over_runs(final_value)
    assert accuracy is not None
    assert (accuracy.mean, accuracy.count, group.unfinished) == (0.8, 1, False)
    (group,) = only(runs[1:]).groups
    assert group.unfinished
    accuracy, seconds = group.over_runs(final_value), group.over_runs(training_seconds)
    assert accuracy is not None
    assert seconds is not None
    assert accuracy.mean == pytest.approx(0.2)
    assert seconds.mean == pytest.approx(1.95)
