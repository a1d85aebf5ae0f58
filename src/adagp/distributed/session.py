"""`adagp train --parallel ...` under torchrun: the same run in several processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adagp.distributed.data_parallel import DataLoop
from adagp.distributed.loop import ParallelLoop, SilentFolder
from adagp.distributed.pipeline import PipelineLoop
from adagp.distributed.processes import Group
from adagp.errors import OptionError, RunError
from adagp.methods import METHODS
from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder
from adagp.tasks.classify import Classification
from adagp.train.loop import Loop, Observer
from adagp.train.session import Session


class ParallelSession(Session):
    """One run in several processes. Each builds the same model from the same seed; the first one keeps the folder."""

    def __init__(self, config: TrainConfig, **place: Any) -> None:
        self.kind, _, self.pipeline = config.parallel.partition(":")
        if self.kind not in config.declaration.parallel:
            able = [name for name in METHODS if self.kind in METHODS[name].parallel]
            raise OptionError(
                f"method '{config.method}' cannot run with --parallel {config.parallel}; choose from: {', '.join(able)}."
            )
        if config.compile:
            raise OptionError(f"--compile is for runs in one process; leave it out with --parallel {config.parallel}.")
        self.group = Group.join(config.device)
        self.quiet = self.group.rank > 0
        super().__init__(config, **place)
        if not isinstance(self.task, Classification):
            raise OptionError(f"parallel runs tell images apart; '{config.dataset}' is another task.")
        parts = self.group.size if self.kind == "data" else config.micro_batches
        if config.batch_size % parts:
            what = "processes" if self.kind == "data" else "micro-batches"
            raise OptionError(
                f"a batch of {config.batch_size} samples does not split into {parts} equal parts ({what})."
            )
        if self.kind == "pipeline":
            self._check_pipeline()
        torch.manual_seed(config.seed + self.group.rank)  # dropout: other samples, other masks

    def _check_pipeline(self) -> None:
        if self.device.type != "cpu":
            raise OptionError(f"pipelines run on processors so far; give --device cpu instead of {self.config.device}.")
        if self.pipeline == "chimera" and (self.group.size % 2 or self.config.micro_batches % 2):
            raise OptionError(
                f"chimera needs even numbers of processes and micro-batches; "
                f"got {self.group.size} and {self.config.micro_batches}."
            )

    def start(self, path: Path, *, force: bool = False) -> Loop:
        """Return the loop of a new run in the folder `path`, made by the first process."""
        self.group.first_does(lambda: self.prepare_folder(path, force=force).path)
        loop = self._loop(self._folder(path))
        loop.save()
        return loop

    def resume(self, path: Path) -> Loop:
        """Return the loop of the run in `path`, where it was left."""
        loop = self._loop(self._folder(path))
        loop.resume()
        return loop

    def run(self, loop: Loop, observer: Observer, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Train to the end; the first process returns the summary, the others an empty one. None if stopped before."""
        try:
            summary = super().run(loop, observer, stop) if self.group.rank == 0 else self._follow(loop, observer, stop)
        except RuntimeError as error:
            if "by peer" not in str(error):  # what gloo says of a closed connection
                raise
            raise RunError(
                f"process {self.group.rank} has lost another process of the run: see what that one says. "
                f"Go on from the last checkpoint with --resume {loop.folder.path}."
            ) from None
        self.group.leave()
        return summary

    def _follow(self, loop: Loop, observer: Observer, stop: Callable[[], bool]) -> dict[str, Any] | None:
        return {} if loop.run(observer, stop) else None

    def _folder(self, path: Path) -> RunFolder:
        return RunFolder(path) if self.group.rank == 0 else SilentFolder(path)

    def _loop(self, folder: RunFolder) -> ParallelLoop:
        arguments = (self.trainer, self.task, self.scheduler, folder)
        options: dict[str, Any] = {
            "config": self.config,
            "group": self.group,
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        if self.kind == "data":
            return DataLoop(*arguments, **options)
        assert isinstance(self.task, Classification)
        sample = torch.zeros(self.config.batch_size // self.config.micro_batches, *self.task.data.shape)
        return PipelineLoop(*arguments, **options, pipeline=self.pipeline, sample=sample)
