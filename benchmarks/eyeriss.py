"""The accelerator model as the Eyeriss chip, running AlexNet's convolutions: forward only, batch 4, 16 bits throughout."""

from dataclasses import dataclass
from math import inf
from pathlib import Path

from adagp.hw import Accelerator, Array, Convolution, Energy, Workload, stages
from adagp.hw.product import total
from adagp.program.reproduce.published import read_sections

PUBLISHED = read_sections(Path(__file__).with_suffix(".toml"))
LAYERS = (
    Convolution("CONV1", 3, 96, (11, 11), (227, 227), (55, 55), (4, 4)),
    Convolution("CONV2", 96, 256, (5, 5), (27, 27), (27, 27), groups=2),
    Convolution("CONV3", 256, 384, (3, 3), (13, 13), (13, 13)),
    Convolution("CONV4", 384, 384, (3, 3), (13, 13), (13, 13), groups=2),
    Convolution("CONV5", 384, 256, (3, 3), (13, 13), (13, 13), groups=2),
)
CHIP = Accelerator(Array(12, 14), "rs", buffer_kilobytes=108, sum_bits=16, bandwidth=inf)
BATCH = 4
STUDY = Accelerator(Array(16, 16), "rs", buffer_kilobytes=128, sum_bits=16, bandwidth=inf)
"""The machine of the study that preceded the chip (ISCA 2016), which shows energy by level."""
STUDY_BATCH = 16
RATIOS = {"arithmetic": 1, "registers": 1, "network": 2, "buffer": 6, "dram": 200}
"""Its energies of a 16-bit access, in multiply-accumulates."""


@dataclass(frozen=True)
class LayerFigures:
    """One layer: ours, in milliseconds and megabytes."""

    name: str
    milliseconds: float
    buffer: float
    dram: float
    millijoules: float


def modelled() -> tuple[list[LayerFigures], Energy]:
    """Return our figures by layer, and the joules of all of them."""
    passes = {stage.layer.name: stage.forward for stage in stages(Workload("alexnet", LAYERS), CHIP, BATCH)}
    model = CHIP.energy_model()
    rows = [
        LayerFigures(
            name,
            1e3 * cost.cycles / CHIP.clock_hz,
            cost.buffer_bits / 8e6,
            cost.dram_bits / 8e6,
            1e3 * model.energy(cost).on_chip,
        )
        for name, cost in passes.items()
    ]
    return rows, model.energy(total(passes.values()))


def breakdown() -> list[dict[str, float]]:
    """Return the energy of each layer by level, in 1e9 multiply-accumulates, at the ratios of the ISCA study."""
    found = []
    for stage in stages(Workload("alexnet", LAYERS), STUDY, STUDY_BATCH):
        cost = stage.forward
        accesses = {
            "arithmetic": cost.macs,
            "registers": cost.registers / 16,
            "network": cost.network / 16,
            "buffer": cost.buffer_bits / 16,
            "dram": cost.dram_bits / 16,
        }
        found.append({level: count * RATIOS[level] / 1e9 for level, count in accesses.items()})
    return found


def quoted(section: str, figure: str, whose: str = "chip") -> list[float]:
    """Return published figures by layer."""
    return [float(value) for value in PUBLISHED[section].content[figure][whose]]


def measured_joules() -> float:
    """Return what the chip took for the four images."""
    content = PUBLISHED["eyeriss-alexnet"].content
    return float(content["power"]["chip"]) * float(content["latency"]["chip"]) * 1e-6
