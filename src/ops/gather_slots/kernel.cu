// One thread per value: the row that its slot's index names, or zero above the image's count. Values are words of four
// bytes, whatever they mean.
extern "C" __global__ void gather_slots(const unsigned* source, const unsigned* index, const unsigned* counts,
                                        unsigned k, unsigned slots, unsigned row, unsigned n, unsigned* gathered) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned place = i / row;
    unsigned image = place / k;
    bool counts_in = place % k < counts[image];
    gathered[i] = counts_in ? source[((size_t)image * slots + index[place]) * row + i % row] : 0;
}
