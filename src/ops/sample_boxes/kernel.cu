// Balanced sampling, image by image.
//
//     sample_boxes_select, one block per image:
//         count positives and negatives; from the counts follow the numbers of both that are wanted
//         key = priority << 32 | index, all different; of either kind, find the key up to which all are wanted
//         write kind << 32 | index of those, in any order
//     sample_boxes_rank, one thread per slot:
//         the place of what was chosen is the number of chosen ones below it: positives first, each by index
#include "matches.cuh"
#include "order.cuh"

struct Sample {
    const unsigned* matches;     // [N, B]
    const unsigned* priorities;  // [N, B]
    unsigned long long* chosen;  // [N, S]
    unsigned* index;             // [N, S]
    unsigned* counts;            // [N]
    unsigned* positive_index;    // [N, P]
    unsigned* positive_counts;   // [N]
    unsigned n_boxes;
    unsigned samples;
    unsigned most_positives;
    unsigned unused;
};

__device__ __forceinline__ bool is_positive(unsigned code) {
    return code >= FIRST_OBJECT;
}

__device__ __forceinline__ bool is_negative(unsigned code) {
    return code == BACKGROUND;
}

// Threads of a block add up what they have counted. All threads of the block call it.
__device__ __forceinline__ unsigned total(unsigned counted) {
    __shared__ unsigned sum;
    __syncthreads();
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (counted) atomicAdd(&sum, counted);
    __syncthreads();
    return sum;
}

// grid: (images)
extern "C" __global__ void __launch_bounds__(SELECT_THREADS) sample_boxes_select(const Sample a) {
    __shared__ unsigned written;
    unsigned image = blockIdx.x;
    const unsigned* matches = a.matches + (size_t)image * a.n_boxes;
    const unsigned* priorities = a.priorities + (size_t)image * a.n_boxes;
    unsigned n_positives = 0, n_negatives = 0;
    for (unsigned i = threadIdx.x; i < a.n_boxes; i += blockDim.x) {
        n_positives += is_positive(matches[i]);
        n_negatives += is_negative(matches[i]);
    }
    n_positives = total(n_positives);
    n_negatives = total(n_negatives);
    unsigned positives = min(n_positives, a.most_positives);
    unsigned negatives = min(n_negatives, a.samples - positives);

    auto key = [&](unsigned i) { return (unsigned long long)priorities[i] << 32 | i; };
    Prefix up_to_positive = smallest(a.n_boxes, n_positives, positives,
                                     [&](unsigned i) { return is_positive(matches[i]); }, key);
    Prefix up_to_negative = smallest(a.n_boxes, n_negatives, negatives,
                                     [&](unsigned i) { return is_negative(matches[i]); }, key);
    if (threadIdx.x == 0) written = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < a.n_boxes; i += blockDim.x) {
        bool positive = is_positive(matches[i]) && up_to_positive.contains(key(i));
        bool negative = is_negative(matches[i]) && up_to_negative.contains(key(i));
        if (positive || negative) {
            a.chosen[(size_t)image * a.samples + atomicAdd(&written, 1u)] = (unsigned long long)negative << 32 | i;
        }
    }
    if (threadIdx.x == 0) {
        a.counts[image] = positives + negatives;
        a.positive_counts[image] = positives;
    }
}

// grid: (blocks over samples, images)
extern "C" __global__ void __launch_bounds__(RANK_THREADS) sample_boxes_rank(const Sample a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned image = blockIdx.y;
    unsigned n = a.counts[image];
    const unsigned long long* chosen = a.chosen + (size_t)image * a.samples;
    unsigned long long key = i < n ? chosen[i] : 0;
    unsigned rank = rank_among(chosen, n, key);
    if (i >= a.samples) return;
    unsigned place = i < n ? rank : i;
    unsigned index = i < n ? (unsigned)key : 0;
    a.index[(size_t)image * a.samples + place] = index;
    if (place >= a.most_positives) return;
    bool positive = place < a.positive_counts[image];
    a.positive_index[(size_t)image * a.most_positives + place] = positive ? index : 0;
}
