/* SPDX-License-Identifier: MIT */
/*
 * Where gradients lie is another matter on each rank when shards are uneven or empty, and decides nothing that ranks decide together:
 * compiled steps beside eager ones, with gradients in buffers of the program that change from run to run.
 */
#include "fixtures/module_net.h"
#include "shoal/compile.h"
#include "tensor/tensor.h"

enum {
    N_PARAMETERS = 2,
    WIDTH = 3
};

/* How gradients lie before a run. */
enum place {
    PLACE_NONE,      /* there are none */
    PLACE_KEPT,      /* as the last run left them */
    PLACE_OWN,       /* each in memory of its own */
    PLACE_FLAT,      /* in one buffer, the first parameter first, */
    PLACE_BACKWARDS, /* or last, */
    PLACE_GAPS,      /* or with room around them */
    PLACE_TURNED,    /* in one buffer, with the strides of a transposed tensor */
    PLACE_COUNT
};

struct model {
    shoal_module *module;
    shoal_tensor *flat; /* of the run; NULL: none */
};

static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_mul(shoal_mul(inputs[0], shoal_module_parameter(module, "a")),
                           shoal_sum(shoal_module_parameter(module, "b"), (int64_t[]){0}, 1, false));
    return SHOAL_OK;
}

static shoal_status train(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                          size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_sum(shoal_module_call_one(context, inputs[0]), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

/* Gives the gradients themselves, and takes them off the leaves. */
static shoal_status take(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(context, &n_parameters);
    (void)inputs;
    (void)n_inputs;
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = shoal_detach(shoal_grad(parameters[i]));
        shoal_status status = shoal_set_grad(parameters[i], NULL);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

/* With three ranks one has an empty shard of a parameter of two rows, and a short one of a parameter of five. */
static void make(struct model *model, shoal_world *world, const int64_t rows[N_PARAMETERS])
{
    static const char *names[] = {"a", "b"};
    *model = (struct model){.module = net_make_module("model", forward, NULL)};
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_tensor *parameter = net_numbers((uint32_t)i, (int64_t[]){rows[i], WIDTH}, 2);
        (void)CHECK_OK(shoal_set_requires_grad(parameter, true));
        (void)CHECK_OK(shoal_module_add_parameter(model->module, names[i], parameter));
    }
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.group = shoal_world_group(world);
    (void)CHECK_OK(shoal_fully_shard(model->module, &options));
}

/* What the gradient of a parameter is that begins there. */
static shoal_tensor *cut(shoal_tensor *flat, int64_t first, const shoal_tensor *parameter, bool is_turned)
{
    const int64_t *shape = shoal_tensor_shape(parameter);
    shoal_tensor *part = shoal_narrow(flat, 0, first, shoal_tensor_count(parameter));
    return is_turned ? shoal_transpose(shoal_view(part, (int64_t[]){shape[1], shape[0]}, 2), 0, 1)
                     : shoal_view(part, shape, 2);
}

static void put(struct model *model, enum place place, uint32_t seed)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(model->module, &n_parameters);
    int64_t n_a = shoal_tensor_count(parameters[0]);
    int64_t n_b = shoal_tensor_count(parameters[1]);
    int64_t gap = place == PLACE_GAPS ? 7 : 0;
    model->flat = NULL;
    if (place == PLACE_KEPT) {
        return;
    }
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_tensor *own =
            place == PLACE_OWN ? net_numbers(seed, shoal_tensor_shape(parameters[i]), 2) : NULL;
        (void)CHECK_OK(shoal_set_grad(parameters[i], own));
    }
    if (place == PLACE_OWN || place == PLACE_NONE) {
        return;
    }
    model->flat = net_numbers(seed, (int64_t[]){n_a + n_b + 3 * gap}, 1);
    bool is_turned = place == PLACE_TURNED;
    int64_t first_a = place == PLACE_BACKWARDS ? n_b : gap;
    int64_t first_b = place == PLACE_BACKWARDS ? 0 : n_a + 2 * gap;
    (void)CHECK_OK(shoal_set_grad(parameters[0], cut(model->flat, first_a, parameters[0], is_turned)));
    (void)CHECK_OK(shoal_set_grad(parameters[1], cut(model->flat, first_b, parameters[1], is_turned)));
}

