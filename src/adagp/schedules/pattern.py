"""Schedules by patterns, which name the sites and the batches; read from text and matched against a model's layers."""

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, Step
from adagp.errors import OptionError, UsageError
from adagp.schedules.base import Layer, Layout, Schedule

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
    """Every `step`-th item, counted from 1, beginning with the `start`-th."""

    step: int
    start: int

    def takes(self, index: int) -> bool:
        """Return whether the item at `index`, counted from 0, is one of them."""
        return index + 1 >= self.start and (index + 1 - self.start) % self.step == 0


@dataclass(frozen=True)
class Ratio:
    """`taken` batches, then `left` batches, repeated."""

    taken: int
    left: int

    def takes(self, index: int) -> bool:
        """Return whether the batch at `index`, counted from 0, is one of those taken."""
        return index % (self.taken + self.left) < self.taken


@dataclass(frozen=True)
class Kind:
    """Sites of one kind (`layer`: of any kind), chosen by their number among these."""

    kind: str
    every: Every


@dataclass(frozen=True)
class Cut:
    """The first sites: just enough to save the share `saving` of a batch's work, or all before the site `name`."""

    saving: float | None = None
    name: str | None = None


def read_sites(text: str) -> tuple[Kind | Cut | str, ...]:
    """Return the selectors in `text`, which are separated by commas. A string is a name pattern."""
    selectors = tuple(_selector(part.strip(), text) for part in text.split(","))
    if len(selectors) > 1 and any(isinstance(selector, Cut) for selector in selectors):
        raise OptionError(f"cannot read the sites '{text}': a cut cannot be combined with other sites.")
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
            f"cannot read the sites '{whole}': '{kind}' is not a kind of layer. Choose from: conv, linear, layer."
        )
    if every.step < 1 or every.start < 1:
        raise OptionError(f"cannot read the sites '{whole}': layers are counted from 1.")
    return Kind(kind, every)


def read_batches(text: str) -> Every | Ratio:
    """Return the batch pattern that `text` describes; the count of batches restarts in each epoch."""
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
    """Return the sites of `layout` that `selector` takes; raise if there are none."""
    if not layout.sites:
        raise OptionError("the schedule chooses among the model's sites, but it has none.")
    if isinstance(selector, Cut):
        return _below(selector, layout)
    if isinstance(selector, Kind):
        return _of_kind(selector, layout)
    sites = tuple(site for site in layout.sites if fnmatchcase(site.name, selector))
    if not sites:
        raise OptionError(f"the schedule's pattern '{selector}' matches no site of the model. {_listed(layout)}")
    return sites


def _of_kind(selector: Kind, layout: Layout) -> tuple[Layer, ...]:
    candidates = [site for site in layout.sites if selector.kind in (site.kind, "layer")]
    sites = tuple(site for index, site in enumerate(candidates) if selector.every.takes(index))
    if not sites:
        raise OptionError(
            f"the schedule's sites begin with {selector.kind} number {selector.every.start}, but the model has "
            f"{len(candidates)} such sites."
        )
    return sites


def _below(cut: Cut, layout: Layout) -> tuple[Layer, ...]:
    if cut.saving is not None:
        return layout.sites[: layout.count_for(cut.saving)]
    names = [site.name for site in layout.sites]
    if cut.name not in names:
        raise OptionError(f"the schedule's cut is at '{cut.name}', which is not a site of the model. {_listed(layout)}")
    if cut.name == names[0]:
        raise OptionError(f"the schedule's cut is at '{cut.name}', the first site: there is none before it.")
    return layout.sites[: names.index(cut.name)]


def _listed(layout: Layout) -> str:
    names = [site.name for site in layout.sites]
    return f"Its sites are: {', '.join(names[:8])}" + (f" and {len(names) - 8} more." if len(names) > 8 else ".")


APPROXIMATIONS = {
    "approx:1": ("every 4th conv from 2nd", "all"),
    "approx:2": ("every 2nd conv", "every 2nd"),
    "approx:3": ("every conv from 2nd", "every 4th"),
    "approx:2-layer": ("2nd conv", "every 2nd"),
}
"""The schedules of Wang and Nelaturu: which sites, on which batches. Each replaces about a quarter of all gradients.

Their text describes the third one with every layer: `sites=every conv; batches=every 4th; first=allowed` adds the first layer.
"""

RESTS = ("train", "hold")
FIRSTS = ("keep", "allowed")


