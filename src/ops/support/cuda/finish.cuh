// What follows a product: bias and activation.
#pragma once
#include "activation.cuh"
#include "rows.cuh"
#include "values.cuh"

struct Finish {
    Rows rows;
    void* values;
    const float* bias;
    unsigned activation;
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
            values[i] = activate(values[i] + bias[i], a.activation);
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
