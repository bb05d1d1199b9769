/* SPDX-License-Identifier: MIT */
/*
 * Units inside units whose insides are computed again, and units of several modules around them: in which order they
 * are gathered, given up and reduced, and that they train like one process.
 *
 *     embeddings e, p  (one unit)  ->  blocks 0, 1, ...  ->  norm n, output o  (one unit)  ->  times the root's scale
 *     a block: times its gain, layer a (a unit of its own), layer b
 *
 * The block computes its inside again in backward, and inside of that the two layers once more.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "harness/harness.h"

/* A list of events: "f0.a" gathered for a forward, "b0.a" for a backward pass, "r" given up, "p" its backward pass
   is over. */
static _Thread_local char events[1024];

static void write_down(void *context, enum fsdp_event event, const struct fsdp_unit *unit)
{
    size_t length = strlen(events);
    char letter = event == FSDP_EVENT_RESHARD ? 'r' : 'p';
    (void)context;
    if (event == FSDP_EVENT_UNSHARD) {
        letter = unit->step.phase == FSDP_FORWARD ? 'f' : unit->step.phase == FSDP_PRE_BACKWARD ? 'b' : 'u';
    } else if (event != FSDP_EVENT_RESHARD && event != FSDP_EVENT_POST_BACKWARD) {
        return;
    }
    (void)snprintf(events + length, sizeof events - length, "%s%c%s", length > 0 ? " " : "", letter,
                   unit->number == 0 ? "R" : unit->name);
}

static void listen(const struct net *net)
{
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(net->root);
    (void)CHECK_OK(fsdp_wrapper_prepare(wrapper));
    if (wrapper->root) {
        wrapper->root->context->listener.hear = write_down;
    }
    events[0] = '\0';
}

static void check_events(const char *wanted)
{
    (void)CHECK_STRING(events, wanted);
    events[0] = '\0';
}

/* The net ------------------------------------------------------------------------------------------------ */

/* Who computes what again. */
enum again {
    NOTHING_AGAIN,
    INSIDES_AGAIN, /* blocks, and their layers inside of that */
    BLOCKS_AGAIN   /* the same, and what calls a block does it again, hooks and all */
};

static _Thread_local enum again again;

static shoal_status run_layers(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_call(context, "b", net_call(context, "a", inputs[0]));
    return SHOAL_OK;
}

static shoal_status run_block(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = shoal_mul(inputs[0], shoal_module_parameter(context, "gain"));
    if (again == NOTHING_AGAIN) {
        return run_layers(context, &x, n_inputs, outputs, n_outputs);
    }
    return x ? shoal_recompute(run_layers, context, NULL, &x, 1, outputs, 1) : SHOAL_OK;
}

static shoal_status block_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    if (again == NOTHING_AGAIN) {
        return run_block(module, inputs, n_inputs, outputs, n_outputs);
    }
    return shoal_recompute(run_block, module, NULL, inputs, 1, outputs, 1);
}

static shoal_tensor *transform(shoal_module *root, shoal_tensor *x)
{
    x = shoal_add(net_call(root, "e", x), net_call(root, "p", x));
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        shoal_module *child = shoal_module_child_at(root, i, NULL);
        if (strcmp(shoal_module_type(child), "block") == 0) {
            x = again == BLOCKS_AGAIN ? net_recompute(child, x) : shoal_module_call_one(child, x);
        }
    }
    return net_call(root, "o", net_call(root, "n", x));
}

static void add_module(shoal_module *parent, const char *name, shoal_module *child)
{
    (void)CHECK_OK(shoal_module_add_child(parent, name, child));
    shoal_module_unref(child);
}

static void fill(struct net *net, int n_blocks)
{
    static const char *const names[] = {"e", "p", "n", "o"};
    for (int i = 0; i < n_blocks; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        shoal_module *block = net_make_module("block", block_forward, NULL);
        (void)CHECK_OK(
            shoal_module_add_parameter(block, "gain", net_parameter(300U + (uint32_t)i, NET_WIDTH)));
        add_module(block, "a", net_make_layer(100U + 10 * (uint32_t)i));
        add_module(block, "b", net_make_layer(200U + 10 * (uint32_t)i));
        add_module(net->root, name, block);
    }
    for (uint32_t i = 0; i < 4; i++) {
        add_module(net->root, names[i], net_make_layer(400U + 10 * i));
    }
}

static shoal_module *child(const struct net *net, const char *path)
{
    return shoal_module_child(net->root, path);
}

static bool shard(struct bench *bench, int n_blocks)
{
    const struct net *net = &bench->sharded;
    shoal_module *const embeddings[] = {child(net, "e"), child(net, "p")};
    shoal_module *const ends[] = {child(net, "n"), child(net, "o")};
    for (int i = 0; i < n_blocks; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        shoal_module *block = child(net, name);
        if (!CHECK_OK(shoal_fully_shard(shoal_module_child(block, "a"), &bench->options)) ||
            !CHECK_OK(shoal_fully_shard(block, &bench->options))) {
            return false;
        }
    }
    return CHECK_OK(shoal_fully_shard_list(embeddings, 2, &bench->options)) &&
           CHECK_OK(shoal_fully_shard_list(ends, 2, &bench->options)) &&
           CHECK_OK(shoal_fully_shard(net->root, &bench->options));
}

