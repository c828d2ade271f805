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

// The part of max(a, b) that is a's.
__device__ __forceinline__ double share_above(double a, double b) {
    return a > b ? 1. : a == b ? 0.5 : 0.;
}

// One less the generalized IoU of a predicted and a wanted box, and its derivatives by the predicted corners.
__device__ __forceinline__ double giou_loss(const double* p, const double* t, double* slopes) {
    const double epsilon = 1e-7;
    double width = p[2] - p[0], height = p[3] - p[1];
    double common_width = fmin(p[2], t[2]) - fmax(p[0], t[0]), common_height = fmin(p[3], t[3]) - fmax(p[1], t[1]);
    bool overlaps = common_width > 0. && common_height > 0.;
    double intersection = overlaps ? common_width * common_height : 0.;
    double all = width * height + (t[2] - t[0]) * (t[3] - t[1]) - intersection;
    double whole_width = fmax(p[2], t[2]) - fmin(p[0], t[0]), whole_height = fmax(p[3], t[3]) - fmin(p[1], t[1]);
    double of_union = all + epsilon, of_whole = whole_width * whole_height + epsilon;
    double area[4] = {-height, -width, height, width};
    double common[4] = {-common_height, -common_width, common_height, common_width};
    double whole[4] = {-whole_height, -whole_width, whole_height, whole_width};
    for (unsigned side = 0; side < 4; side++) {
        double inner = side < 2 ? share_above(p[side], t[side]) : share_above(t[side], p[side]);
        double of_intersection = overlaps ? common[side] * inner : 0.;
        double growth = area[side] - of_intersection;
        slopes[side] = -of_intersection / of_union + growth * (intersection / (of_union * of_union) - 1. / of_whole)
            + whole[side] * (1. - inner) * of_union / (of_whole * of_whole);
    }
    return 1. - intersection / of_union + (of_whole - of_union) / of_whole;
}

// Distances from the center of a reference box to the sides of a target, in sides of the reference.
__device__ __forceinline__ Box distances(Box target, Box reference) {
    float width = reference.x2 - reference.x1, height = reference.y2 - reference.y1;
    float x = 0.5f * (reference.x1 + reference.x2), y = 0.5f * (reference.y1 + reference.y2);
    return {(x - target.x1) / width, (y - target.y1) / height, (target.x2 - x) / width, (target.y2 - y) / height};
}

// How four predicted values describe a box; the twin of box_coding.rs.
struct BoxCoding {
    unsigned by_distances;
    float weights[4];

    __device__ __forceinline__ Box encode(Box target, Box reference) const {
        if (by_distances) return distances(target, reference);
        return ::encode(target, reference, make_float4(weights[0], weights[1], weights[2], weights[3]));
    }

    __device__ __forceinline__ void decode(const float* values, Box reference, double* corners) const {
        double x = 0.5 * ((double)reference.x1 + reference.x2), y = 0.5 * ((double)reference.y1 + reference.y2);
        double width = (double)reference.x2 - reference.x1, height = (double)reference.y2 - reference.y1;
        if (by_distances) {
            corners[0] = x - values[0] * width;
            corners[1] = y - values[1] * height;
            corners[2] = x + values[2] * width;
            corners[3] = y + values[3] * height;
            return;
        }
        double dw = (double)values[2] / weights[2], dh = (double)values[3] / weights[3];
        double half_width = 0.5 * (exp(dw > MAX_LOG_SCALE ? (double)MAX_LOG_SCALE : dw) * width);
        double half_height = 0.5 * (exp(dh > MAX_LOG_SCALE ? (double)MAX_LOG_SCALE : dh) * height);
        x += (double)values[0] / weights[0] * width;
        y += (double)values[1] / weights[1] * height;
        corners[0] = x - half_width;
        corners[1] = y - half_height;
        corners[2] = x + half_width;
        corners[3] = y + half_height;
    }

    // The derivatives by the values, from those by the corners.
    __device__ __forceinline__ void slopes(const float* values, Box reference, const double* by_corner,
                                           double* by_value) const {
        double width = (double)reference.x2 - reference.x1, height = (double)reference.y2 - reference.y1;
        if (by_distances) {
            by_value[0] = -by_corner[0] * width;
            by_value[1] = -by_corner[1] * height;
            by_value[2] = by_corner[2] * width;
            by_value[3] = by_corner[3] * height;
            return;
        }
        double dw = (double)values[2] / weights[2], dh = (double)values[3] / weights[3];
        by_value[0] = (by_corner[0] + by_corner[2]) * width / weights[0];
        by_value[1] = (by_corner[1] + by_corner[3]) * height / weights[1];
        // Above the cap nothing grows.
        double growth = dw > MAX_LOG_SCALE ? 0. : exp(dw);
        by_value[2] = (by_corner[2] - by_corner[0]) * 0.5 * width * growth / weights[2];
        growth = dh > MAX_LOG_SCALE ? 0. : exp(dh);
        by_value[3] = (by_corner[3] - by_corner[1]) * 0.5 * height * growth / weights[3];
    }
};
