/* SPDX-License-Identifier: MIT */
/* What ranks do wrong to each other with compiled steps, and what a caller does to one that it should survive. */
#include <dlpack/dlpack.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixtures/compiled_pair.h"
#include "shoal/collective.h"
#include "shoal/dlpack.h"
#include "tensor/tensor.h"

static shoal_tensor *make_batch(const struct rank *self, int number, int64_t n_rows)
{
    return net_numbers((uint32_t)(1000 + 100 * number + self->rank), (int64_t[]){n_rows, NET_WIDTH}, 2);
}

/* Options of one rank alone ---------------------------------------------------------------------------------- */

struct deviation {
    const char *name;
    enum wrapping wrapping;
    shoal_pass_options pass_options;
    const char *passes; /* NULL: the default ones */
    bool has_same_collectives;
    bool is_passes_of_all; /* the others have these passes, too */
};

static const struct deviation deviations[] = {
    {"small buckets",
     WRAP_DDP,
     {.struct_size = sizeof(shoal_pass_options), .bucket_size_mb = -1},
     NULL,
     true,
     false},
    {"no fusing",
     WRAP_DDP,
     {.struct_size = sizeof(shoal_pass_options), .disabled = "fuse_ddp_communication"},
     NULL,
     false,
     false},
    {"coalesced",
     WRAP_DDP,
     {.struct_size = sizeof(shoal_pass_options), .ddp_passes = "fuse_ddp_with_coalesced_op"},
     NULL,
     false,
     false},
    {"no passes", WRAP_DDP, {.struct_size = sizeof(shoal_pass_options)}, "", false, false},
    {"no passes", WRAP_SHARDS, {.struct_size = sizeof(shoal_pass_options)}, "", false, false},
    {"no units",
     WRAP_SHARDS,
     {.struct_size = sizeof(shoal_pass_options), .disabled = "bucket_fsdp_units"},
     NULL,
     false,
     false},
    {"another order of compute",
     WRAP_DDP,
     {.struct_size = sizeof(shoal_pass_options), .disabled = "dedupe_waits"},
     NULL,
     true,
     false},
    {"small buckets of gathers",
     WRAP_SHARDS,
     {.struct_size = sizeof(shoal_pass_options), .comm_bucket_mb = 1e-9},
     "bucket_all_gathers",
     false,
     true},
};

/* A plan that makes other collectives is told on all ranks, and none of them waits; the model can be trained
   eagerly afterwards. */
static void deviate(const struct rank *self, const struct deviation *deviation)
{
    struct pair pair;
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    options.pass_options = self->rank == 1 ? &deviation->pass_options : NULL;
    options.passes = self->rank == 1 || deviation->is_passes_of_all ? deviation->passes : NULL;
    if (pair_begin(&pair, self, deviation->wrapping, &options)) {
        shoal_tensor *x = make_batch(self, 0, NET_BATCH);
        shoal_tensor *output = NULL;
        shoal_status status = shoal_compiled_run(pair.compiled, &x, 1, &output, 1);
        shoal_status wanted = deviation->has_same_collectives ? SHOAL_OK : SHOAL_ERR_MISMATCH;
        if (!CHECK_STATUS(status, wanted)) {
            test_failed(__FILE__, __LINE__, "%s", deviation->name);
        }
        CHECK((output != NULL) == (status == SHOAL_OK));
        shoal_tensor_unref(output);
        (void)net_pass(&pair.eager, 0, self->rank);
    }
    pair_end(&pair);
}

TEST_RANKS(pass_options_of_one_rank_alone, 3)
{
    for (size_t i = 0; i < sizeof deviations / sizeof deviations[0] && !test_has_failed(); i++) {
        deviate(self, &deviations[i]);
    }
}

/* One rank compiles another step, or the same one with another context. */
struct reducing {
    shoal_group *group;
    shoal_reduce_op reduce;
};

static shoal_status reduce(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                           shoal_tensor **outputs, size_t n_outputs)
{
    const struct reducing *reducing = context;
    outputs[0] = shoal_all_reduce(inputs[0], reducing->reduce, reducing->group);
    return shoal_scope_error();
}

