/* SPDX-License-Identifier: MIT */
/*
 * Variants of compiled steps: how many are kept, which one gives way to a new one, that ranks agree on it, and what
 * happens to what the freed variant has given out, has in flight, or has failed at.
 */
#include <pthread.h>
#include <stddef.h>

#include "fixtures/compiled_pair.h"
#include "shoal/collective.h"

enum {
    N_SIZES = 10,
    LOCAL_ROWS = 100, /* steps of so many rows do not communicate */
    OTHER_ROWS = 200, /* from so many rows on they do on the other group */
    SHAKY_ROWS = 300  /* and from so many rows on they call an op of the test */
};

/* An op that fails, or runs the step again ------------------------------------------------------------------- */

static _Thread_local bool must_fail;
static _Thread_local shoal_compiled *must_run;

static shoal_status meta_shaky(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self), SHOAL_F32);
}

/* A run of another kind of input would free the variant whose plan is running. */
static void run_inside(shoal_compiled *compiled)
{
    shoal_tensor *output = NULL;
    shoal_tensor *x = shoal_zeros((int64_t[]){7}, 1, SHOAL_F32);
    CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("compiled_run: the step is running already");
}

static shoal_status run_shaky(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)n_outputs;
    if (must_run) {
        run_inside(must_run);
    }
    if (must_fail) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "it was told to");
    }
    return shoal_copy_(outputs[0], arguments[0].as.tensor) ? SHOAL_OK : SHOAL_ERR_STATE;
}

static const shoal_op *shaky;

static void register_once(void)
{
    size_t n_before = test_live_blocks();
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.shaky";
    definition.signature = "tensor self -> tensor";
    definition.meta = meta_shaky;
    definition.kernel = run_shaky;
    (void)CHECK_OK(shoal_op_register(&definition, &shaky));
    test_keep_blocks(test_live_blocks() - n_before);
}

static void register_shaky(const struct rank *self)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    test_barrier((struct rank *)(uintptr_t)self); /* nobody else allocates meanwhile */
    (void)pthread_once(&once, register_once);
    test_barrier((struct rank *)(uintptr_t)self);
}

/* A step whose communication depends on its input ------------------------------------------------------------ */

struct job {
    shoal_world *world;
    shoal_group *other; /* all ranks once more */
    int rank;
    int n_ranks;
    shoal_compiled *compiled;
};

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    const struct job *job = context;
    int64_t n_rows = shoal_tensor_shape(inputs[0])[0];
    shoal_tensor *y = shoal_neg(inputs[0]);
    (void)n_inputs;
    (void)n_outputs;
    if (n_rows != LOCAL_ROWS) {
        y = shoal_all_reduce(y, SHOAL_SUM, n_rows >= OTHER_ROWS ? job->other : shoal_world_group(job->world));
    }
    if (y && n_rows >= SHAKY_ROWS) {
        shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .as.tensor = y};
        shoal_value result = {.kind = SHOAL_VALUE_NONE};
        shoal_status status = shoal_op_call(shaky, &argument, 1, &result);
        if (status != SHOAL_OK) {
            return status;
        }
        y = result.as.tensor;
    }
    outputs[0] = y;
    return shoal_scope_error();
}

static bool begin_with(struct job *job, const struct rank *self, const shoal_compile_options *options)
{
    static _Thread_local int round;
    int ranks[8];
    for (int i = 0; i < self->n_ranks; i++) {
        ranks[i] = i;
    }
    *job = (struct job){.rank = self->rank, .n_ranks = self->n_ranks};
    register_shaky(self);
    job->world = rank_world_open(self, round++);
    return job->world && CHECK_OK(shoal_scope_begin()) &&
           CHECK_OK(shoal_group_create(job->world, ranks, self->n_ranks, "other", &job->other)) &&
           CHECK_OK(shoal_compile(job->world, step, job, 1, options, &job->compiled));
}

