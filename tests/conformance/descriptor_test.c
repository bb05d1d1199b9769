/* SPDX-License-Identifier: MIT */
/*
 * Collectives by descriptor. Which fields a kind uses comes from the library's table (comm/call/descriptor.def): every field that
 * a kind does not use is refused by name, and what is refused moves nothing. Then what only descriptors can say: lists of
 * blocks that lie anywhere, and deadlines of a call's own. Values of all forms are in collectives_sweep_test.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

enum {
    W = 3
};

/* Fields ----------------------------------------------------------------------------------------------- */

enum field_id {
#define FIELD(name, type) FIELD_##name,
#include "comm/call/descriptor.def"
#undef FIELD
    FIELD_COUNT
};

#define F(name) (1u << FIELD_##name)

static const struct kind_row {
    shoal_collective_kind kind;
    const char *name;
    unsigned fields;
} kinds[] = {
#define DESCRIPTOR(name_, text, collective, fields_) {SHOAL_KIND_##name_, text, fields_},
#include "comm/call/descriptor.def"
#undef DESCRIPTOR
};

enum {
    N_KINDS = sizeof kinds / sizeof kinds[0]
};

_Static_assert(N_KINDS == SHOAL_KIND_COUNT - 1, "every kind has a row");

static const char *const field_names[FIELD_COUNT] = {
#define FIELD(name, type) [FIELD_##name] = #name,
#include "comm/call/descriptor.def"
#undef FIELD
};

static float memory[64];
static const size_t counts[4] = {1, 2, 3, 4};
static const void *const send_list[4] = {memory, memory + 1, memory + 2, memory + 3};
static void *const recv_list[4] = {memory + 10, memory + 20, memory + 30, memory + 40};
static const shoal_part part = {.send = memory, .recv = memory + 32, .count = 1};

/* Something that is not 0. Returns how it is told. */
static const char *set_field(shoal_collective *call, enum field_id field)
{
    switch (field) {
    case FIELD_dtype:
        call->dtype = SHOAL_F32;
        return "dtype is ";
    case FIELD_reduce:
        call->reduce = SHOAL_MAX;
        return "reduce is ";
    case FIELD_root:
        call->root = 1;
        return "root is 1";
    case FIELD_send:
        call->send = memory;
        return "send is 0x";
    case FIELD_recv:
        call->recv = memory + 32;
        return "recv is 0x";
    case FIELD_count:
        call->count = 2;
        return "count is 2";
    case FIELD_counts:
        call->counts = counts;
        return "counts is 0x";
    case FIELD_send_counts:
        call->send_counts = counts;
        return "send_counts is 0x";
    case FIELD_recv_counts:
        call->recv_counts = counts;
        return "recv_counts is 0x";
    case FIELD_send_blocks:
        call->send_blocks = send_list;
        return "send_blocks is 0x";
    case FIELD_recv_blocks:
        call->recv_blocks = recv_list;
        return "recv_blocks is 0x";
    case FIELD_parts:
        call->parts = &part;
        return "parts is 0x";
    case FIELD_n_parts:
        call->n_parts = 1;
        return "n_parts is 1";
    case FIELD_factor:
        call->factor = 0.5;
        return "factor is 0.5";
    case FIELD_device:
        call->device = SHOAL_META;
        return "device is 1";
    case FIELD_COUNT:
        break;
    }
    return "?";
}

static shoal_world *open_fake(void)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 4, .rank = 1, .transport = "fake"};
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

/* What the kind must have, and nothing else. */
static shoal_collective least_call(const struct kind_row *row)
{
    shoal_collective call = {.struct_size = sizeof call, .kind = row->kind};
    if (row->fields & F(dtype)) {
        call.dtype = SHOAL_F32;
    }
    if (row->fields & F(counts)) {
        call.counts = counts;
    }
    if (row->fields & F(send_counts)) {
        call.send_counts = counts;
        call.recv_counts = counts;
    }
    if (row->fields & (F(counts) | F(send_counts))) {
        call.send = memory;
        call.recv = memory + 32;
    }
    return call;
}

