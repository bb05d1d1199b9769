/* SPDX-License-Identifier: MIT */
/*
 * Records where the time of a step goes: a small GPT whose blocks are sharded, with its steps and one range of its own.
 *
 *     shoal run -n 2 ./16_trace [FILE]        default "trace.json"
 *     shoal trace trace.json --svg step.svg   the table, and a picture; https://ui.perfetto.dev shows the whole
 */
#include <shoal/shoal.h>
#include <shoal_nn/modules.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

static void step(shoal_module *gpt, shoal_nn_optimizer *optimizer)
{
    DO(shoal_scope_begin());
    shoal_trace_begin("make a batch"); /* our own range, beside what the library records */
    shoal_tensor *tokens = shoal_zeros((int64_t[]){2, 32}, 2, SHOAL_I64);
    for (int64_t i = 0, *data = shoal_mutable_data(tokens); data && i < 64; i++) {
        data[i] = i * i % 50;
    }
    shoal_trace_end();
    shoal_tensor *logits = shoal_module_call_one(gpt, tokens);
    shoal_tensor *rows = shoal_reshape(logits, (int64_t[]){64, 50}, 2);
    DO(shoal_backward(shoal_nn_cross_entropy(rows, shoal_reshape(tokens, (int64_t[]){64}, 1)), NULL));
    DO(shoal_nn_optimizer_step(optimizer));
    DO(shoal_nn_optimizer_zero_grad(optimizer));
    DO(shoal_scope_end());
}

int main(int argc, char **argv)
{
    shoal_world *world;
    shoal_module *gpt;
    shoal_nn_optimizer *optimizer;
    shoal_nn_gpt_options size = SHOAL_NN_GPT_OPTIONS_INIT;
    size.n_layers = 2, size.width = 64, size.n_heads = 4, size.context = 32, size.vocabulary = 50;
    DO(shoal_world_open(NULL, &world));
    shoal_fully_shard_options how = {.struct_size = sizeof(how), .group = shoal_world_group(world)};
    DO(shoal_nn_gpt_create(&size, &gpt));
    DO(shoal_fully_shard(shoal_nn_gpt_block(gpt, 0), &how));
    DO(shoal_fully_shard(shoal_nn_gpt_block(gpt, 1), &how));
    DO(shoal_fully_shard(gpt, &how));
    DO(shoal_nn_adamw_create_for(gpt, NULL, NULL, 0, &optimizer));

    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = argc > 1 ? argv[1] : "trace.json";
    DO(shoal_trace_start(&options)); /* or SHOAL_TRACE=trace.json in the environment, and no call at all */
    for (int64_t i = 0; i < 5; i++) {
        shoal_trace_step(i);
        step(gpt, optimizer);
    }
    DO(shoal_trace_stop());
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(gpt);
    return shoal_world_close(world) == SHOAL_OK ? 0 : 1;
}
