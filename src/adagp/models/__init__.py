"""What to train: models by name. Importing this imports neither torch nor torchvision nor timm."""

from adagp.models.build import build_model
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, MODELS, TRANSLATION, ModelInfo

__all__ = [
    "DETECTION",
    "IMAGES",
    "LANGUAGE",
    "MODELS",
    "TRANSLATION",
    "ModelInfo",
    "build_model",
]
