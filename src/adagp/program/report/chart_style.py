"""How the page's charts look: colours, the settings that all share, and the wrapping of a chart for the page.

Text and lines are drawn in `currentColor`, so that charts follow the page from light to dark without being drawn again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adagp.program.figures.style import COLOURS, MANY_COLOURS, PHASE_COLOURS

INK = "currentColor"
SERIES = tuple(INK if colour == "#000000" else colour for colour in MANY_COLOURS)
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
TIME_COLOURS = {**PHASE_COLOURS, "data": COLOURS[5], "evaluation": COLOURS[3]}
TIME_WORDS = {"warmup": "warm-up", "bp": "BP batches", "gp": "GP batches"}
VEGA_LITE = "6.1"
"""The version of Vega-Lite in the page. 6.4 says `undefined` for words under the nearest point (vega-lite #9707)."""
SCHEMA = f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json"  # a name, never fetched
Spec = dict[str, Any]

_AXIS = {
    "domainColor": INK,
    "domainOpacity": 0.35,
    "gridColor": INK,
    "gridOpacity": 0.1,
    "labelColor": INK,
    "labelFontSize": 12,
    "labelLimit": 220,
    "tickColor": INK,
    "tickOpacity": 0.35,
    "titleColor": INK,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titlePadding": 8,
}
_CONFIG: Spec = {
    "axis": _AXIS,
    "background": "transparent",
    "customFormatTypes": False,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
    "view": {"stroke": None},
}


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a name, a colour and, for lines, their dashes."""

    name: str
    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart of the page: its heading, what it shows in a sentence (read aloud, too), and the Vega-Lite specification."""

    title: str
    caption: str
    spec: Spec
    legend: tuple[Key, ...] = ()
    wide: bool = False


def finish(spec: Spec, description: str, height: int = 260) -> Spec:
    """Return a chart as wide as its place on the page and `height` pixels high, in the house's looks."""
    size = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {"$schema": SCHEMA, "description": description, **size, "config": _CONFIG, **spec}


def series(names: Sequence[str]) -> tuple[Key, ...]:
    """Return a colour and a dash for each of several lines; with more lines than colours, the dashes differ."""
    count = len(SERIES)
    return tuple(
        Key(name, SERIES[place % count], " ".join(map(str, dash(place, len(names)))))
        for place, name in enumerate(names)
    )


def dash(place: int, count: int) -> list[int]:
    """Return the dashes of line number `place` of `count`: different for each of a few, so that no colour is needed."""
    return DASHES[place % len(DASHES)] if count <= len(DASHES) else DASHES[place // len(SERIES) % len(DASHES)]


def colour(names: Sequence[str], field: str = "group") -> Spec:
    """Return the channel that gives each line its colour; the legend is the page's own."""
    scale = {"domain": list(names), "range": [key.colour for key in series(names)]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def dashes(names: Sequence[str]) -> Spec:
    """Return the channel that gives each line its dashes."""
    scale = {"domain": list(names), "range": [dash(place, len(names)) for place in range(len(names))]}
    return {"field": "group", "type": "nominal", "scale": scale, "legend": None}


def palette(colours: Mapping[str, str], field: str) -> Spec:
    """Return the channel that colours by a fixed table."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def keys(colours: Mapping[str, str]) -> tuple[Key, ...]:
    """Return the legend of a fixed table of colours."""
    return tuple(Key(name, shade) for name, shade in colours.items())


def tip(field: str, title: str, form: str | None = None) -> Spec:
    """Return one line of what is shown under the pointer."""
    kind = {"type": "nominal"} if form is None else {"type": "quantitative", "format": form}
    return {"field": field, "title": title, **kind}


def interval_text(low: str, high: str, form: str, name: str) -> Spec:
    """Return the transform that writes the interval between two fields for reading into the field `name`."""
    ends = f"format(datum.{low}, '{form}') + ' to ' + format(datum.{high}, '{form}')"
    return {"calculate": f"isValid(datum.{low}) ? {ends} : 'one seed'", "as": name}


def axis(field: str, title: str | None, form: str | None = None, **more: Any) -> Spec:
    """Return the channel of a number along an axis; `form` is its format."""
    looks = {"title": title, "tickCount": 8, **({} if form is None else {"format": form})}
    scale = more.pop("scale", {"zero": False, "nice": True})
    return {"field": field, "type": "quantitative", "axis": {**looks, **more}, "scale": scale}


def short(value: float | None, digits: int = 4) -> float | None:
    """Return a number with few digits: the page stays small."""
    return None if value is None else float(f"{value:.{digits}g}")
