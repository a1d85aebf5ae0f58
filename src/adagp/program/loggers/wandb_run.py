"""Weights & Biases in its offline mode: nothing is sent; `wandb sync` uploads a run when the user wants that."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.core.files import read_text, write_atomically
from adagp.errors import RunError
from adagp.program.loggers.base import Logger

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What W&B takes for the identity of a run; it becomes part of a file's name."""


class WandbRun(Logger):
    """Writes an offline run into the folder `wandb`.

    A run that is resumed keeps its identity, in a part of its own. What was written cannot be taken back, so steps that
    are there already are left out: a resumed run repeats them exactly.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # its reports of errors would go to the network even offline
        import wandb

        self._note = folder / "wandb" / "adagp.json"
        before = _read(self._note) if done and self._note.is_file() else {}
        settings: Any = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project="adagp", name=folder.name, id=before.get("id"), mode="offline", dir=str(folder), settings=settings
        )
        self._last = before.get("step", 0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, and note how far the run is written."""
        if step <= self._last:
            return
        self._run.log({"batch": step, **values}, step=step)
        write_atomically(self._note, json.dumps({"id": self._run.id, "step": step}).encode())

    def on_end(self) -> None:
        """Finish the offline run."""
        self._run.finish()


def _read(path: Path) -> dict[str, Any]:
    """Return the note of a run that is continued: its identity, and the last step that was written."""
    try:
        found = json.loads(read_text(path, "the note", RunError))
    except (ValueError, RecursionError):
        found = None
    known = found if isinstance(found, dict) else {}
    name, step = known.get("id"), known.get("step")
    if not isinstance(name, str) or not NAME.fullmatch(name) or type(step) is not int:
        raise RunError(f"cannot read '{path}': it must hold the id and the last step of a W&B run.")
    return {"id": name, "step": step}
