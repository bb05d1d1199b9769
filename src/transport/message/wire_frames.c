/* SPDX-License-Identifier: MIT */
/* Memory of frames. Some are kept for later. */
#include <string.h>

#include "base/mem.h"
#include "transport/message/wire_state.h"

/* Frames of the longest message that are kept for later. */
#define SPARE_FRAMES 32
/* Frames of calls with little data are kept too: each collective needs two for every peer. */
#define CALL_FRAME_BYTES ((size_t)512)
#define SPARE_CALL_FRAMES 64

size_t wire_frame_bytes(const struct wire *wire)
{
    return wire->frame_bytes;
}

struct frame *wire_new_frame(struct wire *wire, size_t bytes)
{
    size_t room = bytes <= CALL_FRAME_BYTES    ? CALL_FRAME_BYTES
                  : bytes <= FRAME_SMALL_BYTES ? bytes
                                               : wire->frame_bytes;
    struct frame *frame = NULL;
    if (room == wire->frame_bytes && wire->spare) {
        frame = wire->spare;
        wire->spare = frame->next;
        wire->n_spare--;
    } else if (room == CALL_FRAME_BYTES && wire->spare_calls) {
        frame = wire->spare_calls;
        wire->spare_calls = frame->next;
        wire->n_spare_calls--;
    } else {
        frame = mem_alloc_aligned(sizeof *frame + room, 64);
    }
    if (frame) {
        memset(frame, 0, sizeof *frame);
        frame->room = room;
        frame->head.bytes = (uint32_t)bytes;
    }
    return frame;
}

void wire_free_frame(struct wire *wire, struct frame *frame)
{
    if (frame && frame->room == wire->frame_bytes && wire->n_spare < SPARE_FRAMES) {
        frame->next = wire->spare;
        wire->spare = frame;
        wire->n_spare++;
        return;
    }
    if (frame && frame->room == CALL_FRAME_BYTES && wire->n_spare_calls < SPARE_CALL_FRAMES) {
        frame->next = wire->spare_calls;
        wire->spare_calls = frame;
        wire->n_spare_calls++;
        return;
    }
    mem_free(frame);
}

void wire_free_frames(struct wire *wire, struct frame *first)
{
    while (first) {
        struct frame *frame = first;
        first = frame->next;
        wire_free_frame(wire, frame);
    }
}
