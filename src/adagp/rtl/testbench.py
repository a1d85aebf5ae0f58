"""A test bench in Verilog for a chip: it writes a product and its program by the ports, runs it, and checks every sum."""

from collections.abc import Iterator
from typing import Any

from adagp.errors import OptionError
from adagp.rtl.block import port_bits
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip
from adagp.rtl.core import SLICE
from adagp.rtl.formats import Words
from adagp.rtl.instructions import Opcode, Store
from adagp.rtl.mapping import check_fits, find_mapping
from adagp.rtl.products import draw_matrices, expected

LIMIT = 100_000
"""Cycles after which the chip should have halted."""

TEXT = """\
// Multiplies two matrices on the chip and checks every sum: iverilog -g2005 -o bench chip.v testbench.v && vvp bench
module testbench;
  reg clk = 0, rst = 1;
{declared}
  integer wrong = 0, cycles = 0;

  chip chip (.clk(clk), .rst(rst){connected});
  always #5 clk = ~clk;

  // Ports change at falling edges; the chip takes them at rising ones.
  task program_word(input integer core, input integer address, input integer slice, input [31:0] word);
    begin
      host_core = core; program_address = address; program_slice = slice; program_in = word; program_write = 1;
      @(negedge clk) program_write = 0;
    end
  endtask

  task write_word(input integer memory, input integer lane, input integer address, input [63:0] word);
    begin
      host_core = 0; host_memory = memory; host_lane = lane; host_address = address; host_in = word; host_write = 1;
      @(negedge clk) host_write = 0;
    end
  endtask

  task check_word(input integer memory, input integer lane, input integer address, input [63:0] word);
    begin
      host_core = 0; host_memory = memory; host_lane = lane; host_address = address; host_read = 1;
      @(negedge clk) host_read = 0;
      if (host_out !== word[{top}:0]) begin
        wrong = wrong + 1;
        $display("memory %0d lane %0d address %0d: %h instead of %h", memory, lane, address, host_out, word[{top}:0]);
      end
    end
  endtask

  initial begin
    @(negedge clk) rst = 0;
{written}
    start = 1;
    @(negedge clk) start = 0;
    while (halted !== 1 && cycles < {limit}) @(negedge clk) cycles = cycles + 1;
{checked}
    if (halted !== 1 || wrong != 0) $display("FAIL: %0d words are wrong", wrong);
    else $display("PASS: {count} sums are right after %0d cycles", cycles);
    $finish;
  end
endmodule
"""


SIZES = ((5, 4, 6), (2, 2, 2))
"""Rows, depth and columns of the product: the first that fits the banks; the last fits all."""


def product_bench(blueprint: Blueprint, seed: int = 0) -> str:
    """Return a test bench for a forward product of drawn numbers, weight stationary."""
    number, array, encoding = blueprint.core.single, blueprint.core.array, blueprint.core.encoding
    sizes = next(sizes for sizes in SIZES if _fits(blueprint, sizes))
    mapping = find_mapping("ws", "forward", *sizes)
    matrices = draw_matrices(number, sizes, seed)
    del matrices["y"]
    down, across, stream = mapping.sizes
    fields = {"mode": mapping.mode, "down": down, "across": across, "stream": stream}
    programs = [[encoding.pack(Opcode.ARRAY, fields), encoding.pack(Opcode.HALT)]]
    programs += [[core.encoding.pack(Opcode.HALT)] for core in blueprint.cores[1:]]
    written = [
        f"program_word({core}, {address}, {slice_}, 32'h{word >> SLICE * slice_ & 0xFFFFFFFF:08x});"
        for core, program in enumerate(programs)
        for address, word in enumerate(program)
        for slice_ in range(-(-blueprint.cores[core].encoding.bits // SLICE))
    ]
    written += _words("write_word", Store.ROW_VALUES, array.rows, matrices["x"].T)
    written += _words("write_word", Store.COLUMN_VALUES, array.columns, matrices["w"].T)
    sums = expected(number, "forward", matrices)
    checked = list(_words("check_word", Store.COLUMN_SUMS, array.columns, sums.T))
    return _filled(blueprint, written, checked, sums.size)


def _fits(blueprint: Blueprint, sizes: tuple[int, int, int]) -> bool:
    try:
        check_fits(blueprint.core, find_mapping("ws", "forward", *sizes))
    except OptionError:
        return False
    return True


def _words(task: str, memory: Store, lanes: int, lines: Words) -> Iterator[str]:
    """Yield a call for each word: line i is in lane i modulo the lanes, its words one after the other."""
    for line, words in enumerate(lines):
        for place, word in enumerate(words):
            address = line // lanes * len(words) + place
            yield f"{task}({int(memory)}, {line % lanes}, {address}, 64'h{int(word):x});"


def _filled(blueprint: Blueprint, written: list[str], checked: list[str], count: int) -> str:
    ports: dict[str, tuple[str, int]] = port_bits(Chip(blueprint))
    declared = [
        f"  {'reg' if way == 'in' else 'wire'} [{bits - 1}:0] {name}{' = 0' * (way == 'in')};"
        for name, (way, bits) in ports.items()
    ]
    parts: dict[str, Any] = {
        "declared": "\n".join(declared),
        "connected": "".join(f", .{name}({name})" for name in ports),
        "written": "\n".join(f"    {line}" for line in written),
        "checked": "\n".join(f"    {line}" for line in checked),
        "top": blueprint.core.number.word_bits - 1,
        "limit": LIMIT,
        "count": count,
    }
    return TEXT.format(**parts)