TEST(fields_that_a_kind_does_not_use_are_refused)
{
    shoal_world *world = open_fake();
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    size_t n_refused = 0;
    for (int k = 0; k < N_KINDS; k++) {
        shoal_collective least = least_call(&kinds[k]);
        CHECK_OK(shoal_group_collective(group, &least));
        uint64_t before = shoal_group_sequence(group);
        for (int f = 0; f < FIELD_COUNT; f++) {
            if (kinds[k].fields & (1u << f)) {
                continue;
            }
            shoal_collective call = least;
            const char *told = set_field(&call, (enum field_id)f);
            shoal_work *work = NULL;
            char name[64];
            (void)snprintf(name, sizeof name, "%s: %s", kinds[k].name, told);
            CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_INVALID);
            CHECK_ERROR_TEXT(name);
            CHECK_ERROR_TEXT("this kind does not use it");
            CHECK_STATUS(shoal_group_collective_start(group, &call, &work), SHOAL_ERR_INVALID);
            CHECK_ERROR_TEXT(field_names[f]);
            CHECK(!work);
            n_refused++;
        }
        CHECK_INT(shoal_group_sequence(group), before);
    }
    CHECK(n_refused > 50);
    CHECK_OK(shoal_world_close(world));
}

TEST(descriptors_that_contradict_themselves)
{
    shoal_world *world = open_fake();
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
#define REFUSED(words)                                                     \
    do {                                                                   \
        CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID); \
        CHECK_ERROR_TEXT(words);                                           \
    } while (0)
    shoal_collective call = {.struct_size = sizeof call};
    REFUSED("kind is 0");
    call.kind = SHOAL_KIND_COUNT;
    REFUSED("kind is 15, 1 to 14 expected");
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_REDUCE(memory, memory + 32, 2, SHOAL_F32, SHOAL_SUM);
    call.struct_size = 3;
    REFUSED("shoal_collective");
    call.struct_size = sizeof call;
    call.factor = 2;
    REFUSED("all_reduce: factor is 2, but must be 0: only SHOAL_PREMUL_SUM has a factor");
    call.reduce = SHOAL_PREMUL_SUM;
    CHECK_OK(shoal_group_collective(g, &call));
    call.factor = 0; /* as good a factor as others */
    CHECK_OK(shoal_group_collective(g, &call));
    call.parts = &part;
    call.n_parts = 1;
    REFUSED("the buffers are in parts");
    call.send = NULL;
    call.recv = NULL;
    REFUSED("count is 2");
    call.count = 0;
    CHECK_OK(shoal_group_collective(g, &call));
    call.device = SHOAL_META;
    REFUSED("all_reduce: device is 1, but must be 0: the buffers are in parts");
    call.device = SHOAL_CPU;
    call.n_parts = 0;
    REFUSED("n_parts is 0");
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_TO_ALL(memory, memory + 32, 2, SHOAL_F32);
    call.send_blocks = send_list;
    REFUSED("all_to_all: send is 0x");
    REFUSED("send_blocks has the buffers");
    call.send = NULL;
    call.recv_blocks = recv_list;
    REFUSED("recv_blocks has the buffers");
    call.recv = NULL;
    CHECK_OK(shoal_group_collective(g, &call)); /* blocks that are only read may overlap */
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_TO_ALL_V(memory, counts, memory + 32, NULL, SHOAL_F32);
    REFUSED("all_to_all_v: recv_counts is NULL");
    call = (shoal_collective)SHOAL_COLLECTIVE_GATHER_V(memory, memory + 32, NULL, SHOAL_F32, 0);
    REFUSED("gather_v: counts is NULL");
    shoal_part two = {.send = memory, .recv = memory + 32, .count = 1};
    call = (shoal_collective)SHOAL_COLLECTIVE_BROADCAST(NULL, 0, SHOAL_F32, 0);
    call.parts = &two;
    call.n_parts = 1;
    REFUSED("broadcast: part 0: send is 0x");
    two.send = NULL;
    two.device = (shoal_device)99;
    REFUSED("broadcast: device: 99 is not a device");
    shoal_part apart[] = {{.recv = memory, .count = 1},
                          {.recv = memory + 1, .count = 1, .device = SHOAL_META}};
    call.parts = apart;
    call.n_parts = 2;
    REFUSED(
        "broadcast: part 0 is on device cpu, part 1 on device meta: the parts of a call are on one device");
    apart[1].device = (shoal_device)-1;
    REFUSED("broadcast: device: -1 is not a device");
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_REDUCE(memory, memory + 32, 2, SHOAL_F32, SHOAL_SUM);
    call.device = SHOAL_META;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("all_reduce: buffers on device meta, which has no data");
    call = (shoal_collective)SHOAL_COLLECTIVE_BARRIER;
    call.timeout_s = -1;
    REFUSED("barrier: timeout_s is -1, 0 (the group's) to 1e+09 expected");
    call.timeout_s = (double)INFINITY;
    REFUSED("barrier: timeout_s is inf, 0 (the group's) to 1e+09 expected");
    call.timeout_s = 1e300;
    REFUSED("barrier: timeout_s is 1e+300");
    call.timeout_s = 1;
    CHECK_OK(shoal_group_collective(g, &call));
