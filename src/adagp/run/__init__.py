"""What a run is: its configuration and its folder. No torch here."""

from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder

__all__ = ["RunFolder", "TrainConfig"]
