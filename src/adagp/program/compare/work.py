"""The state of a comparison while it runs: its data, its modelled platforms, its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

from adagp.hw import Workload
from adagp.program.compare.cluster import ClusterCost, Exchange, parse_cluster
from adagp.program.compare.comparison import (
    ACCELERATOR,
    MODELLED,
    PIPELINE,
    ComparedRun,
    Comparison,
    ComparisonFolder,
)
from adagp.program.compare.grid import BATCH_SIZE
from adagp.program.compare.methods import Candidate, fitted_schedule
from adagp.program.compare.modelled_cost import (
    AcceleratorCost,
    CostModel,
    PipelineCost,
    parse_accelerator,
    parse_pipeline,
)
from adagp.program.jobs import Job, JobFailure, JobObserver, Stop, run_jobs
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task, build_task


class ComparisonObserver(JobObserver, Protocol):
    """Receives the progress of a comparison."""

    def say(self, text: str) -> None:
        """Show a message."""

    def begin(self, what: str, total: int) -> None:
        """Start a part of the work with `total` steps."""

    def advance(self) -> None:
        """Complete a step."""


@dataclass
class ComparisonWork:
    """A comparison while it runs. `task` has the common batch size; `jobs` is the number of runs at a time."""

    comparison: Comparison
    folder: ComparisonFolder
    task: Task
    observer: ComparisonObserver
    stop: Stop
    jobs: int | None = None

    def __post_init__(self) -> None:
        self.failures: list[JobFailure] = []
        self._models: dict[str, CostModel] = {}
        self._exchanges: dict[tuple[str, str, str], Exchange] = {}
        self._tasks = {self.comparison.base_batch_size: self.task}

    def task_of(self, config: TrainConfig) -> Task:
        """Return the task with the batch size of a run."""
        size = config.batch_size
        if size not in self._tasks:
            resized = replace(self.comparison.base_config, batch_size=size)
            self._tasks[size] = build_task(resized, self.comparison.data_folder)
        return self._tasks[size]

    def epoch_length(self, config: TrainConfig) -> int:
        """Return the batches per epoch with the batch size of a run."""
        return self.task_of(config).batches_per_epoch

    def check(self) -> None:
        """Build each method once, and check the length of all its runs, so that bad options fail before the first run."""
        from adagp.program.train.session import Session

        def build(candidate: Candidate) -> None:
            config = self.comparison.config(candidate, 0)
            Session(config, task=self.task_of(config), threads=1)

        self.comparison.check_each(build)
        self.comparison.check_each(self._check_lengths)
        for regime in MODELLED:
            if regime in self.comparison.regimes:
                self.comparison.check_each(partial(self._check_costs, regime))

    def configs(self, candidate: Candidate) -> dict[int, TrainConfig]:
        """Return a method's configuration by batch size, for each of the sizes it may have."""
        sizes = self.comparison.batch_sizes(candidate)
        if len(sizes) == 1:
            return {sizes[0]: self.comparison.config(candidate, 0)}
        return {size: self.comparison.config(candidate, 0, tuned={BATCH_SIZE: size}) for size in sizes}

    def _check_costs(self, regime: str, candidate: Candidate) -> None:
        """Check that the platform can cost the method; the share of GP batches of an adaptive schedule does not matter here."""
        for config in self.configs(candidate).values():
            self.cost_model(regime).run_cost(config, 0.5 if config.schedule().adapts else None)

    def _check_lengths(self, candidate: Candidate) -> None:
        """Check that the warm-up fits the runs with each batch size, and the tuning runs."""
        tuning = self.comparison.tuning
        for size, config in self.configs(candidate).items():
            fitted_schedule(config, self.epoch_length(config))
            if tuning is not None and tuning.batches is not None:
                shorter = replace(config, batches=self.comparison.equal_batches(tuning.batches, size))
                fitted_schedule(shorter, self.epoch_length(shorter))

    @cached_property
    def workload(self) -> Workload:
        """The model's layers, as input of the accelerator model."""
        from adagp.program.tasks.classify import Classification
        from adagp.program.workloads import run_workload

        config = self.comparison.config(self.comparison.reference, 0)
        if config.dataset.endswith(".npz") and isinstance(self.task, Classification):
            from adagp.tracing.tracer import trace_model

            data = self.task.data
            return trace_model(config.model, classes=data.classes, image=data.shape, width=config.width)
        return run_workload(config.model, config.dataset, config.image_size, config.width, config.sequence_length)

    def cost_model(self, regime: str) -> CostModel:
        """Return the cost model of a regime's platform."""
        if regime not in self._models:
            accelerator = parse_accelerator(self.comparison.accelerator)
            if regime == ACCELERATOR:
                self._models[regime] = AcceleratorCost(accelerator, self.workload, self.epoch_length)
            elif regime == PIPELINE:
                pipeline = parse_pipeline(self.comparison.pipeline)
                self._models[regime] = PipelineCost(pipeline, accelerator, self.workload, self.epoch_length)
            else:
                cluster = parse_cluster(self.comparison.cluster)
                self._models[regime] = ClusterCost(
                    cluster, accelerator, self.workload, self.epoch_length, self._exchange_of
                )
        return self._models[regime]

    def _exchange_of(self, config: TrainConfig) -> Exchange:
        """Return what a run's batches exchange; counted once, since it does not depend on batch size and length."""
        from adagp.program.compare.exchange import count_exchange

        key = config.method, repr(sorted(config.own_options.items())), repr(config.schedule())
        if key not in self._exchanges:
            base = self.comparison.base_config
            usual = replace(config, batch_size=base.batch_size, batches=max(base.batches or 0, config.batches or 0))
            self._exchanges[key] = count_exchange(usual, self.task)
        return self._exchanges[key]

    def run_job(self, run: ComparedRun) -> Job:
        """Return the job that trains a run in its folder."""
        from adagp.program.train.session import TrainingJob

        path = run.folder.path
        log = self.folder.path / "logs" / f"{path.name}.log"
        return Job(run.name, TrainingJob(run.config, path, self.comparison.data_folder), path / "summary.json", log)

    def execute(self, jobs: Sequence[Job], what: str) -> None:
        """Run the jobs; collect failures."""
        assert self.jobs is not None
        self.observer.begin(what, len(jobs))
        self.failures += run_jobs(jobs, self.jobs, self.observer, self.stop, fresh=True)
