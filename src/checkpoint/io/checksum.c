/* SPDX-License-Identifier: MIT */
/*
 * Checksums by libxxhash: see checksum.h. Whole blocks are summed in place; the library's state is needed only for
 * blocks that arrive in portions. The library allocates the state itself, because its size is not part of the
 * interface.
 */
#include "checkpoint/io/checksum.h"

#include <xxhash.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

uint64_t checksum_block(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

/* Begins a block that comes in portions. */
static shoal_status begin_block(struct checksums *checksums)
{
    if (!checksums->state) {
        checksums->state = XXH3_createState();
    }
    if (!checksums->state || XXH3_64bits_reset(checksums->state) != XXH_OK) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for a checksum");
    }
    return SHOAL_OK;
}

/* Does everything that can fail before so many more bytes are added. */
static shoal_status prepare(struct checksums *checksums, size_t bytes)
{
    size_t n_more = (checksums->state_bytes + bytes) / CHECKSUM_BLOCK_BYTES + 1;
    TRY(mem_grow((void **)&checksums->sums, &checksums->capacity, checksums->n_sums + n_more,
                 sizeof(checksums->sums[0])));
    /* Reset again below, each time that a block begins. */
    return checksums->state ? SHOAL_OK : begin_block(checksums);
}

static void end_block(struct checksums *checksums)
{
    checksums->sums[checksums->n_sums++] = XXH3_64bits_digest(checksums->state);
    checksums->state_bytes = 0;
}

shoal_status checksums_add(struct checksums *checksums, const void *data, size_t bytes)
{
    const char *at = data;
    TRY(prepare(checksums, bytes));
    while (bytes > 0) {
        size_t room = CHECKSUM_BLOCK_BYTES - checksums->state_bytes;
        size_t portion = bytes < room ? bytes : room;
        if (portion == CHECKSUM_BLOCK_BYTES) {
            checksums->sums[checksums->n_sums++] = checksum_block(at, portion);
        } else {
            if (checksums->state_bytes == 0) {
                (void)begin_block(checksums); /* the state is there: this cannot fail */
            }
            (void)XXH3_64bits_update(checksums->state, at, portion);
            checksums->state_bytes += portion;
            if (portion == room) {
                end_block(checksums);
            }
        }
        at += portion;
        bytes -= portion;
    }
    return SHOAL_OK;
}

void checksums_end(struct checksums *checksums)
{
    if (checksums->state_bytes > 0) {
        end_block(checksums); /* checksums_add has made room for it */
    }
}

void checksums_free(struct checksums *checksums)
{
    mem_free(checksums->sums);
    (void)XXH3_freeState(checksums->state);
    *checksums = (struct checksums){0};
}
