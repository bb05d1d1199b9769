/* SPDX-License-Identifier: MIT */
/*
 * Windows: a block of shared memory that the group fills together, once per generation, and for each member a flag that
 * counts the generations it has released. The channel does the gather itself (transport/shm/window.c).
 *
 * A gather gets its number and is handed to the lane under one lock, so that the numbers increase in the lane's order.
 * Releasing takes a different lock, because it must not wait for a gather that waits for the release.
 *
 * The bytes of a window on a device are memory that all members have mapped, too; its flags stay in host memory.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "comm/group/owned.h"
#include "comm/call/shared.h"
#include "comm/call/shared_device.h"
#include "comm/call/window.h"
#include "comm/group/world.h"
#include "device/stream.h"
#include "shoal/window.h"
#include "sharedmem/flag.h"
#include "sharedmem/segment.h"

struct shoal_window {
    struct owned owned;        /* first: the world's list */
    struct shoal_group *group; /* a reference: it may be closed before the window is freed */
    struct shoal_world *world;
    struct window_area area;
    const void *data;           /* read-only; an address of the device */
    _Atomic uint32_t *released; /* this rank's flag */
    pthread_mutex_t gather_lock;
    pthread_mutex_t release_lock;
    _Atomic uint64_t n_gathers;  /* generations begun; written under gather_lock */
    _Atomic uint64_t n_released; /* written under release_lock */
    /* The flags, and on the CPU the window's bytes before them. One of these is NULL. */
    struct segment *segment;
    void *alone; /* in a world without peers */
    /* The bytes of a window on a device. */
    struct shared_memory *on_device;
};

bool group_has_windows(const shoal_group *group, shoal_device device)
{
    const struct transport *transport = group->peers.transport;
    const struct transport_memory *memory = transport->memory;
    if (!transport->has_peers || !memory || !memory->has_windows) {
        return !transport->has_peers;
    }
    return device_is_host(device) || (memory->is_on_devices && device_row(device)->share_create);
}

/* Creating --------------------------------------------------------------------------------------------- */

static void window_destroy(struct owned *owned)
{
    struct shoal_window *window = (struct shoal_window *)owned;
    stream_drop(window->area.device,
                atomic_load_explicit(&window->area.released_event, memory_order_relaxed));
    shared_device_free(window->on_device);
    segment_unref(window->segment);
    mem_free(window->alone);
    (void)pthread_mutex_destroy(&window->gather_lock);
    (void)pthread_mutex_destroy(&window->release_lock);
    group_unref(window->group);
    mem_free(window);
}

/* Host memory of a window: its bytes in whole pages, none if they are on a device, then the flags, then what the members
   need to map memory of a device. */
struct window_layout {
    size_t flags_at;
    size_t descriptor_at;
    size_t total;
};

static shoal_status lay_out(const struct shoal_window *window, struct window_layout *layout_out)
{
    size_t flags_bytes =
        (size_t)window->group->peers.n_ranks * WINDOW_RELEASED_STRIDE * sizeof(*window->released);
    bool is_host = device_is_host(window->area.device);
    bool fits = shared_round_to_pages(window->area.bytes, &layout_out->flags_at);
    layout_out->flags_at = is_host ? layout_out->flags_at : 0;
    layout_out->descriptor_at = layout_out->flags_at + flags_bytes;
    fits = fits && shared_round_to_pages(layout_out->descriptor_at + DEVICE_SHARE_BYTES, &layout_out->total);
    return fits ? SHOAL_OK
                : error_set(SHOAL_ERR_NO_MEMORY, "%zu bytes are more than memory can hold",
                            window->area.bytes);
}

/* `base` is the memory that was laid out. */
static void place(struct shoal_window *window, const struct window_layout *layout, char *base)
{
    window->area.released = (_Atomic uint32_t *)(void *)(base + layout->flags_at);
    window->released = window->area.released + (size_t)window->group->peers.rank * WINDOW_RELEASED_STRIDE;
    if (window->on_device) {
        window->area.writable = shared_device_data(window->on_device);
        window->data = window->area.writable;
    } else {
        window->area.writable = base;
    }
}

static shoal_status allocate_alone(struct shoal_window *window)
{
    struct window_layout layout;
    shoal_status status = lay_out(window, &layout);
    if (status != SHOAL_OK) {
        return error_prefix(status, "window_create");
    }
    window->alone = mem_alloc_aligned(layout.total, (size_t)sysconf(_SC_PAGESIZE));
    if (!window->alone) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(window->alone, 0, layout.total);
    window->data = window->alone;
    if (!device_is_host(window->area.device)) {
        TRY(shared_device_allocate(window->area.device, window->area.bytes, &window->on_device));
    }
    place(window, &layout, window->alone);
    return SHOAL_OK;
}

