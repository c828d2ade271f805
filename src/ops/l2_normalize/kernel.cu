// A warp per cell: its lanes add up squares, in a fixed order, then scale the channels. Neighbouring lanes have
// neighbouring channels.
#include "values.cuh"

const unsigned ALL_LANES = 0xffffffffu;
const unsigned WARP = 32;
const float MIN_LENGTH = 1e-12f;

// Values [cells, channels].
struct Cells {
    const void* input;
    // [channels]
    const float* weight;
    void* out;
    unsigned cells;
    unsigned channels;
};

struct Back {
    Cells cells;
    const float* gradient;
    // [cells, channels]: gradient * input / length, whose columns add up to the gradient of the weight.
    float* products;
};

__device__ __forceinline__ float total_of_warp(float value) {
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

__device__ __forceinline__ unsigned cell_of_warp() {
    return (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

template <typename T>
__device__ __forceinline__ float length_of(const T* cell, unsigned channels) {
    float squares = 0.f;
    for (unsigned i = threadIdx.x % WARP; i < channels; i += WARP) {
        float x = to_float(cell[i]);
        squares += x * x;
    }
    return sqrtf(total_of_warp(squares));
}

template <typename T>
__device__ __forceinline__ void normalize(const Cells& a) {
    unsigned cell = cell_of_warp();
    if (cell >= a.cells) return;
    const T* input = static_cast<const T*>(a.input) + (size_t)cell * a.channels;
    T* out = static_cast<T*>(a.out) + (size_t)cell * a.channels;
    float length = length_of(input, a.channels);
    // NaN stays NaN.
    if (length < MIN_LENGTH) length = MIN_LENGTH;
    for (unsigned i = threadIdx.x % WARP; i < a.channels; i += WARP) {
        from_float(to_float(input[i]) / length * a.weight[i], out[i]);
    }
}

FOR_EACH_DTYPE(l2_normalize, normalize, Cells)

extern "C" __global__ void l2_normalize_back(const Back a) {
    unsigned cell = cell_of_warp(), channels = a.cells.channels;
    if (cell >= a.cells.cells) return;
    size_t start = (size_t)cell * channels;
    const float* input = static_cast<const float*>(a.cells.input) + start;
    const float* gradient = a.gradient + start;
    float* out = static_cast<float*>(a.cells.out) + start;
    float length = length_of(input, channels);
    bool is_constant = length < MIN_LENGTH;
    if (is_constant) length = MIN_LENGTH;
    float along = 0.f;
    for (unsigned i = threadIdx.x % WARP; i < channels; i += WARP) {
        along += input[i] / length * (gradient[i] * a.cells.weight[i]);
    }
    along = is_constant ? 0.f : total_of_warp(along);
    for (unsigned i = threadIdx.x % WARP; i < channels; i += WARP) {
        float unit = input[i] / length;
        out[i] = (gradient[i] * a.cells.weight[i] - unit * along) / length;
        a.products[start + i] = gradient[i] * unit;
    }
}
