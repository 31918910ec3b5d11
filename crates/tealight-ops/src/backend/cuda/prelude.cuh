// Included first by every kernel file: number types, sums over warps and blocks, random numbers.
//
// NUMBER_BITS selects the element type `Number`: 32 (float), 64 (double) or 16 (bfloat16). Kernels load and store
// `Number` and compute in `Wide`: double for 64 bits, float otherwise. No header of CUDA is included, so NVRTC needs
// no include path. To compile for a CPU, the emulator's header (scripts/cuda_emulator/emulator.hpp) is included before
// this file; it defines EMULATED and its own versions of the macros below.
//
// In the comments of kernels, "one thread per element" and "one thread per pack" are one-dimensional grids of blocks of
// 256 threads (`Launch::over`, `Launch::over_packs`), "one warp per row" is such a grid with 32 threads for each row
// (`Launch::warps`), and "one block per row" a grid of as many blocks as rows (`Launch::rows`).

#ifndef EMULATED
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if NUMBER_BITS == 64
typedef double Number;
typedef double Wide;
DEVICE Wide wide(Number x) { return x; }
DEVICE Number narrow(Wide x) { return x; }
#elif NUMBER_BITS == 32
typedef float Number;
typedef float Wide;
DEVICE Wide wide(Number x) { return x; }
DEVICE Number narrow(Wide x) { return x; }
#else
struct Number { unsigned short bits; };
typedef float Wide;
DEVICE Wide wide(Number x) { return __uint_as_float(u32(x.bits) << 16); }
// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
DEVICE Number narrow(Wide x) {
    u32 bits = __float_as_uint(x);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? 0x7fffffffu : bits + 0x7fffu + ((bits >> 16) & 1u);
    return Number{(unsigned short)(bits >> 16)};
}
#endif

// Consecutive elements that one instruction loads or stores: 16 bytes.
#define PACK (128 / NUMBER_BITS)
struct alignas(16) Pack { Number at[PACK]; };

// Whether elements `first` to `first + PACK − 1` are among the first n at x, and lie in memory as one pack.
DEVICE bool is_whole(const Number* x, i64 first, i64 n) {
    return first + PACK <= n && reinterpret_cast<u64>(x + first) % 16 == 0;
}

// The elements of x from `first` on. Those beyond the first n are 0.
DEVICE Pack load_pack(const Number* x, i64 first, i64 n) {
    if (is_whole(x, first, n)) return *reinterpret_cast<const Pack*>(x + first);
    Pack pack;
    UNROLL for (int j = 0; j < PACK; j++) pack.at[j] = first + j < n ? x[first + j] : Number{0};
    return pack;
}

// Stores the elements of x from `first` on, without those beyond the first n.
DEVICE void store_pack(Number* x, i64 first, i64 n, const Pack& pack) {
    if (is_whole(x, first, n)) {
        *reinterpret_cast<Pack*>(x + first) = pack;
        return;
    }
    UNROLL for (int j = 0; j < PACK; j++)
        if (first + j < n) x[first + j] = pack.at[j];
}

#if NUMBER_BITS == 16
// exp(x) and 1 / x to about 20 bits, which is enough for numbers that are rounded to bf16.
#ifdef EMULATED
DEVICE float rough_exp(float x) { return exp(x); }
DEVICE float rough_inverse(float x) { return 1 / x; }
#else
DEVICE float rough_exp(float x) { return __expf(x); }
DEVICE float rough_inverse(float x) { return __fdividef(1.f, x); }
#endif
#endif

DEVICE Wide infinity() { return Wide(__uint_as_float(0x7f800000u)); }
DEVICE Wide not_a_number() { return Wide(__uint_as_float(0x7fc00000u)); }

// The index of this thread in a one-dimensional grid: the element that it computes.
DEVICE i64 element() { return i64(blockIdx.x) * blockDim.x + threadIdx.x; }

// The sum of x over the 32 threads of a warp, returned to each of them.
DEVICE Wide warp_sum(Wide x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

DEVICE Wide warp_max(Wide x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// The sum of x over the threads of a block, returned to each of them. The block consists of whole warps.
DEVICE Wide block_sum(Wide x) {
    SHARED Wide of_warps[32];
    x = warp_sum(x);
    __syncthreads(); // a previous call may still be reading of_warps
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : Wide(0));
}

DEVICE Wide block_max(Wide x) {
    SHARED Wide of_warps[32];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : -infinity());
}

struct Words { u32 at[4]; };

// The key of a random stream: two words or, if `at` is not null, a pointer to them. A CUDA graph uses the pointer,
// because each replay has another key.
struct Key {
    u32 word0, word1;
    const u32* at;
};

// Block `index` of the stream with this key: Philox4x32-10 (Salmon et al. 2011), as in rng.rs.
DEVICE Words random_words(u64 index, const Key& key) {
    u32 key0 = key.at ? key.at[0] : key.word0, key1 = key.at ? key.at[1] : key.word1;
    u32 c0 = u32(index), c1 = u32(index >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        u64 a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        c0 = u32(b >> 32) ^ c1 ^ key0;
        c1 = u32(b);
        c2 = u32(a >> 32) ^ c3 ^ key1;
        c3 = u32(a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// The factor of dropout for element `index`: 0 with probability threshold / 2³², else `scale`.
DEVICE Wide dropout_factor(u64 index, const Key& key, u32 threshold, Wide scale) {
    Words words = random_words(index / 4, key);
    u32 word = index % 4 == 0 ? words.at[0] : index % 4 == 1 ? words.at[1] : index % 4 == 2 ? words.at[2] : words.at[3];
    return word >= threshold ? scale : Wide(0);
}

// x · factor. A factor of 0 gives 0 even if x is NaN or infinite.
DEVICE Wide kept(Wide x, Wide factor) { return factor == Wide(0) ? Wide(0) : x * factor; }
