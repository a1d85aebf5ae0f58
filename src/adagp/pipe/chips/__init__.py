"""Training on many modelled chips: the fabric that joins them, collectives on it, and how a model is split. No torch here."""

from adagp.pipe.chips.collectives import ALGORITHMS, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Fabric
from adagp.pipe.chips.fabric import FABRICS, Topology, parse_fabric
from adagp.pipe.chips.parallel import (
    ChipMemory,
    Parallelism,
    TensorSplit,
    parse_parallelism,
    split_tensors,
    weight_memory,
)
from adagp.pipe.chips.training import TERM_NAMES, TERMS, BatchTime, ChipTraining, ManyChips

__all__ = [
    "ALGORITHMS",
    "ALL_GATHER",
    "ALL_REDUCE",
    "FABRICS",
    "REDUCE_SCATTER",
    "TERMS",
    "TERM_NAMES",
    "BatchTime",
    "ChipMemory",
    "ChipTraining",
    "Fabric",
    "ManyChips",
    "Parallelism",
    "TensorSplit",
    "Topology",
    "parse_fabric",
    "parse_parallelism",
    "split_tensors",
    "weight_memory",
]
