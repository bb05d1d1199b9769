/* SPDX-License-Identifier: MIT */
/* One rank of `shoal bench all_reduce` and the like: its world, its buffers, and the call that is timed. */
#include "bench/calls.h"
#include "bench/ranks.h"
#include "common/tool.h"

#include "base/mem.h"
#include "comm/group/group.h"
#include "shoal/status.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/world.h"
#include "transport/algorithm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct rank {
    const struct bench_collective *bench;
    int number;
    shoal_world *world;
    shoal_group *group;
    shoal_symmetric *send; /* with symmetric buffers */
    shoal_symmetric *recv;
    shoal_window *window; /* with a window */
    shoal_dtype dtype;    /* of the next call */
    uint64_t n_gathers;
    uint64_t called_bytes; /* of all calls, as the table counts them */
    char algorithm[32];    /* of the last call */
    char prefix[64];       /* of messages */
};

/* True when all is well; otherwise says what is not. */
static bool check(const struct rank *rank, shoal_status status, const char *what)
{
    return bench_ranks_check(measure_ops[rank->bench->request.op].name, rank->number, status, what);
}

/* The call --------------------------------------------------------------------------------------------- */

static shoal_status call_window(struct rank *rank, const struct measure_call *call)
{
    size_t share_bytes = call->count * call->dtype->bytes;
    const shoal_window_piece piece = {
        .data = call->send,
        .count = call->count,
        .data_dtype = rank->dtype,
        .window_dtype = rank->dtype,
        .offset = call->recv_offset + (size_t)rank->number * share_bytes,
    };
    return shoal_window_gather(rank->window, &piece, 1, rank->n_gathers++);
}

static const shoal_reduce_op redops[MEASURE_N_REDOPS] = {
    [MEASURE_REDOP_sum] = SHOAL_SUM,         [MEASURE_REDOP_avg] = SHOAL_AVG,
    [MEASURE_REDOP_product] = SHOAL_PRODUCT, [MEASURE_REDOP_min] = SHOAL_MIN,
    [MEASURE_REDOP_max] = SHOAL_MAX,         [MEASURE_REDOP_band] = SHOAL_BAND,
    [MEASURE_REDOP_bor] = SHOAL_BOR,         [MEASURE_REDOP_bxor] = SHOAL_BXOR,
};

static shoal_status call_group(struct rank *rank, const struct measure_call *call)
{
    shoal_group *group = rank->group;
    shoal_dtype dtype = rank->dtype;
    shoal_reduce_op redop = redops[call->redop];
    switch (call->op) {
    case MEASURE_all_reduce:
        return shoal_group_all_reduce(group, call->send, call->recv, call->count, dtype, redop);
    case MEASURE_all_gather:
        return shoal_group_all_gather(group, call->send, call->recv, call->count, dtype);
    case MEASURE_reduce_scatter:
        return shoal_group_reduce_scatter(group, call->send, call->recv, call->count, dtype, redop);
    case MEASURE_all_to_all:
        return shoal_group_all_to_all(group, call->send, call->recv, call->count, dtype);
    case MEASURE_broadcast:
        return shoal_group_broadcast(group, call->recv, call->count, dtype, call->root);
    case MEASURE_barrier:
        return shoal_group_barrier(group);
    case MEASURE_N_OPS:
        break;
    }
    return SHOAL_ERR_INVALID;
}

/* The widest buffer of a call. */
static uint64_t count_call(const struct rank *rank, const struct measure_call *call)
{
    const struct measure_request *request = &rank->bench->request;
    bool has_blocks = call->op == MEASURE_all_gather || call->op == MEASURE_reduce_scatter ||
                      call->op == MEASURE_all_to_all;
    return (uint64_t)call->count * call->dtype->bytes * (has_blocks ? (uint64_t)request->n_ranks : 1);
}

/* The dtype by its name: looked up before ranks meet. */
static bool prepare(void *context, const struct measure_call *call)
{
    struct rank *rank = context;
    return check(rank, shoal_dtype_find(call->dtype->name, &rank->dtype), "a dtype");
}