static bool begin(struct job *job, const struct rank *self, size_t max_variants)
{
    shoal_compile_options options = {.struct_size = sizeof options, .max_variants = max_variants};
    return begin_with(job, self, &options);
}

static void end(struct job *job)
{
    shoal_compiled_free(job->compiled);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(job->world));
}

static shoal_status run_for(struct job *job, int64_t n_rows, shoal_tensor **output)
{
    shoal_tensor *x = shoal_empty(&n_rows, 1, SHOAL_F32);
    float *numbers = shoal_mutable_data(x);
    for (int64_t i = 0; numbers && i < n_rows; i++) {
        numbers[i] = (float)(job->rank + 1 + i);
    }
    return shoal_compiled_run(job->compiled, &x, 1, output, 1);
}

/* Whether an output has what the step of so many rows gives, times a factor. */
static bool is_right(const struct job *job, shoal_tensor *output, int64_t n_rows, int factor)
{
    const float *numbers = shoal_data(output);
    int n_ranks = n_rows == LOCAL_ROWS ? 1 : job->n_ranks;
    int sum = n_rows == LOCAL_ROWS ? job->rank + 1 : n_ranks * (n_ranks + 1) / 2;
    int64_t i = 0;
    while (numbers && i < n_rows && numbers[i] == (float)(-factor * (sum + n_ranks * (int)i))) {
        i++;
    }
    return numbers && i == n_rows;
}

static void run(struct job *job, int64_t n_rows)
{
    shoal_tensor *output = NULL;
    if (CHECK_OK(run_for(job, n_rows, &output))) {
        CHECK(is_right(job, output, n_rows, 1));
        shoal_tensor_unref(output);
    }
}

static shoal_compile_report report_of(const struct job *job)
{
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    (void)CHECK_OK(shoal_compiled_get_report(job->compiled, &report));
    return report;
}

static void check_counts(const struct job *job, size_t n_compiles, size_t n_variants, size_t n_evicted)
{
    shoal_compile_report report = report_of(job);
    CHECK_INT((int64_t)report.n_compiles, (int64_t)n_compiles);
    CHECK_INT((int64_t)report.n_variants, (int64_t)n_variants);
    CHECK_INT((int64_t)report.n_evicted, (int64_t)n_evicted);
}

/* How many are kept ------------------------------------------------------------------------------------------- */

/* Ten sizes of batches in rotation: each is captured once. */
static void rotate_with(const struct rank *self, enum wrapping wrapping, size_t max_variants,
                        size_t n_compiles)
{
    struct pair pair;
    shoal_compile_options options = {.struct_size = sizeof options, .max_variants = max_variants};
    if (pair_begin(&pair, self, wrapping, &options)) {
        for (int i = 0; i < 10 * N_SIZES; i++) {
            pair_run(&pair, i, 1 + i % N_SIZES);
            pair_update(&pair);
        }
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
        CHECK_INT((int64_t)report.n_compiles, (int64_t)n_compiles);
        CHECK_INT((int64_t)(report.n_variants + report.n_evicted), (int64_t)n_compiles);
    }
    pair_end(&pair);
}

static void rotate(const struct rank *self, enum wrapping wrapping)
{
    rotate_with(self, wrapping, 0, N_SIZES);
}

TEST_RANKS(ten_sizes_in_rotation_alone, 1)
{
    rotate(self, WRAP_NOTHING);
    rotate(self, WRAP_SHARDS);
}

TEST_RANKS(ten_sizes_in_rotation_on_two_ranks, 2)
{
    rotate(self, WRAP_DDP);
    rotate(self, WRAP_SHARDS);
}

TEST_RANKS(ten_sizes_in_rotation_on_four_ranks, 4)
{
    rotate(self, WRAP_SHARDS);
}

TEST_RANKS(too_few_push_each_other_out, 2)
{
    rotate_with(self, WRAP_SHARDS, N_SIZES - 1, 10 * N_SIZES);
}

