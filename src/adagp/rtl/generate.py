"""A folder with a chip: its Verilog, a manifest that a driver can be written from, and a test bench."""

import json
from pathlib import Path
from typing import Any

from adagp.core.files import write_atomically
from adagp.errors import OptionError, RunError
from adagp.rtl.axi import AxiChip, describe_axi
from adagp.rtl.block import Block, port_bits, to_rtlil
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip, chip_modules
from adagp.rtl.dma import DmaChip, describe_dma
from adagp.rtl.instructions import Look, Mode, Opcode, Start, Store
from adagp.rtl.testbench import dma_bench, product_bench
from adagp.rtl.tools import digest
from adagp.rtl.verilog import to_verilog

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
BENCH = """
`testbench.v` does all of this for a product of two matrices, and checks every sum:

    iverilog -g2005 -o bench chip.v testbench.v && vvp bench
"""
AXI = """
`axi_chip.v` has the module `axi_chip`: this chip behind AXI-Lite (`s_axil_*`: control, status, programs), AXI-Stream
(`s_axis_*`, `m_axis_*`: matrices) and an interrupt (`irq`), with clock `aclk` and reset `aresetn`. Its registers are in
`manifest.json` under `axi`.
"""
DMA = """
`dma_chip.v` has the module `dma_chip`: this chip with a DMA that runs a product larger than the banks tile by tile, from and
to an external memory (`memory_*`), {values} values a cycle. The registers of its descriptor (`descriptor_*`) are in
`manifest.json` under `dma`. `dma_testbench.v` (where the banks are large enough for it) has such a memory, runs a product and
checks every value:

    iverilog -g2005 -o bench chip.v dma_chip.v dma_testbench.v && vvp bench
"""


def manifest(blueprint: Blueprint, text: str, *, axi: bool = False) -> dict[str, Any]:
    """Return the facts about a chip as plain data; with `axi` those about its wrapper, too."""
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
        "ports": _ports(Chip(blueprint)),
        "codes": {
            kind.__name__.lower(): {member.name.lower(): int(member) for member in kind}
            for kind in (Opcode, Mode, Store, Start, Look)
        },
        "digest": digest(text),
        **({"axi": {**describe_axi(blueprint), "ports": _ports(AxiChip(blueprint))}} if axi else {}),
        **(
            {"dma": {**describe_dma(blueprint.core), "ports": _ports(DmaChip(blueprint))}}
            if blueprint.core.dma_words
            else {}
        ),
    }


def _ports(block: Block) -> dict[str, Any]:
    return {name: {"direction": direction, "bits": bits} for name, (direction, bits) in port_bits(block).items()}


def generate(blueprint: Blueprint, folder: Path, *, axi: bool = False) -> dict[str, Any]:
    """Write the chip, with `axi` also its wrapper, into `folder`, which must not be there or be empty; return the manifest.

    A chip that is made for a DMA is also written with one.
    """
    dma_words = blueprint.core.dma_words
    if axi and dma_words:
        raise OptionError("the AXI wrapper has no ports for a DMA; write one of them.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"'{folder}' exists and is not empty; nothing was written. Give another --out.")
    modules = chip_modules(blueprint)
    text = to_verilog("\n".join(modules.values()))
    about = manifest(blueprint, text, axi=axi)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "chip.v", text.encode())
    bench = None if blueprint.core.groups is not None else product_bench(blueprint)
    sections = ((bench is not None, BENCH), (axi, AXI), (bool(dma_words), DMA.format(values=dma_words)))
    how = "".join(text for present, text in sections if present)
    write_atomically(folder / "README.md", (README.format(design=blueprint.design) + how).encode())
    tiled_bench = dma_bench(blueprint) if dma_words else None
    for name, text_of_bench in (("testbench.v", bench), ("dma_testbench.v", tiled_bench)):
        if text_of_bench is not None:
            write_atomically(folder / name, text_of_bench.encode())
    if axi or dma_words:
        around: Block = AxiChip(blueprint) if axi else DmaChip(blueprint)
        texts = [own for kind, own in to_rtlil(around).items() if kind not in modules]
        write_atomically(folder / f"{around.kind}.v", to_verilog("\n".join(texts)).encode())
    write_atomically(folder / "manifest.json", (json.dumps(about, indent=2) + "\n").encode())
    return about
