/* SPDX-License-Identifier: MIT */
/*
 * A training step under DDP becomes a graph: it is captured, passes fuse its communication, and the result is lowered
 * to a plan that runs every step. Rank 0 prints each of them.
 *
 *     shoal run --no-label -n 2 ./12_compile
 */
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

/* w1 * gelu(w0 * x) */
static shoal_status forward(shoal_module *model, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = shoal_nn_linear(inputs[n_inputs - 1], shoal_module_parameter(model, "w0"), NULL);
    outputs[n_outputs - 1] = shoal_nn_linear(shoal_nn_gelu(x), shoal_module_parameter(model, "w1"), NULL);
    return SHOAL_OK;
}

/* What is compiled: forward, loss, backward. DDP averages the gradients. */
static shoal_status step(void *model, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    outputs[n_outputs - 1] = shoal_nn_mse(shoal_module_call_one(model, inputs[0]), inputs[n_inputs - 1]);
    return shoal_backward(outputs[n_outputs - 1], NULL);
}

static int print(void *rank, const char *text, size_t bytes)
{
    return *(const int *)rank == 0 && fwrite(text, 1, bytes, stdout) != bytes;
}

int main(void)
{
    static const char *const names[] = {"w0", "w1"};
    static const char *const passes[] = {"fuse_ddp_communication", "simple_overlap"};
    const int64_t shape[] = {8, 8};
    shoal_world *world;
    shoal_module *model;
    shoal_graph *graph;
    shoal_compiled *compiled;
    shoal_tensor *loss;
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    shoal_ddp_options ddp = SHOAL_DDP_OPTIONS_INIT;
    definition.type = "model";
    definition.forward = forward;
    DO(shoal_world_open(NULL, &world));
    DO(shoal_scope_begin());
    int rank = shoal_world_rank(world);
    DO(shoal_module_create(&definition, &model));
    for (int i = 0; i < 2; i++) {
        shoal_tensor *weight = shoal_full(shape, 2, 0.1 * (i + 1), SHOAL_F32);
        DO(shoal_set_requires_grad(weight, true));
        DO(shoal_module_add_parameter(model, names[i], weight));
    }
    ddp.group = shoal_world_group(world);
    DO(shoal_ddp(model, &ddp));
    shoal_tensor *batch[] = {shoal_full(shape, 2, rank + 1.0, SHOAL_F32), shoal_zeros(shape, 2, SHOAL_F32)};

    DO(shoal_capture(step, model, batch, 2, 1, &graph)); /* an all_reduce for each gradient */
    DO(shoal_graph_print(graph, print, &rank));
    DO(shoal_graph_run_passes(graph, passes, 2, NULL, NULL)); /* one for both, and its wait at the end */
    DO(shoal_graph_print(graph, print, &rank));
    shoal_graph_free(graph);

    DO(shoal_compile(world, step, model, 1, NULL,
                     &compiled));                         /* all of that, and a plan of buffers and steps */
    DO(shoal_compiled_run(compiled, batch, 2, &loss, 1)); /* gradients are where an optimizer finds them */
    DO(shoal_plan_print(shoal_compiled_plan(compiled), print, &rank));
    shoal_tensor_unref(loss);
    shoal_compiled_free(compiled);
    shoal_module_unref(model);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return 0;
}
