// Drives a chip that Verilator has compiled: called from Python. One call does many cycles.
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include "Vchip.h"
#include "verilated.h"
#ifdef ADAGP_TRACE
#include <cerrno>
#include "verilated_vcd_c.h"

// Verilator ends the process where it cannot write, or waits for ever. Here the error is kept for the end.
class WaveFile : public VerilatedVcdFile {
public:
    int error = 0;
    bool open(const std::string& name) override {
        errno = 0;
        const bool opened = VerilatedVcdFile::open(name);
        if (!opened) error = errno ? errno : EIO;
        return opened;
    }
    ssize_t write(const char* data, ssize_t size) override {
        if (error) return size;
        const ssize_t written = VerilatedVcdFile::write(data, size);
        if (written >= 0 || errno == EAGAIN || errno == EINTR) return written;
        error = errno;
        return size;
    }
};
#endif

struct Bench {
    VerilatedContext context;
    Vchip chip{&context, "chip"};
    uint64_t now = 0, first = 0, last = 0;
    bool stepped = false;
#ifdef ADAGP_TRACE
    WaveFile file;
    VerilatedVcdC trace{&file};
#endif
    void tick() {
        for (int clock = 0; clock < 2; ++clock) {
            chip.clk = clock;
            chip.eval();
#ifdef ADAGP_TRACE
            if (trace.isOpen()) trace.dump(10 * now + 5 * clock);
#endif
        }
        ++now;
    }
};

extern "C" {
// Waveforms go to `path`: of the whole chip, or of the ports of some blocks (`scopes`, a line each).
Bench* bench_open(const char* path, const char* scopes) {
    auto* bench = new Bench;
#ifdef ADAGP_TRACE
    if (path) {
        bench->context.traceEverOn(true);
        bench->chip.trace(&bench->trace, 99);
        std::istringstream lines(scopes);
        for (std::string scope; std::getline(lines, scope);) bench->trace.dumpvars(1, scope);
        bench->trace.open(path);
    }
#endif
    bench->chip.rst = 1;
    bench->tick();
    bench->chip.rst = 0;
    return bench;
}

uint64_t bench_now(const Bench* bench) { return bench->now; }

// Returns the error number if waveforms could not be written, else 0.
int bench_close(Bench* bench) {
    int error = 0;
#ifdef ADAGP_TRACE
    bench->trace.close();
    error = bench->file.error;
#endif
    delete bench;
    return error;
}

void bench_program(Bench* bench, int core, int address, int slice, uint32_t word) {
    auto& chip = bench->chip;
    chip.host_core = core;
    chip.program_address = address;
    chip.program_slice = slice;
    chip.program_in = word;
    chip.program_write = 1;
    bench->tick();
    chip.program_write = 0;
}

void bench_latency(Bench* bench, int latency) { bench->chip.latency = latency; }

void bench_write(Bench* bench, int core, int memory, int lane, int address, int count, const int64_t* words) {
    auto& chip = bench->chip;
    chip.host_core = core;
    chip.host_memory = memory;
    chip.host_lane = lane;
    chip.host_write = 1;
    for (int place = 0; place < count; ++place) {
        chip.host_address = address + place;
        chip.host_in = words[place];
        bench->tick();
    }
    chip.host_write = 0;
}

void bench_read(Bench* bench, int core, int memory, int lane, int address, int count, int64_t* words) {
    auto& chip = bench->chip;
    chip.host_core = core;
    chip.host_memory = memory;
    chip.host_lane = lane;
    chip.host_read = 1;
    for (int place = 0; place < count; ++place) {
        chip.host_address = address + place;
        bench->tick();
        words[place] = chip.host_out;
    }
    chip.host_read = 0;
}

// Runs until the chip has halted; returns 0, or 1 if it has not after so many cycles.
int bench_run(Bench* bench, uint64_t limit, uint64_t* counters) {
    auto& chip = bench->chip;
    bench->stepped = false;
    chip.start = 1;
    bench->tick();
    chip.start = 0;
    for (uint64_t cycle = 0; cycle < limit; ++cycle) {
        bench->tick();
        if (chip.array_step && !bench->stepped) {
            bench->stepped = true;
            bench->first = bench->now;
        }
        if (chip.array_leaves) bench->last = bench->now;
        if (chip.halted) {
            const uint64_t found[] = {chip.cycles, chip.elapsed, chip.element_cycles, chip.reads, chip.writes,
                                      chip.stalls, chip.predictor_cycles, bench->stepped ? bench->last - bench->first : 0};
            for (const uint64_t count : found) *counters++ = count;
            return 0;
        }
    }
    return 1;
}
}
