"""Where the figures of a run go while it goes on: one contract, for `adagp train --log` and for loops of your own."""

from adagp.program.loggers.base import Logger, scalars
from adagp.program.loggers.build import LOGGERS, build_loggers, require_loggers
from adagp.program.loggers.trainer_log import TrainerLog

__all__ = ["LOGGERS", "Logger", "TrainerLog", "build_loggers", "require_loggers", "scalars"]
