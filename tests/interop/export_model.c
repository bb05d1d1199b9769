/* SPDX-License-Identifier: MIT */
/*
 * A small network whose parameters have the names and shapes that a PyTorch module of the same structure would have. It
 * is trained on ranks that share it, and saved for other readers: tests/cli/export_test.sh and scripts/check_export.py.
 *
 *     shoal run --no-label -n 4 ./export_model DIRECTORY f32|bf16
 *
 * DIRECTORY/files and DIRECTORY/file are whole checkpoints, of several files and of one; DIRECTORY/pieces is one of
 * pieces. DIRECTORY/values.txt lists what was saved, values.bin has the bytes of all of it in that order, gathered
 * without the code of checkpoints. The first line of values.txt is the loss of the model in f32 on tokens that
 * forward() tells: of a second model, cut in another way, into which the pieces were loaded.
 */
#include <errno.h>
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <shoal_nn/random.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_BLOCKS 2
#define N_TOKENS 61 /* 61 and 22 rows are not the same number for each of 4 ranks */
#define WIDTH 22
#define HIDDEN 44
#define ROWS 30
#define N_STEPS 3
#define FILE_BYTES 6000 /* of the export of several files */

/* The model ---------------------------------------------------------------------------------------------- */

static shoal_tensor *apply(shoal_module *module, const char *name, shoal_tensor *input,
                           shoal_tensor *(*function)(shoal_tensor *, shoal_tensor *, shoal_tensor *))
{
    shoal_module *layer = shoal_module_child(module, name);
    return function(input, shoal_module_parameter(layer, "weight"), shoal_module_parameter(layer, "bias"));
}

static shoal_tensor *normalize(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias)
{
    return shoal_nn_layer_norm(input, weight, bias, 1e-5);
}

static shoal_status forward_block(shoal_module *block, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *normal = apply(block, "norm", inputs[0], normalize);
    shoal_tensor *hidden = shoal_nn_gelu(apply(block, "up", normal, shoal_nn_linear));
    outputs[0] = shoal_add(inputs[0], apply(block, "down", hidden, shoal_nn_linear));
    return SHOAL_OK;
}

static shoal_status forward_model(shoal_module *model, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_module *blocks = shoal_module_child(model, "blocks");
    shoal_tensor *x = shoal_nn_embedding(inputs[0], shoal_module_parameter(model, "embedding.weight"));
    for (size_t i = 0; shoal_module_child_at(blocks, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(blocks, i, NULL), x);
    }
    x = apply(model, "norm", x, normalize);
    outputs[0] = shoal_nn_linear(x, shoal_module_parameter(model, "head.weight"), NULL);
    return SHOAL_OK;
}

static shoal_module *add_child(shoal_module *parent, const char *name, shoal_module_forward forward)
{
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    definition.type = name;
    definition.forward = forward;
    shoal_module *module;
    DO(shoal_module_create(&definition, &module));
    if (parent != NULL) {
        DO(shoal_module_add_child(parent, name, module));
        shoal_module_unref(module);
    }
    return module;
}

/* Columns 0: a vector. Without values. */
static void add_parameter(shoal_module *module, const char *name, int64_t rows, int64_t columns,
                          shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty_on((int64_t[]){rows, columns}, columns > 0 ? 2 : 1, dtype, SHOAL_META);
    DO(shoal_set_requires_grad(tensor, true));
    DO(shoal_module_add_parameter(module, name, tensor));
}

static void add_layer(shoal_module *parent, const char *name, int64_t rows, int64_t columns,
                      shoal_dtype dtype)
{
    shoal_module *layer = add_child(parent, name, NULL);
    add_parameter(layer, "weight", rows, columns, dtype);
    add_parameter(layer, "bias", rows, 0, dtype);
}

static shoal_module *make_model(shoal_dtype dtype)
{
    shoal_module *model = add_child(NULL, "model", forward_model);
    add_parameter(add_child(model, "embedding", NULL), "weight", N_TOKENS, WIDTH, dtype);
    shoal_module *blocks = add_child(model, "blocks", NULL);
    for (int i = 0; i < N_BLOCKS; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "%d", i);
        shoal_module *block = add_child(blocks, name, forward_block);
        add_layer(block, "norm", WIDTH, 0, dtype);
        add_layer(block, "up", HIDDEN, WIDTH, dtype);
        add_layer(block, "down", WIDTH, HIDDEN, dtype);
    }
    add_layer(model, "norm", WIDTH, 0, dtype);
    shoal_module *head = add_child(model, "head", NULL); /* tied */
    DO(shoal_module_add_parameter(head, "weight", shoal_module_parameter(model, "embedding.weight")));
    return model;
}