#undef REFUSED
    CHECK_OK(shoal_world_close(world));
}

/* Blocks ----------------------------------------------------------------------------------------------- */

TEST(blocks_that_may_not_be)
{
    shoal_world *world = open_fake();
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world); /* rank 1 of 4 */
    float send[16] = {0};
    void *blocks[4] = {memory, memory + 4, memory + 8, memory + 12};
    shoal_collective call = SHOAL_COLLECTIVE_ALL_GATHER(send, NULL, 4, SHOAL_F32);
    call.recv_blocks = blocks;
    CHECK_OK(shoal_group_collective(g, &call));
    call.send = memory + 4; /* in place */
    CHECK_OK(shoal_group_collective(g, &call));
    call.send = memory; /* another rank's block */
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_gather: blocks (from 0: send, from 4: recv) 1 and 4 overlap");
    call.send = send;
    blocks[3] = memory + 9;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("6 and 7 overlap");
    blocks[3] = NULL;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_gather: recv_blocks[3] is NULL, but has 16 bytes");
    call.count = 0;
    CHECK_OK(shoal_group_collective(g, &call));
    call.count = SIZE_MAX / 8;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than memory can hold");
    /* Only the root has blocks. */
    call = (shoal_collective)SHOAL_COLLECTIVE_GATHER(send, NULL, 4, SHOAL_F32, 0);
    call.recv_blocks = blocks;
    CHECK_OK(shoal_group_collective(g, &call));
    call.root = 1;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    /* Blocks of all_to_all may be in place one by one, those of all_to_all_v not. */
    blocks[3] = memory + 12;
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_TO_ALL(NULL, NULL, 4, SHOAL_F32);
    call.send_blocks = (const void *const *)blocks;
    call.recv_blocks = blocks;
    CHECK_OK(shoal_group_collective(g, &call));
    call = (shoal_collective)SHOAL_COLLECTIVE_ALL_TO_ALL_V(NULL, counts, NULL, counts, SHOAL_F32);
    call.send_blocks = (const void *const *)blocks;
    call.recv_blocks = blocks;
    CHECK_STATUS(shoal_group_collective(g, &call), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* Blocks in any order, apart from each other, on some ranks; the others have them in one buffer. */
static void exchange(struct rank *self, shoal_group *all, size_t count, bool is_started)
{
    float *arena = calloc(2 * W * (count + 3), sizeof *arena);
    REQUIRE(arena);
    const void *send_blocks[W];
    void *recv_blocks[W];
    for (int r = 0; r < W; r++) {
        float *from = arena + (size_t)(W - 1 - r) * (count + 3);
        recv_blocks[r] = arena + (size_t)(W + (r + 1) % W) * (count + 3) + 1;
        for (size_t i = 0; i < count; i++) {
            from[i] = (float)(100 * self->rank + 10 * r + 1);
        }
        send_blocks[r] = from;
    }
    float *line = calloc(2 * W * count + 1, sizeof *line);
    REQUIRE(line);
    for (size_t i = 0; i < W * count; i++) {
        line[i] = (float)(100 * self->rank + 10 * (int)(i / count) + 1);
    }
    bool is_listed = self->rank != 1;
    shoal_collective call = SHOAL_COLLECTIVE_ALL_TO_ALL(line, line + W * count, count, SHOAL_F32);
    if (is_listed) {
        call.send = NULL;
        call.recv = NULL;
        call.send_blocks = send_blocks;
        call.recv_blocks = recv_blocks;
    }
    if (is_started) {
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_collective_start(all, &call, &work));
        /* The lists were copied. */
        memset(send_blocks, 0, sizeof send_blocks);
        void *kept[W];
        memcpy(kept, recv_blocks, sizeof kept);
        memset(recv_blocks, 0, sizeof recv_blocks);
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
        memcpy(recv_blocks, kept, sizeof kept);
    } else {
        CHECK_OK(shoal_group_collective(all, &call));
    }
    for (int r = 0; r < W && count > 0; r++) {
        const float *got = is_listed ? recv_blocks[r] : line + (size_t)(W + r) * count;
        CHECK_DOUBLE((double)got[0], 100 * r + 10 * self->rank + 1);
        CHECK_DOUBLE((double)got[count - 1], 100 * r + 10 * self->rank + 1);
    }
    free(line);
    free(arena);
}

