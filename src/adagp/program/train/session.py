"""From a configuration to a trained model in a run folder."""

import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau

from adagp._version import __version__
from adagp.core.methods import UNRECORDED_METHOD, find_source, hooks_in_use
from adagp.core.options import keyword_options
from adagp.core.plan import Epochs, Phase, shortened_run
from adagp.core.precision import parse_precision
from adagp.core.registry import import_reference, loaded_plugins
from adagp.engine.attach import EngineOptions, attach_run
from adagp.engine.extensions import WeightUpdateHook
from adagp.engine.guard import Guard
from adagp.engine.trainer import Trainer
from adagp.errors import ModelError, OptionError
from adagp.program.jobs import Stop, never, report_share
from adagp.program.run.config import CODE, TrainConfig, check_trusted_code
from adagp.program.run.folder import ProgressFile, RunFolder, RunProgress
from adagp.program.run.record import resumed_threads
from adagp.program.tasks.base import Task, build_task, check_evaluation, evaluated
from adagp.program.train.checkpoint import save_weights
from adagp.program.train.loop import (
    CURVES,
    BatchRate,
    BatchStatus,
    EpochRate,
    Loop,
    Observer,
    Rate,
    WarmUpRate,
    to_device,
)
from adagp.sources.base import RunFacts, build_source
from adagp.sources.learned import milestones


class Silent:
    """An observer that does nothing."""

    def on_batch(self, status: BatchStatus) -> None:
        """Do nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Do nothing."""


class ProgressObserver:
    """Passes everything on to another observer, and regularly writes the run's progress, out of `batches` batches."""

    def __init__(self, observer: Observer, loop: Loop, batches: int) -> None:
        self._observer, self._loop, self._batches = observer, loop, batches
        self._file = ProgressFile(loop.folder.path)
        self._begun, self._done_before = time.monotonic(), loop.trainer.done

    def __enter__(self) -> "ProgressObserver":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.delete()

    def on_batch(self, status: BatchStatus) -> None:
        """Write the file, if it is time."""
        self._observer.on_batch(status)
        if self._file.due:
            self._file.write(self._progress(status))

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Pass it on: the epoch's figures are in the folder already."""
        self._observer.on_epoch(row)

    def _progress(self, status: BatchStatus) -> RunProgress:
        done = self._loop.trainer.done
        pace = (time.monotonic() - self._begun) / max(1, done - self._done_before)
        return RunProgress(
            batch=done,
            batches=self._batches,
            epoch=status.epoch + 1,
            phase=str(status.phase),
            loss=None if status.loss is None or not isfinite(status.loss) else status.loss,
            score=None if status.score is None or not isfinite(status.score) else status.score,
            counts=self._loop.meter.counts(),
            seconds_left=pace * max(0, self._batches - done),
        )


