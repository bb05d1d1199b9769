/* SPDX-License-Identifier: MIT */
/* The order of a device's work; the rules are in stream.h. */
#include "device/stream.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/try.h"

/* What is read of a device at a time: some devices need memory of a special kind for that. */
#define STAGED_BYTES_MOST ((size_t)8 << 20)

static _Thread_local struct {
    shoal_device device;
    void *stream; /* NULL: none was entered */
} entered;

shoal_status stream_create_compute(struct device_slot *slot)
{
    slot->own_stream = NULL;
    if (slot->row->streams) {
        TRY(slot->row->streams->create(&slot->own_stream));
    }
    atomic_init(&slot->compute, slot->own_stream);
    return SHOAL_OK;
}

static pthread_mutex_t use_lock = PTHREAD_MUTEX_INITIALIZER; /* held while a compute stream is replaced */

/* Under the lock. */
static shoal_status use(shoal_device device, void *stream)
{
    struct device_slot *slot = device_slot(device);
    void *next = stream ? stream : slot->own_stream;
    void *before = stream_compute(device);
    if (next != before) {
        TRY(stream_order(device, before, next));
        /* Release: pairs with the acquire in stream_compute. */
        atomic_store_explicit(&slot->compute, next, memory_order_release);
    }
    return SHOAL_OK;
}

shoal_status stream_use(shoal_device device, void *stream)
{
    (void)pthread_mutex_lock(&use_lock);
    shoal_status status = use(device, stream);
    (void)pthread_mutex_unlock(&use_lock);
    return status;
}

void *stream_current(shoal_device device)
{
    return entered.stream && entered.device == device ? entered.stream : stream_compute(device);
}

void stream_enter(shoal_device device, void *stream)
{
    entered.device = device;
    entered.stream = stream;
}

void stream_leave(void)
{
    entered.stream = NULL;
}

bool stream_has_entered(void)
{
    return entered.stream != NULL;
}

shoal_status stream_mark(shoal_device device, void **event_out)
{
    *event_out = NULL;
    TRY(device_check_process(device));
    return stream_has_any(device) ? device_row(device)->streams->record(stream_current(device), event_out)
                                  : SHOAL_OK;
}

shoal_status stream_follow(shoal_device device, void *event)
{
    TRY(device_check_process(device));
    return event ? device_row(device)->streams->follow(stream_current(device), event) : SHOAL_OK;
}

void stream_drop(shoal_device device, void *event)
{
    if (event && !device_is_inherited(device)) {
        device_row(device)->streams->drop(event);
    }
}

shoal_status stream_order(shoal_device device, void *before, void *after)
{
    void *event;
    const struct device_streams *streams = device_row(device)->streams;
    TRY(device_row(device)->failure());
    TRY(streams->record(before, &event));
    shoal_status status = streams->follow(after, event);
    streams->drop(event);
    return status;
}

struct question {
    const struct device_row *row;
    void *event;
};

static shoal_status ask(void *context, bool *is_done_out)
{
    const struct question *question = context;
    TRY(question->row->failure());
    return question->row->streams->query(question->event, is_done_out);
}

shoal_status stream_finish(shoal_device device, const struct wait_options *options)
{
    struct question question = {.row = device_row(device)};
    TRY(stream_mark(device, &question.event));
    if (!question.event) {
        return SHOAL_OK;
    }
    shoal_status status = wait_until(ask, &question, options);
    stream_drop(device, question.event);
    return status;
}

/* Copies ----------------------------------------------------------------------------------------------- */

shoal_status stream_write(shoal_device device, struct address target, const void *source, size_t bytes)
{
    if (device == SHOAL_CPU) {
        if (bytes > 0 && address_pointer(target) != source) {
            memcpy(address_pointer(target), source, bytes);
        }
        return SHOAL_OK;
    }
    TRY(device_check_process(device));
    TRY(device_row(device)->failure());
    return device_row(device)->copy_in(address_pointer(target), source, bytes);
}

/* A copy that nobody waits for any more may still be made, so copies are not made to the caller's memory. */
struct staged {
    struct staged *next;
    const struct device_row *row;
    void *stream;
    void *bytes;
};

/* Those that may still be written. They are freed when later work of their stream is done. */
static struct staged *late;
static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;

static void free_staged(struct staged *staged)
{
    if (staged->bytes && staged->row->take_host) {
        staged->row->give_host(staged->bytes);
    } else {
        mem_free(staged->bytes);
    }
    mem_free(staged);
}

static struct staged *make_staged(shoal_device device, size_t bytes)
{
    struct staged *staged = mem_alloc(sizeof *staged);
    if (!staged) {
        return NULL;
    }
    *staged = (struct staged){.row = device_row(device), .stream = stream_current(device)};
    staged->bytes = staged->row->take_host ? staged->row->take_host(bytes) : mem_alloc(bytes);
    if (!staged->bytes) {
        free_staged(staged);
        return NULL;
    }
    return staged;
}

static void keep_late(struct staged *staged)
{
    (void)pthread_mutex_lock(&late_lock);
    while (staged) {
        struct staged *next = staged->next;
        staged->next = late;
        late = staged;
        staged = next;
    }
    (void)pthread_mutex_unlock(&late_lock);
}

/* Takes those of a stream out of the list. */
static struct staged *take_late(const void *stream)
{
    struct staged *taken = NULL;
    (void)pthread_mutex_lock(&late_lock);
    for (struct staged **link = &late; *link;) {
        struct staged *staged = *link;
        if (staged->stream == stream) {
            *link = staged->next;
            staged->next = taken;
            taken = staged;
        } else {
            link = &staged->next;
        }
    }
    (void)pthread_mutex_unlock(&late_lock);
    return taken;
}

static shoal_status read_piece(shoal_device device, void *target, const void *source, size_t bytes,
                               const struct wait_options *options)
{
    struct staged *staged = make_staged(device, bytes);
    if (!staged) {
        TRY(device_row(device)->failure());
        return SHOAL_ERR_NO_MEMORY;
    }
    /* Before the event is recorded: a copy that becomes late meanwhile may lie behind it. */
    staged->next = take_late(staged->stream);
    shoal_status status = device_row(device)->copy_out(staged->bytes, source, bytes);
    status = status == SHOAL_OK ? stream_finish(device, options) : status;
    if (status != SHOAL_OK) {
        keep_late(staged);
        return status;
    }
    memcpy(target, staged->bytes, bytes);
    while (staged) {
        struct staged *next = staged->next;
        free_staged(staged);
        staged = next;
    }
    return SHOAL_OK;
}

shoal_status stream_read(shoal_device device, void *target, struct address source, size_t bytes,
                         const struct wait_options *options)
{
    if (device == SHOAL_CPU) {
        memcpy(target, address_pointer(source), bytes);
        return SHOAL_OK;
    }
    TRY(device_check_process(device));
    TRY(device_row(device)->failure());
    size_t n_read = 0;
    do {
        size_t n_piece = bytes - n_read < STAGED_BYTES_MOST ? bytes - n_read : STAGED_BYTES_MOST;
        TRY(read_piece(device, (char *)target + n_read,
                       address_pointer(address_add(source, (ptrdiff_t)n_read)), n_piece, options));
        n_read += n_piece;
    } while (n_read < bytes);
    return SHOAL_OK;
}

void stream_begin_child(void)
{
    (void)pthread_mutex_init(&use_lock, NULL);
    (void)pthread_mutex_init(&late_lock, NULL);
    late = NULL; /* what the parent's device may still write is the parent's */
}
