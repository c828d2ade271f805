// A block per slot and keypoint:
//     write zeros for an empty slot
//     each thread, for some columns of some bands of rows: walk down the band, mixing four values across, four of them down;
//         keep the largest value, of several the first
//     the largest of all threads' is the keypoint
// On the way down, a column has its four rows from the line before, but where the next row of the map begins. Weights and
// sums are those of cpu.rs, operation by operation, so that the same place is the largest.

#define THREADS 256
// Rows of a column that a thread walks down.
#define BAND 16u
// Entries of a map that are kept at hand.
#define CELLS 4096
#define MOST_PLACES 16384.f
// The parameter of the kernel: Keys 1981.
#define A (-0.75f)
#define NOWHERE 0xffffffffu

#include "tables.cuh"

struct Heatmaps {
    // [slots, height, width, keypoints]
    const float* maps;
    const float* boxes;
    // Of the images of this launch.
    const unsigned* counts;
    float* found;
    unsigned slots_per_image;
    unsigned height, width, keypoints;
    ImageSizes factors;
};

struct Axis {
    float start, step, scale;
    unsigned places, cells;
};

__device__ __forceinline__ Axis axis(float start, float end, unsigned cells) {
    // NaN becomes 1.
    float extent = fmaxf(end - start, 1.f);
    float places = fminf(ceilf(extent), MOST_PLACES);
    return {start, extent / places, (float)cells / places, (unsigned)places, cells};
}

__device__ __forceinline__ float position(const Axis& axis, unsigned place) {
    return ((float)place + 0.5f) * axis.step + axis.start;
}

// Weight at distances up to 1, and from 1 to 2.
__device__ __forceinline__ float inner(float x) { return ((A + 2.f) * x - (A + 3.f)) * x * x + 1.f; }
__device__ __forceinline__ float outer(float x) { return ((A * x - 5.f * A) * x + 8.f * A) * x - 4.f * A; }

// The second of four entries that a place mixes, and the weights of all.
struct Taps {
    int low;
    float weight[4];
};

__device__ __forceinline__ Taps taps(const Axis& axis, unsigned place) {
    float at = axis.scale * ((float)place + 0.5f) - 0.5f;
    float low = fminf(floorf(at), (float)(axis.cells - 1));
    float t = fminf(fmaxf(at - low, 0.f), 1.f);
    return {(int)low, {outer(t + 1.f), inner(t), inner(1.f - t), outer(1.f - t + 1.f)}};
}

__device__ __forceinline__ unsigned clamped(int index, unsigned cells) {
    return (unsigned)min(max(index, 0), (int)cells - 1);
}

__device__ __forceinline__ float mix(const float* weight, float a, float b, float c, float d) {
    return weight[0] * a + weight[1] * b + weight[2] * c + weight[3] * d;
}

struct Largest {
    float value;
    unsigned place;
};

// NaN is never better.
__device__ __forceinline__ void keep(Largest& best, float value, unsigned place) {
    if (value > best.value || (value == best.value && place < best.place)) best = {value, place};
}

extern "C" __global__ void __launch_bounds__(THREADS) heatmaps_to_keypoints(const Heatmaps a) {
    __shared__ float cells[CELLS];
    __shared__ Largest of_threads[THREADS];
    unsigned slot = blockIdx.x / a.keypoints, keypoint = blockIdx.x % a.keypoints;
    unsigned image = slot / a.slots_per_image;
    float* found = a.found + (size_t)blockIdx.x * 3;
    if (slot % a.slots_per_image >= a.counts[image]) {
        if (threadIdx.x < 3) found[threadIdx.x] = 0.f;
        return;
    }
    const float* corners = a.boxes + (size_t)slot * 4;
    Axis columns = axis(corners[0], corners[2], a.width);
    Axis rows = axis(corners[1], corners[3], a.height);
    const float* map = a.maps + (size_t)slot * a.height * a.width * a.keypoints + keypoint;
    unsigned stride = a.keypoints;
    unsigned n_cells = a.height * a.width;
    if (n_cells <= CELLS) {
        for (unsigned i = threadIdx.x; i < n_cells; i += THREADS) cells[i] = map[(size_t)i * stride];
        map = cells;
        stride = 1;
    }
    __syncthreads();
    Largest best = {__int_as_float(0xff800000), NOWHERE};
    unsigned bands = (rows.places + BAND - 1) / BAND;
    for (unsigned item = threadIdx.x; item < columns.places * bands; item += THREADS) {
        unsigned column = item % columns.places;
        Taps across = taps(columns, column);
        auto mixed = [&](int row) {
            const float* line = map + (size_t)clamped(row, a.height) * a.width * stride;
            auto at = [&](int i) { return line[clamped(across.low + i, a.width) * stride]; };
            return mix(across.weight, at(-1), at(0), at(1), at(2));
        };
        unsigned first = item / columns.places * BAND;
        int low = taps(rows, first).low;
        float lines[4] = {mixed(low - 1), mixed(low), mixed(low + 1), mixed(low + 2)};
        for (unsigned row = first; row < min(first + BAND, rows.places); row++) {
            Taps down = taps(rows, row);
            // A map that is shrunk has several rows between two lines.
            for (; low < down.low; low++) {
                lines[0] = lines[1];
                lines[1] = lines[2];
                lines[2] = lines[3];
                lines[3] = mixed(low + 3);
            }
            keep(best, mix(down.weight, lines[0], lines[1], lines[2], lines[3]), row * columns.places + column);
        }
    }
    of_threads[threadIdx.x] = best;
    for (unsigned width = THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) {
            Largest other = of_threads[threadIdx.x + width];
            keep(of_threads[threadIdx.x], other.value, other.place);
        }
    }
    if (threadIdx.x > 0) return;
    best = of_threads[0];
    // Nothing but NaN.
    if (best.place == NOWHERE) best = {__int_as_float(0x7fc00000), 0};
    found[0] = position(columns, best.place % columns.places) * a.factors.width[image];
    found[1] = position(rows, best.place / columns.places) * a.factors.height[image];
    found[2] = best.value;
}