static bool is_same(shoal_tensor *a, shoal_tensor *b)
{
    if (!a || !b || shoal_tensor_count(a) != shoal_tensor_count(b)) {
        return a == b;
    }
    const void *x = shoal_data(shoal_contiguous(a));
    const void *y = shoal_data(shoal_contiguous(b));
    return tensor_bytes(a) == 0 || (x && y && memcmp(x, y, tensor_bytes(a)) == 0);
}

static void compare(const struct model *eager, const struct model *other, int number)
{
    size_t count;
    shoal_tensor *const *a = shoal_module_parameters(eager->module, &count);
    shoal_tensor *const *b = shoal_module_parameters(other->module, &count);
    for (size_t i = 0; i < count; i++) {
        if (!is_same(shoal_grad(a[i]), shoal_grad(b[i]))) {
            test_failed(__FILE__, __LINE__, "run %d: gradient %zu", number, i);
        }
    }
    if (!is_same(eager->flat, other->flat)) {
        test_failed(__FILE__, __LINE__, "run %d: the buffer", number);
    }
}

/* Gradients lie as a list of places says. */
static void run_places(const struct rank *self, int64_t rows_of_b, const enum place *places, int n_runs,
                       shoal_step_function step, size_t n_outputs)
{
    static _Thread_local int round;
    const int64_t rows[] = {2, rows_of_b};
    struct model eager;
    struct model other;
    shoal_compiled *compiled = NULL;
    shoal_world *world = rank_world_open(self, round++);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    make(&eager, world, rows);
    make(&other, world, rows);
    REQUIRE_OK(shoal_compile(world, step, other.module, n_outputs, NULL, &compiled));
    for (int n = 0; n < n_runs; n++) {
        shoal_tensor *want[2] = {NULL};
        shoal_tensor *got[2] = {NULL};
        shoal_tensor *x = net_numbers((uint32_t)(100 + 10 * n + self->rank), (int64_t[]){2, WIDTH}, 2);
        put(&eager, places[n], (uint32_t)n);
        put(&other, places[n], (uint32_t)n);
        (void)CHECK_OK(step(eager.module, &x, 1, want, n_outputs));
        REQUIRE_OK(shoal_compiled_run(compiled, &x, 1, got, n_outputs));
        compare(&eager, &other, n);
        for (size_t i = 0; i < n_outputs; i++) {
            CHECK(is_same(want[i], got[i]));
            /* An output that is a gradient is the very gradient, wherever that lies. */
            CHECK(step != take || want[i]->storage == eager.flat->storage);
            CHECK(step != take || places[n] == PLACE_TURNED || tensor_bytes(got[i]) == 0 ||
                  got[i]->storage == other.flat->storage);
            shoal_tensor_unref(got[i]);
        }
    }
    shoal_compiled_free(compiled);
    shoal_module_unref(eager.module);
    shoal_module_unref(other.module);
    REQUIRE_OK(shoal_scope_end());
    REQUIRE_OK(shoal_world_close(world));
}

TEST_RANKS(a_flat_buffer_turns_round, 3)
{
    static const enum place places[] = {PLACE_NONE, PLACE_FLAT,      PLACE_BACKWARDS, PLACE_BACKWARDS,
                                        PLACE_GAPS, PLACE_BACKWARDS, PLACE_TURNED,    PLACE_FLAT};
    run_places(self, 2, places, sizeof places / sizeof places[0], train, 1);
    run_places(self, 5, places, sizeof places / sizeof places[0], train, 1);
}

