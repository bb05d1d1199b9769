/* SPDX-License-Identifier: MIT */
/* The loops for floats and for doubles. Compiled without errno for math functions, so that square roots are vectors. */
#include "math/loops.h"

#include <math.h>
#include <string.h>
#include <tgmath.h>

#include "math/vector.h"

/* Rows and columns of the part of a matrix that the plain product copies: 32 KiB of doubles. */
#define BLOCK 64

#include "math/loops_math.h"
#include "math/loops_vectors.h"

#define real float
#define NAME(name) name##_f32
#include "math/loops_rows.h"
#include "math/loops_real.h"
#undef real
#undef NAME

#define real double
#define NAME(name) name##_f64
#include "math/loops_rows.h"
#include "math/loops_real.h"
#undef real
#undef NAME

const struct nn_loops *nn_loops_of(shoal_dtype dtype)
{
    return dtype == SHOAL_F64 ? &loops_f64 : &loops_f32;
}
