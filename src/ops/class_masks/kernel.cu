// A warp per cell of a row's mask:
//     probability = sigmoid(bias[label] + sum over channels weight[label, c] * features[cell, c]), 0 for an empty row
// The lanes of a warp take neighbouring packs of channels and add up their sums at the end. Filters are read again for
// every cell, from a cache: one filter is a kilobyte, and a mask has hundreds of cells.
#include "geometry.cuh"
#include "rows.cuh"
#include "values.cuh"

#define WARP 32

struct ClassMasks {
    const void* features;
    const float* weight;
    const float* bias;
    const unsigned* labels;
    float* masks;
    unsigned long long n_cells;
    unsigned cells_per_row;
    unsigned n_classes;
    unsigned channels;
    unsigned pack;
};

template <typename T, unsigned N>
__device__ __forceinline__ float dot(const T* features, const float* weight, unsigned channels, unsigned lane) {
    float sums[N] = {};
    for (unsigned channel = lane * N; channel < channels; channel += WARP * N) {
        float a[N], b[N];
        load<N>(features + channel, a);
        load<N>(weight + channel, b);
#pragma unroll
        for (unsigned i = 0; i < N; i++) sums[i] += b[i] * a[i];
    }
    float sum = 0.f;
#pragma unroll
    for (unsigned i = 0; i < N; i++) sum += sums[i];
#pragma unroll
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, distance);
    }
    return sum;
}

template <typename T, bool LOGITS>
__device__ __forceinline__ void masks(const ClassMasks& a) {
    unsigned lane = threadIdx.x % WARP;
    unsigned long long cell = (unsigned long long)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (cell >= a.n_cells) return;
    unsigned label = a.labels[cell / a.cells_per_row];
    if (label == 0 || label >= a.n_classes) {
        if (lane == 0) a.masks[cell] = 0.f;
        return;
    }
    const T* features = static_cast<const T*>(a.features) + cell * a.channels;
    const float* weight = a.weight + (size_t)label * a.channels;
    float sum = a.pack == 4 ? dot<T, 4>(features, weight, a.channels, lane)
                            : dot<T, 1>(features, weight, a.channels, lane);
    float logit = a.bias[label] + sum;
    if (lane == 0) a.masks[cell] = LOGITS ? logit : sigmoid(logit);
}

template <typename T>
__device__ __forceinline__ void class_masks(const ClassMasks& a) {
    masks<T, false>(a);
}

FOR_EACH_DTYPE(class_masks, class_masks, ClassMasks)

extern "C" __global__ void class_masks_logits(const ClassMasks argument) { masks<float, true>(argument); }

// The way back from logits. Of the features:
//     out[row, cell, :] = gradient[row, cell] * weight[label of row, :], 0 for an empty row
// Of the filters, in two launches: sums over the cells of each row, then over the rows of each class.
struct OfFeatures {
    // A row is a cell.
    Rows cells;
    const float* gradient;
    const float* weight;
    const unsigned* labels;
    float* out;
    unsigned cells_per_row;
    unsigned n_classes;
};

extern "C" __global__ void class_masks_of_features(const OfFeatures a) {
    for_each_pack<1>(a.cells, [&](unsigned cell, unsigned channel) {
        unsigned channels = a.cells.columns;
        unsigned label = a.labels[cell / a.cells_per_row];
        bool empty = label == 0 || label >= a.n_classes;
        float value = empty ? 0.f : a.gradient[cell] * a.weight[(size_t)label * channels + channel];
        a.out[(size_t)cell * channels + channel] = value;
    });
}

struct OfFilters {
    const float* gradient;
    const float* features;
    const unsigned* labels;
    // [R, C + 1]: what each row gives its class's filter, and its bias.
    float* per_row;
    // [classes, C] and [classes].
    float* of_weight;
    float* of_bias;
    unsigned n_rows;
    unsigned cells_per_row;
    unsigned n_classes;
    unsigned channels;
};

// A thread per row and channel, and one per row for the bias.
extern "C" __global__ void class_masks_per_row(const OfFilters a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = i / (a.channels + 1), channel = i % (a.channels + 1);
    if (row >= a.n_rows) return;
    float sum = 0.f;
    for (unsigned cell = 0; cell < a.cells_per_row; cell++) {
        size_t place = (size_t)row * a.cells_per_row + cell;
        float gradient = a.gradient[place];
        sum += channel < a.channels ? gradient * a.features[place * a.channels + channel] : gradient;
    }
    a.per_row[i] = sum;
}

// A thread per class and channel, and one per class for the bias.
extern "C" __global__ void class_masks_per_class(const OfFilters a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned label = i / (a.channels + 1), channel = i % (a.channels + 1);
    if (label >= a.n_classes) return;
    float sum = 0.f;
    for (unsigned row = 0; label > 0 && row < a.n_rows; row++) {
        if (a.labels[row] == label) sum += a.per_row[(size_t)row * (a.channels + 1) + channel];
    }
    if (channel < a.channels) {
        a.of_weight[(size_t)label * a.channels + channel] = sum;
    } else {
        a.of_bias[label] = sum;
    }
}
