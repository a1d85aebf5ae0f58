"""The loggers, each with its real library and without a network."""

import csv
import importlib.util
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adagp
from adagp.core.plan import Phase
from adagp.errors import OptionError, RunError
from adagp.program import loggers
from adagp.program.loggers import LOGGERS, LoggerObserver, TrainerLog, build_loggers, require_loggers
from adagp.program.run import TrainConfig
from adagp.program.train.loop import BatchStatus
from adagp.program.train.session import Session

pytestmark = pytest.mark.medium

CONFIG = TrainConfig(width=0.25, batch_size=64, epochs=2, warmup=1, ratio="1:1", metrics_every=2)
PER_EPOCH = 22
Rows = list[tuple[int, str, float]]
"""Step, name and value of what a logger wrote, in its order."""


class Until:
    """Passes everything on, and asks to stop after so many batches."""

    def __init__(self, logged: LoggerObserver, batches: float) -> None:
        self.logged, self.batches, self.seen = logged, batches, 0

    def on_batch(self, status: BatchStatus) -> None:
        self.seen += 1
        self.logged.on_batch(status)

    def on_epoch(self, row: dict[str, Any]) -> None:
        self.logged.on_epoch(row)

    def __call__(self) -> bool:
        return self.seen >= self.batches


def train(name: str, path: Path, batches: float = float("inf"), *, resume: bool = False) -> None:
    session = Session(CONFIG)
    loop = session.resume(path) if resume else session.start(path, force=True)
    done = loop.trainer.done
    with LoggerObserver(build_loggers([name], path, done), done, "accuracy") as logged:
        observer = Until(logged, batches)
        session.run(loop, observer, observer)


def read_tensorboard(path: Path) -> Rows:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return [(one.step, name, one.value) for name in events.Tags()["scalars"] for one in events.Scalars(name)]


