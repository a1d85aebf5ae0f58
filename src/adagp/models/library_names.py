"""What to say of a name that a library of models does not have."""

from collections.abc import Collection
from difflib import get_close_matches

from adagp.errors import ModelError


def unknown_in(library: str, what: str, name: str, known: Collection[str]) -> ModelError:
    """Return the error for a name that is not among the many that `library` has, with the nearest ones."""
    near = get_close_matches(name.lower(), known, n=3)
    hint = f" The nearest names: {', '.join(near)}." if near else ""
    return ModelError(f"{library} has no {what} '{name}' among its {len(known)}.{hint}")
