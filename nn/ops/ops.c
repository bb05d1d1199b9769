/* SPDX-License-Identifier: MIT */
/* Registering the operations, once; calling them; the checks that their meta functions share. */
#include "ops/ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "math/products.h"
#include "ops/functions.h"
#include "shoal/fp_mode.h"
#include "shoal_nn/nn.h"
#include "common/try.h"
#include "ops/values.h"

#define gradient_none NULL

/* Kernels run in the default floating-point mode, whatever the caller's is: their bits do not depend on it. */
#define NN_OP(op_name, op_signature, op_flags, op_meta, op_kernel, op_gradient, op_saves, op_context, \
              op_doc)                                                                                 \
    static shoal_status kernel_##op_name(shoal_op_call_context *call, const shoal_value *arguments,   \
                                         shoal_tensor *const *outputs, size_t n_outputs)              \
    {                                                                                                 \
        uint64_t mode = shoal_fp_mode_enter();                                                        \
        shoal_status status = run_##op_kernel(call, arguments, outputs, n_outputs);                   \
        shoal_fp_mode_leave(mode);                                                                    \
        return status;                                                                                \
    }
#include "ops/ops.def"
#undef NN_OP

/* Kernels that load their first arguments and open their result. */
#define WORKSPACE_OF_VALUES(name, n_arguments)                        \
    static WORKSPACE(name)                                            \
    {                                                                 \
        return nn_values_of_call(arguments, n_arguments, outputs[0]); \
    }
WORKSPACE_OF_VALUES(mse, 2)
WORKSPACE_OF_VALUES(mse_backward, 3)
WORKSPACE_OF_VALUES(embedding_backward, 2)
WORKSPACE_OF_VALUES(dropout, 2)

static const shoal_op_definition definitions[] = {
#define NN_OP(op_name, op_signature, op_flags, op_meta, op_kernel, op_gradient, op_saves, op_context, \
              op_doc)                                                                                 \
    {.struct_size = sizeof(shoal_op_definition),                                                      \
     .name = "nn." #op_name,                                                                          \
     .signature = op_signature,                                                                       \
     .flags = op_flags,                                                                               \
     .meta = meta_##op_meta,                                                                          \
     .kernel = kernel_##op_name,                                                                      \
     .gradient = gradient_##op_gradient,                                                              \
     .saves = op_saves,                                                                               \
     .doc = op_doc,                                                                                   \
     .context = (void *)(uintptr_t)(op_context),                                                      \
     .workspace = workspace_##op_kernel},
#include "ops/ops.def"
#undef NN_OP
};

