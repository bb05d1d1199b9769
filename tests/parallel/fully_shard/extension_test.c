/* SPDX-License-Identifier: MIT */
/*
 * Extensions of gathers: the values of one process that encodes and decodes, on any way to gather; how many bytes
 * travel, and what lies where; functions that fail on one rank; ranks that declare something else; what is refused. It
 * runs with windows, with SHOAL_FSDP_GATHER=copy, and with ranks on several hosts (tests/CMakeLists.txt).
 */
#include "base/options.h"
#include "comm/group/group.h"
#include "fixtures/int8_rows.h"
#include "fixtures/module_net.h"
#include "fixtures/shared_directory.h"
#include "fixtures/trace_file.h"
#include "parallel/fsdp/engine/state/context.h"
#include "shoal/compile.h"
#include "shoal/mesh.h"

enum {
    ROWS = 257, /* no number of ranks divides it */
    WIDTH = 256,
    COUNT = ROWS * WIDTH,
    N_STEPS = 2
};

static const shoal_gather_buffer int8_buffers[] = {{SHOAL_I8, WIDTH}, {SHOAL_F32, 1}};

static shoal_gather_extension int8_extension(struct int8_rows *context)
{
    return (shoal_gather_extension){.struct_size = sizeof(shoal_gather_extension),
                                    .name = "int8 rows",
                                    .is_by_rows = true,
                                    .n_buffers = 2,
                                    .buffers = int8_buffers,
                                    .metadata = "v1",
                                    .metadata_bytes = 2,
                                    .encode = int8_encode,
                                    .decode = int8_decode,
                                    .context = context};
}

static shoal_gather_extension bf16_extension(struct int8_rows *context, shoal_gather_buffer *buffer,
                                             int n_shards)
{
    *buffer = (shoal_gather_buffer){SHOAL_BF16, (size_t)((ROWS + n_shards - 1) / n_shards * WIDTH)};
    return (shoal_gather_extension){.struct_size = sizeof(shoal_gather_extension),
                                    .name = "bf16",
                                    .n_buffers = 1,
                                    .buffers = buffer,
                                    .encode = bf16_encode,
                                    .decode = bf16_decode,
                                    .context = context};
}

/* The model: x * weight + bias ------------------------------------------------------------------------------- */

struct model {
    shoal_world *world;
    shoal_mesh *mesh; /* NULL: the group of all ranks */
    shoal_module *module;
    struct int8_rows context;
    float seen[COUNT]; /* the whole weight in the last forward pass, as f32 */
    shoal_dtype seen_dtype;
};

static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = shoal_module_context(module);
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *weight = shoal_module_parameter(module, "weight");
    const void *data = shoal_data(weight);
    if (data) {
        model->seen_dtype = shoal_tensor_dtype(weight);
        kernel_cast(SHOAL_F32, model->seen, model->seen_dtype, data, COUNT);
    }
    outputs[0] = shoal_add(shoal_mul(inputs[0], weight), shoal_module_parameter(module, "bias"));
    return SHOAL_OK;
}

static shoal_tensor *numbers(uint32_t seed)
{
    return net_numbers(seed, (int64_t[]){ROWS, WIDTH}, 2);
}