TEST_RANKS(blocks_lie_anywhere, W)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    static const size_t all_counts[] = {0, 1, 7, 1000, 50000};
    for (size_t i = 0; i < sizeof all_counts / sizeof all_counts[0]; i++) {
        exchange(self, shoal_world_group(world), all_counts[i], false);
        exchange(self, shoal_world_group(world), all_counts[i], true);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Deadlines -------------------------------------------------------------------------------------------- */

/* Its own deadline ends a call, and the group with it, as the group's does; the text says whose it was. */
TEST_RANKS(a_deadline_of_the_call, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int form = 0; form < 3; form++) {
        shoal_group *group = NULL;
        char tag[16];
        (void)snprintf(tag, sizeof tag, "form %d", form);
        REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, tag, &group));
        CHECK_OK(shoal_group_barrier(group));
        CHECK_OK(shoal_group_set_timeout(group, 1000));
        if (self->rank == 0) {
            static float large[50000];
            shoal_collective call =
                SHOAL_COLLECTIVE_ALL_REDUCE(large, large, form == 2 ? 50000 : 1, SHOAL_F32, SHOAL_SUM);
            shoal_work *work = NULL;
            call.timeout_s = 0.2;
            if (form == 0) {
                CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_TIMEOUT);
            } else {
                REQUIRE_OK(shoal_group_collective_start(group, &call, &work));
                CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
                shoal_work_free(work);
            }
            CHECK_ERROR_TEXT("0.2 s passed (timeout_s of the call) and rank 1 did not call it");
            CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_TIMEOUT);
        }
        test_barrier(self);
        /* Messages may be on their way: then the other rank sees that the calls differ before it hears of the timeout. */
        shoal_status status = shoal_group_barrier(group);
        CHECK(status == SHOAL_ERR_TIMEOUT || (self->rank == 1 && status == SHOAL_ERR_MISMATCH));
    }
    CHECK_OK(shoal_world_close(world));
}

/* Descriptors and functions on different ranks are one call. */
TEST_RANKS(forms_meet, W)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    float value = 1;
    shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(&value, &value, 1, SHOAL_F32, SHOAL_SUM);
    CHECK_OK(self->rank == 0 ? shoal_group_collective(all, &call)
                             : shoal_group_all_reduce(all, &value, &value, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)value, W);
    CHECK_OK(shoal_world_close(world));
}
