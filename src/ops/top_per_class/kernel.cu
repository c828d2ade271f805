// The best anchors of every class and image (a row), of those above the threshold, in order, ties by anchor.
//
//     top_per_class_score, one warp per anchor: softmax over its classes, written row by row, NaN where not above the
//         threshold
//     top_per_class_select, one block per row: radix select, see order.cuh, over what is not NaN
//     top_per_class_rank, one thread per slot: a key's place is the number of keys below it
#include "order.cuh"
#include "tables.cuh"
#include "warp.cuh"

// grid: (blocks over anchors of all levels, images)
extern "C" __global__ void top_per_class_score(const Table logits, unsigned n_levels, unsigned n_anchors,
                                               unsigned n_classes, float threshold, float* scores) {
    unsigned anchor = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    unsigned lane = threadIdx.x % WARP;
    if (anchor >= n_anchors) return;
    unsigned image = blockIdx.y;
    unsigned local = anchor, level = 0;
    while (level + 1 < n_levels && local >= logits.lengths[level]) local -= logits.lengths[level++];
    const float* row = static_cast<const float*>(logits.pointers[level]) +
                       ((size_t)image * logits.lengths[level] + local) * n_classes;
    float largest = -INFINITY;
    for (unsigned c = lane; c < n_classes; c += WARP) largest = fmaxf(largest, row[c]);
    largest = warp_max(largest);
    float sum = 0.f;
    for (unsigned c = lane; c < n_classes; c += WARP) sum += expf(row[c] - largest);
    sum = warp_sum(sum);
    scores += (size_t)image * (n_classes - 1) * n_anchors + anchor;
    for (unsigned c = lane; c < n_classes; c += WARP) {
        if (c == 0) continue;
        float score = expf(row[c] - largest) / sum;
        scores[(size_t)(c - 1) * n_anchors] = score > threshold ? score : NAN;
    }
}

// grid: (classes but the background, images)
extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
top_per_class_select(const float* scores, unsigned n_anchors, unsigned taken, unsigned long long* chosen,
                     unsigned* counts) {
    __shared__ unsigned available, count;
    size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    scores += row * n_anchors;
    chosen += row * taken;
    if (threadIdx.x == 0) available = count = 0;
    __syncthreads();
    unsigned mine = 0;
    for (unsigned i = threadIdx.x; i < n_anchors; i += blockDim.x) mine += !isnan(scores[i]);
    if (mine) atomicAdd(&available, mine);
    __syncthreads();
    auto eligible = [&](unsigned i) { return !isnan(scores[i]); };
    auto key = [&](unsigned i) { return descending_key(scores[i], i); };
    Prefix best = smallest(n_anchors, available, min(available, taken), eligible, key);
    for (unsigned i = threadIdx.x; i < n_anchors; i += blockDim.x) {
        if (eligible(i) && best.contains(key(i))) chosen[atomicAdd(&count, 1u)] = key(i);
    }
    __syncthreads();
    if (threadIdx.x == 0) counts[row] = count;
}

// grid: (blocks over slots of a row, rows)
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
top_per_class_rank(const unsigned long long* chosen, const unsigned* counts, unsigned taken, unsigned foreground,
                   unsigned* index, unsigned* labels, float* scores, unsigned char* valid) {
    unsigned n = counts[blockIdx.y];
    size_t first = (size_t)blockIdx.y * taken;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long key = i < n ? chosen[first + i] : 0;
    unsigned rank = rank_among(chosen + first, n, key);
    if (i >= taken) return;
    bool found = i < n;
    size_t slot = first + (found ? rank : i);
    index[slot] = found ? (unsigned)key : 0;
    labels[slot] = found ? blockIdx.y % foreground + 1 : 0;
    scores[slot] = found ? key_value(key) : 0.f;
    valid[slot] = found;
}
