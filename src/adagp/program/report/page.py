"""From runs to one HTML file that needs nothing else: style, charts' data and the plotting library are in it."""

import importlib.util
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adagp._version import __version__
from adagp.core.escape import shown
from adagp.core.files import check_output_file, publish
from adagp.errors import OptionError
from adagp.pipe import parse_phases
from adagp.program.report.chart_style import VEGA_LITE
from adagp.program.report.groups import chapters
from adagp.program.report.sections import write_chapter
from adagp.program.run.record import RunRecord, collect

TEMPLATES = Path(__file__).parent / "templates"


def write_report(paths: Sequence[Path], out: Path, phases: str | None = None) -> int:
    """Write the page about the runs in `paths` to `out` and return how many there are."""
    check(out, phases)
    records = collect(paths)
    words = ["adagp", "report", *map(str, paths), "--out", str(out), *(["--phases", phases] if phases else [])]
    publish(out, render(records, shown(shlex.join(words)), phases).encode("utf-8", "backslashreplace"))
    return len(records)


def check(out: Path, phases: str | None = None) -> None:
    """Refuse what cannot work, before anything is read."""
    require_library()
    if out.suffix not in (".html", ".htm"):
        raise OptionError(f"cannot write the report to '{out}'; the name must end in .html.")
    check_output_file(out, "write the report to")
    if phases is not None:
        parse_phases(phases)


def require_library() -> None:
    """Say what to install if pages cannot be written."""
    if any(importlib.util.find_spec(name) is None for name in ("jinja2", "vl_convert")):
        raise OptionError("a report needs jinja2 and vl-convert-python; install them: pip install 'adagp[report]'.")


def render(records: Sequence[RunRecord], command: str, phases: str | None = None) -> str:
    """Return the page."""
    written = [write_chapter(one, number, phases) for number, one in enumerate(chapters(records), start=1)]
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
    """Return a template with values in it. All that comes from runs is escaped, in the text and in the charts' data."""
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
    """Return the plotting library as a script that can stand in a page."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE).replace("</script", "<\\/script")