static shoal_status map_window(struct shoal_window *window, struct window_layout *layout_out)
{
    TRY(lay_out(window, layout_out));
    TRY(shared_open(window->group, SHARED_WINDOW, window->area.id, layout_out->total, &window->segment));
    if (device_is_host(window->area.device)) {
        TRY(segment_read_only(window->segment, &window->data));
    }
    segment_touch(window->segment, 0, layout_out->total);
    return SHOAL_OK;
}

/* A member on which something fails still takes part in all collectives, because the others wait there. */
static shoal_status create_together(struct shoal_group *group, const struct shared_request *request,
                                    struct shoal_window *window)
{
    uint32_t id = 0;
    struct window_layout layout = {.total = 0};
    TRY(shared_agree(group, request, &id));
    shoal_status mine = SHOAL_ERR_NO_MEMORY;
    if (window) {
        window->area.id = id;
        mine = map_window(window, &layout);
    }
    if (!device_is_host(request->device)) {
        struct shared_memory *memory = NULL;
        char *descriptor =
            mine == SHOAL_OK ? (char *)segment_base(window->segment) + layout.descriptor_at : NULL;
        TRY(shared_device_open(group, SHARED_WINDOW, id, request->device, request->bytes, descriptor, &mine,
                               &memory));
        window->on_device = memory;
    }
    TRY(shared_confirm(group, SHARED_WINDOW, id, mine));
    place(window, &layout, segment_base(window->segment));
    return SHOAL_OK;
}

static struct shoal_window *window_allocate(struct shoal_group *group, const struct shared_request *request)
{
    struct shoal_window *window = mem_alloc_zeroed(1, sizeof(*window));
    if (window) {
        window->owned.destroy = window_destroy;
        window->group = group_ref(group);
        window->world = group->world;
        window->area.bytes = request->bytes;
        window->area.device = request->device;
        atomic_init(&window->area.given_up, 0);
        atomic_init(&window->area.released_event, NULL);
        window->gather_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        window->release_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        atomic_init(&window->n_gathers, 0);
        atomic_init(&window->n_released, 0);
    }
    return window;
}

static shoal_status check_create(const struct shoal_group *group, shoal_device device,
                                 shoal_window *const *window_out)
{
    if (!group || !window_out) {
        return error_set(SHOAL_ERR_INVALID, "window_create: %s is NULL", group ? "window_out" : "group");
    }
    TRY(group_check_open(group));
    TRY(callback_check_capture("window_create"));
    return shared_device_check(group, device, SHARED_WINDOW);
}

shoal_status shoal_window_create_on(shoal_group *group, size_t bytes, shoal_device device,
                                    shoal_window **window_out)
{
    error_clear();
    TRY(check_create(group, device, window_out));
    const struct shared_request request = {.kind = SHARED_WINDOW, .bytes = bytes, .device = device};
    struct shoal_window *window = window_allocate(group, &request);
    shoal_status status;
    if (group_has_peers(group)) {
        status = create_together(group, &request, window);
    } else {
        status = window ? allocate_alone(window) : SHOAL_ERR_NO_MEMORY;
    }
    if (status != SHOAL_OK || !window) {
        if (window) {
            window_destroy(&window->owned);
        }
        return status;
    }
    owned_list_add(&group->world->owned, &window->owned);
    *window_out = window;
    return SHOAL_OK;
}

shoal_status shoal_window_create(shoal_group *group, size_t bytes, shoal_window **window_out)
{
    return shoal_window_create_on(group, bytes, SHOAL_CPU, window_out);
}

const void *shoal_window_data(const shoal_window *window)
{
    return window ? window->data : NULL;
}

size_t shoal_window_bytes(const shoal_window *window)
{
    return window ? window->area.bytes : 0;
}

void shoal_window_free(shoal_window *window)
{
    if (window) {
        owned_list_remove(&window->world->owned, &window->owned);
        window_destroy(&window->owned);
    }
}

/* Gathering -------------------------------------------------------------------------------------------- */

