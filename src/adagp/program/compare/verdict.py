"""What a comparison found, in one sentence for each regime. The input is the content of its report.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagp.core.escape import escaped
from adagp.errors import RunError
from adagp.program.compare.methods import BACKPROP
from adagp.program.run.folder import RunFolder
from adagp.program.run.metrics import Metric, read_metrics

Record = Mapping[str, Any]
LEVEL = "Level: the 95% interval of the difference to backprop, paired by seed, contains 0."
ONE_SEED = "With one seed a difference may be chance: use --seeds 3 or more."


def read_report(folder: Path) -> dict[str, Any]:
    """Return the content of report.json; raise `RunError` if the folder has none."""
    if not (folder / "report.json").is_file():
        raise RunError(f"'{escaped(folder)}' holds no finished comparison: it has no report.json.")
    document = RunFolder(folder).read_json("report.json")
    return document if isinstance(document, dict) else {}


def regime_sentences(document: Record) -> list[tuple[str, str]]:
    """Return what is equal for all methods, and how each stands to backprop there, for each regime with finished runs."""
    metric = read_metrics(document)[0]
    sentences = []
    for regime, content in document["regimes"].items():
        methods = content["methods"]
        reference = next((name for name, row in methods.items() if row.get("method", name) == BACKPROP), None)
        if reference is not None and methods[reference][f"{metric.name}_mean"] is not None:
            sentences.append((_equal(document, regime), _standings(methods, reference, metric)))
    return sentences


def verdict_note(document: Record) -> str:
    """Return how to read the sentences."""
    return ONE_SEED if document.get("seeds") == 1 else LEVEL


def verdict_lines(document: Record) -> list[str]:
    """Return the sentences and the note as lines; nothing if no run is finished."""
    lines = [f"At {equal}, {text}" for equal, text in regime_sentences(document)]
    return [*lines, verdict_note(document)] if lines else []


def _equal(document: Record, regime: str) -> str:
    return f"equal batches ({document['batches']} each)" if regime == "batches" else f"equal {regime}"


def _standings(methods: Record, reference: str, metric: Metric) -> str:
    others = [(name, row) for name, row in methods.items() if name != reference]
    parts = [f"{name} {_value(row, metric)}{_standing(row)}" for name, row in others]
    plain = f"{reference} reaches {metric.words} {_value(methods[reference], metric)}"
    return f"{plain}; {_listed(parts)}." if parts else f"{plain}."


def _value(row: Record, metric: Metric) -> str:
    mean = row[f"{metric.name}_mean"]
    return "has no finite value" if mean is None else metric.text(mean)


def _standing(row: Record) -> str:
    low, high = row.get("ahead_low"), row.get("ahead_high")
    if low is None or high is None:
        return ""
    return " (ahead)" if low > 0 else " (behind)" if high < 0 else " (level)"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
