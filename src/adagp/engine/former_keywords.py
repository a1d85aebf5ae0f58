"""Keywords of earlier versions of `attach`: they still work, with a warning that names what has replaced them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from adagp.core.methods import METHODS
from adagp.core.plan import Epochs, RunLength, shortened_run
from adagp.errors import OptionError

_REPLACEMENTS = {
    "precision": "engine=adagp.EngineOptions(precision=...)",
    "compile": "engine=adagp.EngineOptions(compile=...)",
    "scaler": "engine=adagp.EngineOptions(scaler=...)",
    "guard": "engine=adagp.EngineOptions(guard=...)",
    "metrics_every": "engine=adagp.EngineOptions(metrics_every=...)",
    "upkeep": "engine=adagp.EngineOptions(weight_hooks=...)",
    "warmup_batches": "warmup='300 batches'",
    "epochs": "length=adagp.Epochs(epochs, batches_per_epoch)",
    "batches": "steps=...",
    "synchronize": "adagp.engine.attach.attach_run",
    "staged": "adagp.engine.attach.attach_run",
}
_ENGINE = ("precision", "compile", "scaler", "guard", "metrics_every", "upkeep")


@dataclass
class FormerKeywords:
    """What earlier keywords stand for, and the `notes` that name what has replaced them.

    `engine` are options of `EngineOptions`, `run` those of `attach_run`, `method` those of the method.
    """

    length: RunLength | None = None
    warmup: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, name: str, value: Any) -> None:
        """Take in one keyword; None stood for the default."""
        self.notes.append(_note(name, _REPLACEMENTS[name]))
        if value is None:
            return
        if name == "warmup_batches":
            self.warmup = f"{value} batches"
        elif name in _ENGINE:
            self.engine["weight_hooks" if name == "upkeep" else name] = value
        else:
            self.run[name] = value


def take_former_keywords(keywords: dict[str, Any], known: Collection[str]) -> FormerKeywords:
    """Take all keywords that are not `known` out of `keywords`; what was never one is an option of the method."""
    former = {name: keywords.pop(name) for name in [name for name in keywords if name not in known]}
    taken = FormerKeywords()
    length = {name: former.pop(name, None) for name in ("epochs", "batches_per_epoch", "batches")}
    if any(value is not None for value in length.values()):
        _take_length(taken, length, keywords.get("steps"))
    for name in [name for name in _REPLACEMENTS if name in former]:
        taken.take(name, former.pop(name))
    taken.method = former
    if former and isinstance(keywords.get("method"), str):
        taken.notes.append(_note(next(iter(former)), f"method={_as_object(keywords['method'], former)}"))
    return taken


def _as_object(method: str, options: Mapping[str, Any]) -> str:
    values = ", ".join(f"{option}={value!r}" for option, value in options.items())
    typed = METHODS[method].typed if method in METHODS else None
    return f"adagp.NamedMethod('{method}', {values})" if typed is None else f"adagp.{typed.__name__}({values})"


def _take_length(taken: FormerKeywords, length: Mapping[str, Any], steps: object) -> None:
    epochs, each, batches = length.values()
    if steps is not None:
        raise OptionError("steps is the length of a run without epochs; leave out epochs and batches.")
    if epochs is None or each is None:
        raise OptionError("the length of the run is missing: give length=adagp.Epochs(90, len(loader)), or steps=.")
    name = "epochs" if batches is None else "batches"
    taken.notes.append(_note(name, _REPLACEMENTS[name]))
    taken.length = shortened_run(Epochs(epochs, each), batches)


def _note(name: str, replacement: str) -> str:
    return f"attach({name}=...) is deprecated: use {replacement}."
