"""Linear gradient prediction with control variates (Ciosek, Felicioni, Elenter Litwin, 2025, arXiv 2511.05187)."""

from dataclasses import dataclass
from typing import Annotated

from adagp.core.method_options import MethodOptions, declare_option
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide
from adagp.papers.control.options import DEFAULT_PREDICTOR, RANDOM, SELECTIONS, check_predictor, check_share


@dataclass(frozen=True, kw_only=True)
class Control(MethodOptions, method="control"):
    """Part of each batch by backprop, predictions for all of it as a control variate."""

    predictor: Annotated[
        str,
        declare_option(
            "The method whose predictions control uses, with its options: NAME or NAME:option=value,...",
            also=check_predictor,
        ),
    ] = DEFAULT_PREDICTOR
    true_share: Annotated[
        str,
        declare_option(
            "Fraction of each batch that control trains by backprop; auto: chosen from the measured correlation.",
            also=check_share,
        ),
    ] = "0.5"
    select: Annotated[
        str,
        declare_option(
            "How control picks the samples for backprop: random, or error (samples with large output errors more often).",
            choices=SELECTIONS,
        ),
    ] = RANDOM
    price: Annotated[
        float,
        declare_option(
            "Cost of a predicted sample relative to one by backprop, for --true-share auto.",
            above=0,
            below=1,
            allowed="above 0 and below 1",
        ),
    ] = 0.4
    coefficient: Annotated[
        float | None,
        declare_option(
            "Factor of control's predictions; 1 as published.",
            unset="per layer, from the measured covariances",
            low=0,
            high=2,
            allowed="0 to 2",
        ),
    ] = None


add_method(
    Method(
        "control",
        "part of each batch by backprop, predictions for all of it as a control variate",
        "adagp.papers.control.source:ControlSource",
        schedule="1:0",
        typed=Control,
        accelerator=AcceleratorWork(splits=True, variation="adagp.papers.control.hardware:control_split"),
    )
)
provide("experiment", "adagp.papers.control.experiments")
provide("published", __name__)