TEST_RANKS(sixty_four_are_kept_by_default, 2)
{
    struct job job;
    if (begin(&job, self, 0)) {
        for (int64_t i = 1; i <= 65; i++) {
            run(&job, i);
        }
        check_counts(&job, 65, 64, 1);
        run(&job, 2); /* is still there, */
        check_counts(&job, 65, 64, 1);
        run(&job, 1); /* and this is not */
        check_counts(&job, 66, 64, 2);
    }
    end(&job);
}

TEST_RANKS(the_least_recently_used_one_gives_way, 2)
{
    static const struct {
        int64_t n_rows;
        size_t n_compiles;
    } runs[] = {{2, 1},
                {3, 2},
                {4, 3},
                {2, 3},
                {5, 4} /* 3 goes */,
                {2, 4},
                {4, 4},
                {5, 4},
                {3, 5} /* 2 goes */,
                {4, 5},
                {5, 5},
                {2, 6} /* 3 goes */,
                {4, 6},
                {5, 6}};
    struct job job;
    if (begin(&job, self, 3)) {
        for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
            run(&job, runs[i].n_rows);
            CHECK_INT((int64_t)report_of(&job).n_compiles, (int64_t)runs[i].n_compiles);
        }
        check_counts(&job, 6, 3, 3);
    }
    end(&job);
}

TEST_RANKS(one_variant_is_enough, 2)
{
    struct job job;
    if (begin(&job, self, 1)) {
        run(&job, 2);
        run(&job, 2);
        run(&job, 3);
        run(&job, 2);
        check_counts(&job, 3, 1, 2);
    }
    end(&job);
}

TEST(max_variants_is_checked)
{
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    struct job job = {.rank = 0};
    shoal_compiled *compiled = NULL;
    options.max_variants = 4097;
    CHECK_STATUS(shoal_compile(NULL, step, &job, 1, &options, &compiled), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("compile: max_variants is 4097, 0 (which means 64) to 4096 expected");
    CHECK(compiled == NULL);
    options.max_variants = 4096;
    CHECK_OK(shoal_compile(NULL, step, &job, 1, &options, &compiled));
    shoal_compiled_free(compiled);
}

/* A program that was compiled before there was max_variants. */
TEST_RANKS(an_older_struct_of_options_means_the_default, 1)
{
    struct job job;
    if (begin(&job, self, 0)) {
        shoal_compile_options options = {.struct_size = offsetof(shoal_compile_options, max_variants),
                                         .max_variants = 1};
        shoal_compiled_free(job.compiled);
        REQUIRE_OK(shoal_compile(job.world, step, &job, 1, &options, &job.compiled));
        run(&job, 2);
        run(&job, 3);
        check_counts(&job, 2, 2, 0);
    }
    end(&job);
}

/* The sum over all variants, each of which is the current one in some run. */
TEST_RANKS(the_memory_of_variants_is_reported, 2)
{
    struct job job;
    size_t bytes = 0;
    if (begin(&job, self, 4)) {
        for (int64_t i = 1; i <= 4; i++) {
            run(&job, 1000 * i);
            shoal_compile_report report = report_of(&job);
            bytes += report.plan.pool_bytes + report.plan.output_bytes + report.plan.comm_bytes;
            CHECK_INT((int64_t)report.variants_bytes, (int64_t)bytes);
        }
        CHECK(bytes >= 10 * 1000 * sizeof(float));
        run(&job, 1000 * 5);
        shoal_compile_report report = report_of(&job);
        CHECK(report.variants_bytes > bytes); /* of 2, 3, 4 and 5 in place of 1, 2, 3 and 4 */
        run(&job, 1000 * 2);
        CHECK_INT((int64_t)report_of(&job).variants_bytes, (int64_t)report.variants_bytes);
    }
    end(&job);
}

TEST_RANKS(windows_of_variants_are_reported, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_SHARDS, NULL)) {
        size_t bytes = 0;
        for (int i = 0; i < 3; i++) {
            shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
            pair_run(&pair, i, 2 + i);
            pair_update(&pair);
            (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
            bytes += report.plan.window_bytes;
            CHECK_INT((int64_t)report.variants_window_bytes, (int64_t)bytes);
        }
    }
    pair_end(&pair);
}

