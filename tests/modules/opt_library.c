/* SPDX-License-Identifier: MIT */
/*
 * What a user of `shoal opt --load` writes: an op and a pass that the library registers when it is loaded. It is linked with
 * libshoal and sees public headers only; its calls must reach the tool's own functions all the same.
 */
#include <stdio.h>
#include <stdlib.h>

#include "shoal/shoal.h"

static shoal_status like_meta(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status like_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)arguments;
    (void)outputs;
    (void)n_outputs;
    return shoal_fail(SHOAL_ERR_UNSUPPORTED, "nobody runs this");
}

/* neg(neg(x)) is x. */
static shoal_status drop_negs(shoal_graph *graph, const shoal_pass_options *options,
                              shoal_pass_report *report, void *context)
{
    (void)options;
    (void)report;
    (void)context;
    const shoal_op *neg = NULL;
    shoal_status status = shoal_op_find("neg", &neg);
    for (shoal_node *node = shoal_graph_first(graph); node && status == SHOAL_OK;
         node = shoal_node_next(node)) {
        size_t n_inputs;
        shoal_node *inner = shoal_node_op(node) == neg ? shoal_node_inputs(node, &n_inputs)[0] : NULL;
        if (inner && shoal_node_op(inner) == neg) {
            status = shoal_node_replace(node, shoal_node_inputs(inner, &n_inputs)[0], NULL, NULL, NULL);
        }
    }
    return status == SHOAL_OK ? shoal_graph_remove_dead(graph, NULL) : status;
}

/* Takes x for neg(x), which no pass may do. */
static shoal_status spoil(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                          void *context)
{
    (void)options;
    (void)report;
    (void)context;
    const shoal_op *neg = NULL;
    shoal_status status = shoal_op_find("neg", &neg);
    for (shoal_node *node = shoal_graph_first(graph); node && status == SHOAL_OK;
         node = shoal_node_next(node)) {
        size_t n_inputs;
        if (shoal_node_op(node) == neg) {
            status = shoal_node_replace(node, shoal_node_inputs(node, &n_inputs)[0], NULL, NULL, NULL);
        }
    }
    return status;
}

static shoal_status fail(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                         void *context)
{
    (void)graph;
    (void)options;
    (void)report;
    (void)context;
    return shoal_fail(SHOAL_ERR_STATE, "as it always does");
}

static void check(shoal_status status)
{
    if (status != SHOAL_OK) {
        (void)fprintf(stderr, "opt_library: %s\n", shoal_error_text());
        abort();
    }
}

__attribute__((constructor)) static void register_all(void)
{
    const shoal_op_definition like = {.struct_size = sizeof(like),
                                      .name = "test.like",
                                      .signature = "tensor self -> tensor",
                                      .meta = like_meta,
                                      .kernel = like_kernel,
                                      .doc = "One more."};
    const shoal_pass_definition passes[] = {
        {.struct_size = sizeof(passes[0]),
         .name = "test_drop_negs",
         .doc = "Drops negs in pairs.",
         .run = drop_negs},
        {.struct_size = sizeof(passes[0]), .name = "test_fail", .doc = "Fails.", .run = fail},
        {.struct_size = sizeof(passes[0]), .name = "test_spoil", .doc = "Changes results.", .run = spoil},
    };
    const shoal_op *op;
    check(shoal_op_register(&like, &op));
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
        check(shoal_pass_register(&passes[i]));
    }
}
