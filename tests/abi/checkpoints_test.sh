#!/bin/bash
# SPDX-License-Identifier: MIT
# The C blocks of docs/checkpoints.md, each as the body of a function, compile, and do what the page says: a GPT is saved
# by two ranks, resumed by three, exported, and loaded again as files of Hugging Face's hub are.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib
cd "$scratch"

# shellcheck disable=SC2016 # the quotes hold no expansions, but a code fence
perl -0ne 'print "$1\0" while /^```c\n(.*?)^```$/gms' "$SHOAL_TEST_SOURCE_DIR/docs/checkpoints.md" >blocks
mapfile -d '' -t blocks <blocks
[[ ${#blocks[@]} -eq 7 ]]

cat >program.c <<C
#include <shoal/shoal.h>
#include <shoal_nn/modules.h>
#include <shoal_nn/optim.h>
#include <shoal_nn/scaler.h>
#include <shoal_nn/schedule.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

static shoal_module *model;
static shoal_nn_optimizer *optimizer;
static shoal_nn_schedule schedule = {sizeof schedule, SHOAL_NN_SCHEDULE_COSINE, 3e-2, 1, 5, 3e-3, 0};
static shoal_nn_scaler *scaler;
static int64_t epoch = 7, n_steps, batch = 6, n_accumulate = 1;
static int n_ranks;

static shoal_items *make_list(void)
{
    ${blocks[0]}
    return items;
}

static shoal_checkpoint_options save(shoal_group *group, shoal_items *items, int64_t step, int64_t sample)
{
    ${blocks[1]}
    return options;
}

static shoal_group *all_of(shoal_mesh *mesh)
{
    shoal_mesh *flat;
    ${blocks[2]}
    shoal_mesh_free(flat);
    return group;
}

static int64_t resume(shoal_group *group, shoal_items *items, shoal_checkpoint_options options)
{
    ${blocks[3]}
    return found.step;
}

static void export_whole(shoal_group *group, shoal_items *items, shoal_checkpoint_options options)
{
    ${blocks[4]}
}

static void load_model(shoal_group *group, shoal_items *items)
{
    ${blocks[5]}
}

static void load_gpt(shoal_group *group, shoal_items *items, shoal_module *gpt)
{
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    ${blocks[6]}
}
C
cat >>program.c <<'C'

int main(int n_arguments, char **arguments)
{
    const char *what = arguments[n_arguments - 1];
    shoal_nn_gpt_options shape = {sizeof shape, .n_layers = 1, .width = 16, .n_heads = 2, .context = 8,
                                  .vocabulary = 32, .eps = 1e-5, .dtype = SHOAL_F32};
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_items *hub;
    DO(shoal_world_open(NULL, &world));
    n_ranks = shoal_world_n_ranks(world);
    batch = 6 / n_ranks;
    DO(shoal_mesh_create(world, "cpu", NULL, (int[]){1, n_ranks}, 2, (const char *[]){"replicas", "shards"}, &mesh));
    shoal_group *group = all_of(mesh);
    shoal_fully_shard_options sharding = {.struct_size = sizeof sharding, .mesh = mesh};
    DO(shoal_nn_gpt_create(&shape, &model));
    DO(shoal_fully_shard(model, &sharding));
    DO(shoal_nn_adamw_create_for(model, NULL, NULL, 0, &optimizer));
    DO(shoal_nn_scaler_create(NULL, &scaler));
    shoal_items *list = make_list();
    DO(shoal_items_create(&hub));
    shoal_checkpoint_options options = {.struct_size = sizeof options, .replaces = true, .keep = 3};
    options.progress = (shoal_checkpoint_progress){n_ranks, batch, n_accumulate, 0};
    if (strcmp(what, "save") == 0) {
        (void)save(group, list, 500, 3000);
        n_steps = 2000;
    } else {
        n_steps = 3000;
        epoch = 0;
    }
    if (strcmp(what, "hub") == 0) {
        load_model(group, list);
        load_gpt(group, hub, model);
    } else {
        int64_t from = resume(group, list, options);
        if (shoal_world_rank(world) == 0) {
            printf("from step %d, epoch %d\n", (int)from, (int)epoch);
        }
        export_whole(group, list, options);
    }
    shoal_items_free(list);
    shoal_items_free(hub);
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(model);
    shoal_mesh_free(mesh);
    DO(shoal_world_close(world));
    return 0;
}
C
cc -std=c99 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" program.c -o program -L"$release/lib" -lshoal_nn -lshoal

said() {
    "$release/bin/shoal" run --no-label -n "$1" ./program "$2" >printed
    diff <(printf '%s\n' "${@:3}") printed
}
said 2 save 'from step 500, epoch 7'
said 3 resume 'from step 2000, epoch 7'
[[ $(cd run7 && echo step-*) == 'step-000001000 step-000002000 step-000003000' ]]
[[ -s export/step-000000000/model.safetensors ]]
mkdir Llama-3.2-1B gpt2
cp export/step-000000000/model.safetensors Llama-3.2-1B
cp export/step-000000000/model.safetensors gpt2
"$release/bin/shoal" run -n 2 ./program hub
