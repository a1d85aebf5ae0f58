"""Python without some of the papers: `python -m tests.without_papers NAMES MODULE ARGUMENTS...` runs a module like `python -m`.

NAMES are papers' folders, separated by commas, or `all`. Importing one fails as if its folder was deleted.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PAPERS = (
    "adagp",
    "remap",
    "approximation",
    "dni",
    "feedback",
    "feedback_alignment",
    "control",
    "fast",
    "camel",
    "procrustes",
    "lecture",
)


class BlockedPapers(MetaPathFinder):
    """Raises the error of a missing module for the blocked papers."""

    def __init__(self, papers: Sequence[str]) -> None:
        self.blocked = {f"adagp.papers.{paper}" for paper in papers}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for a blocked paper; leave the rest to the other finders."""
        if fullname in self.blocked:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def main() -> None:
    """Block the papers and run the module."""
    _, names, module, *arguments = sys.argv
    sys.meta_path.insert(0, BlockedPapers(PAPERS if names == "all" else names.split(",")))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
