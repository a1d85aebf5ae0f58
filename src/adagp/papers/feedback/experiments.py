"""Where `feedback` pays: whole comparisons at equal cost (`adagp compare`) as experiments, short and long."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from adagp.program.figures.style import series_colour, subplots
from adagp.program.jobs import Job, JobFailure, Stopped
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import Verdict, judge
from adagp.program.run.documents import ANYTHING, TEXT, WHOLE, TableOf, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adagp.program.compare.comparison import Comparison

PLATFORMS, LONG = "feedback-platforms", "long-run"
FEEDBACK, SKIPPING = "feedback@1:1", "skip"
PIPELINE = "best,devices=4,micro-batches=16,costs=balanced"
"""Four equal devices; backprop has the best exact pipeline."""
RATES = (0.003, 0.01, 0.03, 0.1)
_CIFAR: dict[str, Any] = {"dataset": "cifar10", "model": "six_conv_vgg", "batch_size": 128, "weight_decay": 5e-4}
_DIGITS: dict[str, Any] = {"dataset": "digits", "model": "digits_cnn", "batch_size": 64}
_PLATFORMS: dict[str, Any] = {
    "methods": f"bp,{FEEDBACK},{SKIPPING}@1:1",
    "regimes": ("batches", "accelerator", "pipeline"),
    "curve": (0.5, 0.75, 1.25, 1.5),
    "pipeline": PIPELINE,
}
_LONG: dict[str, Any] = {
    "methods": f"bp,adagp,{FEEDBACK},feedback@ladder,zero,{SKIPPING}",
    "regimes": ("batches", "accelerator"),
}
_SIZES: dict[tuple[str, str], dict[str, Any]] = {
    (PLATFORMS, "quick"): {**_DIGITS, "batches": 100, "seeds": 3, "warmup_batches": 10},
    (PLATFORMS, "standard"): {**_CIFAR, "batches": 400, "seeds": 5, "warmup_batches": 40},
    (PLATFORMS, "full"): {**_CIFAR, "batches": 11_700, "seeds": 5, "warmup_batches": 390, "tune_batches": 1170},
    (LONG, "quick"): {**_DIGITS, "batches": 220, "seeds": 2},
    (LONG, "standard"): {**_CIFAR, "batches": 3_900, "seeds": 3, "tune_batches": 390},
    (LONG, "full"): {**_CIFAR, "batches": 11_700, "seeds": 3, "tune_batches": 1170},
}
_OWN = ("methods", "regimes", "curve", "pipeline", "batches", "seeds", "large_batch", "points")
_TUNING = ("rates", "tune_batches")
"""Options of the comparison and of its tuning; all others are options of its runs."""


COMPARED = record_of(
    {
        "regimes": TableOf(record_of({"methods": TableOf(TableOf(ANYTHING))})),
        "platforms": TableOf(ANYTHING),
        "seeds": WHOLE,
        "batches": WHOLE,
        "model": TEXT,
        "dataset": TEXT,
    }
)
"""The shape of what is kept of a comparison."""


@cache
def comparison_part(name: str, budget: str) -> Part:
    """Return the comparison of an experiment at a budget as a part."""
    options = {"experiment": name, **(_PLATFORMS if name == PLATFORMS else _LONG), **_SIZES[name, budget]}
    if options["dataset"] != "digits":
        options[READS_DATA] = True
    return Part(compare_methods, f"{name}-{budget}", options, weight=200.0, shape=COMPARED)


def read_comparison(options: Mapping[str, Any], workspace: Workspace) -> "Comparison":
    """Return the comparison that a part's options describe."""
    from adagp.program.compare.comparison import Comparison
    from adagp.program.compare.grid import Tuning
    from adagp.program.compare.methods import read_candidates

    runs = {key: value for key, value in options.items() if key not in (*_OWN, *_TUNING, "experiment", READS_DATA)}
    comparison_options = {"large_batch": 0} | {key: options[key] for key in _OWN if key in options and key != "methods"}
    return Comparison(
        read_candidates(options["methods"]),
        options={**runs, **({} if workspace.device == "cpu" else {"device": workspace.device})},
        settings={},
        tuning=Tuning({"lr": tuple(options.get("rates", RATES))}, options.get("tune_batches")),
        data_dir=None if workspace.data_dir is None else str(workspace.data_dir),
        **comparison_options,
    )


