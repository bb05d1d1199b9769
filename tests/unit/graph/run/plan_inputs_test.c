/* SPDX-License-Identifier: MIT */
/* Inputs of plans: work in flight in their sources, and memory that they share. */
#include "unit/graph/planning.h"
#include "unit/graph/capturing.h"

#include "base/completion.h"

/* Sources -------------------------------------------------------------------------------------------------- */

/* A write that ends when somebody waits for it. */
struct late_write {
    struct completion completion; /* first */
    float *target;
};

static shoal_status end_late(struct completion *completion, int64_t until_ns)
{
    struct late_write *write = (struct late_write *)completion;
    (void)until_ns;
    *write->target = 42;
    completion_finish(completion, SHOAL_OK);
    return SHOAL_OK;
}

static const struct completion_kind late_kind = {.push = end_late};

struct padded_step {
    shoal_tensor *padded; /* what the graph takes, */
    shoal_tensor *source; /* and where the work on it is known */
};

/* As a sharded module does. */
static shoal_status run_padded(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct padded_step *step = context;
    struct op_tracer *tracer = op_capture_running();
    shoal_status status =
        tracer ? tracer->capture->add_input(tracer, step->padded, step->source, "w") : SHOAL_OK;
    outputs[0] = shoal_add(inputs[0], step->padded);
    return outputs[0] ? status : shoal_scope_error();
}