static shoal_status reduce_twice(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    const struct reducing *reducing = context;
    outputs[0] = shoal_all_reduce(shoal_all_reduce(inputs[0], reducing->reduce, reducing->group), SHOAL_SUM,
                                  reducing->group);
    return shoal_scope_error();
}

TEST_RANKS(another_step_on_one_rank, 2)
{
    for (int i = 0; i < 2; i++) {
        bool deviates = self->rank == 1;
        shoal_world *world = rank_world_open(self, i);
        REQUIRE(world != NULL);
        REQUIRE_OK(shoal_scope_begin());
        struct reducing reducing = {shoal_world_group(world), deviates && i == 0 ? SHOAL_MAX : SHOAL_SUM};
        shoal_compiled *compiled = NULL;
        shoal_tensor *x = make_batch(self, 0, NET_BATCH);
        shoal_tensor *output = NULL;
        CHECK_OK(
            shoal_compile(world, deviates && i == 1 ? reduce_twice : reduce, &reducing, 1, NULL, &compiled));
        CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &output, 1), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("plans differ on group @");
        CHECK(output == NULL);
        shoal_compiled_free(compiled);
        CHECK_OK(shoal_scope_end());
        CHECK_OK(shoal_world_close(world));
    }
}

/* One rank has a batch of another size, which is another graph to it alone. */
TEST_RANKS(a_rank_that_compiles_again_alone, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            shoal_tensor *output = NULL;
            pair_run(&pair, 0, NET_BATCH);
            pair_update(&pair);
            shoal_tensor *x = make_batch(self, 1, self->rank == 1 ? NET_BATCH + 1 : NET_BATCH);
            CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &output, 1), SHOAL_ERR_MISMATCH);
            CHECK(output == NULL);
        }
        shoal_compiled_free(pair.compiled);
        net_free(&pair.eager);
        net_free(&pair.other);
        CHECK_OK(shoal_scope_end());
        (void)!shoal_world_close(pair.world);
    }
}

/* What is kept, exported and dropped ------------------------------------------------------------------------- */

/* A step is freed while its gradients are on the leaves, on each rank at another time; eager steps go on from them. */
TEST_RANKS(a_step_that_is_freed_between_steps, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            pair_run(&pair, 0, NET_BATCH);
            if (self->rank == 0) {
                shoal_compiled_free(pair.compiled);
                pair.compiled = NULL;
            }
            (void)net_pass(&pair.eager, 1, self->rank);
            (void)net_pass(&pair.other, 1, self->rank);
            pair_check(&pair);
            shoal_compiled_free(pair.compiled);
            pair.compiled = NULL;
            pair_check(&pair);
            pair_update(&pair);
        }
        pair_end(&pair);
    }
}

/* One rank shows its gradients to somebody else, who keeps them. */
TEST_RANKS(exported_gradients, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        struct DLManagedTensor *exports[4] = {NULL};
        float firsts[4] = {0};
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            for (int i = 0; i < 4; i++) {
                pair_run(&pair, i, NET_BATCH);
                shoal_tensor *scale = shoal_module_find_parameter(pair.other.root, "scale");
                shoal_tensor *gradient = shoal_grad(scale);
                if (self->rank == 1 && gradient && shoal_tensor_count(gradient) > 0) {
                    CHECK_OK(shoal_to_dlpack(gradient, &exports[i]));
                    firsts[i] = *(const float *)exports[i]->dl_tensor.data;
                }
                if (i % 2) {
                    pair_update(&pair); /* and takes the gradients away */
                }
            }
        }
        pair_end(&pair);
        for (int i = 1; i < 4; i += 2) {
            CHECK(!exports[i] || *(const float *)exports[i]->dl_tensor.data == firsts[i]);
        }
        for (int i = 0; i < 4; i++) {
            if (exports[i]) {
                exports[i]->deleter(exports[i]);
            }
        }
    }
}

/* Steps in steps --------------------------------------------------------------------------------------------- */

struct nested {
    shoal_compiled *inner;
    shoal_status seen;
    char text[512];
};

