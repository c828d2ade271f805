// Sums and maxima over the lanes of a warp; every lane gets the result, and all lanes take part.
#pragma once

#define WARP 32
#define ALL_LANES 0xffffffffu

__device__ __forceinline__ float warp_max(float value) {
    for (int lane = WARP / 2; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, lane));
    return value;
}

__device__ __forceinline__ float warp_sum(float value) {
    for (int lane = WARP / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(ALL_LANES, value, lane);
    return value;
}
