// Drives a chip with a DMA that Verilator has compiled, with an external memory: called from Python.
#include <cstdint>
#include <deque>
#include "Vdma_chip.h"
#include "verilated.h"

struct Bench {
    VerilatedContext context;
    Vdma_chip chip{&context, "dma_chip"};
    void rise() {
        chip.clk = 1;
        chip.eval();
    }
    void fall() {
        chip.clk = 0;
        chip.eval();
    }
    void tick() {
        fall();
        rise();
    }
};

struct Answer {
    uint64_t due, beat;
};

// How quick a memory is: a beat each `interval` cycles, read words after `latency` cycles; with `jitter`, up to so many more of both.
struct Memory {
    int64_t* words;
    uint64_t size;
    int beat_words, value_bits, interval, latency, jitter;
};

extern "C" {
Bench* dma_open() {
    auto* bench = new Bench;
    bench->chip.rst = 1;
    bench->tick();
    bench->chip.rst = 0;
    return bench;
}

void dma_close(Bench* bench) { delete bench; }

void dma_descriptor(Bench* bench, int index, uint32_t word) {
    auto& chip = bench->chip;
    chip.descriptor_index = index;
    chip.descriptor_in = word;
    chip.descriptor_write = 1;
    bench->tick();
    chip.descriptor_write = 0;
}

// Runs the descriptor. Returns 0; 1 if the DMA is busy after `limit` cycles; 2 if it left the memory.
// Counters: cycles, values read and written, beats read and written.
int dma_run(Bench* bench, const Memory* memory, uint64_t limit, uint64_t* counters) {
    auto& chip = bench->chip;
    std::deque<Answer> answers;
    uint64_t draw = 88172645463325252ull, free = 0, last = 0, cycle = 0;
    const auto random = [&](int most) -> uint64_t {
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
        return most ? draw % (most + 1) : 0;
    };
    for (int counter = 0; counter < 5; ++counter) counters[counter] = 0;
    const uint64_t mask = memory->value_bits == 64 ? ~0ull : (1ull << memory->value_bits) - 1;
    chip.dma_start = 1;
    bench->tick();
    chip.dma_start = 0;
    for (; cycle < limit; ++cycle) {
        const bool answered = !answers.empty() && answers.front().due <= cycle;
        chip.memory_in_valid = answered;
        chip.memory_in = answered ? answers.front().beat : 0;
        if (answered) answers.pop_front();
        chip.memory_ready = free <= cycle;
        bench->fall();
        if (!chip.dma_busy) break;
        if (chip.memory_valid && chip.memory_ready) {
            const uint64_t address = chip.memory_address, count = chip.memory_words;
            if (address + count > memory->size || count == 0) return 2;
            uint64_t beat = 0;
            for (uint64_t place = 0; place < count; ++place) {
                const uint64_t shift = place * memory->value_bits;
                if (chip.memory_write) memory->words[address + place] = chip.memory_out >> shift & mask;
                else beat |= static_cast<uint64_t>(memory->words[address + place]) << shift;
            }
            counters[chip.memory_write ? 2 : 1] += count;
            counters[chip.memory_write ? 4 : 3] += 1;
            free = cycle + memory->interval + random(memory->jitter);
            if (!chip.memory_write) {  // answers come in the order of requests, one a cycle
                const uint64_t due = cycle + memory->latency + random(memory->jitter);
                last = due > last ? due : last + 1;
                answers.push_back({last, beat});
            }
        }
        bench->rise();
    }
    counters[0] = cycle;
    return cycle == limit;
}
}
