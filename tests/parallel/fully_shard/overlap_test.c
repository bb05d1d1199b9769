/* SPDX-License-Identifier: MIT */
/*
 * What goes on while layers compute: gathers of the next and reductions of the last ones. Never by the clock: by the order
 * of what is started and computed, and by ranks that stay in the middle of a layer until another one is past it.
 */
#include <stdatomic.h>

#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"

/* Ranks at which the harness' shared memory says who is where. */
struct board {
    atomic_int forward[8]; /* the layer that this rank computes */
    atomic_int backward[8];
};

/* What is computed in this rank: layers write down that they do, and may stay a while. */
static _Thread_local struct net *writing;
static _Thread_local struct rank *me;
static _Thread_local bool is_held; /* rank 1 stays in layers until rank 0 is past them */

/* "c0" layer 0 computes; "k0+1" its gradients, with one reduction on its way. */
static void write_mark(bool is_backward, int layer)
{
    size_t length = strlen(writing->events);
    char reductions[24] = "";
    if (is_backward) {
        (void)snprintf(reductions, sizeof reductions, "+%zu",
                       fsdp_wrapper_of(writing->root)->root->context->reductions.n);
    }
    (void)snprintf(writing->events + length, sizeof writing->events - length, " %c%d%s",
                   is_backward ? 'k' : 'c', layer, reductions);
}

/* Until rank 0 computes something that comes later. The deadline of the test ends it otherwise. */
static void stay(const atomic_int *of_first, int layer, int step)
{
    /* Pairs with the stores in compute_forward and compute_backward. */
    while (is_held && me->rank == 1 &&
           (atomic_load_explicit(of_first, memory_order_acquire) - layer) * step <= 0) {
        test_pause(0.0005);
    }
}

static int number_of(const shoal_module *module)
{
    return (int)(intptr_t)shoal_module_context(module);
}

static void compute_forward(int layer)
{
    struct board *board = me->shared;
    write_mark(false, layer);
    atomic_store_explicit(&board->forward[me->rank], layer, memory_order_release); /* with stay */
    if (layer < writing->n_layers - 1) {
        stay(&board->forward[0], layer, 1);
    }
}

static void compute_backward(int layer)
{
    struct board *board = me->shared;
    write_mark(true, layer);
    atomic_store_explicit(&board->backward[me->rank], layer, memory_order_release); /* with stay */
    if (layer > 0) {
        stay(&board->backward[0], layer, -1);
    }
}

static shoal_tensor *gradient_of_product(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    compute_backward((int)(intptr_t)context);
    return NULL;
}

static shoal_status layer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    compute_forward(number_of(module));
    shoal_tensor *product = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
    outputs[0] = shoal_add(product, shoal_module_parameter(module, "bias"));
    return shoal_on_gradient(product, gradient_of_product, (void *)(intptr_t)number_of(module), NULL);
}

static shoal_tensor *scaled_first(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

static bool open_net(struct bench *bench, struct rank *self, int n_layers)
{
    me = self;
    is_held = false;
    if (!bench_open(bench, self, 0, scaled_first)) {
        return false;
    }
    bench->options.reshard = SHOAL_RESHARD_ALWAYS;
    writing = &bench->sharded;
    for (int i = 0; i < n_layers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        shoal_module *layer = net_make_module("layer", layer_forward, (void *)(intptr_t)i);
        (void)CHECK_OK(
            shoal_module_add_parameter(layer, "weight", net_parameter(10U + (uint32_t)i, NET_WIDTH)));
        (void)CHECK_OK(shoal_module_add_parameter(layer, "bias", net_parameter(20U + (uint32_t)i, 1)));
        (void)CHECK_OK(shoal_module_add_child(bench->sharded.root, name, layer));
        bench->sharded.layers[i] = layer;
        shoal_module_unref(layer);
    }
    bench->sharded.n_layers = n_layers;
    return net_shard(&bench->sharded, &bench->options);
}

/* In every layer the gather of the next one is on its way, and in backward a reduction of the last one, too: over
   another group, so that neither waits behind the other. */
TEST_RANKS(what_is_started_before_layers_compute, 2)
{
    struct bench bench;
    REQUIRE(open_net(&bench, self, 3));
    const struct fsdp_mesh *mesh = &fsdp_wrapper_of(bench.sharded.root)->mesh;
    CHECK(mesh->gather && mesh->reduce && mesh->gather != mesh->reduce);
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.sharded, "urp");
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        CHECK_EVENTS(&bench.sharded,
                     step == 0 ? "uR u0 c0 r0 u1 c1 r1 u2 c2 r2 rR" : "uR u0 u1 c0 r0 u2 c1 r1 c2 r2 rR");
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.sharded, "uR u2 u1 k2+0 p2 r2 u0 k1+1 p1 r1 k0+1 p0 r0 pR rR");
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}

/* Rank 1 computes a layer until rank 0 computes the next one: its part of the gather and of the reduction before must
   have been sent, and rank 0 must not wait for reductions that rank 1 has not begun. */
static void train_held(struct rank *self, struct bench *bench)
{
    struct board *board = self->shared;
    for (int step = 0; step < 4 && !test_has_failed(); step++) {
        test_barrier(self);
        atomic_store_explicit(&board->forward[self->rank], -1, memory_order_relaxed);
        atomic_store_explicit(&board->backward[self->rank], bench->sharded.n_layers, memory_order_relaxed);
        test_barrier(self); /* the harness orders them */
        is_held = step > 0; /* at first there is no order to go by, and memory is made together */
        (void)net_pass(&bench->sharded, step, self->rank);
        net_update(&bench->sharded, 0.1F);
    }
    is_held = false;
}

TEST_RANKS(a_rank_stays_in_its_layers, 2)
{
    struct bench bench;
    REQUIRE(open_net(&bench, self, 4));
    train_held(self, &bench);
    bench_close(&bench);
}
