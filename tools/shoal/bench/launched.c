/* SPDX-License-Identifier: MIT */
/* The control world of ranks that a launcher started. See bench/launched.h. */
#include "bench/launched.h"
#include "common/tool.h"

#include "base/mem.h"
#include "comm/group/group.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static struct {
    struct tool_place place;
    shoal_world *world; /* NULL until it is needed */
} launched = {.place = {.launcher = "alone", .n_ranks = 1}};

bool bench_launched_begin(void)
{
    return tool_place_read(&launched.place);
}

const struct tool_place *bench_place(void)
{
    return &launched.place;
}

bool bench_prints(void)
{
    return launched.place.rank == 0;
}

/* What the command asks for ------------------------------------------------------------------------------ */

enum {
    MAX_NAMES = 64 /* different ones: the rows of benches.def, and all */
};

static struct {
    int n_names;
    const char *names[MAX_NAMES];
    bool is_checking;
} asked;

void bench_ask(const char *name)
{
    if (!bench_is_asked(name) && asked.n_names < MAX_NAMES) {
        asked.names[asked.n_names++] = name;
    }
}

bool bench_is_asked(const char *name)
{
    for (int i = 0; i < asked.n_names; i++) {
        if (strcmp(asked.names[i], name) == 0 || strcmp(asked.names[i], "all") == 0) {
            return true;
        }
    }
    return false;
}

void bench_set_checking(bool is_checking)
{
    asked.is_checking = is_checking;
}

bool bench_is_checking(void)
{
    return asked.is_checking;
}

/* Calls of ranks ------------------------------------------------------------------------------------------- */

/* True if a call went well; otherwise says what did not. */
static bool check(shoal_status status, const char *what)
{
    if (status != SHOAL_OK) {
        fprintf(stderr, "%s: rank %d: %s: %s\n", tool_name(), launched.place.rank, what, shoal_error_text());
    }
    return status == SHOAL_OK;
}

bool bench_launched_open(const char *transport)
{
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    /* That transport reaches nobody. */
    options.transport = transport && strcmp(transport, "fake") == 0 ? NULL : transport;
    return launched.world || check(shoal_world_open(&options, &launched.world), "opening the world");
}

bool bench_launched_end(void)
{
    shoal_world *world = launched.world;
    launched.world = NULL;
    return !world || check(shoal_world_close(world), "closing the world");
}

static shoal_group *group(void)
{
    return shoal_world_group(launched.world);
}

/* The link of a page ------------------------------------------------------------------------------------- */

static bool meet(void *context, bool is_well)
{
    (void)context;
    uint8_t n_ill = !is_well;
    return check(shoal_group_all_reduce(group(), &n_ill, &n_ill, 1, SHOAL_U8, SHOAL_MAX), "meeting") &&
           n_ill == 0;
}

static bool gather(void *context, const void *own, void *all, size_t bytes)
{
    (void)context;
    return check(shoal_group_all_gather(group(), own, all, bytes, SHOAL_U8), "bringing times together");
}

static const struct measure_link page_link = {.meet = meet, .gather = gather};

static int host_of(int rank)
{
    const struct transport_world *hosts = group()->peers.world;
    return hosts && hosts->hosts ? hosts->hosts[rank] : 0;
}

bool bench_launched_is_here(int rank)
{
    return !launched.world || host_of(rank) == host_of(launched.place.rank);
}

/* The ranks of a host share a file, which has no name any more once all of them have mapped it. */
struct measure_page *bench_launched_map(const struct measure_request *request)
{
    char path[128];
    uint64_t token = 0;
    bool has_token = launched.place.rank != 0 || getrandom(&token, sizeof token, 0) == (ssize_t)sizeof token;
    if (!has_token || !bench_launched_share(&token, sizeof token)) {
        return NULL;
    }
    (void)snprintf(path, sizeof path, "/dev/shm/shoal-bench-%016" PRIx64 "-%d", token,
                   host_of(launched.place.rank));
    struct measure_page *page = measure_page_map_linked(request, path, &page_link, launched.place.rank);
    if (!page && errno != ECANCELED) {
        fprintf(stderr, "%s: rank %d: %s: %s\n", tool_name(), launched.place.rank, path, strerror(errno));
    }
    (void)unlink(path);
    return page;
}

/* Data ----------------------------------------------------------------------------------------------------- */

bool bench_launched_share(void *bytes, size_t n_bytes)
{
    return check(shoal_group_broadcast(group(), bytes, n_bytes, SHOAL_U8, 0), "a broadcast");
}

bool bench_launched_gather(void *blocks, size_t block_bytes)
{
    const char *own = (const char *)blocks + (size_t)launched.place.rank * block_bytes;
    return check(shoal_group_all_gather(group(), own, blocks, block_bytes, SHOAL_U8), "an all_gather");
}

int bench_launched_exchange(void *context, const void *in, void *out_all, size_t bytes)
{
    (void)context;
    return shoal_group_all_gather(group(), in, out_all, bytes, SHOAL_U8) == SHOAL_OK ? 0 : -1;
}
