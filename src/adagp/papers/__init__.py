"""The published methods and systems, one folder each. The rest of adagp works without any of them.

A paper uses the same registries as every plug-in: importing its folder registers its methods, and declares which of its
modules add experiments, accelerator systems, models or number formats (`adagp.core.registry.provide`). No paper imports torch
in its `__init__`.
"""

from importlib import import_module

PAPERS = (
    "adagp",
    "remap",
    "approximation",
    "dni",
    "feedback",
    "feedback_alignment",
    "control",
    "fast",
    "camel",
    "procrustes",
    "lecture",
)
"""In the order in which their methods are listed."""

for _name in PAPERS:
    try:
        import_module(f"{__name__}.{_name}")
    except ModuleNotFoundError as _missing:
        if _missing.name != f"{__name__}.{_name}":  # a paper's folder may be deleted; anything else is a defect
            raise