/* In the world that is open. */
static bool model_make(struct model *model, const shoal_fully_shard_options *given)
{
    if (!model->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    model->module = net_make_module("model", forward, model);
    shoal_tensor *weight = numbers(1);
    (void)CHECK_OK(shoal_set_requires_grad(weight, true));
    (void)CHECK_OK(shoal_module_add_parameter(model->module, "weight", weight));
    (void)CHECK_OK(shoal_module_add_parameter(model->module, "bias", net_parameter(2, WIDTH)));
    shoal_fully_shard_options options = given ? *given : net_options(model->world);
    bool has_group = given && given->group;
    options.group = model->mesh ? NULL : has_group ? given->group : shoal_world_group(model->world);
    options.mesh = model->mesh;
    return CHECK_OK(shoal_fully_shard(model->module, &options));
}

static bool model_open(struct model *model, struct rank *self, const shoal_fully_shard_options *given)
{
    *model = (struct model){.world = rank_world_open(self, 0)};
    return model_make(model, given);
}

/* With two replicas. */
static bool model_open_replicas(struct model *model, struct rank *self)
{
    const char *const names[] = {"replicas", "shards"};
    *model = (struct model){.world = rank_world_open(self, 0)};
    return model->world &&
           CHECK_OK(shoal_mesh_create(model->world, "cpu", NULL, (int[]){2, self->n_ranks / 2}, 2, names,
                                      &model->mesh)) &&
           model_make(model, NULL);
}

static void model_close(struct model *model)
{
    shoal_module_unref(model->module);
    CHECK_OK(shoal_scope_end());
    shoal_mesh_free(model->mesh);
    CHECK_OK(shoal_world_close(model->world));
}

/* After a step that failed. All ranks have their errors before one closes its world, which would be an error, too. */
static void model_abandon(struct model *model, struct rank *self)
{
    test_barrier(self);
    shoal_module_unref(model->module);
    shoal_mesh_free(model->mesh);
    shoal_status status = shoal_scope_end(); /* what failed in a forward pass, the scope knows too */
    status = shoal_world_close(model->world);
    (void)status; /* other ranks may have gone */
}

static shoal_status model_set(struct model *model, const shoal_gather_extension *extension)
{
    return shoal_fsdp_set_gather_extension(shoal_fully_shard_param(model->module, "weight"), extension);
}

/* The gradient of the weight on a rank is its input. */
static shoal_status model_step(struct model *model, int step, int rank)
{
    shoal_tensor *out = shoal_module_call_one(model->module, numbers((uint32_t)(100 * step + rank)));
    if (!out) {
        return shoal_scope_error();
    }
    return shoal_backward(shoal_sum(out, NULL, 0, false), NULL);
}

static void model_learn(struct model *model)
{
    shoal_tensor *weight = shoal_module_parameter(model->module, "weight");
    shoal_tensor *gradient = shoal_grad(weight);
    REQUIRE(gradient);
    float *values = shoal_mutable_data(weight);
    const float *steps = shoal_data(gradient);
    for (int64_t i = 0; i < shoal_tensor_count(weight); i++) {
        values[i] -= 0.5f * steps[i];
    }
    CHECK_OK(shoal_set_grad(weight, NULL));
}

/* One process ------------------------------------------------------------------------------------------------ */

static void learn_alone(float *weight, int step, int n_ranks)
{
    float sums[COUNT] = {0};
    for (int rank = 0; rank < n_ranks; rank++) {
        const float *input = shoal_data(numbers((uint32_t)(100 * step + rank)));
        for (int i = 0; i < COUNT; i++) {
            sums[i] = rank == 0 ? input[i] : sums[i] + input[i];
        }
    }
    for (int i = 0; i < COUNT; i++) {
        weight[i] -= 0.5f * (sums[i] / (float)n_ranks);
    }
}

static void round_alone(const float *weight, bool is_int8, float *rounded)
{
    for (int row = 0; row < ROWS && is_int8; row++) {
        signed char codes[WIDTH];
        float scale;
        int8_encode_row(weight + (size_t)row * WIDTH, WIDTH, codes, &scale);
        int8_decode_row(codes, WIDTH, scale, rounded + (size_t)row * WIDTH);
    }
    for (int i = 0; i < COUNT && !is_int8; i++) {
        uint16_t half;
        kernel_cast(SHOAL_BF16, &half, SHOAL_F32, &weight[i], 1);
        kernel_cast(SHOAL_F32, &rounded[i], SHOAL_BF16, &half, 1);
    }
}

/* Values ----------------------------------------------------------------------------------------------------- */

static void train(struct rank *self, bool is_int8, bool sums, const shoal_fully_shard_options *options)
{
    static _Thread_local struct model model;
    static _Thread_local float weight[COUNT];
    static _Thread_local float expected[COUNT];
    shoal_gather_buffer buffer;
    REQUIRE(model_open(&model, self, options));
    shoal_gather_extension extension =
        is_int8 ? int8_extension(&model.context) : bf16_extension(&model.context, &buffer, self->n_ranks);
    model.context.sums = sums;
    REQUIRE_OK(model_set(&model, &extension));
    memcpy(weight, shoal_data(numbers(1)), sizeof weight);
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        CHECK_OK(model_step(&model, step, self->rank));
        round_alone(weight, is_int8, expected);
        CHECK_BYTES(model.seen, expected, sizeof expected);
        model_learn(&model);
        learn_alone(weight, step, self->n_ranks);
    }
    CHECK(model.context.n_encodes >= N_STEPS);
    /* The optimizer and checkpoints see what is stored, which is not rounded. */
    CHECK_OK(
        shoal_fsdp_gather(shoal_fully_shard_param(model.module, "weight"), model.seen, SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(model.seen, weight, sizeof weight);
    model_close(&model);
}

TEST_RANKS(one_rank, 1)
{
    train(self, true, false, NULL);
    train(self, false, false, NULL);
}

TEST_RANKS(two_ranks, 2)
{
    train(self, true, false, NULL);
    train(self, false, true, NULL);
}

TEST_RANKS(three_ranks, 3)
{
    train(self, true, true, NULL);
    train(self, false, false, NULL);
}

/* More ranks than hosts and rows that do not divide; parameters that stay; and slices that neighbours keep, which are
   gathered as they are. */
TEST_RANKS(four_ranks, 4)
{
    shoal_fully_shard_options options = {
        .struct_size = sizeof options, .reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2};
    train(self, true, false, &options);
    train(self, false, false, &options);
    options.reshard = SHOAL_RESHARD_NEVER;
    options.reshard_ranks = 0;
    train(self, true, false, &options);
    options.sharded = SHOAL_SHARDED_GRADIENTS;
    train(self, true, false, &options);
}

/* Two replicas of two shards each. */
TEST_RANKS(replicas, 4)
{
    static _Thread_local struct model model;
    static _Thread_local float expected[COUNT];
    REQUIRE(model_open_replicas(&model, self));
    shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    round_alone(shoal_data(numbers(1)), true, expected);
    CHECK_BYTES(model.seen, expected, sizeof expected);
    model_close(&model);
}

/* Computed in bf16: decoded to it, and reduced in f32. */
TEST_RANKS(decoded_to_bf16, 2)
{
    static _Thread_local struct model model;
    static _Thread_local float expected[COUNT];
    const shoal_fully_shard_options options = {
        .struct_size = sizeof options, .param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32};
    REQUIRE(model_open(&model, self, &options));
    shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    CHECK_INT(model.seen_dtype, SHOAL_BF16);
    round_alone(shoal_data(numbers(1)), true, expected);
    round_alone(expected, false, expected);
    CHECK_BYTES(model.seen, expected, sizeof expected);
    model_close(&model);
}

static shoal_status gather_rows(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                                shoal_group *group, shoal_work **work_out)
{
    size_t *bytes = context;
    *bytes = count * shoal_dtype_bytes(dtype);
    CHECK_INT(dtype, SHOAL_U8);
    return shoal_group_all_gather_start(group, in, out, count, dtype, work_out);
}

/* An object of the program gathers encoded bytes. */
TEST_RANKS(with_a_custom_all_gather, 2)
{
    static _Thread_local struct model model;
    static _Thread_local float expected[COUNT];
    size_t bytes = 0;
    const shoal_custom_all_gather custom = {
        .struct_size = sizeof custom, .call = gather_rows, .context = &bytes};
    REQUIRE(model_open(&model, self, NULL));
    shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(shoal_fsdp_set_custom_all_gather(shoal_fully_shard_unit(model.module, false), &custom));
    CHECK_OK(model_step(&model, 0, self->rank));
    round_alone(shoal_data(numbers(1)), true, expected);
    CHECK_BYTES(model.seen, expected, sizeof expected);
    CHECK(bytes > COUNT / 2 && (double)bytes <= 0.27 * (sizeof(float) * COUNT / 2) + sizeof(float) * WIDTH);
    model_close(&model);
}

/* What travels, and what lies where --------------------------------------------------------------------------- */

static bool is_copying(const struct model *model)
{
    return option_choice(OPTION_FSDP_GATHER) == 1 ||
           !group_has_windows(shoal_world_group(model->world), SHOAL_CPU);
}

static uint64_t count_sent(const struct model *model)
{
    const struct transport_world *world = shoal_world_group(model->world)->peers.world;
    uint64_t bytes = 0;
    for (int host = 0; host < world->n_hosts; host++) {
        bytes += atomic_load(&world->sent_to_hosts[host]);
    }
    return bytes;
}

/* Gathers the unit once, by hand, and gives what all ranks have sent to other hosts meanwhile. */
static uint64_t gather_once(struct model *model)
{
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(model->module, false);
    CHECK_OK(shoal_group_barrier(shoal_world_group(model->world)));
    uint64_t before = count_sent(model);
    CHECK_OK(shoal_fsdp_unshard(unit));
    CHECK_OK(shoal_fsdp_wait(unit));
    uint64_t sent = count_sent(model) - before;
    CHECK_OK(shoal_fsdp_reshard(unit));
    CHECK_OK(shoal_group_all_reduce(shoal_world_group(model->world), &sent, &sent, 1, SHOAL_U64, SHOAL_SUM));
    return sent;
}

static void check_traced(const char *path)
{
    json_t *trace = trace_load(path);
    REQUIRE(trace != NULL);
    struct trace_query query = {.category = "collective", .name = "all_gather model", .pid = -1};
    size_t at = 0;
    size_t n = 0;
    for (const json_t *event; (event = trace_next(trace, &query, &at)); n++) {
        int64_t bytes = json_integer_value(json_object_get(json_object_get(event, "args"), "bytes"));
        CHECK(bytes > COUNT && (double)bytes <= 0.27 * (sizeof(float) * COUNT));
    }
    CHECK(n > 0);
    json_decref(trace);
}

/* A quarter of f32, scales and the plain bias: in the trace of copies, and in what is sent between hosts. */
TEST_RANKS(encoded_bytes_travel, 3)
{
    static _Thread_local struct model model;
    REQUIRE(model_open(&model, self, NULL));
    const char *directory = share_directory(self);
    const char *path = inside(directory, "trace.json");
    shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    CHECK_OK(trace_to(path));
    test_barrier(self);
    uint64_t sent = gather_once(&model);
    CHECK_OK(shoal_trace_stop());
    test_barrier(self);
    if (self->rank == 0 && is_copying(&model)) {
        check_traced(path);
    }
    int n_hosts = shoal_world_group(model.world)->peers.world->n_hosts;
    if (n_hosts > 1 && !is_copying(&model)) {
        /* Each byte comes to each other host once. The plain bias and the heads of frames are in it. */
        double whole = (double)sizeof(float) * COUNT * (n_hosts - 1);
        if ((double)sent < COUNT * (n_hosts - 1) || (double)sent > 0.27 * whole) {
            test_failed(__FILE__, __LINE__, "%llu bytes were sent between hosts, of %.0f",
                        (unsigned long long)sent, whole);
        }
    }
    test_barrier(self);
    model_close(&model);
    remove_directory(self, directory);
}

/* Windows: the ranks of a host have one whole parameter together, and the encoded bytes of hosts. Not by rows: each
   rank has a whole one of its own. */
TEST_RANKS(whole_parameters_lie_once_per_host, 3)
{
    static _Thread_local struct model model;
    shoal_gather_buffer buffer;
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        REQUIRE(model_open(&model, self, NULL));
        shoal_gather_extension extension =
            is_int8 ? int8_extension(&model.context) : bf16_extension(&model.context, &buffer, self->n_ranks);
        REQUIRE_OK(model_set(&model, &extension));
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(model.module, false)));
        CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(model.module, false)));
        const struct fsdp_context *context = fsdp_wrapper_of(model.module)->unit->context;
        size_t n_local = (size_t)group_n_local(shoal_world_group(model.world));
        size_t whole = sizeof(float) * COUNT + fsdp_round_up(sizeof(float) * WIDTH);
        size_t windows = context->memory.now[FSDP_MEMORY_WINDOWS] * n_local;
        size_t other = context->memory.now[FSDP_MEMORY_OTHER];
        if (is_int8 && !is_copying(&model)) {
            CHECK(windows >= whole && windows <= whole + whole / 3 + 3 * 4096);
            CHECK(other < whole / 2);
        } else {
            CHECK(windows == 0 && other >= whole);
        }
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(model.module, false)));
        CHECK_INT(context->memory.now[FSDP_MEMORY_OTHER], 0);
        model_close(&model);
    }
}

