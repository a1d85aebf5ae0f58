"""What suits a data set: options that take the place of `TrainConfig`'s defaults where the user gives none."""

from typing import Any

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    # ADA-GP's setting for YOLO-v3
    "voc": {
        "model": "yolov3",
        "optimizer": "adam",
        "lr": 3e-5,
        "weight_decay": 1e-4,
    },
}
