/* SPDX-License-Identifier: MIT */
/* Writing and reading records. recorder.h has the argument for the memory orders. */
#include "comm/lane/recorder.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/lane/record.h"

struct recorder *recorder_create(void)
{
    struct recorder *recorder = mem_alloc_aligned(sizeof *recorder, _Alignof(struct recorder));
    if (!recorder) {
        return NULL;
    }
    for (size_t i = 0; i < RECORDER_CALLS; i++) {
        atomic_init(&recorder->records[i].number, 0);
    }
    recorder->begin_ns = clock_now_ns();
    recorder->begin_ticks = clock_ticks();
    return recorder;
}

void recorder_free(struct recorder *recorder)
{
    mem_free(recorder);
}

static uint64_t count_elements(const struct collective *collective, int n_ranks)
{
    if (!collective->send_counts && collective->n_pieces == 1) {
        return collective->pieces[0].count;
    }
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        return collective_bytes(collective, n_ranks);
    }
    uint64_t count = 0;
    if (collective->send_counts) {
        for (int i = 0; i < n_ranks; i++) {
            count += collective->send_counts[i];
        }
        return count;
    }
    for (size_t i = 0; i < collective->n_pieces; i++) {
        count += collective->pieces[i].count;
    }
    return count;
}

/* Release: pairs with the acquire loads of record_read. */
static void store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

struct record_handle recorder_issue(struct recorder *recorder, uint64_t number,
                                    const struct collective *collective, int n_ranks, enum record_state state,
                                    uint64_t issue_ticks, uint64_t start_ticks)
{
    struct record *record = &recorder->records[number % RECORDER_CALLS];
    store(&record->number, 0);
    store(&record->what, record_pack_what(collective));
    store(&record->count, count_elements(collective, n_ranks));
    store(&record->sequence_state, record_pack_state(collective, state, SHOAL_OK));
    store(&record->issue_ticks, issue_ticks);
    store(&record->start_ticks, start_ticks);
    store(&record->end_ticks, 0);
    store(&record->purpose_unit, record_pack_purpose(collective->purpose));
    store(&record->number, number);
    return (struct record_handle){.record = record, .number = number};
}

/* Whether the record is still that of this call. RECORDER_CALLS later calls may take it between this check and the
   stores that follow, and one of them then gets a wrong time or state. That is not worth a lock. */
static bool is_current(struct record_handle handle)
{
    return atomic_load_explicit(&handle.record->number, memory_order_relaxed) == handle.number;
}

void recorder_start(struct record_handle handle, const struct collective *collective, uint64_t start_ticks)
{
    if (is_current(handle)) {
        store(&handle.record->start_ticks, start_ticks);
        store(&handle.record->sequence_state, record_pack_state(collective, RECORD_RUNNING, SHOAL_OK));
    }
}

void recorder_end(struct record_handle handle, const struct collective *collective, shoal_status status,
                  uint64_t end_ticks)
{
    if (is_current(handle)) {
        enum record_state state = status == SHOAL_OK ? RECORD_DONE : RECORD_FAILED;
        store(&handle.record->end_ticks, end_ticks);
        store(&handle.record->sequence_state, record_pack_state(collective, state, status));
    }
}

/* Acquire: pairs with the release stores above. */
static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

bool record_read(const struct record *record, struct record_call *call_out)
{
    uint64_t number = load(&record->number);
    if (number == 0) {
        return false;
    }
    uint64_t what = load(&record->what);
    uint64_t state = load(&record->sequence_state);
    uint64_t purpose = load(&record->purpose_unit);
    *call_out = (struct record_call){.number = number,
                                     .kind = (enum collective_kind)(what & 0xff),
                                     .dtype = (shoal_dtype)(what >> 8 & 0xff),
                                     .reduce = (shoal_reduce_op)(what >> 16 & 0xff),
                                     .has_counts = what >> 24 & 1,
                                     .root = (int)(uint32_t)(what >> 32),
                                     .count = load(&record->count),
                                     .sequence = (uint32_t)(state >> 32),
                                     .state = (enum record_state)(state >> 24 & 0xff),
                                     .algorithm = (unsigned)(state >> 16 & 0xff),
                                     .status = (shoal_status) - (int)(state & 0xffff),
                                     .issue_ticks = load(&record->issue_ticks),
                                     .start_ticks = load(&record->start_ticks),
                                     .end_ticks = load(&record->end_ticks),
                                     .purpose = (enum purpose_id)(purpose >> 32),
                                     .unit = (uint32_t)purpose};
    return load(&record->number) == number;
}
