// What becomes of boxes that are compared with objects, as numbers; the twins of matches.rs.
#pragma once

#define IGNORED 0u
#define BACKGROUND 1u
#define FIRST_OBJECT 2u

// Of a slot that nothing is learned from.
#define IGNORED_LABEL 0xffffffffu
