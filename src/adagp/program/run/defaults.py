"""What suits a data set: options that take the place of `TrainConfig`'s defaults where the user gives none."""

from typing import Any

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "multi30k": {
        "model": "transformer",
        "batch_size": 128,
        "lr": 1e-3,
        "optimizer": "adam",
        "lr_scheduler": "cosine",
        "label_smoothing": 0.1,
    },
    "persuasion": {
        "model": "decoder",
        "optimizer": "adamw",
        "lr": 1e-3,
        "lr_scheduler": "cosine",
    },
    # learning rate and weight decay are ADA-GP's for YOLO-v3; it names no optimizer for it
    "voc": {
        "model": "yolov3",
        "optimizer": "adam",
        "lr": 3e-5,
        "weight_decay": 1e-4,
    },
}
