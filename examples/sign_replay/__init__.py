"""A paper as a plug-in: a method after signSGD, its cost on an accelerator, an experiment with a published number, a card.

adagp train --plugin examples.sign_replay --method sign_replay
adagp simulate vgg13 --plugin examples.sign_replay --method sign_replay
adagp reproduce sign-replay-bits --plugin examples.sign_replay
"""

from adagp.core.methods import AcceleratorWork, Method, add_method, method_option
from adagp.core.registry import provide

add_method(
    Method(
        "sign_replay",
        "the signs of the last true gradient, with its mean magnitude",
        "examples.sign_replay.source:SignReplaySource",
        schedule="1:1",
        options=(method_option("magnitude", float, 1.0, "Factor on the mean magnitude.", above=0),),
        accelerator=AcceleratorWork("examples.sign_replay.hardware:read_signs"),
    )
)
provide("experiment", "examples.sign_replay.experiments")  # imported when experiments are listed or run
provide("published", __name__)  # published.toml is next to this file
