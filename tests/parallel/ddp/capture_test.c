/* SPDX-License-Identifier: MIT */
/*
 * Wrapped modules in a capture: the graph gives the loss and the gradients of an eager step, bit for bit; gradients
 * that are there before it count as in an eager step; buffers are sent; the capture leaves the module as it was; what
 * it cannot capture it names.
 */
#include "fixtures/captured_step.h"
#include "fixtures/ddp_net.h"
#include "harness/harness.h"
#include "parallel/ddp/ddp.h"

struct model {
    shoal_world *world;
    struct net net;
    int n_micro; /* backward passes in a step; all but the last are without synchronization */
    bool fails;
};

static bool open_model(struct model *model, struct rank *self, const shoal_dtype *dtypes)
{
    *model = (struct model){.world = rank_world_open(self, 0), .n_micro = 1};
    if (!model->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    net_make(&model->net, dtypes, 7);
    for (int i = 0; i < NET_PARAMS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", i);
        CHECK_OK(shoal_tensor_set_name(model->net.params[i], name));
    }
    return true;
}

static bool open_wrapped(struct model *model, struct rank *self, shoal_ddp_options options)
{
    return open_model(model, self, NULL) && CHECK_OK(net_wrap(&model->net, model->world, options));
}

static void close_model(struct model *model)
{
    net_free(&model->net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(model->world));
}

static shoal_tensor *make_input(const struct rank *self)
{
    return net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32, (uint32_t)self->rank + 17U);
}

/* A shoal_step_function. */
static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    struct model *model = context;
    shoal_status status = SHOAL_OK;
    (void)n_inputs;
    (void)n_outputs;
    for (int micro = 0; micro < model->n_micro && status == SHOAL_OK; micro++) {
        if (model->n_micro > 1) {
            CHECK_OK(shoal_ddp_set_sync(model->net.module, micro == model->n_micro - 1));
        }
        outputs[0] = shoal_module_call_one(model->net.module, shoal_mul_scalar(inputs[0], 1.0 + 0.5 * micro));
        status = outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
    }
    return model->fails ? SHOAL_ERR_CANCELLED : status;
}

static void add_gradients(const struct model *model, struct step_record *record)
{
    for (int i = 0; i < NET_PARAMS; i++) {
        step_add_gradient(record, model->net.params[i]);
    }
}

static void run_eager(struct model *model, shoal_tensor *x, struct step_record *record)
{
    shoal_tensor *loss = NULL;
    record->n_rows = 0;
    CHECK_OK(shoal_scope_begin());
    if (CHECK_OK(step(model, &x, 1, &loss, 1))) {
        step_add(record, "loss", loss);
        add_gradients(model, record);
    }
    CHECK_OK(shoal_scope_end());
}

/* What a capture must not change. */
struct snapshot {
    uint64_t sequences[2];
    uint64_t numbers[8];
    const shoal_tensor *gradients[NET_PARAMS];
    uint64_t versions[2 * NET_PARAMS];
    bool flags[4 * NET_PARAMS];
};

static void take_snapshot(const struct model *model, struct snapshot *shot)
{
    const struct ddp *ddp = ddp_of(model->net.module);
    memset(shot, 0, sizeof *shot);
    shot->sequences[0] = shoal_group_sequence(ddp->lane.group);
    shot->sequences[1] = shoal_group_sequence(ddp->group);
    const uint64_t numbers[] = {ddp->n_records,
                                ddp->forwards.list.n_ever,
                                ddp->backward.number,
                                ddp->backward.is_running,
                                ddp->backward.n_arrivals,
                                ddp->wanted_sync,
                                (uint64_t)ddp->lane.generation,
                                ddp->buckets.is_learning};
    memcpy(shot->numbers, numbers, sizeof numbers);
    for (size_t i = 0; i < ddp->n_params; i++) {
        const struct ddp_param *param = &ddp->params[i];
        shot->gradients[i] = shoal_grad(param->tensor);
        shot->versions[2 * i] = shoal_tensor_version(param->tensor);
        shot->versions[2 * i + 1] = shot->gradients[i] ? shoal_tensor_version(shot->gradients[i]) : 0;
        const bool flags[] = {param->is_reduced, param->is_local, param->is_left, param->has_aside};
        memcpy(&shot->flags[4 * i], flags, sizeof flags);
    }
}

