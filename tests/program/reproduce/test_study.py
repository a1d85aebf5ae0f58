import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.marks import slow
from tools.write_results import BEGIN, END, NOTHING, comparable, put_verdicts

import adagp
from adagp._version import source_digest
from adagp.errors import DataError, RunError
from adagp.papers.approximation.kernels import time_kernels
from adagp.program.jobs import Job, JobFailure, Stopped
from adagp.program.reproduce.experiment import Part, Workspace, choose, run_part
from adagp.program.reproduce.study import Estimate, Study, without_data, write_overview
from adagp.program.reproduce.training import group

pytestmark = pytest.mark.medium

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Notes:
    """Keeps the names of the jobs that ended well, and the reasons of the others."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def on_start(self, job: Job) -> None:
        pass

    def on_share(self, job: Job, share: float) -> None:
        pass

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        self.ended.append(failure.reason if failure else job.name)


@pytest.mark.usefixtures("forked_jobs")
def test_an_experiment_from_its_parts_to_the_summary(tmp_path: Path) -> None:
    study = Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path))
    notes = Notes()
    study.run(1, notes)
    assert notes.ended == [study.parts[0].key]
    assert study.left == []
    text = (tmp_path / "verdicts.md").read_text()
    assert text.startswith("Budget quick: offline: training on the embedded digits")
    assert "All verdicts: 1 outside, 1 holds." in text
    assert "### adagp-figure16" in text
    assert "holds: 10 of 10 convolutions; ImageNet, 90 epochs" in text
    head, *rows = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert head == (
        "experiment,quantity,kind,claim,published,measured,modelled,computed,difference,verdict,reason,unit,tolerance,source,covers"
    )
    assert len(rows) == 2
    before = (tmp_path / "adagp-figure16" / "figure.svg").read_bytes()
    Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path)).run(1, notes)
    assert len(notes.ended) == 1
    assert (tmp_path / "adagp-figure16" / "figure.svg").read_bytes() == before
    assert not study.is_stale
    marker = tmp_path / "reproduce.json"
    marker.write_text(marker.read_text().replace(source_digest(), "0123456789abcdef"))
    assert study.is_stale
    with pytest.raises(RunError, match=r"holds results of budget quick; give another --out for budget full\.$"):
        Study(choose(["adagp-figure16"]), "full", Workspace(tmp_path))


def test_a_folder_with_other_things_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(RunError, match=r"holds files that are not a reproduction; give another --out\.$"):
        Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path))


def test_experiments_without_their_data_are_found(tmp_path: Path) -> None:
    experiments = choose(["adagp-figure16", "adagp-table2", "remap-table1"])
    assert without_data(experiments, "standard", tmp_path) == {"adagp-table2": "multi30k", "remap-table1": "cifar10"}
    assert without_data(experiments, "quick", tmp_path) == {}


def test_missing_data_are_told_before_any_work(tmp_path: Path) -> None:
    out, data = tmp_path / "out", tmp_path / "data"
    with pytest.raises(DataError) as caught:
        Study(choose(["adagp-table1", "adagp-table4", "remap-table1"]), "standard", Workspace(out, data))
    expected = (
        f"at budget standard, adagp-table1, remap-table1 need real data: data set 'cifar10' is not in {data}. Provide "
        f"the file {data / 'cifar10.npz'} with the arrays x_train, y_train, x_test, y_test (optionally class_names), or "
        f"the folder {data / 'cifar-10-batches-py'} in its usual layout. "
        "Give its folder with --data-dir, or leave these experiments out."
    )
    assert re.sub(r"\s+", " ", str(caught.value)) == expected
    assert not out.exists()


@pytest.mark.usefixtures("forked_jobs")
def test_a_failed_part_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    (missing,) = group(1, weight=9, rank=0, dataset="cifar10", model="resnet14", epochs=1, method="bp").parts
    kernel = Part(time_kernels, "2", {"channels": 2, "size": 4, "samples": 2, "rounds": 1})
    study, notes = Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path / "out", tmp_path)), Notes()
    study.parts = [kernel, missing]
    with pytest.raises(RunError) as caught:
        study.run(1, notes)
    assert str(caught.value).startswith(f"1 of 2 parts failed; {missing.key}: data set 'cifar10' is not in {tmp_path}.")
    assert str(caught.value).endswith(" Finished parts are kept: the same command continues from there.")
    assert [one.partition(" is not in ")[0] for one in notes.ended] == ["data set 'cifar10'", kernel.key]
    assert set(study.workspace.result(kernel)) == {"exact", "approximated", "transposition", "filter"}


@pytest.mark.usefixtures("forked_jobs")
def test_a_request_to_stop_reaches_a_training_run(tmp_path: Path) -> None:
    (part,) = group(1, dataset="digits", epochs=2000, method="bp").parts
    begun = Workspace(tmp_path).run_folder(part) / "checkpoint.pt"
    study = Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path, stop=begun.is_file))
    study.parts = [part]
    with pytest.raises(Stopped):
        study.run(2, Notes())
    assert begun.is_file()
    assert study.left == [part]


@pytest.mark.usefixtures("forked_jobs")
def test_finished_parts_come_from_the_records_and_go_there(tmp_path: Path) -> None:
    kernels = [
        Part(time_kernels, str(size), {"channels": 2, "size": size, "samples": 2, "rounds": 1}) for size in (4, 8)
    ]
    records = Workspace(tmp_path / "records")
    assert run_part(kernels[1], records)
    study = Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path / "out"), records.out)
    study.parts = kernels
    assert study.left == [kernels[0]]
    assert study.estimate(1) == Estimate(records.seconds(kernels[1]), 0)
    assert Study(choose(["adagp-figure16"]), "quick", Workspace(tmp_path / "new")).estimate(1) == Estimate(0.0, 1)
    study.run(1, Notes())
    assert study.left == []
    for part in kernels:
        assert study.workspace.result_file(part).read_bytes() == records.result_file(part).read_bytes()


def test_a_report_begins_nothing(tmp_path: Path) -> None:
    notes = Notes()
    Study(choose(["adagp-table1"]), "standard", Workspace(tmp_path / "out"), report_only=True).run(1, notes)
    assert notes.ended == []
    assert not (tmp_path / "out" / "adagp-table1").exists()  # no model is finished


@pytest.mark.parametrize("moment", [slow("parts/*.json"), "reproduce.json"])
def test_ctrl_c_ends_without_a_traceback(tmp_path: Path, moment: str) -> None:
    """In the middle of the work, and while the processes are still starting."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "adagp", "reproduce", "approximation-table1", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(out.glob(moment)):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert told.endswith("Stopped. The same command continues from here.\n")
    assert "Traceback" not in told


