// Numbers that travel as kernel arguments; the twins of tables.rs.
#pragma once

struct Table {
    const void* pointers[8];
    unsigned lengths[8];
};

struct ImageSizes {
    float height[32];
    float width[32];
};
