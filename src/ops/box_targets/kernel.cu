// A thread per slot, a row of blocks per image.
#include "geometry.cuh"
#include "matches.cuh"

struct Targets {
    const unsigned* index;
    const unsigned* counts;
    const unsigned* matches;
    const float* corners;
    const float* object_corners;
    const unsigned* object_labels;
    float* boxes;
    unsigned* labels;
    unsigned* objects;
    float* deltas;
    unsigned long long box_stride;  // boxes from one image to the next
    unsigned n_slots;
    unsigned n_boxes;
    unsigned n_objects;
    unsigned unused;
    float weights[4];
};

extern "C" __global__ void box_targets(const Targets a) {
    float4 weights = make_float4(a.weights[0], a.weights[1], a.weights[2], a.weights[3]);
    unsigned slot = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned image = blockIdx.y;
    if (slot >= a.n_slots) return;
    size_t place = (size_t)image * a.n_slots + slot;
    Box corners = {0.f, 0.f, 0.f, 0.f}, deltas = {0.f, 0.f, 0.f, 0.f};
    unsigned label = IGNORED_LABEL, owner = 0;
    unsigned chosen = a.index[place];
    if (slot < a.counts[image] && chosen < a.n_boxes) {
        corners = load_box(a.corners, image * a.box_stride + chosen);
        label = 0;
        unsigned code = a.matches[(size_t)image * a.n_boxes + chosen];
        if (code >= FIRST_OBJECT && code - FIRST_OBJECT < a.n_objects) {
            owner = code - FIRST_OBJECT;
            size_t object = (size_t)image * a.n_objects + owner;
            label = a.object_labels[object];
            deltas = encode(load_box(a.object_corners, object), corners, weights);
        }
    }
    store_box(a.boxes, place, corners);
    store_box(a.deltas, place, deltas);
    a.labels[place] = label;
    a.objects[place] = owner;
}
