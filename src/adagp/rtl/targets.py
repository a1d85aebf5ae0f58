"""What is synthesised for: Xilinx's 7 series (`xc7`: LUTs, registers, DSPs, block RAMs) or any Liberty file.

Of a Liberty file cells and their area are counted; memories in bits, since such libraries have no SRAM.
"""

from dataclasses import dataclass
from pathlib import Path

from adagp.errors import OptionError
from adagp.rtl.liberty import read_cells

OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""Where Debian's package qflow-tech-osu018 has its cells, of 180 nm."""


@dataclass(frozen=True)
class Target:
    """What is synthesised for: Xilinx's 7 series, with or without DSPs, or a Liberty file."""

    liberty: Path | None = None
    dsp: bool = True

    @property
    def library(self) -> str:
        """The text of the Liberty file, if there is one."""
        return "" if self.liberty is None else self.liberty.read_text(encoding="latin-1")

    @property
    def name(self) -> str:
        """The target as it is written on the command line."""
        return "xc7" if self.liberty is None else f"liberty:{self.liberty}"


def parse_target(text: str) -> Target:
    """Return the target that `text` names: xc7, liberty (Debian's osu018) or liberty:FILE."""
    if text == "xc7":
        return Target()
    if text == "liberty":
        if not OSU018.is_file():
            raise OptionError(
                "no Liberty file was given and Debian's is not installed; give --target liberty:FILE, "
                "or install the package qflow-tech-osu018."
            )
        return Target(OSU018)
    if text.startswith("liberty:"):
        path = Path(text.removeprefix("liberty:"))
        if not path.is_file():
            raise OptionError(f"there is no Liberty file '{path}'.")
        target = Target(path)
        try:
            read_cells(target.library)
        except OptionError as error:
            raise OptionError(f"'{path}': {error}") from None
        return target
    raise OptionError(f"unknown target '{text}'. Choose from: xc7, liberty, liberty:FILE.")
