"""The training accelerator: cycles, traffic and energy under backprop and under predicted gradients. No torch here."""

from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array, enlarged, parse_array
from adagp.hw.dataflows import DATAFLOWS, Dataflow, array_cost, systolic
from adagp.hw.designs import DESIGNS, PAPER_DESIGNS, Design
from adagp.hw.energy import Energy, EnergyModel, Technology, energy_table
from adagp.hw.predictor import PredictorShape
from adagp.hw.product import Cost, Operation, Product, Window
from adagp.hw.row_stationary import row_stationary
from adagp.hw.runs import Run, replayed_run, scheduled_run
from adagp.hw.simulate import DesignOutcome, Simulation, simulate
from adagp.hw.stages import Stage, stages
from adagp.hw.workload import Attention, Convolution, Elementwise, Layer, Linear, Workload, load_workload

__all__ = [
    "DATAFLOWS",
    "DESIGNS",
    "PAPER_DESIGNS",
    "Accelerator",
    "Array",
    "Attention",
    "Convolution",
    "Cost",
    "Dataflow",
    "Design",
    "DesignOutcome",
    "Elementwise",
    "Energy",
    "EnergyModel",
    "Layer",
    "Linear",
    "Operation",
    "PredictorShape",
    "Product",
    "Run",
    "Simulation",
    "Stage",
    "Technology",
    "Window",
    "Workload",
    "array_cost",
    "energy_table",
    "enlarged",
    "load_workload",
    "parse_array",
    "replayed_run",
    "row_stationary",
    "scheduled_run",
    "simulate",
    "stages",
    "systolic",
]
