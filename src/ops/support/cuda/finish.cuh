// What follows a product: bias and activation.
#pragma once
#include "rows.cuh"
#include "values.cuh"

// NaN stays NaN.
__device__ __forceinline__ float relu(float value) {
    return value < 0.f ? 0.f : value;
}

struct Finish {
    Rows rows;
    void* values;
    const float* bias;
    unsigned relu;
};

template <typename T, unsigned N>
__device__ __forceinline__ void finish_packs(const Finish& a) {
    for_each_pack<N>(a.rows, [&](unsigned row, unsigned column) {
        T* at = static_cast<T*>(a.values) + (size_t)row * a.rows.columns + column;
        float values[N], bias[N];
        load<N>(at, values);
        load<N>(a.bias + column, bias);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float value = values[i] + bias[i];
            values[i] = a.relu ? relu(value) : value;
        }
        store<N>(at, values);
    });
}

// Adds the bias of each column in place, and applies the activation.
template <typename T>
__device__ __forceinline__ void finish(const Finish& a) {
    if (a.rows.pack == 4) {
        finish_packs<T, 4>(a);
    } else {
        finish_packs<T, 1>(a);
    }
}