/* Ranks that deviate ------------------------------------------------------------------------------------------ */

TEST_RANKS(ranks_agree_on_how_many_are_kept, 3)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, self->rank == 1 ? 2 : 64)) {
        CHECK_STATUS(run_for(&job, 2, &output), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("a compiled step of at most 64 variants (max_variants)");
        CHECK_ERROR_TEXT("rank 1 has \"a compiled step of at most 2 variants");
        CHECK_OK(shoal_group_barrier(shoal_world_group(job.world)));
    }
    end(&job);
}

TEST_RANKS(the_default_is_the_same_as_its_number, 2)
{
    struct job job;
    if (begin(&job, self, self->rank == 0 ? 64 : 0)) {
        run(&job, 2);
    }
    end(&job);
}

/* A run of rank 1 of its own, that others count as a failed one. */
static void run_on_one_rank(struct job *job, struct rank *self)
{
    shoal_tensor *output = NULL;
    if (self->rank == 1) {
        run(job, LOCAL_ROWS);
    } else {
        CHECK_STATUS(shoal_compiled_run(job->compiled, NULL, 1, &output, 1), SHOAL_ERR_INVALID);
    }
    test_barrier(self);
}

/* Variants that do not communicate can be used in different runs, and nobody notices until one has to give way. Then
   all ranks hear of it, before any of them frees one, and go on when they have used them alike. */
TEST_RANKS(ranks_agree_on_which_one_gives_way, 3)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 3)) {
        run(&job, LOCAL_ROWS);
        run(&job, 2);
        run(&job, 3);
        run(&job, 2);
        /* All have three. One rank uses its own once more where the others use none. */
        run_on_one_rank(&job, self);
        CHECK_STATUS(run_for(&job, 4, &output), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 0 has \"the variant of run 1 of the step gives way\"");
        CHECK_ERROR_TEXT("rank 1 has \"the variant of run 3 of the step gives way\"");
        check_counts(&job, 3, 3, 0);
        run(&job, LOCAL_ROWS);
        run(&job, 3);
        run(&job, 2);
        run(&job, 4);
        check_counts(&job, 4, 3, 1);
    }
    end(&job);
}

/* One rank has a variant more, and frees one where the others have room. */
TEST_RANKS(ranks_agree_on_whether_one_gives_way, 2)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 2)) {
        run(&job, 2);
        run_on_one_rank(&job, self);
        CHECK_STATUS(run_for(&job, 3, &output), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 1 has \"the variant of run 1 of the step gives way\"");
        run(&job, 2);
    }
    end(&job);
}

/* What the freed variant leaves ------------------------------------------------------------------------------- */

TEST_RANKS(outputs_of_a_freed_variant_stay, 2)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 1) && CHECK_OK(run_for(&job, 5, &output))) {
        shoal_tensor *view = shoal_tensor_ref(shoal_narrow(output, 0, 1, 2));
        run(&job, 6);
        run(&job, 7);
        CHECK(is_right(&job, output, 5, 1));
        CHECK(((const float *)shoal_data(view))[0] == ((const float *)shoal_data(output))[1]);
        shoal_tensor_unref(output);
        shoal_tensor_unref(view);
    }
    end(&job);
}

/* A collective that the program has started on an output is in flight in the memory of the variant. */
TEST_RANKS(a_variant_is_freed_with_work_in_flight_on_its_output, 2)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 1) && CHECK_OK(run_for(&job, 50000, &output))) {
        CHECK(shoal_all_reduce_(output, SHOAL_SUM, job.other) != NULL);
        run(&job, 6);
        CHECK(is_right(&job, output, 50000, job.n_ranks));
        shoal_tensor_unref(output);
    }
    end(&job);
}

