// A thread per word, a row of blocks per array: takes what came in one copy apart.
#include "tables.cuh"

struct Starts {
    unsigned first[8];  // word of each array
};

extern "C" __global__ void upload_arrays(const unsigned* words, const Table arrays, const Starts starts) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned array = blockIdx.y;
    if (i >= arrays.lengths[array]) return;
    static_cast<unsigned*>(const_cast<void*>(arrays.pointers[array]))[i] = words[starts.first[array] + i];
}
