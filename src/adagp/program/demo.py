"""The demonstration: a small comparison on the embedded digits, and its runs on a modelled accelerator.

It is an ordinary comparison (`adagp compare`) with every method on the same schedule, at equal batches only: a minute is too
short to compare seconds.
"""

from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

from adagp.core.methods import DEFAULT_METHOD
from adagp.errors import RunError
from adagp.program.compare.comparison import BATCHES, Comparison
from adagp.program.compare.methods import BACKPROP, read_candidates
from adagp.program.run.record import COMPARISON

SCHEDULE = "1:1"
METHODS = (DEFAULT_METHOD, "adagp", "skip")
"""The recommended method, the paper's, and the control that leaves the same batches out."""
DESIGN = "max"
"""The design of the accelerator whose speed-up is named."""


def demo_comparison(seeds: int, batches: int) -> Comparison:
    """Return the comparison of the demonstration. Names are short: all methods have the same schedule."""
    candidates = read_candidates(",".join([BACKPROP, *(f"{name}:{name}@{SCHEDULE}" for name in METHODS)]))
    return Comparison(
        candidates,
        seeds=seeds,
        options={},
        settings={},
        batches=batches,
        regimes=(BATCHES,),
        large_batch=0,
        aligned_seeds=0,
    )


def prepare_folder(out: Path, *, force: bool) -> None:
    """Raise if the folder holds a demonstration already, unless `force`: then it is deleted."""
    if not (out / COMPARISON).is_file():
        return
    if not force:
        raise RunError(f"'{out}' already holds a demonstration. Give another --out, or --force to run it again.")
    rmtree(out)


def conclusion(document: Mapping[str, Any], speedup: float | None) -> list[str]:
    """Return three sentences: prediction against backprop, against leaving batches out, and on an accelerator."""
    rows = document["regimes"][BATCHES]["methods"]
    accuracy = {name: f"{row['accuracy_mean']:.1%}" for name, row in rows.items()}
    predicted = rows[DEFAULT_METHOD]
    share = predicted["gp_batches"] / predicted["batches"]
    sentences = [
        f"{DEFAULT_METHOD} predicted the gradient of {share:.0%} of its batches, without a backward pass, and reached "
        f"{accuracy[DEFAULT_METHOD]}; backprop on every batch reached {accuracy[BACKPROP]}.",
        f"Leaving those batches out reached {accuracy['skip']}, and ADA-GP's predictor, the paper's method, "
        f"{accuracy['adagp']}: the difference to skip is what the predictions are worth.",
    ]
    if speedup is not None:
        sentences.append(
            f"On the modelled accelerator (design {DESIGN}) the run of {DEFAULT_METHOD} would be {speedup:.2f} times as fast "
            "as backprop's; docs/results.md has results for larger networks."
        )
    return sentences


def modelled_speedup(out: Path) -> float | None:
    """Return the speed-up of the recommended method's first run on the modelled accelerator; None if it cannot be modelled."""
    from adagp.program.report.modelled import accelerate
    from adagp.program.report.run_groups import chapters
    from adagp.program.run.record import collect

    (chapter,) = chapters(collect([out]))
    report = accelerate(chapter).reports.get(DEFAULT_METHOD)
    return None if report is None else float(report["designs"][DESIGN]["speedup"])
