"""The page's order: each chapter has a verdict on top and sections of remarks, charts and tables."""

from dataclasses import dataclass

from adagp.program.report import charts as panels
from adagp.program.report import curves, tables
from adagp.program.report.chart_style import Chart, Key, series
from adagp.program.report.groups import Chapter
from adagp.program.report.modelled import DEVICES, MICRO_BATCHES, Accelerated, accelerate, pattern, pipelines
from adagp.program.report.pareto import pareto
from adagp.program.report.standings import equal_time, moments
from adagp.program.report.tables import Table
from adagp.program.report.verdict import Headline, verdict

MEASURED, MODELLED = "measured", "modelled"
NOTHING = "No run has a finished epoch yet: there is nothing to draw."


@dataclass(frozen=True)
class PageSection:
    """A part of a chapter. `choices` are the groups that its charts can be switched between, by the element `key`-of."""

    key: str
    title: str
    kind: str
    remarks: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    legend: tuple[Key, ...] = ()
    choices: tuple[str, ...] = ()
    choose: str = ""


@dataclass(frozen=True)
class Written:
    """A chapter as it stands on the page."""

    key: str
    title: str
    verdict: Headline
    sections: tuple[PageSection, ...]


def write_chapter(chapter: Chapter, number: int, phases: str | None = None, *, model: bool = True) -> Written:
    """Return the chapter's sections; `phases` None means the runs' own. Without `model`, only what is measured."""
    key = f"chapter-{number}"
    measured = [PageSection(f"{key}-time", _time_title(chapter), MEASURED, (NOTHING,))]
    if any(group.length for group in chapter.groups):
        measured = [_time(chapter, key), _curves(chapter, key), _sites(chapter, key), _parts(chapter, key)]
    modelled: tuple[PageSection, ...] = ()
    if model:
        modelled = (_accelerator(accelerate(chapter), key), _pipelines(phases or pattern(chapter.groups), key))
    runs = PageSection(f"{key}-runs", "Every run", MEASURED, tables=(tables.runs_table(chapter),))
    return Written(key, chapter.title, verdict(chapter), (*measured, *modelled, runs))


def _legend(chapter: Chapter) -> tuple[Key, ...]:
    return series([group.label for group in chapter.groups])


def _time_title(chapter: Chapter) -> str:
    return f"{curves.capital(chapter.metric.words)} and time"


def _time(chapter: Chapter, key: str) -> PageSection:
    name, title = f"{key}-time", _time_title(chapter)
    compared, summary = equal_time(chapter), tables.summary_table(chapter)
    if compared is None or len(chapter.groups) == 1:
        charts = tuple(curves.metric_over_time(chapter, None))
        return PageSection(name, title, MEASURED, (), charts, (summary,), _legend(chapter))
    charts = (*curves.metric_over_time(chapter, compared), *pareto(chapter))
    remark = (
        "At equal time, when the runs of one method are over on average, each other run counts with the last epoch that it "
        "had finished by then. A method cut off before its end had not lowered its learning rate as far as it would have: "
        "read it with the curves."
    )
    shown = (summary, tables.moments_table(moments(chapter)))
    return PageSection(name, title, MEASURED, (remark,), charts, shown, _legend(chapter))


def _curves(chapter: Chapter, key: str) -> PageSection:
    name = f"{key}-curves"
    charts = curves.over_epochs(chapter, f"#{name}-of")
    choices = tuple(curves.predicting(chapter))
    title = f"Loss and {chapter.metric.words}"
    return PageSection(name, title, MEASURED, (), tuple(charts), (), _legend(chapter), choices, "Phases of")


def _sites(chapter: Chapter, key: str) -> PageSection:
    name, title = f"{key}-sites", "Quality of predictions by site"
    charts = tuple(panels.heat_maps(chapter, f"#{name}-of"))
    if not charts:
        return PageSection(
            name, title, MEASURED, ("No run has figures by site: nothing was predicted, or nothing sampled.",)
        )
    remark = (
        "Sampled on BP batches, where the truth is known. Mean squared error rewards predicting zero and the percentage "
        "error divides by numbers near zero: read them with the cosine."
    )
    return PageSection(
        name,
        title,
        MEASURED,
        (remark,),
        charts,
        choices=tuple(group.label for group in panels.sampled(chapter)),
        choose="Method",
    )


def _parts(chapter: Chapter, key: str) -> PageSection:
    charts = tuple(panels.time_breakdown(chapter))
    remarks = () if charts else ("No seconds were recorded.",)
    return PageSection(f"{key}-parts", "Where the time went", MEASURED, remarks, charts)


def _accelerator(modelled: Accelerated, key: str) -> PageSection:
    name, title = f"{key}-accelerator", "On a training accelerator"
    if not modelled.reports:
        return PageSection(name, title, MODELLED, modelled.remarks)
    one = next(iter(modelled.reports.values()))
    setting = (
        f"Computed, not measured: {one['model']} in batches of {one['batch']} on {one['array']} processing elements, dataflow "
        f"{one['dataflow']}, with the phases of each method's first run."
    )
    charts, shown = tuple(panels.designs(modelled)), (tables.designs_table(modelled),)
    return PageSection(name, title, MODELLED, (setting, *modelled.remarks), charts, shown)


def _pipelines(phases: str, key: str) -> PageSection:
    found = pipelines(phases)
    remark = (
        f"Computed, not measured: batches {phases} over {DEVICES} devices with {MICRO_BATCHES} micro-batches each; a "
        "forward takes one step, a backward two. Numbers are micro-batches."
    )
    charts = tuple(panels.gantt(found))
    legend = tuple({entry: None for chart in charts for entry in chart.legend})
    shown = (tables.pipelines_table(found),)
    return PageSection(f"{key}-pipelines", "Across devices", MODELLED, (remark,), charts, shown, legend)
