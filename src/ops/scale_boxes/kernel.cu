// One thread per box: x times its image's width factor, y times its height factor.
#include "geometry.cuh"
#include "tables.cuh"

extern "C" __global__ void scale_boxes(const float* boxes, const ImageSizes factors, unsigned first_image, unsigned k,
                                       unsigned n, float* scaled) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    size_t place = (size_t)first_image * k + i;
    float y = factors.height[i / k];
    float x = factors.width[i / k];
    Box b = load_box(boxes, place);
    store_box(scaled, place, {b.x1 * x, b.y1 * y, b.x2 * x, b.y2 * y});
}
