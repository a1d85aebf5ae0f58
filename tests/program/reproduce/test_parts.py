import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.jobs import never
from adagp.program.reproduce.parts import Part, Place, carry_out, part_job
from adagp.program.reproduce.training import group, train_run

CALLS: list[str] = []


def work(part: Part, place: Place) -> dict[str, Any] | None:
    CALLS.append(part.label)
    return {"twice": 2 * part.options["number"]}


def stopped(part: Part, place: Place) -> dict[str, Any] | None:
    return None


@pytest.fixture(autouse=True)
def _forget() -> None:
    CALLS.clear()


def test_a_finished_part_is_not_done_again(tmp_path: Path) -> None:
    part, place = Part(work, "a", {"number": 4}), Place(tmp_path)
    assert not place.finished(part)
    assert carry_out(part, place)
    assert carry_out(part, place)
    assert CALLS == ["a"]
    assert place.result(part) == {"twice": 8}


def test_other_options_make_another_part() -> None:
    first, same, other = (Part(work, "a", {"number": number}) for number in (1, 1, 2))
    assert first == same
    assert first.key == same.key
    assert len({first, same, other}) == 2


def test_a_stopped_part_leaves_no_result(tmp_path: Path) -> None:
    part, place = Part(stopped, "a", {}), Place(tmp_path)
    assert not carry_out(part, place)
    assert not place.finished(part)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    part, place = Part(work, "a", {"number": 4}), Place(tmp_path)
    carry_out(part, place)
    place.marker(part).write_text("{")
    with pytest.raises(RunError, match=r"^cannot read '.*\.json': .* Delete the file to have it made again\.$"):
        place.result(part)


def test_a_part_as_a_job(tmp_path: Path) -> None:
    part, place = Part(work, "a", {"number": 4}), Place(tmp_path, stop=lambda: True)
    job = pickle.loads(pickle.dumps(part_job(part, place)))
    assert (job.name, job.result, job.done) == (part.key, place.marker(part), False)
    assert job.work(never)
    assert job.done
    assert place.result(part) == {"twice": 8}


@pytest.mark.medium
def test_a_training_part_stops_with_a_checkpoint_and_goes_on(tmp_path: Path) -> None:
    (part,) = group(1, dataset="digits", width=0.25, batch_size=256, epochs=2, warmup=1, ratio="1:1").parts
    asked = iter([False] * 7 + [True] * 9)  # in the second epoch of six batches
    assert not carry_out(part, Place(tmp_path, stop=lambda: next(asked)))
    place = Place(tmp_path)
    assert (place.run_folder(part) / "checkpoint.pt").is_file()
    assert carry_out(part, place)
    assert not (place.run_folder(part) / "checkpoint.pt").exists()
    unbroken = Place(tmp_path / "other")
    assert carry_out(part, unbroken)
    assert place.result(part)["test_loss"] == unbroken.result(part)["test_loss"]


def test_a_run_that_ended_before_its_part_was_noted_is_not_trained_again(tmp_path: Path) -> None:
    (part,) = group(1, dataset="digits", width=0.25, batch_size=256, epochs=2, warmup=1, ratio="1:1").parts
    place = Place(tmp_path)
    place.run_folder(part).mkdir(parents=True)
    (place.run_folder(part) / "summary.json").write_text(json.dumps({"test_accuracy": 0.25, "other": 1}))
    assert train_run(part, place) == {"test_accuracy": 0.25}
