/* SPDX-License-Identifier: MIT */
/* One rank of `shoal bench all_reduce` and the like: its world, its buffers, and the call that is timed. */
#include "bench/calls.h"
#include "common/tool.h"

#include "base/mem.h"
#include "base/options.h"
#include "comm/group/group.h"
#include "shoal/status.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/world.h"
#include "transport/algorithm.h"
#include "transport/registry.h"

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
    uint64_t n_gathers;
    uint64_t called_bytes; /* of all calls, as the table counts them */
    char algorithm[32];    /* of the last call */
};

/* True when all is well; otherwise says what is not. */
static bool check(const struct rank *rank, shoal_status status, const char *what)
{
    if (status != SHOAL_OK) {
        fprintf(stderr, "shoal bench: rank %d: %s: %s\n", rank->number, what, shoal_error_text());
    }
    return status == SHOAL_OK;
}

/* The call --------------------------------------------------------------------------------------------- */

static shoal_status call_window(struct rank *rank, const struct measure_call *call)
{
    size_t share_bytes = call->count * rank->bench->request.dtype->bytes;
    const shoal_window_piece piece = {
        .data = call->send,
        .count = call->count,
        .data_dtype = rank->bench->dtype,
        .window_dtype = rank->bench->dtype,
        .offset = call->recv_offset + (size_t)rank->number * share_bytes,
    };
    return shoal_window_gather(rank->window, &piece, 1, rank->n_gathers++);
}

static shoal_status call_group(struct rank *rank, const struct measure_call *call)
{
    shoal_group *group = rank->group;
    shoal_dtype dtype = rank->bench->dtype;
    switch (call->op) {
    case MEASURE_all_reduce:
        return shoal_group_all_reduce(group, call->send, call->recv, call->count, dtype, SHOAL_SUM);
    case MEASURE_all_gather:
        return shoal_group_all_gather(group, call->send, call->recv, call->count, dtype);
    case MEASURE_reduce_scatter:
        return shoal_group_reduce_scatter(group, call->send, call->recv, call->count, dtype, SHOAL_SUM);
    case MEASURE_all_to_all:
        return shoal_group_all_to_all(group, call->send, call->recv, call->count, dtype);
    case MEASURE_broadcast:
        return shoal_group_broadcast(group, call->recv, call->count, dtype, 0);
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
    return (uint64_t)call->count * request->dtype->bytes * (has_blocks ? (uint64_t)request->n_ranks : 1);
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
    if (!create_symmetric(rank, plan->n_places * plan->send_stride, &rank->send) ||
        !create_symmetric(rank, plan->n_places * plan->recv_stride, &rank->recv)) {
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
    size_t window_bytes = plan->n_places * plan->recv_stride;
    if (!check(rank, shoal_window_create(rank->group, window_bytes, &rank->window), "window")) {
        return false;
    }
    *send_out = mem_alloc_aligned(plan->n_places * plan->send_stride, MEM_DATA_ALIGNMENT);
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

/* What carries the group: what was asked for, here or in the environment, or what ranks of one host get. */
static const char *transport_name(const struct bench_collective *bench)
{
    const char *set = option_text(OPTION_TRANSPORT);
    return bench->transport ? bench->transport : *set != '\0' ? set : transport_at(0)->name;
}

/* Returns NULL if the transport has no choice. */
static const struct algorithm_table *find_table(const struct bench_collective *bench)
{
    const struct transport *transport;
    return transport_find(transport_name(bench), &transport) == SHOAL_OK ? transport->algorithms : NULL;
}

/* --algorithm and SHOAL_ALGO are wishes: what cannot carry a call is not taken, and another is measured. */
static void compare_with_asked(const struct rank *rank, const struct measure_plan *plan)
{
    const char *op = rank->window ? "window_gather" : measure_ops[plan->request->op].name;
    enum collective_kind kind;
    const struct algorithm_table *table = find_table(rank->bench);
    int row = table && tool_find_collective(op, &kind) ? algorithm_asked(table, kind) : -1;
    if (!table || row < 0 || row == table->n_rows) {
        return;
    }
    const char *asked = table->rows[row].name;
    if (strcmp(asked, rank->algorithm) != 0) {
        fprintf(stderr,
                "shoal bench: %s of %zu bytes: measured %s, since %s cannot carry it"
                " (shoal info --explain %s says why)\n",
                op, plan->bytes, rank->algorithm, asked, op);
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

static struct measure_library make_library(struct rank *rank)
{
    const struct bench_collective *bench = rank->bench;
    struct measure_library library = {
        .transport = transport_name(bench),
        .buffers = bench->buffers,
        .context = rank,
        .run = run,
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
    const shoal_world_options options = {
        .struct_size = sizeof(options),
        .n_ranks = bench->request.n_ranks,
        .rank = rank_number,
        .key = bench->key,
        .transport = bench->transport,
    };
    if (!check(&rank, shoal_world_open(&options, &rank.world), "opening the world")) {
        measure_page_fail(page);
        return false;
    }
    rank.group = shoal_world_group(rank.world);
    struct measure_library library = make_library(&rank);
    bool is_good = measure_run(&bench->request, page, rank_number, &library) && print_hosts(&rank);
    return check(&rank, shoal_world_close(rank.world), "closing the world") && is_good;
}