static bool run(void *context, const struct measure_call *call)
{
    struct rank *rank = context;
    rank->called_bytes += count_call(rank, call);
    shoal_status status = rank->window ? call_window(rank, call) : call_group(rank, call);
    /* The name is only looked at when something is wrong. */
    return status == SHOAL_OK || check(rank, status, measure_ops[call->op].name);
}

static bool release_window(void *context)
{
    struct rank *rank = context;
    return check(rank, shoal_window_release(rank->window), "release of the window");
}

/* Memory ----------------------------------------------------------------------------------------------- */

static bool create_symmetric(struct rank *rank, size_t bytes, shoal_symmetric **symmetric_out)
{
    return bytes == 0 ||
           check(rank, shoal_symmetric_create(rank->group, bytes, symmetric_out), "symmetric memory");
}

static void free_symmetric(void *context, void *send, void *recv)
{
    struct rank *rank = context;
    shoal_symmetric_free(rank->send);
    shoal_symmetric_free(rank->recv);
    rank->send = NULL;
    rank->recv = NULL;
}

static bool allocate_symmetric(void *context, const struct measure_plan *plan, void **send_out,
                               void **recv_out)
{
    struct rank *rank = context;
    if (!create_symmetric(rank, plan->send_pool_bytes, &rank->send) ||
        !create_symmetric(rank, plan->recv_pool_bytes, &rank->recv)) {
        free_symmetric(rank, NULL, NULL);
        return false;
    }
    *send_out = rank->send ? shoal_symmetric_data(rank->send) : NULL;
    *recv_out = rank->recv ? shoal_symmetric_data(rank->recv) : NULL;
    return true;
}

static void free_window(void *context, void *send, void *recv)
{
    struct rank *rank = context;
    mem_free(send);
    shoal_window_free(rank->window);
    rank->window = NULL;
}

/* The shard is private; the result lies in the window. */
static bool allocate_window(void *context, const struct measure_plan *plan, void **send_out, void **recv_out)
{
    struct rank *rank = context;
    size_t window_bytes = plan->recv_pool_bytes;
    if (!check(rank, shoal_window_create(rank->group, window_bytes, &rank->window), "window")) {
        return false;
    }
    *send_out = mem_alloc_aligned(plan->send_pool_bytes, MEM_DATA_ALIGNMENT);
    if (!*send_out) {
        (void)check(rank, SHOAL_ERR_NO_MEMORY, "memory for a shard");
        free_window(rank, NULL, NULL);
        return false;
    }
    *recv_out = (void *)shoal_window_data(rank->window);
    return true;
}

/* The rank --------------------------------------------------------------------------------------------- */

/* Text of a dump, as it comes. */
struct text {
    void *chars;
    size_t n_chars;
    size_t capacity;
};

static int append(void *context, const char *chars, size_t n_chars)
{
    struct text *text = context;
    if (mem_grow(&text->chars, &text->capacity, text->n_chars + n_chars + 1, 1) != SHOAL_OK) {
        return -1;
    }
    char *end = (char *)text->chars + text->n_chars;
    memcpy(end, chars, n_chars);
    end[n_chars] = '\0';
    text->n_chars += n_chars;
    return 0;
}

/* --algorithm and SHOAL_ALGO are wishes: what cannot carry a call is not taken, and another is measured. */
static void compare_with_asked(const struct rank *rank, const struct measure_plan *plan)
{
    const char *op = rank->window ? "window_gather" : measure_ops[plan->request->op].name;
    enum collective_kind kind;
    const struct algorithm_table *table =
        rank->group->peers.transport->algorithms; /* NULL if there is no choice */
    int row = table && tool_find_collective(op, &kind) ? algorithm_asked(table, kind) : -1;
    if (!table || row < 0 || row == table->n_rows) {
        return;
    }
    const char *asked = table->rows[row].name;
    if (strcmp(asked, rank->algorithm) != 0) {
        fprintf(stderr,
                "%s: %s of %zu bytes: measured %s, since %s cannot carry it"
                " (shoal info --explain %s says why)\n",
                tool_name(), op, plan->bytes, rank->algorithm, asked, op);
    }
}

