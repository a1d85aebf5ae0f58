"""Which sites, which batches: small readable patterns, checked when they are read and matched against a model's layers."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from adagp.errors import OptionError
from adagp.schedules.layout import Layer, Layout

KINDS = ("conv", "linear", "layer")
SITE_FORMS = (
    "all, every [Nth] conv|linear|layer [from Mth], Nth conv|linear|layer, a name or pattern such as layer3.*, "
)
SITE_FORMS += "cut N%, cut at NAME"
BATCH_FORMS = "all, every Nth [from Mth], K:M"
_ORDINAL = r"(\d+)(?:st|nd|rd|th)"
_EVERY = re.compile(rf"every (?:{_ORDINAL} )?(\w+)(?: from {_ORDINAL})?")
_ONE = re.compile(rf"{_ORDINAL} (\w+)")
_CUT = re.compile(r"cut (?:(\d+(?:\.\d+)?)%|at (\S+))")
_EVERY_BATCH = re.compile(rf"every {_ORDINAL}(?: from {_ORDINAL})?")
_RATIO = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class Every:
    """Every `step`-th of things that are counted from 1, beginning with the `start`-th."""

    step: int
    start: int

    def takes(self, index: int) -> bool:
        """Tell whether the thing at `index`, counted from 0, is among them."""
        return index + 1 >= self.start and (index + 1 - self.start) % self.step == 0


@dataclass(frozen=True)
class Ratio:
    """`taken` batches, then `left` batches, over and over."""

    taken: int
    left: int

    def takes(self, index: int) -> bool:
        """Tell whether the batch at `index`, counted from 0, is among the taken."""
        return index % (self.taken + self.left) < self.taken


@dataclass(frozen=True)
class Kind:
    """Sites of one kind (`layer`: of any kind), by their place among them."""

    kind: str
    every: Every


@dataclass(frozen=True)
class Cut:
    """The early sites: as many as save the share `saving` of a batch's work, or all before the site `name`."""

    saving: float | None = None
    name: str | None = None


def read_sites(text: str) -> tuple[Kind | Cut | str, ...]:
    """Return the selectors in `text`, which are separated by commas. A string is a name pattern."""
    selectors = tuple(_selector(part.strip(), text) for part in text.split(","))
    if len(selectors) > 1 and any(isinstance(one, Cut) for one in selectors):
        raise OptionError(f"cannot read the sites '{text}': a cut stands alone.")
    return selectors


def _selector(part: str, whole: str) -> Kind | Cut | str:
    if part == "all":
        return Kind("layer", Every(1, 1))
    if match := _CUT.fullmatch(part):
        return Cut(None if match[1] is None else float(match[1]) / 100, match[2])
    if match := _EVERY.fullmatch(part):
        step = int(match[1] or 1)
        return _kind(match[2], Every(step, int(match[3] or step)), whole)
    if match := _ONE.fullmatch(part):
        return _kind(match[2], Every(10**9, int(match[1])), whole)
    if not part or " " in part:
        raise OptionError(f"cannot read the sites '{whole}'. Allowed forms, separated by commas: {SITE_FORMS}.")
    return part


def _kind(kind: str, every: Every, whole: str) -> Kind:
    if kind not in KINDS:
        raise OptionError(
            f"cannot read the sites '{whole}': '{kind}' is no kind of layer. Choose from: conv, linear, layer."
        )
    if every.step < 1 or every.start < 1:
        raise OptionError(f"cannot read the sites '{whole}': layers are counted from 1.")
    return Kind(kind, every)


def read_batches(text: str) -> Every | Ratio:
    """Return the batch pattern that `text` describes; batches are counted in each epoch again."""
    if text == "all":
        return Every(1, 1)
    if match := _EVERY_BATCH.fullmatch(text):
        step = int(match[1])
        start = int(match[2] or step)
        if step >= 1 and start >= 1:
            return Every(step, start)
    if (match := _RATIO.fullmatch(text)) and int(match[1]) > 0:
        return Ratio(int(match[1]), int(match[2]))
    raise OptionError(f"cannot read the batches '{text}'. Allowed forms: {BATCH_FORMS}.")


def select(selector: Kind | Cut | str, layout: Layout) -> tuple[Layer, ...]:
    """Return the sites of `layout` that `selector` takes; one that takes none is refused."""
    if not layout.sites:
        raise OptionError("the schedule chooses among the model's sites, but it has none.")
    if isinstance(selector, Cut):
        return _below(selector, layout)
    if isinstance(selector, Kind):
        candidates = [site for site in layout.sites if selector.kind in (site.kind, "layer")]
        found = tuple(site for index, site in enumerate(candidates) if selector.every.takes(index))
        if not found:
            start = selector.every.start
            raise OptionError(
                f"the schedule's sites begin with {selector.kind} number {start}, but the model has "
                f"{len(candidates)} such sites."
            )
        return found
    found = tuple(site for site in layout.sites if fnmatchcase(site.name, selector))
    if not found:
        raise OptionError(f"the schedule's pattern '{selector}' matches no site of the model. {_listed(layout)}")
    return found


def _below(cut: Cut, layout: Layout) -> tuple[Layer, ...]:
    if cut.saving is not None:
        return layout.sites[: layout.count_for(cut.saving)]
    names = [site.name for site in layout.sites]
    if cut.name not in names:
        raise OptionError(f"the schedule's cut is at '{cut.name}', which is no site of the model. {_listed(layout)}")
    if cut.name == names[0]:
        raise OptionError(f"the schedule's cut is at '{cut.name}', the first site: there is none before it.")
    return layout.sites[: names.index(cut.name)]


def _listed(layout: Layout) -> str:
    names = [site.name for site in layout.sites]
    return f"Its sites are: {', '.join(names[:8])}" + (f" and {len(names) - 8} more." if len(names) > 8 else ".")
