/* SPDX-License-Identifier: MIT */
/*
 * The explicit calls on a device that the host cannot access: whole parameters, shards and gradients have the bits of
 * the CPU, in all kinds of sharding; and what cannot be done there is refused. The kernels of the program are loops over
 * memory that the test device lets a test reach.
 */
#include "fixtures/int8_rows.h"
#include "fixtures/rank_world.h"
#include "fixtures/shared_directory.h"
#include "fixtures/test_device.h"
#include "harness/harness.h"
#include "kernel/kernel.h"
#include "shoal/checkpoint.h"
#include "shoal/fsdp.h"
#include "shoal/items.h"
#include "shoal/mesh.h"
#include "tensor/dtype.h"

enum {
    N_UNITS = 4,
    N_PARAMS = 6,
    MAX_COUNT = 72,
    N_STEPS = 4,
    RECORD_BYTES = 1 << 18
};

/* Rows that no number of ranks divides, a parameter that is cut along its second dimension, one that is smaller than
   the ranks are many, and another dtype. */
static const struct {
    int unit;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[2];
    int dim;
} params[N_PARAMS] = {{0, SHOAL_F32, 2, {7, 3}, 0},  {0, SHOAL_F32, 1, {5}, 0},
                      {1, SHOAL_F32, 2, {3, 24}, 1}, {2, SHOAL_BF16, 1, {1}, 0},
                      {3, SHOAL_F32, 1, {17}, 0},    {3, SHOAL_F32, 2, {11, 2}, 0}};

static size_t count_of(int id)
{
    return (size_t)(params[id].shape[0] * (params[id].n_dims > 1 ? params[id].shape[1] : 1));
}

struct kind {
    const char *name;
    shoal_fsdp_options options;
    bool is_mesh;        /* replicas of two shards */
    bool is_replicated;  /* nothing is cut */
    int n_micro;         /* backward passes in a step */
    bool syncs_last;     /* only the last of them reduces */
    bool keeps_replicas; /* replicas are reduced in every second step */
};

static const struct kind kinds[] = {
    {.name = "shards"},
    {.name = "shards in bf16", .options = {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32}},
    {.name = "shards reduced in bf16", .options = {.reduce_dtype = SHOAL_BF16}, .n_micro = 2},
    {.name = "shards that stay", .options = {.reshard = SHOAL_RESHARD_NEVER, .max_reduces = 2}},
    {.name = "neighbours", .options = {.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2}},
    {.name = "sums", .options = {.divide_factor = 3.0, .force_sum = true}},
    {.name = "micro-batches", .n_micro = 3, .syncs_last = true},
    {.name = "micro-batches in bf16",
     .options = {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32},
     .n_micro = 3,
     .syncs_last = true},
    {.name = "zero1", .options = {.sharded = SHOAL_SHARDED_STATE}, .n_micro = 2, .syncs_last = true},
    {.name = "zero2", .options = {.sharded = SHOAL_SHARDED_GRADIENTS}, .n_micro = 2},
    {.name = "replicas", .is_replicated = true, .n_micro = 2, .syncs_last = true},
    {.name = "replicas of shards", .is_mesh = true, .n_micro = 2},
    {.name = "replicas that wait", .is_mesh = true, .keeps_replicas = true},
};

/* What a run saw, byte by byte. */
struct record {
    size_t n;
    char bytes[RECORD_BYTES];
};

static void add_bytes(struct record *record, const void *data, size_t bytes)
{
    REQUIRE(record->n + bytes <= RECORD_BYTES);
    if (bytes > 0) {
        memcpy(record->bytes + record->n, data, bytes);
    }
    record->n += bytes;
}

struct run {
    shoal_fsdp *fsdp;
    const struct kind *kind;
    shoal_device device;
    int rank;
    struct record *record;
};

static void *reach(const struct run *run, const void *pointer, size_t bytes)
{
    return bytes > 0 && pointer ? test_reach(run->device, address_of(pointer), bytes) : NULL;
}

static float number_of(int id, size_t i, int salt)
{
    return (float)((int)((i * 37 + (size_t)(id * 11 + salt * 101)) % 251) - 125) * 0.037F;
}

static void start_values(int id, int salt, void *full)
{
    float numbers[MAX_COUNT];
    for (size_t i = 0; i < count_of(id); i++) {
        numbers[i] = number_of(id, i, salt);
    }
    kernel_cast(params[id].dtype, full, SHOAL_F32, numbers, count_of(id));
}

