// The part of CUDA that the kernels use, for a CPU: blocks run one after the other, the threads of a block as fibers.
//
// The emulator is stricter than a GPU. It aborts with a message if not every thread of a block reaches a barrier, or
// not every lane of a warp takes part in a shuffle. The order of the threads changes from round to round, so that
// a result that depends on it differs between launches.

#pragma once
#define EMULATED
// Whether no kernel of a file has a barrier. Then threads run one after the other, without fibers.
#ifndef IS_STRAIGHT
#define IS_STRAIGHT false
#endif

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <ucontext.h>
#include <vector>

namespace emulator {

struct Dim { unsigned x = 1, y = 1, z = 1; };

struct Barrier {
    unsigned n_arrived = 0, generation = 0;
};

// A thread of a block. The threads of the next block reuse its stack.
struct Fiber {
    static constexpr size_t STACK = 256 * 1024;
    std::unique_ptr<char[]> stack{new char[STACK]};
    ucontext_t first;
    jmp_buf at;
    bool has_begun = false, is_done = true;
    unsigned n_shuffles = 0;
    Dim thread;
};

struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;
    Fiber* current = nullptr;
    jmp_buf scheduler;
    std::function<void()> kernel;
    const char* name = "";
    Dim grid, block, at;
    unsigned n_threads = 0, order = 1;
    bool has_moved = false, is_straight = false;
    Barrier of_block, of_warps[32];
    uint64_t lanes[2][32][32]; // alternating: a lane may be one shuffle ahead of another, but not two
    uint32_t operands[32][32][6];
    std::vector<unsigned char> dynamic;
};

inline Machine machine;

inline void fail(const char* what) {
    fprintf(stderr, "emulator: %s: %s\n", machine.name, what);
    abort();
}

// Returns to the scheduler until the fiber is resumed.
inline void yield() {
    if (!_setjmp(machine.current->at)) _longjmp(machine.scheduler, 1);
}

inline void wait_at(Barrier& barrier, unsigned n) {
    if (machine.is_straight) fail("a barrier in a file that was compiled with IS_STRAIGHT");
    unsigned generation = barrier.generation;
    if (++barrier.n_arrived == n) {
        barrier.n_arrived = 0;
        barrier.generation++;
        machine.has_moved = true;
        return;
    }
    while (barrier.generation == generation) yield();
}

inline void wait_for_warp() {
    unsigned warp = machine.current->thread.x / 32, left = machine.n_threads - 32 * warp;
    wait_at(machine.of_warps[warp], left < 32 ? left : 32);
}

// The body of a fiber: runs the kernel for one thread after the other.
inline void fiber_main() {
    for (;;) {
        machine.kernel();
        machine.current->is_done = true;
        machine.has_moved = true;
        yield();
    }
}

inline void resume(Fiber& fiber) {
    machine.current = &fiber;
    if (_setjmp(machine.scheduler)) return;
    if (fiber.has_begun) _longjmp(fiber.at, 1);
    fiber.has_begun = true;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack.get();
    fiber.first.uc_stack.ss_size = Fiber::STACK;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, fiber_main, 0);
    setcontext(&fiber.first);
}

inline void run_straight() {
    machine.current = machine.fibers[0].get();
    for (unsigned i = machine.n_threads; i-- > 0;) {
        machine.current->thread = {i, 0, 0};
        machine.kernel();
    }
}

inline void run_block() {
    machine.of_block = {};
    for (auto& barrier : machine.of_warps) barrier = {};
    std::fill(machine.dynamic.begin(), machine.dynamic.end(), 0xff); // NaN: uninitialised shared memory shows
    unsigned n = machine.n_threads, left = n;
    for (unsigned i = 0; i < n; i++) {
        machine.fibers[i]->is_done = false;
        machine.fibers[i]->n_shuffles = 0;
        machine.fibers[i]->thread = {i, 0, 0};
    }
    while (left > 0) {
        machine.has_moved = false;
        machine.order = machine.order * 1664525u + 1013904223u;
        unsigned shift = (machine.order >> 16) % n;
        bool backwards = machine.order >> 31;
        for (unsigned i = 0; i < n; i++) {
            unsigned place = (i + shift) % n;
            Fiber& fiber = *machine.fibers[backwards ? n - 1 - place : place];
            if (fiber.is_done) continue;
            resume(fiber);
            left -= fiber.is_done;
        }
        if (!machine.has_moved) fail("some threads wait at a barrier that others never reach");
    }
}

