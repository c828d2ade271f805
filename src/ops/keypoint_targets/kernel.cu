// A thread per slot and keypoint:
//     column = floor((x - x1) * (side / (x2 - x1))), the last one at x2; row likewise
//     target = row * side + column, or none for an empty slot, and for a keypoint that is outside or not visible

#define NONE 0xffffffffu

struct KeypointTargets {
    // [N, G, P, 3]
    const float* keypoints;
    // [N, S, 4]
    const float* boxes;
    // [N, S]
    const unsigned* objects;
    // [N]
    const unsigned* counts;
    // [N, S, P]
    unsigned* targets;
    unsigned n;
    unsigned n_objects;
    unsigned points;
    unsigned slots;
    unsigned side;
    unsigned unused;
};

// `side` where there is none.
__device__ __forceinline__ unsigned place(float at, float start, float end, unsigned side) {
    if (at == end) return side - 1;
    float place = floorf((at - start) * ((float)side / (end - start)));
    return place >= 0.f && place < (float)side ? (unsigned)place : side;
}

extern "C" __global__ void keypoint_targets(const KeypointTargets a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    unsigned slot = i / a.points, point = i % a.points;
    unsigned image = slot / a.slots;
    unsigned object = a.objects[slot];
    unsigned target = NONE;
    if (slot % a.slots < a.counts[image] && object < a.n_objects) {
        const float* keypoint = a.keypoints + (((size_t)image * a.n_objects + object) * a.points + point) * 3;
        const float* corners = a.boxes + (size_t)slot * 4;
        unsigned column = place(keypoint[0], corners[0], corners[2], a.side);
        unsigned row = place(keypoint[1], corners[1], corners[3], a.side);
        if (column < a.side && row < a.side && keypoint[2] > 0.f) target = row * a.side + column;
    }
    a.targets[i] = target;
}