class Session:
    """One run: everything is built and checked on construction, before any file is written; `run` does the work.

    `task` is the run's, if the caller has it already. `note` is a sentence for the user about how the run is resumed.
    """

    quiet = False
    """Whether this process prints nothing: another one does."""
    shares_batches = False
    """Whether several processes train on shares of each batch."""
    staged = False
    """Whether this process runs some stages of the model alone."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        task: Task | None = None,
        data_dir: Path | None = None,
        download: bool = False,
        threads: int | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = threads
        self.note: str | None = None
        self.data_dir = data_dir
        self.checkpoint_seconds = checkpoint_seconds
        self.device = check_device(config.device)
        torch.manual_seed(config.seed)
        self.task = task or build_task(config, data_dir, download)
        self.config = config = config.fit(self.task.batches_per_epoch)
        self.model = self.distribute_model(self.task.build_model().to(self.device))
        self.optimizer = build_optimizer(config, self.model)
        self.rate = build_rate(config, self.optimizer, self.task.batches_per_epoch)
        kinds = {"several": self.shares_batches, "staged": self.staged}
        self.trainer = build_trainer(config, self.task, self.model, self.optimizer, **kinds)

    def distribute_model(self, model: nn.Module) -> nn.Module:
        """Return the model as this process trains it."""
        return laid_out(model)

    def agreed_folder(self, path: Path) -> Path:
        """Return the folder for a new run: `path`, or the one that all processes of the run agree on."""
        return path

    def start(self, path: Path, *, force: bool = False) -> Loop:
        """Return the loop of a new run in the folder `path`, which can be resumed from now on."""
        check_evaluation(self.task, self.model)
        loop = self._loop(self.prepare_folder(path, force=force))
        loop.save()
        loop.settle()
        loop.folder.begin()
        return loop

    def prepare_folder(self, path: Path, *, force: bool = False) -> RunFolder:
        """Return the folder of a new run with all that is known before the first batch but the checkpoint."""
        config = saved_config(self.config, self.data_dir, self.task, self.threads)
        folder = RunFolder.create(path, config, force=force)
        folder.write_json("versions.json", versions())
        folder.write_rows([])
        return folder

    def resume(self, path: Path) -> Loop:
        """Return the loop of the run in `path`, where it was left."""
        folder = self.claim_folder(path)
        try:
            threads, self.note = resumed_threads(folder, self.threads, torch.get_num_threads())
            torch.set_num_threads(threads)
            loop = self._loop(folder)
            loop.resume()
        except BaseException:
            folder.release()
            raise
        return loop

    def claim_folder(self, path: Path) -> RunFolder:
        """Return the folder of a run to be continued, locked for this process."""
        return RunFolder.claim(path)

    def run(self, loop: Loop, observer: Observer, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Train to the end and return the summary; None if stopped before."""
        try:
            return self.finish(loop) if self._train(loop, observer, stop) else None
        except SystemExit as fault:  # no part of training does that
            raise ModelError(f"the run was ended by code of its model, method or task: SystemExit: {fault}.") from fault
        finally:
            loop.folder.release()

    def _train(self, loop: Loop, observer: Observer, stop: Callable[[], bool]) -> bool:
        if self.quiet:  # only the first of several processes reports
            return loop.run(observer, stop)
        batches = self.config.batches or self.config.epochs * self.task.batches_per_epoch
        with ProgressObserver(observer, loop, batches) as followed:
            return loop.run(followed, stop)

    @property
    def origin(self) -> dict[str, dict[str, Any]]:
        """What decides the run: the options and the data. A checkpoint keeps it."""
        return {"options": self.config.as_dict(), "data": self.task.data_facts()}

    def finish(self, loop: Loop) -> dict[str, Any]:
        """Write weights and summary of a run that has reached its end."""
        save_weights(loop.folder.weights, self.model)
        summary = summarize(self.config, loop)
        with self.trainer.evaluation():
            summary |= self.task.final_metrics(self.model)
        if self.trainer.arithmetic is not None:
            name = self.task.metric.name
            summary[f"float_test_{name}"] = evaluated(self.task, self.model)[name]
        if (loop.folder.path / "summary.json").is_file():  # it had ended before: this process did not train
            summary["peak_memory"] = loop.folder.read_json("summary.json").get("peak_memory", 0)
        loop.folder.write_json("summary.json", summary)
        return summary

    def _loop(self, folder: RunFolder) -> Loop:
        return Loop(
            self.trainer,
            self.task,
            self.rate,
            folder,
            epochs=self.config.epochs,
            checkpoint_seconds=self.checkpoint_seconds,
            origin=self.origin,
        )


def laid_out(model: nn.Module) -> nn.Module:
    """Return the model with the weights of its convolutions in the channels-last format, which their outputs then follow.

    It is as fast or faster on CPUs and accelerators, by a quarter for ResNet-20; only rounding differs.
    """
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # missing in stubs


def build_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the model's optimizer."""
    parameters, decay = model.parameters(), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=decay)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=decay)
    return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=decay)


def build_rate(config: TrainConfig, optimizer: torch.optim.Optimizer, batches_per_epoch: int) -> Rate:
    """Return how the model's learning rate changes: its scheduler's, after a warm-up if there is one."""
    batches = config.batches or config.epochs * batches_per_epoch
    rate = _scheduled_rate(config, optimizer, batches)
    return WarmUpRate(rate, optimizer, ceil(config.lr_warmup * batches)) if config.lr_warmup else rate


