"""What remains of an update: changes to the weights after the optimizer's step, such as keeping a net sparse."""

from adagp.upkeep.base import Upkeep
from adagp.upkeep.dropback import DropBack

__all__ = ["DropBack", "Upkeep"]
