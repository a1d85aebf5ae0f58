"""From a configuration to its task. Which one it is depends on the data set."""

from collections.abc import Callable
from pathlib import Path

from adagp.core.registry import Registry
from adagp.data import DATASETS
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, TRANSLATION
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task
from adagp.program.tasks.classify import Classification
from adagp.program.tasks.detect import Detection
from adagp.program.tasks.language import LanguageModelling
from adagp.program.tasks.translate import Translation

TASKS: Registry[Callable[[TrainConfig, Path | None, bool], Task]] = Registry("task")
"""The task of each kind of data set: made from the configuration, the data folder, and whether to download."""
TASKS.add(IMAGES, Classification)
TASKS.add(DETECTION, Detection)
TASKS.add(LANGUAGE, LanguageModelling)
TASKS.add(TRANSLATION, Translation)


def build_task(config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> Task:
    """Return the task of the configuration's data set; a path to a `.npz` file is an image set."""
    kind = IMAGES if config.dataset.endswith(".npz") else DATASETS[config.dataset].task
    return TASKS[kind](config, data_dir, download)
