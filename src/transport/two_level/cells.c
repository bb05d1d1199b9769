/* SPDX-License-Identifier: MIT */
/*
 * Shared memory of the members of one host: rings of cells, in which one rank writes and the readers count
 * (two_level.h).
 *
 * Memory order: a cell is written before its counter is raised (release), and read after the counter was seen
 * (acquire); it is written again after the readers' counters were seen, which they raise after their last access.
 */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "sharedmem/flag.h"
#include "sharedmem/segment.h"
#include "transport/two_level/two_level.h"

/* Two lines: processors fetch them in pairs. */
#define LINE 128
/* How much memory the cells of one member may take: a host with many members must not need memory for their square. */
#define MEMBER_BYTES ((size_t)4 * 1024 * 1024)
#define SMALLEST_CELL_BYTES ((size_t)4 * 1024)

/* A rank that waits for a flag, and has to poll for messages itself, does so this often. */
#define POLL_NS INT64_C(50000)

/* The counters of a member for a slice. */
struct counters {
    _Alignas(LINE) _Atomic uint32_t filled;  /* by the member, for the owner */
    _Alignas(LINE) _Atomic uint32_t emptied; /* by the owner */
    _Alignas(LINE) _Atomic uint32_t read;    /* results that the member has read */
};

struct flag_line {
    _Alignas(LINE) _Atomic uint32_t value;
};

struct two_cells {
    struct segment *segment;
    int n_slices;
    uint32_t n_results; /* cells of a slice's results */
    size_t cell_bytes;
    struct counters *counters; /* by member and slice */
    struct flag_line *made;    /* by slice: results */
    struct flag_line *came;    /* by member: barriers */
    char *filled_cells;        /* by member, slice and place in the ring */
    char *result_cells;        /* by slice and place */
    /* This rank's own copies of the counters that it raises or follows. */
    uint32_t *filled;  /* by slice */
    uint32_t *emptied; /* by member and slice */
    uint32_t *made_own;
    uint32_t *read;
    uint32_t n_barriers;
};

/* In one tick there may be a result from every host, and results are read in the next tick. The number is a power of
   two because counters wrap. */
static uint32_t n_result_cells(const struct two_layout *layout)
{
    uint32_t n_cells = 2;
    while (n_cells < 2 * (uint32_t)layout->n_hosts) {
        n_cells *= 2;
    }
    return n_cells;
}

size_t two_cell_bytes(const struct two_layout *layout)
{
    size_t n_cells = (size_t)layout->n_slices * TWO_FILL_CELLS + n_result_cells(layout);
    size_t bytes = MEMBER_BYTES / n_cells;
    bytes = bytes / LINE * LINE;
    bytes = bytes < SMALLEST_CELL_BYTES ? SMALLEST_CELL_BYTES : bytes;
    return bytes < FRAME_DATA_BYTES ? bytes : FRAME_DATA_BYTES;
}

/* Opening ------------------------------------------------------------------------------------------------ */

void two_cells_close(struct two_cells *cells)
{
    if (cells) {
        segment_unref(cells->segment);
        mem_free(cells->filled);
        mem_free(cells);
    }
}

static shoal_status map_cells(struct two_channel *channel, struct two_cells *cells, int64_t deadline_ns)
{
    const struct transport_peers *peers = channel->base.peers;
    size_t n_members = (size_t)channel->layout.n_locals[channel->host];
    size_t n_slices = (size_t)cells->n_slices;
    size_t ring_bytes = TWO_FILL_CELLS * cells->cell_bytes;
    size_t results_bytes = n_slices * cells->n_results * cells->cell_bytes;
    size_t made_at = n_members * n_slices * sizeof(struct counters);
    size_t came_at = made_at + n_slices * sizeof(struct flag_line);
    size_t filled_at = came_at + n_members * sizeof(struct flag_line);
    size_t results_at = filled_at + n_members * n_slices * ring_bytes;
    FAIL_POINT("two_level cells");
    TRY(peers->open_segment(peers->context, "two_level", results_at + results_bytes, deadline_ns,
                            &cells->segment));
    char *base = segment_base(cells->segment);
    cells->counters = (struct counters *)(void *)base;
    cells->made = (struct flag_line *)(void *)(base + made_at);
    cells->came = (struct flag_line *)(void *)(base + came_at);
    cells->filled_cells = base + filled_at;
    cells->result_cells = base + results_at;
    return SHOAL_OK;
}