TEST_RANKS(outputs_that_are_gradients_move_with_them, 3)
{
    static const enum place places[] = {PLACE_FLAT, PLACE_BACKWARDS, PLACE_GAPS, PLACE_TURNED, PLACE_FLAT};
    run_places(self, 5, places, sizeof places / sizeof places[0], take, 2);
}

TEST_RANKS(gradients_lie_anywhere, 3)
{
    enum {
        N_RUNS = 40
    };
    enum place places[N_RUNS] = {PLACE_NONE};
    uint32_t state = 7;
    for (int i = 1; i < N_RUNS; i++) {
        state = state * 1664525U + 1013904223U;
        places[i] = (enum place)((state >> 16) % PLACE_COUNT);
    }
    run_places(self, 2, places, N_RUNS, train, 1);
    run_places(self, 5, places, N_RUNS, train, 1);
}

/* Without memory for the copies nothing has happened. */

struct leaves {
    shoal_tensor *of[N_PARAMETERS];
    shoal_compiled *compiled;
    shoal_tensor *x;
    shoal_tensor *flat;
};

static shoal_status multiply(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct leaves *leaves = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_sum(shoal_mul(shoal_mul(inputs[0], leaves->of[0]), leaves->of[1]), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

static void put_flat(struct leaves *leaves, bool is_backwards)
{
    for (int i = 0; i < N_PARAMETERS; i++) {
        (void)CHECK_OK(shoal_set_grad(
            leaves->of[i], shoal_narrow(leaves->flat, 0, (i == 1) != is_backwards ? WIDTH : 0, WIDTH)));
    }
}

static shoal_status run_moved(void *context)
{
    struct leaves *leaves = context;
    float before[2 * WIDTH];
    shoal_tensor *loss = NULL;
    memcpy(before, shoal_data(leaves->flat), sizeof before);
    shoal_status status = shoal_compiled_run(leaves->compiled, &leaves->x, 1, &loss, 1);
    shoal_tensor_unref(loss);
    CHECK(status == SHOAL_OK || memcmp(before, shoal_data(leaves->flat), sizeof before) == 0);
    return status;
}

/* The next allocation to fail; 0: none failed. */
static size_t run_without_memory(struct leaves *leaves, size_t number, int *n_failed)
{
    test_fail_allocation(number, /*is_lasting=*/true);
    shoal_status status = run_moved(leaves);
    size_t n_allocations = test_count_allocations();
    test_fail_allocation(0, false);
    CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
    *n_failed += status != SHOAL_OK;
    return n_allocations < number ? 0 : number + 1;
}

TEST(no_memory_for_copies)
{
    struct leaves leaves = {.compiled = NULL};
    REQUIRE_OK(shoal_scope_begin());
    leaves.x = net_numbers(1, (int64_t[]){WIDTH}, 1);
    leaves.flat = net_numbers(2, (int64_t[]){2 * WIDTH}, 1);
    for (int i = 0; i < N_PARAMETERS; i++) {
        leaves.of[i] = net_numbers((uint32_t)(3 + i), (int64_t[]){WIDTH}, 1);
        REQUIRE_OK(shoal_set_requires_grad(leaves.of[i], true));
    }
    REQUIRE_OK(shoal_compile(NULL, multiply, &leaves, 1, NULL, &leaves.compiled));
    put_flat(&leaves, false);
    REQUIRE_OK(run_moved(&leaves));
    put_flat(&leaves, true);
    /* Blocks that were freed are used again, so that allocations are few, and fewer after each run. */
    int n_failed = 0;
    for (size_t number = 1; number > 0; number = run_without_memory(&leaves, number, &n_failed)) {
    }
    CHECK(n_failed > 0);
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    REQUIRE_OK(shoal_compiled_get_report(leaves.compiled, &report));
    CHECK_INT(report.n_compiles, 1);
    shoal_compiled_free(leaves.compiled);
    REQUIRE_OK(shoal_scope_end());
}
