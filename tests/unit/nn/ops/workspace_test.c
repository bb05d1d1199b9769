/* SPDX-License-Identifier: MIT */
/* Kernels take no more scratch memory than their ops declare: with so much of it given to them they allocate nothing. */
#include <stdlib.h>

#include "op/dispatch.h"
#include "op/op.h"
#include "unit/nn/fixture.h"

static shoal_value box(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
}

static shoal_value box_list(shoal_tensor *const *tensors, size_t count)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = count, .as.tensors = tensors};
}

static shoal_value box_int(int64_t integer)
{
    return (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = integer};
}

static shoal_value box_real(double real)
{
    return (shoal_value){.kind = SHOAL_VALUE_FLOAT, .as.real = real};
}

static const shoal_value none = {.kind = SHOAL_VALUE_NONE};

/* Calls the op, then its kernel alone with the declared workspace. Both give the same bytes. Returns what was declared. */
static size_t check_op(const char *name, const shoal_value *arguments, size_t n_arguments)
{
    const shoal_op *op = NULL;
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    if (!CHECK_OK(shoal_op_find(name, &op)) ||
        !CHECK_OK(shoal_op_call(op, arguments, n_arguments, &result))) {
        return 0;
    }
    bool is_list = result.kind == SHOAL_VALUE_TENSORS;
    shoal_tensor *const *outputs = is_list ? result.as.tensors : &result.as.tensor;
    size_t n_outputs = is_list ? result.count : 1;
    shoal_tensor *first = shoal_clone(outputs[0]);
    size_t bytes = op_workspace_bytes(op, arguments, outputs, n_outputs);
    CHECK_INT(bytes % SHOAL_OP_WORKSPACE_ALIGNMENT, 0);
    shoal_op_call_context call;
    op_context_init(&call, op);
    call.arguments = arguments;
    call.is_kernel = true;
    void *memory = NULL;
    if (bytes > 0 && posix_memalign(&memory, SHOAL_OP_WORKSPACE_ALIGNMENT, bytes) != 0) {
        return 0;
    }
    call.workspace = memory;
    call.workspace_bytes = bytes;
    test_fail_allocation(1, /*is_lasting=*/true);
    CHECK_OK(op->kernel(&call, arguments, outputs, n_outputs));
    CHECK_INT(test_count_allocations(), 0);
    test_fail_allocation(0, false);
    CHECK(call.scratches == NULL);
    CHECK_BYTES(shoal_data(shoal_clone(outputs[0])), shoal_data(first), tensor_bytes(first));
    free(memory);
    return bytes;
}

static struct test_random numbers;

/* [rows, columns], as it lies or as columns of a wider one. */
static shoal_tensor *make(int64_t rows, int64_t columns, shoal_dtype dtype, bool is_strided)
{
    shoal_tensor *tensor = make_random(&numbers, INTS(rows, is_strided ? columns + 1 : columns), 2, dtype);
    return is_strided ? shoal_narrow(tensor, 1, 0, columns) : tensor;
}

static shoal_tensor *indices(int64_t count, int64_t below, bool is_strided)
{
    shoal_tensor *tensor = shoal_zeros(INTS(count, 2), 2, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; i < 2 * count; i++) {
        data[i] = i % below;
    }
    tensor = shoal_select(tensor, 1, 0);
    return is_strided ? tensor : shoal_clone(tensor);
}

static shoal_tensor *make_heads(bool is_packed, shoal_dtype dtype, bool is_strided)
{
    int n_dims = is_packed ? 5 : 4;
    const int64_t *shape = is_packed ? INTS(2, 3, 3, 4, 5) : INTS(2, 5, 4, 3);
    shoal_tensor *tensor = make_random(&numbers, shape, n_dims, dtype);
    return is_strided && !is_packed ? shoal_transpose(tensor, 1, 3) : tensor;
}

