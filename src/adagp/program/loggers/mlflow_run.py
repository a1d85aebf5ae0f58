"""MLflow with a store of plain files: nothing is sent; `mlflow ui --backend-store-uri FOLDER` shows it."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.program.loggers.base import Logger


class MlflowRun(Logger):
    """Writes metrics into a file store in the folder `mlflow`, as one run, which a resumed run continues with.

    What was written cannot be taken back, so steps that are there already are left out: a resumed run repeats them exactly.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        # The file store is asked for by name since MLflow recommends a data base; and no usage figures are to be sent.
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=(folder / "mlflow").absolute().as_uri())
        experiment = self._client.get_experiment_by_name("adagp")
        number = experiment.experiment_id if experiment else self._client.create_experiment("adagp")
        runs = self._client.search_runs([number]) if done else []
        run = runs[0] if runs else self._client.create_run(number, run_name=folder.name)
        self._id = run.info.run_id
        self._last = int(run.data.metrics.get("batch", 0))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""
        if step <= self._last:
            return
        now = int(time.time() * 1000)
        found = [self._metric(name, value, now, step) for name, value in {**values, "batch": step}.items()]
        for first in range(0, len(found), 1000):  # as many as it takes at once
            self._client.log_batch(self._id, metrics=found[first : first + 1000])

    def on_end(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)
