/* SPDX-License-Identifier: MIT */
/* A GPT of ready-made modules, fully sharded, learns a rhyme byte by byte. Each rank has a part of every weight, and
   rows of its own. Run it with: shoal run --no-label -n 2 ./15_gpt */
#include <shoal/shoal.h>
#include <shoal_nn/modules.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define ROWS 8 /* of a rank */
#define LENGTH 32
static const char text[] = "This is the cat that killed the rat that ate the malt that lay in the house. ";

static shoal_module *make_model(shoal_group *group)
{
    const shoal_nn_gpt_options options = {sizeof(options), .n_layers = 2,     .width = 64,
                                          .n_heads = 4,    .context = LENGTH, .vocabulary = 128,
                                          .eps = 1e-5,     .dtype = SHOAL_F32};
    const shoal_fully_shard_options sharding = {.struct_size = sizeof(sharding), .group = group};
    shoal_module *gpt;
    DO(shoal_nn_gpt_create(&options, &gpt));
    for (int64_t i = 0; i < options.n_layers; i++) {
        DO(shoal_fully_shard(shoal_nn_gpt_block(gpt, i), &sharding));
    }
    DO(shoal_fully_shard(gpt, &sharding));
    return gpt;
}

/* Rows of the text, which goes round. The targets are shifted by one byte. */
static shoal_tensor *make_rows(int first, int shift)
{
    shoal_tensor *rows = shoal_empty((int64_t[]){ROWS, LENGTH}, 2, SHOAL_U8);
    char *bytes = shoal_mutable_data(rows);
    for (int i = 0; bytes && i < ROWS * LENGTH; i++) {
        bytes[i] = text[((first + i / LENGTH) * 7 + i % LENGTH + shift) % (int)(sizeof(text) - 1)];
    }
    return rows;
}

/* "This", and always the likeliest byte after that. All ranks call it: each has a part of the model. */
static void write_sample(shoal_module *gpt, bool is_printed)
{
    char line[LENGTH + 1] = "This";
    DO(shoal_scope_begin());
    for (int n = 4; n < LENGTH; n++) {
        shoal_tensor *input = shoal_from_memory(line, (int64_t[]){1, n}, 2, SHOAL_U8, NULL, NULL, NULL);
        const float *logits = shoal_data(shoal_module_call_one(gpt, input));
        for (int byte = 0, at = (n - 1) * 128; logits && byte < 128; byte++) {
            line[n] = logits[at + byte] > logits[at + line[n]] ? (char)byte : line[n];
        }
    }
    DO(shoal_scope_end());
    printf("%s%s", is_printed ? line : "", is_printed ? "\n" : "");
}

int main(void)
{
    shoal_nn_optimizer *optimizer;
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    int rank = shoal_world_rank(world);
    shoal_module *gpt = make_model(shoal_world_group(world));
    DO(shoal_nn_adamw_create_for(gpt, NULL, NULL, 0, &optimizer));
    for (int i = 0; i < 120; i++) {
        DO(shoal_scope_begin());
        int first = (i * shoal_world_n_ranks(world) + rank) * ROWS;
        shoal_tensor *logits = shoal_module_call_one(gpt, make_rows(first, 0));
        shoal_tensor *loss = shoal_nn_cross_entropy(logits, make_rows(first, 1));
        DO(shoal_backward(loss, NULL));
        DO(shoal_nn_optimizer_step(optimizer));
        DO(shoal_nn_optimizer_zero_grad(optimizer));
        if (i % 30 == 29 && rank == 0) {
            printf("step %d: loss %.3f\n", i + 1, (double)*(const float *)shoal_data(loss));
        }
        DO(shoal_scope_end());
    }
    write_sample(gpt, rank == 0);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(gpt);
    DO(shoal_world_close(world));
    return 0;
}
