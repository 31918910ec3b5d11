// The kernels for a CPU, as a library with one function. Each file is compiled once for each number type:
//
//     scripts/emulate_kernels.sh OUTPUT.so

#include "emulator.hpp"

// Runs kernel `name` for numbers of `bits`. Returns nothing if all is well, or what is wrong.
extern "C" const char* tealight_emulate(const char* name, unsigned bits, const unsigned* grid, unsigned block,
                                        unsigned shared_bytes, void** arguments) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    using namespace emulator;
    auto found = kernels().find(std::string(name) + "_" + std::to_string(bits));
    if (found == kernels().end()) return "there is no such kernel";
    // Candle's blocks, of number type 0, may be smaller than a warp.
    if (block == 0 || block > 1024 || (bits != 0 && block % 32 != 0)) return "a block is of 32 to 1024 threads, in whole warps";
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return "such a grid there is not";
    if (shared_bytes > 227 * 1024) return "there are 227 KiB of shared memory at most";
    machine.name = name;
    machine.grid = {grid[0], grid[1], grid[2]};
    machine.block = {block, 1, 1};
    machine.n_threads = block;
    machine.is_straight = found->second.is_straight;
    machine.dynamic.resize(shared_bytes);
    machine.kernel = [&] { found->second.run(arguments); };
    while (machine.fibers.size() < block) machine.fibers.push_back(std::make_unique<Fiber>());
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                machine.at = {x, y, z};
                machine.is_straight ? run_straight() : run_block();
            }
    return nullptr;
}
