/* SPDX-License-Identifier: MIT */
/*
 * Works that the program has started on raw memory, of which tensors know nothing, and a compiled step that uses this
 * memory: the run waits for those that it must not run beside, and only for those. The other rank does its part late, so
 * that a run which does not wait computes with what was there before.
 */
#include "fixtures/compiled_pair.h"
#include "shoal/collective.h"

enum {
    N = 40000, /* more than what is sent along with a call */
    LATE_MS = 30
};

struct job {
    shoal_world *world;
    shoal_group *group;
    const struct rank *self;
    shoal_tensor *used; /* by the step, besides its input */
    bool writes;        /* the step writes its input */
    bool is_together;   /* the step communicates */
    shoal_tensor *x;    /* the input, and its memory */
    float *numbers;
    shoal_compiled *compiled;
};

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    const struct job *job = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_neg(job->used ? job->used : inputs[0]);
    if (job->writes) {
        (void)shoal_mul_scalar_(inputs[0], 100.0);
    }
    if (job->is_together) {
        outputs[0] = shoal_all_reduce(outputs[0], SHOAL_SUM, job->group);
    }
    return shoal_scope_error();
}

static void fill(struct job *job)
{
    for (int i = 0; i < N; i++) {
        job->numbers[i] = (float)(job->self->rank + 1 + i % 100);
    }
}

static bool begin(struct job *job, const struct rank *self, struct job with)
{
    static _Thread_local int round;
    *job = with;
    job->self = self;
    job->world = rank_world_open(self, round++);
    if (!job->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    job->group = shoal_world_group(job->world);
    job->x = shoal_zeros((int64_t[]){N}, 1, SHOAL_F32);
    job->numbers = shoal_mutable_data(job->x);
    fill(job);
    return CHECK_OK(shoal_compile(job->world, step, job, 1, NULL, &job->compiled));
}

static void end(struct job *job)
{
    shoal_compiled_free(job->compiled);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(job->world));
}

static void meet(const struct job *job)
{
    test_barrier((struct rank *)(uintptr_t)job->self);
}

/* Runs the step, and checks that all numbers of the output are -(a + b * i). */
static void run(struct job *job, shoal_tensor *x, float a, float b)
{
    shoal_tensor *output = NULL;
    if (CHECK_OK(shoal_compiled_run(job->compiled, &x, 1, &output, 1))) {
        const float *numbers = shoal_data(output);
        int64_t i = 0;
        while (i < shoal_tensor_count(output) && numbers[i] == -(a + b * (float)(i % 100))) {
            i++;
        }
        CHECK_INT(i, shoal_tensor_count(output));
        shoal_tensor_unref(output);
    }
}

static void finish(shoal_work *work)
{
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
}

/* What is waited for ------------------------------------------------------------------------------------------ */

typedef shoal_status start_function(struct job *job, shoal_work **work);

static shoal_status start_all_reduce(struct job *job, shoal_work **work)
{
    return shoal_group_all_reduce_start(job->group, job->numbers, job->numbers, N, SHOAL_F32, SHOAL_SUM,
                                        work);
}

/* From rank 1 to the others. */
static shoal_status start_broadcast(struct job *job, shoal_work **work)
{
    return shoal_group_broadcast_start(job->group, job->numbers, N, SHOAL_F32, 1, work);
}

static shoal_status start_recv(struct job *job, shoal_work **work)
{
    return job->self->rank == 0 ? shoal_group_recv_start(job->group, job->numbers, N, SHOAL_F32, 1, 7, work)
                                : shoal_group_send_start(job->group, job->numbers, N, SHOAL_F32, 0, 7, work);
}

static shoal_status start_recv_any(struct job *job, shoal_work **work)
{
    return job->self->rank == 0
               ? shoal_group_recv_any_start(job->group, job->numbers, N, SHOAL_F32, 7, NULL, work)
               : start_recv(job, work);
}