/* The algorithm of the last call, from the flight record: what was done, not what was asked for. */
static const char *find_algorithm(void *context, const struct measure_plan *plan)
{
    static const char key[] = "\"algorithm\": \"";
    struct rank *rank = context;
    struct text text = {.chars = NULL};
    snprintf(rank->algorithm, sizeof(rank->algorithm), "?");
    if (shoal_world_dump(rank->world, append, &text) == SHOAL_OK && text.chars) {
        const char *last = NULL;
        for (const char *at = text.chars; (at = strstr(at, key)); at += strlen(key)) {
            last = at + strlen(key);
        }
        if (last) {
            snprintf(rank->algorithm, sizeof(rank->algorithm), "%.*s", (int)strcspn(last, "\""), last);
        }
    }
    mem_free(text.chars);
    compare_with_asked(rank, plan);
    return rank->algorithm;
}

static void begin(void *context)
{
    const struct rank *rank = context;
    rank->bench->begin(rank->bench);
}

static struct measure_library make_library(struct rank *rank)
{
    const struct bench_collective *bench = rank->bench;
    (void)snprintf(rank->prefix, sizeof rank->prefix, "%s: ", tool_name());
    struct measure_library library = {
        .prefix = rank->prefix,
        .transport = rank->group->peers.transport->name,
        .buffers = bench->buffers,
        .context = rank,
        .run = run,
        .prepare = prepare,
        .is_in_place_possible = true,
        .begin = begin,
        .algorithm = find_algorithm,
    };
    if (strcmp(bench->buffers, "symmetric") == 0) {
        library.allocate = allocate_symmetric;
        library.free = free_symmetric;
    } else if (strcmp(bench->buffers, "window") == 0) {
        library.allocate = allocate_window;
        library.free = free_window;
        library.release = release_window;
        library.is_recv_read_only = true;
        library.is_in_place_possible = false;
    }
    return library;
}

/* Hosts ------------------------------------------------------------------------------------------------ */

/* What went from each host to each other one, over all ranks; links: n_hosts * n_hosts, zeroed. */
static bool gather_links(const struct rank *rank, const struct transport_world *hosts, uint64_t *links)
{
    size_t n_hosts = (size_t)hosts->n_hosts;
    for (size_t host = 0; host < n_hosts; host++) {
        links[(size_t)hosts->hosts[rank->number] * n_hosts + host] = atomic_load(&hosts->sent_to_hosts[host]);
    }
    return check(rank,
                 shoal_group_all_reduce(rank->group, links, links, n_hosts * n_hosts, SHOAL_U64, SHOAL_SUM),
                 "adding up what went between hosts");
}

/* Where ranks are on several hosts: bytes between hosts, counted at the endpoints, for each byte of the calls. */
static bool print_hosts(const struct rank *rank)
{
    const struct transport_world *hosts = rank->group->peers.world;
    if (!hosts || hosts->n_hosts < 2 || rank->called_bytes == 0) {
        return true;
    }
    size_t n_links = (size_t)hosts->n_hosts * (size_t)hosts->n_hosts;
    uint64_t *links = mem_alloc_zeroed(n_links, sizeof *links);
    if (!links || !gather_links(rank, hosts, links)) {
        mem_free(links);
        return false;
    }
    uint64_t sum = 0;
    uint64_t busiest = 0;
    for (size_t i = 0; i < n_links; i++) {
        sum += links[i];
        busiest = links[i] > busiest ? links[i] : busiest;
    }
    mem_free(links);
    if (rank->number == 0 && !rank->bench->request.is_json) {
        printf("# hosts     %d; between them %.3f bytes for each byte of a call, %.3f on the busiest link\n",
               hosts->n_hosts, (double)sum / (double)rank->called_bytes,
               (double)busiest / (double)rank->called_bytes);
    }
    return true;
}

bool bench_collective_rank(const struct bench_collective *bench, struct measure_page *page, int rank_number)
{
    struct rank rank = {.bench = bench, .number = rank_number};
    if (!check(&rank, bench_ranks_open_world(bench->ranks, rank_number, &rank.world), "opening the world")) {
        return false;
    }
    rank.group = shoal_world_group(rank.world);
    struct measure_library library = make_library(&rank);
    bool is_good = measure_run(&bench->request, page, rank_number, &library);
    is_good = bench_ranks_agree(bench->ranks, rank.world, is_good) && print_hosts(&rank);
    return bench_ranks_close_world(bench->ranks, rank_number, rank.world, is_good);
}