TEST(a_run_waits_for_work_on_the_source_of_an_input)
{
    float numbers[2] = {0, 0};
    struct padded_step step = {.padded = NULL};
    REQUIRE_OK(shoal_scope_begin());
    step.padded = shoal_from_memory(numbers, (int64_t[]){2}, 1, SHOAL_F32, NULL, NULL, NULL);
    step.source = shoal_from_memory(numbers, (int64_t[]){1}, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *x = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    shoal_graph *graph = NULL;
    shoal_plan *plan = NULL;
    REQUIRE_OK(shoal_capture(run_padded, &step, &x, 1, 1, &graph));
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    shoal_tensor *inputs[] = {x, shoal_graph_bound_input(graph, 1)};
    shoal_graph_free(graph);
    struct late_write *write = calloc(1, sizeof *write);
    completion_init(&write->completion, &late_kind);
    write->target = &numbers[0];
    CHECK_OK(storage_add_write(step.source->storage, &write->completion));
    shoal_tensor *outputs[1] = {NULL};
    CHECK_OK(shoal_plan_run(plan, inputs, 2, outputs, 1));
    CHECK_BYTES(shoal_data(outputs[0]), ((const float[]){42, 0}), 8);
    run_unref(outputs, 1);
    storage_forget_fences(step.source->storage);
    shoal_plan_free(plan);
    CHECK_OK(shoal_scope_end());
    free(write);
}

/* Shared memory -------------------------------------------------------------------------------------------- */

static const char writes_text[] =
    "graph {\n%a = placeholder : f32[4]\n%b = placeholder : f32[4]\n%c = placeholder : f32[4]\n"
    "%s = add(%a, %b)\n%w = add_(%c, %s)\n%t = mul(%a, %s)\nreturn [%s, %t, %w]\n}\n";

static shoal_tensor *take(float *numbers, int64_t count)
{
    return shoal_from_memory(numbers, &count, 1, SHOAL_F32, NULL, NULL, NULL);
}

TEST(what_is_written_is_in_no_other_input)
{
    static const struct {
        size_t at[3]; /* of each input, in numbers */
        const char *words;
    } cases[] = {
        {{0, 4, 8}, NULL},
        {{0, 0, 8}, NULL}, /* only read */
        {{2, 0, 8}, NULL},
        {{8, 4, 0}, NULL},
        {{0, 4, 4}, "plan_run: inputs %b and %c share memory, and the plan writes %c"},
        {{0, 8, 3}, "inputs %a and %c share memory"},
        {{5, 9, 2}, "inputs %a and %c share memory"},
        {{0, 8, 4}, NULL},
        {{9, 0, 11}, "inputs %a and %c share memory"},
        {{9, 0, 13}, NULL},
    };
    shoal_graph *graph = run_parse(writes_text, 1);
    shoal_plan *plan = NULL;
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float numbers[20] = {0};
        shoal_tensor *inputs[3] = {NULL};
        REQUIRE_OK(shoal_scope_begin());
        for (size_t k = 0; k < 3; k++) {
            inputs[k] = take(numbers + cases[i].at[k], 4);
        }
        for (int again = 0; again < 2; again++) { /* the second time nothing has moved */
            shoal_tensor *outputs[3] = {NULL};
            CHECK_STATUS(shoal_plan_run(plan, inputs, 3, outputs, 3),
                         cases[i].words ? SHOAL_ERR_INVALID : SHOAL_OK);
            CHECK(!cases[i].words || outputs[0] == NULL);
            if (cases[i].words) {
                CHECK_ERROR_TEXT(cases[i].words);
            }
            run_unref(outputs, 3);
        }
        CHECK_OK(shoal_scope_end());
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}

/* The same without memory of one's own: an address that was taken from an output. */
TEST(no_input_lies_in_the_plan)
{
    shoal_graph *graph = run_parse(writes_text, 1);
    shoal_plan *plan = NULL;
    shoal_tensor *outputs[3] = {NULL};
    shoal_tensor *again[3] = {NULL};
    float numbers[12] = {1, 2, 3, 4, 5, 6, 7, 8};
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *inputs[] = {take(numbers, 4), take(numbers + 4, 4), take(numbers + 8, 4)};
    REQUIRE_OK(shoal_plan_run(plan, inputs, 3, outputs, 3));
    /* An output itself is moved out of the way. */
    shoal_tensor *chained[] = {outputs[0], inputs[1], inputs[2]};
    CHECK_OK(shoal_plan_run(plan, chained, 3, again, 3));
    CHECK_BYTES(shoal_data(again[0]), ((const float[]){11, 14, 17, 20}), 16);
    run_unref(outputs, 3);
    float *inside = shoal_mutable_data(again[0]);
    run_unref(again, 3);
    chained[0] = take(inside, 4);
    CHECK_STATUS(shoal_plan_run(plan, chained, 3, again, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("%a: the input lies in the plan's own output memory");
    CHECK_OK(shoal_scope_end());
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}

/* Many inputs in an order that is turned around from run to run, against looking at every pair. */
#define MANY 200

TEST(many_inputs_that_move)
{
    char text[16384] = "graph {\n";
    size_t length = strlen(text);
    for (int i = 0; i < MANY; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%%i%d = placeholder : f32[2]\n", i);
    }
    length +=
        (size_t)snprintf(text + length, sizeof text - length, "%%w = add_(%%i7, %%i8)\nreturn [%%w]\n}\n");
    shoal_graph *graph = NULL;
    shoal_plan *plan = NULL;
    REQUIRE_OK(shoal_graph_parse(text, length, &graph));
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    static float numbers[2 * MANY + 2];
    unsigned seed = 1;
    for (int round = 0; round < 60; round++) {
        shoal_tensor *inputs[MANY];
        size_t at[MANY];
        bool is_apart = true;
        REQUIRE_OK(shoal_scope_begin());
        for (size_t i = 0; i < MANY; i++) {
            seed = seed * 1664525 + 1013904223;
            size_t place = round % 3 == 0 ? MANY - 1 - i : round % 3 == 1 ? i : (i * 77) % MANY;
            at[i] = 2 * place + (round % 5 == 0 && (seed >> 16) % 50 == 0);
            inputs[i] = take(numbers + at[i], 2);
        }
        for (size_t i = 0; i < MANY; i++) {
            is_apart = is_apart && (i == 7 || at[i] + 2 <= at[7] || at[7] + 2 <= at[i]);
        }
        shoal_tensor *outputs[1] = {NULL};
        CHECK_STATUS(shoal_plan_run(plan, inputs, MANY, outputs, 1), is_apart ? SHOAL_OK : SHOAL_ERR_INVALID);
        run_unref(outputs, 1);
        CHECK_OK(shoal_scope_end());
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}
