// Greedy suppression within groups, without a stop at the host and without a matrix of all pairs.
//
//     nms_compact, one block per image:
//         keys of the slots that take part (valid, score and corners in order), and their number
//     nms_rank, one thread per key:
//         its place by score is the number of keys below it; write the slot there
//     nms_scan, one block per image, candidates in order of score, 64 at a time:
//         compare each candidate with all boxes kept so far; a bit says that one overlaps it
//         compare the 64 with each other; a row of bits each
//         walk through the 64 in order: keep, unless the bit is set; what is kept sets the bits of its row
//         append the kept to the list; stop at the capacity
//
// This is the CPU's order of decisions, so the same boxes survive. A matrix of all pairs, as torchvision has, would
// take 50 MB an image at 20,000 slots, most of it for pairs that are never looked at.
#include "geometry.cuh"
#include "order.cuh"

#define THREADS 1024
#define TILE 64

// grid: images
extern "C" __global__ void __launch_bounds__(THREADS)
nms_compact(const float* boxes, const float* scores, const unsigned char* valid, unsigned n_slots,
            unsigned long long* keys, unsigned* n_keys) {
    __shared__ unsigned count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    size_t first = (size_t)blockIdx.x * n_slots;
    for (unsigned i = threadIdx.x; i < n_slots; i += blockDim.x) {
        size_t slot = first + i;
        if (valid[slot] && !isnan(scores[slot]) && all_finite(load_box(boxes, slot))) {
            keys[first + atomicAdd(&count, 1u)] = descending_key(scores[slot], i);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) n_keys[blockIdx.x] = count;
}

// grid: (blocks over slots, images)
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
nms_rank(const unsigned long long* keys, const unsigned* n_keys, unsigned n_slots, unsigned* order) {
    unsigned n = n_keys[blockIdx.y];
    if (blockIdx.x * blockDim.x >= n) return;
    size_t first = (size_t)blockIdx.y * n_slots;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long key = i < n ? keys[first + i] : 0;
    unsigned rank = rank_among(keys + first, n, key);
    if (i < n) order[first + rank] = (unsigned)key;
}

// grid: images
extern "C" __global__ void __launch_bounds__(THREADS)
nms_scan(const float* boxes, const unsigned* groups, const unsigned* order, const unsigned* n_keys, unsigned n_slots,
         float threshold, unsigned capacity, unsigned* kept, unsigned* counts) {
    __shared__ Box candidate[TILE];
    __shared__ unsigned group[TILE], slot_of[TILE];
    __shared__ unsigned long long overlaps[TILE];  // bit j: candidate j comes later and overlaps this one
    __shared__ unsigned long long suppressed;
    __shared__ unsigned n_kept;
    unsigned image = blockIdx.x;
    boxes += (size_t)image * n_slots * 4;
    groups += (size_t)image * n_slots;
    order += (size_t)image * n_slots;
    kept += (size_t)image * capacity;
    unsigned n = n_keys[image];
    if (threadIdx.x == 0) n_kept = 0;
    __syncthreads();

    for (unsigned start = 0; start < n && n_kept < capacity; start += TILE) {
        unsigned in_tile = min(n - start, (unsigned)TILE);
        if (threadIdx.x < TILE) {
            overlaps[threadIdx.x] = 0;
            if (threadIdx.x < in_tile) {
                unsigned slot = order[start + threadIdx.x];
                slot_of[threadIdx.x] = slot;
                candidate[threadIdx.x] = load_box(boxes, slot);
                group[threadIdx.x] = groups[slot];
            }
        }
        if (threadIdx.x == 0) suppressed = 0;
        __syncthreads();

        unsigned c = threadIdx.x % TILE;
        unsigned lane = threadIdx.x / TILE;
        const unsigned lanes = THREADS / TILE;
        if (c < in_tile) {
            bool hit = false;
            for (unsigned i = lane; i < n_kept && !hit; i += lanes) {
                unsigned slot = kept[i];
                hit = groups[slot] == group[c] && iou(load_box(boxes, slot), candidate[c]) > threshold;
            }
            if (hit) atomicOr(&suppressed, 1ull << c);
            unsigned long long row = 0;
            for (unsigned j = c + 1 + lane; j < in_tile; j += lanes) {
                if (group[j] == group[c] && iou(candidate[c], candidate[j]) > threshold) row |= 1ull << j;
            }
            if (row) atomicOr(&overlaps[c], row);
        }
        __syncthreads();

        if (threadIdx.x == 0) {
            unsigned long long gone = suppressed;
            unsigned end = n_kept;
            for (unsigned j = 0; j < in_tile && end < capacity; j++) {
                if (gone >> j & 1) continue;
                gone |= overlaps[j];
                kept[end++] = slot_of[j];
            }
            n_kept = end;
        }
        __syncthreads();
    }
    for (unsigned i = n_kept + threadIdx.x; i < capacity; i += blockDim.x) kept[i] = 0;
    if (threadIdx.x == 0) counts[image] = n_kept;
}
