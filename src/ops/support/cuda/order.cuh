// Order of scores: descending, ties by ascending index, NaN last. Its one home in device code, the twin of order.rs.
#pragma once

// Bits that ascend as the value descends; -0 equals +0, every NaN comes last.
__device__ __forceinline__ unsigned descending_bits(float value) {
    if (isnan(value)) return 0xffffffffu;
    unsigned bits = __float_as_uint(value + 0.f);
    unsigned ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

// A key whose ascending order is the order of scores, equal ones by index.
__device__ __forceinline__ unsigned long long descending_key(float value, unsigned index) {
    return (unsigned long long)descending_bits(value) << 32 | index;
}

// Threads of a block that calls rank_among.
#define RANK_THREADS 256

// The number of `n` keys that are below this thread's key. All threads of the block call it.
__device__ __forceinline__ unsigned rank_among(const unsigned long long* keys, unsigned n, unsigned long long key) {
    __shared__ unsigned long long tile[RANK_THREADS];
    unsigned rank = 0;
    for (unsigned start = 0; start < n; start += RANK_THREADS) {
        unsigned other = start + threadIdx.x;
        tile[threadIdx.x] = other < n ? keys[other] : ~0ull;
        __syncthreads();
        for (unsigned j = 0; j < RANK_THREADS; j++) rank += tile[j] < key;
        __syncthreads();
    }
    return rank;
}
