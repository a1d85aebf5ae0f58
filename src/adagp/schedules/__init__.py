"""Schedules: pure functions from the step to a plan. No torch here."""

from adagp.schedules.adaptive import Adaptive
from adagp.schedules.base import Layer, Layout, Report, Row, Schedule
from adagp.schedules.ladder import BackpropOnly, EpochAlternation, Ladder, Rung, WarmUp
from adagp.schedules.pattern import Pattern
from adagp.schedules.text import SCHEDULE_FORMS, TextForm, parse_schedule, schedule_forms

__all__ = [
    "SCHEDULE_FORMS",
    "Adaptive",
    "BackpropOnly",
    "EpochAlternation",
    "Ladder",
    "Layer",
    "Layout",
    "Pattern",
    "Report",
    "Row",
    "Rung",
    "Schedule",
    "TextForm",
    "WarmUp",
    "parse_schedule",
    "schedule_forms",
]
