/* SPDX-License-Identifier: MIT */
/*
 * A training run that can be stopped and started again at any time. It loads the newest checkpoint, if there is one,
 * and saves in the background after every third step. Here it runs twice: fully sharded for five steps; then with
 * ZeRO-1, from the checkpoint of step 3, with the same bits. If you start it again, it continues from there, also with
 * another number of ranks:
 *
 *     shoal run --no-label -n 2 ./14_checkpoint [DIRECTORY]        checkpoints stay there; default "checkpoints"
 *     shoal run --no-label -n 3 ./14_checkpoint [DIRECTORY]        steps 4 and 5
 */
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <shoal_nn/random.h>
#include <shoal_nn/schedule.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

static shoal_module *model;
static shoal_nn_optimizer *optimizer;
static shoal_nn_schedule schedule;
static shoal_items *items; /* what is saved: parameters, state of the optimizer, step of the schedule */

static shoal_status forward(shoal_module *self, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *hidden = shoal_nn_linear(inputs[0], shoal_module_parameter(self, "up"), NULL);
    outputs[0] = shoal_nn_linear(shoal_nn_tanh(hidden), shoal_module_parameter(self, "down"), NULL);
    return SHOAL_OK;
}

static void open_run(shoal_group *group, shoal_sharded sharded)
{
    const char *names[] = {"up", "down"};
    shoal_module_definition net = {.struct_size = sizeof(net), .type = "net", .forward = forward};
    DO(shoal_module_create(&net, &model));
    for (int i = 0; i < 2; i++) { /* shapes without memory */
        shoal_tensor *tensor = shoal_empty_on((int64_t[]){32, 32}, 2, SHOAL_F32, SHOAL_META);
        DO(shoal_set_requires_grad(tensor, true));
        DO(shoal_module_add_parameter(model, names[i], tensor));
    }
    shoal_fully_shard_options how = {.struct_size = sizeof(how), .group = group, .sharded = sharded};
    DO(shoal_fully_shard(model, &how));
    DO(shoal_nn_adamw_create_for(model, NULL, NULL, 0, &optimizer));
    schedule = (shoal_nn_schedule){sizeof(schedule), SHOAL_NN_SCHEDULE_COSINE, 3e-2, 1, 5, 3e-3, 0};
    DO(shoal_items_create(&items));
    DO(shoal_items_add_module(items, "", model));
    DO(shoal_nn_optimizer_add_items(optimizer, items));
    DO(shoal_nn_schedule_add_items(&schedule, items, "schedule."));
}

/* The model learns the hyperbolic tangent of random inputs. Each rank draws its 16 rows as one sample, numbered by the
   rank, so that they differ between ranks and steps. */
static float step(shoal_group *group)
{
    uint64_t sample = (uint64_t)shoal_group_rank(group);
    const shoal_nn_draws draws = {.seed = 1, .step = (uint64_t)schedule.step, .sample = sample};
    DO(shoal_scope_begin());
    shoal_tensor *input = shoal_empty((int64_t[]){16, 32}, 2, SHOAL_F32);
    DO(shoal_nn_fill(&draws, &(shoal_nn_distribution)SHOAL_NN_NORMAL(0, 1), input));
    shoal_tensor *loss = shoal_nn_mse(shoal_module_call_one(model, input), shoal_nn_tanh(input));
    DO(shoal_backward(loss, NULL));
    DO(shoal_nn_schedule_next(&schedule, optimizer));
    DO(shoal_nn_optimizer_step(optimizer));
    DO(shoal_nn_optimizer_zero_grad(optimizer));
    const float *mean = shoal_data(shoal_all_reduce(shoal_detach(loss), SHOAL_AVG, group));
    float seen = mean ? *mean : -1.0F;
    if (shoal_group_rank(group) == 0) {
        printf("step %d: loss %.6f\n", (int)schedule.step, (double)seen);
    }
    DO(shoal_scope_end());
    return seen;
}

static float train(shoal_group *group, const char *directory, shoal_sharded sharded)
{
    float loss = -1.0F;
    shoal_checkpoint_saving *saving = NULL;
    shoal_checkpoint_options options = {.struct_size = sizeof(options), .replaces = true, .keep = 2};
    shoal_checkpoint_load_options how = {sizeof(how), .allows_none = true, .skips_damaged = true};
    open_run(group, sharded);
    DO(shoal_nn_initialize(model, "*", &(shoal_nn_distribution)SHOAL_NN_UNIFORM(-0.2, 0.2), 1));
    DO(shoal_checkpoint_load(group, directory, items, &how, NULL)); /* sets schedule.step, too */
    while (schedule.step < 5) {
        loss = step(group); /* while a thread writes */
        if (schedule.step % 3 == 0) {
            options.step = schedule.step;
            DO(shoal_checkpoint_save_wait(saving)); /* the one before; NULL is fine */
            DO(shoal_checkpoint_save_start(group, directory, items, &options, &saving));
        }
    }
    DO(shoal_checkpoint_save_wait(saving));
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(model);
    return loss;
}

int main(int n_arguments, char **arguments)
{
    const char *directory = n_arguments > 1 ? arguments[1] : "checkpoints";
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    DO(shoal_scope_begin());
    float first = train(shoal_world_group(world), directory, SHOAL_SHARDED_PARAMETERS);
    float second = train(shoal_world_group(world), directory, SHOAL_SHARDED_STATE);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return first == second ? 0 : 1; /* bit for bit */
}