static size_t check_attention(shoal_dtype dtype, bool is_strided)
{
    const shoal_value causal = {.kind = SHOAL_VALUE_BOOL, .count = 1, .as = {.boolean = true}};
    shoal_value position = box(indices(3, 3, is_strided));
    shoal_value x = box(make_heads(false, dtype, is_strided));
    shoal_value qkv = box(make_heads(true, dtype, is_strided));
    shoal_value out = box(shoal_zeros(INTS(2, 3, 4, 5), 4, dtype));
    const int64_t *shape = shoal_tensor_shape(x.as.tensor);
    shoal_dtype wide = dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
    shoal_value lse = box(shoal_zeros(INTS(shape[0], shape[2], shape[1]), 3, wide));
    shoal_value packed_lse = box(shoal_zeros(INTS(2, 4, 3), 3, wide));
    shoal_value p = box_real(0.5);
    size_t bytes =
        check_op("nn.attention", (shoal_value[]){x, x, x, position, causal, box_real(0), p, box_int(7)}, 8);
    bytes += check_op("nn.attention",
                      (shoal_value[]){x, x, x, none, causal, box_real(0), box_real(0), box_int(0)}, 8);
    bytes += check_op("nn.attention_backward",
                      (shoal_value[]){x, x, lse, x, x, x, position, causal, box_real(0), p, box_int(7)}, 11);
    bytes += check_op("nn.attention_packed",
                      (shoal_value[]){qkv, position, causal, box_real(0), p, box_int(7)}, 6);
    bytes +=
        check_op("nn.attention_packed_backward",
                 (shoal_value[]){out, out, packed_lse, qkv, position, causal, box_real(0), p, box_int(7)}, 9);
    return bytes;
}

static void check_nn(shoal_dtype dtype, bool is_strided)
{
    shoal_tensor *a = make(6, 5, dtype, is_strided);
    shoal_tensor *b = make(6, 5, dtype, is_strided);
    shoal_tensor *right = make(5, 7, dtype, is_strided);
    shoal_tensor *weight = make(7, 5, dtype, is_strided);
    shoal_tensor *bias = make_random(&numbers, INTS(7), 1, dtype);
    shoal_tensor *row = shoal_select(make(5, 2, dtype, true), 1, 0);
    shoal_tensor *number = make_random(&numbers, INTS(1), 1, dtype);
    shoal_tensor *classes = indices(6, 5, is_strided);
    shoal_tensor *scalar = shoal_reshape(number, NULL, 0);
    size_t bytes = check_op("nn.matmul", (shoal_value[]){box(a), box(right)}, 2);
    bytes += check_op("nn.linear", (shoal_value[]){box(a), box(weight), box(bias)}, 3);
    bytes += check_op("nn.linear", (shoal_value[]){box(a), box(weight), none}, 3);
    bytes += check_op("nn.matmul", (shoal_value[]){box(a), box(shoal_transpose(b, 0, 1))}, 2);
    bytes += check_op("nn.projection", (shoal_value[]){box(a), box(right), box(bias)}, 3);
    const char *const of_elements[] = {"nn.tanh", "nn.relu", "nn.gelu"};
    const char *const backward[] = {"nn.tanh_backward", "nn.relu_backward", "nn.gelu_backward"};
    for (int i = 0; i < 2; i++) {
        bytes += check_op("nn.softmax", (shoal_value[]){box(a), box_int(i)}, 2);
        bytes += check_op("nn.softmax_backward", (shoal_value[]){box(a), box(b), box_int(i)}, 3);
        bytes += check_op("nn.log_softmax_backward", (shoal_value[]){box(a), box(b), box_int(i)}, 3);
    }
    for (int i = 0; i < 3; i++) {
        bytes += check_op(of_elements[i], (shoal_value[]){box(a)}, 1);
        bytes += check_op(backward[i], (shoal_value[]){box(a), box(b)}, 2);
    }
    bytes += check_op("nn.mse", (shoal_value[]){box(a), box(b)}, 2);
    shoal_tensor *loss =
        shoal_reshape(shoal_to_dtype(scalar, dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32), NULL, 0);
    bytes += check_op("nn.mse_backward", (shoal_value[]){box(loss), box(a), box(b)}, 3);
    bytes +=
        check_op("nn.cross_entropy", (shoal_value[]){box(a), box(classes), box_int(-100), box_real(0.1)}, 4);
    bytes += check_op("nn.cross_entropy_backward",
                      (shoal_value[]){box(loss), box(a), box(classes), box_int(2), box_real(0)}, 5);
    bytes += check_op("nn.embedding", (shoal_value[]){box(classes), box(shoal_clone(weight))}, 2);
    bytes += check_op("nn.embedding_backward", (shoal_value[]){box(a), box(classes), box_int(7)}, 3);
    bytes += check_op("nn.layer_norm", (shoal_value[]){box(a), box(row), box(row), box_real(1e-5)}, 4);
    bytes += check_op("nn.layer_norm", (shoal_value[]){box(a), none, none, box_real(1e-5)}, 4);
    bytes += check_op("nn.layer_norm_backward", (shoal_value[]){box(a), box(b), box_real(1e-5), box(row)}, 4);
    bytes += check_op("nn.layer_norm_backward", (shoal_value[]){box(a), box(b), box_real(1e-5), none}, 4);
    bytes += check_op("nn.layer_norm_weight_backward", (shoal_value[]){box(a), box(b), box_real(1e-5)}, 3);
    bytes += check_op("nn.dropout",
                      (shoal_value[]){box(a), box(indices(3, 3, is_strided)), box_int(7), box_real(0.5)}, 4);
    bytes += check_attention(dtype, is_strided);
    bytes += check_op("nn.rms_norm", (shoal_value[]){box(a), box(row), box_real(1e-5)}, 3);
    bytes += check_op("nn.rms_norm", (shoal_value[]){box(a), none, box_real(1e-5)}, 3);
    bytes += check_op("nn.rms_norm_backward", (shoal_value[]){box(a), box(b), box_real(1e-5), box(row)}, 4);
    bytes += check_op("nn.rms_norm_weight_backward", (shoal_value[]){box(a), box(b), box_real(1e-5)}, 3);
    CHECK(bytes > 0);
}

