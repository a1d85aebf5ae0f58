"""Decoupled neural interfaces (Jaderberg et al., 2017): a small network per layer predicts the gradient at its output."""

from dataclasses import dataclass, replace
from typing import Annotated

from adagp.core.method_options import LABEL_CLASSES, PredictorOptions
from adagp.core.methods import AcceleratorWork, Method, add_method


class DNI(PredictorOptions, method="dni"):
    """Synthetic gradients: one small network per layer predicts the gradient at its output."""


class DNIDecoupled(PredictorOptions, method="dni_decoupled"):
    """Synthetic gradients in every batch, without true gradients, as published."""


@dataclass(frozen=True, kw_only=True)
class DNILabels(PredictorOptions, method="dni_labels"):
    """Synthetic gradients that also see the labels."""

    label_classes: Annotated[int | None, LABEL_CLASSES] = None


_WORK = AcceleratorWork("exact", predictions="adagp.papers.dni.hardware:synthetic_gradients")

add_method(
    Method(
        "dni",
        "synthetic gradients: one small network per layer",
        "adagp.papers.dni.source:SyntheticSource",
        typed=DNI,
        accelerator=_WORK,
    )
)
add_method(
    Method(
        "dni_decoupled",
        "synthetic gradients in every batch, without true gradients, as published",
        "adagp.papers.dni.source:DecoupledSource",
        schedule="sites=all; first=allowed",
        typed=DNIDecoupled,
        accelerator=replace(_WORK, input_gradients=True, trains_itself=True),
    )
)
add_method(
    Method(
        "dni_labels",
        "synthetic gradients that also see the labels",
        "adagp.papers.dni.source:LabelledSyntheticSource",
        typed=DNILabels,
        accelerator=_WORK,
    )
)
