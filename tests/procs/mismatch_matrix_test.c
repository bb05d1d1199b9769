/* SPDX-License-Identifier: MIT */
/*
 * One rank of three calls something else, every call against every other one, so that ranks also differ in how their
 * data would travel: all of them get an error that names both calls, soon, and nothing was written.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fixtures/descriptor_calls.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define LARGE ((size_t)20000)
#define N_RANKS 3

struct memory {
    float *send; /* symmetric, where there is such memory */
    float *recv;
    float *heap;
    float *ordinary; /* NULL: send and recv are symmetric */
    shoal_window *window;
};

typedef shoal_status call_function(shoal_group *group, struct memory *m);

static const size_t counts_a[N_RANKS] = {5, 6, 7};
static const size_t counts_b[N_RANKS] = {5, 7, 6};

/* CALL(name, expression) */
#define CALLS                                                                                        \
    CALL(barrier, shoal_group_barrier(g))                                                            \
    CALL(check_equal, shoal_group_check_equal_integer(g, "seed", 3))                                 \
    CALL(reduce_4, shoal_group_all_reduce(g, m->send, m->recv, 4, SHOAL_F32, SHOAL_SUM))             \
    CALL(reduce_5, shoal_group_all_reduce(g, m->send, m->recv, 5, SHOAL_F32, SHOAL_SUM))             \
    CALL(reduce_max, shoal_group_all_reduce(g, m->send, m->recv, 4, SHOAL_F32, SHOAL_MAX))           \
    CALL(reduce_i32, shoal_group_all_reduce(g, m->send, m->recv, 4, SHOAL_I32, SHOAL_SUM))           \
    CALL(premul_2, group_all_reduce_premul(g, m->send, m->recv, 4, SHOAL_F32, 2.0))                  \
    CALL(premul_3, group_all_reduce_premul(g, m->send, m->recv, 4, SHOAL_F32, 3.0))                  \
    CALL(reduce_large, shoal_group_all_reduce(g, m->send, m->recv, LARGE, SHOAL_F32, SHOAL_SUM))     \
    CALL(reduce_heap, shoal_group_all_reduce(g, m->heap, m->heap, LARGE - 1, SHOAL_F32, SHOAL_SUM))  \
    CALL(to_root_0, shoal_group_reduce(g, m->send, m->recv, LARGE, SHOAL_F32, SHOAL_SUM, 0))         \
    CALL(to_root_1, shoal_group_reduce(g, m->send, m->recv, LARGE, SHOAL_F32, SHOAL_SUM, 1))         \
    CALL(broadcast_0, shoal_group_broadcast(g, m->recv, 9, SHOAL_F32, 0))                            \
    CALL(broadcast_1, shoal_group_broadcast(g, m->recv, 9, SHOAL_F32, 1))                            \
    CALL(broadcast_large_2, shoal_group_broadcast(g, m->recv, LARGE, SHOAL_F32, 2))                  \
    CALL(gather_v_a, shoal_group_all_gather_v(g, m->send, m->recv, counts_a, SHOAL_F32))             \
    CALL(gather_v_b, shoal_group_all_gather_v(g, m->send, m->recv, counts_b, SHOAL_F32))             \
    CALL(gather_6, shoal_group_all_gather(g, m->send, m->recv, 6, SHOAL_F32))                        \
    CALL(all_to_all_v, shoal_group_all_to_all_v(g, m->send, counts_a, m->recv, counts_a, SHOAL_F32)) \
    CALL(all_to_all, shoal_group_all_to_all(g, m->send, m->recv, 6, SHOAL_F32))                      \
    CALL(gather_v_0, shoal_group_gather_v(g, m->send, m->recv, counts_a, SHOAL_F32, 0))              \
    CALL(gather_v_1, shoal_group_gather_v(g, m->send, m->recv, counts_a, SHOAL_F32, 1))              \
    CALL(gather_v_0_b, shoal_group_gather_v(g, m->send, m->recv, counts_b, SHOAL_F32, 0))            \
    CALL(scatter_v_a, shoal_group_scatter_v(g, m->send, m->recv, counts_a, SHOAL_F32, 0))            \
    CALL(scatter_v_b, shoal_group_scatter_v(g, m->send, m->recv, counts_b, SHOAL_F32, 0))            \
    CALL(blocks_7, gather_blocks(g, m, 7))                                                           \
    CALL(list_4_5, reduce_list(g, m, 4, 5))                                                          \
    CALL(list_5_4, reduce_list(g, m, 5, 4))                                                          \
    CALL(list_9, shoal_group_all_reduce(g, m->send, m->recv, 9, SHOAL_F32, SHOAL_SUM))               \
    CALL(window_1, gather_window(m, 1))                                                              \
    CALL(window_2, gather_window(m, 2))

