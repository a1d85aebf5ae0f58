// Simulates a netlist of gates, each a truth table, cycle by cycle; called from Python.
#include <cstdint>
#include <vector>

extern "C" {
// Gates are in an order in which each comes behind those that it needs. Gate g has the inputs from first[g] up to first[g + 1] of
// `sources`, the truth table tables[g] and the net outputs[g]. Register r has the net `next` before a rising edge and `now` after it.
// `given` are nets that come from outside: a byte a net and cycle. Where a cycle is `counted`, changes of nets since the cycle
// before are added to `toggles`, and the nets `seen` compared with what they should be; returns how many cycles were different.
int64_t simulate(int64_t nets, int64_t gates, const int32_t* first, const int32_t* sources, const uint64_t* tables,
                 const int32_t* outputs, int64_t registers, const int32_t* next, const int32_t* now, int64_t inputs,
                 const int32_t* given, const uint8_t* given_bits, int64_t compared, const int32_t* seen,
                 const uint8_t* seen_bits, int64_t cycles, const uint8_t* counted, uint8_t* nets_now, int64_t* toggles) {
    std::vector<uint8_t> before(nets_now, nets_now + nets), latched(registers);
    int64_t wrong = 0;
    for (int64_t cycle = 0; cycle < cycles; ++cycle) {
        for (int64_t place = 0; place < inputs; ++place) nets_now[given[place]] = given_bits[cycle * inputs + place];
        for (int64_t gate = 0; gate < gates; ++gate) {
            uint64_t row = 0;
            for (int32_t place = first[gate + 1]; place-- > first[gate];) row = 2 * row + nets_now[sources[place]];
            nets_now[outputs[gate]] = tables[gate] >> row & 1;
        }
        if (counted[cycle]) {
            for (int64_t net = 0; net < nets; ++net) toggles[net] += nets_now[net] != before[net];
            bool same = true;
            for (int64_t place = 0; place < compared; ++place)
                same &= nets_now[seen[place]] == seen_bits[cycle * compared + place];
            wrong += !same;
        }
        before.assign(nets_now, nets_now + nets);
        for (int64_t place = 0; place < registers; ++place) latched[place] = nets_now[next[place]];
        for (int64_t place = 0; place < registers; ++place) nets_now[now[place]] = latched[place];
    }
    return wrong;
}
}