/* [2, 3, 4], as it lies or with its dimensions the other way round. */
static shoal_tensor *make_deep(shoal_dtype dtype, bool is_strided)
{
    shoal_tensor *tensor = make_random(&numbers, INTS(is_strided ? 4 : 2, 3, is_strided ? 2 : 4), 3, dtype);
    return is_strided ? shoal_transpose(tensor, 0, 2) : tensor;
}

static void check_deep(shoal_dtype dtype, bool is_strided)
{
    shoal_tensor *a = make_deep(dtype, is_strided);
    shoal_tensor *b = make_deep(dtype, is_strided);
    shoal_tensor *mask = make_indices(INTS(1, 0, 1, 0), INTS(4), 1, SHOAL_BOOL);
    size_t bytes = check_op("nn.bmm", (shoal_value[]){box(a), box(shoal_transpose(b, 1, 2))}, 2);
    /* Memory for one matrix of each kind, not for all of them. */
    size_t number_bytes = dtype == SHOAL_F64 ? 8 : 4;
    CHECK(bytes <= 2 * (3 * 4 * number_bytes + 63) + (3 * 3 * number_bytes + 63));
    (void)check_op("nn.rotary", (shoal_value[]){box(a), box_int(5), box_real(100), none}, 4);
    for (int dim = 0; dim < 3; dim++) {
        shoal_value place = box_int(dim);
        const shoal_value keeps = {.kind = SHOAL_VALUE_BOOL, .as.boolean = dim == 1};
        shoal_tensor *gradient = shoal_nn_max(b, dim, keeps.as.boolean);
        (void)check_op("nn.max", (shoal_value[]){box(a), place, keeps}, 3);
        (void)check_op("nn.argmax", (shoal_value[]){box(a), place, keeps}, 3);
        (void)check_op("nn.max_backward", (shoal_value[]){box(gradient), box(a), place, keeps}, 4);
        shoal_tensor *picked = indices(2, 2, is_strided);
        (void)check_op("nn.index_select", (shoal_value[]){box(a), place, box(picked)}, 3);
        (void)check_op("nn.index_select_backward",
                       (shoal_value[]){box(shoal_narrow(a, dim, 0, 2)), place, box(picked), box_int(5)}, 4);
    }
    CHECK_INT(check_op("nn.where", (shoal_value[]){box(mask), box(a), box(b)}, 3), 0);
    CHECK_INT(check_op("nn.masked_fill", (shoal_value[]){box(a), box(mask), box_real(2), none}, 4), 0);
}

NN_TEST(ops_of_modules)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    numbers = test_random_begin(1);
    for (size_t i = 0; i < 4; i++) {
        check_nn(dtypes[i], false);
        check_nn(dtypes[i], true);
        check_deep(dtypes[i], false);
        check_deep(dtypes[i], true);
    }
    /* What a BLAS takes as it lies needs nothing. */
    shoal_tensor *a = make(6, 5, SHOAL_F32, false);
    CHECK_INT(check_op("nn.matmul", (shoal_value[]){box(a), box(shoal_transpose(a, 0, 1))}, 2), 0);
    CHECK_INT(check_op("nn.gelu", (shoal_value[]){box(a)}, 1), 0);
    /* Functions of elements convert those of 16 bits as they go. */
    shoal_tensor *half = make(60, 50, SHOAL_BF16, false);
    CHECK_INT(check_op("nn.gelu", (shoal_value[]){box(half)}, 1), 0);
    CHECK_INT(check_op("nn.gelu_backward", (shoal_value[]){box(half), box(half)}, 2), 0);
}

