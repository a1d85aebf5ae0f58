"""Pipelines of devices: schedules as data and their timeline. No torch here but in `runtime` and its parts."""

from adagp.pipe.actions import Action, Kind, Program, parse_action, parse_phases, parse_program, with_broadcast
from adagp.pipe.costs import Costs, StageCosts, constant_costs
from adagp.pipe.generate import COSTED_ONLY, PIPELINES, generate
from adagp.pipe.interleaved import interleaved
from adagp.pipe.order import Order, validate
from adagp.pipe.partition import partition
from adagp.pipe.timeline import Timeline, simulate
from adagp.pipe.zero_bubble import zero_bubble_h1, zero_bubble_v

__all__ = [
    "COSTED_ONLY",
    "PIPELINES",
    "Action",
    "Costs",
    "Kind",
    "Order",
    "Program",
    "StageCosts",
    "Timeline",
    "constant_costs",
    "generate",
    "interleaved",
    "parse_action",
    "parse_phases",
    "parse_program",
    "partition",
    "simulate",
    "validate",
    "with_broadcast",
    "zero_bubble_h1",
    "zero_bubble_v",
]
