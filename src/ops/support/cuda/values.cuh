// Values of the compute dtypes: f32, f16 or bf16 in memory, f32 in all arithmetic.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(float value) {
    return value;
}
__device__ __forceinline__ float to_float(__half value) {
    return __half2float(value);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}

__device__ __forceinline__ void from_float(float value, float& to) {
    to = value;
}
__device__ __forceinline__ void from_float(float value, __half& to) {
    to = __float2half_rn(value);
}
__device__ __forceinline__ void from_float(float value, __nv_bfloat16& to) {
    to = __float2bfloat16_rn(value);
}

// What moves this many bytes in one access.
template <unsigned BYTES>
struct Raw;
template <>
struct Raw<2> {
    typedef unsigned short type;
};
template <>
struct Raw<4> {
    typedef unsigned type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<16> {
    typedef uint4 type;
};

// Reads N neighbouring values in one access; the first must lie at a multiple of their size.
template <unsigned N, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
    typedef typename Raw<N * sizeof(T)>::type Access;
    Access raw = *reinterpret_cast<const Access*>(from);
    T values[N];
    memcpy(values, &raw, sizeof raw);
#pragma unroll
    for (unsigned i = 0; i < N; i++) to[i] = to_float(values[i]);
}

// Writes N neighbouring values in one access; the first must lie at a multiple of their size.
template <unsigned N, typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[N]) {
    typedef typename Raw<N * sizeof(T)>::type Access;
    T values[N];
#pragma unroll
    for (unsigned i = 0; i < N; i++) from_float(from[i], values[i]);
    Access raw;
    memcpy(&raw, values, sizeof raw);
    *reinterpret_cast<Access*>(to) = raw;
}

// The kernels NAME_f32, NAME_f16 and NAME_bf16 from a template that takes the dtype and one struct.
#define FOR_EACH_DTYPE(NAME, TEMPLATE, ARGUMENT)                                                    \
    extern "C" __global__ void NAME##_f32(const ARGUMENT argument) { TEMPLATE<float>(argument); }   \
    extern "C" __global__ void NAME##_f16(const ARGUMENT argument) { TEMPLATE<__half>(argument); }  \
    extern "C" __global__ void NAME##_bf16(const ARGUMENT argument) {                               \
        TEMPLATE<__nv_bfloat16>(argument);                                                          \
    }
