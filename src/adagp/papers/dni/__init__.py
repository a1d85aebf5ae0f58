"""Decoupled neural interfaces (Jaderberg et al., 2017): a small network per layer predicts the gradient at its output."""

from adagp.core.methods import LABEL_CLASSES, AcceleratorWork, Method, add_method, predictor_options

_WORK = AcceleratorWork("exact", predictions="adagp.papers.dni.hardware:synthetic_gradients")

add_method(
    Method(
        "dni",
        "synthetic gradients: one small network per layer",
        "adagp.papers.dni.source:SyntheticSource",
        options=predictor_options(),
        accelerator=_WORK,
    )
)
add_method(
    Method(
        "dni_decoupled",
        "synthetic gradients in every batch, without true gradients, as published",
        "adagp.papers.dni.source:DecoupledSource",
        schedule="sites=all; first=allowed",
        options=predictor_options(),
        accelerator=AcceleratorWork("exact", input_gradients=True, predictions=_WORK.predictions),
    )
)
add_method(
    Method(
        "dni_labels",
        "synthetic gradients that also see the labels",
        "adagp.papers.dni.source:LabelledSyntheticSource",
        options=(*predictor_options(), LABEL_CLASSES),
        accelerator=_WORK,
    )
)
