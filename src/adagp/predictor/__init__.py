"""From a layer's output to its predicted weight gradient: reorganisation, the shared predictor, the re-mapping variant."""

from adagp.predictor.network import PredictorNetwork
from adagp.predictor.remap import RemapNetwork, remap
from adagp.predictor.reorganize import RULES, Rule, pool_average, pool_maximum, register_rule, rule_for

__all__ = [
    "RULES",
    "PredictorNetwork",
    "RemapNetwork",
    "Rule",
    "pool_average",
    "pool_maximum",
    "register_rule",
    "remap",
    "rule_for",
]
