"""A whole comparison, its processes replaced by calls in this one; real processes are tested with the command line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.program.compare import costs as costs_module
from adagp.program.compare import work as work_module
from adagp.program.compare import workflow, worth
from adagp.program.compare.comparison import Comparison, ComparisonFolder
from adagp.program.compare.grid import Tuning
from adagp.program.compare.methods import read_candidates
from adagp.program.jobs import Job, JobFailure, JobObserver, Stop, Stopped, never
from adagp.program.run import TrainConfig
from adagp.program.run.record import read_whole_run
from adagp.program.tasks.base import build_task

pytestmark = pytest.mark.medium


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.parts: list[tuple[str, int]] = []
        self.started: list[str] = []
        self.rounds = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, what: str, total: int) -> None:
        self.parts.append((what, total))

    def advance(self) -> None:
        self.rounds += 1

    def on_start(self, job: Job) -> None:
        self.started.append(job.name)

    def on_share(self, job: Job, share: float) -> None:
        pass

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        pass


def run_here(jobs: Sequence[Job], at_once: int, observer: JobObserver, stop: Stop, *, fresh: bool) -> list[JobFailure]:
    assert fresh, "the peak of memory is that of one run"
    for job in jobs:
        if stop():
            raise Stopped
        if not job.done:
            observer.on_start(job)
            job.work(never)
    return []


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "run_jobs", run_here)
    monkeypatch.setattr(workflow, "usable_cores", lambda: 3)


def comparison(methods: str, **more: Any) -> Comparison:
    options = {
        "batch_size": 200,
        "width": 0.25,
        **({} if "tuning" in more else {"lr": 0.05}),
        "ratio": "1:1",
        "warmup_batches": 3,
        **more.pop("options", {}),
    }
    given: dict[str, Any] = {"seeds": 2, "batches": 16, "large_batch": 400, "points": 2, "rounds": 2, **more}
    return Comparison(read_candidates(methods), options=options, settings={}, **given)


def carried_out(wanted: Comparison, out: Path, notes: Notes, **more: Any) -> dict[str, Any]:
    task = build_task(wanted.config(wanted.reference, 0))
    return workflow.run_comparison(wanted, out, task, notes, command="adagp compare", **more)


@pytest.mark.usefixtures("forked_jobs")
def test_a_stopped_comparison_with_an_adaptive_schedule_continues(tmp_path: Path) -> None:
    wanted = comparison("bp,feedback@adaptive:1-3,skip")
    first = Notes()
    with pytest.raises(Stopped):
        carried_out(wanted, tmp_path / "one", first, stop=lambda: len(first.started) >= 6)
    assert not (tmp_path / "one" / "report.json").exists()
    second = Notes()
    found = carried_out(wanted, tmp_path / "one", second)
    assert [what for what, _ in second.parts] == [
        "memory",
        "alignment",
        "equal batches",
        "calibration",
        "equal seconds",
    ]
    assert not set(first.started) & set(second.started)
    assert second.rounds == 2
    (said,) = second.said
    assert said.startswith("A run took ")
    assert found["jobs"] in (1, 2, 3)

    at_batches, at_seconds = (found["regimes"][name]["methods"] for name in ("batches", "seconds"))
    for methods in (at_batches, at_seconds):
        assert list(methods) == ["bp", "feedback@adaptive:1-3", "skip"]
        for record in methods.values():
            assert record["runs"] == 2
            assert record["accuracy_low"] <= record["accuracy_mean"] <= record["accuracy_high"]
            assert -1 <= record["ceiling_large_batch"] <= 1
    adaptive = at_batches["feedback@adaptive:1-3"]
    assert 0 < adaptive["gp_batches"] < 13
    cost = found["calibration"]["methods"]["feedback@adaptive:1-3"]
    predicted = adaptive["gp_batches"] + adaptive["guarded_batches"]
    expected = (16 - predicted) * cost["cost"]["bp"] + predicted * cost["cost"].get("gp", cost["cost"]["bp"])
    assert adaptive["calibrated_seconds"] == pytest.approx(expected + 16 * cost["cost"]["data"])


@pytest.mark.usefixtures("forked_jobs")
def test_a_given_time_one_regime_and_no_alignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"bp": 2.0, "gp": 1e-9, "data": 0.5}
    monkeypatch.setattr(costs_module, "calibrate", lambda configs, *_: dict.fromkeys(configs, costs))
    wanted = comparison("bp,skip@1:1,skip@2:1", seeds=1, regimes=("seconds",), seconds=26.1, large_batch=0)
    notes = Notes()
    found = carried_out(wanted, tmp_path / "one", notes, jobs=2, target=0.99)
    assert notes.parts == [("calibration", 2), ("equal seconds", 3)]
    assert found["budget_seconds"] == 26.1
    methods = found["regimes"]["seconds"]["methods"]
    assert {record["target_share"] for record in methods.values()} <= {0, 1}
    # Three batches of warm-up, then GP batches at 0.5 seconds; each epoch of seven begins with a GP batch.
    assert {name: (one["batches"], one["calibrated_seconds"]) for name, one in methods.items()} == {
        "bp": (10, pytest.approx(25.0)),
        "skip@1:1": (16, pytest.approx(26.0)),
        "skip@2:1": (20, pytest.approx(26.0)),
    }
    assert all(record["cosine_true"] is None and record["sites"] == {} for record in methods.values())
    assert (tmp_path / "one" / "pareto.svg").is_file()


def test_bad_methods_are_rejected_before_the_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="^method 'topk': ") as caught:
        carried_out(comparison("bp,topk", options={"topk": 10**6}), tmp_path / "one", Notes())
    assert "topk" in str(caught.value)
    assert not (tmp_path / "one").exists()


def test_tuned_rates_equal_cycles_and_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Tuning({"lr": (0.05, 1e-6)}, batches=8)
    wanted = comparison(
        "bp,feedback", seeds=1, batches=12, regimes=("batches", "accelerator"), large_batch=0, tuning=tuning
    )
    notes = Notes()
    found = carried_out(wanted, tmp_path / "one", notes, jobs=1)
    assert notes.parts == [("tuning", 4), ("equal batches", 2), ("equal accelerator", 2)]
    tuned = found["tuning"]
    assert (tuned["regime"], tuned["validation"], list(tuned["methods"])) == ("accelerator", 0.1, ["bp", "feedback"])
    assert [one["picked"] for one in tuned["methods"].values()] == [{"lr": 0.05}] * 2
    lengths = {name: {trial["batches"] for trial in one["trials"]} for name, one in tuned["methods"].items()}
    assert lengths["bp"] == {8}
    assert max(lengths["feedback"]) < 8
    run = read_whole_run(tmp_path / "one" / "runs" / "feedback-12-seed0", "read")
    assert (run.config["lr"], run.config["validation"]) == (0.05, 0.0)
    trial = read_whole_run(tmp_path / "one" / "tuning" / "bp-lr-1e-06-8-seed10000", "read")
    assert (trial.config["lr"], trial.config["validation"]) == (1e-6, 0.1)

    platform = found["platforms"]["accelerator"]
    cycles = {name: one["costs"] for name, one in platform["methods"].items()}
    assert (
        cycles["feedback"]["accelerator"]
        <= platform["budget"]
        == cycles["bp"]["accelerator"]
        == cycles["bp"]["batches"]
    )
    at_cost = found["regimes"]["accelerator"]["methods"]
    assert at_cost["bp"]["batches"] == 12 != at_cost["feedback"]["batches"]
    assert at_cost["feedback"]["modelled_cost"] == cycles["feedback"]["accelerator"]
    text = (tmp_path / "one" / "comparison.md").read_text("utf-8")
    assert "## tuning: each method's own lr" in text
    assert "A batch costs, in batches of plain backprop: feedback WARMUP 1." in text
    assert not (tmp_path / "one" / "worth.svg").exists()

    monkeypatch.setattr(worth, "PRICED_DEVICES", (4,))
    again = Notes()
    longer = replace(wanted, regimes=("batches",), curve=(0.5, 1.0), pipeline="best,devices=2,micro-batches=2")
    grown = carried_out(longer, tmp_path / "one", again, jobs=1)
    assert (grown["platforms"], again.started) == ({}, ["bp seed 0, 6 batches"])
    (feedback,) = grown["worth"]["methods"].values()
    assert list(feedback["platforms"]) == ["accelerator", "pipeline", "pipeline-4"]
    assert [one["batches"] for one in grown["worth"]["curve"]] == [6, 12]
    assert (tmp_path / "one" / "worth.svg").is_file()


SECONDS_BY_SIZE = {50: 1.0, 100: 1.6, 200: 3.0}


def timed_by_size(configs: Mapping[Any, TrainConfig], *_: Any) -> dict[Any, dict[str, float]]:
    """Stand for timings: small batches cost more a sample; a GP batch costs half as much, loading its data included."""
    seconds = {key: SECONDS_BY_SIZE[config.batch_size] for key, config in configs.items()}
    return {key: {"bp": 0.75 * cost, "gp": 0.25 * cost, "data": 0.25 * cost} for key, cost in seconds.items()}


def test_the_batch_size_is_tuned_at_equal_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "calibrate", timed_by_size)
    monkeypatch.setattr(worth, "PRICED_DEVICES", ())
    tuning = Tuning({"lr": (0.05, 1e-6), "batch_size": (50, 100)}, batches=5)
    wanted = comparison(
        "bp,skip", seeds=1, batches=6, regimes=("batches", "seconds"), large_batch=0, tuning=tuning, curve=(0.5,)
    )
    found = carried_out(wanted, tmp_path / "one", Notes(), jobs=1)

    # 5 batches of the common size, 200, take 15 s: 15 batches of 50 samples, or 9 of 100.
    trials = found["tuning"]["methods"]["bp"]["trials"]
    assert [(trial["values"], trial["batches"]) for trial in trials] == [
        ({"lr": 0.05, "batch_size": 50}, 15),
        ({"lr": 0.05, "batch_size": 100}, 9),
        ({"lr": 1e-6, "batch_size": 50}, 15),
        ({"lr": 1e-6, "batch_size": 100}, 9),
    ]
    picked = {name: method["picked"] for name, method in found["tuning"]["methods"].items()}
    sizes = {name: values["batch_size"] for name, values in picked.items()}
    assert found["batch_sizes"] == sizes
    assert (found["batch_size"], found["backprop_batch_sizes"]) == (200, [50, 100])
    at_samples, at_seconds = (found["regimes"][regime]["methods"] for regime in ("batches", "seconds"))
    assert {name: method["batches"] * sizes[name] for name, method in at_samples.items()} == {"bp": 1200, "skip": 1200}
    assert found["budget_seconds"] == 1200 / sizes["bp"] * SECONDS_BY_SIZE[sizes["bp"]]
    assert at_seconds["skip"]["calibrated_seconds"] <= found["budget_seconds"]
    run = read_whole_run(Path(found["runs"][1]["run"]), "read")
    assert (run.config["batch_size"], run.config["warmup_batches"]) == (sizes["skip"], 3 * 200 // sizes["skip"])
    assert [point["batches"] for point in found["worth"]["curve"]] == [600 // sizes["bp"], 1200 // sizes["bp"]]

    text = (tmp_path / "one" / "comparison.md").read_text("utf-8")
    assert "## tuning: each method's own lr and batch_size" in text
    assert "Backprop was tried with batches of 50 and 100 samples." in text
    again = Notes()
    assert carried_out(wanted, tmp_path / "one", again, jobs=1) == found
    assert again.started == []


def test_a_batch_size_whose_warm_up_is_too_expensive_is_not_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs_module, "calibrate", timed_by_size)
    wanted = comparison("bp,skip", seeds=1, batches=6, regimes=("seconds",), large_batch=0, options={"lr": 0.05})
    # 12 s, which the 12 batches of 50 samples of the warm-up take
    tuned = replace(wanted, tuning=Tuning({"batch_size": (50, 200)}, batches=4))
    found = carried_out(tuned, tmp_path / "one", Notes(), jobs=1)
    trials = found["tuning"]["methods"]["skip"]["trials"]
    assert [trial["batches"] for trial in trials] == [0, 4]
    assert (trials[0]["accuracy"], found["batch_sizes"]["skip"]) == (None, 200)
    short = replace(
        wanted, tuning=Tuning({"batch_size": (50, 100)}, batches=4), options={**wanted.options, "ratio": "1:3"}
    )
    monkeypatch.setitem(SECONDS_BY_SIZE, 100, 4.0)
    with pytest.raises(OptionError, match="^method 'skip': warm-up of 6 batches does not fit a run of 6"):
        carried_out(short, tmp_path / "two", Notes(), jobs=1)


def test_equal_cycles_of_data_parallel_devices(tmp_path: Path) -> None:
    wanted = comparison(
        "bp,adagp", seeds=1, batches=8, regimes=("cluster",), large_batch=0, cluster="devices=4,link=0.1,latency=5"
    )
    found = carried_out(wanted, tmp_path / "one", Notes(), jobs=1)
    platform = found["platforms"]["cluster"]
    adagp = platform["methods"]["adagp"]
    assert adagp["samples_per_device"] == 50
    assert adagp["exchanged_bytes"]["bp"] > adagp["exchanged_bytes"]["gp"] > 0
    assert adagp["compute_cost"] < adagp["costs"]["cluster"] <= platform["budget"]
    assert adagp["costs"]["cluster"] < adagp["cost_without_overlap"]
    text = (tmp_path / "one" / "comparison.md").read_text("utf-8")
    assert "equal cycles on the cluster devices=4,link=0.1,latency=5" in text
    assert "50 samples per device" in text
    with pytest.raises(OptionError, match="^--cluster 'devices=16,.*does not split into 16 equal parts.$"):
        carried_out(replace(wanted, cluster="devices=16"), tmp_path / "two", Notes(), jobs=1)


def test_files_of_earlier_versions_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They had one batch size for all methods, and a single tuned option."""
    wanted = comparison(
        "bp,skip", seeds=1, batches=6, regimes=("seconds",), large_batch=0, tuning=Tuning({"lr": (0.05, 1e-6)})
    )
    monkeypatch.setattr(costs_module, "calibrate", timed_by_size)
    first = carried_out(wanted, tmp_path / "one", Notes(), jobs=1)
    folder = ComparisonFolder(tmp_path / "one")
    timing, tuned = (json.loads(path.read_bytes()) for path in (folder.timing, folder.tuning))
    assert list(timing["methods"]["skip"]) == ["200"]
    timing["methods"] = {name: costs["200"] for name, costs in timing["methods"].items()}
    tuned = {
        "option": "lr",
        "values": tuned["options"].pop("lr"),
        **{name: tuned[name] for name in ("regime", "validation", "seeds")},
        "methods": {
            name: {
                "batches": method["trials"][0]["batches"],
                "accuracy": {f"{trial['values']['lr']:g}": trial["accuracy"] for trial in method["trials"]},
                "picked": method["picked"]["lr"],
                "at_the_edge": bool(method["at_the_edge"]),
            }
            for name, method in tuned["methods"].items()
        },
    }
    folder.timing.write_text(json.dumps(timing))
    folder.tuning.write_text(json.dumps(tuned))
    folder.calibration.unlink()
    notes = Notes()
    assert carried_out(wanted, tmp_path / "one", notes, jobs=1) == first
    assert notes.parts == [("equal seconds", 2)]