/* Failures ----------------------------------------------------------------------------------------------------- */

/* On one rank in the second step: all ranks get an error, inside the deadline. The one that failed has its own. */
static void fail_on_one(struct rank *self, bool is_int8, bool in_encode)
{
    static _Thread_local struct model model;
    shoal_gather_buffer buffer;
    REQUIRE(self->n_ranks == 4 ? model_open_replicas(&model, self) : model_open(&model, self, NULL));
    shoal_gather_extension extension =
        is_int8 ? int8_extension(&model.context) : bf16_extension(&model.context, &buffer, self->n_ranks);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    /* Else a rank that is late may hear of the failure before it has seen the end of the first step. */
    test_barrier(self);
    if (self->rank == 1) {
        model.context.encode_fails_at = in_encode ? model.context.n_encodes + 1 : 0;
        model.context.decode_fails_at = in_encode ? 0 : model.context.n_decodes + 1;
    }
    shoal_status status = model_step(&model, 1, self->rank);
    CHECK(status != SHOAL_OK);
    CHECK_ERROR_TEXT(in_encode ? "encod" : "decod");
    if (self->rank == 1) {
        CHECK_STATUS(status, SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("parameter weight");
    }
    model_abandon(&model, self);
}

/* Its functions read memory of the host. */
TEST_RANKS(a_shard_with_an_extension_stays_on_the_host, 2)
{
    static _Thread_local struct model model;
    const char *name = getenv("SHOAL_TEST_DEVICE");
    shoal_device device = SHOAL_CPU;
    if (!name) {
        test_skip("it needs another device");
        return;
    }
    REQUIRE_OK(shoal_device_find(name, &device));
    REQUIRE(model_open(&model, self, NULL));
    const shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    shoal_tensor *weight = shoal_detach(shoal_module_parameter(model.module, "weight"));
    weight = shoal_to_device(weight, device);
    CHECK_OK(shoal_set_requires_grad(weight, true));
    CHECK_OK(shoal_module_set_parameter(model.module, "weight", weight));
    CHECK_STATUS(model_step(&model, 0, self->rank), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("parameter weight is on device ");
    CHECK_ERROR_TEXT(", but gather extensions read host memory");
    model_abandon(&model, self);
}

/* What an encode tries that calls back into the context that it is part of. */
struct calling {
    struct int8_rows rows;
    struct model *model;
    shoal_status tried[3];
};

static shoal_status call_and_encode(void *context, const shoal_gather_rows *rows, const void *shard,
                                    void *const *buffers)
{
    struct calling *calling = context;
    static _Thread_local float whole[COUNT];
    shoal_fsdp_param *weight = shoal_fully_shard_param(calling->model->module, "weight");
    calling->tried[0] = shoal_fsdp_gather(weight, whole, SHOAL_FSDP_ALL_RANKS);
    calling->tried[1] = shoal_fsdp_load(weight, whole);
    calling->tried[2] = shoal_fsdp_unshard(shoal_fully_shard_unit(calling->model->module, false));
    return int8_encode(&calling->rows, rows, shard, buffers);
}

TEST_RANKS(an_encode_that_calls_back, 2)
{
    static _Thread_local struct model model;
    struct calling calling = {.model = &model};
    REQUIRE(model_open(&model, self, NULL));
    shoal_gather_extension extension = int8_extension(&model.context);
    extension.encode = call_and_encode;
    extension.context = &calling;
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    for (size_t i = 0; i < sizeof calling.tried / sizeof calling.tried[0]; i++) {
        CHECK_INT(calling.tried[i], SHOAL_ERR_STATE);
    }
    model_close(&model);
}

TEST_RANKS(an_encode_that_fails_on_one_rank, 3)
{
    fail_on_one(self, true, true);
}

TEST_RANKS(a_decode_that_fails_on_one_rank, 3)
{
    fail_on_one(self, true, false);
}

TEST_RANKS(a_whole_decode_that_fails_on_one_rank, 3)
{
    fail_on_one(self, false, false);
}

/* The other replica is told, too: also the rank there that shares no lane with the one that failed. */
TEST_RANKS(a_decode_that_fails_in_a_replica, 4)
{
    fail_on_one(self, true, false);
}

TEST_RANKS(an_encode_that_fails_in_a_replica, 4)
{
    fail_on_one(self, true, true);
}

/* Meshes ------------------------------------------------------------------------------------------------------- */

/* A layer over pairs of ranks inside a model over all four. */
struct outer {
    struct model inner;
    shoal_module *root;
};

static shoal_status outer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = shoal_module_call_one(shoal_module_child(module, "inner"), inputs[0]);
    outputs[0] = x ? shoal_mul(x, shoal_module_parameter(module, "scale")) : NULL;
    return x ? SHOAL_OK : shoal_scope_error();
}

static bool outer_open(struct outer *outer, struct rank *self)
{
    *outer = (struct outer){.inner = {.world = rank_world_open(self, 0)}};
    shoal_world *world = outer->inner.world;
    shoal_group *pair = NULL;
    if (!world || !CHECK_OK(shoal_group_create_blocks(world, 2, "pairs", &pair))) {
        return false;
    }
    const shoal_fully_shard_options options = {.struct_size = sizeof options, .group = pair};
    if (!model_make(&outer->inner, &options)) {
        return false;
    }
    outer->root = net_make_module("outer", outer_forward, NULL);
    shoal_fully_shard_options whole = net_options(world);
    shoal_gather_extension extension = int8_extension(&outer->inner.context);
    return CHECK_OK(shoal_module_add_parameter(outer->root, "scale", net_parameter(5, WIDTH))) &&
           CHECK_OK(shoal_module_add_child(outer->root, "inner", outer->inner.module)) &&
           CHECK_OK(shoal_fully_shard(outer->root, &whole)) && CHECK_OK(model_set(&outer->inner, &extension));
}

static shoal_status outer_step(struct outer *outer, int step, int rank)
{
    shoal_tensor *out = shoal_module_call_one(outer->root, numbers((uint32_t)(100 * step + rank)));
    return out ? shoal_backward(shoal_sum(out, NULL, 0, false), NULL) : shoal_scope_error();
}

TEST_RANKS(a_unit_on_a_mesh_of_its_own, 4)
{
    static _Thread_local struct outer outer;
    static _Thread_local float expected[COUNT];
    REQUIRE(outer_open(&outer, self));
    CHECK_OK(outer_step(&outer, 0, self->rank));
    round_alone(shoal_data(numbers(1)), true, expected);
    CHECK_BYTES(outer.inner.seen, expected, sizeof expected);
    shoal_module_unref(outer.root);
    model_close(&outer.inner);
}

/* In one pair a function fails on one rank: all four ranks get an error. */
static void fail_in_a_pair(struct rank *self, bool in_encode)
{
    static _Thread_local struct outer outer;
    REQUIRE(outer_open(&outer, self));
    CHECK_OK(outer_step(&outer, 0, self->rank));
    struct int8_rows *context = &outer.inner.context;
    if (self->rank == 2) {
        context->encode_fails_at = in_encode ? context->n_encodes + 1 : 0;
        context->decode_fails_at = in_encode ? 0 : context->n_decodes + 1;
    }
    CHECK(outer_step(&outer, 1, self->rank) != SHOAL_OK);
    CHECK_ERROR_TEXT(in_encode ? "encod" : "decod");
    test_barrier(self);
    shoal_module_unref(outer.root);
    model_abandon(&outer.inner, self);
}

TEST_RANKS(an_encode_that_fails_in_a_pair, 4)
{
    fail_in_a_pair(self, true);
}

TEST_RANKS(a_decode_that_fails_in_a_pair, 4)
{
    fail_in_a_pair(self, false);
}

/* Deviations --------------------------------------------------------------------------------------------------- */

/* What rank 1 declares otherwise, and what the text of the mismatch has. */
static const struct deviation {
    const char *name;
    const char *metadata;
    size_t metadata_bytes;
    size_t n_buffers;
    size_t count;
    bool has_none;
    bool is_whole;
    const char *words;
} deviations[] = {
    {.has_none = true, .words = "gathered as int8 rows"},
    {.name = "int8 row", .words = "gathered as int8 row:"},
    {.metadata = "v2", .metadata_bytes = 2, .words = "metadata of 2 bytes"},
    {.metadata = "v1.1", .metadata_bytes = 4, .words = "metadata of 4 bytes"},
    {.n_buffers = 1, .words = "i8 256 for each row"},
    {.count = 2, .words = "f32 2 for each row"},
    {.is_whole = true, .words = "for each rank"},
};

static void deviate(struct rank *self, const struct deviation *deviation)
{
    static _Thread_local struct model model;
    shoal_gather_buffer buffers[] = {int8_buffers[0], int8_buffers[1]};
    REQUIRE(model_open(&model, self, NULL));
    shoal_gather_extension extension = int8_extension(&model.context);
    extension.buffers = buffers;
    if (self->rank == 1) {
        extension.name = deviation->name ? deviation->name : extension.name;
        extension.metadata = deviation->metadata ? deviation->metadata : extension.metadata;
        extension.metadata_bytes = deviation->metadata ? deviation->metadata_bytes : extension.metadata_bytes;
        extension.n_buffers = deviation->n_buffers ? deviation->n_buffers : extension.n_buffers;
        buffers[1].count = deviation->count ? deviation->count : 1;
        extension.is_by_rows = !deviation->is_whole;
    }
    REQUIRE_OK(model_set(&model, deviation->has_none && self->rank == 1 ? NULL : &extension));
    CHECK_STATUS(model_step(&model, 0, self->rank), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("weight");
    CHECK_ERROR_TEXT(deviation->words);
    CHECK_INT(model.context.n_encodes, 0); /* nothing was gathered */
    CHECK_INT(model.context.n_decodes, 0);
    model_abandon(&model, self);
}

TEST_RANKS(ranks_that_declare_something_else, 3)
{
    for (size_t i = 0; i < sizeof deviations / sizeof deviations[0]; i++) {
        deviate(self, &deviations[i]);
    }
}

/* Captures ------------------------------------------------------------------------------------------------------- */

static shoal_status captured_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_call_one(model->module, inputs[0]);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

TEST_RANKS(a_captured_step_is_refused, 2)
{
    static _Thread_local struct model model;
    shoal_compiled *compiled;
    shoal_tensor *out = NULL;
    REQUIRE(model_open(&model, self, NULL));
    shoal_gather_extension extension = int8_extension(&model.context);
    REQUIRE_OK(model_set(&model, &extension));
    CHECK_OK(model_step(&model, 0, self->rank));
    REQUIRE_OK(shoal_compile(model.world, captured_step, &model, 1, NULL, &compiled));
    shoal_tensor *input = numbers(3);
    CHECK_STATUS(shoal_compiled_run(compiled, &input, 1, &out, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("shoal_fsdp_set_gather_extension cannot be captured");
    shoal_compiled_free(compiled);
    model_abandon(&model, self);
}

/* Refusals ------------------------------------------------------------------------------------------------------ */

static void refuse(struct model *model, shoal_gather_extension extension, shoal_status status,
                   const char *words)
{
    CHECK_STATUS(model_set(model, &extension), status);
    CHECK_ERROR_TEXT("set_gather_extension: parameter weight");
    CHECK_ERROR_TEXT(words);
}

TEST_RANKS(what_is_refused, 1)
{
    static _Thread_local struct model model;
    REQUIRE(model_open(&model, self, NULL));
    shoal_gather_extension good = int8_extension(&model.context);
    shoal_gather_extension bad = good;
    shoal_gather_buffer buffers[] = {{SHOAL_I8, WIDTH}, {(shoal_dtype)99, 1}};
    bad.name = "";
    refuse(&model, bad, SHOAL_ERR_INVALID, "no name");
    bad = good;
    bad.encode = NULL;
    refuse(&model, bad, SHOAL_ERR_INVALID, "no encode");
    bad = good;
    bad.decode = NULL;
    refuse(&model, bad, SHOAL_ERR_INVALID, "no decode");
    bad = good;
    bad.n_buffers = SHOAL_GATHER_MAX_BUFFERS + 1;
    refuse(&model, bad, SHOAL_ERR_INVALID, "n_buffers: 9 is not within 1..8");
    bad.n_buffers = 0;
    refuse(&model, bad, SHOAL_ERR_INVALID, "n_buffers: 0");
    bad = good;
    bad.buffers = buffers;
    refuse(&model, bad, SHOAL_ERR_INVALID, "buffer 1: 1 elements of dtype ? (99)");
    buffers[1] = (shoal_gather_buffer){SHOAL_F32, 0};
    refuse(&model, bad, SHOAL_ERR_INVALID, "buffer 1: 0 elements of dtype f32");
    buffers[1].count = SIZE_MAX / 2;
    refuse(&model, bad, SHOAL_ERR_INVALID, "more than memory can hold");
    buffers[1].count = SIZE_MAX / 16; /* of two parameters together, the bytes would be few */
    bad.is_by_rows = false;
    refuse(&model, bad, SHOAL_ERR_INVALID, "more than memory can hold");
    bad = good;
    bad.metadata = NULL;
    refuse(&model, bad, SHOAL_ERR_INVALID, "metadata is NULL, but metadata_bytes is 2");
    bad = good;
    bad.struct_size = 3;
    CHECK_STATUS(model_set(&model, &bad), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_gather_extension(NULL, &good), SHOAL_ERR_INVALID);
    CHECK_OK(model_set(&model, &good));
    CHECK_OK(model_set(&model, NULL));
    CHECK_OK(model_set(&model, &good));
    CHECK_OK(model_step(&model, 0, 0));
    refuse(&model, good, SHOAL_ERR_STATE, "before the first forward pass");
    model_close(&model);
}
