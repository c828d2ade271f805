// One thread per slot:
//     find the level of the slot's anchor, and its regression there
//     decode and clip; write box and validity, or zeros
#include "geometry.cuh"
#include "tables.cuh"

extern "C" __global__ void decode_boxes(
    const Table levels, unsigned n_levels, const ImageSizes sizes, unsigned first_image, unsigned n_slots, unsigned n,
    const float* anchors, const unsigned* index, const unsigned char* filled, unsigned distances, float weight_x,
    float weight_y, float weight_width, float weight_height, float* boxes, unsigned char* valid) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned part_image = i / n_slots;
    size_t slot = (size_t)first_image * n_slots + i;
    Box box = {0.f, 0.f, 0.f, 0.f};
    bool kept = false;
    if (filled[slot]) {
        unsigned anchor = index[slot];
        unsigned local = anchor, level = 0;
        while (level + 1 < n_levels && local >= levels.lengths[level]) local -= levels.lengths[level++];
        const float* regression = static_cast<const float*>(levels.pointers[level]);
        Box code = load_box(regression, (size_t)(first_image + part_image) * levels.lengths[level] + local);
        Box reference = load_box(anchors, anchor);
        float4 weights = make_float4(weight_x, weight_y, weight_width, weight_height);
        box = distances ? decode_distances(code, reference) : decode(code, reference, weights);
        kept = clip_usable(box, sizes.height[part_image], sizes.width[part_image], -INFINITY);
    }
    store_box(boxes, slot, kept ? box : Box{0.f, 0.f, 0.f, 0.f});
    valid[slot] = kept;
}
