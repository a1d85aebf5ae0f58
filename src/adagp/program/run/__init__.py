"""What a run is: its configuration and its folder. No torch here."""

from adagp.program.run.config import TrainConfig
from adagp.program.run.folder import RunFolder

__all__ = ["RunFolder", "TrainConfig"]