static bool open_transformer(struct bench *bench, struct rank *self, int n_blocks, enum again how)
{
    again = how;
    if (!bench_open(bench, self, 0, transform)) {
        return false;
    }
    bench->options.forward_prefetch = -1;
    fill(&bench->sharded, n_blocks);
    fill(&bench->alone, n_blocks);
    return shard(bench, n_blocks) && !test_has_failed();
}

static void check_step(struct bench *bench, struct rank *self, int step, const char *forward_list,
                       const char *backward_list)
{
    listen(&bench->sharded);
    shoal_tensor *loss = net_loss(&bench->sharded, net_input(step, self->rank));
    check_events(forward_list);
    (void)CHECK_OK(shoal_backward(loss, NULL));
    check_events(backward_list);
    net_pass_alone(&bench->alone, net_pass, step, self->n_ranks);
    net_check_same(&bench->sharded, &bench->alone);
    net_update(&bench->sharded, 0.1F);
    net_update(&bench->alone, 0.1F);
}

/* Lists --------------------------------------------------------------------------------------------------- */

static const char *const forward_of_two = "fR fe, p re, p f0 f0.a r0.a r0 f1 f1.a r1.a r1 fn, o rn, o";

/* A block gathers its own inner layer, which gathers the block before. */
static const char *const backward_of_two =
    "bn, o b1 pn, o rn, o b1.a b0 p1.a r1.a p1 r1 b0.a be, p p0.a r0.a p0 r0 pR rR pe, p re, p";

TEST_RANKS(nothing_computed_again, 2)
{
    struct bench bench;
    REQUIRE(open_transformer(&bench, self, 2, NOTHING_AGAIN));
    for (int step = 0; step < 3; step++) {
        check_step(&bench, self, step, forward_of_two, backward_of_two);
    }
    bench_close(&bench);
}

/* Computing again changes nothing: what is gathered is there, and nothing is given up in between. */
TEST_RANKS(insides_computed_again, 2)
{
    struct bench bench;
    REQUIRE(open_transformer(&bench, self, 2, INSIDES_AGAIN));
    for (int step = 0; step < 3; step++) {
        check_step(&bench, self, step, forward_of_two, backward_of_two);
    }
    bench_close(&bench);
}

/* Blocks prefetch blocks: their inner layers are gathered when they are computed again, for that forward. */
TEST_RANKS(blocks_that_prefetch_blocks, 2)
{
    struct bench bench;
    REQUIRE(open_transformer(&bench, self, 3, INSIDES_AGAIN));
    for (int i = 2; i > 0; i--) {
        shoal_module *const before[] = {child(&bench.sharded, i == 2 ? "1" : "0")};
        CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, child(&bench.sharded, i == 2 ? "2" : "1"),
                                  before, 1));
    }
    for (int step = 0; step < 3; step++) {
        check_step(
            &bench, self, step, "fR fe, p re, p f0 f0.a r0.a r0 f1 f1.a r1.a r1 f2 f2.a r2.a r2 fn, o rn, o",
            "bn, o b2 pn, o rn, o b1 f2.a p2.a r2.a p2 r2 b0 f1.a p1.a r1.a p1 r1 b0.a be, p p0.a r0.a "
            "p0 r0 pR rR pe, p re, p");
    }
    bench_close(&bench);
}

/* With the inner layer in the list, it is there when it is needed. */
TEST_RANKS(blocks_that_prefetch_insides, 2)
{
    struct bench bench;
    REQUIRE(open_transformer(&bench, self, 2, INSIDES_AGAIN));
    shoal_module *const ahead[] = {child(&bench.sharded, "1.a"), child(&bench.sharded, "0"),
                                   child(&bench.sharded, "0.a")};
    CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, child(&bench.sharded, "1"), ahead, 3));
    for (int step = 0; step < 3; step++) {
        check_step(
            &bench, self, step, forward_of_two,
            "bn, o b1 pn, o rn, o b1.a b0 b0.a p1.a r1.a p1 r1 be, p p0.a r0.a p0 r0 pR rR pe, p re, p");
    }
    bench_close(&bench);
}

/* Values ---------------------------------------------------------------------------------------------------- */

static bool pass_two(struct net *net, int step, int part)
{
    net->is_near =
        again != NOTHING_AGAIN; /* gradients of two forwards are reduced one after the other then */
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *first = net_loss(net, net_input(step, part));
    shoal_tensor *second = net_loss(net, net_input(step + 50, part));
    bool is_right = CHECK_OK(shoal_backward(shoal_add(first, second), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

static void train(struct rank *self, enum again how, shoal_reshard reshard, net_passer pass)
{
    struct bench bench;
    again = how;
    REQUIRE(bench_open(&bench, self, 0, transform));
    bench.options.reshard = reshard;
    fill(&bench.sharded, 2);
    fill(&bench.alone, 2);
    if (shard(&bench, 2)) {
        net_train_both(&bench.sharded, &bench.alone, pass, self, 3);
    }
    bench_close(&bench);
}

/* Everything nested, everything computed again, two forwards before a backward pass. */
TEST_RANKS(values, 4)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER,
                                             SHOAL_RESHARD_PARTLY};
    for (int i = 0; i < 4; i++) {
        for (enum again how = NOTHING_AGAIN; how <= BLOCKS_AGAIN; how++) {
            if (HARNESS_HAS_TSAN && (i + (int)how) % 3 != 0) {
                continue;
            }
            train(self, how, reshards[i], net_pass);
            train(self, how, reshards[i], pass_two);
        }
    }
}
