"""Procrustes (Yang et al., MICRO 2020): sparse training, in which only a share of the weights may move."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from adagp.core.methods import WEIGHT_UPDATE_HOOKS, WeightHookInfo
from adagp.core.options import declared_options, option
from adagp.core.registry import provide

_option = partial(option, panel="Sparse training")


@dataclass(frozen=True)
class DropBackOptions:
    """The options of sparse training."""

    keep: Annotated[
        float | None,
        _option(
            "Fraction of the weights to train; the others keep their decaying initial values (DropBack).",
            above=0,
            high=1,
            allowed="above 0 and at most 1",
            unset="all",
        ),
    ] = None
    keep_decay: Annotated[
        float,
        _option(
            "Multiply the initial weights by this in each batch; 1: no decay.",
            parameter="decay",
            low=0,
            high=1,
            allowed="from 0 to 1",
        ),
    ] = 0.9
    keep_threshold: Annotated[
        str | None,
        _option(
            "Find the smallest kept weight by estimate (one pass) or sort (exact).",
            parameter="threshold",
            choices=("estimate", "sort"),
            unset="sort below 100,000 weights",
        ),
    ] = None
    keep_rule: Annotated[
        str,
        _option(
            "Rank weights by accumulated updates (as in the paper) or by magnitude (as in the published code).",
            parameter="rule",
            choices=("accumulated", "magnitude"),
        ),
    ] = "accumulated"
    keep_over: Annotated[
        str,
        _option(
            "Parameters to rank: the weights of sites (adagp's choice), or all (as published).",
            parameter="over",
            choices=("sites", "all"),
        ),
    ] = "sites"


WEIGHT_UPDATE_HOOKS.add(
    "dropback",
    WeightHookInfo(
        "dropback",
        "adagp.papers.procrustes.dropback:DropBack",
        switch="keep",
        options=tuple(declared_options(DropBackOptions).values()),
    ),
)
provide("system", "adagp.papers.procrustes.hardware")
provide("experiment", "adagp.papers.procrustes.experiments")
provide("published", __name__)
