"""Procrustes (Yang et al., MICRO 2020): sparse training, in which only a share of the weights may move."""

from functools import partial

from adagp.core.methods import WEIGHT_UPDATE_HOOKS, WeightHookInfo
from adagp.core.options import Option
from adagp.core.registry import provide

_option = partial(Option, panel="Sparse training")

WEIGHT_UPDATE_HOOKS.add(
    "dropback",
    WeightHookInfo(
        "dropback",
        "adagp.papers.procrustes.dropback:DropBack",
        switch="keep",
        options=(
            _option(
                "keep",
                float,
                None,
                "Share of the weights to train; the others keep their decaying initial values (DropBack).",
                optional=True,
                above=0,
                high=1,
                allowed="above 0 and at most 1",
                unset="all",
            ),
            _option(
                "keep_decay",
                float,
                0.9,
                "Multiply the initial weights by this in each batch; 1: no decay.",
                parameter="decay",
                low=0,
                high=1,
                allowed="from 0 to 1",
            ),
            _option(
                "keep_threshold",
                str,
                None,
                "Find the smallest kept weight by estimate (one pass) or sort (exact).",
                parameter="threshold",
                optional=True,
                choices=("estimate", "sort"),
                unset="sort below 100,000 weights",
            ),
            _option(
                "keep_rule",
                str,
                "accumulated",
                "Rank weights by accumulated updates (as in the paper) or by magnitude (as in the published code).",
                parameter="rule",
                choices=("accumulated", "magnitude"),
            ),
            _option(
                "keep_over",
                str,
                "sites",
                "Parameters to rank: the weights of sites (our choice), or all (as published).",
                parameter="over",
                choices=("sites", "all"),
            ),
        ),
    ),
)
provide("system", "adagp.papers.procrustes.hardware")
provide("experiment", "adagp.papers.procrustes.experiments")
provide("published", __name__)