static shoal_dtype compute_of(const struct run *run, int id)
{
    return run->kind->options.param_dtype != 0 ? run->kind->options.param_dtype : params[id].dtype;
}

/* Adds to the gradient, or stores the first one. */
static void write_gradient(const struct run *run, int id, int salt)
{
    bool has_values = true;
    bool stores = salt % 2 == 0;
    void *grad =
        stores ? shoal_fsdp_grad_to_store(run->fsdp, id, &has_values) : shoal_fsdp_grad(run->fsdp, id);
    shoal_dtype dtype = compute_of(run, id);
    void *reached = reach(run, grad, count_of(id) * dtype_bytes(dtype));
    float sums[MAX_COUNT];
    REQUIRE(reached != NULL);
    kernel_cast(SHOAL_F32, sums, dtype, reached, count_of(id));
    for (size_t i = 0; i < count_of(id); i++) {
        float number = number_of(id, i, salt + 7 * run->rank);
        sums[i] = has_values ? sums[i] + number : number;
    }
    kernel_cast(dtype, reached, SHOAL_F32, sums, count_of(id));
}

static void forward(const struct run *run)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(run->fsdp, unit));
        for (int id = 0; id < N_PARAMS; id++) {
            size_t bytes = count_of(id) * dtype_bytes(compute_of(run, id));
            if (params[id].unit == unit) {
                const void *full = reach(run, shoal_fsdp_full_param(run->fsdp, id), bytes);
                REQUIRE(full != NULL);
                add_bytes(run->record, full, bytes);
            }
        }
        CHECK_OK(shoal_fsdp_post_forward(run->fsdp, unit));
    }
}

static void backward(const struct run *run, int salt)
{
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(run->fsdp, unit));
        for (int id = 0; id < N_PARAMS && !test_has_failed(); id++) {
            if (params[id].unit == unit) {
                write_gradient(run, id, salt + id);
            }
        }
        CHECK_OK(shoal_fsdp_post_backward(run->fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_backward(run->fsdp));
}

/* Records the shard and its gradient, and makes a step of descent. */
static void update(const struct run *run, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    float values[MAX_COUNT];
    float gradient[MAX_COUNT] = {0};
    shoal_dtype dtype = params[id].dtype;
    REQUIRE_OK(shoal_fsdp_update_shard(run->fsdp, id, &shard));
    size_t bytes = shard.count * dtype_bytes(dtype);
    void *data = reach(run, shard.data, bytes);
    const void *grad = reach(run, shard.grad, bytes);
    add_bytes(run->record, &shard.count, sizeof shard.count);
    if (shard.count == 0) {
        return;
    }
    kernel_cast(SHOAL_F32, values, dtype, data, shard.count);
    if (grad) {
        add_bytes(run->record, grad, bytes);
        kernel_cast(SHOAL_F32, gradient, dtype, grad, shard.count);
    }
    for (size_t i = 0; i < shard.count; i++) {
        values[i] -= 0.125F * gradient[i];
    }
    kernel_cast(dtype, data, SHOAL_F32, values, shard.count);
    add_bytes(run->record, data, bytes);
}

static void train(const struct run *run, int step)
{
    const struct kind *kind = run->kind;
    shoal_fsdp_unit *all = shoal_fsdp_unit_of(run->fsdp, SHOAL_FSDP_ALL_UNITS);
    int n_micro = kind->n_micro > 0 ? kind->n_micro : 1;
    for (int micro = 0; micro < n_micro && !test_has_failed(); micro++) {
        CHECK_OK(shoal_fsdp_set_sync(all, !kind->syncs_last || micro == n_micro - 1));
        if (kind->keeps_replicas) {
            CHECK_OK(shoal_fsdp_set_all_reduce(all, step % 2 == 1));
        }
        forward(run);
        backward(run, 13 * step + micro);
    }
    for (int id = 0; id < N_PARAMS && !test_has_failed(); id++) {
        update(run, id);
    }
    if (step != 1 && !(kind->keeps_replicas && step % 2 == 0)) { /* the gradients of one step are added to */
        CHECK_OK(shoal_fsdp_zero_grad(run->fsdp));
    }
}

