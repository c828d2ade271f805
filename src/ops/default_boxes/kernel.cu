// One thread per box, all levels in one launch:
//     find the level, then row, column and box from the place within it
//     center and sides as fractions of the image; corners in pixels
#include "geometry.cuh"

#define LEVELS 8
#define SIDES 16

struct Level {
    unsigned first;  // box
    unsigned width;  // columns
    float cells_y, cells_x;
    unsigned n_sides;
    float sides[SIDES][2];  // width, height
};

struct Grid {
    unsigned n_levels;
    float image_height, image_width;
    Level levels[LEVELS];
};

extern "C" __global__ void default_boxes(const Grid grid, unsigned n, float* boxes) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned l = 0;
    while (l + 1 < grid.n_levels && i >= grid.levels[l + 1].first) l++;
    const Level& level = grid.levels[l];
    unsigned place = i - level.first;
    unsigned cell = place / level.n_sides;
    const float* sides = level.sides[place % level.n_sides];
    float y = ((float)(cell / level.width) + 0.5f) / level.cells_y;
    float x = ((float)(cell % level.width) + 0.5f) / level.cells_x;
    store_box(boxes, i, {
        (x - 0.5f * sides[0]) * grid.image_width,
        (y - 0.5f * sides[1]) * grid.image_height,
        (x + 0.5f * sides[0]) * grid.image_width,
        (y + 0.5f * sides[1]) * grid.image_height,
    });
}
