// Included before Candle's kernels to compile them for the CPU: number types from CUDA's headers, the rest from the
// emulator.

#pragma once
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#undef __device__
#undef __forceinline__
#undef __shared__
#undef __global__
#ifdef SHOW_KERNELS
#define __global__ a_kernel
#else
#define __global__
#endif
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __CUDA_ARCH__ 900

#include "emulator.hpp"

using std::isnan;
using std::max;
using std::min;
using std::signbit;

static inline int __float_as_int(float x) { return emulator::read<int>(&x); }
static inline float __int_as_float(int x) { return emulator::read<float>(&x); }
static inline long long __double_as_longlong(double x) { return emulator::read<long long>(&x); }
static inline double __longlong_as_double(long long x) { return emulator::read<double>(&x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * float(M_SQRT1_2)); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }

#define OF_HALVES(name, of) \
    static inline __half name(__half x) { return __float2half(of(__half2float(x))); } \
    static inline __nv_bfloat16 name(__nv_bfloat16 x) { return __float2bfloat16(of(__bfloat162float(x))); }
OF_HALVES(hcos, cosf)
OF_HALVES(hexp, expf)
OF_HALVES(hlog, logf)
OF_HALVES(hsin, sinf)
OF_HALVES(hsqrt, sqrtf)

// Fibers switch only at barriers, so a read and a write in a row are atomic.
template <class T> static inline T atomicCAS(T* place, T expected, T x) {
    T before = *place;
    if (before == expected) *place = x;
    return before;
}
template <class T, class X> static inline T atomicMax(T* place, X x) {
    T before = *place;
    *place = std::max(before, T(x));
    return before;
}
template <class T, class X> static inline T atomicMin(T* place, X x) {
    T before = *place;
    *place = std::min(before, T(x));
    return before;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int distance, int) {
    return __shfl_xor_sync(mask, x, distance);
}