shoal_status two_cells_open(struct two_channel *channel, int64_t deadline_ns)
{
    if (channel->cells) {
        return SHOAL_OK;
    }
    struct two_cells *cells = mem_alloc_zeroed(1, sizeof *cells);
    if (!cells) {
        return SHOAL_ERR_NO_MEMORY;
    }
    size_t n_members = (size_t)channel->layout.n_locals[channel->host];
    size_t n_slices = (size_t)channel->layout.n_slices;
    cells->n_slices = channel->layout.n_slices;
    cells->n_results = n_result_cells(&channel->layout);
    cells->cell_bytes = two_cell_bytes(&channel->layout);
    cells->filled = mem_alloc_zeroed((3 + n_members) * n_slices, sizeof *cells->filled);
    shoal_status status = cells->filled ? map_cells(channel, cells, deadline_ns) : SHOAL_ERR_NO_MEMORY;
    if (status != SHOAL_OK) {
        two_cells_close(cells);
        return status;
    }
    cells->made_own = cells->filled + n_slices;
    cells->read = cells->made_own + n_slices;
    cells->emptied = cells->read + n_slices;
    channel->cells = cells;
    return SHOAL_OK;
}

/* Waiting ------------------------------------------------------------------------------------------------ */

struct waiting {
    struct two_channel *channel;
    int member;
};

static shoal_status look_around(void *context)
{
    const struct waiting *waiting = context;
    const struct transport_peers *peers = waiting->channel->base.peers;
    TRY(message_failure(waiting->channel->outer));
    if (waiting->member == peers->rank) {
        return SHOAL_OK; /* another thread of this rank releases a window */
    }
    return peers->check_member(peers->context, waiting->member);
}

/*
 * Waits for a flag, and polls for messages meanwhile. Needed if no thread of the wire moves messages: what this rank
 * has sent must go out even while it waits for the flag. Returns false if this thread may not poll, and another one
 * does.
 */
static bool wait_and_poll(struct two_channel *channel, _Atomic uint32_t *flag, uint32_t target,
                          const struct wait_options *options, shoal_status *status_out)
{
    int64_t look_ns = clock_now_ns() + WAIT_LIVENESS_NS;
    struct wait_options turn = *options;
    turn.liveness = NULL;
    while (router_poll(channel->world->router, /*is_driver=*/false)) {
        int64_t now_ns = clock_now_ns();
        turn.deadline_ns = now_ns + POLL_NS < options->deadline_ns ? now_ns + POLL_NS : options->deadline_ns;
        *status_out = flag_wait(flag, target, &turn);
        if (*status_out == SHOAL_ERR_TIMEOUT && now_ns >= look_ns) {
            look_ns = now_ns + WAIT_LIVENESS_NS;
            shoal_status status = options->liveness(options->liveness_context);
            *status_out = status == SHOAL_OK ? SHOAL_ERR_TIMEOUT : status;
        }
        if (*status_out != SHOAL_ERR_TIMEOUT || now_ns >= options->deadline_ns) {
            return true;
        }
        error_clear();
    }
    return false;
}

static shoal_status wait_flag(struct two_channel *channel, _Atomic uint32_t *flag, uint32_t target,
                              const struct wait_options *options)
{
    shoal_status status = SHOAL_OK;
    struct router *router = channel->world->router;
    if (router_is_polled(router) && wait_and_poll(channel, flag, target, options, &status)) {
        return status;
    }
    return flag_wait(flag, target, options);
}

shoal_status two_wait_flag(struct two_channel *channel, const struct collective *collective, int member,
                           _Atomic uint32_t *flag, uint32_t target, const char *missing)
{
    target &= FLAG_MASK;
    if (flag_has_reached(flag, target)) {
        return SHOAL_OK;
    }
    struct waiting waiting = {.channel = channel, .member = member};
    struct wait_options options = {
        .deadline_ns = collective->deadline_ns,
        .is_shared = true,
        .may_spin = channel->base.peers->may_spin,
        .liveness = look_around,
        .liveness_context = &waiting,
        .what = "a member of this host",
    };
    /* If the channel has failed already, do not wait for the first check of the group, after 100 ms. */
    shoal_status status = message_failure(channel->outer);
    if (status == SHOAL_OK) {
        status = wait_flag(channel, flag, target, &options);
    }
    if (status == SHOAL_ERR_TIMEOUT && !message_is_over(channel->outer, collective, /*may_wait=*/true)) {
        /* The group may have failed before: its reason has come by now. */
        shoal_status reason = message_failure(channel->outer);
        status = reason == SHOAL_OK ? status : reason;
    }
    /* What the member did before it failed still counts. */
    if (status != SHOAL_OK && flag_has_reached(flag, target)) {
        error_clear();
        return SHOAL_OK;
    }
    if (status == SHOAL_ERR_TIMEOUT && clock_now_ns() >= collective->deadline_ns) {
        char call[ERROR_TEXT_BYTES];
        return error_set(status, "%s and rank %d %s",
                         transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                         two_world_rank(channel, member), missing);
    }
    return status;
}