/* Whole values in host memory, to the shards and back. */
static void move_values(const struct run *run, int n_ranks)
{
    char full[MAX_COUNT * sizeof(float)];
    for (int id = 0; id < N_PARAMS && !test_has_failed(); id++) {
        shoal_fsdp_param *param = shoal_fsdp_param_of(run->fsdp, id);
        size_t bytes = count_of(id) * dtype_bytes(params[id].dtype);
        CHECK_OK(shoal_fsdp_gather(param, full, SHOAL_FSDP_ALL_RANKS));
        add_bytes(run->record, full, bytes);
        start_values(id, 3, full);
        CHECK_OK(shoal_fsdp_broadcast(param, run->rank == n_ranks - 1 ? full : NULL, n_ranks - 1));
        CHECK_OK(shoal_fsdp_load_slice(param, params[id].shape[params[id].dim] - 1, 1, full));
        memset(full, 0, sizeof full);
        CHECK_OK(shoal_fsdp_gather(param, full, 0));
        add_bytes(run->record, full, bytes);
    }
}

static void add_params(const struct run *run)
{
    for (int id = 0; id < N_PARAMS; id++) {
        char name[8];
        char full[MAX_COUNT * sizeof(float)];
        start_values(id, 0, full);
        (void)snprintf(name, sizeof name, "p%d", id);
        CHECK_OK(shoal_fsdp_add_param_along(run->fsdp, params[id].unit, name, params[id].dtype,
                                            params[id].n_dims, params[id].shape, params[id].dim, full, NULL));
    }
}

static shoal_status create(const struct kind *kind, shoal_device device, shoal_world *world, shoal_mesh *mesh,
                           shoal_fsdp **fsdp_out)
{
    shoal_fsdp_options options = kind->options;
    options.struct_size = sizeof options;
    options.device = device;
    if (mesh) {
        return shoal_fsdp_create_on_mesh(mesh, &options, fsdp_out);
    }
    shoal_group *group = shoal_world_group(world);
    return kind->is_replicated ? shoal_fsdp_create_replicated(group, &options, fsdp_out)
                               : shoal_fsdp_create(group, &options, fsdp_out);
}

static void record_run(const struct rank *self, const struct kind *kind, shoal_device device,
                       shoal_world *world, struct record *record)
{
    static const char *const names[] = {"replicas", "shards"};
    struct run run = {.kind = kind, .device = device, .rank = self->rank, .record = record};
    shoal_mesh *mesh = NULL;
    record->n = 0;
    if (kind->is_mesh) {
        REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (int[]){2, self->n_ranks / 2}, 2, names, &mesh));
    }
    REQUIRE_OK(create(kind, device, world, mesh, &run.fsdp));
    add_params(&run);
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        train(&run, step);
    }
    move_values(&run, self->n_ranks);
    if (!test_has_failed()) {
        train(&run, N_STEPS);
    }
    shoal_fsdp_free(run.fsdp);
    shoal_mesh_free(mesh);
}

static void compare_kinds(struct rank *self)
{
    struct record *host = malloc(sizeof *host);
    struct record *other = malloc(sizeof *other);
    REQUIRE(host && other);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !test_has_failed(); i++) {
        const struct kind *kind = &kinds[i];
        int divisor = kind->is_mesh || kind->options.reshard == SHOAL_RESHARD_PARTLY ? 2 : 1;
        if (self->n_ranks % divisor != 0) {
            continue;
        }
        record_run(self, kind, SHOAL_CPU, world, host);
        record_run(self, kind, test_device(), world, other);
        CHECK_INT(other->n, host->n);
        if (memcmp(other->bytes, host->bytes, host->n) != 0) {
            test_failed(__FILE__, __LINE__, "%s: other bits than those of the CPU", kind->name);
        }
    }
    CHECK_OK(shoal_world_close(world));
    free(host);
    free(other);
}

TEST_RANKS(bits_of_one, 1)
{
    compare_kinds(self);
}

TEST_RANKS(bits_of_two, 2)
{
    compare_kinds(self);
}

TEST_RANKS(bits_of_three, 3)
{
    compare_kinds(self);
}

TEST_RANKS(bits_of_four, 4)
{
    compare_kinds(self);
}

