// A thread per value, a row of blocks per image; the first thread of an image also writes its count.
extern "C" __global__ void append_slots(const float* first, const unsigned* first_counts, const float* second,
                                        const unsigned* second_counts, unsigned n_first, unsigned n_second, unsigned row,
                                        float* joined, unsigned* counts) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned image = blockIdx.y;
    unsigned of_first = min(first_counts[image], n_first);
    unsigned of_second = min(second_counts[image], n_second);
    if (i == 0) counts[image] = of_first + of_second;
    unsigned per_image = (n_first + n_second) * row;
    if (i >= per_image) return;
    float value = 0.f;
    if (i < of_first * row) {
        value = first[(size_t)image * n_first * row + i];
    } else if (i < (of_first + of_second) * row) {
        value = second[(size_t)image * n_second * row + i - of_first * row];
    }
    joined[(size_t)image * per_image + i] = value;
}
