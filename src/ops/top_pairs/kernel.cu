// The best pairs of every level and image (a row), of those above the threshold, in order, ties by place.
//
//     top_pairs_begin: clear histograms and rows
//     for 11 bits of the key at a time, from the highest down:
//         top_pairs_count, many blocks a row: count the keys of the chosen prefix by their next bits
//         top_pairs_narrow, one block a row: choose the bits in which the last wanted key lies; a row is done when the
//             keys of these bits are all wanted
//     top_pairs_collect, many blocks a row: write every key that is not above the prefix, in any order
//     top_pairs_rank, one thread per slot: a key's place is the number of keys below it
//
// A level has up to 11 million pairs: too many for a sort, for a block of its own and for a copy of the keys, which are
// made anew in every pass. Usually a row is done after two or three passes; the others end at once.
#include "geometry.cuh"
#include "order.cuh"
#include "tables.cuh"

#define THREADS 256
#define BITS 11
#define BINS (1 << BITS)
#define UNDECIDED 255u

struct Slots {
    unsigned first_slot[8];    // of each level, in an image's slots
    unsigned first_anchor[8];  // of each level, over all levels joined
    unsigned slots;            // of an image
    unsigned n_levels;
    unsigned n_classes;
    unsigned k;
    float threshold;
};

// State of a row: the prefix, how many keys are wanted of it, its shift, and how many keys have been collected.
struct Row {
    unsigned long long prefix;
    unsigned left, shift, count, unused;
};

__device__ __forceinline__ unsigned taken(const Table& logits, const Slots& slots, unsigned level) {
    return min(logits.lengths[level], slots.k);
}

__device__ __forceinline__ float score_of(const Table& logits, const Table& quality, const Slots& slots,
                                          unsigned level, unsigned image, unsigned i) {
    const float* values = static_cast<const float*>(logits.pointers[level]);
    float score = sigmoid(values[(size_t)image * logits.lengths[level] + i]);
    const float* beside = static_cast<const float*>(quality.pointers[level]);
    if (beside) {
        size_t anchor = (size_t)image * quality.lengths[level] + i / slots.n_classes;
        score = sqrtf(score * sigmoid(beside[anchor]));
    }
    return score;
}

// grid: (blocks over BINS, rows)
extern "C" __global__ void top_pairs_begin(const Slots slots, unsigned* histograms, Row* rows) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < BINS) histograms[(size_t)blockIdx.y * BINS + i] = 0;
    if (i == 0) rows[blockIdx.y] = {0, slots.k, UNDECIDED, 0, 0};
}

// grid: (blocks, rows)
extern "C" __global__ void __launch_bounds__(THREADS)
top_pairs_count(const Table logits, const Table quality, const Slots slots, unsigned shift, unsigned* histograms,
                const Row* rows) {
    __shared__ unsigned histogram[BINS];
    Row row = rows[blockIdx.y];
    if (row.shift != UNDECIDED) return;
    unsigned level = blockIdx.y % slots.n_levels;
    unsigned image = blockIdx.y / slots.n_levels;
    unsigned length = logits.lengths[level];
    if (blockIdx.x * blockDim.x >= length) return;
    for (unsigned i = threadIdx.x; i < BINS; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    // The bits above these have been chosen by the passes before.
    unsigned above = shift == 0 ? BITS - 2 : shift + BITS;
    unsigned mask = (1u << (above - shift)) - 1;
    for (size_t place = blockIdx.x * blockDim.x + threadIdx.x; place < length; place += gridDim.x * blockDim.x) {
        unsigned i = (unsigned)place;
        float score = score_of(logits, quality, slots, level, image, i);
        if (!(score > slots.threshold)) continue;
        unsigned long long key = descending_key(score, i);
        if (above < 64 && key >> above != row.prefix >> above) continue;
        atomicAdd(&histogram[(unsigned)(key >> shift) & mask], 1u);
    }
    __syncthreads();
    unsigned* sums = histograms + (size_t)blockIdx.y * BINS;
    for (unsigned i = threadIdx.x; i < BINS; i += blockDim.x) {
        if (histogram[i]) atomicAdd(&sums[i], histogram[i]);
    }
}

// grid: (1, rows)
extern "C" __global__ void __launch_bounds__(THREADS)
top_pairs_narrow(unsigned shift, unsigned* histograms, Row* rows) {
    __shared__ unsigned sums[THREADS];
    const unsigned each = BINS / THREADS;
    Row row = rows[blockIdx.y];
    if (row.shift != UNDECIDED) return;
    unsigned* histogram = histograms + (size_t)blockIdx.y * BINS;
    unsigned sum = 0;
    for (unsigned i = 0; i < each; i++) sum += histogram[threadIdx.x * each + i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned below = 0, part = 0;
        while (part < THREADS && below + sums[part] < row.left) below += sums[part++];
        if (part == THREADS) {
            // Fewer than wanted are above the threshold: all of them.
            row.shift = 64;
        } else {
            unsigned bin = part * each;
            while (below + histogram[bin] < row.left) below += histogram[bin++];
            row.prefix |= (unsigned long long)bin << shift;
            row.left -= below;
            if (histogram[bin] == row.left || shift == 0) row.shift = shift;
        }
        rows[blockIdx.y] = row;
    }
    __syncthreads();
    for (unsigned i = 0; i < each; i++) histogram[threadIdx.x * each + i] = 0;
}

// grid: (blocks, rows)
extern "C" __global__ void __launch_bounds__(THREADS)
top_pairs_collect(const Table logits, const Table quality, const Slots slots, Row* rows, unsigned long long* chosen) {
    unsigned level = blockIdx.y % slots.n_levels;
    unsigned image = blockIdx.y / slots.n_levels;
    unsigned length = logits.lengths[level];
    if (taken(logits, slots, level) == 0) return;
    Prefix best = {rows[blockIdx.y].prefix, (int)rows[blockIdx.y].shift};
    chosen += (size_t)image * slots.slots + slots.first_slot[level];
    for (size_t place = blockIdx.x * blockDim.x + threadIdx.x; place < length; place += gridDim.x * blockDim.x) {
        unsigned i = (unsigned)place;
        float score = score_of(logits, quality, slots, level, image, i);
        if (!(score > slots.threshold)) continue;
        unsigned long long key = descending_key(score, i);
        if (best.contains(key)) chosen[atomicAdd(&rows[blockIdx.y].count, 1u)] = key;
    }
}

// grid: (blocks over k, rows)
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
top_pairs_rank(const Table logits, const Slots slots, const Row* rows, const unsigned long long* chosen,
               unsigned* index, unsigned* labels, float* scores, unsigned char* valid) {
    unsigned level = blockIdx.y % slots.n_levels;
    unsigned image = blockIdx.y / slots.n_levels;
    unsigned n = rows[blockIdx.y].count;
    size_t first = (size_t)image * slots.slots + slots.first_slot[level];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long key = i < n ? chosen[first + i] : 0;
    unsigned rank = rank_among(chosen + first, n, key);
    if (i >= taken(logits, slots, level)) return;
    bool found = i < n;
    size_t slot = first + (found ? rank : i);
    unsigned local = (unsigned)key;
    index[slot] = found ? slots.first_anchor[level] + local / slots.n_classes : 0;
    labels[slot] = found ? local % slots.n_classes : 0;
    scores[slot] = found ? key_value(key) : 0.f;
    valid[slot] = found;
}