/* Adds the shards, and an array beside the first one, as an optimizer has. */
static shoal_items *list_items(const struct run *run, struct address moment)
{
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_fsdp(items, "", run->fsdp));
    CHECK_OK(shoal_items_add_fsdp_array(items, SHOAL_SECTION_OPTIMIZER, "moment",
                                        shoal_fsdp_param_of(run->fsdp, 0), SHOAL_F32,
                                        address_pointer(moment)));
    return items;
}

static size_t moment_bytes(const struct run *run)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_read_shard(run->fsdp, 0, &shard));
    return shard.count * sizeof(float);
}

static void save(const struct run *run, shoal_group *group, const char *directory,
                 shoal_checkpoint_format format)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    size_t bytes = moment_bytes(run);
    struct address moment;
    REQUIRE_OK(device_memory_allocate(run->device, bytes, &moment));
    if (bytes > 0) {
        memset(test_reach(run->device, moment, bytes), 1 + run->rank, bytes);
    }
    shoal_items *items = list_items(run, moment);
    options.format = format;
    options.replaces = true;
    CHECK_OK(shoal_checkpoint_save(group, directory, items, &options));
    shoal_items_free(items);
    device_memory_free(run->device, moment);
}

static void load(const struct run *run, shoal_group *group, const char *directory)
{
    size_t bytes = moment_bytes(run);
    struct address moment;
    REQUIRE_OK(device_memory_allocate(run->device, bytes, &moment));
    shoal_items *items = list_items(run, moment);
    CHECK_OK(shoal_checkpoint_load(group, directory, items, NULL, NULL));
    const char *loaded = bytes > 0 ? test_reach(run->device, moment, bytes) : NULL;
    for (size_t i = 0; i < bytes; i++) {
        CHECK_INT(loaded[i], 1 + run->rank);
    }
    shoal_items_free(items);
    device_memory_free(run->device, moment);
}

static void gather_all(const struct run *run, struct record *record)
{
    char full[MAX_COUNT * sizeof(float)];
    record->n = 0;
    for (int id = 0; id < N_PARAMS && !test_has_failed(); id++) {
        CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(run->fsdp, id), full, SHOAL_FSDP_ALL_RANKS));
        add_bytes(record, full, count_of(id) * dtype_bytes(params[id].dtype));
    }
}

/* What was saved on one device is loaded on another, in both formats. */
static void check_checkpoint(struct rank *self, shoal_device from, shoal_device to,
                             shoal_checkpoint_format format)
{
    struct record *records = malloc(2 * sizeof *records);
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(records && world);
    struct run saved = {.kind = &kinds[0], .device = from, .rank = self->rank, .record = &records[0]};
    struct run loaded = {.kind = &kinds[0], .device = to, .rank = self->rank};
    REQUIRE_OK(create(saved.kind, from, world, NULL, &saved.fsdp));
    REQUIRE_OK(create(loaded.kind, to, world, NULL, &loaded.fsdp));
    add_params(&saved);
    add_params(&loaded);
    records[0].n = 0;
    train(&saved, 0);
    save(&saved, shoal_world_group(world), directory, format);
    load(&loaded, shoal_world_group(world), directory);
    gather_all(&saved, &records[0]);
    gather_all(&loaded, &records[1]);
    CHECK_BYTES(records[1].bytes, records[0].bytes, records[0].n);
    shoal_fsdp_free(saved.fsdp);
    shoal_fsdp_free(loaded.fsdp);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
    free(records);
}

