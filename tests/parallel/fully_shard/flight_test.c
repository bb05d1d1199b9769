/* SPDX-License-Identifier: MIT */
/*
 * What the application does to shards and their gradients while sharding uses them. Work that is still on its way is done
 * here by whoever waits for it, and by nobody else. Gradients may be the application's own, or kept by it.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "base/completion.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "fixtures/module_bench.h"
#include "tensor/tensor.h"

/* Writes `value` into a tensor, or reads the first of its values, when somebody waits. */
struct late_work {
    struct completion completion; /* first */
    shoal_tensor *tensor;
    float value;
    float *read_to;
    shoal_status status;
};

static shoal_status do_late_work(struct completion *completion, int64_t until_ns)
{
    struct late_work *work = (struct late_work *)completion;
    struct address address;
    (void)until_ns;
    TRY(tensor_address(work->tensor, &address));
    float *values = test_reach(work->tensor->storage->device, address, tensor_bytes(work->tensor));
    for (int64_t i = 0; !work->read_to && i < work->tensor->count; i++) {
        values[i] = work->value;
    }
    if (work->read_to) {
        *work->read_to = values[0];
    }
    if (work->status != SHOAL_OK) {
        work->status = error_set(work->status, "rank 7 died");
    }
    completion_finish(completion, work->status);
    error_clear();
    return SHOAL_OK;
}

/* Of a tensor that outlives it. */
static struct late_work *late_work(shoal_tensor *tensor)
{
    static const struct completion_kind kind = {.push = do_late_work};
    struct late_work *work = mem_alloc_zeroed(1, sizeof *work);
    CHECK(work != NULL);
    if (work) {
        completion_init(&work->completion, &kind);
        work->tensor = tensor;
    }
    return work;
}

static void write_late(shoal_tensor *tensor, float value, shoal_status status)
{
    struct late_work *work = late_work(tensor);
    if (work) {
        work->value = value;
        work->status = status;
        CHECK_OK(storage_add_write(tensor->storage, &work->completion));
        completion_unref(&work->completion);
    }
}

static void read_late(shoal_tensor *tensor, float *value_out)
{
    struct late_work *work = late_work(tensor);
    if (work) {
        work->read_to = value_out;
        CHECK_OK(storage_add_read(tensor->storage, &work->completion));
        completion_unref(&work->completion);
    }
}

static void fill(shoal_tensor *tensor, float value)
{
    float *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; i < shoal_tensor_count(tensor); i++) {
        data[i] = value;
    }
}

/* Shards ------------------------------------------------------------------------------------------------- */

static shoal_tensor *shard_of(struct bench *bench, const char *path)
{
    return shoal_module_parameter(bench->sharded.root, path);
}

/* By a call, by hand, and as a whole. */
static void check_writes(struct rank *self)
{
    struct bench bench;
    float full[NET_WIDTH] = {0};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    write_late(shard_of(&bench, "0.weight"), 3.0F, SHOAL_OK);
    write_late(shard_of(&bench, "scale"), 4.0F, SHOAL_OK);
    fill(shoal_module_parameter(bench.alone.root, "0.weight"), 3.0F);
    fill(shoal_module_parameter(bench.alone.root, "scale"), 4.0F);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    for (int value = 5; value < 8; value++) {
        write_late(shard_of(&bench, "0.weight"), (float)value, SHOAL_OK);
        if (value == 5) {
            CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "0.weight"), full,
                                       SHOAL_FSDP_ALL_RANKS));
        } else if (value == 6) {
            CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "0.weight"), full, 0));
        } else {
            CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
            CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
            memcpy(full, shoal_data(shard_of(&bench, "0.weight")), sizeof full);
            CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
        }
        for (int i = 0; i < NET_WIDTH && (value != 6 || self->rank == 0); i++) {
            CHECK_DOUBLE((double)full[i], value);
        }
    }
    bench_close(&bench);
}

TEST_RANKS(writes_to_shards, 3)
{
    check_writes(self);
}

TEST_RANKS(writes_to_the_only_shard, 1)
{
    check_writes(self);
}

TEST_RANKS(a_write_that_fails, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    write_late(shard_of(&bench, "scale"), 3.0F, SHOAL_ERR_PEER);
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 7 died");
    bench_close(&bench);
}

/* Gradients ---------------------------------------------------------------------------------------------- */

/* What lands is added to what was written. */
TEST_RANKS(writes_to_gradients, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_tensor *weight = shard_of(&bench, "0.weight");
    float first = *(const float *)shoal_data(shoal_grad(weight));
    write_late(shoal_grad(weight), 10.0F, SHOAL_OK);
    (void)net_pass(&bench.sharded, 0, self->rank);
    CHECK_DOUBLE((double)*(const float *)shoal_data(shoal_grad(weight)), (double)(10.0F + first));
    bench_close(&bench);
}

