// One thread per slot:
//     find the level of the slot's anchor, and its deltas there
//     decode, clip, score; write box, score and validity, or zeros
#include "geometry.cuh"
#include "tables.cuh"

extern "C" __global__ void decode_proposals(
    const Table levels, unsigned n_levels, const ImageSizes sizes, unsigned first_image, unsigned n_slots, unsigned n,
    const float* anchors, const unsigned* index, const float* logits, float score_threshold, float min_side,
    float* boxes, float* scores, unsigned char* valid) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned part_image = i / n_slots;
    size_t slot = (size_t)first_image * n_slots + i;
    unsigned anchor = index[slot];
    unsigned local = anchor, level = 0;
    while (level + 1 < n_levels && local >= levels.lengths[level]) local -= levels.lengths[level++];
    const float* deltas = static_cast<const float*>(levels.pointers[level]);
    size_t row = (size_t)(first_image + part_image) * levels.lengths[level] + local;
    Box box = decode(load_box(deltas, row), load_box(anchors, anchor), make_float4(1.f, 1.f, 1.f, 1.f));
    float score = sigmoid(logits[slot]);
    bool usable = clip_usable(box, sizes.height[part_image], sizes.width[part_image], min_side);
    bool kept = usable && score >= score_threshold;
    store_box(boxes, slot, kept ? box : Box{0.f, 0.f, 0.f, 0.f});
    scores[slot] = kept ? score : 0.f;
    valid[slot] = kept;
}
