// A thread per point, a row of blocks per image. The twin of cpu.rs, operation by operation.
#include "geometry.cuh"
#include "matches.cuh"

struct Points {
    const float* squares;
    const float* objects;
    const unsigned* counts;
    unsigned* codes;
    unsigned points;
    unsigned n_objects;
    unsigned first;        // points of the first level
    unsigned before_last;  // points before the last level
    float radius;
    float lower;
    float upper;
    unsigned unused;
};

extern "C" __global__ void assign_points(const Points a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned image = blockIdx.y;
    if (i >= a.points) return;
    Box square = load_box(a.squares, i);
    float stride = square.x2 - square.x1;
    float x = (square.x1 + square.x2) / 2.f, y = (square.y1 + square.y2) / 2.f;
    float reach = a.radius * stride;
    float lower = i < a.first ? 0.f : stride * a.lower;
    float upper = i >= a.before_last ? INFINITY : stride * a.upper;
    unsigned n = min(a.counts[image], a.n_objects);
    unsigned code = BACKGROUND;
    // Less is no object, or one that is too large.
    float best = 1e-5f;
    for (unsigned index = 0; index < n; index++) {
        Box object = load_box(a.objects, (size_t)image * a.n_objects + index);
        float center_x = (object.x1 + object.x2) / 2.f, center_y = (object.y1 + object.y2) / 2.f;
        float left = x - object.x1, top = y - object.y1, right = object.x2 - x, bottom = object.y2 - y;
        float nearest = fminf(fminf(left, top), fminf(right, bottom));
        float farthest = fmaxf(fmaxf(left, top), fmaxf(right, bottom));
        bool suits = fmaxf(fabsf(x - center_x), fabsf(y - center_y)) < reach && nearest > 0.f && farthest > lower
            && farthest < upper;
        float value = 1e8f - area(object);
        if (suits && (value > best || (code == BACKGROUND && value == best))) {
            code = FIRST_OBJECT + index;
            best = value;
        }
    }
    a.codes[(size_t)image * a.points + i] = code;
}