TEST_RANKS(a_variant_that_failed_is_freed, 2)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 1)) {
        run(&job, SHAKY_ROWS);
        must_fail = true;
        CHECK_STATUS(run_for(&job, SHAKY_ROWS, &output), SHOAL_ERR_UNSUPPORTED);
        must_fail = false;
        run(&job, 4);
        run(&job, SHAKY_ROWS);
        check_counts(&job, 3, 1, 2);
    }
    end(&job);
}

/* The group of the freed variant has failed; the new one is on another group. */
TEST_RANKS(a_variant_of_a_failed_group_is_freed, 2)
{
    struct job job;
    shoal_tensor *output = NULL;
    if (begin(&job, self, 1)) {
        run(&job, OTHER_ROWS);
        test_barrier((struct rank *)(uintptr_t)self);
        (void)shoal_group_abort(job.other, "for the test");
        CHECK(run_for(&job, OTHER_ROWS, &output) != SHOAL_OK);
        test_barrier((struct rank *)(uintptr_t)self);
        run(&job, 4);
        check_counts(&job, 2, 1, 1);
        CHECK(run_for(&job, OTHER_ROWS, &output) !=
              SHOAL_OK); /* cannot be compiled again, and nothing is freed */
        check_counts(&job, 2, 1, 1);
    }
    test_barrier((struct rank *)(uintptr_t)self);
    end(&job);
}

TEST_RANKS(a_variant_that_runs_is_not_freed, 2)
{
    struct job job;
    if (begin(&job, self, 1)) {
        run(&job, SHAKY_ROWS);
        must_run = job.compiled;
        run(&job, SHAKY_ROWS);
        must_run = NULL;
        check_counts(&job, 1, 1, 0);
    }
    end(&job);
}

/* Memory ------------------------------------------------------------------------------------------------------ */

/* Wherever memory ends while a new variant is made, on all ranks alike: the others are as they were, and the new one is
   made as soon as there is memory. */
static void make_without_memory(struct job *job)
{
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    size_t stride = (size_t)(7 * test_time_scale());
    size_t n_compiles = 2;
    for (size_t number = 1; status != SHOAL_OK && !test_has_failed(); number += stride) {
        shoal_tensor *output = NULL;
        shoal_tensor *x = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
        test_fail_allocation(number, number / stride % 2 == 0);
        status = shoal_compiled_run(job->compiled, &x, 1, &output, 1);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
        CHECK((status == SHOAL_OK) == (output != NULL));
        shoal_tensor_unref(output);
        shoal_compile_report report = report_of(job);
        n_compiles = report.n_compiles;
        CHECK(n_compiles <= 3 && report.n_evicted == n_compiles - 2);
        run(job, 3); /* is never the one that gives way */
        CHECK_INT((int64_t)report_of(job).n_compiles, (int64_t)n_compiles);
    }
    CHECK_INT((int64_t)n_compiles, 3);
}

TEST_RANKS(memory_ends_in_a_capture, 1)
{
    struct job job;
    if (begin(&job, self, 2)) {
        run(&job, 2);
        run(&job, 3);
        make_without_memory(&job);
    }
    end(&job);
}

/* A variant that is too large on one rank is refused on all of them. */
TEST_RANKS(a_variant_that_is_too_large_leaves_the_others, 3)
{
    struct job job;
    shoal_tensor *output = NULL;
    shoal_compile_options options = {
        .struct_size = sizeof options, .max_variants = 2, .max_bytes = self->rank == 1 ? (size_t)1 << 20 : 0};
    if (begin_with(&job, self, &options)) {
        run(&job, 2);
        run(&job, 3);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(run_for(&job, 500000, &output), SHOAL_ERR_NO_MEMORY);
            check_counts(&job, 2, 2, 0);
            run(&job, 2);
            run(&job, 3);
        }
        run(&job, 4);
        check_counts(&job, 3, 2, 1);
    }
    end(&job);
}
