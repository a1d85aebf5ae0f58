"""Runs the notebooks of docs/notebooks and stores them with their outputs: python -m tools.run_notebooks [FOLDER].

With FOLDER the results go there and the stored ones stay as they are.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
TIME_LIMIT = 300
"""Seconds that a cell may take."""


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with new outputs, run in an empty folder. A cell that raises ends it."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=TIME_LIMIT, coalesce_streams=True, resources={"metadata": {"path": folder}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(out: Path) -> None:
    """Run all."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(run_notebook(path), out / path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOKS)
