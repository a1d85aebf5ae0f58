"""Models by name. Importing this imports neither torch nor torchvision nor timm."""

from adagp.models.build import build_model
from adagp.models.registry import IMAGES, LANGUAGE, MODELS, ModelInfo

__all__ = ["IMAGES", "LANGUAGE", "MODELS", "ModelInfo", "build_model"]