struct Kernel {
    std::function<void(void**)> run;
    std::vector<size_t> sizes; // bytes of each parameter
    bool is_straight;          // has no barriers
};

inline std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

template <class T> T read(void* argument) {
    T value;
    memcpy(&value, argument, sizeof value);
    return value;
}

inline float bf16(unsigned bits) {
    unsigned wide = bits << 16;
    return read<float>(&wide);
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(read<A>(arguments[I])...);
}

// Registers a kernel as NAME_BITS when the library is loaded.
struct Registered {
    template <class... A>
    Registered(const char* name, unsigned bits, void (*kernel)(A...), bool is_straight = IS_STRAIGHT) {
        auto run = [kernel](void** arguments) { call(kernel, arguments, std::index_sequence_for<A...>{}); };
        kernels()[std::string(name) + "_" + std::to_string(bits)] = {run, {sizeof(A)...}, is_straight};
    }
};

} // namespace emulator

#define KERNEL(name, ...) \
    static void name(__VA_ARGS__); \
    static emulator::Registered registered_##name(#name, NUMBER_BITS, name); \
    static void name(__VA_ARGS__)
#define DEVICE static inline
#define SHARED static
#define UNROLL
#define ROLLED
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::machine.dynamic.data())

#define threadIdx (emulator::machine.current->thread)
#define blockIdx (emulator::machine.at)
#define blockDim (emulator::machine.block)
#define gridDim (emulator::machine.grid)

static inline void __syncthreads() { emulator::wait_at(emulator::machine.of_block, emulator::machine.n_threads); }

template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto& lanes = emulator::machine.lanes[emulator::machine.current->n_shuffles++ % 2][warp];
    memcpy(&lanes[lane], &x, sizeof x);
    emulator::wait_for_warp();
    T other;
    memcpy(&other, &lanes[lane ^ mask], sizeof other);
    return other;
}

// mma.sync.m16n8k16 of bf16, c += a b: lane l holds rows l / 4 and l / 4 + 8 of a and c, and column l / 4 of b.
static inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto& operands = emulator::machine.operands[warp];
    unsigned own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(operands[lane], own, sizeof own);
    emulator::wait_for_warp();
    auto half = [](unsigned word, unsigned k) { return emulator::bf16(k % 2 ? word >> 16 : word & 0xffff); };
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            float left = half(operands[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k);
            c[i] += left * half(operands[column * 4 + k % 8 / 2][4 + k / 8], k);
        }
    }
    emulator::wait_for_warp();
}

// ldmatrix.x4: word j comes from matrix j, whose rows are at the addresses that lanes 8j to 8j + 7 pass.
template <class T> static inline void load_matrices_as(unsigned (&words)[4], const T* row, bool transposed) {
    static_assert(sizeof(T) == 2);
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto& rows = emulator::machine.lanes[emulator::machine.current->n_shuffles++ % 2][warp];
    if (reinterpret_cast<uintptr_t>(row) % 16) emulator::fail("a row of a matrix is not aligned");
    rows[lane] = reinterpret_cast<uintptr_t>(row);
    emulator::wait_for_warp();
    for (unsigned j = 0; j < 4; j++) {
        uint16_t two[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned down = lane / 4, across = lane % 4 * 2 + i;
            if (transposed) std::swap(down, across);
            memcpy(&two[i], reinterpret_cast<const T*>(rows[8 * j + down]) + across, 2);
        }
        words[j] = two[0] | unsigned(two[1]) << 16;
    }
    emulator::wait_for_warp();
}

template <class T> static inline void load_matrices(unsigned (&words)[4], const T* row) {
    load_matrices_as(words, row, false);
}

template <class T> static inline void load_matrices_transposed(unsigned (&words)[4], const T* row) {
    load_matrices_as(words, row, true);
}

template <class T> static inline T atomicAdd(T* place, T x) {
    T before = *place;
    *place += x;
    return before;
}

static inline unsigned __float_as_uint(float x) { return emulator::read<unsigned>(&x); }
static inline float __uint_as_float(unsigned x) { return emulator::read<float>(&x); }

using std::erfc;
using std::exp;
using std::fabs;
using std::fmax;
using std::log;
using std::sqrt;
