"""`adagp train --parallel ...` under torchrun: the same run in several processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adagp.core.methods import METHODS, hooks_in_use
from adagp.data.batches import Share
from adagp.errors import AdagpError, OptionError, RunError
from adagp.program.distributed.data_parallel import DataLoop, FsdpLoop, shard_model, whole_weights
from adagp.program.distributed.loop import ParallelLoop, ReadOnlyFolder
from adagp.program.distributed.pipeline import PipelineLoop, check_pipeline
from adagp.program.distributed.placement import cut_and_place
from adagp.program.distributed.processes import TIMEOUT, World
from adagp.program.run.config import TrainConfig
from adagp.program.run.folder import RunFolder
from adagp.program.run.parallel import FSDP, PIPELINE, parse_parallel
from adagp.program.tasks.base import take_share
from adagp.program.train.loop import Loop, Observer, to_device
from adagp.program.train.session import Session, resume_command


class ParallelSession(Session):
    """One run in several processes. Each builds the same model from the same seed; the first one writes the run folder."""

    def __init__(self, config: TrainConfig, *, timeout: float = TIMEOUT, **options: Any) -> None:
        self.layout = parse_parallel(config.parallel)
        self.kind = self.layout.kinds[-1]
        self._check_options(config)
        self.world = World.join(config.device, timeout)
        self.quiet = self.world.rank > 0
        self.staged = self.kind == PIPELINE
        self.shares_batches = not self.staged
        sizes = self.layout.sizes(self.world.size)
        self._parts = config.micro_batches * sizes.get(self.layout.copies, 1) if self.staged else self.world.size
        if config.batch_size % self._parts:
            what = "micro-batches" if self.staged else "processes"
            raise OptionError(
                f"a batch of {config.batch_size} samples does not split into {self._parts} equal parts ({what})."
            )
        if self.staged:
            check_pipeline(config, self.layout, sizes[PIPELINE])
        super().__init__(config, **options)
        if self.staged and self.trainer.schedule.adapts:
            raise OptionError("a pipeline needs to know the coming batches; an adaptive schedule decides after each.")
        torch.manual_seed(config.seed + self.world.rank)  # dropout: other samples, other masks

    def _check_options(self, config: TrainConfig) -> None:
        if not set(self.layout.kinds) <= set(config.declaration.parallel):
            able = [name for name in METHODS if set(self.layout.kinds) <= set(METHODS[name].parallel)]
            raise OptionError(
                f"method '{config.method}' cannot run with --parallel {config.parallel}; choose from: {', '.join(able)}."
            )
        if config.precision != "fp32":
            raise OptionError(
                f"--precision {config.precision} is for runs in one process: exponents and widths depend on the whole batch, "
                f"but each process has only a share of it; leave it out with --parallel {config.parallel}."
            )
        if config.compile:
            raise OptionError(f"--compile is for runs in one process; leave it out with --parallel {config.parallel}.")
        for hook in hooks_in_use(config.own_options):
            if self.kind not in hook.parallel:
                raise OptionError(
                    f"--{hook.switch} ranks the weights of the whole model together; with --parallel {config.parallel} no "
                    f"process has them all. Use --parallel {' or '.join(hook.parallel)}."
                )

    def agreed_folder(self, path: Path) -> Path:
        """Return the folder that the first process chose, before any restart by torchrun."""
        return Path(self.world.first_word("folder", str(path)))

    def start(self, path: Path, *, force: bool = False) -> Loop:
        """Return the loop of a new run in the folder `path`, which can be resumed from now on."""
        with self._explained(path):
            return super().start(path, force=force)

    def resume(self, path: Path) -> Loop:
        """Return the loop of the run in `path`, where it was left, by this or another number of processes."""
        with self._explained(path):
            return super().resume(path)

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
            with self._explained(loop.folder.path):
                summary = super().run(loop, observer, stop)
        finally:
            loop.close()
        self.world.leave()
        return summary

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """Raise a RunError that names the process that died or hangs, if a collective fails for that."""
        with self.world.ending_soon():
            try:
                yield
            except AdagpError:
                raise
            except RuntimeError as error:
                reason = self.world.explain(error)
                if reason is None and "by peer" not in str(error):  # gloo's message for a closed connection
                    raise
                reason = (
                    reason or f"process {self.world.rank} has lost another process of the run: see that one's error."
                )
                if RunFolder(path).begun:
                    reason += f" Continue from the last checkpoint: {resume_command(self.config, path)}"
                raise RunError(reason) from None

    def finish(self, loop: Loop) -> dict[str, Any]:
        """Write the results in the first process, to which the others send their parts of the model."""
        if self.kind == FSDP:
            weights = whole_weights(self.model)
            if self.world.rank == 0:
                self.model = self.task.build_model().to(self.device)
                self.model.load_state_dict(weights)
        elif self.world.rank == 0:
            self.model = loop.whole_model
        return super().finish(loop) if self.world.rank == 0 else {}

    def distribute_model(self, model: nn.Module) -> nn.Module:
        """Return the model as this process trains it: a shard of it in a fully sharded run, some stages in a pipeline."""
        if FSDP not in self.layout.kinds:
            model = super().distribute_model(model)
        if self.shares_batches and self.kind != FSDP:
            return model
        if self.staged:
            self.task.fix_shapes()
        inputs, _ = next(iter(self.task.batches(0)))
        inputs = to_device(inputs, self.device)
        if not self.staged:
            return shard_model(model, inputs)
        sample = take_share(Share(0, self._parts), inputs)
        self.cut = cut_and_place(model, sample, self.config, self.layout, self.device, self.world)
        return model

    def _loop(self, folder: RunFolder) -> ParallelLoop:
        arguments = (self.trainer, self.task, self.rate, folder)
        options: dict[str, Any] = {
            "config": self.config,
            "world": self.world,
            "checkpoint_seconds": self.checkpoint_seconds,
            "origin": self.origin,
        }
        if self.shares_batches:
            return (FsdpLoop if self.kind == FSDP else DataLoop)(*arguments, **options)
        return PipelineLoop(*arguments, **options, layout=self.layout, cut=self.cut)