def _scheduled_rate(config: TrainConfig, optimizer: torch.optim.Optimizer, batches: int) -> Rate:
    if config.lr_scheduler == "plateau":
        factor, patience = config.declaration.plateau
        return EpochRate(ReduceLROnPlateau(optimizer, factor=factor, patience=patience), by_loss=True)
    if config.lr_scheduler == "multistep":
        return EpochRate(MultiStepLR(optimizer, list(milestones(config.epochs))))
    if config.lr_scheduler in CURVES:
        return BatchRate(optimizer, config.lr_scheduler, config.lr, batches)
    return Rate()


def build_trainer(
    config: TrainConfig,
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    several: bool = False,
    staged: bool = False,
) -> Trainer:
    """Return the trainer for the run's schedule and sources, after a trial forward pass if one of them needs it.

    `several`: several processes train on shares of each batch. `staged`: each process runs some stages of the model, and the
    stages exchange what they need themselves.
    """
    schedule = config.schedule(task.batches_per_epoch)
    facts = RunFacts(config.seed, config.epochs)
    sources = {
        name: build_source(config.declaration, facts, config.method_options)
        if name == config.declaration.source
        else build_source(find_source(name), facts)
        for name in sorted(schedule.sources)
    }
    sample = None
    precision = parse_precision(config.precision)
    if schedule.needs_order or precision.by_layer or any(source.needs_shapes for source in sources.values()):
        inputs, _ = next(iter(task.batches(0)))
        sample = to_device(inputs, next(model.parameters()).device)
    engine = EngineOptions(
        precision=precision,
        compile=config.compile,
        guard=Guard(config.guard_limit),
        weight_hooks=build_weight_hooks(config.as_dict(), lambda: initial_weights(config.seed, task)),
        metrics_every=config.metrics_every,
    )
    return attach_run(
        model,
        optimizer,
        shortened_run(Epochs(config.epochs, task.batches_per_epoch), config.batches),
        schedule,
        sources,
        method=config.method,
        sample=sample,
        seed=config.seed,
        engine=engine,
        synchronize=several,
        staged=staged,
    )


def build_weight_hooks(
    options: Mapping[str, Any], regenerate: Callable[[], dict[str, Tensor]]
) -> list[WeightUpdateHook]:
    """Return the hooks that are on in a run with these options, in the order of the table.

    `regenerate` draws the run's initial weights again and returns them by parameter name.
    """
    return [
        import_reference(hook.builds, what="a weight-update hook", kind="Class")(
            **keyword_options(hook.options, options), regenerate=regenerate
        )
        for hook in hooks_in_use(options)
    ]


