"""The training accelerator: cycles, traffic and energy under backprop and under predicted gradients. No torch here."""

from adagp.hw.accelerator import Accelerator, PredictorShape, parse_predictor
from adagp.hw.dataflows import DATAFLOWS, Array, Memory, array_cost, parse_array, shaped_like
from adagp.hw.energy import Energy, EnergyModel, Technology, energy_table
from adagp.hw.product import Bits, Cost, Operation, Product, Window
from adagp.hw.row_stationary import row_stationary
from adagp.hw.runs import Run, replayed_run, scheduled_run
from adagp.hw.simulate import DESIGNS, Design, Simulation, simulate
from adagp.hw.stages import Predictions, SiteWork, Stage, stages
from adagp.hw.workload import Attention, Convolution, Elementwise, Linear, Workload, load_workload

__all__ = [
    "DATAFLOWS",
    "DESIGNS",
    "Accelerator",
    "Array",
    "Attention",
    "Bits",
    "Convolution",
    "Cost",
    "Design",
    "Elementwise",
    "Energy",
    "EnergyModel",
    "Linear",
    "Memory",
    "Operation",
    "Predictions",
    "PredictorShape",
    "Product",
    "Run",
    "Simulation",
    "SiteWork",
    "Stage",
    "Technology",
    "Window",
    "Workload",
    "array_cost",
    "energy_table",
    "load_workload",
    "parse_array",
    "parse_predictor",
    "replayed_run",
    "row_stationary",
    "scheduled_run",
    "shaped_like",
    "simulate",
    "stages",
]
