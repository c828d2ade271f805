// A warp per cell of a row's mask:
//     probability = sigmoid(bias[label] + sum over channels weight[label, c] * features[cell, c]), 0 for an empty row
// The lanes of a warp take neighbouring packs of channels and add up their sums at the end. Filters are read again for
// every cell, from a cache: one filter is a kilobyte, and a mask has hundreds of cells.
#include "geometry.cuh"
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

template <typename T>
__device__ __forceinline__ void class_masks(const ClassMasks& a) {
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
    if (lane == 0) a.masks[cell] = sigmoid(a.bias[label] + sum);
}

FOR_EACH_DTYPE(class_masks, class_masks, ClassMasks)