static shoal_status check_piece(const shoal_window *window, const shoal_window_piece *piece, size_t index)
{
    size_t data_bytes = shoal_dtype_bytes(piece->data_dtype);
    size_t element_bytes = shoal_dtype_bytes(piece->window_dtype);
    if (data_bytes == 0 || element_bytes == 0) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: piece %zu: %s %d is not a dtype", index,
                         data_bytes == 0 ? "data_dtype" : "window_dtype",
                         (int)(data_bytes == 0 ? piece->data_dtype : piece->window_dtype));
    }
    size_t bytes;
    size_t source_bytes;
    if (!mem_multiply(piece->count, element_bytes, &bytes) ||
        !mem_multiply(piece->count, data_bytes, &source_bytes)) {
        return error_set(SHOAL_ERR_INVALID,
                         "window_gather: piece %zu: %zu elements of %s are more than memory can hold", index,
                         piece->count, shoal_dtype_name(piece->window_dtype));
    }
    if (piece->offset > window->area.bytes || bytes > window->area.bytes - piece->offset) {
        return error_set(SHOAL_ERR_INVALID,
                         "window_gather: piece %zu: %zu bytes at offset %zu do not fit into a window of %zu",
                         index, bytes, piece->offset, window->area.bytes);
    }
    if (!piece->data && piece->count > 0) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: piece %zu: data is NULL, but count is %zu", index,
                         piece->count);
    }
    return SHOAL_OK;
}

static shoal_status check_gather(const shoal_window *window, const shoal_window_piece *pieces,
                                 size_t n_pieces)
{
    TRY(callback_check_capture("window_gather"));
    if (!window) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: window is NULL");
    }
    TRY(group_check_open(window->group));
    TRY(world_check_process(window->world));
    if (!pieces && n_pieces > 0) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: pieces is NULL, but n_pieces is %zu", n_pieces);
    }
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(check_piece(window, &pieces[i], i));
    }
    return SHOAL_OK;
}

/* Makes the call for the next generation. Under gather_lock. */
static struct collective next_gather(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                                     uint64_t label, const struct purpose *purpose)
{
    /* Relaxed: written under the lock only. */
    uint64_t n_gathers = atomic_load_explicit(&window->n_gathers, memory_order_relaxed);
    return (struct collective){.kind = COLLECTIVE_WINDOW_GATHER,
                               .dtype = SHOAL_U8,
                               .device = window->area.device,
                               .window = &window->area,
                               .window_pieces = pieces,
                               .n_window_pieces = n_pieces,
                               .label = label,
                               .purpose = purpose,
                               .generation = (uint32_t)(n_gathers + 1)};
}

static void count_gather(shoal_window *window)
{
    /* Release: pairs with the load in release_generation. */
    atomic_fetch_add_explicit(&window->n_gathers, 1, memory_order_release);
}

/* A blocking gather would wait for a release by its own caller, and never end. */
static shoal_status check_was_released(const shoal_window *window)
{
    uint64_t n_gathers = atomic_load_explicit(&window->n_gathers, memory_order_relaxed);
    /* Relaxed: the flag in shared memory orders reads and writes. This check only gives the error sooner. */
    if (atomic_load_explicit(&window->n_released, memory_order_relaxed) < n_gathers) {
        return error_set(
            SHOAL_ERR_STATE,
            "window_gather: this rank has not released generation %" PRIu64
            " of the window: release it first (shoal_window_release), because this call would wait for that",
            n_gathers);
    }
    return SHOAL_OK;
}

/* Under gather_lock. */
static shoal_status gather(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                           uint64_t label)
{
    TRY(check_was_released(window));
    struct collective collective = next_gather(window, pieces, n_pieces, label, NULL);
    FAIL_POINT("window gather");
    TRY(lane_run(window->group->lane, &collective));
    count_gather(window);
    return SHOAL_OK;
}

shoal_status shoal_window_gather(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                                 uint64_t label)
{
    error_clear();
    TRY(check_gather(window, pieces, n_pieces));
    (void)pthread_mutex_lock(&window->gather_lock);
    shoal_status status = gather(window, pieces, n_pieces, label);
    (void)pthread_mutex_unlock(&window->gather_lock);
    return status;
}

/* Under gather_lock. */
static shoal_status issue_gather(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                                 uint64_t label, const struct purpose *purpose,
                                 const struct window_decoder *decoder, shoal_work **work_out)
{
    struct collective collective = next_gather(window, pieces, n_pieces, label, purpose);
    collective.decoder = decoder ? *decoder : (struct window_decoder){.decode = NULL};
    FAIL_POINT("window gather start");
    TRY(lane_start(window->group->lane, &collective, NULL, work_out));
    count_gather(window);
    return SHOAL_OK;
}

static shoal_status start_gather(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                                 uint64_t label, const struct purpose *purpose,
                                 const struct window_decoder *decoder, shoal_work **work_out)
{
    error_clear();
    if (!work_out) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: work_out is NULL");
    }
    TRY(check_gather(window, pieces, n_pieces));
    (void)pthread_mutex_lock(&window->gather_lock);
    shoal_status status = issue_gather(window, pieces, n_pieces, label, purpose, decoder, work_out);
    (void)pthread_mutex_unlock(&window->gather_lock);
    return status;
}

