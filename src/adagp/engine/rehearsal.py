"""What a rehearsal of the user's own loop has shown. `adagp.engine.rehearse` runs it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal has shown. Names are those of layers (sites) or of parameters.

    `moved` are the parameters that the GP batch moved and may move: weights of sites, and where its plan has backprop too,
    those that it trains. Parameters that only an optimizer has are numbered. `bp_kept` and `gp_kept` are the bytes that
    autograd kept for a backward pass; seconds are those of one batch each, the first of its kind, so take them with care.
    """

    never_called: tuple[str, ...]
    without_gradient: tuple[str, ...]
    refused: tuple[str, ...]
    moved: tuple[str, ...]
    moved_wrongly: tuple[str, ...]
    bp_kept: int
    gp_kept: int
    bp_seconds: float
    gp_seconds: float

    @property
    def clean(self) -> bool:
        """Whether every site is called, gets gradients and is moved, and nothing else is."""
        return not (self.never_called or self.without_gradient or self.refused or self.moved_wrongly)

    def __str__(self) -> str:
        lines = [
            f"a GP batch moves {len(self.moved)} parameters; it kept {self.gp_kept:,} bytes for a backward pass, a BP batch "
            f"{self.bp_kept:,} (seconds, of one batch each: {self.gp_seconds:.3f} and {self.bp_seconds:.3f})"
        ]
        for names, words in (
            (self.never_called, "never called, so held in GP batches"),
            (self.without_gradient, "without a gradient in the BP batch, so held in GP batches"),
            (self.refused, "refused by the guard, which is usual before the source has learned"),
            (self.moved_wrongly, "moved in the GP batch, which they should not"),
        ):
            if names:
                lines.append(f"{words}: {', '.join(names)}")
        return "\n".join(lines)