def test_methods_and_seeds_can_be_added(tmp_path: Path) -> None:
    tuning = Tuning({"lr": (0.05, 1e-6)}, batches=8)

    def wanted(methods: str, seeds: int) -> Comparison:
        return comparison(methods, seeds=seeds, batches=12, regimes=("batches",), large_batch=0, tuning=tuning)

    carried_out(wanted("bp,skip", 1), tmp_path / "one", Notes(), jobs=1)
    notes = Notes()
    found = carried_out(wanted("bp,zero,skip", 2), tmp_path / "one", notes, jobs=1)
    assert notes.parts == [("tuning", 2), ("equal batches", 6)]
    assert notes.started == [
        "zero seed 10000, 8 batches",
        "zero seed 10000, 8 batches",
        "zero seed 0, 12 batches",
        "bp seed 1, 12 batches",
        "zero seed 1, 12 batches",
        "skip seed 1, 12 batches",
    ]
    assert list(found["tuning"]["methods"]) == ["bp", "zero", "skip"]
    assert [one["runs"] for one in found["regimes"]["batches"]["methods"].values()] == [2, 2, 2]
    again = Notes()
    carried_out(wanted("bp,zero,skip", 1), tmp_path / "one", again, jobs=1)  # fewer seeds
    assert again.started == []


def test_an_option_that_no_method_has_is_not_tuned(tmp_path: Path) -> None:
    tuning = Tuning({"features": (4, 8)})
    options = {"lr": 0.05}
    wanted = comparison(
        "bp,skip", seeds=1, batches=6, regimes=("batches",), large_batch=0, tuning=tuning, options=options
    )
    for notes in (Notes(), Notes()):
        found = carried_out(wanted, tmp_path / "one", notes, jobs=1)
        assert found["tuning"]["methods"] == {}
    assert notes.parts == [("equal batches", 2)], "not begun again"
