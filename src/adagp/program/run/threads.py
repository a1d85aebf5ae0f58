"""CPU threads of a run: recorded when it starts and used again when it is resumed, as sums depend on them in the last bits."""

import os

from adagp.errors import RunError
from adagp.program.run.folder import CONFIG, RunFolder

MOST_THREADS = max(64, os.cpu_count() or 1)
"""More than this many threads gain nothing, and some systems cannot even start them."""


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the number of CPU threads that the run in `folder` was started with, if it is recorded."""
    threads = folder.read_json(CONFIG).get("threads")
    if threads is None and (folder.path / "versions.json").is_file():  # a run of version 0.1
        threads = folder.read_json("versions.json").get("threads")
    return threads if type(threads) is int and threads > 0 else None


def resumed_threads(folder: RunFolder, chosen: int | None, current: int) -> tuple[int, str | None]:
    """Return how many threads continue the run in `folder`, and a sentence for the user if that is not `current`.

    `chosen` is the user's number, if there is one; `current` is what torch uses otherwise.
    """
    recorded = recorded_threads(folder)
    if recorded is None:
        return chosen or current, None
    if chosen is not None:
        note = f"The run was started with {recorded} CPU threads; with {chosen} its results differ by rounding."
        return chosen, note if chosen != recorded else None
    if recorded > MOST_THREADS:
        raise RunError(
            f"the run in '{folder.path}' was started with {recorded} CPU threads; at most {MOST_THREADS} are possible here. "
            "Give --threads; results then differ by rounding."
        )
    return recorded, f"CPU threads: {recorded}, as recorded in the run." if recorded != current else None