static int cut_columns(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    return strstr(path, "down") && shoal_tensor_n_dims(parameter) == 2 ? 1 : 0;
}

static void shard(shoal_module *model, shoal_group *group, shoal_placement placement)
{
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.group = group;
    options.placement = placement;
    shoal_module *blocks = shoal_module_child(model, "blocks");
    for (size_t i = 0; shoal_module_child_at(blocks, i, NULL) != NULL; i++) {
        DO(shoal_fully_shard(shoal_module_child_at(blocks, i, NULL), &options));
    }
    DO(shoal_fully_shard(model, &options));
}

/* Training ----------------------------------------------------------------------------------------------- */

/* The loss of 30 tokens; what follows token i + 7 p + 3 is i + 5 p + 1. */
static shoal_tensor *forward(shoal_module *model, int64_t i)
{
    shoal_tensor *tokens = shoal_zeros((int64_t[]){ROWS}, 1, SHOAL_I64);
    shoal_tensor *targets = shoal_zeros((int64_t[]){ROWS}, 1, SHOAL_I64);
    int64_t *token = shoal_mutable_data(tokens);
    int64_t *target = shoal_mutable_data(targets);
    for (int64_t p = 0; token && target && p < ROWS; p++) {
        token[p] = (i + 7 * p + 3) % N_TOKENS;
        target[p] = (i + 5 * p + 1) % N_TOKENS;
    }
    return shoal_nn_cross_entropy(shoal_module_call_one(model, tokens), targets);
}

static shoal_nn_optimizer *train(shoal_module *model, shoal_group *group)
{
    const shoal_nn_distribution matrices = SHOAL_NN_NORMAL(0, 0.3);
    const shoal_nn_distribution norms = SHOAL_NN_UNIFORM(0.8, 1.2);
    const shoal_nn_distribution biases = SHOAL_NN_NORMAL(0, 0.1);
    DO(shoal_nn_initialize(model, "*weight", &matrices, 1));
    DO(shoal_nn_initialize(model, "*norm.weight", &norms, 1));
    DO(shoal_nn_initialize(model, "*bias", &biases, 1));
    shoal_nn_optimizer *optimizer;
    shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    options.lr = 1e-2;
    DO(shoal_nn_adamw_create_for(model, &options, NULL, 0, &optimizer));
    for (int step = 0; step < N_STEPS; step++) {
        DO(shoal_scope_begin());
        DO(shoal_backward(forward(model, 100 * step + shoal_group_rank(group)), NULL));
        DO(shoal_nn_optimizer_step(optimizer));
        DO(shoal_nn_optimizer_zero_grad(optimizer));
        DO(shoal_scope_end());
    }
    return optimizer;
}

/* Saving ------------------------------------------------------------------------------------------------- */

static void save(shoal_group *group, const char *directory, const char *name, const shoal_items *items,
                 shoal_checkpoint_format format, size_t max_file_bytes)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.step = N_STEPS;
    options.format = format;
    options.max_file_bytes = max_file_bytes;
    DO(shoal_checkpoint_save(group, path, items, &options));
}

/* In f32, however it was saved, and with all matrices of blocks cut by rows. */
static double load_and_measure(shoal_group *group, const char *directory)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/pieces", directory);
    shoal_module *model = make_model(SHOAL_F32);
    shard(model, group, NULL);
    shoal_items *items;
    DO(shoal_items_create(&items));
    DO(shoal_items_add_module(items, "", model));
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    options.section = SHOAL_SECTION_MODEL;
    options.casts = true;
    DO(shoal_checkpoint_load(group, path, items, &options, NULL));
    const float *value = shoal_data(forward(model, 0));
    double loss = value ? (double)*value : 0.0;
    shoal_items_free(items);
    shoal_module_unref(model);
    return loss;
}

