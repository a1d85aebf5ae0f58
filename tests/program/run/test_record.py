import json
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.run.metrics import Metric
from adagp.program.run.record import collect, collect_whole, read_run, read_whole_run

CUT_OFF = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
FROM_0 = "it must be a whole number from 0 on"
SCALAR = "it must be text, a number, true, false or null"
ERROR = Metric("mean_squared_error", higher_is_better=False)


def test_a_whole_run_has_no_problems(write_run: Any) -> None:
    (run,) = collect([write_run("one", method="adagp")])
    assert (run.name, run.problems, run.finished) == ("one", (), True)
    assert [epoch.number for epoch in run.epochs] == [1, 2, 3, 4]
    assert [epoch.predicted_share for epoch in run.epochs] == [0, 0.5, 0.5, 0.5]
    assert run.clock == pytest.approx([1.1, 1.95, 2.8, 3.65])  # evaluation left out


@pytest.mark.parametrize("name", ["rejected_share", "refused"])
def test_rejected_gradients_are_read_by_their_name_and_by_the_older_one(write_run: Any, name: str) -> None:
    folder = write_run("one")
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[1][name] = 0.25
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,) = collect([folder])
    assert [epoch.rejected_share for epoch in run.epochs] == [0.0, 0.25, 0.0, 0.0]


def test_runs_below_a_folder_are_taken_each_once(write_run: Any, tmp_path: Path) -> None:
    for name in ("study/bp/s0", "study/bp/s1", "study/adagp/s0"):
        write_run(name)
    (tmp_path / "study" / "pictures").mkdir()
    study = tmp_path / "study"
    assert [run.name for run in collect([study, study / "bp" / "s1"])] == ["adagp/s0", "bp/s0", "bp/s1"]


def test_whole_runs_below_a_folder(write_run: Any, tmp_path: Path) -> None:
    """One that has just begun is left out there, and rejected where it is named; damage is rejected everywhere."""
    write_run("study/bp")
    begun = write_run("study/adagp", done=0, finished=False)
    study = tmp_path / "study"
    assert [run.name for run in collect_whole([study], "draw")] == ["bp"]
    with pytest.raises(RunError) as caught:
        collect_whole([study, begun], "draw")
    assert str(caught.value) == f"the run in '{begun}' has no finished epoch yet: there is nothing to draw."
    (study / "bp" / "metrics.jsonl").write_text("{")
    with pytest.raises(RunError, match=f"^the run in '{study / 'bp'}' is damaged: "):
        collect_whole([study], "draw")
    (study / "bp" / "metrics.jsonl").write_text("")
    with pytest.raises(RunError) as caught:
        collect_whole([study], "draw")
    assert str(caught.value) == f"no run below '{study}' has a finished epoch yet: there is nothing to draw."


def test_runs_of_the_same_name_are_told_apart(write_run: Any, tmp_path: Path) -> None:
    names = [run.name for run in collect([write_run("a/one"), write_run("b/one")])]
    assert names == [str(tmp_path / "a" / "one"), str(tmp_path / "b" / "one")]


def test_what_is_no_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"^'{tmp_path}/none' is not a run folder: there is no such folder.$"):
        collect([tmp_path / "none"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=f"^'{tmp_path}/file' is not a run folder: there is no such folder.$"):
        collect([tmp_path / "file"])
    message = f"^'{tmp_path}' is not a run folder, and there is none below it: no config.json or metrics.jsonl.$"
    with pytest.raises(RunError, match=message):
        collect([tmp_path])


def test_an_empty_folder_is_a_run_of_which_nothing_is_there(tmp_path: Path) -> None:
    (run,) = collect([tmp_path])
    assert run.problems == (
        "The folder holds no files of a run.",
        "Not finished, or no summary.json: 0 epochs.",
    )


def test_missing_files_are_named(write_run: Any) -> None:
    run = write_run("one", finished=False, done=2)
    (run / "sites.csv").unlink()
    (run / "versions.json").unlink()
    assert read_run(run, "one").problems == (
        "Missing: versions.json, sites.csv.",
        "Not finished, or no summary.json: 2 of 4 epochs.",
    )


def test_damaged_files_are_named(write_run: Any) -> None:
    run = write_run("one")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "[1]", '{"epoch": "x"}', lines[3][:40]]))
    (run / "config.json").write_text("{")
    (run / "summary.json").write_bytes(b"\xff")
    record = read_run(run, "one")
    assert len(record.epochs) == 1
    assert record.problems == (
        f"config.json cannot be read: it is not JSON ({CUT_OFF}).",
        "summary.json cannot be read: it is not text in UTF-8.",
        "metrics.jsonl cannot be read in lines 2, 3, 4: left out.",
        "Not finished, or no summary.json: 1 epoch.",
    )


def test_a_last_line_of_an_unfinished_run_that_is_cut_off_is_no_damage(write_run: Any) -> None:
    """A reader may come while it is written; of a finished run it is damage."""
    run = write_run("one", finished=False)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[:-10])
    record = read_run(run, "one")
    assert len(record.epochs) == text.count("\n") - 1
    assert record.damage == ()
    (run / "summary.json").write_text("{}")
    assert read_run(run, "one").damage == (f"metrics.jsonl cannot be read in line {text.count(chr(10))}: left out.",)