def initial_weights(seed: int, task: Task) -> dict[str, torch.Tensor]:
    """Return the weights that a run with this seed begins with, drawn again."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {name: parameter.detach() for name, parameter in laid_out(task.build_model()).named_parameters()}


def check_device(name: str) -> torch.device:
    """Return the device called `name`, tried out."""
    try:
        device = torch.device(name)
        if device.type == "meta" or (device.type == "cpu" and device.index not in (None, 0)):
            raise RuntimeError("it computes nothing." if device.type == "meta" else "there is one CPU device only.")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise OptionError(f"device '{name}' cannot be used here: {reason}. Try cpu.") from None
    return device


NOT_OPTIONS = ("data_dir", "plugins", "command", "metrics", "threads")
"""What config.json holds besides the options."""


def saved_config(config: TrainConfig, data_dir: Path | None, task: Task, threads: int | None = None) -> dict[str, Any]:
    """Return the content of config.json: options, data folder, plugins, the command that repeats the run, metrics, threads.

    `threads` is the user's number, if there is one; what torch uses is recorded in any case.
    """
    plugins = loaded_plugins()
    words = [config.command(), *(f"--plugin {shlex.quote(name)}" for name in plugins)]
    words += [f"--data-dir {shlex.quote(str(data_dir))}"] if data_dir else []
    words += [f"--threads {threads}"] if threads else []
    extra: dict[str, Any] = {
        "data_dir": str(data_dir) if data_dir else None,
        "plugins": plugins,
        "command": " ".join(words),
    }
    extra["threads"] = torch.get_num_threads()
    return {**config.as_dict(), **extra, "metrics": [asdict(metric) for metric in task.all_metrics]}


def read_config(
    folder: RunFolder, named: Collection[str] = (), *, trust: bool = False
) -> tuple[TrainConfig, Path | None]:
    """Return the configuration of a run, and its data folder.

    Models and methods of its own, `package.module:name`, are imported only if they are among `named`, or the user trusts it.
    """
    saved = folder.read_json("config.json")
    check_trusted_code(saved, folder.path, named, trust=trust)
    options = {"method": UNRECORDED_METHOD} | {name: value for name, value in saved.items() if name not in NOT_OPTIONS}
    config = TrainConfig.from_dict(options, str(folder.path / "config.json"), foreign="drop")
    data_dir = saved.get("data_dir")
    return config, Path(data_dir) if data_dir else None


def resume_command(config: TrainConfig, path: Path) -> str:
    """Return the command that continues the run in `path`, which names the code that the run needs."""
    code = [
        word
        for option in CODE
        for word in (f"--{option}", str(getattr(config, option)))
        if ":" in getattr(config, option)
    ]
    words = ["adagp", "train", "--resume", str(path), *code]
    return shlex.join([*words, *(word for name in loaded_plugins() for word in ("--plugin", name))])


def versions() -> dict[str, Any]:
    """Return what decides whether numbers can be repeated: programs, machine, threads."""
    return {
        "adagp": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def total(tables: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums by name over several tables."""
    sums: dict[str, float] = {}
    for table in tables:
        for name, value in table.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def summarize(config: TrainConfig, loop: Loop) -> dict[str, Any]:
    """Return the result of a finished run."""
    rows, metric, schedule = loop.rows, loop.task.metric, loop.trainer.schedule
    batches, seconds, answers = (total(row[name] for row in rows) for name in ("batches", "seconds", "answers"))
    return {
        "run": str(loop.folder.path),
        "command": loop.folder.read_json("config.json").get("command", ""),
        "dataset": config.dataset,
        "model": config.model,
        "method": config.method,
        "seed": config.seed,
        "epochs": len(rows),
        "parameters": sum(parameter.numel() for parameter in loop.trainer.model.parameters()),
        **{name: value for name, value in rows[-1].items() if name.startswith(("test_", "train_"))},
        f"best_test_{metric.name}": metric.best(row[f"test_{metric.name}"] for row in rows),
        "seconds": sum(seconds.values()),
        "seconds_by_phase": seconds,
        "peak_memory": peak_memory(loop.device),
        "samples_per_second": _speeds(answers, seconds),
        "batches": {kind: batches[kind] for kind in ("bp", "gp", "guarded", "warmup")},
        "sites": _last_sampled_sites(rows),
        **({"schedule_log": list(schedule.log)} if schedule.adapts else {}),
    }


def _speeds(answers: dict[str, float], seconds: dict[str, float]) -> dict[str, float]:
    return {
        phase: answers[phase] / seconds[phase] for phase in map(str, Phase) if answers.get(phase) and seconds[phase]
    }


def _last_sampled_sites(rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in reversed(rows):
        if any(figures.get("cosine") is not None for figures in row["sites"].values()):
            sites: dict[str, Any] = row["sites"]
            return sites
    return {}


def peak_memory(device: torch.device) -> int:
    """Return the most memory, in bytes, that this process has had so far.

    On a CUDA device that is what torch has allocated there. Otherwise it is the process's resident memory with all that
    Python, torch and the data set take, since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would also count the program that started this one
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class ShareObserver(Silent):
    """An observer that reports to the parent process how much of the run is done."""

    def __init__(self, session: Session) -> None:
        self._trainer = session.trainer
        config = session.config
        self._batches = config.batches or config.epochs * session.task.batches_per_epoch

    def on_batch(self, status: BatchStatus) -> None:
        """Report the share of the batches that are done."""
        report_share(self._trainer.done / self._batches)


@dataclass(frozen=True)
class TrainingJob:
    """A run in a folder. Called, it trains in one CPU thread, from the checkpoint if there is one."""

    config: TrainConfig
    folder: Path
    data_dir: Path | None = None

    def __call__(self, stop: Stop = never) -> dict[str, Any] | None:
        """Return the summary of the run, None if it was stopped before the end: its checkpoint is then kept."""
        session = Session(self.config, data_dir=self.data_dir, threads=1 if self.config.device == "cpu" else None)
        begun = RunFolder(self.folder).begun
        loop = session.resume(self.folder) if begun else session.start(self.folder, force=True)
        return session.run(loop, ShareObserver(session), stop)
