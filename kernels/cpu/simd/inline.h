// How kernel helpers are inlined: always, so that a vector never travels through memory between two
// of them.
#pragma once

#define CONVOY_SIMD [[gnu::always_inline]] inline
