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
    Method("zero", "approximation: weight gradients of some layers are 0", "zero", "approx:2"),
    Method("random", "approximation: weight gradients of some layers are random", "random", "approx:2"),
    Method("topk", "approximation: from the positions of largest output gradient", "topk", "approx:2"),
    Method("skip", "control: GP batches are not trained on", "skip", "ladder"),
    Method("momentum", "control: zero gradients, the optimizer's momentum goes on", "momentum", "ladder"),
    Method("replay", "control: the last true gradient", "replay", "ladder"),
    Method("average", "control: the mean of the last true gradients", "average", "ladder"),
    Method("noise", "control: random gradients with the true gradient's norm", "noise", "ladder"),
    Method("shuffled", "control: ADA-GP's predictor with its input shuffled", "shuffled", "ladder"),
    Method("predicted_labels", "ADA-GP's predictor, which also sees the labels", "predicted_labels", "ladder"),
    Method("dni", "synthetic gradients: one small network a layer", "dni", "ladder"),
    Method("dni_labels", "synthetic gradients that also see the labels", "dni_labels", "ladder"),
    Method("feedback", "output gradients regressed on the output's error", "feedback", "ladder"),
    Method("feedback_replay", "the mean of feedback and the last true gradient", "feedback_replay", "ladder"),
):
    METHODS.add(_method.name, _method)
