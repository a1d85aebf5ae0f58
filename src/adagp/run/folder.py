"""A run's folder: configuration, versions, metrics, checkpoint and summary. Every file is written whole or not at all.

config.json       the options; `command` repeats the run
versions.json     what it ran on
metrics.jsonl     a JSON object an epoch; metrics.csv the same without the sites, sites.csv a row for each site and epoch
checkpoint.pt     all that is needed to go on exactly; replaced as the run goes on
model.pt          the trained weights alone: a plain state_dict
summary.json      the result, written last
tensorboard/      scalars as the run goes on, if they are wanted
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from adagp.errors import RunError

FILES = (
    "config.json",
    "versions.json",
    "metrics.jsonl",
    "metrics.csv",
    "sites.csv",
    "checkpoint.pt",
    "model.pt",
    "summary.json",
)
EVENTS = "tensorboard"
"""The folder of TensorBoard's events, if they are wanted."""


class RunFolder:
    """The files of one run. `create` makes a new one, `open` goes on with an old one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *, force: bool = False) -> "RunFolder":
        """Make an empty run folder; one that holds anything is refused, unless `force` and it holds a run."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            held = sorted(entry.name for entry in path.iterdir())
            (path / ".write-test").touch()
            (path / ".write-test").unlink()
        except OSError as error:
            raise RunError(f"cannot write the run folder '{path}': {error.strerror}.") from None
        if held and "config.json" not in held:
            raise RunError(f"'{path}' holds files that are not a run ({held[0]}, ...); give another --out.")
        if held and not force:
            raise RunError(
                f"'{path}' holds a run already. Give another --out, --resume {path} to go on with it, "
                "or --force to delete it and start anew."
            )
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(path / EVENTS, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the run that `path` holds."""
        if not (path / "config.json").is_file():
            raise RunError(f"'{path}' is not a run folder: it has no config.json.")
        return cls(path)

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint is, if there is one yet."""
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """Where the trained weights are, once the run is finished."""
        return self.path / "model.pt"

    def read_json(self, name: str) -> Any:
        """Return the content of one JSON file of the run."""
        try:
            return json.loads((self.path / name).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read '{self.path / name}': {error}.") from None

    def write_json(self, name: str, content: Any) -> None:
        """Write one JSON file of the run."""
        write_atomically(self.path / name, (to_json(content, indent=2) + "\n").encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of the epochs so far. A last line that was cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number == len(lines):
                    break
                raise RunError(f"line {number} of '{path}' is not JSON: the run is damaged.") from None
        return rows

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write the metrics of all epochs so far, as JSON lines and as the two CSV tables."""
        text = "".join(to_json(row) + "\n" for row in rows)
        write_atomically(self.path / "metrics.jsonl", text.encode())
        plain = [{name: value for name, value in row.items() if name != "sites"} for row in rows]
        write_atomically(self.path / "metrics.csv", flat_csv(plain).encode())
        sites = [
            {"epoch": row["epoch"], "site": site, **figures} for row in rows for site, figures in row["sites"].items()
        ]
        write_atomically(self.path / "sites.csv", flat_csv(sites).encode())


def to_json(content: Any, indent: int | None = None) -> str:
    """Return `content` as JSON. A number that is not finite, which JSON cannot say, becomes null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds either all of it or what it held before, even if the machine stops."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def unused_path(base: Path) -> Path:
    """Return `base`, or the first of `base-2`, `base-3`, ... that does not exist."""
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def flat_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a CSV table of the rows with all their names as columns; tables inside a row become `outer.inner`."""
    rows = [_flatten(row) for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()  # a name may hold bytes that are not UTF-8