static shoal_status reduce_list(shoal_group *g, struct memory *m, size_t first, size_t second)
{
    shoal_part parts[2] = {{.send = m->send, .recv = m->recv, .count = first},
                           {.send = m->send + 50, .recv = m->recv + 50, .count = second}};
    return group_all_reduce_list(g, parts, 2, SHOAL_F32, SHOAL_SUM);
}

/* A buffer for every rank's block. */
static shoal_status gather_blocks(shoal_group *g, struct memory *m, size_t count)
{
    shoal_collective call = SHOAL_COLLECTIVE_ALL_GATHER(m->send, NULL, count, SHOAL_F32);
    void *blocks[N_RANKS] = {m->recv + 500, m->recv, m->heap};
    call.recv_blocks = blocks;
    return shoal_group_collective(g, &call);
}

static shoal_status gather_window(struct memory *m, uint64_t label)
{
    return shoal_window_gather(m->window, NULL, 0, label);
}

#define CALL(name, expression)                                        \
    static shoal_status call_##name(shoal_group *g, struct memory *m) \
    {                                                                 \
        (void)g;                                                      \
        (void)m;                                                      \
        return expression;                                            \
    }
CALLS
#undef CALL

static const struct {
    const char *name;
    call_function *call;
} calls[] = {
#define CALL(name, expression) {#name, call_##name},
    CALLS
#undef CALL
};

#define N_CALLS (sizeof calls / sizeof *calls)

/* Where the transport has no symmetric memory and no windows, all is ordinary memory, and calls on windows are left out. */
static bool create_memory(shoal_group *group, shoal_symmetric **symmetric_out, struct memory *m)
{
    size_t bytes = LARGE * sizeof(float);
    shoal_status status = shoal_symmetric_create(group, 2 * bytes, symmetric_out);
    if (status == SHOAL_ERR_UNSUPPORTED) {
        m->ordinary = calloc(2, bytes);
        m->send = m->ordinary;
    } else if (CHECK_OK(status) && CHECK_OK(shoal_window_create(group, 64, &m->window))) {
        m->send = shoal_symmetric_data(*symmetric_out);
    }
    m->recv = m->send ? m->send + LARGE : NULL;
    m->heap = calloc(LARGE, sizeof(float));
    return m->send && m->heap;
}

static bool is_on_window(size_t call)
{
    return strncmp(calls[call].name, "window", 6) == 0;
}

static void check_pair(struct rank *self, shoal_group *group, struct memory *memory, size_t common,
                       size_t other, int odd)
{
    struct memory m = *memory;
    int64_t begin_ns = clock_now_ns();
    shoal_status status = calls[self->rank == odd ? other : common].call(group, &m);
    double seconds = (double)(clock_now_ns() - begin_ns) * 1e-9;
    if (status != SHOAL_ERR_MISMATCH || seconds > 5 * test_time_scale()) {
        test_failed(__FILE__, __LINE__, "%s against %s of rank %d: %s %s after %.1f s", calls[common].name,
                    calls[other].name, odd, shoal_status_name(status), shoal_error_text(), seconds);
    }
    CHECK_ERROR_TEXT("called");
    for (size_t i = 0; i < LARGE; i++) {
        if (m.recv[i] != 0.0f || m.heap[i] != 0.0f) {
            test_failed(__FILE__, __LINE__, "%s against %s: data moved", calls[common].name,
                        calls[other].name);
            break;
        }
    }
}

static void differ(struct rank *self, size_t common, size_t other, int odd)
{
    shoal_world *world = rank_world_open(self, (int)(common * N_CALLS + other));
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    struct memory m = {0};
    shoal_symmetric *symmetric = NULL;
    REQUIRE(create_memory(group, &symmetric, &m));
    if (m.window || (!is_on_window(common) && !is_on_window(other))) {
        check_pair(self, group, &m, common, other, odd);
    }
    shoal_window_free(m.window);
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
    free(m.heap);
    free(m.ordinary);
}

TEST_RANKS(every_call_against_every_other, N_RANKS)
{
    test_deadline(300);
    for (size_t common = 0; common < N_CALLS; common++) {
        for (size_t other = 0; other < N_CALLS && !test_has_failed(); other++) {
            if (other != common && test_takes(self, (int)(common + other))) {
                differ(self, common, other, (int)((common + other) % N_RANKS));
            }
        }
    }
}
