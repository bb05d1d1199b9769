/* SPDX-License-Identifier: MIT */
/*
 * Products by oneDNN, which is loaded at run time.
 *
 *   onednn.c          the row of products.h: panels and their shapes
 *   onednn_library.c  finds the library, checks its version, and says which instructions it uses
 *   onednn_cache.c    kernels by shape, for each thread
 *
 * Every call runs on one thread. Debian's library is built with OpenMP, whose threads spin between calls and would take
 * the processor from ranks and lanes. So the number of OpenMP's threads is 1 while a thread of ours is in the library
 * (onednn_enter), and it never starts one. The threads of nn's pool compute panels of a product instead (panels.h).
 */
#ifndef NN_MATH_ONEDNN_H
#define NN_MATH_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/products.h"

/* "" unless bf16 could be faster: the processor has AMX, and what computes bf16 (its description) does not use it. */
const char *nn_onednn_hint(const char *description);

/* The library ------------------------------------------------------------------------------------------ */

struct onednn_version {
    int major;
    int minor;
    int patch;
    const char *hash;
    unsigned cpu_runtime;
    unsigned gpu_runtime;
};

/* Descriptions that the library writes. They are larger than those of any version that is accepted (2.6: 696 and 2800
   bytes), and only the library looks into them. */
struct onednn_matrix {
    _Alignas(16) char bytes[1024];
};
struct onednn_matmul {
    _Alignas(16) char bytes[4096];
};

struct onednn_argument {
    int which;
    void *memory;
};

/* Numbers of its interface. */
enum {
    ONEDNN_CPU = 1,
    ONEDNN_BF16 = 2,
    ONEDNN_F32 = 3,
    ONEDNN_ARGUMENT_A = 1,
    ONEDNN_ARGUMENT_C = 17,
    ONEDNN_ARGUMENT_B = 33,
    ONEDNN_ARGUMENT_BIAS = 41,
    ONEDNN_ARGUMENT_SCRATCH = 80,
    ONEDNN_QUERY_KERNEL = 8,
    ONEDNN_QUERY_SCRATCH = 136,
    ONEDNN_SCRATCH_OF_CALLER = 1,
    ONEDNN_MAX_DIMS = 12
};

struct onednn {
#define FUNCTION(result, name, parameters) result(*name) parameters;
#include "math/onednn.def"
#undef FUNCTION
    void (*omp_set_num_threads)(int n_threads); /* NULL, as the next, if the library has no threads */
    int (*omp_get_max_threads)(void);
    void *engine;
    const char *instructions; /* "avx512_core_amx" */
    char library[512];
    char version_text[32];
};

/* Constant after a load that has succeeded. */
extern struct onednn onednn;

/* As nn_product_row.load. */
shoal_status onednn_load(void);

/* From here to onednn_leave this thread is one on which OpenMP starts no others. Returns what onednn_leave needs: the
   setting belongs to the thread, and may be the application's. */
int onednn_enter(void);
void onednn_leave(int n_threads);

/* Kernels ---------------------------------------------------------------------------------------------- */

/* What a kernel is made for. No padding: it is compared as bytes. */
struct onednn_key {
    int64_t n_rows;
    int64_t n_cols;
    int64_t n_inner;
    int64_t a_strides[2];
    int64_t b_strides[2];
    int64_t c_stride;
    int32_t dtype;
    int32_t has_bias;
    int64_t adds;
};

/* What it computes. */
struct onednn_data {
    const void *a;
    const void *b;
    const void *bias;
    void *c;
};

/* Computes a panel with the kernel of its key, which this thread makes if it has none yet. */
shoal_status onednn_run(const struct onednn_key *key, const struct onednn_data *data);

/* Writes the name of the kernel that the library has for a product, "brg:avx512_core"; false if it has none. */
bool onednn_find_kernel(const struct onednn_key *key, char *name, size_t bytes);

#endif