@dataclass(frozen=True)
class Pattern(Schedule):
    """The sites that match `sites` come from `source` on the batches that match `batches`.

    Everything else is trained by backprop. With `rest="hold"`, parameters that belong to no site are frozen in those batches.
    `first="keep"` rejects patterns that include the model's first site, where approximations cost most accuracy: the paper
    begins with the second convolution, except in its schedule of every layer on every fourth batch. A cut takes all sites up to
    it, the first one included, and freezes all other parameters below it, so that the backward pass stops there.
    """

    sites: str
    batches: str = "all"
    source: str = "zero"
    rest: str = "train"
    first: str = "keep"
    chosen: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for clause, value, allowed in (("rest", self.rest, RESTS), ("first", self.first, FIRSTS)):
            if value not in allowed:
                raise OptionError(f"the schedule says {clause}={value}; it must be {' or '.join(allowed)}.")
        read_batches(self.batches)
        # A cut is a position in the order of execution, and stops the backward pass. Only `all` leaves no site for backprop.
        cut = isinstance(read_sites(self.sites)[0], Cut)
        vars(self).update(needs_order=cut, stops=cut, partial=self.sites != "all")

    def resolve(self, layout: Layout) -> "Pattern":
        """Return the schedule with its sites found in `layout`."""
        if self.needs_order and not layout.measured:
            raise OptionError(
                f"the schedule's '{self.sites}' needs the order and the cost of the layers: "
                "give attach(..., sample=inputs), a batch of inputs for a trial forward pass."
            )
        taken = {site.name for selector in read_sites(self.sites) for site in select(selector, layout)}
        chosen = tuple(site.name for site in layout.sites if site.name in taken)
        if self.stops:
            return replace(self, chosen=chosen, frozen=layout.others_below(len(chosen)))
        if self.first == "keep" and layout.sites[0].name in taken:
            raise OptionError(
                f"the schedule's sites '{self.sites}' take in '{chosen[0]}', the model's first site, whose gradient "
                "is not replaced by default. Begin with the 2nd, or add first=allowed."
            )
        return replace(self, chosen=chosen, frozen=frozenset())

    def serves(self, site: str) -> bool:
        """Return whether `site` is among the chosen."""
        return site in self.chosen

    def phase(self, step: Step) -> Phase:
        """Return GP for every batch in which some site comes from the source."""
        return Phase.GP if read_batches(self.batches).takes(step.batch) else Phase.BP

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        if self.phase(step) is Phase.BP:
            return BACKPROP_ALL
        if not self.chosen:
            raise UsageError("a schedule by patterns must be resolved against a model's layers before it gives plans.")
        return Plan(
            Phase.GP, by_site=dict.fromkeys(self.chosen, self.source), hold_rest=self.rest == "hold", frozen=self.frozen
        )

    def label(self, epoch: int) -> str:
        """Return the short name of the pattern."""
        return self.name or "pattern"

    @property
    def name(self) -> str | None:
        """The name of the published schedule with these patterns; None if there is none."""
        plain = self.rest == "train" and self.first == "keep"
        return next(
            (name for name, form in APPROXIMATIONS.items() if plain and form == (self.sites, self.batches)), None
        )

    @property
    def text(self) -> str:
        """The clauses as `parse_schedule` reads them, or the name of the published schedule."""
        return self.name or self.clauses

    @property
    def clauses(self) -> str:
        """All clauses, also those of a published schedule, whose name leaves the source out."""
        clauses = [f"sites={self.sites}", f"batches={self.batches}", f"source={self.source}"]
        clauses += [f"rest={self.rest}"] if self.rest != "train" else []
        clauses += [f"first={self.first}"] if self.first != "keep" else []
        return "; ".join(clauses)

    @property
    def sources(self) -> frozenset[str]:
        """The one source."""
        return frozenset({self.source})


@dataclass(frozen=True)
class Mixture(Schedule):
    """Several patterns at once, each with its own source. If several take the same site on a batch, the first one decides."""

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        if any(pattern.stops or pattern.rest != "train" for pattern in self.patterns):
            raise OptionError("a mixture of patterns cannot contain a cut or rest=hold: use these on their own.")
        vars(self).update(partial=True)

    def resolve(self, layout: Layout) -> "Mixture":
        """Return the schedule with all sites found in `layout`."""
        return Mixture(tuple(pattern.resolve(layout) for pattern in self.patterns))

    def serves(self, site: str) -> bool:
        """Return whether any pattern takes `site`."""
        return any(pattern.serves(site) for pattern in self.patterns)

    def phase(self, step: Step) -> Phase:
        """Return GP for every batch in which some site comes from a source."""
        return Phase.GP if any(pattern.phase(step) is Phase.GP for pattern in self.patterns) else Phase.BP

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        if self.phase(step) is Phase.BP:
            return BACKPROP_ALL
        by_site: dict[str, str] = {}
        for pattern in self.patterns:
            by_site = dict(pattern.plan(step).by_site) | by_site
        return Plan(Phase.GP, by_site=by_site)

    def label(self, epoch: int) -> str:
        """Return `mixture`."""
        return "mixture"

    @property
    def text(self) -> str:
        """The patterns as `parse_schedule` reads them."""
        return " + ".join(pattern.clauses for pattern in self.patterns)

    @property
    def sources(self) -> frozenset[str]:
        """The sources of all patterns."""
        return frozenset(pattern.source for pattern in self.patterns)


def read_clauses(text: str, epochs: int, source: str) -> Pattern | Mixture:
    """Return the schedule that `text` describes in clauses `sites=...; batches=...; source=...`; ` + ` separates patterns."""
    patterns = tuple(_read_pattern(part, source) for part in text.split(" + "))
    return patterns[0] if len(patterns) == 1 else Mixture(patterns)


def _read_pattern(text: str, source: str) -> Pattern:
    allowed = ("sites", "batches", "source", "rest", "first")
    clauses: dict[str, str] = {}
    for clause in text.split(";"):
        name, equals, value = (part.strip() for part in clause.partition("="))
        if not equals or name not in allowed or name in clauses or not value:
            raise OptionError(
                f"cannot read '{clause.strip()}' in the schedule '{text}'. Its clauses, each at most once and separated by "
                "semicolons, are: sites=..., batches=..., source=..., rest=train|hold, first=keep|allowed."
            )
        clauses[name] = value
    if "sites" not in clauses:
        raise OptionError(f"the schedule '{text}' names no sites: add sites=... (for example sites=every conv).")
    return Pattern(
        clauses["sites"],
        clauses.get("batches", "all"),
        clauses.get("source", source),
        clauses.get("rest", "train"),
        clauses.get("first", "keep"),
    )