static shoal_graph *capture(struct model *model, shoal_tensor *x)
{
    struct snapshot before;
    struct snapshot after;
    shoal_graph *graph = NULL;
    take_snapshot(model, &before);
    CHECK_OK(shoal_capture(step, model, &x, 1, 1, &graph));
    take_snapshot(model, &after);
    CHECK_BYTES(&after, &before, sizeof after);
    return graph;
}

static void show(const struct rank *self, const shoal_graph *graph)
{
    if (test_has_failed() && graph && self->rank == 0) {
        char *text = graph_text_print(graph);
        (void)printf("%s", text);
        free(text);
    }
}

/* Bits --------------------------------------------------------------------------------------------------- */

static void check_bits(struct rank *self, struct model *model, bool is_first, const char *what)
{
    struct step_record *records = calloc(3, sizeof *records);
    REQUIRE(records);
    shoal_tensor *x = make_input(self);
    shoal_graph *graph = is_first ? capture(model, x) : NULL;
    run_eager(model, x, &records[0]);
    net_zero(&model->net);
    graph = graph ? graph : capture(model, x);
    if (graph) {
        CHECK_INT(step_count_calls(graph, "all_reduce"), NET_PARAMS);
        step_run(graph, model->world, x, &records[1]);
        step_check_same(&records[1], &records[0], what);
        step_run_passes(graph);
        step_run(graph, model->world, x, &records[1]);
        step_check_same(&records[1], &records[0], "after passes");
    }
    run_eager(model, x, &records[2]);
    step_check_same(&records[2], &records[0], "the eager step after the capture");
    show(self, graph);
    shoal_graph_free(graph);
    free(records);
}

static void check_compiled(struct rank *self, shoal_ddp_options options)
{
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    shoal_compiled *compiled = NULL;
    REQUIRE(records && open_wrapped(&model, self, options));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    REQUIRE_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    for (int i = 0; i < 3 && !test_has_failed(); i++) {
        shoal_tensor *loss = NULL;
        net_zero(&model.net);
        records[1].n_rows = 0;
        if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1))) {
            step_add(&records[1], "loss", loss);
            shoal_tensor_unref(loss);
            add_gradients(&model, &records[1]);
            step_check_same(&records[1], &records[0], "compiled");
        }
    }
    net_zero(&model.net);
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "the eager step after compiled ones");
    net_zero(&model.net);
    shoal_compiled_free(compiled);
    close_model(&model);
    free(records);
}

static void check_all(struct rank *self)
{
    static const shoal_dtype dtypes[NET_BLOCKS] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    static const double factors[] = {0.0, 1.0, 3.5};
    struct model model;
    for (size_t i = 0; i < 3; i++) {
        REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){.divide_factor = factors[i]}));
        check_bits(self, &model, i % 2 == 0, "a factor");
        close_model(&model);
        check_compiled(self, (shoal_ddp_options){.divide_factor = factors[i]});
    }
    REQUIRE(open_model(&model, self, dtypes) &&
            CHECK_OK(net_wrap(&model.net, model.world, (shoal_ddp_options){.reduce_unused = true})));
    check_bits(self, &model, true, "dtypes");
    close_model(&model);
    for (int again = 0; again < 2; again++) {
        REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){0}));
        model.n_micro = 3;
        model.net.is_recomputed = again;
        check_bits(self, &model, true, "micro-batches");
        close_model(&model);
    }
    /* One gradient comes twice, which the eager step tells. */
    REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){0}));
    model.net.is_recomputed = true;
    model.net.is_forked[2] = true;
    check_bits(self, &model, false, "used twice");
    close_model(&model);
}

TEST_RANKS(a_captured_step_of_2, 2)
{
    check_all(self);
}

TEST_RANKS(a_captured_step_of_3, 3)
{
    check_all(self);
}

/* Gradients that are there ------------------------------------------------------------------------------- */