/* Of two parts: the input is the second. */
static shoal_status start_list(struct job *job, shoal_work **work)
{
    static _Thread_local float other[3];
    const shoal_part parts[] = {{.send = other, .recv = other, .count = 3},
                                {.send = job->numbers, .recv = job->numbers, .count = N}};
    shoal_collective call = SHOAL_COLLECTIVE_INIT;
    call.kind = SHOAL_KIND_ALL_REDUCE;
    call.dtype = SHOAL_F32;
    call.reduce = SHOAL_SUM;
    call.parts = parts;
    call.n_parts = 2;
    return shoal_group_collective_start(job->group, &call, work);
}

/* Each sends its first half; the halves of both come together in the input. */
static shoal_status start_all_gather(struct job *job, shoal_work **work)
{
    static _Thread_local float half[N / 2];
    for (int i = 0; i < N / 2; i++) {
        half[i] = (float)(3 + i % 100);
    }
    return shoal_group_all_gather_start(job->group, half, job->numbers, N / 2, SHOAL_F32, work);
}

/* The late rank starts when the other one is about to run. */
static void start_late(struct job *job, start_function *start, shoal_work **work)
{
    if (job->self->rank == 0) {
        CHECK_OK(start(job, work));
        meet(job);
    } else {
        meet(job);
        test_pause(LATE_MS * 1e-3);
        CHECK_OK(start(job, work));
    }
}

static void check_waits(const struct rank *self, start_function *start, float a, float b)
{
    for (int is_used = 0; is_used < 2; is_used++) {
        struct job job;
        if (begin(&job, self, (struct job){.writes = false})) {
            shoal_work *work = NULL;
            shoal_tensor *given = is_used ? shoal_zeros((int64_t[]){2}, 1, SHOAL_F32) : job.x;
            job.used = is_used ? job.x : NULL;
            for (int i = 0; i < 2; i++) { /* the run that captures, and one that does not */
                fill(&job);
                start_late(&job, start, &work);
                if (self->rank == 0) {
                    run(&job, given, a, b);
                }
                finish(work);
                meet(&job);
            }
        }
        end(&job);
    }
}

TEST_RANKS(an_all_reduce_on_an_input, 2)
{
    check_waits(self, start_all_reduce, 3, 2);
}

TEST_RANKS(a_broadcast_to_an_input, 2)
{
    check_waits(self, start_broadcast, 2, 1);
}

TEST_RANKS(a_message_to_an_input, 2)
{
    check_waits(self, start_recv, 2, 1);
    check_waits(self, start_recv_any, 2, 1);
}

TEST_RANKS(a_part_of_a_list_in_an_input, 2)
{
    check_waits(self, start_list, 3, 2);
}

TEST_RANKS(a_gather_into_an_input, 2)
{
    check_waits(self, start_all_gather, 3, 1);
}

/* Only a part of the input is in flight, and the program has freed its handle. */
TEST_RANKS(a_part_of_an_input_without_a_handle, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = false})) {
        shoal_work *work = NULL;
        fill(&job);
        if (self->rank == 1) {
            meet(&job);
            test_pause(LATE_MS * 1e-3);
        }
        CHECK_OK(shoal_group_all_reduce_start(job.group, job.numbers + N - 1, job.numbers + N - 1, 1,
                                              SHOAL_F32, SHOAL_SUM, &work));
        if (self->rank == 0) {
            shoal_work_free(work);
            meet(&job);
            shoal_tensor *output = NULL;
            CHECK_OK(shoal_compiled_run(job.compiled, &job.x, 1, &output, 1));
            CHECK(((const float *)shoal_data(output))[N - 1] == -(3.0F + 2 * 99));
            CHECK(((const float *)shoal_data(output))[N - 2] == -(1.0F + 98));
            shoal_tensor_unref(output);
        } else {
            finish(work);
        }
        meet(&job);
    }
    end(&job);
}

