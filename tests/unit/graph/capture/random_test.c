/* SPDX-License-Identifier: MIT */
/*
 * Random steps: results, views of views, writes of wholes and parts, of temporaries, buffers and inputs, lists, histories. Captured,
 * they compute the bits of the step, with and without what is dead, and change nothing meanwhile.
 */
#include "unit/graph/capturing.h"

#define N_BUFFERS 3
#define N_INPUTS 2
#define N_LEAVES 2
#define MAX_LIVE 24
#define ROWS 4
#define COLUMNS 6

struct program {
    uint64_t seed;
    int n_calls;
    bool records; /* gradients are on: views are not written then */
    shoal_tensor *buffers[N_BUFFERS];
    shoal_tensor *leaves[N_LEAVES];
};

/* Tensors that calls may use. */
struct live {
    struct test_random random;
    shoal_tensor *tensors[MAX_LIVE];
    size_t count;
    bool records;
};

static shoal_tensor *pick_any(struct live *live)
{
    return live->tensors[test_random_below(&live->random, live->count)];
}

/* One of the same shape and dtype, or the tensor itself. */
static shoal_tensor *pick_like(struct live *live, shoal_tensor *like)
{
    for (int i = 0; i < 8; i++) {
        shoal_tensor *other = pick_any(live);
        if (other->dtype == like->dtype && layout_is_same_shape(other->layout.n_dims, other->layout.shape,
                                                                like->layout.n_dims, like->layout.shape)) {
            return other;
        }
    }
    return like;
}

static void keep(struct live *live, shoal_tensor *tensor)
{
    size_t at = live->count < MAX_LIVE ? live->count++ : test_random_below(&live->random, MAX_LIVE);
    live->tensors[at] = tensor ? tensor : live->tensors[0];
}

static shoal_tensor *look(struct live *live, shoal_tensor *tensor)
{
    int n_dims = tensor->layout.n_dims;
    int dim = n_dims > 0 ? (int)test_random_below(&live->random, (uint64_t)n_dims) : 0;
    int64_t size = n_dims > 0 ? tensor->layout.shape[dim] : 0;
    int64_t flat = tensor->count;
    switch (n_dims == 0 || size == 0 ? 5 : test_random_below(&live->random, 6)) {
    case 0:
        return shoal_narrow(tensor, dim, size / 3, size - size / 3);
    case 1:
        return shoal_transpose(tensor, 0, n_dims - 1);
    case 2:
        return n_dims > 1 ? shoal_select(tensor, dim, size - 1) : shoal_clone(tensor);
    case 3:
        return shoal_reshape(tensor, &flat, 1);
    case 4: {
        int64_t sizes[2] = {size / 2, size - size / 2};
        shoal_tensor *const *parts = shoal_split_with_sizes(tensor, sizes, 2, dim, NULL);
        return parts ? parts[test_random_below(&live->random, 2)] : NULL;
    }
    default:
        return shoal_detach(tensor);
    }
}

static shoal_tensor *compute(struct live *live, shoal_tensor *tensor)
{
    switch (test_random_below(&live->random, 7)) {
    case 6:
        return shoal_zeros(tensor->layout.shape, tensor->layout.n_dims, tensor->dtype);
    case 0:
        return shoal_add(tensor, pick_like(live, tensor));
    case 1:
        return shoal_sub(tensor, pick_like(live, tensor));
    case 2:
        return shoal_mul_scalar(tensor, 0.75);
    case 3:
        return shoal_neg(tensor);
    case 4:
        return shoal_contiguous(tensor);
    default:
        return shoal_to_dtype(tensor, test_random_below(&live->random, 3) == 0 ? SHOAL_BF16 : SHOAL_F32);
    }
}

/* What recording allows: not views, and not what shares its storage with a leaf. */
static bool may_be_written(const struct live *live, const shoal_tensor *tensor)
{
    if (layout_may_self_overlap(tensor->layout.n_dims, tensor->layout.shape, tensor->layout.strides)) {
        return false;
    }
    return !live->records || (!tensor->is_view && !shoal_is_leaf(tensor));
}

