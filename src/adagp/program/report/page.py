"""The page: one HTML file that contains its style, the charts' data and the plotting library.

Each chapter has its results on top, then sections of remarks, charts and tables.
"""

import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from adagp._version import __version__
from adagp.core.cache import verified_text
from adagp.core.escape import escaped
from adagp.core.files import check_output_file, publish
from adagp.errors import OptionError
from adagp.pipe import parse_phases
from adagp.program.report import charts as panels
from adagp.program.report import curves, tables
from adagp.program.report.charts import VEGA_LITE, Chart, Key, series
from adagp.program.report.curves import pareto
from adagp.program.report.modelled import DEVICES, MICRO_BATCHES, Accelerated, accelerate, pattern, pipelines
from adagp.program.report.ranking import Headline, equal_time, moments, verdict
from adagp.program.report.run_groups import Chapter, chapters
from adagp.program.report.tables import Table
from adagp.program.run.record import RunRecord, collect

TEMPLATES = Path(__file__).parent / "templates"
LIBRARY_DIGEST = "0b00f93da6d768e2692dd70db7d4273f17a1535bb0281f14f176bef0b3b6d856"
"""SHA-256 of the plotting library of vl-convert 1.9, which is cached. With another version each report bundles it again."""


def write_report(paths: Sequence[Path], out: Path, phases: str | None = None) -> int:
    """Write the page about the runs in `paths` to `out`; return the number of runs."""
    check(out, phases)
    records = collect(paths)
    words = ["adagp", "report", *map(str, paths), "--out", str(out), *(["--phases", phases] if phases else [])]
    publish(out, render(records, escaped(shlex.join(words)), phases).encode("utf-8", "backslashreplace"))
    return len(records)


def check(out: Path, phases: str | None = None) -> None:
    """Check the options before any run is read."""
    require_library()
    if out.suffix not in (".html", ".htm"):
        raise OptionError(f"cannot write the report to '{out}'; the name must end in .html.")
    check_output_file(out, "write the report to")
    if phases is not None:
        parse_phases(phases)


def require_library() -> None:
    """Raise with install instructions if a library for pages is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("jinja2", "vl_convert")):
        raise OptionError("a report needs jinja2 and vl-convert-python; install them: pip install '.[report]'.")


def render(records: Sequence[RunRecord], command: str, phases: str | None = None) -> str:
    """Return the page."""
    written = [write_chapter(chapter, number, phases) for number, chapter in enumerate(chapters(records), start=1)]
    return fill_template(
        "page.html.jinja",
        runs=records,
        chapters=written,
        titled=len(written) > 1,
        broken=[run for run in records if run.problems],
        command=command,
        library=library(),
        style=(TEMPLATES / "page.css").read_text("utf-8"),
        script=(TEMPLATES / "page.js").read_text("utf-8"),
    )


def fill_template(template: str, **values: Any) -> str:
    """Render a template. Text from runs is escaped, in HTML and in the charts' data."""
    return str(_environment().get_template(template).render(version=__version__, **values))


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@cache
def library() -> str:
    """Return the plotting library as the content of a script element."""
    return verified_text(LIBRARY_DIGEST, bundle_library).replace("</script", "<\\/script")


def bundle_library() -> str:
    """Bundle the plotting library with vl-convert, which takes more than a second."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)


MEASURED, MODELLED = "measured", "modelled"
NOTHING = "No run has a finished epoch yet: there is nothing to draw."


@dataclass(frozen=True)
class PageSection:
    """A part of a chapter. The page's element with the id `key`-of switches its charts between the methods `choices`."""

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
class PageChapter:
    """The content of a chapter on the page."""

    key: str
    title: str
    verdict: Headline
    sections: tuple[PageSection, ...]


def write_chapter(chapter: Chapter, number: int, phases: str | None = None, *, model: bool = True) -> PageChapter:
    """Return a chapter's content. `phases` defaults to those of the runs; without `model`, modelled sections are left out."""
    key = f"chapter-{number}"
    measured = [PageSection(f"{key}-time", _time_title(chapter), MEASURED, (NOTHING,))]
    if any(group.length for group in chapter.groups):
        measured = [_time(chapter, key), _curves(chapter, key), _sites(chapter, key), _parts(chapter, key)]
        if chapter.comparison is not None:  # its runs shared the machine, so their own seconds are weaker evidence
            measured[:2] = reversed(measured[:2])
    modelled: tuple[PageSection, ...] = ()
    if model:
        modelled = (_accelerator(accelerate(chapter), key), _pipelines(phases or pattern(chapter.groups), key))
    shown_tables = (*tables.options_table(chapter), tables.runs_table(chapter))
    runs = PageSection(f"{key}-runs", "Every run", MEASURED, tables=shown_tables)
    return PageChapter(key, chapter.title, verdict(chapter), (*measured, *modelled, runs))


def _legend(chapter: Chapter) -> tuple[Key, ...]:
    return series([group.label for group in chapter.groups])


def _time_title(chapter: Chapter) -> str:
    return f"{curves.capital(chapter.metric.words)} and time"


def _time(chapter: Chapter, key: str) -> PageSection:
    name, title = f"{key}-time", _time_title(chapter)
    compared, summary = equal_time(chapter), tables.summary_table(chapter)
    if chapter.comparison is not None:  # it has calibrated seconds, which are better than those of runs side by side
        compared = None
    if compared is None or len(chapter.groups) == 1:
        charts = (*curves.metric_over_time(chapter, None), *(pareto(chapter) if len(chapter.groups) > 1 else ()))
        return PageSection(name, title, MEASURED, (), charts, (summary,), _legend(chapter))
    charts = (*curves.metric_over_time(chapter, compared), *pareto(chapter))
    remark = (
        "At equal time, the mean time at which the runs of one method end, each other run counts with its last finished epoch. "
        "A run that is cut off there has not decayed its learning rate fully: see the curves, too."
    )
    sheets = (summary, tables.moments_table(moments(chapter)))
    return PageSection(name, title, MEASURED, (remark,), charts, sheets, _legend(chapter))


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
            name,
            title,
            MEASURED,
            ("No run has quality figures by site: it has no GP batches, or no batch was sampled.",),
        )
    remark = (
        "Sampled on BP batches, where the true gradient is known. Mean squared error rewards predicting zero, and the "
        "percentage error divides by numbers near zero: see the cosine, too."
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
    first = next(iter(modelled.reports.values()))
    setting = (
        f"Modelled, not measured: {first['model']}, batch size {first['batch']}, {first['array']} processing elements, "
        f"dataflow {first['dataflow']}, with the phases of each method's first run. Cost only, not accuracy."
    )
    charts, sheets = tuple(panels.designs(modelled)), (tables.designs_table(modelled),)
    return PageSection(name, title, MODELLED, (setting, *modelled.remarks), charts, sheets)


def _pipelines(phases: str, key: str) -> PageSection:
    simulated = pipelines(phases)
    remark = (
        f"Modelled, not measured: batches {phases} on {DEVICES} devices with {MICRO_BATCHES} micro-batches each; a "
        "forward takes one step, a backward two. Numbers are micro-batches."
    )
    charts = tuple(panels.gantt(simulated))
    legend = tuple({key: None for chart in charts for key in chart.legend})
    sheets = (tables.pipelines_table(simulated),)
    return PageSection(f"{key}-pipelines", "Across devices", MODELLED, (remark,), charts, sheets, legend)
