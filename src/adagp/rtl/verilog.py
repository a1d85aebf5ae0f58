"""A chip as text: RTLIL (Yosys's own language) and Verilog, a module for each kind of block; a folder with its manifest."""

import json
import re
from pathlib import Path
from typing import Any

from adagp.core.files import write_atomically
from adagp.errors import RunError
from adagp.rtl.block import port_bits, to_rtlil
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip
from adagp.rtl.instructions import Look, Mode, Opcode, Start, Store
from adagp.rtl.tools import EQUAL_WIDTHS, cached_folder, digest, yosys


def chip_rtlil(blueprint: Blueprint, *, simulated: bool = False) -> str:
    """Return the chip in Yosys's language."""
    return "\n".join(chip_modules(blueprint, simulated=simulated).values())


def chip_modules(blueprint: Blueprint, *, simulated: bool = False) -> dict[str, str]:
    """Return every kind of block of the chip in Yosys's language; those inside a block come before it."""
    return to_rtlil(Chip(blueprint, simulated=simulated))


HEADER = """\
// Verilog-2005, written by adagp and Yosys. Clean under `verilator --lint-only -Wall` and `iverilog -g2005 -Wall`, but for two
// classes of style that Yosys cannot avoid: all modules are in one file, and operators compute bits that nothing reads, such as
// the fraction that rounding cuts off.
/* verilator lint_off DECLFILENAME */
/* verilator lint_off UNUSEDSIGNAL */
"""
DECLARED = r"^(  reg (?:signed )?(?:\[\S+\] )?)(\S+|\\\S+ ) = (\S+);$"
"""A register with what it begins with."""


def to_verilog(text: str) -> str:
    """Return Verilog for a text in Yosys's language, from the cache if it was made before."""
    # Banks are written before they are read: what they begin with, a line a word, can be left out.
    blank = "delete t:$meminit t:$meminit_v2"
    # Processes become assignments: an `always @*` of constants alone would never run, and leave X.
    logic = ["proc -norom", "pmuxtree", blank, "memory_collect", "opt_clean -purge", EQUAL_WIDTHS]
    script = ["read_rtlil chip.il", *logic, "write_verilog -noattr -norename chip.v"]

    def make(work: Path) -> None:
        (work / "chip.il").write_text(text, encoding="utf-8")
        yosys(script, work)
        (work / "chip.il").unlink()
        written = (work / "chip.v").read_text(encoding="utf-8")
        # A declaration that also initialises is, next to an assignment at the clock, suspicious to linters.
        started = re.sub(DECLARED, r"\1\2;\n  initial \2 = \3;", written, flags=re.MULTILINE)
        (work / "chip.v").write_text(HEADER + started, encoding="utf-8")

    return (cached_folder(f"verilog-{digest(HEADER, text, *script)}", make) / "chip.v").read_text(encoding="utf-8")


README = """# A chip of design {design}

`chip.v` is the whole chip in Verilog; its top module is `chip`. Clock `clk` (rising edge), synchronous reset `rst` (high).

1. Hold `rst` for a cycle.
2. Write the program of each core: instruction by instruction, 32 bits at a time (`program_write`, `program_slice`,
   `program_address`, `program_in`; `host_core` chooses the core).
3. Write values into the banks: `host_write` with `host_memory`, `host_lane`, `host_address` and `host_in`, one per cycle.
4. Raise `start` for a cycle and wait for `halted`.
5. Read words: `host_read` with the same address lines; the word is in `host_out` in the next cycle.

Line i of a matrix is in lane i modulo the lanes, its words one after the other. `manifest.json` has all sizes, the number
format, the fields of instructions (lowest bits first) and the codes of their operations, modes and memories.
"""


def manifest(blueprint: Blueprint, text: str) -> dict[str, Any]:
    """Return the facts about a chip as plain data."""
    cores = []
    for sizes in blueprint.cores:
        encoding = sizes.encoding
        cores.append(
            {
                "array": str(sizes.array),
                "value_words": sizes.value_words,
                "sum_words": sizes.sum_words,
                "predictor_words": sizes.predictor_words,
                "program_words": sizes.program_words,
                "pipeline_stages": sizes.stages,
                "instruction_bits": encoding.bits,
                "array_fields": {"operation": 2, **encoding.array},
                "element_fields": {"operation": 2, **encoding.elements},
            }
        )
    number = blueprint.core.number
    return {
        "design": blueprint.design,
        "format": number.name,
        "value_bits": number.value_bits,
        "sum_bits": number.sum_bits,
        "off_chip_words": blueprint.core.off_chip_words,
        "memory_bits": blueprint.memory_bits,
        "cores": cores,
        "ports": {
            name: {"direction": direction, "bits": bits}
            for name, (direction, bits) in port_bits(Chip(blueprint)).items()
        },
        "codes": {
            kind.__name__.lower(): {member.name.lower(): int(member) for member in kind}
            for kind in (Opcode, Mode, Store, Start, Look)
        },
        "digest": digest(text),
    }


def generate(blueprint: Blueprint, folder: Path) -> dict[str, Any]:
    """Write the chip into `folder`, which must not be there or be empty; return the manifest."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"'{folder}' exists and is not empty; nothing was written. Give another --out.")
    text = to_verilog(chip_rtlil(blueprint))
    about = manifest(blueprint, text)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "chip.v", text.encode())
    write_atomically(folder / "README.md", README.format(design=blueprint.design).encode())
    write_atomically(folder / "manifest.json", (json.dumps(about, indent=2) + "\n").encode())
    return about