/* A work that reads what the step writes. */
TEST_RANKS(a_send_of_an_input_that_the_step_writes, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = true})) {
        shoal_work *work = NULL;
        start_late(&job, start_recv, &work); /* receives on rank 0; now the other way round */
        finish(work);
        fill(&job);
        if (self->rank == 0) {
            CHECK_OK(shoal_group_send_start(job.group, job.numbers, N, SHOAL_F32, 1, 8, &work));
            meet(&job);
            run(&job, job.x, 1, 1);
            CHECK(job.numbers[0] == 100.0F);
            finish(work);
        } else {
            meet(&job);
            test_pause(LATE_MS * 1e-3);
            CHECK_OK(shoal_group_recv(job.group, job.numbers, N, SHOAL_F32, 0, 8));
            for (int i = 0; i < N && !test_has_failed(); i++) {
                CHECK(job.numbers[i] == (float)(1 + i % 100));
            }
        }
        meet(&job);
    }
    end(&job);
}

/* What is not waited for -------------------------------------------------------------------------------------- */

/* The other rank does its part only when this one has run. */
TEST_RANKS(a_send_of_an_input_that_the_step_reads, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = false})) {
        shoal_work *work = NULL;
        if (self->rank == 0) {
            CHECK_OK(shoal_group_send_start(job.group, job.numbers, N, SHOAL_F32, 1, 8, &work));
            run(&job, job.x, 1, 1);
            meet(&job);
            finish(work);
        } else {
            meet(&job);
            CHECK_OK(shoal_group_recv(job.group, job.numbers, N, SHOAL_F32, 0, 8));
        }
    }
    end(&job);
}

TEST_RANKS(a_work_on_other_memory, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = true})) {
        static _Thread_local float other[8];
        shoal_work *work = NULL;
        for (int rank = 0; rank < 2; rank++) {
            if (self->rank == rank) {
                CHECK_OK(
                    shoal_group_all_reduce_start(job.group, other, other, 8, SHOAL_F32, SHOAL_SUM, &work));
                run(&job, job.x, (float)(1 + rank), 1);
            }
            meet(&job);
        }
        finish(work);
    }
    end(&job);
}

/* Gradients --------------------------------------------------------------------------------------------------- */

/* The gradient of the leaf is the input. */
static shoal_status add_gradient(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    const struct job *job = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_sum(shoal_mul(job->used, inputs[0]), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

static void add_to(struct job *job, shoal_tensor *gradient)
{
    shoal_tensor *output = NULL;
    CHECK_OK(shoal_set_grad(job->used, gradient));
    if (CHECK_OK(shoal_compiled_run(job->compiled, &job->x, 1, &output, 1))) {
        shoal_tensor_unref(output);
    }
}

/* The second gradient lies elsewhere in its storage than the first. The run copies it, when the work has ended. */
TEST_RANKS(an_all_reduce_on_a_gradient_that_has_moved, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = false})) {
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        shoal_tensor *flat = shoal_zeros((int64_t[]){2 * N}, 1, SHOAL_F32);
        float *numbers = (float *)shoal_mutable_data(flat) + N;
        shoal_work *work = NULL;
        job.used = shoal_zeros((int64_t[]){N}, 1, SHOAL_F32);
        CHECK_OK(shoal_set_requires_grad(job.used, true));
        shoal_compiled_free(job.compiled);
        REQUIRE_OK(shoal_compile(job.world, add_gradient, &job, 1, NULL, &job.compiled));
        add_to(&job, shoal_zeros((int64_t[]){N}, 1, SHOAL_F32));
        for (int i = 0; i < N; i++) {
            numbers[i] = 10.0F * (float)(self->rank + 1);
        }
        if (self->rank == 1) {
            meet(&job);
            test_pause(LATE_MS * 1e-3);
        }
        CHECK_OK(shoal_group_all_reduce_start(job.group, numbers, numbers, N, SHOAL_F32, SHOAL_SUM, &work));
        if (self->rank == 0) {
            meet(&job);
        }
        add_to(&job, shoal_narrow(flat, 0, N, N));
        for (int i = 0; i < N && !test_has_failed(); i++) {
            CHECK(numbers[i] == 30.0F + job.numbers[i]);
        }
        CHECK_OK(shoal_compiled_get_report(job.compiled, &report));
        CHECK_INT((int64_t)report.n_compiles, 1); /* it was copied */
        finish(work);
        meet(&job);
    }
    end(&job);
}