def test_figures_that_are_not_finite_are_named(write_run: Any, rewrite: Any) -> None:
    run = write_run("one", epochs=9)
    rewrite(run, 1, {"train_loss": float("nan"), "batches": None, "sites": [], "seconds": {"bp": float("inf")}})
    for place in range(2, 9):
        rewrite(run, place, {"test_loss": None})
    record = read_run(run, "one")
    assert record.problems == (
        "No finite train loss in epoch 2.",
        "No finite test loss in epochs 3, 4, 5, 6, 7 and 2 more.",
    )
    assert record.epochs[1].seconds == {}
    assert record.epochs[1].predicted_share == 0


def test_values_are_those_of_the_first_metric(write_run: Any, rewrite: Any) -> None:
    run = write_run("one", metrics=(ERROR, Metric("explained")), best=0.5)
    rewrite(run, 0, {"test_mean_squared_error": None})
    record = read_run(run, "one")
    assert [metric.name for metric in record.metrics] == ["mean_squared_error", "explained"]
    assert [epoch.test_value for epoch in record.epochs] == [None, 1.0, pytest.approx(2 / 3), 0.5]
    assert record.problems == ("No finite test mean squared error in epoch 1.",)


def test_what_a_run_says_of_itself(write_run: Any) -> None:
    record = read_run(write_run("one", image_size=16, width=0.5, batch_size=8, method="bp"), "one")
    assert (record.model, record.dataset, record.method) == ("digits_cnn", "digits", "bp")
    assert (record.image_size, record.width, record.batch_size, record.plugins) == (16, 0.5, 8, ())
    assert record.phases == [{"warmup": 0, "bp": 10, "gp": 0, "guarded": 0}] * 4


def test_what_a_run_does_not_say_is_the_default_or_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"width": "wide", "image_size": "large", "plugins": ["a", "b"], "model": 5}')
    record = read_run(tmp_path, "one")
    assert (record.width, record.image_size, record.plugins) == (1.0, None, ("a", "b"))
    for name in ("model", "dataset", "batch_size", "method"):
        words = name.replace("_", " ")
        with pytest.raises(RunError, match=f"^the run in '{tmp_path}' has no {words} in its config.json.$"):
            getattr(record, name)


def test_a_whole_run_is_read_and_any_other_rejected(write_run: Any, tmp_path: Path) -> None:
    run = write_run("one", finished=False, done=2)
    assert len(read_whole_run(run, "draw").epochs) == 2  # it need not be over
    (tmp_path / "empty").mkdir()
    rejected = [
        (tmp_path / "empty", "'{}' is not a run folder: it has no config.json."),
        (write_run("begun", done=0), "the run in '{}' has no finished epoch yet: there is nothing to draw."),
    ]
    for place, (file, content, words) in enumerate(
        (
            ("config.json", "{", f"config.json cannot be read: it is not JSON ({CUT_OFF})."),
            ("config.json", "[]", "config.json cannot be read: it holds []; it must be a table."),
            ("config.json", '{"metrics": 5}', "config.json cannot be read: 'metrics' is 5; it must be a list."),
            ("config.json", '{"metrics": []}', "config.json: its metrics cannot be read."),
            ("summary.json", "{", f"summary.json cannot be read: it is not JSON ({CUT_OFF})."),
            ("summary.json", '{"batches": {"bp": -1}}', f"summary.json cannot be read: 'batches.bp' is -1; {FROM_0}."),
            ("versions.json", '{"torch": []}', f"versions.json cannot be read: 'torch' is []; {SCALAR}."),
            ("metrics.jsonl", '{"epoch": 0}\nx', "metrics.jsonl cannot be read in line 2: left out."),
        )
    ):
        broken = write_run(f"broken{place}")
        (broken / file).write_text(content)
        rejected.append((broken, f"the run in '{{}}' is damaged: {words}"))
    for path, words in rejected:
        with pytest.raises(RunError) as caught:
            read_whole_run(path, "draw")
        assert str(caught.value) == words.format(path)


def test_a_run_whose_metrics_are_empty_is_incomplete(write_run: Any) -> None:
    run = write_run("one")
    (run / "metrics.jsonl").write_text("")
    record = read_run(run, "one")
    assert record.problems == ("Incomplete: metrics.jsonl holds no epoch.",)
    assert not record.finished
    begun = read_run(write_run("two", finished=False, done=0, epochs=20), "two")
    assert begun.problems == (
        "Incomplete: metrics.jsonl holds no epoch.",
        "Not finished, or no summary.json: 0 of 20 epochs.",
    )


def test_a_run_with_a_summary_but_without_all_epochs_is_incomplete(write_run: Any) -> None:
    record = read_run(write_run("one", done=1, epochs=20), "one")
    assert record.problems == (
        "Incomplete: summary.json says that the run ended, but metrics.jsonl holds 1 of 20 epochs.",
    )
    assert not record.finished
    assert read_run(write_run("two"), "two").finished
