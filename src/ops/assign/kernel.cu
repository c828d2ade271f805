// Objects are few and boxes many: a thread per box goes over all objects of its image. Before, where objects that no box
// has found are given to their best boxes, a block per object finds how much its best box overlaps it. Maxima don't
// depend on the order of threads, and both kernels compute an IoU by the same operations, so that it is found again exactly.
#include "geometry.cuh"
#include "matches.cuh"

#define BEST_THREADS 256

struct Assign {
    const float* boxes;
    const unsigned* box_counts;  // or null: all are valid
    const float* objects;
    const unsigned* object_counts;
    float* best;  // [N, G], or null: objects are dropped; of assign_best_box, unsigned indices of boxes
    unsigned* codes;
    unsigned long long box_stride;  // boxes from one image to the next
    unsigned n_boxes;
    unsigned n_objects;
    float positive_iou;
    float negative_iou;
};

__device__ __forceinline__ unsigned valid_boxes(const Assign& a, unsigned image) {
    return a.box_counts ? min(a.box_counts[image], a.n_boxes) : a.n_boxes;
}

// grid: (objects, images)
extern "C" __global__ void __launch_bounds__(BEST_THREADS) assign_best(const Assign a) {
    __shared__ float parts[BEST_THREADS];
    unsigned image = blockIdx.y;
    size_t place = (size_t)image * a.n_objects + blockIdx.x;
    Box object = load_box(a.objects, place);
    const float* boxes = a.boxes + 4 * image * a.box_stride;
    unsigned n = blockIdx.x < a.object_counts[image] ? valid_boxes(a, image) : 0;
    float best = 0.f;
    for (unsigned i = threadIdx.x; i < n; i += BEST_THREADS) best = fmaxf(best, iou(object, load_box(boxes, i)));
    parts[threadIdx.x] = best;
    for (unsigned width = BEST_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + width]);
    }
    if (threadIdx.x == 0) a.best[place] = parts[0];
}

// grid: (blocks over boxes, images)
extern "C" __global__ void assign(const Assign a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned image = blockIdx.y;
    if (i >= a.n_boxes) return;
    unsigned& code = a.codes[(size_t)image * a.n_boxes + i];
    unsigned n = min(a.object_counts[image], a.n_objects);
    if (i >= valid_boxes(a, image) || n == 0) {
        code = n == 0 && i < valid_boxes(a, image) ? BACKGROUND : IGNORED;
        return;
    }
    Box corners = load_box(a.boxes, image * a.box_stride + i);
    size_t first = (size_t)image * a.n_objects;
    unsigned nearest = 0;
    float overlap = -INFINITY;
    bool is_best = false;
    for (unsigned object = 0; object < n; object++) {
        float found = iou(load_box(a.objects, first + object), corners);
        if (found > overlap) {
            overlap = found;
            nearest = object;
        }
        if (a.best) is_best |= a.best[first + object] > 0.f && found == a.best[first + object];
    }
    // In this order, so that NaN of a box without an area is background.
    if (overlap >= a.positive_iou || is_best) {
        code = FIRST_OBJECT + nearest;
    } else if (overlap >= a.negative_iou) {
        code = IGNORED;
    } else {
        code = BACKGROUND;
    }
}

// The first of the boxes that overlap an object most, n_boxes where none does. grid: (objects, images)
extern "C" __global__ void __launch_bounds__(BEST_THREADS) assign_best_box(const Assign a) {
    __shared__ float overlaps[BEST_THREADS];
    __shared__ unsigned indices[BEST_THREADS];
    unsigned image = blockIdx.y;
    size_t place = (size_t)image * a.n_objects + blockIdx.x;
    Box object = load_box(a.objects, place);
    const float* boxes = a.boxes + 4 * image * a.box_stride;
    unsigned n = blockIdx.x < a.object_counts[image] ? valid_boxes(a, image) : 0;
    float best = 0.f;
    unsigned index = a.n_boxes;
    for (unsigned i = threadIdx.x; i < n; i += BEST_THREADS) {
        float found = iou(object, load_box(boxes, i));
        if (found > best) {
            best = found;
            index = i;
        }
    }
    overlaps[threadIdx.x] = best;
    indices[threadIdx.x] = index;
    for (unsigned width = BEST_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x >= width) continue;
        float other = overlaps[threadIdx.x + width];
        unsigned other_index = indices[threadIdx.x + width];
        if (other > best || (other == best && other_index < index)) {
            overlaps[threadIdx.x] = best = other;
            indices[threadIdx.x] = index = other_index;
        }
    }
    if (threadIdx.x == 0) reinterpret_cast<unsigned*>(a.best)[place] = index;
}

// Objects in order, so that the last one has a box that several want. A thread per image.
extern "C" __global__ void assign_give(const Assign a, unsigned images) {
    unsigned image = blockIdx.x * blockDim.x + threadIdx.x;
    if (image >= images) return;
    const unsigned* best = reinterpret_cast<const unsigned*>(a.best) + (size_t)image * a.n_objects;
    unsigned n = min(a.object_counts[image], a.n_objects);
    for (unsigned object = 0; object < n; object++) {
        if (best[object] < a.n_boxes) a.codes[(size_t)image * a.n_boxes + best[object]] = FIRST_OBJECT + object;
    }
}
