/* SPDX-License-Identifier: MIT */
/* Parameters that are gathered can only be read: whoever would write one gets an error that names it. */
#include <dlpack/dlpack.h>

#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/dlpack.h"

static _Thread_local shoal_group *group;
static _Thread_local int n_refused;

/* Ways to write a tensor of five numbers; NULL: it was refused. */
typedef const void *(*writer)(shoal_tensor *tensor);

static shoal_tensor *ones(void)
{
    return shoal_full((int64_t[]){NET_WIDTH}, 1, 1.0, SHOAL_F32);
}

static const void *by_address(shoal_tensor *tensor)
{
    void *data = shoal_mutable_data(tensor);
    CHECK_ERROR_TEXT("is read-only: it is a parameter gathered from shards");
    return data;
}

static const void *by_export(shoal_tensor *tensor)
{
    struct DLManagedTensor *managed = NULL;
    CHECK_STATUS(shoal_to_dlpack(tensor, &managed), SHOAL_ERR_STATE);
    return managed;
}

static const void *by_adding(shoal_tensor *tensor)
{
    return shoal_add_(tensor, ones());
}

static const void *by_adding_to_a_view(shoal_tensor *tensor)
{
    return shoal_add_scalar_(shoal_narrow(tensor, 0, 1, 2), 1.0);
}

static const void *by_adding_to_what_is_detached(shoal_tensor *tensor)
{
    return shoal_mul_scalar_(shoal_detach(tensor), 1.0);
}

static const void *by_copying(shoal_tensor *tensor)
{
    return shoal_copy_(tensor, ones());
}

static const void *by_a_list(shoal_tensor *tensor)
{
    shoal_tensor *self[] = {ones(), tensor};
    shoal_tensor *other[] = {ones(), ones()};
    return shoal_foreach_add_(self, other, 2);
}

static const void *by_all_reduce(shoal_tensor *tensor)
{
    return shoal_all_reduce_(tensor, SHOAL_SUM, group);
}

static const void *by_broadcast(shoal_tensor *tensor)
{
    return shoal_broadcast_(tensor, 0, group);
}

static const void *by_all_gather(shoal_tensor *tensor)
{
    int64_t n = shoal_group_n_ranks(group);
    return shoal_all_gather_into_tensor_out(shoal_narrow(ones(), 0, 0, 1), group,
                                            shoal_narrow(tensor, 0, 0, n));
}

static const void *by_receiving(shoal_tensor *tensor)
{
    return shoal_irecv(tensor, 0, 0, group);
}

static const void *by_other_memory(shoal_tensor *tensor)
{
    return shoal_tensor_rebind_data(tensor, NULL, NULL, NULL) == SHOAL_OK ? tensor : NULL;
}

static const void *by_taking_the_memory_away(shoal_tensor *tensor)
{
    return shoal_tensor_release_data(tensor) == SHOAL_OK ? tensor : NULL;
}

static const struct {
    writer write;
    bool has_no_scope; /* the scope does not hear of it */
} writers[] = {{by_address, true},
               {by_export, true},
               {by_other_memory, true},
               {by_taking_the_memory_away, true},
               {by_adding, false},
               {by_adding_to_a_view, false},
               {by_adding_to_what_is_detached, false},
               {by_copying, false},
               {by_a_list, false},
               {by_all_reduce, false},
               {by_broadcast, false},
               {by_all_gather, false},
               {by_receiving, false}};

#define N_WRITERS (sizeof writers / sizeof writers[0])

/* Both with gradients, where a leaf cannot be written anyhow, and without. */
static void try_writing(shoal_tensor *tensor)
{
    uint64_t version = shoal_tensor_version(tensor);
    for (size_t i = 0; i < N_WRITERS; i++) {
        (void)CHECK_OK(shoal_scope_begin());
        (void)CHECK_OK(shoal_scope_set_grad(false));
        CHECK(writers[i].write(tensor) == NULL);
        if (!writers[i].has_no_scope) {
            (void)CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_STATE);
        }
        (void)CHECK_ERROR_TEXT("is read-only");
        (void)CHECK_ERROR_TEXT(shoal_tensor_name(tensor));
        (void)CHECK_STATUS(shoal_scope_end(), writers[i].has_no_scope ? SHOAL_OK : SHOAL_ERR_STATE);
        n_refused++;
    }
    (void)CHECK_INT(shoal_tensor_version(tensor), version);
}