TEST_RANKS(saved_there_and_loaded_here, 3)
{
    check_checkpoint(self, test_device(), SHOAL_CPU, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(saved_there_as_a_whole_and_loaded_here, 3)
{
    check_checkpoint(self, test_device(), SHOAL_CPU, SHOAL_CHECKPOINT_WHOLE);
}

TEST_RANKS(saved_here_and_loaded_there, 2)
{
    check_checkpoint(self, SHOAL_CPU, test_device(), SHOAL_CHECKPOINT_WHOLE);
}

static bool has_device(void)
{
    if (test_device() == SHOAL_CPU) {
        test_skip("it needs device apart");
    }
    return test_device() != SHOAL_CPU;
}

/* A rank whose context is on another device is a mismatch on all ranks, whoever comes first: at the first forward pass,
   also in kinds that share no memory before gradients are reduced. */
TEST_RANKS(another_device_is_a_mismatch, 2)
{
    shoal_device device = self->rank == 0 ? SHOAL_CPU : test_device();
    if (!has_device()) {
        return;
    }
    for (int i = 0; i < (int)(sizeof kinds / sizeof kinds[0]); i++) {
        struct run run = {.kind = &kinds[i], .device = device, .rank = self->rank};
        if (run.kind->is_mesh) {
            continue;
        }
        shoal_world *world = rank_world_open(self, i);
        REQUIRE(world);
        REQUIRE_OK(create(run.kind, run.device, world, NULL, &run.fsdp));
        add_params(&run);
        CHECK_STATUS(shoal_fsdp_pre_forward(run.fsdp, 0), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT(test_words_apart(self->rank == 0
                                              ? "options here: device cpu; on rank 1: device apart"
                                              : "options here: device apart; on rank 0: device cpu"));
        shoal_fsdp_free(run.fsdp);
        CHECK_OK(shoal_world_close(world));
    }
}

/* Calls in which the host waits for the device, and the others for this rank. */
static shoal_status call_that_waits(const struct run *run, shoal_group *group, const char *directory,
                                    int number)
{
    char full[MAX_COUNT * sizeof(float)];
    if (number == 0) {
        return shoal_fsdp_gather(shoal_fsdp_param_of(run->fsdp, 0), full, SHOAL_FSDP_ALL_RANKS);
    }
    if (number == 1) {
        return shoal_fsdp_clip_grad_norm(run->fsdp, 1.0, 2.0, false, NULL);
    }
    if (number == 2) {
        return shoal_fsdp_pre_forward(run->fsdp, 0); /* compares the values of replicas */
    }
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_fsdp(items, "", run->fsdp));
    shoal_status status = shoal_checkpoint_save(group, directory, items, NULL);
    shoal_items_free(items);
    return status;
}

/* Memory of a copy that was given up is freed by the next one. */
static void read_one(shoal_device device)
{
    float number = 0;
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_read(shoal_to_device(shoal_full(NULL, 0, 1, SHOAL_F32), device), &number, sizeof number));
    CHECK_OK(shoal_scope_end());
}

/* SHOAL_TIMEOUT is much longer. */
TEST_PROCESSES(the_host_waits_as_long_as_the_group_says, 2)
{
    if (!has_device()) {
        return;
    }
    const char *directory = share_directory(self);
    for (int number = 0; number < 4; number++) {
        const struct kind kind = {.name = "one", .is_replicated = number == 2};
        struct run run = {.kind = &kind, .device = test_device(), .rank = self->rank};
        run.record = number == 1 ? calloc(1, sizeof *run.record) : NULL;
        shoal_world *world = rank_world_open(self, number);
        REQUIRE(world);
        shoal_group *group = shoal_world_group(world);
        REQUIRE_OK(create(run.kind, run.device, world, NULL, &run.fsdp));
        add_params(&run);
        if (number == 1) {
            forward(&run);
            backward(&run, 3);
        }
        test_finish(run.device);
        test_barrier(self);
        CHECK_OK(shoal_group_set_timeout(group, 0.5 * test_time_scale()));
        atomic_store(&test_apart()->is_held, self->rank == 1);
        shoal_status status = call_that_waits(&run, group, directory, number);
        atomic_store(&test_apart()->is_held, 0);
        if (self->rank == 1) {
            CHECK_STATUS(status, SHOAL_ERR_TIMEOUT);
        } else {
            CHECK(status != SHOAL_OK);
        }
        read_one(run.device);
        test_barrier(self);
        shoal_fsdp_free(run.fsdp);
        (void)!shoal_world_close(world);
        free(run.record);
    }
    remove_directory(self, directory);
}

/* Forward and backward of two units, and clipping; the first failure. */
static shoal_status pass(const struct run *run)
{
    shoal_status status = SHOAL_OK;
    for (int unit = 0; unit < 2 && status == SHOAL_OK; unit++) {
        status = shoal_fsdp_pre_forward(run->fsdp, unit);
        status = status == SHOAL_OK ? shoal_fsdp_post_forward(run->fsdp, unit) : status;
    }
    for (int unit = 1; unit >= 0 && status == SHOAL_OK; unit--) {
        status = shoal_fsdp_pre_backward(run->fsdp, unit);
        status = status == SHOAL_OK ? shoal_fsdp_post_backward(run->fsdp, unit) : status;
    }
    status = status == SHOAL_OK ? shoal_fsdp_end_backward(run->fsdp) : status;
    return status == SHOAL_OK ? shoal_fsdp_clip_grad_norm(run->fsdp, 0, 2, false, NULL) : status;
}

/* For all ranks: whether there was such a call. */
struct failing {
    _Atomic bool has_failed;
};

static void fail_at(struct rank *self, const struct kind *kind, int number)
{
    struct failing *failing = self->shared;
    struct run run = {.kind = kind, .device = test_device(), .rank = self->rank};
    shoal_world *world = rank_world_open(self, number);
    REQUIRE(world);
    REQUIRE_OK(create(run.kind, run.device, world, NULL, &run.fsdp));
    add_params(&run);
    test_finish(run.device);
    test_barrier(self);
    if (self->rank == 1) {
        test_apart()->fail_at = number;
    }
    shoal_status status = pass(&run);
    if (self->rank == 1 && atomic_exchange(&test_apart()->fail_at, 0) == 0) {
        /* What fails behind the last call that can say so is the error of the next one. What a lane finds is told to the
           other ranks first, and comes back as their difference. */
        status = status == SHOAL_OK ? shoal_device_synchronize(run.device) : status;
        CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT(test_words_apart("apart"));
    } else if (self->rank == 1) {
        CHECK_OK(status);
        failing->has_failed = false;
    } else if (status == SHOAL_ERR_TIMEOUT || status == SHOAL_ERR_INTERNAL) {
        test_failed(__FILE__, __LINE__, "%s: call %d of the device failed on rank 1, and here it is %s: %s",
                    kind->name, number, shoal_status_name(status), shoal_error_text());
    }
    test_barrier(self);
    test_forget_failure();
    shoal_fsdp_free(run.fsdp);
    (void)!shoal_world_close(world);
}

/* Each call of the device fails on one rank: it has a reason that names the device, and nobody waits for it until the
   deadline. */
static void fail_at_each(struct rank *self, const char *name)
{
    struct failing *failing = self->shared;
    if (HARNESS_HAS_TSAN || !has_device()) {
        test_skip("it needs device apart, and nothing orders the work of a device that has failed");
        return;
    }
    TEST_NEEDS_CONTROLS();
    failing->has_failed = true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool is_it = strcmp(kinds[i].name, name) == 0;
        for (int number = 1; is_it && failing->has_failed && !test_has_failed(); number++) {
            fail_at(self, &kinds[i], number);
            test_barrier(self);
        }
    }
}