/* The memory of a gradient that was removed is not used again under somebody who reads it; whether it can be read at
   all no longer matters. */
TEST_RANKS(work_on_gradients_that_are_removed, 2)
{
    struct bench bench;
    float before;
    float read = NAN;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_tensor *weight = shard_of(&bench, "0.weight");
    shoal_tensor *memory = fsdp_wrapper_of(bench.sharded.layers[0])->tensors[0].shard_grad;
    before = *(const float *)shoal_data(shoal_grad(weight));
    read_late(memory, &read);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    (void)net_pass(&bench.sharded, 1, self->rank);
    net_pass_alone(&bench.alone, net_pass, 1, self->n_ranks);
    CHECK_DOUBLE((double)read, (double)before);
    net_check_same(&bench.sharded, &bench.alone);
    write_late(memory, 10.0F, SHOAL_ERR_PEER);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    (void)net_pass(&bench.sharded, 1, self->rank);
    net_check_same(&bench.sharded, &bench.alone);
    bench_close(&bench);
}

/* Of somebody's own ---------------------------------------------------------------------------------------- */

static void check_times(struct bench *bench, shoal_tensor *got, int factor, double tolerance)
{
    int64_t begin;
    const float *want = shoal_data(shoal_grad(shoal_module_parameter(bench->alone.root, "0.weight")));
    const float *values = shoal_data(shoal_contiguous(shoal_to_dtype(got, SHOAL_F32)));
    CHECK_OK(shard_place(bench->sharded.root, "0.weight", NULL, &begin, NULL));
    for (int64_t k = 0; k < shoal_tensor_count(got); k++) {
        double value = factor * (double)want[begin + k];
        CHECK(fabs((double)values[k] - value) <= tolerance * (1.0 + fabs(value)));
    }
}

/* Backwards add to whatever tensor is the gradient, of any dtype, however it lies in memory. */
static void check_own(struct rank *self, shoal_dtype dtype, int64_t stride)
{
    struct bench bench;
    double tolerance = dtype == SHOAL_BF16 ? 0.02 : 1e-6;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_pass_alone(&bench.alone, net_pass, 0, self->n_ranks);
    shoal_tensor *weight = shard_of(&bench, "0.weight");
    for (int k = 0; k < 2; k++) { /* before there is one of ours, and afterwards */
        shoal_tensor *mine = shoal_full((int64_t[]){shoal_tensor_count(weight), stride}, 2, 0.0, dtype);
        shoal_tensor *column = shoal_select(mine, 1, 0);
        CHECK_OK(shoal_set_grad(weight, column));
        const shoal_tensor *grad = shoal_grad(weight);
        for (int n = 1; n <= 3; n++) {
            (void)net_pass(&bench.sharded, 0, self->rank);
            CHECK(shoal_grad(weight) == grad);
            check_times(&bench, column, n, tolerance);
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
        (void)net_pass(&bench.sharded, 0, self->rank);
        net_check_same(&bench.sharded, &bench.alone);
    }
    bench_close(&bench);
}

TEST_RANKS(gradients_of_the_application, 2)
{
    check_own(self, SHOAL_F32, 1);
    check_own(self, SHOAL_F32, 2);
    check_own(self, SHOAL_BF16, 1);
    check_own(self, SHOAL_F64, 3);
}

/* Whoever keeps a gradient that is no longer on the shard has it for himself. */
TEST_RANKS(gradients_that_are_kept, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_tensor *weight = shard_of(&bench, "0.weight");
    shoal_tensor *kept = shoal_tensor_ref(shoal_grad(weight));
    float before = *(const float *)shoal_data(kept);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    CHECK_DOUBLE((double)*(const float *)shoal_data(kept), (double)before);
    CHECK_OK(shoal_set_grad(weight, kept)); /* is his own now */
    (void)net_pass(&bench.sharded, 2, self->rank);
    CHECK(shoal_data(shoal_grad(weight)) == shoal_data(kept));
    CHECK(*(const float *)shoal_data(kept) != before);
    shoal_tensor_unref(kept);
    bench_close(&bench);
}

/* The memory of one that nobody keeps is used again. */
TEST_RANKS(gradients_that_are_removed, 2)
{
    struct bench bench;
    const void *first = NULL;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 3; i++) {
        (void)net_pass(&bench.sharded, i, self->rank);
        const void *data = shoal_data(shoal_grad(shard_of(&bench, "0.weight")));
        first = first ? first : data;
        CHECK(data == first);
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    }
    bench_close(&bench);
}
