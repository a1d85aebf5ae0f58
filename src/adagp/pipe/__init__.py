"""Pipelines of devices: schedules as data and their timeline. No torch here."""

from adagp.pipe.actions import Action, Program, parse_action, parse_phases, parse_program, with_broadcast
from adagp.pipe.generate import PIPELINES, generate, interleaved, registered_name, zero_bubble_h1, zero_bubble_v
from adagp.pipe.order import validate
from adagp.pipe.partition import partition
from adagp.pipe.timeline import Costs, StageCosts, Timeline, constant_costs, simulate

__all__ = [
    "PIPELINES",
    "Action",
    "Costs",
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
    "registered_name",
    "simulate",
    "validate",
    "with_broadcast",
    "zero_bubble_h1",
    "zero_bubble_v",
]
