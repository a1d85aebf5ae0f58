"""Integrations with Lightning, transformers and accelerate. Import the module that you use."""

from importlib.util import find_spec

from adagp.errors import UsageError


def require(framework: str) -> None:
    """Raise if a framework is missing; the extra that installs it has the same name."""
    if find_spec(framework) is None:
        raise UsageError(
            f"adagp.integrations.{framework} needs {framework}, which is not installed: pip install '.[{framework}]'."
        )
