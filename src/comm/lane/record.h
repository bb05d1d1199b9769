/* SPDX-License-Identifier: MIT */
/* How a call is packed into the words of a record. */
#ifndef COMM_LANE_RECORD_H
#define COMM_LANE_RECORD_H

#include "comm/lane/recorder.h"

/* kind | dtype << 8 | reduce << 16 | has_counts << 24 | root << 32 */
static inline uint64_t record_pack_what(const struct collective *collective)
{
    return (uint64_t)(uint8_t)collective->kind | (uint64_t)(uint8_t)collective->dtype << 8 |
           (uint64_t)(uint8_t)collective->reduce << 16 | (uint64_t)(collective->send_counts != NULL) << 24 |
           (uint64_t)(uint32_t)collective->root << 32;
}

/* sequence << 32 | state << 24 | algorithm << 16 | -status */
static inline uint64_t record_pack_state(const struct collective *collective, enum record_state state,
                                         shoal_status status)
{
    return (uint64_t)collective->sequence << 32 | (uint64_t)(uint8_t)state << 24 |
           (uint64_t)(uint8_t)collective->algorithm << 16 | (uint16_t) - (int)status;
}

/* what it is for << 32 | the label of its unit */
static inline uint64_t record_pack_purpose(const struct purpose *purpose)
{
    return purpose ? (uint64_t)purpose->id << 32 | purpose->label : 0;
}

/* One call, unpacked. */
struct record_call {
    uint64_t number;
    enum collective_kind kind;
    shoal_dtype dtype;
    shoal_reduce_op reduce;
    bool has_counts;
    int root;
    uint64_t count;
    uint32_t sequence;
    enum record_state state;
    unsigned algorithm; /* 255: none picked yet */
    shoal_status status;
    uint64_t issue_ticks;
    uint64_t start_ticks;
    uint64_t end_ticks;
    enum purpose_id purpose;
    uint32_t unit; /* base/label.h; 0 if there is none */
};

/* False when the record was never used, or is being used again. */
bool record_read(const struct record *record, struct record_call *call_out);

#endif
