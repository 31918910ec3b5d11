// The one function of the library of emulated kernels, which scripts/emulate_kernels.sh compiles.

#include "emulator.hpp"

// Runs kernel `name`, compiled for numbers of `bits`. Argument i takes words[i] words of 64 bits. Returns null, or why
// the launch is refused.
extern "C" const char* tealight_emulate(const char* name, unsigned bits, const unsigned* grid, unsigned block,
                                        unsigned shared_bytes, unsigned n_arguments, const unsigned* words,
                                        void** arguments) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    using namespace emulator;
    auto found = kernels().find(std::string(name) + "_" + std::to_string(bits));
    if (found == kernels().end()) return "there is no such kernel";
    const std::vector<size_t>& sizes = found->second.sizes;
    if (n_arguments != sizes.size()) return "the kernel has another number of parameters";
    for (unsigned i = 0; i < n_arguments; i++)
        if (words[i] != (sizes[i] + 7) / 8) return "an argument has another size than the kernel's parameter";
    // Blocks of Candle's kernels (bits = 0) may be smaller than a warp.
    if (block == 0 || block > 1024 || (bits != 0 && block % 32 != 0)) return "a block must have 32 to 1024 threads, in whole warps";
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return "CUDA refuses this grid";
    if (shared_bytes > 227 * 1024) return "a block has at most 227 KiB of shared memory";
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