shoal_status shoal_window_gather_start(shoal_window *window, const shoal_window_piece *pieces,
                                       size_t n_pieces, uint64_t label, shoal_work **work_out)
{
    return start_gather(window, pieces, n_pieces, label, NULL, NULL, work_out);
}

shoal_status collectives_window_gather_start(shoal_window *window, const shoal_window_piece *pieces,
                                             size_t n_pieces, const struct purpose *purpose,
                                             const struct window_decoder *decoder, shoal_work **work_out)
{
    return start_gather(window, pieces, n_pieces, 0, purpose, decoder, work_out);
}

/* Prepared gathers -------------------------------------------------------------------------------------- */

shoal_status window_prepare(shoal_window *window, struct shoal_group *group, const struct collective *call,
                            struct lane_work **work_out)
{
    TRY(check_gather(window, call->window_pieces, call->n_window_pieces));
    if (window->group != group) {
        return error_set(SHOAL_ERR_INVALID, "window_gather: the window belongs to another group");
    }
    struct collective collective =
        next_gather(window, call->window_pieces, call->n_window_pieces, call->label, call->purpose);
    collective.timeout_s = call->timeout_s;
    *work_out = lane_prepare(window->group->lane, &collective);
    return *work_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* Under gather_lock. */
static shoal_status issue_gather_again(shoal_window *window, struct lane_work *work)
{
    FAIL_POINT("window gather start");
    /* Relaxed: written under the lock only. */
    uint64_t n_gathers = atomic_load_explicit(&window->n_gathers, memory_order_relaxed);
    lane_prepared_call(work)->generation = (uint32_t)(n_gathers + 1);
    TRY(lane_issue_again(work));
    count_gather(window);
    return SHOAL_OK;
}

shoal_status window_start_again(shoal_window *window, struct lane_work *work)
{
    TRY(world_check_process(window->world)); /* in a forked child the lock may be held for ever */
    TRY(group_check_open(window->group));
    (void)pthread_mutex_lock(&window->gather_lock);
    shoal_status status = issue_gather_again(window, work);
    (void)pthread_mutex_unlock(&window->gather_lock);
    return status;
}

/* Releasing --------------------------------------------------------------------------------------------- */

/*
 * On a device the reads may not have been made yet. The next gather waits for the event, and raises the flag. An event
 * that no gather has taken is behind fewer reads than this one. Without an event nobody may write to the window again.
 */
static shoal_status note_release(shoal_window *window, uint32_t generation)
{
    void *event;
    shoal_status status = stream_mark(window->area.device, &event);
    if (status != SHOAL_OK) {
        struct error_kept text;
        error_keep(&text);
        group_poison(window->group, status, shoal_error_text());
        error_put_back(&text);
        return status;
    }
    /* Release and acquire: each pairs with the other one here and in take_release (transport/shm/window.c); what was
       written before an event was given away is seen by whoever takes it. */
    void *old = atomic_exchange_explicit(&window->area.released_event, event, memory_order_acq_rel);
    stream_drop(window->area.device, old);
    flag_set(&window->area.given_up, generation);
    return SHOAL_OK;
}

/* Under release_lock. */
static shoal_status release_generation(shoal_window *window)
{
    /* Relaxed: written under the lock only. */
    uint64_t n_released = atomic_load_explicit(&window->n_released, memory_order_relaxed);
    /* Acquire: pairs with the release in count_gather: that gather comes before this release. */
    if (n_released == atomic_load_explicit(&window->n_gathers, memory_order_acquire)) {
        return error_set(SHOAL_ERR_STATE, "window_release: %s",
                         n_released == 0 ? "nothing was gathered yet"
                                         : "this generation was released already");
    }
    uint32_t generation = (uint32_t)(n_released + 1);
    if (!device_is_host(window->area.device)) {
        TRY(note_release(window, generation));
    } else {
        /* Releases the caller's reads of the window to the ranks that will write to it. */
        flag_set(window->released, generation);
    }
    atomic_store_explicit(&window->n_released, n_released + 1, memory_order_relaxed);
    return SHOAL_OK;
}

shoal_status shoal_window_release(shoal_window *window)
{
    error_clear();
    if (!window) {
        return error_set(SHOAL_ERR_INVALID, "window_release: window is NULL");
    }
    TRY(group_check_open(window->group));
    TRY(world_check_process(window->world));
    TRY(callback_check_capture("window_release"));
    FAIL_POINT("window release");
    (void)pthread_mutex_lock(&window->release_lock);
    shoal_status status = release_generation(window);
    (void)pthread_mutex_unlock(&window->release_lock);
    return status;
}
