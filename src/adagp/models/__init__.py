"""What to train: models by name. Importing this imports neither torch nor torchvision nor timm."""

from adagp.models.build import build_model
from adagp.models.describe import ModelRow, describe_models
from adagp.models.registry import IMAGES, MODELS, ModelInfo

__all__ = ["IMAGES", "MODELS", "ModelInfo", "ModelRow", "build_model", "describe_models"]
