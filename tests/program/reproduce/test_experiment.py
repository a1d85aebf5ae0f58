import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.jobs import never
from adagp.program.reproduce.experiment import EXPERIMENTS, Part, Workspace, part_job, run_part
from adagp.program.reproduce.training import group, train_run

RECORDS = Path(__file__).parents[3] / "docs" / "measured" / "campaign"
CALLS: list[str] = []


def work(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    CALLS.append(part.label)
    return {"twice": 2 * part.options["number"]}


def stopped(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    return None


@pytest.fixture(autouse=True)
def _forget() -> None:
    CALLS.clear()


def test_a_finished_part_is_not_done_again(tmp_path: Path) -> None:
    part, workspace = Part(work, "a", {"number": 4}), Workspace(tmp_path)
    assert not workspace.finished(part)
    assert run_part(part, workspace)
    assert run_part(part, workspace)
    assert CALLS == ["a"]
    assert workspace.result(part) == {"twice": 8}


def test_other_options_make_another_part() -> None:
    first, same, other = (Part(work, "a", {"number": number}) for number in (1, 1, 2))
    assert first == same
    assert first.key == same.key
    assert len({first, same, other}) == 2


def test_the_committed_records_are_parts_of_todays_experiments() -> None:
    """A release or a changed definition must not discard training runs that took hours."""
    keys = {
        part.key
        for experiment in map(EXPERIMENTS.__getitem__, EXPERIMENTS)
        for budget in experiment.minutes
        for part in experiment.parts(budget)
    }
    records = {path.stem for path in (RECORDS / "parts").glob("*.json")}
    assert len(records) >= 8
    assert records - keys == set()


def test_a_key_stays_the_same_in_every_version() -> None:
    assert Part(work, "a", {"number": 1}).key == "work-a-700874d7f6"


def test_a_stopped_part_leaves_no_result(tmp_path: Path) -> None:
    part, workspace = Part(stopped, "a", {}), Workspace(tmp_path)
    assert not run_part(part, workspace)
    assert not workspace.finished(part)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    part, workspace = Part(work, "a", {"number": 4}), Workspace(tmp_path)
    run_part(part, workspace)
    workspace.result_file(part).write_text("{")
    with pytest.raises(RunError, match=r"^cannot read '.*\.json': .* Delete the file to compute it again\.$"):
        workspace.result(part)


def test_a_part_as_a_job(tmp_path: Path) -> None:
    part, workspace = Part(work, "a", {"number": 4}), Workspace(tmp_path, stop=lambda: True)
    job = pickle.loads(pickle.dumps(part_job(part, workspace)))
    assert (job.name, job.result, job.done) == (part.key, workspace.result_file(part), False)
    assert job.work(never)
    assert job.done
    assert workspace.result(part) == {"twice": 8}


@pytest.mark.medium
def test_a_training_part_stops_with_a_checkpoint_and_goes_on(tmp_path: Path) -> None:
    (part,) = group(1, dataset="digits", width=0.25, batch_size=256, epochs=2, warmup=1, ratio="1:1").parts
    asked = iter([False] * 7 + [True] * 9)  # in the second epoch of six batches
    assert not run_part(part, Workspace(tmp_path, stop=lambda: next(asked)))
    workspace = Workspace(tmp_path)
    assert (workspace.run_folder(part) / "checkpoint.pt").is_file()
    assert run_part(part, workspace)
    assert not (workspace.run_folder(part) / "checkpoint.pt").exists()
    unbroken = Workspace(tmp_path / "other")
    assert run_part(part, unbroken)
    assert workspace.result(part)["test_loss"] == unbroken.result(part)["test_loss"]


def test_a_run_that_ended_before_its_part_was_noted_is_not_trained_again(tmp_path: Path) -> None:
    (part,) = group(1, dataset="digits", width=0.25, batch_size=256, epochs=2, warmup=1, ratio="1:1").parts
    workspace = Workspace(tmp_path)
    workspace.run_folder(part).mkdir(parents=True)
    (workspace.run_folder(part) / "summary.json").write_text(json.dumps({"test_accuracy": 0.25, "other": 1}))
    (workspace.run_folder(part) / "config.json").write_text("{}")
    rows = [{"epoch": epoch, "sites": {"a": {"cosine": 0.5 * epoch}, "b": {"cosine": None}}} for epoch in range(2)]
    (workspace.run_folder(part) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves: dict[str, list[float | None]] = {name: [None, None] for name in ("loss", "accuracy", "mse")}
    assert train_run(part, workspace) == {
        "test_accuracy": 0.25,
        "cosine": 0.25,
        "curves": curves,
        "by_epoch": [{"batches": {}, "sites": {}}] * 2,
    }
