"""A batch's products as inputs of other accelerator models: SCALE-Sim, ZigZag, Timeloop. A new one is a line in `EXPORTERS`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from adagp.core.files import check_output_folder, write_atomically
from adagp.errors import OptionError, unknown_name
from adagp.hw.accelerator import Accelerator
from adagp.hw.export.scale_sim import scale_sim_files
from adagp.hw.export.timeloop import timeloop_files
from adagp.hw.export.work import Work, training_work
from adagp.hw.export.zigzag import zigzag_files
from adagp.hw.workload import Workload

Exporter = Callable[[tuple[Work, ...], Accelerator], dict[str, str]]
EXPORTERS: Mapping[str, Exporter] = {"scale-sim": scale_sim_files, "zigzag": zigzag_files, "timeloop": timeloop_files}
"""From the work of a batch to the text of each file."""


def check_export(tool: str | None, folder: Path | None) -> None:
    """Raise, before any work, for an unknown tool or a folder that is not empty."""
    if (tool is None) != (folder is None):
        raise OptionError("--export TOOL and --out DIR go together; give both.")
    if tool is None or folder is None:
        return
    if tool not in EXPORTERS:
        raise unknown_name("export format", tool, EXPORTERS)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"'{folder}' exists already and is not an empty folder; give another name.")
    if not folder.parent.is_dir():
        raise OptionError(f"cannot make '{folder}': there is no folder '{folder.parent}'.")
    check_output_folder(folder)


def export_workload(
    tool: str, workload: Workload, accelerator: Accelerator, batch: int, folder: Path
) -> tuple[Path, ...]:
    """Write the forward and both backward products of batches of `batch` samples into `folder`; return the files."""
    files = EXPORTERS[tool](training_work(workload, batch), accelerator)
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in files)