def read_csv(path: Path) -> Rows:
    with (path / "scalars.csv").open() as file:
        return [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


def read_mlflow(path: Path) -> Rows:
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient(tracking_uri=(path / "mlflow").absolute().as_uri())
    (experiment,) = [one for one in client.search_experiments() if one.name == "adagp"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    names = run.data.metrics.keys() - {"batch"}
    return [(one.step, name, one.value) for name in names for one in client.get_metric_history(run.info.run_id, name)]


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of an offline run: after 7 bytes, pieces with checksum (4 bytes), length (2) and type (1) in blocks of
    32 KiB. Types are whole (1), first (2), middle (3) and last piece (4) of a record."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def read_wandb(path: Path) -> Rows:
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its own process writes the file, and has done so when it is gone
    found: Rows = []
    for file in sorted((path / "wandb").glob("offline-run-*/*.wandb"), key=lambda one: one.stat().st_mtime):
        for content in wandb_records(file.read_bytes()):
            record: Any = getattr(wandb_internal_pb2, "Record")()  # noqa: B009  # its types do not know it
            record.ParseFromString(content)
            values = {(one.key or "/".join(one.nested_key)): json.loads(one.value_json) for one in record.history.item}
            found += [
                (values["batch"], name, value)
                for name, value in values.items()
                if not name.startswith("_") and name != "batch"
            ]
    return found


READERS: dict[str, Callable[[Path], Rows]] = {
    "tensorboard": read_tensorboard,
    "csv": read_csv,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on any look-up of a host or connection to one from this process."""

    def reject(*arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"the network was asked for: {arguments}")

    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            reject(address)
        connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", reject)
    monkeypatch.setattr(socket.socket, "connect", local_only)


def plain(rows: Rows) -> Rows:
    """Return the rows that do not depend on the clock, in one order."""
    return sorted((step, name, round(value, 5)) for step, name, value in rows if not name.startswith("seconds/"))


@pytest.mark.parametrize("name", LOGGERS)
def test_batches_epochs_and_sites_and_a_resumed_run_has_no_step_twice(name: str, tmp_path: Path) -> None:
    read = READERS[name]
    train(name, tmp_path / "whole")
    whole = read(tmp_path / "whole")
    steps = {label: [step for step, one, _ in whole if one == label] for _, label, _ in whole}
    assert steps["running/loss"] == steps["running/accuracy"] == [10, 20, 30, 40]
    assert steps["epoch/test_accuracy"] == steps["cosine/conv1"] == [PER_EPOCH, 2 * PER_EPOCH]
    assert {value for _, label, value in whole if label == "batches/gp"} == {0, PER_EPOCH / 2}
    assert {"epoch/train_loss", "epoch/lr", "seconds/gp", "mse/fc"} <= steps.keys()
    train(name, tmp_path / "parts", 25)
    train(name, tmp_path / "parts", resume=True)
    assert plain(read(tmp_path / "parts")) == plain(whole)


@pytest.mark.parametrize("name", ["tensorboard", "csv"])
def test_what_a_process_that_died_left_after_its_checkpoint_is_dropped(name: str, tmp_path: Path) -> None:
    train(name, tmp_path / "parts", 25)
    (lost,) = build_loggers([name], tmp_path / "parts", 25)
    lost.on_batch(30, {"running/loss": 99.0})
    lost.on_end()
    train(name, tmp_path / "parts", resume=True)
    values = [
        value for step, label, value in READERS[name](tmp_path / "parts") if (step, label) == (30, "running/loss")
    ]
    assert len(values) == 1
    assert values[0] < 99


def test_a_new_run_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    for name in ("tensorboard", "csv"):
        train(name, tmp_path / "run", 3)
        train(name, tmp_path / "run", 12)
        assert [step for step, label, _ in READERS[name](tmp_path / "run") if label == "running/loss"] == [10]
        train("csv", tmp_path / "run", 1)
        assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_loop_of_the_users_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    trainer = adagp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), length=adagp.Epochs(2, 6))
    log = TrainerLog(trainer, build_loggers(["csv"], tmp_path), every=2)
    losses = []
    for _ in range(2):
        for _ in range(6):
            result = trainer.step(torch.randn(8, 4), torch.randint(2, (8,)), nn.functional.cross_entropy)
            losses.append((float(result.loss), float(result.phase is Phase.GP)))
            log.on_batch(result, lr=0.1)
        log.on_epoch({"accuracy": 0.5})
    log.on_end()
    rows = read_csv(tmp_path)
    assert [(value, 0.1) for _, name, value in rows if name == "batch/loss"] == [
        (loss, 0.1) for loss, _ in losses[1::2]
    ]
    assert [value for _, name, value in rows if name == "batch/predicted"] == [gp for _, gp in losses[1::2]]
    assert [(step, value) for step, name, value in rows if name == "epoch/accuracy"] == [(6, 0.5), (12, 0.5)]


def test_unknown_and_missing_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "^unknown logger 'wand'. Did you mean 'wandb'\\? Choose from: csv, mlflow, tensorboard, wandb.$"
    with pytest.raises(OptionError, match=message):
        require_loggers(["csv", "wand"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_loggers(["csv"])
    with pytest.raises(
        OptionError, match="^--log mlflow needs mlflow, which is not installed: pip install '.\\[mlflow\\]'.$"
    ):
        require_loggers(["mlflow"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_link_in_the_place_of_a_log_is_not_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / name
    link.symlink_to(tmp_path / "target")
    for done in (0, 5):
        with pytest.raises(RunError) as raised:
            build_loggers([name], tmp_path / "run", done)
        assert str(raised.value) == f"cannot use the folder '{link}': it is a link, which is not followed."
    assert list((tmp_path / "target").iterdir()) == []


def test_a_damaged_file_of_mlflow_is_named(tmp_path: Path) -> None:
    build_loggers(["mlflow"], tmp_path)[0].on_end()
    (damaged,) = (path for path in (tmp_path / "mlflow").glob("*/meta.yaml") if path.parent.name != "0")
    for text in ("- [", "{}", "a: b: c", "artifact_location: 3"):
        damaged.write_text(text)
        with pytest.raises(RunError) as raised:
            build_loggers(["mlflow"], tmp_path, 5)
        assert str(raised.value).startswith(f"--log mlflow cannot write to '{tmp_path}': ")


def rejected(name: str, folder: Path) -> str:
    """Return why a logger cannot continue in a run folder."""
    with pytest.raises(RunError) as raised:
        build_loggers([name], folder, 5)
    return str(raised.value)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_note_of_a_log_is_read_within_limits(name: str, tmp_path: Path) -> None:
    note = tmp_path / name / "adagp.json"
    note.parent.mkdir()
    for text, fault in (
        ("[", "it is not JSON (Expecting value: line 1 column 2 (char 1))."),
        ('{"id": "../../x", "step": 3}', "'id' is \"../../x\"; it must be the name of a run."),
        ('{"id": "x", "step": -1}', "'step' is -1; it must be a whole number from 0 on."),
        (" " * 1001, "it has more than 1,000 bytes."),
    ):
        note.write_text(text)
        assert rejected(name, tmp_path) == f"cannot read '{note}': {fault}"
    note.unlink()
    os.mkfifo(note)
    assert rejected(name, tmp_path) in (
        f"cannot read '{note}': it is not a regular file.",
        f"cannot use the folder '{note.parent}': '{note}' is not a regular file.",
    )


def test_what_would_keep_mlflow_busy_is_rejected_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description, store = tmp_path / "mlflow" / "1" / "meta.yaml", tmp_path / "mlflow"
    description.parent.mkdir(parents=True)
    description.write_text("name: x\n" * 3000)
    assert rejected("mlflow", tmp_path) == f"cannot read '{description}': it has more than 16,384 bytes."
    description.write_text("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    assert rejected("mlflow", tmp_path) == (
        f"cannot read '{description}': it holds YAML anchors or aliases, which MLflow does not write."
    )
    description.unlink()
    os.mkfifo(description)
    assert rejected("mlflow", tmp_path) == f"cannot use the folder '{store}': '{description}' is not a regular file."
    description.unlink()
    monkeypatch.setattr(loggers, "MOST_ENTRIES", 3)
    for number in range(3):
        (description.parent / f"{number}").touch()
    assert rejected("mlflow", tmp_path) == f"cannot use the folder '{store}': it holds more than 3 files and folders."


def test_a_resumed_run_reads_no_metrics_of_mlflow(tmp_path: Path) -> None:
    """However long they are: the note says how far the log is written."""
    (log,) = build_loggers(["mlflow"], tmp_path)
    log.on_batch(10, {"running/loss": 1.0})
    log.on_end()
    (metrics,) = (tmp_path / "mlflow").glob("*/*/metrics")
    for file in metrics.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\xff" * 100)
    (log,) = build_loggers(["mlflow"], tmp_path, 10)
    log.on_batch(10, {"running/loss": 2.0})  # it is there already
    log.on_batch(20, {"running/loss": 3.0})
    log.on_end()
    (file,) = metrics.rglob("loss")
    assert file.read_bytes().startswith(b"\xff" * 100)
    assert [line.split()[1:] for line in file.read_bytes()[100:].decode().splitlines()] == [["3.0", "20"]]