/* Outputs ----------------------------------------------------------------------------------------------------- */

/* A work on an output of the last run: it ends, and then the output gets memory of its own. */
static void use_output(const struct rank *self, bool is_freed)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = false})) {
        shoal_tensor *output = NULL;
        shoal_tensor *again = NULL;
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_compiled_run(job.compiled, &job.x, 1, &output, 1));
        float *numbers = shoal_mutable_data(output);
        if (self->rank == 1) {
            meet(&job);
            test_pause(LATE_MS * 1e-3);
        }
        CHECK_OK(shoal_group_all_reduce_start(job.group, numbers, numbers, N, SHOAL_F32, SHOAL_SUM, &work));
        if (self->rank == 0) {
            meet(&job);
        }
        if (is_freed) {
            shoal_compiled_free(job.compiled);
            job.compiled = NULL;
        } else {
            CHECK_OK(shoal_compiled_run(job.compiled, &job.x, 1, &again, 1));
            shoal_tensor_unref(again);
        }
        const float *sums = shoal_data(output);
        for (int i = 0; i < N && !test_has_failed(); i++) {
            CHECK(sums[i] == -(float)(3 + 2 * (i % 100)));
        }
        finish(work);
        shoal_tensor_unref(output);
        meet(&job);
    }
    end(&job);
}

TEST_RANKS(a_work_on_an_output_of_the_last_run, 2)
{
    use_output(self, false);
}

TEST_RANKS(a_work_on_an_output_of_a_step_that_is_freed, 2)
{
    use_output(self, true);
}

/* Failures ---------------------------------------------------------------------------------------------------- */

/* The work fails while the run waits for it: the run fails with its reason, and the program can still ask the work. */
TEST_RANKS(a_work_that_fails, 2)
{
    struct job job;
    if (begin(&job, self, (struct job){.writes = false})) {
        shoal_group *other = NULL;
        shoal_work *work = NULL;
        shoal_tensor *output = NULL;
        REQUIRE_OK(shoal_group_create(job.world, (int[]){0, 1}, 2, "other", &other));
        CHECK_OK(shoal_group_barrier(other));
        if (self->rank == 0) {
            CHECK_OK(shoal_group_all_reduce_start(other, job.numbers, job.numbers, N, SHOAL_F32, SHOAL_SUM,
                                                  &work));
            meet(&job);
            shoal_status status = shoal_compiled_run(job.compiled, &job.x, 1, &output, 1);
            CHECK(status != SHOAL_OK && output == NULL);
            CHECK_ERROR_TEXT("a work in flight on the memory of the run");
            CHECK_ERROR_TEXT("for the test");
            CHECK_STATUS(shoal_work_wait(work, -1), status);
            shoal_work_free(work);
            fill(&job);
            run(&job, job.x, 1, 1); /* it has ended */
        } else {
            meet(&job);
            test_pause(LATE_MS * 1e-3);
            (void)shoal_group_abort(other, "for the test");
        }
        meet(&job);
    }
    end(&job);
}

/* Steps that communicate, with a work on the same group: ranks wait for it at different times, and go on. */
TEST_RANKS(a_work_on_the_group_of_the_step, 3)
{
    struct job job;
    if (begin(&job, self, (struct job){.is_together = true})) {
        for (int i = 0; i < 10; i++) {
            shoal_work *work = NULL;
            fill(&job);
            CHECK_OK(start_all_reduce(&job, &work));
            run(&job, job.x, 18, 9); /* of 6 + 3 i on each */
            finish(work);
        }
    }
    end(&job);
}
