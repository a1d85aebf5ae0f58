"""Training methods by name: a source of predicted gradients and the schedule that goes with it."""

from dataclasses import dataclass

from adagp.registry import Registry


@dataclass(frozen=True)
class Method:
    """A way to train. `source` is None for plain backprop; `ratio` is the schedule used where none is given.

    `predictor_scheduler` is how the paper that the method comes from lowers the predictor's learning rate, `plateau` the
    factor and the patience (in epochs) with which it lowers the model's.
    """

    name: str
    description: str
    source: str | None
    ratio: str
    predictor_scheduler: str = "multistep"
    plateau: tuple[float, int] = (0.1, 10)


METHODS: Registry[Method] = Registry("method")
for _method in (
    Method("bp", "ordinary backpropagation", None, "bp"),
    Method("adagp", "ADA-GP: one shared predictor, phases by batches", "predicted", "ladder"),
    Method(
        "remap",
        "tensor re-mapping: a fixed-size prediction, phases by epochs",
        "remapped",
        "epochs:3:1",
        predictor_scheduler="plateau",
        plateau=(0.5, 3),
    ),
):
    METHODS.add(_method.name, _method)
