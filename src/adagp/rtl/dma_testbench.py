"""A test bench in Verilog for a chip with a DMA: an external memory, a product in tiles, and a check of every value."""

from dataclasses import replace

from adagp.errors import OptionError
from adagp.hw.tiling import Tiling
from adagp.rtl.block import port_bits
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.dma import DESCRIPTOR, DmaChip
from adagp.rtl.mapping import check_fits, find_mapping
from adagp.rtl.products import draw_matrices, expected
from adagp.rtl.tiled_products import plan_product

SIZES = (7, 9, 8)
TILING = Tiling((2, 4, 5), ("depth", "rows", "columns"), 0, 0)
"""Small tiles with remainders, whose sums leave the chip and come back: the loop over the summed index is the outermost."""
LATENCY = 5

TEXT = """\
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
        plan = replace(plan_product(blueprint, "ws", "forward", SIZES), tiling=TILING)
    except OptionError:
        return None
    matrices = draw_matrices(number, SIZES, seed)
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
    return TEXT.format(
        declared="\n".join(declared),
        connected="".join(f", .{name}({name})" for name in ports),
        latency=LATENCY,
        delay_top=LATENCY - 1,
        value_top=bits - 1,
        value_bits=bits,
        beat_top=core.dma_words * bits - 1,
        last_word=len(words) - 1,
        filled="\n".join(f"    {line}" for line in filled),
        registers="\n".join(f"    {line}" for line in registers),
        checked="\n".join(f"    {line}" for line in checked),
        limit=100_000,
        count=result.size,
    )
