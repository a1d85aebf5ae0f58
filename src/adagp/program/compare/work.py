"""A comparison under way: what is wanted, where it is kept, who is told, what its runs cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

from adagp.hw import Workload
from adagp.program.compare.accelerator_cost import AcceleratorCost, BatchCost, parse_accelerator
from adagp.program.compare.comparison import ACCELERATOR, MODELLED, ComparedRun, Comparison, ComparisonFolder
from adagp.program.compare.contenders import Entry
from adagp.program.compare.lengths import fitted_schedule
from adagp.program.compare.pipeline_cost import PipelineCost, parse_pipeline
from adagp.program.jobs import Job, JobFailure, JobObserver, Stop, run_jobs
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task
from adagp.program.tasks.classify import Classification
from adagp.program.train.job import TrainingJob
from adagp.program.train.session import Session
from adagp.program.workloads import run_workload


class CostModel(Protocol):
    """What runs cost on a modelled platform, in cycles."""

    @property
    def text(self) -> str:
        """The platform in the form in which users name it."""

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cost of a whole run; `share` is that of GP batches, if no schedule tells."""

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the kinds of batches of a run with their cost."""

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return what else there is to tell of a run's cost, as plain values."""


class ComparisonObserver(JobObserver, Protocol):
    """Is told how a comparison goes."""

    def say(self, text: str) -> None:
        """Take note of something that is worth a line."""

    def begin(self, what: str, total: int) -> None:
        """Take note that a part of the work begins, of `total` steps."""

    def advance(self) -> None:
        """Take note of a step."""


@dataclass
class ComparisonWork:
    """A comparison under way: what is wanted, where it is kept, who is told, and how many jobs run at a time."""

    comparison: Comparison
    folder: ComparisonFolder
    task: Task
    observer: ComparisonObserver
    stop: Stop
    jobs: int | None = None

    def __post_init__(self) -> None:
        self.failures: list[JobFailure] = []
        self._models: dict[str, CostModel] = {}

    @property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch of the data set."""
        return self.task.batches_per_epoch

    def check(self) -> None:
        """Refuse here, before any run, what a run would refuse: each method is built once."""

        def build(entry: Entry) -> None:
            Session(self.comparison.config(entry, 0), task=self.task, threads=1)

        self.comparison.check_each(build)
        for regime in MODELLED:
            if regime in self.comparison.regimes:
                self.comparison.check_each(partial(self._check_cost, regime))
        tuning = self.comparison.tuning
        if tuning is not None and tuning.batches is not None:
            self.comparison.check_each(lambda entry: self._check_length(entry, tuning.batches or 0))

    def _check_cost(self, regime: str, entry: Entry) -> None:
        """Refuse a method that does not say what it costs; how much an adaptive schedule predicts is not known yet."""
        config = self.comparison.config(entry, 0)
        self.cost_model(regime).run_cost(config, 0.5 if config.schedule().adapts else None)

    def _check_length(self, entry: Entry, batches: int) -> None:
        fitted_schedule(replace(self.comparison.config(entry, 0), batches=batches), self.batches_per_epoch)

    @cached_property
    def workload(self) -> Workload:
        """The model as the accelerator sees it."""
        config = self.comparison.config(self.comparison.reference, 0)
        if config.dataset.endswith(".npz") and isinstance(self.task, Classification):
            from adagp.tracing.trace import trace_model

            data = self.task.data
            return trace_model(config.model, classes=data.classes, image=data.shape, width=config.width)
        return run_workload(config.model, config.dataset, config.image_size, config.width, config.sequence_length)

    def cost_model(self, regime: str) -> CostModel:
        """Return what runs cost on the modelled platform of a regime."""
        if regime not in self._models:
            accelerator = parse_accelerator(self.comparison.accelerator)
            if regime == ACCELERATOR:
                self._models[regime] = AcceleratorCost(accelerator, self.workload, self.batches_per_epoch)
            else:
                pipeline = parse_pipeline(self.comparison.pipeline)
                self._models[regime] = PipelineCost(pipeline, accelerator, self.workload, self.batches_per_epoch)
        return self._models[regime]

    def run_job(self, run: ComparedRun) -> Job:
        """Return the job of training a run in its folder."""
        path = run.folder.path
        log = self.folder.path / "logs" / f"{path.name}.log"
        return Job(run.name, TrainingJob(run.config, path, self.comparison.data_folder), path / "summary.json", log)

    def execute(self, jobs: Sequence[Job], what: str) -> None:
        """Do the jobs."""
        self.observer.begin(what, len(jobs))
        assert self.jobs is not None
        self.failures += run_jobs(jobs, self.jobs, self.observer, self.stop, fresh=True)
