"""From the name of a source or a method to the source itself."""

from collections.abc import Mapping
from typing import Any

from adagp.core.methods import Method, find_source
from adagp.core.options import keyword_options
from adagp.core.references import import_reference
from adagp.errors import OptionError
from adagp.sources.base import RunFacts, Source


def build_source(method: Method, run: RunFacts, options: Mapping[str, Any] | None = None) -> Source:
    """Return the source of `method` for a run; its own `options` are at their defaults where they are not given."""
    kind = _kind(method)
    return kind.build(run, **keyword_options(method.options, options or {}))


def default_source(name: str) -> Source:
    """Return the source that plans call `name`, as its constructor makes it."""
    return _kind(find_source(name))()


def _kind(method: Method) -> type[Source]:
    assert method.builds is not None, "plain backprop has no source"
    kind = import_reference(method.builds, what="a method of your own", kind="Class")
    if not (isinstance(kind, type) and issubclass(kind, Source)):
        raise OptionError(
            f"'{method.builds}' is not a source of gradients: it must be a class derived from adagp.Source."
        )
    return kind
