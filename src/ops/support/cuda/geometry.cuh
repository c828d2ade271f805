// Formulas on boxes: their one home in device code. The twins of geometry.rs, operation by operation, so that
// thresholds fall the same way on every device.
#pragma once

// ln(1000 / 16)
#define MAX_LOG_SCALE 4.1351666f

struct Box {
    float x1, y1, x2, y2;
};

__device__ __forceinline__ Box load_box(const float* boxes, size_t i) {
    float4 b = reinterpret_cast<const float4*>(boxes)[i];
    return {b.x, b.y, b.z, b.w};
}

__device__ __forceinline__ void store_box(float* boxes, size_t i, Box b) {
    reinterpret_cast<float4*>(boxes)[i] = make_float4(b.x1, b.y1, b.x2, b.y2);
}

__device__ __forceinline__ bool all_finite(Box b) {
    return isfinite(b.x1) && isfinite(b.y1) && isfinite(b.x2) && isfinite(b.y2);
}

__device__ __forceinline__ float area(Box b) {
    return (b.x2 - b.x1) * (b.y2 - b.y1);
}

// NaN when both boxes are empty.
__device__ __forceinline__ float iou(Box a, Box b) {
    float width = fmaxf(fminf(a.x2, b.x2) - fmaxf(a.x1, b.x1), 0.f);
    float height = fmaxf(fminf(a.y2, b.y2) - fmaxf(a.y1, b.y1), 0.f);
    float intersection = width * height;
    return intersection / (area(a) + area(b) - intersection);
}

// NaN passes.
__device__ __forceinline__ float cap_log_scale(float value) {
    return value > MAX_LOG_SCALE ? MAX_LOG_SCALE : value;
}

// Deltas in `d` are dx, dy, dw, dh; `weights` divide them.
__device__ __forceinline__ Box decode(Box d, Box reference, float4 weights) {
    float width = reference.x2 - reference.x1;
    float height = reference.y2 - reference.y1;
    float center_x = reference.x1 + 0.5f * width;
    float center_y = reference.y1 + 0.5f * height;
    float log_width = cap_log_scale(d.x2 / weights.z);
    float log_height = cap_log_scale(d.y2 / weights.w);
    float new_x = d.x1 / weights.x * width + center_x;
    float new_y = d.y1 / weights.y * height + center_y;
    float half_width = 0.5f * (expf(log_width) * width);
    float half_height = 0.5f * (expf(log_height) * height);
    return {new_x - half_width, new_y - half_height, new_x + half_width, new_y + half_height};
}

// Distances in `d` are left, top, right, bottom, in units of the reference's sides.
__device__ __forceinline__ Box decode_distances(Box d, Box reference) {
    float center_x = 0.5f * (reference.x1 + reference.x2);
    float center_y = 0.5f * (reference.y1 + reference.y2);
    float width = reference.x2 - reference.x1;
    float height = reference.y2 - reference.y1;
    return {
        center_x - d.x1 * width,
        center_y - d.y1 * height,
        center_x + d.x2 * width,
        center_y + d.y2 * height,
    };
}

// The deltas, times `weights`, that turn `reference` into `target`.
__device__ __forceinline__ Box encode(Box target, Box reference, float4 weights) {
    float width = reference.x2 - reference.x1;
    float height = reference.y2 - reference.y1;
    float target_width = target.x2 - target.x1;
    float target_height = target.y2 - target.y1;
    float center_x = reference.x1 + 0.5f * width;
    float center_y = reference.y1 + 0.5f * height;
    float target_x = target.x1 + 0.5f * target_width;
    float target_y = target.y1 + 0.5f * target_height;
    return {
        weights.x * (target_x - center_x) / width,
        weights.y * (target_y - center_y) / height,
        weights.z * logf(target_width / width),
        weights.w * logf(target_height / height),
    };
}

__device__ __forceinline__ float clip_to(float value, float limit) {
    return fminf(fmaxf(value, 0.f), limit);
}

// Clips a decoded box; false where it was not finite or a clipped side is shorter than `min_side`.
__device__ __forceinline__ bool clip_usable(Box& b, float height, float width, float min_side) {
    bool finite = all_finite(b);
    b = {clip_to(b.x1, width), clip_to(b.y1, height), clip_to(b.x2, width), clip_to(b.y2, height)};
    return finite && b.x2 - b.x1 >= min_side && b.y2 - b.y1 >= min_side;
}

__device__ __forceinline__ float sigmoid(float x) {
    return 1.f / (1.f + expf(-x));
}
