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

__device__ __forceinline__ unsigned level_of(const Levels& levels, unsigned n_levels, float box_area) {
    unsigned level = 0;
    while (level + 1 < n_levels && box_area >= levels.area[level + 1]) level++;
    return level;
}

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
            unsigned level = level_of(a.levels, a.n_levels, box_area);
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

// The way back, in a launch that notes where each box lies and one for each level, where
//     gradient[y, x, :] = sum over boxes, over cells (i, j): weight of y in row i * weight of x in column j * gradient[i, j, :]
// Each feature collects by itself, box after box: no atomic addition, one order.

// The features that a box may have sampled, and its cells. LEVELS for a box without any.
struct Placed {
    unsigned level;
    // Inclusive.
    unsigned first_row, last_row, first_column, last_column;
    float y1, x1, bin_height, bin_width;
    unsigned unused[3];
};

struct Place {
    const float* boxes;
    const unsigned* counts;
    Placed* placed;
    Levels levels;
    unsigned n_levels;
    unsigned n_slots;
    unsigned n;
    unsigned output;
};

__device__ __forceinline__ unsigned clamped(float place, unsigned size) {
    return (unsigned)fminf(fmaxf(place, 0.f), (float)(size - 1));
}

extern "C" __global__ void roi_align_place(const Place a) {
    unsigned slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= a.n) return;
    Placed placed = {LEVELS};
    Box box = load_box(a.boxes, slot);
    float box_area = area(box);
    if (slot % a.n_slots < a.counts[slot / a.n_slots] && all_finite(box) && box_area >= 0.f) {
        unsigned level = level_of(a.levels, a.n_levels, box_area);
        unsigned height = a.levels.height[level];
        unsigned width = a.levels.width[level];
        float scale = a.levels.scale[level];
        float x1 = box.x1 * scale, y1 = box.y1 * scale, x2 = box.x2 * scale, y2 = box.y2 * scale;
        float bin_height = fmaxf(y2 - y1, 1.f) / (float)a.output;
        float bin_width = fmaxf(x2 - x1, 1.f) / (float)a.output;
        // One more on each side than exact numbers would need.
        placed.level = level;
        placed.first_row = clamped(floorf(y1) - 1.f, height);
        placed.last_row = clamped(ceilf(y1 + (float)a.output * bin_height) + 1.f, height);
        placed.first_column = clamped(floorf(x1) - 1.f, width);
        placed.last_column = clamped(ceilf(x1 + (float)a.output * bin_width) + 1.f, width);
        placed.y1 = y1;
        placed.x1 = x1;
        placed.bin_height = bin_height;
        placed.bin_width = bin_width;
    }
    a.placed[slot] = placed;
}

struct Collect {
    // Of the level.
    Rows pixels;
    const Placed* placed;
    const float* gradient;
    float* out;
    unsigned level;
    unsigned height, width;
    unsigned n_slots;
    unsigned output;
    unsigned sampling;
};

struct Cells {
    unsigned start, end;
};

// Cells with a sample between the neighbours of a row (or column), and perhaps one more on each side.
__device__ __forceinline__ Cells cells_over(float start, float bin, unsigned place, unsigned cells) {
    float first = floorf(((float)place - 1.f - start) / bin) - 1.f;
    float last = floorf(((float)place + 1.f - start) / bin) + 1.f;
    if (last < 0.f) return {0, 0};
    return {(unsigned)fminf(fmaxf(first, 0.f), (float)cells), (unsigned)fminf(last + 1.f, (float)cells)};
}

// What a row (or column) weighs in a cell's mean.
__device__ __forceinline__ float weight_in(float start, float bin, unsigned cell, unsigned sampling, unsigned size,
                                           unsigned place) {
    float weight = 0.f;
    for (unsigned sample = 0; sample < sampling; sample++) {
        Taps near = taps(start, bin, cell, sample, sampling, size);
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            if (i < near.n && near.place[i] == place) weight += near.weight[i];
        }
    }
    return weight;
}

template <unsigned N>
__device__ __forceinline__ void collect_packs(const Collect& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.width;
        unsigned y = pixel / a.width % a.height;
        unsigned image = pixel / a.width / a.height;
        float sums[N] = {};
        for (unsigned slot = image * a.n_slots; slot < (image + 1) * a.n_slots; slot++) {
            const Placed& box = a.placed[slot];
            if (box.level != a.level || y < box.first_row || y > box.last_row || x < box.first_column ||
                x > box.last_column) {
                continue;
            }
            Cells rows = cells_over(box.y1, box.bin_height, y, a.output);
            Cells columns = cells_over(box.x1, box.bin_width, x, a.output);
            for (unsigned row = rows.start; row < rows.end; row++) {
                float row_weight = weight_in(box.y1, box.bin_height, row, a.sampling, a.height, y);
                if (row_weight == 0.f) continue;
                for (unsigned column = columns.start; column < columns.end; column++) {
                    float weight = row_weight * weight_in(box.x1, box.bin_width, column, a.sampling, a.width, x);
                    if (weight == 0.f) continue;
                    size_t cell = ((size_t)slot * a.output + row) * a.output + column;
                    add<float, N>(sums, a.gradient + cell * channels + channel, weight);
                }
            }
        }
        store<N>(a.out + (size_t)pixel * channels + channel, sums);
    });
}

extern "C" __global__ void roi_align_collect(const Collect argument) {
    if (argument.pixels.pack == 4) {
        collect_packs<4>(argument);
    } else {
        collect_packs<1>(argument);
    }
}
