"""The result of a comparison in one sentence for each regime. The input is the content of its report.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagp.core.escape import escaped
from adagp.errors import RunError
from adagp.program.compare.methods import BACKPROP
from adagp.program.run.folder import RunFolder
from adagp.program.run.metrics import Metric, read_metrics

Record = Mapping[str, Any]
SIGNIFICANCE = "Ahead and behind: the 95% interval of the difference to backprop, paired by seed, excludes 0."
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
            sentences.append((_equal(document, regime), _standings(document, methods, reference, metric)))
    return sentences


def verdict_note(document: Record) -> str:
    """Return how to read the sentences."""
    note = ONE_SEED if document.get("seeds") == 1 else SIGNIFICANCE
    return f"{note} {batch_size_note(document)}" if method_batch_sizes(document) else note


def verdict_lines(document: Record) -> list[str]:
    """Return the sentences and the note as lines; nothing if no run is finished."""
    lines = [f"At {equal}, {text}" for equal, text in regime_sentences(document)]
    return [*lines, verdict_note(document)] if lines else []


def method_batch_sizes(document: Record) -> dict[str, int]:
    """Return the batch size of each method; none for reports of earlier versions."""
    sizes: dict[str, int] = document.get("batch_sizes") or {}
    return sizes


def total_samples(document: Record) -> int | None:
    """Return the samples of each run at equal samples; None if all batch sizes are equal, as then the batches are, too."""
    if len(set(method_batch_sizes(document).values())) < 2:
        return None
    return int(document["batches"] * document["batch_size"])


def headline(document: Record) -> str:
    """Return the model, the data set, the methods and their batch sizes."""
    what, sizes = f"{document['model']} on {document['dataset']}", method_batch_sizes(document)
    if len(set(sizes.values())) > 1:
        return f"{what}: {', '.join(_sized(document, name) for name in document['methods'])}"
    common = f", batch size {next(iter(sizes.values()))}" if sizes else ""
    return f"{what}{common}: {', '.join(document['methods'])}"


def batch_size_note(document: Record) -> str:
    """Return a sentence about the batch sizes that backprop had; reports of earlier versions do not contain them."""
    tried = document.get("backprop_batch_sizes") or []
    if len(tried) > 1:
        return f"Backprop was tried with batches of {', '.join(map(str, tried[:-1]))} and {tried[-1]} samples."
    size = f"with batches of {tried[0]} samples only" if tried else "with a single batch size"
    return (
        f"Backprop was trained {size}. Smaller batches, which give more steps at equal cost, were not tried "
        "(add batch_size=... to --tune)."
    )


def _sized(document: Record, name: str) -> str:
    """Return a method's name, with its batch size if the methods' differ."""
    sizes = method_batch_sizes(document)
    return f"{name} (batch size {sizes[name]})" if len(set(sizes.values())) > 1 and name in sizes else name


def _equal(document: Record, regime: str) -> str:
    if regime == "seconds":
        return "equal seconds"
    if regime != "batches":
        return f"equal cost on the modelled {regime}"
    samples = total_samples(document)
    return f"equal batches ({document['batches']} each)" if samples is None else f"equal samples ({samples:,} each)"


def _standings(document: Record, methods: Record, reference: str, metric: Metric) -> str:
    others = [(name, row) for name, row in methods.items() if name != reference]
    parts = [f"{_sized(document, name)} {_value(row, metric)}{_standing(row)}" for name, row in others]
    plain = f"{_sized(document, reference)} reaches {metric.words} {_value(methods[reference], metric)}"
    return f"{plain}; {_listed(parts)}." if parts else f"{plain}."


def _value(row: Record, metric: Metric) -> str:
    mean = row[f"{metric.name}_mean"]
    return "has no finite value" if mean is None else metric.text(mean)


def _standing(row: Record) -> str:
    low, high = row.get("ahead_low"), row.get("ahead_high")
    if low is None or high is None:
        return ""
    return " (ahead)" if low > 0 else " (behind)" if high < 0 else " (no clear difference)"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