static shoal_status run_nested(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct nested *nested = context;
    shoal_tensor *output = NULL;
    shoal_tensor *own = net_numbers(1, (int64_t[]){3, NET_WIDTH}, 2);
    nested->seen = shoal_compiled_run(nested->inner, &own, 1, &output, 1);
    (void)snprintf(nested->text, sizeof nested->text, "%s", shoal_error_text());
    shoal_tensor_unref(output);
    outputs[0] = shoal_neg(inputs[0]);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

static shoal_status negate(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                           shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(inputs[0]);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

/* A compiled step cannot run while another one is captured, nor inside itself; both say so and nothing is lost. */
TEST(steps_in_steps)
{
    struct nested nested = {.inner = NULL};
    shoal_compiled *outer = NULL;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = net_numbers(1, (int64_t[]){3, NET_WIDTH}, 2);
    for (int has_run = 0; has_run < 2; has_run++) {
        shoal_tensor *output = NULL;
        REQUIRE_OK(shoal_compile(NULL, negate, NULL, 1, NULL, &nested.inner));
        REQUIRE_OK(shoal_compile(NULL, run_nested, &nested, 1, NULL, &outer));
        if (has_run) {
            CHECK_OK(shoal_compiled_run(nested.inner, &x, 1, &output, 1));
            shoal_tensor_unref(output);
        }
        output = NULL;
        shoal_status status = shoal_compiled_run(outer, &x, 1, &output, 1);
        CHECK(nested.seen == SHOAL_ERR_STATE);
        CHECK(status == SHOAL_OK || output == NULL);
        shoal_tensor_unref(output);
        shoal_compiled_free(outer);
        output = NULL;
        CHECK_OK(shoal_compiled_run(nested.inner, &x, 1, &output, 1));
        shoal_tensor_unref(output);
        shoal_compiled_free(nested.inner);
    }
    REQUIRE_OK(shoal_compile(NULL, run_nested, &nested, 1, NULL, &nested.inner));
    shoal_tensor *output = NULL;
    (void)!shoal_compiled_run(nested.inner, &x, 1, &output, 1);
    CHECK(nested.seen == SHOAL_ERR_STATE && strstr(nested.text, "running already") != NULL);
    shoal_tensor_unref(output);
    shoal_compiled_free(nested.inner);
    CHECK_OK(shoal_scope_end());
}

/* Memory that runs out --------------------------------------------------------------------------------------- */

struct tried {
    shoal_tensor *w;
    shoal_tensor *x;
};

static shoal_status train_tried(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct tried *tried = context;
    outputs[0] = shoal_sum(shoal_mul(shoal_mul(tried->w, tried->w), inputs[0]), NULL, 0, false);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

/* Twice without a gradient, once with one that is kept. */
static shoal_status try_step(void *context)
{
    struct tried *tried = context;
    shoal_compiled *compiled = NULL;
    shoal_status status = shoal_compile(NULL, train_tried, tried, 1, NULL, &compiled);
    for (int i = 0; i < 4 && status == SHOAL_OK; i++) {
        shoal_tensor *output = NULL;
        status = shoal_compiled_run(compiled, &tried->x, 1, &output, 1);
        CHECK((status == SHOAL_OK) == (output != NULL));
        shoal_tensor_unref(output);
        if (status == SHOAL_OK && i % 2 == 0) {
            status = shoal_set_grad(tried->w, NULL);
        }
    }
    char text[512];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    /* Before the plan ends: it keeps its memory if the gradient cannot have its own. */
    (void)!shoal_set_grad(tried->w, NULL);
    shoal_compiled_free(compiled);
    return status == SHOAL_OK ? SHOAL_OK : shoal_fail(status, "%s", text);
}

TEST(allocations_may_fail)
{
    struct tried tried = {.w = NULL};
    REQUIRE_OK(shoal_scope_begin());
    tried.w = shoal_tensor_ref(net_numbers(1, (int64_t[]){4}, 1));
    tried.x = shoal_tensor_ref(net_numbers(2, (int64_t[]){4}, 1));
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(shoal_set_requires_grad(tried.w, true));
    REQUIRE_OK(try_step(&tried));
    CHECK(test_sweep_allocations(try_step, &tried) > 100);
    shoal_tensor_unref(tried.w);
    shoal_tensor_unref(tried.x);
}

/* Hooks ------------------------------------------------------------------------------------------------------ */

static shoal_tensor *run_in_hook(void *context, shoal_tensor *gradient)
{
    const struct pair *pair = context;
    shoal_tensor *output = NULL;
    (void)gradient;
    (void)CHECK_OK(shoal_scope_set_grad(true));
    shoal_tensor *x = net_numbers(1, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
    CHECK_STATUS(shoal_compiled_run(pair->compiled, &x, 1, &output, 1), SHOAL_ERR_STATE);
    return NULL;
}

/* A step that is compiled in a backward pass would wait for the end of that one. */
TEST_RANKS(shards_are_not_captured_in_a_backward, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_SHARDS, NULL)) {
        shoal_tensor *w = net_numbers(2, (int64_t[]){4}, 1);
        CHECK_OK(shoal_set_requires_grad(w, true));
        CHECK_OK(shoal_on_gradient(w, run_in_hook, &pair, NULL));
        CHECK_OK(shoal_backward(shoal_sum(shoal_mul(w, w), NULL, 0, false), NULL));
        pair_run(&pair, 0, NET_BATCH);
        pair_run(&pair, 1, NET_BATCH);
    }
    pair_end(&pair);
}

/* Starting over ---------------------------------------------------------------------------------------------- */

static void reset_pair(const struct pair *pair)
{
    CHECK_OK(shoal_ddp_reset(pair->eager.root));
    CHECK_OK(shoal_ddp_reset(pair->other.root));
}

/* A rank that leaves the others in a step: after shoal_ddp_reset on all of them compiled steps go on, as eager
   ones do. */
TEST_RANKS(compiled_steps_go_on_after_a_reset, 3)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        reset_pair(&pair); /* before there is anything to give up */
        pair_run(&pair, 0, NET_BATCH);
        pair_run(&pair, 1, NET_BATCH);
        shoal_tensor *x = make_batch(self, 2, NET_BATCH);
        shoal_tensor *output = NULL;
        if (self->rank != 1) {
            CHECK(shoal_compiled_run(pair.compiled, &x, 1, &output, 1) != SHOAL_OK);
        }
        reset_pair(&pair);
        pair_run(&pair, 3, NET_BATCH);
        pair_update(&pair);
        pair_run(&pair, 4, NET_BATCH);
        CHECK_INT(pair_count_compiles(&pair), 3); /* for no gradients, for some, and for the other lane */
    }
    pair_end(&pair);
}

