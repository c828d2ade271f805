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

// The value that a key was made of; the sign of a zero and the bits of a NaN are lost.
__device__ __forceinline__ float key_value(unsigned long long key) {
    unsigned ascending = ~(unsigned)(key >> 32);
    return __uint_as_float(ascending >> 31 ? ascending & 0x7fffffffu : ~ascending);
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

// Threads of a block that calls smallest.
#define SELECT_THREADS 1024

// The leading bits of keys.
struct Prefix {
    unsigned long long bits;
    int shift;  // 64: all keys, 65: none

    // Whether a key is not above the prefix.
    __device__ __forceinline__ bool contains(unsigned long long key) const {
        return shift == 64 || (shift < 64 && key >> shift <= bits >> shift);
    }
};

// The prefix that contains the `wanted` smallest of the `available` keys, all different, of those indices below `length`
// that are `eligible`. A radix selection: from the highest byte down, count the keys of the chosen prefix by their next
// byte, and go on with the byte in which the last wanted key lies; stop where the keys of that byte are all wanted. All
// threads of the block call it.
template <typename Eligible, typename Key>
__device__ __forceinline__ Prefix smallest(unsigned length, unsigned available, unsigned wanted, Eligible eligible,
                                           Key key) {
    __shared__ unsigned histogram[256];
    __shared__ unsigned long long prefix;
    __shared__ unsigned left, done;
    if (wanted == 0) return {0, 65};
    if (wanted >= available) return {0, 64};
    __syncthreads();
    if (threadIdx.x == 0) {
        prefix = 0;
        left = wanted;
    }
    int shift = 56;
    for (;; shift -= 8) {
        for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
        __syncthreads();
        for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
            if (!eligible(i)) continue;
            unsigned long long bits = key(i);
            bool in_prefix = shift == 56 || bits >> (shift + 8) == prefix >> (shift + 8);
            if (in_prefix) atomicAdd(&histogram[bits >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned below = 0, byte = 0;
            while (below + histogram[byte] < left) below += histogram[byte++];
            prefix |= (unsigned long long)byte << shift;
            left -= below;
            done = histogram[byte] == left;
        }
        __syncthreads();
        if (done) break;
    }
    Prefix found = {prefix, shift};
    __syncthreads();
    return found;
}