/* What was averaged is not averaged again, also if more than one gradient comes. */
TEST_RANKS(averaged_gradients_are_added_to, 3)
{
    for (int twice = 0; twice < 2; twice++) {
        struct model model;
        struct step_record *records = calloc(2, sizeof *records);
        REQUIRE(records && open_wrapped(&model, self, (shoal_ddp_options){0}));
        shoal_tensor *x = make_input(self);
        model.net.is_recomputed = model.net.is_forked[2] = twice;
        run_eager(&model, x, &records[0]);
        run_eager(&model, x, &records[0]);
        net_zero(&model.net);
        run_eager(&model, x, &records[1]);
        shoal_graph *graph = capture(&model, x);
        REQUIRE(graph);
        step_run(graph, model.world, x, &records[1]);
        for (int i = 0; i < NET_PARAMS; i++) { /* most are written where they are */
            if (step_find(&records[1], shoal_tensor_name(model.net.params[i])) == SIZE_MAX) {
                step_add_gradient(&records[1], model.net.params[i]);
            }
        }
        step_check_same(&records[1], &records[0], "on top of averages");
        show(self, graph);
        shoal_graph_free(graph);
        close_model(&model);
        free(records);
    }
}

/* A capture that adds to averages says nothing of what becomes of them later. */
TEST_RANKS(averages_that_were_captured_may_become_local, 2)
{
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_wrapped(&model, self, (shoal_ddp_options){0}));
    shoal_tensor *x = make_input(self);
    for (int captured = 0; captured < 2; captured++) {
        run_eager(&model, x, &records[1]);
        if (captured) {
            shoal_graph_free(capture(&model, x));
        }
        net_fill_zero(&model.net); /* the same tensors */
        CHECK_OK(shoal_ddp_set_sync(model.net.module, false));
        run_eager(&model, x, &records[1]);
        CHECK_OK(shoal_ddp_set_sync(model.net.module, true));
        if (captured) {
            shoal_graph *graph = capture(&model, x);
            REQUIRE(graph);
            step_run(graph, model.world, x, &records[1]);
            shoal_graph_free(graph);
            step_check_same(&records[1], &records[0], "local, after a capture");
        } else {
            run_eager(&model, x, &records[1]);
        }
        net_zero(&model.net);
        records[0] = records[1];
    }
    close_model(&model);
    free(records);
}

/* What is local is reduced with what comes, and so is what comes no more. */
TEST_RANKS(local_gradients_are_reduced, 3)
{
    for (int skips = 0; skips < 2; skips++) {
        struct model model;
        struct step_record *records = calloc(4, sizeof *records);
        REQUIRE(records && open_wrapped(&model, self, (shoal_ddp_options){0}));
        shoal_tensor *x = make_input(self);
        CHECK_OK(shoal_ddp_set_sync(model.net.module, false));
        run_eager(&model, x, &records[0]);
        CHECK_OK(shoal_ddp_set_sync(model.net.module, true));
        model.net.skips[1] = skips;
        run_eager(&model, x, &records[1]);
        model.net.skips[1] = false;
        net_zero(&model.net);

        CHECK_OK(shoal_ddp_set_sync(model.net.module, false));
        shoal_graph *graph = capture(&model, x);
        REQUIRE(graph);
        CHECK_INT(step_count_calls(graph, "all_reduce"), 0);
        step_run(graph, model.world, x, &records[2]);
        step_check_same(&records[2], &records[0], "local");
        shoal_graph_free(graph);

        run_eager(&model, x, &records[2]);
        CHECK_OK(shoal_ddp_set_sync(model.net.module, true));
        model.net.skips[1] = skips;
        graph = capture(&model, x);
        REQUIRE(graph);
        step_run(graph, model.world, x, &records[3]);
        step_check_same(&records[3], &records[1], "local, then reduced");
        shoal_graph_free(graph);
        run_eager(&model, x, &records[3]);
        step_check_same(&records[3], &records[1], "the eager step after the capture");
        close_model(&model);
        free(records);
    }
}

/* Buffers ------------------------------------------------------------------------------------------------ */

