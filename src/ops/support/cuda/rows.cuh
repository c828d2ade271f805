// How threads are laid over rows of values that share the computation of an address, such as the channels of a pixel.
// The twin of rows.rs.
#pragma once

struct Rows {
    unsigned n;
    unsigned columns;
    // Neighbouring columns that a thread moves in one access: 4 or 1.
    unsigned pack;
    unsigned unused;
};

// Calls `work(row, column)` for every pack of N columns of every row. Neighbouring threads have neighbouring packs, and
// a block as many whole rows as it has threads for.
template <unsigned N, typename Work>
__device__ __forceinline__ void for_each_pack(const Rows& rows, Work work) {
    unsigned packs = rows.columns / N;
    unsigned lanes = min(packs, blockDim.x);
    unsigned place = threadIdx.x / lanes;
    unsigned rows_per_block = blockDim.x / lanes;
    unsigned row = blockIdx.x * rows_per_block + place;
    if (place >= rows_per_block || row >= rows.n) return;
    for (unsigned pack = threadIdx.x % lanes; pack < packs; pack += lanes) work(row, pack * N);
}
