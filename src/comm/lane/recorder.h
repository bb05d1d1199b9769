/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder of a group keeps its last calls. It shows what the ranks were doing, afterwards or, from another
 * thread, while a call hangs.
 *
 * A call costs a dozen stores. A record is eight words, each atomic and each written by one thread at a time: whoever
 * issues the call, then whoever carries it. A dump copies the words and drops a record that was overwritten meanwhile,
 * which its `number` shows: it is cleared before the others are changed and set after them, and every store releases
 * and every load of the dump acquires, so that a dump that saw a word of the later call sees at its second look that
 * the number is no longer the earlier one.
 */
#ifndef COMM_LANE_RECORDER_H
#define COMM_LANE_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/world.h"
#include "transport/collective.h"

#define RECORDER_CALLS 128

enum record_state {
#define RECORD_STATE(NAME, name) RECORD_##NAME,
#include "comm/lane/record_states.def"
#undef RECORD_STATE
    RECORD_STATE_COUNT
};

struct record {
    _Alignas(64) _Atomic uint64_t number; /* of the call on this rank, from 1; 0 while it changes */
    _Atomic uint64_t what;                /* record_pack_what */
    _Atomic uint64_t count; /* elements over all pieces, or over all ranks with counts; of a window bytes */
    _Atomic uint64_t sequence_state; /* record_pack_state */
    _Atomic uint64_t issue_ticks;    /* clock_ticks, here and below */
    _Atomic uint64_t start_ticks;    /* 0 until that happens, here and below */
    _Atomic uint64_t end_ticks;
    _Atomic uint64_t purpose_unit; /* record_pack_purpose */
};

struct recorder {
    struct record records[RECORDER_CALLS];
    /* One instant in both units, to convert ticks to times. */
    uint64_t begin_ticks;
    int64_t begin_ns;
};

struct recorder *recorder_create(void); /* NULL if memory runs out */
void recorder_free(struct recorder *recorder);

/* A record, and the call that it was for. A record that another call has taken since is not changed. */
struct record_handle {
    struct record *record;
    uint64_t number;
};

/*
 * Records a call. `number` is that of the call, unique and counted from 1; records are ordered by it. start_ticks is 0
 * if no thread has begun to carry the call.
 */
struct record_handle recorder_issue(struct recorder *recorder, uint64_t number,
                                    const struct collective *collective, int n_ranks, enum record_state state,
                                    uint64_t issue_ticks, uint64_t start_ticks);
void recorder_start(struct record_handle handle, const struct collective *collective, uint64_t start_ticks);
void recorder_end(struct record_handle handle, const struct collective *collective, shoal_status status,
                  uint64_t end_ticks);

#endif
