// The k largest values of every row, in order, ties by index. A row is one image's part of one segment.
//
//     top_k_select, one block per row:
//         key = (order-reversing bits of the value) << 32 | index, all different
//         radix select, see order.cuh; write every key that is not above the prefix, in any order: exactly k
//     top_k_rank, one thread per chosen key:
//         its place is the number of chosen keys below it; write value, index and segment there
//
// A full pyramid level has 200,000 values, so a sort in shared memory is no way. Keys are made anew in every pass, as
// reading 4 bytes is cheaper than keeping 8. Ties rarely need the passes over the index: the loop stops as soon as a
// byte's keys fit exactly.
#include "order.cuh"
#include "tables.cuh"

struct Rows {
    unsigned first_slot[8];   // of each segment, in an image's slots
    unsigned first_index[8];  // of each segment, over all segments joined
    unsigned slots;           // of an image
};

__device__ __forceinline__ unsigned taken(const Table& segments, unsigned segment, unsigned k) {
    return min(segments.lengths[segment], k);
}

// grid: (segments, images)
extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
top_k_select(const Table segments, const Rows rows, unsigned k, unsigned long long* chosen) {
    __shared__ unsigned count;
    unsigned segment = blockIdx.x;
    unsigned length = segments.lengths[segment];
    const float* values =
        static_cast<const float*>(segments.pointers[segment]) + (size_t)blockIdx.y * length;
    chosen += (size_t)blockIdx.y * rows.slots + rows.first_slot[segment];
    auto key = [&](unsigned i) { return descending_key(values[i], i); };
    Prefix best = smallest(length, length, taken(segments, segment, k), [](unsigned) { return true; }, key);
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
        if (best.contains(key(i))) chosen[atomicAdd(&count, 1u)] = key(i);
    }
}

// grid: (blocks over k, segments, images)
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
top_k_rank(const Table segments, const Rows rows, unsigned n_segments, unsigned k,
           const unsigned long long* chosen, float* best, unsigned* index, unsigned* segment_of) {
    unsigned segment = blockIdx.y % n_segments;
    unsigned image = blockIdx.y / n_segments;
    unsigned n = taken(segments, segment, k);
    size_t first = (size_t)image * rows.slots + rows.first_slot[segment];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long key = i < n ? chosen[first + i] : 0;
    unsigned rank = rank_among(chosen + first, n, key);
    if (i >= n) return;
    unsigned local = (unsigned)key;
    const float* values = static_cast<const float*>(segments.pointers[segment]);
    best[first + rank] = values[(size_t)image * segments.lengths[segment] + local];
    index[first + rank] = local + rows.first_index[segment];
    segment_of[first + rank] = segment;
}
