"""Models of libraries by name, with random weights: `timm:NAME`, `torchvision:NAME`, `hf:PATH/config.json`. No torch here.

A function in a module of timm or torchvision (`torchvision.models:resnet18`) means the same as its name alone: these
libraries have names of their own for classes, channels and sizes.
"""

from dataclasses import dataclass

BUILDERS = {
    "timm": "adagp.models.vision:timm_model",
    "torchvision": "adagp.models.vision:torchvision_model",
    "hf": "adagp.models.huggingface:transformers_model",
}
"""Who builds the models of each library: called with the model, `classes`, `image`, `task` and `length`."""


@dataclass(frozen=True)
class ZooModel:
    """A model of a library; `reference` is what the user wrote, `name` what the library calls it (hf: its file)."""

    reference: str
    library: str
    name: str

    @property
    def builder(self) -> str:
        """Who builds it, as `package.module:function`."""
        return BUILDERS[self.library]


def find_in_zoo(reference: str) -> ZooModel | None:
    """Return the model of a library that `reference` names; None if it names none."""
    package, colon, name = reference.partition(":")
    library = package.partition(".")[0]
    known = bool(colon) and library in BUILDERS and (package == library or library != "hf")
    return ZooModel(reference, library, name) if known else None
