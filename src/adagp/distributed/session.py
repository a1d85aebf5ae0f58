"""`adagp train --parallel ...` under torchrun: the same run in several processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adagp.distributed.data_parallel import DataLoop
from adagp.distributed.loop import ParallelLoop, ReadOnlyFolder
from adagp.distributed.pipeline import PipelineLoop, holding
from adagp.distributed.processes import World
from adagp.errors import OptionError, RunError
from adagp.methods import METHODS
from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder
from adagp.tasks.classify import Classification
from adagp.train.loop import Loop, Observer
from adagp.train.session import Session, resume_words


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
        self.world = World.join(config.device)
        self.quiet = self.world.rank > 0
        super().__init__(config, **place)
        if not isinstance(self.task, Classification):
            raise OptionError(f"parallel runs are for image classification; '{config.dataset}' is another task.")
        if self.trainer.schedule.adapts:
            raise OptionError("an adaptive schedule decides by what one process sees; train with it in one process.")
        parts = self.world.size if self.kind == "data" else config.micro_batches
        if config.batch_size % parts:
            what = "processes" if self.kind == "data" else "micro-batches"
            raise OptionError(
                f"a batch of {config.batch_size} samples does not split into {parts} equal parts ({what})."
            )
        if self.kind == "pipeline":
            if self.device.type != "cpu":
                raise OptionError(f"pipelines run on CPUs so far; give --device cpu instead of {config.device}.")
            holding(self.pipeline, self.world.size, config.micro_batches)
        torch.manual_seed(config.seed + self.world.rank)  # dropout: other samples, other masks

    def start(self, path: Path, *, force: bool = False) -> Loop:
        """Return the loop of a new run in the folder `path`, made by the first process."""
        self.world.first_does(lambda: self.prepare_folder(path, force=force).path)
        loop = self._loop(self._folder(path))
        loop.save()
        loop.folder.begin()
        return loop

    def resume(self, path: Path) -> Loop:
        """Return the loop of the run in `path`, where it was left."""
        self.world.first_does(lambda: RunFolder.claim(path).path)
        loop = self._loop(self._folder(path))
        loop.resume()
        return loop

    def run(self, loop: Loop, observer: Observer, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Train to the end; the first process returns the summary, the others an empty one. None if stopped before."""
        assert isinstance(loop, ParallelLoop)
        try:
            summary = super().run(loop, observer, stop)
        except RuntimeError as error:
            if "by peer" not in str(error):  # what gloo says of a closed connection
                raise
            raise RunError(
                f"process {self.world.rank} has lost another process of the run: see what that one says. "
                f"Continue from the last checkpoint: {resume_words(self.config, loop.folder.path)}"
            ) from None
        finally:
            loop.close()
        self.world.leave()
        return summary

    def finish(self, loop: Loop) -> dict[str, Any]:
        """Write the results in the first process alone."""
        return super().finish(loop) if self.world.rank == 0 else {}

    def _folder(self, path: Path) -> RunFolder:
        return RunFolder(path) if self.world.rank == 0 else ReadOnlyFolder(path)

    def _loop(self, folder: RunFolder) -> ParallelLoop:
        arguments = (self.trainer, self.task, self.rate, folder)
        options: dict[str, Any] = {
            "config": self.config,
            "world": self.world,
            "checkpoint_seconds": self.checkpoint_seconds,
            "origin": self.origin,
        }
        if self.kind == "data":
            return DataLoop(*arguments, **options)
        assert isinstance(self.task, Classification)
        sample = torch.zeros(self.config.batch_size // self.config.micro_batches, *self.task.data.shape)
        return PipelineLoop(*arguments, **options, pipeline=self.pipeline, sample=sample)