static shoal_tensor *write(struct live *live, shoal_tensor *tensor)
{
    shoal_tensor *other = pick_like(live, tensor);
    if (!may_be_written(live, tensor)) {
        return shoal_clone(tensor);
    }
    if (other != tensor && (other->storage == tensor->storage || live->records)) {
        other = shoal_clone(other); /* memory that overlaps is refused */
    }
    shoal_value result;
    const shoal_value lists[] = {{.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = &tensor},
                                 {.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = &other}};
    switch (test_random_below(&live->random, live->records ? 4 : 5)) {
    case 0:
        return shoal_add_(tensor, other);
    case 1:
        return shoal_mul_scalar_(tensor, 0.5);
    case 2:
        return shoal_copy_(tensor, other);
    case 3:
        return shoal_add_scalar_(tensor, 0.125);
    default:
        return shoal_op_call(op_get(OP_foreach_add_), lists, 2, &result) == SHOAL_OK ? tensor : NULL;
    }
}

static void make_call(struct live *live)
{
    shoal_tensor *tensor = pick_any(live);
    uint64_t kind = test_random_below(&live->random, 10);
    if (live->records && kind < 3) {
        kind += 3; /* a view taken before a write is an error then: few of both */
    }
    if (kind < 4) {
        keep(live, look(live, tensor));
    } else if (kind < 7) {
        keep(live, compute(live, tensor));
    } else {
        keep(live, write(live, tensor));
    }
}

static shoal_status run_program(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    const struct program *program = context;
    struct live live = {.random = test_random_begin(program->seed), .records = program->records};
    shoal_status status = shoal_scope_set_grad(program->records);
    for (size_t i = 0; i < N_BUFFERS + n_inputs + N_LEAVES; i++) {
        keep(&live, i < N_BUFFERS              ? program->buffers[i]
                    : i < N_BUFFERS + n_inputs ? inputs[i - N_BUFFERS]
                                               : program->leaves[i - N_BUFFERS - n_inputs]);
    }
    for (int i = 0; i < program->n_calls && status == SHOAL_OK; i++) {
        make_call(&live);
        status = shoal_scope_error();
    }
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = pick_any(&live);
    }
    if (status != SHOAL_OK || !program->records) {
        return status;
    }
    shoal_tensor *root = shoal_sum(
        shoal_to_dtype(shoal_mul(program->leaves[0], program->leaves[0]), SHOAL_F32), NULL, 0, false);
    for (size_t i = 0; i < n_outputs; i++) {
        if (outputs[i]->history && !shoal_is_leaf(outputs[i])) {
            root = shoal_add(root, shoal_sum(shoal_to_dtype(outputs[i], SHOAL_F32), NULL, 0, false));
        }
    }
    return root ? shoal_backward(root, NULL) : shoal_scope_error();
}

static void make_program(struct program *program, uint64_t seed, bool records)
{
    int64_t shape[2] = {ROWS, COLUMNS};
    *program = (struct program){.seed = seed, .n_calls = records ? 12 : 30, .records = records};
    for (int i = 0; i < N_BUFFERS; i++) {
        program->buffers[i] = capture_tensor(shape, 2, SHOAL_F32, i, NULL);
    }
    for (int i = 0; i < N_LEAVES; i++) {
        program->leaves[i] = capture_leaf(shape, 2, 20 + i, "leaf");
    }
}

static void free_program(struct program *program)
{
    for (int i = 0; i < N_BUFFERS; i++) {
        shoal_tensor_unref(program->buffers[i]);
    }
    for (int i = 0; i < N_LEAVES; i++) {
        shoal_tensor_unref(program->leaves[i]);
    }
}

