"""Test benches in Verilog: one gives a chip a product by its ports, the other gives it to the DMA; both check every value."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from adagp.errors import OptionError
from adagp.hw.tiling import Tiling
from adagp.rtl.block import port_bits
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip
from adagp.rtl.core import SLICE
from adagp.rtl.dma import DESCRIPTOR, DmaChip
from adagp.rtl.formats import Words
from adagp.rtl.instructions import Opcode, Store
from adagp.rtl.mapping import check_fits, find_mapping
from adagp.rtl.products import draw_matrices, expected
from adagp.rtl.tiled_products import plan_product

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


TILED_SIZES = (7, 9, 8)
TILING = Tiling((2, 4, 5), ("depth", "rows", "columns"), 0, 0)
"""Small tiles with remainders, whose sums leave the chip and come back: the loop over the summed index is the outermost."""
MEMORY_LATENCY = 5

DMA_TEXT = """\
// Multiplies two matrices tile by tile from an external memory, and checks every value:
// iverilog -g2005 -o bench chip.v dma_chip.v dma_testbench.v && vvp bench
module testbench;
  reg clk = 0, rst = 1;
{declared}
  integer wrong = 0, cycles = 0, place, k;

  dma_chip dma_chip (.clk(clk), .rst(rst){connected});
  always #5 clk = ~clk;

  // The memory: a beat a cycle, read words {latency} cycles after their request.
  reg [{value_top}:0] words [0:{last_word}];
  reg [{delay_top}:0] asked = 0;
  reg [{beat_top}:0] beats [0:{delay_top}];
  reg [{beat_top}:0] beat;
  always @(posedge clk) begin
    beat = 0;
    for (place = 0; place < memory_words; place = place + 1) begin
      if (memory_valid && memory_write) words[memory_address + place] <= memory_out[place * {value_bits} +: {value_bits}];
      beat[place * {value_bits} +: {value_bits}] = words[memory_address + place];
    end
    asked <= {{asked[{delay_top} - 1:0], memory_valid && !memory_write}};
    beats[0] <= beat;
    for (k = 1; k <= {delay_top}; k = k + 1) beats[k] <= beats[k - 1];
  end
  always @(negedge clk) begin
    memory_in_valid = asked[{delay_top}];
    memory_in = beats[{delay_top}];
  end

  task write_register(input integer index, input [31:0] value);
    begin
      descriptor_index = index; descriptor_in = value; descriptor_write = 1;
      @(negedge clk) descriptor_write = 0;
    end
  endtask

  task check_word(input integer address, input [63:0] word);
    if (words[address] !== word[{value_top}:0]) begin
      wrong = wrong + 1;
      $display("address %0d: %h instead of %h", address, words[address], word[{value_top}:0]);
    end
  endtask

  initial begin
    memory_ready = 1;
{filled}
    @(negedge clk) rst = 0;
{registers}
    dma_start = 1;
    @(negedge clk) dma_start = 0;
    while (dma_busy !== 0 && cycles < {limit}) @(negedge clk) cycles = cycles + 1;
{checked}
    if (dma_busy !== 0 || wrong != 0) $display("FAIL: %0d values are wrong", wrong);
    else $display("PASS: {count} values are right after %0d cycles", cycles);
    $finish;
  end
endmodule
"""


def dma_bench(blueprint: Blueprint, seed: int = 0) -> str | None:
    """Return a test bench for a forward product of drawn numbers, weight stationary; None if a tile does not fit the banks."""
    core, number = blueprint.core, blueprint.core.single
    try:
        halves = replace(core, value_words=core.value_words // 2, sum_words=core.sum_words // 2, dma_words=0)
        check_fits(halves, find_mapping("ws", "forward", *TILING.tile))
        plan = replace(plan_product(blueprint, "ws", "forward", TILED_SIZES), tiling=TILING)
    except OptionError:
        return None
    matrices = draw_matrices(number, TILED_SIZES, seed)
    del matrices["y"]
    words, result = plan.memory(matrices), number.convert(expected(number, "forward", matrices)).ravel()
    first, bits = plan.places["column"], number.value_bits
    ports = port_bits(DmaChip(blueprint))
    declared = [
        f"  {'reg' if way == 'in' else 'wire'} [{width - 1}:0] {name}{' = 0' * (way == 'in')};"
        for name, (way, width) in ports.items()
    ]
    filled = [
        f"words[{address}] = {bits}'h{int(word):x};"
        for address, word in enumerate(words)
        if not first <= address < first + result.size and address < plan.places["sums"]
    ]
    registers = [f"write_register({DESCRIPTOR.index(name)}, {value});" for name, value in plan.descriptor().items()]
    checked = [f"check_word({first + place}, 64'h{int(word):x});" for place, word in enumerate(result)]
    return DMA_TEXT.format(
        declared="\n".join(declared),
        connected="".join(f", .{name}({name})" for name in ports),
        latency=MEMORY_LATENCY,
        delay_top=MEMORY_LATENCY - 1,
        value_top=bits - 1,
        value_bits=bits,
        beat_top=core.dma_words * bits - 1,
        last_word=len(words) - 1,
        filled="\n".join(f"    {line}" for line in filled),
        registers="\n".join(f"    {line}" for line in registers),
        checked="\n".join(f"    {line}" for line in checked),
        limit=LIMIT,
        count=result.size,
    )