TEST_RANKS(buffers_are_those_of_the_first_rank, 3)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        struct model model;
        struct step_record *record = calloc(1, sizeof *record);
        REQUIRE(record && open_model(&model, self, NULL));
        shoal_tensor *x = make_input(self);
        shoal_tensor *wide = shoal_full((int64_t[]){4, 3}, 2, self->rank, SHOAL_F32);
        shoal_tensor *numbers = shoal_full((int64_t[]){3}, 1, self->rank, SHOAL_I16);
        CHECK_OK(shoal_module_add_buffer(model.net.module, "numbers", numbers));
        CHECK_OK(shoal_module_add_buffer(model.net.blocks[1], "column", shoal_narrow(wide, 1, 1, 1)));
        REQUIRE_OK(net_wrap(&model.net, model.world,
                            (shoal_ddp_options){.keeps_parameters = true, .keeps_buffers = keeps}));
        shoal_graph *graph = capture(&model, x);
        REQUIRE(graph);
        CHECK_INT(step_count_calls(graph, "broadcast"), keeps ? 0 : 2);
        const float *rows = shoal_data(wide);
        CHECK_DOUBLE((double)rows[1], self->rank);
        step_run(graph, model.world, x, record);
        rows = shoal_data(wide);
        const int16_t *values = shoal_data(numbers);
        for (int i = 0; i < 12; i++) {
            CHECK_INT(values[i % 3], keeps ? self->rank : 0);
            CHECK_DOUBLE((double)rows[i], i % 3 == 1 && !keeps ? 0 : self->rank);
        }
        shoal_graph_free(graph);
        close_model(&model);
        free(record);
    }
}

/* What cannot be captured ------------------------------------------------------------------------------- */

static void check_refused(struct model *model, shoal_tensor *x, shoal_status status, const char *words)
{
    struct snapshot before;
    struct snapshot after;
    shoal_graph *graph = NULL;
    take_snapshot(model, &before);
    CHECK_INT(shoal_capture(step, model, &x, 1, 1, &graph), status);
    CHECK(graph == NULL);
    if (!strstr(shoal_error_text(), words)) {
        test_failed(__FILE__, __LINE__, "\"%s\" has no \"%s\"", shoal_error_text(), words);
    }
    take_snapshot(model, &after);
    CHECK_BYTES(&after, &before, sizeof after);
}

TEST_RANKS(what_is_not_captured_is_named, 2)
{
    for (int reduces = 0; reduces < 2; reduces++) {
        struct model model;
        struct step_record *records = calloc(2, sizeof *records);
        REQUIRE(records && open_wrapped(&model, self, (shoal_ddp_options){.reduce_unused = reduces}));
        shoal_tensor *x = make_input(self);
        run_eager(&model, x, &records[0]);

        /* Averaged, and local on top of it. */
        CHECK_OK(shoal_ddp_set_sync(model.net.module, false));
        check_refused(&model, x, SHOAL_ERR_STATE, "shoal_ddp_set_sync");
        run_eager(&model, x, &records[1]);
        CHECK_OK(shoal_ddp_set_sync(model.net.module, true));
        check_refused(&model, x, SHOAL_ERR_STATE, "parameter b");
        net_zero(&model.net);

        if (!reduces) {
            model.net.skips[1] = true;
            check_refused(&model, x, SHOAL_ERR_STATE, "parameter b1.weight got no gradient");
            model.net.skips[1] = false;
        }
        model.net.is_recomputed = model.net.is_forked[0] = true; /* more often than in the eager step */
        check_refused(&model, x, SHOAL_ERR_STATE, "parameter b0.");
        model.net.is_recomputed = model.net.is_forked[0] = false;

        model.fails = true;
        check_refused(&model, x, SHOAL_ERR_CANCELLED, "");
        model.fails = false;
        run_eager(&model, x, &records[1]);
        step_check_same(&records[1], &records[0], "after captures that failed");
        close_model(&model);
        free(records);
    }
}

/* Unused parameters, reduce_unused -------------------------------------------------------------------------- */