struct dump {
    FILE *list; /* NULL but on rank 0 */
    FILE *bytes;
};

static void open_dump(struct dump *dump, const char *directory, double loss)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/values.txt", directory);
    dump->list = fopen(path, "w");
    (void)snprintf(path, sizeof(path), "%s/values.bin", directory);
    dump->bytes = fopen(path, "wb");
    if (!dump->list || !dump->bytes) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    fprintf(dump->list, "loss %.9g\n", loss);
}

/* Collective: the whole, from the parts of all ranks. */
static void dump_array(const struct dump *dump, const char *section, const char *name, const char *suffix,
                       shoal_fsdp_param *param, shoal_dtype dtype, const void *part)
{
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    DO(shoal_fsdp_get_layout(param, &layout));
    size_t bytes = shoal_dtype_bytes(dtype);
    for (int i = 0; i < layout.n_dims; i++) {
        bytes *= (size_t)layout.shape[i];
    }
    void *whole = malloc(bytes);
    if (!whole) {
        fprintf(stderr, "%s%s: %s\n", name, suffix, strerror(errno));
        exit(1);
    }
    DO(shoal_fsdp_gather_array(param, dtype, part, whole, 0));
    if (dump->list) {
        fprintf(dump->list, "%s %s%s %s", section, name, suffix, shoal_dtype_name(dtype));
        for (int i = 0; i < layout.n_dims; i++) {
            fprintf(dump->list, " %lld", (long long)layout.shape[i]);
        }
        fprintf(dump->list, "\n");
        (void)fwrite(whole, 1, bytes, dump->bytes);
    }
    free(whole);
}

static void dump_all(const struct dump *dump, shoal_module *model, const shoal_nn_optimizer *optimizer)
{
    for (size_t i = 0; i < shoal_nn_optimizer_count(optimizer); i++) {
        const char *path = shoal_nn_optimizer_path(optimizer, i);
        shoal_tensor *part = shoal_module_parameter(model, path);
        shoal_fsdp_param *param = shoal_fully_shard_param(model, path);
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        DO(shoal_nn_optimizer_get_state(optimizer, i, &state));
        dump_array(dump, "model", path, "", param, shoal_tensor_dtype(part), shoal_data(part));
        dump_array(dump, "optimizer", path, ".exp_avg", param, SHOAL_F32, shoal_data(state.first_moment));
        dump_array(dump, "optimizer", path, ".exp_avg_sq", param, SHOAL_F32, shoal_data(state.second_moment));
    }
}

int main(int n_arguments, char **arguments)
{
    if (n_arguments != 3 || (strcmp(arguments[2], "f32") != 0 && strcmp(arguments[2], "bf16") != 0)) {
        fprintf(stderr, "usage: export_model DIRECTORY f32|bf16\n");
        return 2;
    }
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    shoal_group *group = shoal_world_group(world);
    DO(shoal_scope_begin());
    shoal_module *model = make_model(strcmp(arguments[2], "f32") == 0 ? SHOAL_F32 : SHOAL_BF16);
    shard(model, group, cut_columns);
    shoal_nn_optimizer *optimizer = train(model, group);
    shoal_items *items;
    DO(shoal_items_create(&items));
    DO(shoal_items_add_module(items, "", model));
    DO(shoal_nn_optimizer_add_items(optimizer, items));
    (void)mkdir(arguments[1], 0777); /* by whichever rank is first */
    save(group, arguments[1], "files", items, SHOAL_CHECKPOINT_WHOLE, FILE_BYTES);
    save(group, arguments[1], "file", items, SHOAL_CHECKPOINT_WHOLE, 0);
    save(group, arguments[1], "pieces", items, SHOAL_CHECKPOINT_PIECES, 0);
    double loss = load_and_measure(group, arguments[1]);
    struct dump dump = {NULL, NULL};
    if (shoal_group_rank(group) == 0) {
        open_dump(&dump, arguments[1], loss);
        printf("%s: saved by %d ranks, loss %.9g\n", arguments[2], shoal_group_n_ranks(group), loss);
    }
    dump_all(&dump, model, optimizer);
    bool is_written = !dump.list || (fclose(dump.list) == 0 && fclose(dump.bytes) == 0);
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(model);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return is_written ? 0 : 1;
}