TEST_PROCESSES(a_device_that_fails_with_shards, 2)
{
    fail_at_each(self, "shards");
}

TEST_PROCESSES(a_device_that_fails_with_shards_in_bf16, 2)
{
    fail_at_each(self, "shards in bf16");
}

TEST_PROCESSES(a_device_that_fails_with_neighbours, 2)
{
    fail_at_each(self, "neighbours");
}

TEST_PROCESSES(a_device_that_fails_with_zero1, 2)
{
    fail_at_each(self, "zero1");
}

TEST_PROCESSES(a_device_that_fails_with_replicas, 2)
{
    fail_at_each(self, "replicas");
}

TEST_RANKS(extensions_are_refused, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    struct run run = {.kind = &kinds[0], .device = test_device()};
    REQUIRE(world);
    REQUIRE_OK(create(run.kind, run.device, world, NULL, &run.fsdp));
    add_params(&run);
    if (run.device != SHOAL_CPU) {
        struct int8_rows context = {.encode_fails_at = 0};
        const shoal_gather_buffer buffers[] = {{SHOAL_I8, 3}, {SHOAL_F32, 1}};
        const shoal_gather_extension extension = int8_rows_extension(buffers, &context);
        CHECK_STATUS(shoal_fsdp_set_gather_extension(shoal_fsdp_param_of(run.fsdp, 0), &extension),
                     SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT(test_words_apart("apart"));
    }
    shoal_fsdp_free(run.fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(devices_are_checked, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world);
    CHECK_STATUS(create(&kinds[0], SHOAL_META, world, NULL, &fsdp), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device meta has no data");
    CHECK_STATUS(create(&kinds[0], (shoal_device)99, world, NULL, &fsdp), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device: 99 is not a device");
    CHECK_OK(shoal_world_close(world));
}
