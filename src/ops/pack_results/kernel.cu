// One block row per part, all parts in one launch: its values, as f32, to its place in the buffer.
#include "tables.cuh"

struct Places {
    unsigned first[8];
    unsigned is_whole[8];  // the values are u32
};

// grid: (blocks over the longest part, parts)
extern "C" __global__ void pack_results(const Table parts, const Places places, float* packed) {
    unsigned part = blockIdx.y;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= parts.lengths[part]) return;
    const void* values = parts.pointers[part];
    packed[places.first[part] + i] = places.is_whole[part]
        ? (float)static_cast<const unsigned*>(values)[i]
        : static_cast<const float*>(values)[i];
}
