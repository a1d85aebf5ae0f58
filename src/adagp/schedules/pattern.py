"""Schedules by layer pattern and batch pattern: gradient approximation, and partial plans whose backward pass stops."""

from dataclasses import dataclass, replace

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, Step
from adagp.errors import OptionError, UsageError
from adagp.schedules.base import Schedule
from adagp.schedules.layout import Layout
from adagp.schedules.select import Cut, read_batches, read_sites, select

APPROXIMATIONS = {
    "approx:1": ("every 4th conv from 2nd", "all"),
    "approx:2": ("every 2nd conv", "every 2nd"),
    "approx:3": ("every conv from 2nd", "every 4th"),
    "approx:2-layer": ("2nd conv", "every 2nd"),
}
"""The schedules of Wang and Nelaturu: which sites, on which batches. About a quarter of all cells each."""

RESTS = ("train", "hold")
FIRSTS = ("keep", "allowed")


@dataclass(frozen=True)
class Pattern(Schedule):
    """The sites that match `sites` come from `source` on the batches that match `batches`.

    Everything else is trained by backprop; with `rest="hold"` parameters that belong to no site are held on those batches.
    `first="keep"` refuses patterns that take the model's first site, which the paper never approximates. A cut takes the
    early sites, the first among them, and holds all other parameters below it, so that the backward pass stops there.
    """

    sites: str
    batches: str = "all"
    source: str = "zero"
    rest: str = "train"
    first: str = "keep"
    chosen: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for clause, value, allowed in (("rest", self.rest, RESTS), ("first", self.first, FIRSTS)):
            if value not in allowed:
                raise OptionError(f"the schedule says {clause}={value}; it must be {' or '.join(allowed)}.")
        read_batches(self.batches)
        # A cut is a place in the order of execution, and stops the backward pass. Only `all` leaves no site for backprop.
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
        if self.first == "keep" and not self.stops and layout.sites[0].name in taken:
            raise OptionError(
                f"the schedule's sites '{self.sites}' take in '{chosen[0]}', the model's first site, whose gradient is "
                "never to be replaced. Begin with the 2nd, or say first=allowed."
            )
        return replace(self, chosen=chosen, held=layout.held_below(len(chosen)) if self.stops else frozenset())

    def serves(self, site: str) -> bool:
        """Tell whether `site` is among the chosen."""
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
            Phase.GP, by_site=dict.fromkeys(self.chosen, self.source), hold_rest=self.rest == "hold", held=self.held
        )

    def label(self, epoch: int) -> str:
        """Return the short name of the pattern."""
        return self.name or "pattern"

    @property
    def name(self) -> str | None:
        """The name of the published schedule that this is, if it is one."""
        plain = self.rest == "train" and self.first == "keep"
        return next(
            (name for name, form in APPROXIMATIONS.items() if plain and form == (self.sites, self.batches)), None
        )

    @property
    def text(self) -> str:
        """The clauses as `parse_schedule` reads them, or the name of the published schedule."""
        if self.name is not None:
            return self.name
        clauses = [f"sites={self.sites}", f"batches={self.batches}", f"source={self.source}"]
        clauses += [f"rest={self.rest}"] if self.rest != "train" else []
        clauses += [f"first={self.first}"] if self.first != "keep" else []
        return "; ".join(clauses)

    @property
    def sources(self) -> frozenset[str]:
        """The one source."""
        return frozenset({self.source})


def read_clauses(text: str, epochs: int, source: str) -> Pattern:
    """Return the schedule of clauses `sites=...; batches=...; source=...; rest=...; first=...`, whatever the epochs."""
    allowed = ("sites", "batches", "source", "rest", "first")
    given: dict[str, str] = {}
    for clause in text.split(";"):
        name, equals, value = (part.strip() for part in clause.partition("="))
        if not equals or name not in allowed or name in given or not value:
            raise OptionError(
                f"cannot read '{clause.strip()}' in the schedule '{text}'. Its clauses, each at most once and separated by "
                "semicolons, are: sites=..., batches=..., source=..., rest=train|hold, first=keep|allowed."
            )
        given[name] = value
    if "sites" not in given:
        raise OptionError(
            f"the schedule '{text}' does not say which sites: add sites=... (for example sites=every conv)."
        )
    return Pattern(
        given["sites"],
        given.get("batches", "all"),
        given.get("source", source),
        given.get("rest", "train"),
        given.get("first", "keep"),
    )