/* Forks ------------------------------------------------------------------------------------------------------ */

/* Gradients are in memory that a child shares, and a backward pass that fails in it is given up with the module:
   ranks see nothing of both. */
TEST_PROCESSES(a_child_gives_nothing_up_for_its_parent, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        pair_run(&pair, 0, NET_BATCH);
        shoal_tensor *x = make_batch(self, 1, NET_BATCH);
        pid_t child = fork();
        if (child == 0) {
            shoal_tensor *output = NULL;
            bool is_refused = pair_step(&pair.eager, &x, 1, &output, 1) == SHOAL_ERR_STATE;
            (void)!shoal_ddp_set_sync(pair.other.root, false);
            is_refused = pair_step(&pair.other, &x, 1, &output, 1) == SHOAL_ERR_STATE && is_refused;
            (void)!shoal_ddp_reset(pair.eager.root);
            net_free(&pair.eager);
            _exit(is_refused ? 0 : 1);
        }
        int status = 1;
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_INT(status, 0);
        pair_check(&pair);
        pair_update(&pair);
        pair_run(&pair, 2, NET_BATCH);
    }
    pair_end(&pair);
}

TEST_PROCESSES(a_child_can_only_free, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            pair_run(&pair, 0, NET_BATCH);
            shoal_tensor *x = make_batch(self, 1, NET_BATCH);
            pid_t child = fork();
            if (child == 0) {
                shoal_tensor *output = NULL;
                bool is_refused = shoal_compiled_run(pair.compiled, &x, 1, &output, 1) == SHOAL_ERR_STATE;
                shoal_compiled *another = NULL;
                bool is_told =
                    shoal_compile(pair.world, pair_step, &pair.other, 1, NULL, &another) == SHOAL_ERR_STATE;
                shoal_compiled_free(pair.compiled);
                _exit(is_refused && is_told ? 0 : 1);
            }
            int status = 1;
            REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
            CHECK_INT(status, 0);
            pair_update(&pair);
            pair_run(&pair, 2, NET_BATCH);
        }
        pair_end(&pair);
    }
}
