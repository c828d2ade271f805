// One thread per anchor, all levels in one launch:
//     find the level, then row, column, ratio and size from the place within it
//     cell anchor = round half to even of [-w, -h, w, h] / 2; move it by (column * stride_x, row * stride_y)
// The level table is an argument, so that nothing is built on the host and copied, and the few operations of a cell
// anchor are cheaper done again by every thread than fetched.
#include "geometry.cuh"

#define LEVELS 8
#define SIZES 16
#define RATIOS 16

struct Level {
    unsigned first;  // anchor
    unsigned width;  // columns
    unsigned stride_y, stride_x;
    unsigned n_sizes, n_ratios;
    float sizes[SIZES];
    float ratios[RATIOS];
};

struct Grid {
    unsigned n_levels;
    Level levels[LEVELS];
};

extern "C" __global__ void anchor_grid(const Grid grid, unsigned n, float* anchors) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned l = 0;
    while (l + 1 < grid.n_levels && i >= grid.levels[l + 1].first) l++;
    const Level& level = grid.levels[l];
    unsigned place = i - level.first;
    unsigned per_cell = level.n_sizes * level.n_ratios;
    unsigned cell = place / per_cell;
    unsigned kind = place % per_cell;
    float height_ratio = sqrtf(level.ratios[kind / level.n_sizes]);
    float size = level.sizes[kind % level.n_sizes];
    float width = 1.f / height_ratio * size;
    float height = height_ratio * size;
    float x = (float)(cell % level.width * level.stride_x);
    float y = (float)(cell / level.width * level.stride_y);
    store_box(anchors, i, {
        x + rintf(-width / 2.f),
        y + rintf(-height / 2.f),
        x + rintf(width / 2.f),
        y + rintf(height / 2.f),
    });
}
