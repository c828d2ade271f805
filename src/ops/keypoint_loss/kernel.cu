// Cross-entropy over the cells of heatmaps, channels last, and its gradient.
//     value = share * sum over keypoints with a cell of (normalizer - logit of the cell), share = 1 / number of these, or 0
//     normalizer = ln of the sum of the exponentials of a map
// A block per row and keypoint finds a normalizer and a cost; one block adds up the costs, in f64 and in order. On the way
// back, a thread per logit:
//     out = gradient of the value * share * (exp(logit - normalizer) - (1 in the cell of the keypoint, else 0))
// The maps of a keypoint that has no cell are not looked at: they may hold NaN.

#define BLOCK 256
#define IGNORED 0xffffffffu

struct KeypointLoss {
    // [rows, cells, keypoints]
    const float* logits;
    // [rows, keypoints]
    const unsigned* targets;
    // Of the value.
    const float* gradient;
    // [rows, keypoints]
    double* normalizers;
    // [rows, keypoints]
    double* costs;
    float* value;
    double* share;
    // [rows, cells, keypoints]
    float* out;
    unsigned long long n;
    // rows * keypoints
    unsigned maps;
    unsigned cells;
    unsigned keypoints;
    unsigned unused;
};

// The sum (or the largest) of what all threads of the block have, for all of them.
template <typename Combine>
__device__ __forceinline__ double combine(double* shared, double mine, Combine both) {
    __syncthreads();
    shared[threadIdx.x] = mine;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) shared[threadIdx.x] = both(shared[threadIdx.x], shared[threadIdx.x + width]);
    }
    __syncthreads();
    return shared[0];
}

__device__ __forceinline__ double add(double a, double b) { return a + b; }

extern "C" __global__ void __launch_bounds__(BLOCK) keypoint_loss_maps(const KeypointLoss a) {
    __shared__ double shared[BLOCK];
    unsigned map = blockIdx.x;
    unsigned target = a.targets[map];
    if (target == IGNORED) {
        if (threadIdx.x == 0) a.normalizers[map] = a.costs[map] = 0.;
        return;
    }
    unsigned row = map / a.keypoints, keypoint = map % a.keypoints;
    const float* logits = a.logits + (size_t)row * a.cells * a.keypoints + keypoint;
    auto logit = [&](unsigned cell) { return (double)logits[(size_t)cell * a.keypoints]; };
    // No exponential overflows.
    double largest = __longlong_as_double(0xfff0000000000000ll);
    for (unsigned cell = threadIdx.x; cell < a.cells; cell += BLOCK) largest = fmax(largest, logit(cell));
    largest = combine(shared, largest, [](double x, double y) { return fmax(x, y); });
    double total = 0.;
    for (unsigned cell = threadIdx.x; cell < a.cells; cell += BLOCK) total += exp(logit(cell) - largest);
    total = combine(shared, total, add);
    if (threadIdx.x > 0) return;
    double normalizer = largest + log(total);
    a.normalizers[map] = normalizer;
    a.costs[map] = target < a.cells ? normalizer - logit(target) : __longlong_as_double(0x7ff8000000000000ll);
}

// One block.
extern "C" __global__ void __launch_bounds__(BLOCK) keypoint_loss_total(const KeypointLoss a) {
    __shared__ double shared[BLOCK];
    double costs = 0., n = 0.;
    for (unsigned map = threadIdx.x; map < a.maps; map += BLOCK) {
        costs += a.costs[map];
        n += a.targets[map] == IGNORED ? 0. : 1.;
    }
    costs = combine(shared, costs, add);
    n = combine(shared, n, add);
    if (threadIdx.x > 0) return;
    double share = n > 0. ? 1. / n : 0.;
    // Without keypoints, no costs either.
    *a.value = (float)(costs * share);
    *a.share = share;
}

extern "C" __global__ void keypoint_loss_back(const KeypointLoss a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    unsigned keypoint = i % a.keypoints;
    unsigned long long cell = i / a.keypoints;
    unsigned map = (unsigned)(cell / a.cells) * a.keypoints + keypoint;
    unsigned target = a.targets[map];
    if (target == IGNORED) {
        a.out[i] = 0.f;
        return;
    }
    double slope = exp((double)a.logits[i] - a.normalizers[map]) - (cell % a.cells == target ? 1. : 0.);
    a.out[i] = (float)(slope * (*a.share * (double)*a.gradient));
}