NN_TEST(built_in_ops)
{
    numbers = test_random_begin(2);
    for (int is_strided = 0; is_strided < 2; is_strided++) {
        shoal_tensor *list[3];
        shoal_tensor *others[3];
        for (size_t i = 0; i < 3; i++) {
            list[i] = make(4, 3 + (int64_t)i, SHOAL_F32, is_strided);
            others[i] = make(4, 3 + (int64_t)i, SHOAL_BF16, is_strided);
        }
        const shoal_value dtype = {.kind = SHOAL_VALUE_DTYPE, .as.dtype = SHOAL_F16};
        const shoal_value sizes = {.kind = SHOAL_VALUE_INTS, .count = 2, .as.integers = INTS(1, 2)};
        CHECK(check_op("chunk_cat", (shoal_value[]){box_list(list, 3), box_int(2), dtype, box_int(0)}, 4) >
              0);
        shoal_tensor *packed = make(2, 2 * (3 + 4 + 5), SHOAL_BF16, false);
        CHECK(check_op("chunk_cat_out",
                       (shoal_value[]){box(packed), box_list(list, 3), box_int(2), box_int(0)}, 4) > 0);
        CHECK(check_op("foreach_copy_", (shoal_value[]){box_list(list, 3), box_list(others, 3)}, 2) > 0);
        size_t bytes = check_op("where_equal", (shoal_value[]){box(list[0]), box(list[0]), box(list[0])}, 3);
        CHECK_INT(bytes, is_strided ? 3 * 64 : 0);
        bytes = check_op("split_with_sizes_copy", (shoal_value[]){box(list[0]), sizes, box_int(-1)}, 3);
        CHECK_INT(bytes, is_strided ? 0 : 64);
        shoal_tensor *pieces[] = {make(4, 1, SHOAL_F32, false), make(4, 2, SHOAL_F32, false)};
        bytes = check_op("split_with_sizes_copy_out",
                         (shoal_value[]){box_list(pieces, 2), box(list[0]), sizes, box_int(1)}, 4);
        CHECK_INT(bytes, is_strided ? 0 : 64);
        CHECK_INT(check_op("add", (shoal_value[]){box(list[0]), box(list[0])}, 2), 0);
    }
}

/* Registered ops --------------------------------------------------------------------------------------- */

static shoal_status meta_greedy(shoal_op_call_context *call, const shoal_value *arguments)
{
    CHECK(shoal_op_workspace(call, 8) == NULL);
    CHECK_ERROR_TEXT("only a kernel");
    return shoal_op_output(call, NULL, 0, SHOAL_F32);
}

/* Takes as often as the argument says, and twice what was declared. */
static shoal_status run_greedy(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    char *last = NULL;
    for (int64_t i = 0; i < 2 * arguments[0].as.integer; i++) {
        char *memory = shoal_op_workspace(call, 100);
        if (!memory) {
            return SHOAL_ERR_NO_MEMORY;
        }
        CHECK_INT((uintptr_t)memory % SHOAL_OP_WORKSPACE_ALIGNMENT, 0);
        CHECK(memory != last);
        memset(memory, (int)i, 100);
        last = memory;
    }
    *(float *)shoal_mutable_data(outputs[0]) = 1;
    return SHOAL_OK;
}

static size_t count_greedy(const shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return (size_t)arguments[0].as.integer * 128;
}

static shoal_status call_greedy(void *context)
{
    shoal_value result;
    shoal_value argument = box_int(3);
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_op_call(context, &argument, 1, &result);
    shoal_status at_end = shoal_scope_end();
    return status == SHOAL_OK ? at_end : status;
}

TEST(a_registered_op_gets_what_it_asks_for)
{
    const shoal_op *op = NULL;
    size_t n_before = test_live_blocks();
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.greedy";
    definition.signature = "int n -> tensor";
    definition.flags = SHOAL_OP_FACTORY;
    definition.meta = meta_greedy;
    definition.kernel = run_greedy;
    definition.workspace = count_greedy;
    REQUIRE_OK(shoal_op_register(&definition, &op));
    test_keep_blocks(test_live_blocks() - n_before);
    shoal_value argument = box_int(3);
    CHECK_INT(op_workspace_bytes(op, &argument, NULL, 0), 384);
    CHECK(test_sweep_allocations(call_greedy, (void *)(uintptr_t)op) >= 6);
    CHECK(shoal_op_workspace(NULL, 1) == NULL);
}
