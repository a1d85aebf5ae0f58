"""Schedules: pure functions from the step to a plan. No torch here."""

from adagp.schedules.base import Row, Schedule
from adagp.schedules.ladder import BackpropOnly, EpochAlternation, Ladder, Rung
from adagp.schedules.text import parse_schedule

__all__ = ["BackpropOnly", "EpochAlternation", "Ladder", "Row", "Rung", "Schedule", "parse_schedule"]
