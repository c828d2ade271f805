// One warp per proposal:
//     softmax over its classes, lanes side by side
//     for 32 classes at a time, in order: decode those above the threshold, and write the usable ones to the
//         proposal's next slots
//     zero the slots that remain
// Proposals above an image's count only zero theirs. Slots of a proposal are its own, so that no two warps meet.
#include "geometry.cuh"
#include "tables.cuh"
#include "warp.cuh"

extern "C" __global__ void select_candidates(
    const float* class_logits, const float* box_regression, const float* proposals, const unsigned* counts,
    const ImageSizes sizes, unsigned first_image, unsigned k, unsigned n_rows, unsigned n_classes,
    unsigned per_proposal, float4 box_weights, float score_threshold, float min_side,
    float* boxes, float* scores, unsigned* labels, unsigned char* valid) {
    unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    unsigned lane = threadIdx.x % WARP;
    if (warp >= n_rows) return;
    unsigned part_image = warp / k;
    unsigned image = first_image + part_image;
    size_t row = (size_t)first_image * k + warp;
    size_t first_slot = row * per_proposal;
    unsigned filled = 0;

    if (warp % k < counts[image]) {
        const float* logits = class_logits + row * n_classes;
        const float* deltas = box_regression + row * n_classes * 4;
        Box proposal = load_box(proposals, row);
        float largest = -INFINITY;
        for (unsigned c = lane; c < n_classes; c += WARP) largest = fmaxf(largest, logits[c]);
        largest = warp_max(largest);
        float sum = 0.f;
        for (unsigned c = lane; c < n_classes; c += WARP) sum += expf(logits[c] - largest);
        sum = warp_sum(sum);

        for (unsigned start = 0; start < n_classes && filled < per_proposal; start += WARP) {
            unsigned c = start + lane;
            Box box = {0.f, 0.f, 0.f, 0.f};
            float score = 0.f;
            bool found = false;
            // Class 0 is the background. NaN is not above the threshold.
            if (c > 0 && c < n_classes) {
                score = expf(logits[c] - largest) / sum;
                if (score > score_threshold) {
                    box = decode(load_box(deltas, c), proposal, box_weights);
                    found = clip_usable(box, sizes.height[part_image], sizes.width[part_image], min_side);
                }
            }
            unsigned found_lanes = __ballot_sync(ALL_LANES, found);
            unsigned place = filled + __popc(found_lanes & ((1u << lane) - 1));
            if (found && place < per_proposal) {
                store_box(boxes, first_slot + place, box);
                scores[first_slot + place] = score;
                labels[first_slot + place] = c;
                valid[first_slot + place] = 1;
            }
            filled += __popc(found_lanes);
        }
    }
    for (unsigned place = filled + lane; place < per_proposal; place += WARP) {
        store_box(boxes, first_slot + place, {0.f, 0.f, 0.f, 0.f});
        scores[first_slot + place] = 0.f;
        labels[first_slot + place] = 0;
        valid[first_slot + place] = 0;
    }
}