def compare_methods(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Run a part's comparison in the folder `comparisons`, or resume it; return None if it was stopped."""
    from adagp.program.compare.workflow import run_comparison
    from adagp.program.tasks.base import build_task

    comparison = read_comparison(part.options, workspace)
    task = build_task(comparison.config(comparison.reference, 0), workspace.data_dir)
    command = f"adagp reproduce {part.options['experiment']} --budget {part.label.rpartition('-')[2]}"
    folder = workspace.out / "comparisons" / part.key
    try:
        report = run_comparison(comparison, folder, task, _Silent(), command=command, jobs=1, stop=workspace.stop)
    except Stopped:
        return None
    names = ("regimes", "tuning", "worth", "platforms", "seeds", "batches", "model", "dataset")
    return {name: report[name] for name in names}


class _Silent:
    """Ignores the progress of the comparison: the part has a line of its own."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def begin(self, what: str, total: int) -> None:
        """Say nothing."""

    def advance(self) -> None:
        """Say nothing."""

    def on_start(self, job: Job) -> None:
        """Say nothing."""

    def on_share(self, job: Job, share: float) -> None:
        """Say nothing."""

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Say nothing."""


def _rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each regime and method; all but the modelled cost is measured."""
    from adagp.program.compare.grid import upgraded_tuning

    tuned = upgraded_tuning(report["tuning"], "accuracy")["methods"]
    picked = {name: method["picked"]["lr"] for name, method in tuned.items()}
    keys = (
        "runs",
        "batches",
        "bp_batches",
        "gp_batches",
        "accuracy_mean",
        "accuracy_low",
        "accuracy_high",
        "modelled_cost",
    )
    return [
        {"regime": regime, "method": name, "lr": picked[name], **{key: record[key] for key in keys}}
        for regime, content in report["regimes"].items()
        for name, record in content["methods"].items()
    ]


def _ahead(report: Mapping[str, Any], regime: str, methods: Sequence[str]) -> tuple[bool | None, str]:
    """Return whether the best of `methods` is above backprop by intervals that do not overlap, and a text with the figures."""
    results = report["regimes"][regime]["methods"]
    gains = ", ".join(
        f"{name} {_accuracy(results[name])} after {results[name]['batches']:.0f} batches" for name in ("bp", *methods)
    )
    plain, best = results["bp"], max((results[name] for name in methods), key=lambda record: record["accuracy_mean"])
    if plain["accuracy_high"] is None or best["accuracy_low"] is None:
        return None, gains
    ahead = ", ".join(
        f"{name} {_points(results[name], 'mean')} ({_points(results[name], 'low')} to {_points(results[name], 'high')})"
        for name in methods
    )
    left_out = ", ".join(
        f"{name} {_accuracy(record)} after {record['batches']:.0f} batches"
        for name, record in results.items()
        if name.startswith(SKIPPING) and name not in methods
    )
    text = f"{gains}; points ahead of bp, seed by seed: {ahead}; "
    text += f"GP batches left out: {left_out}; " if left_out else ""
    text += f"{report['seeds']} seeds"
    return bool(best["accuracy_low"] > plain["accuracy_high"]), text


def _points(record: Mapping[str, Any], end: str) -> str:
    return "-" if record.get(f"ahead_{end}") is None else f"{100 * record[f'ahead_{end}']:+.2f}"


def _accuracy(record: Mapping[str, Any]) -> str:
    if record["accuracy_low"] is None:
        return f"{100 * record['accuracy_mean']:.2f} %"
    return f"{100 * record['accuracy_mean']:.2f} % ({100 * record['accuracy_low']:.2f} to {100 * record['accuracy_high']:.2f})"


def conclude_platforms(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether feedback is ahead at equal cycles of an accelerator and of a pipeline, and whether its GP batches pay."""
    section, report = published(PLATFORMS), workspace.result(comparison_part(PLATFORMS, budget))
    verdicts: list[Verdict] = []
    for regime in ("accelerator", "pipeline"):
        holds, text = _ahead(report, regime, (FEEDBACK,))
        verdicts.append(judge(f"accuracy at equal cycles, {regime}", section.claim(regime), holds, text))
    worth = report["worth"]["methods"].get(FEEDBACK)
    if worth is not None:
        ends = ["not known" if end is None else f"{round(end, 2)}" for end in worth["interval"]]
        interval = "interval not known" if worth["interval"] == [None, None] else " to ".join(ends)
        text = f"worth {worth['worth'] and round(worth['worth'], 2)} ({interval}); " + "; ".join(
            f"{name} {platform['verdict']} (break-even {platform['break_even']:.2f})"
            for name, platform in worth["platforms"].items()
        )
        pays = {"pays": True, "does not pay": False}.get(worth["platforms"]["accelerator"]["verdict"])
        verdicts.append(judge("worth of a GP batch", section.claim("worth"), pays, text))
    rows = _rows(report)
    return Conclusion(rows, verdicts, lambda: _draw(rows))


def conclude_long(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether any prediction is ahead at equal cycles of an accelerator when runs are long."""
    section, report = published(LONG), workspace.result(comparison_part(LONG, budget))
    verdicts = []
    for claim, methods in (("feedback", (FEEDBACK, "feedback@ladder")), ("adagp", ("adagp",)), ("skip", ("skip",))):
        holds, text = _ahead(report, "accelerator", methods)
        verdicts.append(judge(f"accuracy at equal cycles, {claim}", section.claim(claim), holds, text))
    rows = _rows(report)
    return Conclusion(rows, verdicts, lambda: _draw(rows))


def _draw(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    regimes = list(dict.fromkeys(row["regime"] for row in rows))
    figure, (axes,) = subplots(1, len(regimes), (1 + 4 * len(regimes), 4.5), share_y=True)
    for axis, regime in zip(axes, regimes, strict=True):
        for index, row in enumerate(row for row in rows if row["regime"] == regime):
            middle = 100 * row["accuracy_mean"]
            known = row["accuracy_low"] is not None
            error = [[middle - 100 * row["accuracy_low"]], [100 * row["accuracy_high"] - middle]] if known else None
            axis.errorbar(index, middle, yerr=error, fmt="o", capsize=3, color=series_colour(index))
            axis.annotate(
                f"{row['batches']:.0f}", (index, middle), xytext=(6, 4), textcoords="offset points", fontsize=8
            )
        names = [row["method"] for row in rows if row["regime"] == regime]
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set(title=f"equal {'batches' if regime == 'batches' else f'cycles, {regime}'}")
    axes[0].set_ylabel("measured accuracy, %; numbers: batches")
    return figure


add_experiment(
    Experiment(
        PLATFORMS,
        "feedback against backprop at equal modelled cycles of an accelerator and of a pipeline, tuned rates",
        {"quick": 2.7, "standard": 45.0, "full": None},
        lambda budget: [comparison_part(PLATFORMS, budget)],
        conclude_platforms,
    )
)
add_experiment(
    Experiment(
        LONG,
        "six methods at length, at equal batches and at equal modelled cycles, tuned rates",
        {"quick": 5.8, "standard": 280.0, "full": 840.0},
        lambda budget: [comparison_part(LONG, budget)],
        conclude_long,
    ),
    needs=("adagp", "zero"),
)
