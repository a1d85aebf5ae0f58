"""Loggers of a run, for `adagp train --log` and for loops of your own: CSV, TensorBoard, Weights & Biases, MLflow.

Steps are batches since the run began, for batches and epochs alike. Nothing is sent over the network: W&B runs offline, and
MLflow writes plain files. No torch here.
"""

import csv
import importlib.util
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.files import check_folder, read_text, write_atomically
from adagp.core.plan import Phase
from adagp.core.registry import Registry, faults_as, import_reference
from adagp.errors import OptionError, RunError
from adagp.program.run import documents
from adagp.program.run.documents import COUNT, Plain, read_document, record_of

if TYPE_CHECKING:
    from adagp.program.train.loop import BatchStatus

EVERY = 10
"""Batches between two rows of the running epoch."""


class Logger(ABC):
    """Writes numbers by name and step. It is built with a folder and the batches `done` before, so that no step repeats."""

    def on_batch(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures after batch `step`, counted from 1."""
        self.write(step, values)

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of the epoch that ended with batch `step`."""
        self.write(step, values)

    def on_end(self) -> None:
        """Finish: the run has ended or continues in another process."""
        return

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a row of an epoch's metrics by name: its own, seconds and batches by kind, figures by site."""
    return dict(_named(row))


def _named(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, int | float):
            yield f"epoch/{name}", value
    for kind in ("seconds", "batches"):
        for name, value in row.get(kind, {}).items():
            yield f"{kind}/{name}", value
    for site, figures in row.get("sites", {}).items():
        for name, value in figures.items():
            if value is not None:
                yield f"{name}/{site}", value


NAMES = ("step", "name", "value")
LONGEST_STEP = 20
"""Digits of a step at most."""


class CsvFile(Logger):
    """Appends to the file `scalars.csv`. Rows of later steps, left by a process that died, are dropped first."""

    def __init__(self, folder: Path, done: int = 0) -> None:
        path = folder / "scalars.csv"
        rows: list[list[str]] = []
        if done and path.is_file():
            lines = read_text(path, "the figures so far", RunError).splitlines()
            try:
                rows = [row for row in csv.reader(lines) if len(row) == len(NAMES) and _step(row) <= done]
            except csv.Error as error:
                raise RunError(f"cannot read the figures so far '{path}': {error}.") from None
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([NAMES, *rows])
        write_atomically(path, text.getvalue().encode())  # what is kept is never half there
        self._file: Any = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, to be seen at once."""
        self._writer.writerows((step, name, value) for name, value in values.items())
        self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


def _step(row: Sequence[str]) -> float:
    """Return the step of a row; infinity for the header, or a row of another program."""
    return int(row[0]) if row[0].isdecimal() and len(row[0]) < LONGEST_STEP else inf


class TensorBoard(Logger):
    """Writes scalars into the folder `tensorboard`.

    Events of later batches, left by a process that died after its last checkpoint, are marked as void: those batches are
    trained again.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(check_folder(folder / "tensorboard"), purge_step=done + 1 if done else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of an epoch, and let them be seen at once."""
        self.write(step, values)
        self._writer.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._writer.close()


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What W&B and MLflow take for the identity of a run; it becomes part of a file's name."""
_NOTE = record_of(
    {"id": Plain("the name of a run", lambda name: isinstance(name, str) and bool(NAME.fullmatch(name))), "step": COUNT}
)


class RunNote:
    """A small file in the folder of a logger: the identity of the log's run, and the last step that was written.

    With it a resumed run continues its log without reading what the log holds.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "adagp.json"

    def read(self, done: int) -> tuple[str | None, int]:
        """Return the identity and the last step of the run that is continued; None and 0 for a new one."""
        if not done or not self._path.exists():
            return None, 0
        content = read_document(self._path, _NOTE, most=1000)
        return content["id"], content["step"]

    def write(self, identity: str, step: int) -> None:
        """Note how far the run is written."""
        write_atomically(self._path, json.dumps({"id": identity, "step": step}).encode())


class WandbRun(Logger):
    """Writes an offline run into the folder `wandb`.

    A run that is resumed keeps its identity, in a part of its own. Written steps cannot be removed, so steps that are already
    there are left out: a resumed run repeats them exactly.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # its reports of errors would go to the network even offline
        import wandb

        # W&B itself links files of each part of a run to its cache; every part is a new folder, nothing goes through them
        self._note = RunNote(check_folder(folder / "wandb", create=True, deep=False))
        identity, self._last = self._note.read(done)
        settings: Any = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        self._run: Any = wandb.init(
            project="adagp", name=folder.name, id=identity, mode="offline", dir=str(folder), settings=settings
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, and note how far the run is written."""
        if step <= self._last:
            return
        self._run.log({"batch": step, **values}, step=step)
        self._note.write(self._run.id, step)

    def on_end(self) -> None:
        """Finish the offline run."""
        self._run.finish()


class MlflowRun(Logger):
    """Writes metrics into a file store in the folder `mlflow`, as one run, which a resumed run continues with.

    Written steps cannot be removed, so steps that are already there are left out: a resumed run repeats them exactly.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        # MLflow recommends a database and allows its file store only on request; telemetry must stay off.
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        store = check_folder(folder / "mlflow", create=True)
        _check_store(store)
        self._note = RunNote(store)
        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=store.absolute().as_uri())
        identity, self._last = self._note.read(done)
        if identity is None:
            experiment = self._client.get_experiment_by_name("adagp")
            number = experiment.experiment_id if experiment else self._client.create_experiment("adagp")
            self._id = self._client.create_run(number, run_name=folder.name).info.run_id
        else:
            self._id = identity
            self._client.set_tag(identity, "adagp.resumed_after_batch", str(done))  # raises if there is no such run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, and note how far the run is written."""
        if step <= self._last:
            return
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in {**values, "batch": step}.items()]
        for first in range(0, len(metrics), 1000):  # as many as it takes at once
            self._client.log_batch(self._id, metrics=metrics[first : first + 1000])
        self._note.write(self._id, step)

    def on_end(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


MOST_ENTRIES, MOST_DESCRIPTION = 100_000, 16_384
"""Files and folders of an MLflow store, and bytes of a `meta.yaml` in it, which has about 500."""
_ALIAS = re.compile(r"(?:^|[\s\[{,:-])[&*]\w")
"""A YAML anchor or alias: a few lines of them stand for more values than fit into any memory."""


def _check_store(store: Path) -> None:
    """Raise on what would keep MLflow busy when it reads the descriptions of experiments and runs in its store."""
    for count, path in enumerate(store.rglob("*"), start=1):
        if count > MOST_ENTRIES:
            raise RunError(f"cannot use the folder '{store}': it holds more than {MOST_ENTRIES:,} files and folders.")
        if not path.is_dir() and not path.is_file():  # a pipe would keep it waiting
            raise RunError(f"cannot use the folder '{store}': '{path}' is not a regular file.")
        if path.name == "meta.yaml":
            try:
                text = documents.read_text(path, MOST_DESCRIPTION)
            except RunError as error:
                raise RunError(f"cannot read '{path}': {error}") from None
            if _ALIAS.search(text):
                raise RunError(f"cannot read '{path}': it holds YAML anchors or aliases, which MLflow does not write.")


LOGGERS: Registry[tuple[str, str]] = Registry("logger")
"""The class of each logger as `package.module:Class`, made with a folder and the batches done; and what it imports."""
LOGGERS.add("tensorboard", ("adagp.program.loggers:TensorBoard", "tensorboard"))
LOGGERS.add("csv", ("adagp.program.loggers:CsvFile", "csv"))
LOGGERS.add("wandb", ("adagp.program.loggers:WandbRun", "wandb"))
LOGGERS.add("mlflow", ("adagp.program.loggers:MlflowRun", "mlflow"))


def require_loggers(names: Sequence[str]) -> None:
    """Raise on unknown loggers; if a package is missing, the error names the extra to install."""
    for name in names:
        package = LOGGERS[name][1]
        if package != "csv" and importlib.util.find_spec(package) is None:
            raise OptionError(f"--log {name} needs {package}, which is not installed: pip install '.[{name}]'.")


def build_loggers(names: Sequence[str], folder: Path, done: int = 0) -> list[Logger]:
    """Return the loggers for a run in `folder`, `done` of whose batches are trained already."""
    require_loggers(names)
    loggers = []
    for name in names:
        logger_class = import_reference(LOGGERS[name][0], what="a logger", kind="Class")
        with faults_as(RunError, f"--log {name} cannot write to '{folder}'"):  # its library reads files of the folder
            loggers.append(logger_class(folder, done))
    return loggers


class TrainerLog:
    """Call `on_batch` with the result of each `trainer.step`, `on_epoch` with figures of your own, and `on_end` once.

    `trainer` is what `adagp.attach` returned; steps are the batches that it has done. `every` is how many batches lie
    between two rows: reading a loss waits for the device.
    """

    def __init__(self, trainer: Any, loggers: Sequence[Logger], every: int = EVERY) -> None:
        self._trainer, self._loggers, self._every = trainer, tuple(loggers), every

    def on_batch(self, result: Any, **figures: float) -> None:
        """Write loss, phase and `figures` of a batch, if it is time. `result` has `loss`, `phase` and `skipped`."""
        step = self._trainer.done
        if step % self._every or result.skipped:
            return
        values = {"batch/loss": float(result.loss), "batch/predicted": float(str(result.phase) == "gp"), **figures}
        for logger in self._loggers:
            logger.on_batch(step, values)

    def on_epoch(self, figures: Mapping[str, float]) -> None:
        """Write figures of an epoch, such as an evaluation's."""
        for logger in self._loggers:
            logger.on_epoch(self._trainer.done, {f"epoch/{name}": value for name, value in figures.items()})

    def on_end(self) -> None:
        """Finish all loggers."""
        for logger in self._loggers:
            logger.on_end()


class LoggerObserver:
    """Passes the running epoch's means to loggers every ten batches, and all metrics of a finished epoch.

    `done` batches are trained already; `metric` is the name of the task's first metric.
    """

    def __init__(self, loggers: Sequence[Logger], done: int, metric: str) -> None:
        self._loggers, self._step, self._metric = loggers, done, metric
        self._waiting: dict[str, float] = {}

    def __enter__(self) -> "LoggerObserver":
        return self

    def __exit__(self, *_: object) -> None:
        self._pass_on()
        for logger in self._loggers:
            logger.on_end()

    def on_batch(self, status: "BatchStatus") -> None:
        """Take the running epoch's means now and then; they are written with the next batch or the end of the epoch."""
        self._pass_on()
        self._step += 1
        if self._step % EVERY == 0:
            predicted = float(status.phase is Phase.GP)
            means = {"running/loss": status.loss, f"running/{self._metric}": status.score}
            known = {name: value for name, value in means.items() if value is not None}
            self._waiting = {**known, "running/predicted": predicted}

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Write all figures of a finished epoch, and those of its last batch: a step is written once."""
        for logger in self._loggers:
            logger.on_epoch(self._step, {**self._waiting, **scalars(row)})
        self._waiting = {}

    def _pass_on(self) -> None:
        if self._waiting:
            for logger in self._loggers:
                logger.on_batch(self._step, self._waiting)
            self._waiting = {}