@pytest.mark.slow
def test_killed_and_begun_again_it_does_not_repeat_finished_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "adagp", "reproduce", "approximation-table1", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("parts/*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = list(out.glob("parts/*.json"))
    assert 1 <= len(kept) < 8
    assert not (out / "verdicts.md").exists()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"Parts: 8; finished earlier: {len(kept)}; in parallel: 2." in again.stderr
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept} == before
    assert len(list(out.glob("parts/*.json"))) == 8
    verdicts = json.loads((out / "approximation-table1" / "verdict.json").read_text())
    assert {row["verdict"] for row in verdicts[:8]} <= {"within", "outside"}, "timed here, whatever came out"
    for name in ("table.csv", "figure.svg", "figure.png", "verdict.csv"):
        assert (out / "approximation-table1" / name).stat().st_size > 0


def test_verdicts_are_put_into_a_document_between_its_comments() -> None:
    document = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    new = put_verdicts(document, "new\n")
    assert new == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    assert put_verdicts(new, "new\n") == new
    with pytest.raises(DataError, match=r"^the document does not have the comments '<!-- verdicts: begin, written by"):
        put_verdicts("no comments", "new")


def test_rows_that_are_not_comparable_are_left_out() -> None:
    """A table without any other row is replaced by a sentence."""
    head = "| quantity | verdict |\n| --- | --- |\n"
    verdicts = (
        f"### one\n\n{head}| a | within |\n| b | not comparable: digits |\n\n### two\n\n{head}| c | not comparable |\n"
    )
    assert comparable(verdicts) == f"## one\n\n{head}| a | within |\n\n## two\n\n{NOTHING}"


def test_the_largest_budget_decides(tmp_path: Path) -> None:
    """Products are arithmetic, the same at every budget; re-mapping's losses have no records, so they are not tested."""
    records, out = tmp_path / "records", tmp_path / "out"
    records.mkdir()
    experiments = choose(["lecture-products", "adagp-figure16", "remap-losses"])
    for part in choose(["adagp-figure16"])[0].parts("quick"):
        assert run_part(part, Workspace(records))
    rows = {row.path: row for row in write_overview(experiments, records, out)}
    assert rows["lecture-products/y/0/1"].outcome == "reproduced"
    assert rows["lecture-products/y/0/1"].budget == "full"
    assert rows["adagp-figure16/claims/cheaper"].outcome == "reproduced"
    waiting = rows["remap-losses/claims/falls"]
    assert (waiting.outcome, waiting.reason) == (
        "not tested",
        "the runs of remap-losses are not finished at this budget",
    )
    with (out / "published.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    text = (out / "verdicts.md").read_text()
    assert "### lecture-products, budget full" in text
    assert "| lecture | " in text
    assert not (out / "quick").exists() or not (out / "quick" / "lecture-products").exists()
    assert sorted(file.name for file in (out / "full" / "lecture-products").iterdir()) == [
        "figure.png",
        "figure.svg",
        "table.csv",
        "verdict.csv",
        "verdict.json",
    ]


def test_a_folder_of_one_budget_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reproduce.json").write_text('{"budget": "quick"}')
    with pytest.raises(RunError) as caught:
        write_overview(choose(["lecture-products"]), None, tmp_path)
    assert str(caught.value) == (
        f"'{tmp_path}' holds results of one budget; give another --out for a report on all, or --budget."
    )