static void run_compiled(struct model *model, shoal_compiled *compiled, shoal_tensor *x,
                         struct step_record *record)
{
    shoal_tensor *loss = NULL;
    record->n_rows = 0;
    if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1))) {
        step_add(record, "loss", loss);
        shoal_tensor_unref(loss);
        for (int i = 0; i < NET_PARAMS; i++) {
            step_add_gradient(record, model->net.params[i]);
        }
    }
}

/* What a step does not use on any rank has no gradient, or keeps the one that it had: averaged, or of the
   program's own. */
TEST_RANKS(unused_parameters_are_left_alone, 3)
{
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    shoal_compiled *compiled = NULL;
    REQUIRE(records && open_wrapped(&model, self, (shoal_ddp_options){.reduce_unused = true}));
    shoal_tensor *x = make_input(self);
    REQUIRE_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    for (int round = 0; round < 3 && !test_has_failed(); round++) {
        for (int way = 0; way < 2; way++) { /* eager, compiled */
            net_zero(&model.net);
            model.net.skips[1] = false;
            if (round == 1) {
                run_eager(&model, x, &records[way]); /* gradients that were averaged */
            } else if (round == 2) {
                CHECK_OK(shoal_ddp_set_sync(model.net.module, false));
                run_eager(&model, x, &records[way]); /* and that were not, which are reduced */
                CHECK_OK(shoal_ddp_set_sync(model.net.module, true));
            }
            model.net.skips[1] = true;
            if (way == 0) {
                run_eager(&model, x, &records[0]);
            } else {
                run_compiled(&model, compiled, x, &records[1]);
            }
        }
        CHECK((records[1].n_rows == NET_PARAMS + 1) == (round > 0)); /* the loss, and each that has one */
        step_check_same(&records[1], &records[0], round == 0 ? "none" : round == 1 ? "averaged" : "local");
    }
    net_zero(&model.net);
    model.net.skips[1] = false;
    run_eager(&model, x, &records[0]);
    net_zero(&model.net);
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    run_compiled(&model, compiled, x, &records[1]);
    step_check_same(&records[1], &records[0], "used again");
    net_zero(&model.net);
    shoal_compiled_free(compiled);
    close_model(&model);
    free(records);
}

/* An eager backward pass counts zeros where a rank does not use what another one does; a plan is the same on all
   ranks. */
TEST_RANKS(ranks_that_differ_in_what_they_use_are_refused, 2)
{
    struct model model;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){.reduce_unused = true}));
    shoal_tensor *x = make_input(self);
    model.net.skips[1] = self->rank == 1;
    REQUIRE_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    CHECK_INT(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_MISMATCH);
    CHECK(loss == NULL);
    shoal_compiled_free(compiled);
    close_model(&model);
}

struct kept {
    struct model *model;
    shoal_tensor *tensor;
};

static shoal_status walk_back(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    const struct kept *kept = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return shoal_backward(kept->tensor, NULL);
}

TEST_RANKS(a_forward_from_before_is_not_walked_back, 2)
{
    struct model model;
    shoal_graph *graph = NULL;
    REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){0}));
    shoal_tensor *x = make_input(self);
    struct kept kept = {.model = &model, .tensor = shoal_module_call_one(model.net.module, x)};
    CHECK_INT(shoal_capture(walk_back, &kept, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK(strstr(shoal_error_text(), "before this step was captured") != NULL);
    close_model(&model);
}

static shoal_status capture_once(void *context)
{
    const struct kept *kept = context;
    shoal_tensor *x = kept->tensor;
    shoal_graph *graph = NULL;
    shoal_status status = shoal_capture(step, kept->model, &x, 1, 1, &graph);
    shoal_graph_free(graph);
    return status;
}

TEST_RANKS(without_memory_nothing_changes, 1)
{
    struct model model;
    struct snapshot before;
    struct snapshot after;
    REQUIRE(open_wrapped(&model, self, (shoal_ddp_options){0}));
    struct kept kept = {.model = &model, .tensor = make_input(self)};
    CHECK_OK(capture_once(&kept)); /* scopes keep what small tensors lay in */
    take_snapshot(&model, &before);
    (void)test_sweep_allocations(capture_once, &kept);
    take_snapshot(&model, &after);
    CHECK_BYTES(&after, &before, sizeof after);
    close_model(&model);
}