/* Whether the step runs at all: recording refuses some orders of views and writes. */
static bool is_allowed(struct program *program, shoal_tensor **inputs)
{
    struct capture_snapshot before = {.count = 0};
    shoal_tensor *outputs[4] = {NULL};
    for (int i = 0; i < N_BUFFERS; i++) {
        snapshot_add(&before, program->buffers[i]);
    }
    for (int i = 0; i < N_INPUTS; i++) {
        snapshot_add(&before, inputs[i]);
    }
    if (!CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    bool is_good = run_program(program, inputs, N_INPUTS, outputs, 4) == SHOAL_OK;
    is_good = shoal_scope_end() == SHOAL_OK && is_good;
    snapshot_put_back(&before, NULL);
    snapshot_free(&before);
    for (int i = 0; i < N_LEAVES; i++) {
        CHECK_OK(shoal_set_grad(program->leaves[i], NULL));
    }
    return is_good;
}

/* A program, what it gets, and what it gave. */
struct side {
    struct program program;
    shoal_tensor *inputs[N_INPUTS];
    shoal_tensor *outputs[4];
};

static void make_side(struct side *side, uint64_t seed, bool records)
{
    int64_t shape[2] = {ROWS, COLUMNS};
    *side = (struct side){.outputs = {NULL}};
    make_program(&side->program, seed, records);
    for (int i = 0; i < N_INPUTS; i++) {
        side->inputs[i] = capture_tensor(shape, 2, SHOAL_F32, 10 + i, NULL);
    }
}

static void free_side(struct side *side)
{
    for (int i = 0; i < N_INPUTS; i++) {
        shoal_tensor_unref(side->inputs[i]);
    }
    free_program(&side->program);
}

static void compare_sides(const struct side *compiled, const struct side *eager)
{
    for (size_t i = 0; i < 4; i++) {
        capture_check_same("output", i, compiled->outputs[i], eager->outputs[i]);
    }
    for (size_t i = 0; i < N_BUFFERS; i++) {
        capture_check_same("buffer", i, compiled->program.buffers[i], eager->program.buffers[i]);
    }
    for (size_t i = 0; i < N_INPUTS; i++) {
        capture_check_same("input", i, compiled->inputs[i], eager->inputs[i]);
    }
    for (size_t i = 0; i < N_LEAVES; i++) {
        capture_check_same("gradient", i, shoal_grad(compiled->program.leaves[i]),
                           shoal_grad(eager->program.leaves[i]));
    }
}

/* Runs of the compiled step beside runs of the step: what they write is there in the next, and gradients add up. */
static void compare_compiled(uint64_t seed, bool records)
{
    struct side eager;
    struct side other;
    shoal_compiled *compiled = NULL;
    make_side(&eager, seed, records);
    make_side(&other, seed, records);
    REQUIRE_OK(shoal_compile(NULL, run_program, &other.program, 4, NULL, &compiled));
    for (int run = 0; run < 3 && !test_has_failed(); run++) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(run_program(&eager.program, eager.inputs, N_INPUTS, eager.outputs, 4));
        CHECK_OK(shoal_compiled_run(compiled, other.inputs, N_INPUTS, other.outputs, 4));
        compare_sides(&other, &eager);
        for (size_t i = 0; i < 4; i++) {
            shoal_tensor_unref(other.outputs[i]);
            other.outputs[i] = NULL;
        }
        CHECK_OK(shoal_scope_end());
    }
    shoal_compiled_free(compiled);
    free_side(&eager);
    free_side(&other);
}

/* 1: it was compared; 0: it cannot be run. */
static int try_program(uint64_t seed, bool records)
{
    int64_t shape[2] = {ROWS, COLUMNS};
    struct program program;
    shoal_tensor *inputs[N_INPUTS];
    make_program(&program, seed, records);
    for (int i = 0; i < N_INPUTS; i++) {
        inputs[i] = capture_tensor(shape, 2, SHOAL_F32, 10 + i, NULL);
    }
    struct captured_step step = {
        .step = run_program, .context = &program, .inputs = inputs, .n_inputs = N_INPUTS, .n_outputs = 4};
    bool is_compared = is_allowed(&program, inputs);
    shoal_graph *graph = is_compared ? capture_check(&step, NULL) : NULL;
    if (graph) {
        CHECK_OK(shoal_graph_remove_dead(graph, NULL));
        capture_compare(&step, graph, NULL);
        compare_compiled(seed, records);
    }
    shoal_graph_free(graph);
    for (int i = 0; i < N_INPUTS; i++) {
        shoal_tensor_unref(inputs[i]);
    }
    free_program(&program);
    return is_compared ? 1 : 0;
}

static void try_programs(bool records, int n_programs, int least)
{
    struct test_random random = test_random_begin(records ? 1 : 2);
    int n_compared = 0;
    for (int i = 0; i < n_programs && !test_has_failed(); i++) {
        uint64_t seed = test_random_u64(&random);
        n_compared += try_program(seed, records);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "program %d, seed %llu", i, (unsigned long long)seed);
        }
    }
    CHECK(n_compared >= least || test_has_failed());
}

TEST(random_steps_without_gradients)
{
    int n_programs = (int)(400 / test_time_scale());
    try_programs(false, n_programs, n_programs * 9 / 10);
}

TEST(random_steps_with_gradients)
{
    int n_programs = (int)(400 / test_time_scale());
    try_programs(true, n_programs, n_programs / 10);
}
