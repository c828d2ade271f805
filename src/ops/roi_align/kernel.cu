// A thread per pack of channels of an output cell, for all slots of all images and all levels in one launch:
//     write zeros above the count, and for a box with NaN, infinity or one negative side
//     level = the last one whose boxes are at most as large as this one
//     for each sample of the cell, row by row: sum += bilinear(features of the level, sample) / samples
// The level follows from a table of areas instead of a logarithm: the host finds, among all floats, the least area that
// its own formula puts on each level. That is cheaper here, and no box changes its level with the device.
// Samples are not merged as on the CPU: neighbouring ones read the same features, which are in the first-level cache.
#include "geometry.cuh"
#include "rows.cuh"
#include "values.cuh"

#define LEVELS 8

struct Levels {
    const void* features[LEVELS];
    unsigned height[LEVELS];
    unsigned width[LEVELS];
    float scale[LEVELS];
    // Least area that is served by the level; the first one's is not used.
    float area[LEVELS];
};

struct RoiAlign {
    Rows cells;
    const float* boxes;
    const unsigned* counts;
    void* out;
    Levels levels;
    unsigned n_levels;
    unsigned n_slots;
    unsigned output;
    unsigned sampling;
};

// The rows (or columns) next to a sample, up to two, and their weights.
struct Taps {
    unsigned n;
    unsigned place[2];
    float weight[2];
};

__device__ __forceinline__ Taps taps(float start, float bin, unsigned cell, unsigned sample, unsigned sampling, unsigned size) {
    float samples = (float)sampling;
    float at = start + (float)cell * bin + ((float)sample + 0.5f) * bin / samples;
    // Written so that NaN, from an extent that overflows, is outside.
    if (!(at >= -1.f && at <= (float)size)) return {};
    at = fmaxf(at, 0.f);
    unsigned low = (unsigned)at;
    if (low >= size - 1) return {1, {size - 1, 0}, {1.f / samples, 0.f}};
    float fraction = at - (float)low;
    return {2, {low, low + 1}, {(1.f - fraction) / samples, fraction / samples}};
}

template <typename T, unsigned N>
__device__ __forceinline__ void add(float (&sums)[N], const T* features, float weight) {
    float values[N];
    load<N>(features, values);
#pragma unroll
    for (unsigned i = 0; i < N; i++) sums[i] += weight * values[i];
}

template <typename T, unsigned N>
__device__ __forceinline__ void align_packs(const RoiAlign& a) {
    for_each_pack<N>(a.cells, [&](unsigned cell, unsigned channel) {
        unsigned channels = a.cells.columns;
        unsigned column = cell % a.output;
        unsigned row = cell / a.output % a.output;
        unsigned slot = cell / a.output / a.output;
        unsigned image = slot / a.n_slots;
        float sums[N] = {};
        Box box = load_box(a.boxes, slot);
        float box_area = area(box);
        if (slot % a.n_slots < a.counts[image] && all_finite(box) && box_area >= 0.f) {
            unsigned level = 0;
            while (level + 1 < a.n_levels && box_area >= a.levels.area[level + 1]) level++;
            unsigned height = a.levels.height[level];
            unsigned width = a.levels.width[level];
            float scale = a.levels.scale[level];
            float x1 = box.x1 * scale, y1 = box.y1 * scale, x2 = box.x2 * scale, y2 = box.y2 * scale;
            float bin_height = fmaxf(y2 - y1, 1.f) / (float)a.output;
            float bin_width = fmaxf(x2 - x1, 1.f) / (float)a.output;
            const T* features = static_cast<const T*>(a.levels.features[level]) +
                                (size_t)image * height * width * channels + channel;
            for (unsigned i = 0; i < a.sampling; i++) {
                Taps rows = taps(y1, bin_height, row, i, a.sampling, height);
                for (unsigned j = 0; j < a.sampling; j++) {
                    Taps columns = taps(x1, bin_width, column, j, a.sampling, width);
#pragma unroll
                    for (unsigned r = 0; r < 2; r++) {
#pragma unroll
                        for (unsigned c = 0; c < 2; c++) {
                            if (r < rows.n && c < columns.n) {
                                size_t place = (size_t)rows.place[r] * width + columns.place[c];
                                add<T, N>(sums, features + place * channels, rows.weight[r] * columns.weight[c]);
                            }
                        }
                    }
                }
            }
        }
        store<N>(static_cast<T*>(a.out) + (size_t)cell * channels + channel, sums);
    });
}

template <typename T>
__device__ __forceinline__ void align(const RoiAlign& a) {
    if (a.cells.pack == 4) {
        align_packs<T, 4>(a);
    } else {
        align_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(roi_align, align, RoiAlign)
