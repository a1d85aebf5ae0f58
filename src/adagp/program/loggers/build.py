"""The loggers by name, as `--log` has them."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from adagp.core.references import import_reference
from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.program.loggers.base import Logger

LOGGERS: Registry[tuple[str, str]] = Registry("logger")
"""The class of each logger as `package.module:Class`, made with a folder and the batches done; and what it imports."""
LOGGERS.add("tensorboard", ("adagp.program.loggers.tensorboard:TensorBoard", "tensorboard"))
LOGGERS.add("csv", ("adagp.program.loggers.csv_file:CsvFile", "csv"))
LOGGERS.add("wandb", ("adagp.program.loggers.wandb_run:WandbRun", "wandb"))
LOGGERS.add("mlflow", ("adagp.program.loggers.mlflow_run:MlflowRun", "mlflow"))


def require_loggers(names: Sequence[str]) -> None:
    """Refuse names that are no loggers, and say what to install for those that cannot work yet."""
    for name in names:
        package = LOGGERS[name][1]
        if package != "csv" and importlib.util.find_spec(package) is None:
            raise OptionError(f"--log {name} needs {package}, which is not installed: pip install 'adagp[{name}]'.")


def build_loggers(names: Sequence[str], folder: Path, done: int = 0) -> list[Logger]:
    """Return the loggers for a run in `folder`, `done` of whose batches are trained already."""
    require_loggers(names)
    return [import_reference(LOGGERS[name][0], what="a logger", kind="Class")(folder, done) for name in names]
