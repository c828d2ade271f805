// Functions applied to each output of a product; the twin of support/activation.rs, with its numbers.
#pragma once

// NaN stays NaN, here and below.
__device__ __forceinline__ float relu(float value) {
    return value < 0.f ? 0.f : value;
}

__device__ __forceinline__ float relu6(float value) {
    return value > 6.f ? 6.f : relu(value);
}

__device__ __forceinline__ float activate(float value, unsigned activation) {
    if (activation == 0) return value;
    if (activation == 1) return relu(value);
    if (activation == 2) return relu6(value);
    float share = relu6(value + 3.f) * (1.f / 6.f);
    return activation == 3 ? share : value * share;
}

// The gradient in front of an activation, from that behind it; `at` is the activation's output, or with number 4 its
// input. Where the slope is 0, so is the gradient, whatever is behind.
__device__ __forceinline__ float through_activation(float at, float gradient, unsigned activation) {
    if (activation == 0) return gradient;
    if (activation == 1) return at > 0.f ? gradient : 0.f;
    if (activation == 2) return at > 0.f && at < 6.f ? gradient : 0.f;
    if (activation == 3) return at > 0.f && at < 1.f ? gradient * (1.f / 6.f) : 0.f;
    if (at <= -3.f) return 0.f;
    return at < 3.f ? gradient * (at / 3.f + 0.5f) : gradient;
}