static shoal_tensor *write_in_forward(shoal_module *root, shoal_tensor *x)
{
    try_writing(shoal_module_parameter(root, "scale"));
    return net_call(root, "0", x);
}

/* In a forward, and where the program has gathered by hand. The data is as it was. */
static void check_writing(struct rank *self)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, write_in_forward));
    group = shoal_world_group(bench.world);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    n_refused = 0;
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    CHECK_INT(n_refused, N_WRITERS);
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    CHECK_INT(shoal_tensor_count(weight), NET_WIDTH);
    try_writing(weight);
    CHECK_BYTES(shoal_data(weight), shoal_data(shoal_module_parameter(bench.alone.layers[0], "weight")),
                NET_WIDTH * sizeof(float));
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    bench_close(&bench);
}

TEST_RANKS(whoever_writes_what_is_gathered, 2)
{
    check_writing(self);
}

TEST_RANKS(whoever_writes_what_is_gathered_alone, 1)
{
    check_writing(self);
}

/* With gradients the error is another one, but no crash either. */
static shoal_tensor *write_with_gradients(shoal_module *root, shoal_tensor *x)
{
    shoal_tensor *changed = NULL;
    if (shoal_scope_begin() == SHOAL_OK) {
        changed = shoal_add_scalar_(shoal_module_parameter(root, "scale"), 1.0);
        CHECK(changed == NULL);
        (void)CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    }
    return net_call(root, "0", x);
}

TEST_RANKS(writing_with_gradients_on, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, write_with_gradients));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    bench_close(&bench);
}

static _Thread_local bool fails;

static shoal_tensor *fail_in_forward(shoal_module *root, shoal_tensor *x)
{
    shoal_tensor *y = net_call(root, "0", x);
    return fails ? shoal_select(y, 9, 0) : y;
}

/* After a call that failed, too; and the next call works. */
TEST_RANKS(what_is_listed_after_a_failed_forward_can_be_written, 2)
{
    struct bench bench;
    size_t n;
    REQUIRE(bench_open(&bench, self, 1, fail_in_forward));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *const *before = shoal_module_parameters(bench.sharded.root, &n);
    for (int round = 0; round < 2; round++) {
        fails = true;
        CHECK_OK(shoal_scope_begin());
        CHECK(!net_loss(&bench.sharded, net_input(0, self->rank)));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
        fails = false;
        shoal_tensor *const *after = shoal_module_parameters(bench.sharded.root, &n);
        for (size_t k = 0; k < n; k++) {
            CHECK(before[k] == after[k]);
            CHECK(shoal_mutable_data(after[k]) != NULL || shoal_tensor_count(after[k]) == 0);
        }
        CHECK(net_pass(&bench.sharded, 0, self->rank));
    }
    bench_close(&bench);
}

/* Lists show shards outside of calls, and those can be written. */
TEST_RANKS(what_is_listed_after_a_forward_can_be_written, 2)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_NEVER,
                                             SHOAL_RESHARD_PARTLY};
    for (int i = 0; i < 3 && !test_has_failed(); i++) {
        struct bench bench;
        size_t n;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshards[i];
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        shoal_tensor *const *before = shoal_module_parameters(bench.sharded.root, &n);
        (void)net_loss(&bench.sharded, net_input(0, self->rank));
        shoal_tensor *const *after = shoal_module_parameters(bench.sharded.root, &n);
        for (size_t k = 0; k < n; k++) {
            CHECK(before[k] == after[k]);
            CHECK(shoal_mutable_data(after[k]) != NULL || shoal_tensor_count(after[k]) == 0);
        }
        bench_close(&bench);
    }
}
