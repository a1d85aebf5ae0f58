"""`adagp train --parallel ...` under torchrun: the same run in several processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adagp.distributed.data_parallel import DataLoop
from adagp.distributed.loop import ParallelLoop, ReadOnlyFolder
from adagp.distributed.pipeline import PipelineLoop, assign_stages
from adagp.distributed.processes import TIMEOUT, World
from adagp.errors import OptionError, RunError
from adagp.methods import METHODS
from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder
from adagp.tasks.classify import Classification
from adagp.train.loop import Loop, Observer
from adagp.train.session import Session, resume_words


class ParallelSession(Session):
    """One run in several processes. Each builds the same model from the same seed; the first one keeps the folder."""

    def __init__(self, config: TrainConfig, *, timeout: float = TIMEOUT, **place: Any) -> None:
        self.kind, _, self.pipeline = config.parallel.partition(":")
        if self.kind not in config.declaration.parallel:
            able = [name for name in METHODS if self.kind in METHODS[name].parallel]
            raise OptionError(
                f"method '{config.method}' cannot run with --parallel {config.parallel}; choose from: {', '.join(able)}."
            )
        if config.precision != "fp32":
            raise OptionError(
                f"--precision {config.precision} is for runs in one process: exponents and widths depend on the whole batch, "
                f"of which each process has a share; leave it out with --parallel {config.parallel}."
            )
        if config.compile:
            raise OptionError(f"--compile is for runs in one process; leave it out with --parallel {config.parallel}.")
        if config.keep is not None and self.kind != "data":
            raise OptionError(
                "--keep ranks the weights of the whole model together; in a pipeline no process has them all. "
                "Use --parallel data."
            )
        self.world = World.join(config.device, timeout)
        self.quiet = self.world.rank > 0
        super().__init__(config, **place)
        if not isinstance(self.task, Classification):
            raise OptionError(f"parallel runs are for image classification; '{config.dataset}' is another task.")
        parts = self.world.size if self.kind == "data" else config.micro_batches
        if config.batch_size % parts:
            what = "processes" if self.kind == "data" else "micro-batches"
            raise OptionError(
                f"a batch of {config.batch_size} samples does not split into {parts} equal parts ({what})."
            )
        if self.kind == "pipeline":
            if self.trainer.schedule.adapts:
                raise OptionError(
                    "a pipeline needs to know the coming batches; an adaptive schedule decides after each."
                )
            if self.device.type != "cpu":
                raise OptionError(f"pipelines run on CPUs so far; give --device cpu instead of {config.device}.")
            assign_stages(self.pipeline, self.world.size, config.micro_batches)
        torch.manual_seed(config.seed + self.world.rank)  # dropout: other samples, other masks

    def prepare_folder(self, path: Path, *, force: bool = False) -> RunFolder:
        """Return the folder of a new run, made by the first process."""
        prepare = super().prepare_folder
        self.world.first_does(lambda: prepare(path, force=force).path)
        return self._folder(path)

    def claim_folder(self, path: Path) -> RunFolder:
        """Return the folder of a run to be continued, in which the first process alone writes."""
        claim = super().claim_folder
        self.world.first_does(lambda: claim(path).path)
        return self._folder(path)

    def _folder(self, path: Path) -> RunFolder:
        return RunFolder(path) if self.world.rank == 0 else ReadOnlyFolder(path)

    def run(self, loop: Loop, observer: Observer, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Train to the end; the first process returns the summary, the others an empty one. None if stopped before."""
        assert isinstance(loop, ParallelLoop)
        try:
            summary = super().run(loop, observer, stop)
        except RunError:
            raise
        except RuntimeError as error:
            reason = self.world.explain(error)
            if reason is None and "by peer" not in str(error):  # what gloo says of a closed connection
                raise
            reason = reason or f"process {self.world.rank} has lost another process of the run: see what that one says."
            words = resume_words(self.config, loop.folder.path)
            raise RunError(f"{reason} Continue from the last checkpoint: {words}") from None
        finally:
            loop.close()
        self.world.leave()
        return summary

    def finish(self, loop: Loop) -> dict[str, Any]:
        """Write the results in the first process alone."""
        return super().finish(loop) if self.world.rank == 0 else {}

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
