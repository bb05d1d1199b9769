/* SPDX-License-Identifier: MIT */
/*
 * `shoal opt --passes=default` and shoal_compile make the same graph of a captured step: what the first does, to the text
 * of the capture, beside the graph of which the second made its plan.
 */
#include "fixtures/captured_step.h"
#include "fixtures/compiled_pair.h"
#include "shoal/collective.h"

enum {
    N_TENSORS = 24
};

/* A step, and what it is made of. */
struct kind {
    const char *name;
    shoal_step_function step;
    void *context;
    shoal_tensor **inputs;
    size_t n_inputs;
    size_t n_outputs;
};

/* Captures, prints, reads, runs the default passes, prints. To be freed. */
static char *optimize(const struct kind *kind)
{
    shoal_graph *captured = NULL;
    shoal_graph *read = NULL;
    char *after = NULL;
    if (!CHECK_OK(shoal_capture(kind->step, kind->context, kind->inputs, kind->n_inputs, kind->n_outputs,
                                &captured))) {
        return NULL;
    }
    char *before = graph_text_print(captured);
    if (before && CHECK_OK(shoal_graph_parse(before, strlen(before), &read))) {
        step_run_passes(read);
        after = graph_text_print(read);
    }
    free(before);
    shoal_graph_free(read);
    shoal_graph_free(captured);
    return after;
}

static void check_same(const struct kind *kind, shoal_world *world)
{
    shoal_compiled *compiled = NULL;
    shoal_tensor *outputs[N_TENSORS] = {NULL};
    char *optimized = optimize(kind);
    CHECK_OK(shoal_compile(world, kind->step, kind->context, kind->n_outputs, NULL, &compiled));
    CHECK_OK(shoal_compiled_run(compiled, kind->inputs, kind->n_inputs, outputs, kind->n_outputs));
    char *planned = shoal_compiled_graph(compiled) ? graph_text_print(shoal_compiled_graph(compiled)) : NULL;
    if (!optimized || !planned || strcmp(optimized, planned) != 0) {
        test_failed(__FILE__, __LINE__, "%s: shoal opt gives\n%s\nand shoal_compile\n%s", kind->name,
                    optimized ? optimized : "nothing", planned ? planned : "nothing");
    }
    free(optimized);
    free(planned);
    for (size_t i = 0; i < kind->n_outputs; i++) {
        shoal_tensor_unref(outputs[i]);
    }
    shoal_compiled_free(compiled);
}

/* Averages every input, and computes something that nobody uses. */
static shoal_status average(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_outputs;
    for (size_t i = 0; i < n_inputs; i++) {
        outputs[i] = shoal_all_reduce(shoal_neg(inputs[i]), SHOAL_AVG, context);
        (void)shoal_mul(inputs[i], inputs[i]);
    }
    return shoal_scope_error();
}

/* 24 MiB, of which buckets of another size than of shoal_compile would make another number of collectives. */
TEST_RANKS(large_gradients, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_tensor *inputs[N_TENSORS];
    REQUIRE(world != NULL);
    CHECK_OK(shoal_scope_begin());
    for (int i = 0; i < N_TENSORS; i++) {
        inputs[i] = shoal_full((int64_t[]){1024, 256}, 2, 1.0 + i, SHOAL_F32);
    }
    struct kind kind = {.name = "average",
                        .step = average,
                        .context = shoal_world_group(world),
                        .inputs = inputs,
                        .n_inputs = N_TENSORS,
                        .n_outputs = N_TENSORS};
    check_same(&kind, world);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Nets that are replicated, sharded, and neither; in their first step, and in one that adds to gradients. */
TEST_RANKS(nets, 2)
{
    static const struct {
        enum wrapping wrapping;
        const char *name;
    } rows[] = {{WRAP_DDP, "ddp"}, {WRAP_SHARDS, "shards"}, {WRAP_NOTHING, "nothing"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pair pair;
        if (!pair_begin(&pair, self, rows[i].wrapping, NULL)) {
            return;
        }
        shoal_tensor *x = net_numbers((uint32_t)(100 + self->rank), (int64_t[]){4, NET_WIDTH}, 2);
        struct kind kind = {.name = rows[i].name,
                            .step = pair_step,
                            .context = &pair.other,
                            .inputs = &x,
                            .n_inputs = 1,
                            .n_outputs = 1};
        check_same(&kind, pair.world);
        check_same(&kind, pair.world);
        pair_end(&pair);
    }
}