#define NOT_DONE "has not done its part"

/* Rings -------------------------------------------------------------------------------------------------- */

static size_t ring_of(const struct two_cells *cells, int local, int slice)
{
    return (size_t)local * (size_t)cells->n_slices + (size_t)slice;
}

static char *fill_cell(const struct two_cells *cells, size_t ring, uint32_t number)
{
    return cells->filled_cells + (ring * TWO_FILL_CELLS + number % TWO_FILL_CELLS) * cells->cell_bytes;
}

static char *result_cell(const struct two_cells *cells, int slice, uint32_t place)
{
    return cells->result_cells + ((size_t)slice * cells->n_results + place) * cells->cell_bytes;
}

shoal_status two_fill_begin(struct two_channel *channel, const struct collective *collective, int slice,
                            char **cell_out)
{
    struct two_cells *cells = channel->cells;
    size_t ring = ring_of(cells, channel->local, slice);
    uint32_t number = cells->filled[slice];
    TRY(two_wait_flag(channel, collective, two_owner(&channel->layout, channel->host, slice),
                      &cells->counters[ring].emptied, number + 1 - TWO_FILL_CELLS, NOT_DONE));
    *cell_out = fill_cell(cells, ring, number);
    return SHOAL_OK;
}

void two_fill_end(struct two_channel *channel, int slice)
{
    struct two_cells *cells = channel->cells;
    flag_set(&cells->counters[ring_of(cells, channel->local, slice)].filled, ++cells->filled[slice]);
}

shoal_status two_empty_begin(struct two_channel *channel, const struct collective *collective, int member,
                             int slice, const char **cell_out)
{
    struct two_cells *cells = channel->cells;
    size_t ring = ring_of(cells, channel->layout.locals[member], slice);
    uint32_t number = cells->emptied[ring];
    TRY(two_wait_flag(channel, collective, member, &cells->counters[ring].filled, number + 1, NOT_DONE));
    *cell_out = fill_cell(cells, ring, number);
    return SHOAL_OK;
}

void two_empty_end(struct two_channel *channel, int member, int slice)
{
    struct two_cells *cells = channel->cells;
    size_t ring = ring_of(cells, channel->layout.locals[member], slice);
    flag_set(&cells->counters[ring].emptied, ++cells->emptied[ring]);
}

shoal_status two_result_begin(struct two_channel *channel, const struct collective *collective, int slice,
                              char **cell_out)
{
    struct two_cells *cells = channel->cells;
    uint32_t number = cells->made_own[slice];
    for (int local = 0; local < channel->layout.n_locals[channel->host]; local++) {
        if (local != channel->local) {
            TRY(two_wait_flag(channel, collective, two_member(&channel->layout, channel->host, local),
                              &cells->counters[ring_of(cells, local, slice)].read,
                              number + 1 - cells->n_results, NOT_DONE));
        }
    }
    *cell_out = result_cell(cells, slice, number % cells->n_results);
    return SHOAL_OK;
}

void two_result_end(struct two_channel *channel, int slice)
{
    struct two_cells *cells = channel->cells;
    flag_set(&cells->made[slice].value, ++cells->made_own[slice]);
}

shoal_status two_read_begin(struct two_channel *channel, const struct collective *collective, int slice,
                            const char **cell_out)
{
    struct two_cells *cells = channel->cells;
    uint32_t number = cells->read[slice];
    TRY(two_wait_flag(channel, collective, two_owner(&channel->layout, channel->host, slice),
                      &cells->made[slice].value, number + 1, NOT_DONE));
    *cell_out = result_cell(cells, slice, number % cells->n_results);
    return SHOAL_OK;
}

void two_read_end(struct two_channel *channel, int slice)
{
    struct two_cells *cells = channel->cells;
    flag_set(&cells->counters[ring_of(cells, channel->local, slice)].read, ++cells->read[slice]);
}

shoal_status two_local_barrier(struct two_channel *channel, const struct collective *collective)
{
    struct two_cells *cells = channel->cells;
    flag_set(&cells->came[channel->local].value, ++cells->n_barriers);
    for (int local = 0; local < channel->layout.n_locals[channel->host]; local++) {
        if (local != channel->local) {
            TRY(two_wait_flag(channel, collective, two_member(&channel->layout, channel->host, local),
                              &cells->came[local].value, cells->n_barriers, NOT_DONE));
        }
    }
    return SHOAL_OK;
}
