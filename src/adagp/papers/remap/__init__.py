"""Tensor re-mapping (Mandal, Kishore, Robin, Daoo): one fixed-size prediction, repeated over each weight."""

from dataclasses import dataclass
from typing import Annotated

from adagp.core.method_options import PREDICTOR_SCHEDULER, PredictorOptions, PredictorScheduler, declare_option
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide


@dataclass(frozen=True, kw_only=True)
class Remap(PredictorOptions, method="remap"):
    """Tensor re-mapping: one prediction of fixed size, repeated over each weight."""

    predictor_scheduler: Annotated[PredictorScheduler, PREDICTOR_SCHEDULER] = "plateau"
    remap_outputs: Annotated[
        int,
        declare_option("Number of values that remap predicts per layer.", low=1, high=1_000_000, parameter="outputs"),
    ] = 10_000


@dataclass(frozen=True, kw_only=True)
class RemapProgram(Remap, method="remap_program"):
    """Tensor re-mapping as its published program does it: true gradients in all batches."""


add_method(
    Method(
        "remap",
        "tensor re-mapping: a fixed-size prediction, phases by epochs",
        "adagp.papers.remap.source:RemappedSource",
        source="remapped",
        schedule="epochs:3:1",
        typed=Remap,
        accelerator=AcceleratorWork(
            predictions="adagp.papers.remap.hardware:remapped_gradient",
            variation="adagp.papers.remap.hardware:output_size",
            exchange="",
        ),
        parallel=("data",),
        plateau=(0.5, 3),
    )
)
add_method(
    Method(
        "remap_program",
        "tensor re-mapping as its published program does it: with true gradients in all batches",
        "adagp.papers.remap.source:ProgramSource",
        schedule="sites=all; first=allowed",
        typed=RemapProgram,
        accelerator=AcceleratorWork("exact", input_gradients=True),
        plateau=(0.5, 3),
    )
)
provide("experiment", "adagp.papers.remap.experiments")
provide("published", __name__)