/* Written under the lock, in order; read by those that saw all_registered. */
static const shoal_op *ops[NN_OP_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool are_registered;

/* A failure leaves what was registered so far; the next call goes on from there. */
static shoal_status register_missing(void)
{
    for (size_t i = 0; i < NN_OP_COUNT; i++) {
        if (!ops[i]) {
            NN_TRY(shoal_op_register(&definitions[i], &ops[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status nn_register_ops(void)
{
    /* Acquire: pairs with the release below, behind which ops[] is complete. */
    if (atomic_load_explicit(&are_registered, memory_order_acquire)) {
        return SHOAL_OK;
    }
    (void)pthread_mutex_lock(&lock);
    shoal_status status = register_missing();
    if (status == SHOAL_OK) {
        /* Release: pairs with the acquire above. */
        atomic_store_explicit(&are_registered, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}

shoal_status shoal_nn_init(void)
{
    NN_TRY(nn_register_ops());
    return nn_products_load();
}

shoal_tensor *nn_call(enum nn_op op, const shoal_value *arguments, size_t n_arguments)
{
    shoal_value result;
    /* Without its op the call fails like one of an op that is NULL: the scope then holds the error. */
    const shoal_op *called = nn_register_ops() == SHOAL_OK ? ops[op] : NULL;
    return shoal_op_call(called, arguments, n_arguments, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

shoal_status nn_call_list(enum nn_op op, const shoal_value *arguments, size_t n_arguments,
                          shoal_tensor **results, size_t n)
{
    shoal_value result;
    const shoal_op *called = nn_register_ops() == SHOAL_OK ? ops[op] : NULL; /* as in nn_call */
    NN_TRY(shoal_op_call(called, arguments, n_arguments, &result));
    for (size_t i = 0; i < n; i++) {
        results[i] = result.as.tensors[i];
    }
    return SHOAL_OK;
}

/* Checks ----------------------------------------------------------------------------------------------- */

struct nn_text nn_shape_text(const shoal_tensor *tensor)
{
    struct nn_text text;
    size_t used = (size_t)snprintf(text.text, sizeof(text.text), "[");
    for (int i = 0; i < shoal_tensor_n_dims(tensor); i++) {
        used += (size_t)snprintf(text.text + used, sizeof(text.text) - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)shoal_tensor_shape(tensor)[i]);
    }
    (void)snprintf(text.text + used, sizeof(text.text) - used, "]");
    return text;
}

shoal_status nn_check_floating(const shoal_tensor *tensor, const char *name)
{
    shoal_dtype dtype = shoal_tensor_dtype(tensor);
    if (!shoal_dtype_is_floating(dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: %s is not one of f64, f32, f16, bf16", name,
                          shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

shoal_status nn_check_integer(const shoal_tensor *tensor, const char *name)
{
    shoal_dtype dtype = shoal_tensor_dtype(tensor);
    switch ((int)dtype) {
#define INTEGER(row_dtype, type) case row_dtype:
#include "math/elements.def"
#undef INTEGER
        return SHOAL_OK;
    default:
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: %s is not one of i8, i16, i32, i64, u8, u16, u32", name,
                          shoal_dtype_name(dtype));
    }
}

shoal_status nn_check_dtype(const shoal_tensor *tensor, const char *name, shoal_dtype dtype,
                            const char *other_name)
{
    if (shoal_tensor_dtype(tensor) != dtype) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s is %s, but %s is %s", name,
                          shoal_dtype_name(shoal_tensor_dtype(tensor)), other_name, shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

static bool has_same_shape(const shoal_tensor *tensor, const shoal_tensor *other)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    bool is_same = n_dims == shoal_tensor_n_dims(other);
    for (int i = 0; is_same && i < n_dims; i++) {
        is_same = shoal_tensor_shape(tensor)[i] == shoal_tensor_shape(other)[i];
    }
    return is_same;
}

shoal_status nn_check_same_shape(const shoal_tensor *tensor, const char *name, const shoal_tensor *other,
                                 const char *other_name)
{
    if (!has_same_shape(tensor, other)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has shape %s, but %s has %s", name,
                          nn_shape_text(tensor).text, other_name, nn_shape_text(other).text);
    }
    return SHOAL_OK;
}

shoal_status nn_check_vector(const shoal_tensor *tensor, const char *name, int64_t size,
                             const char *size_name)
{
    if (!tensor || (shoal_tensor_n_dims(tensor) == 1 && shoal_tensor_shape(tensor)[0] == size)) {
        return SHOAL_OK;
    }
    return shoal_fail(SHOAL_ERR_INVALID, "%s has shape %s, not [%lld], %s", name, nn_shape_text(tensor).text,
                      (long long)size, size_name);
}

int nn_dim(int64_t dim, const shoal_tensor *tensor)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    return (int)(dim < 0 ? dim + (n_dims > 0 ? n_dims : 1) : dim);
}

shoal_status nn_check_dim(int64_t dim, const shoal_tensor *tensor, const char *name, int *dim_out)
{
    int n_dims = shoal_tensor_n_dims(tensor) > 0 ? shoal_tensor_n_dims(tensor) : 1;
    if (dim < -n_dims || dim >= n_dims) {
        return shoal_fail(SHOAL_ERR_INVALID, "dim: %lld is not within %d..%d: %s has shape %s",
                          (long long)dim, -n_dims, n_dims - 1, name, nn_shape_text(tensor).text);
    }
    *dim_out = nn_dim(dim, tensor);
    return SHOAL_OK;
}

int64_t nn_count_rows(const shoal_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i + 1 < shoal_tensor_n_dims(tensor); i++) {
        count *= shoal_tensor_shape(tensor)[i];
    }
    return count;
}

int64_t nn_last_size(const shoal_tensor *tensor)
{
    return shoal_tensor_shape(tensor)[shoal_tensor_n_dims(tensor) - 1];
}
