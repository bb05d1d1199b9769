/* SPDX-License-Identifier: MIT */
/* Slices of tensors that come from several ranks: see save/exchange.h. */
#include "checkpoint/save/exchange.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "checkpoint/io/box.h"
#include "checkpoint/save/writer.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

#define SLICE_BYTES ((size_t)8 << 20)
#define SENT_BYTES ((size_t)24 << 20)
#define LEAST_SLICE_BYTES ((size_t)64 << 10)

/* Slices ------------------------------------------------------------------------------------------------- */

/* How a tensor is cut: a slice for each index of the dimensions before `cut`, and for each chunk of dimension `cut`. */
struct cutting {
    const struct save_exchanged *exchanged;
    const struct table_tensor *tensor;
    int cut;
    int64_t chunk;
    int64_t indices[SHOAL_MAX_DIMS]; /* of the next slice */
    uint64_t at;                     /* in the tensor */
};

struct exchange {
    struct save *save;
    save_slice_visit visit;
    void *context;
    size_t slice_bytes;
    size_t next; /* of the save's exchanged tensors; the one before it is being cut */
    struct cutting cutting;
    struct save_job *sources; /* of the save's pieces: those that this rank sends parts of */
    char *sent;
    char *received;
    char *assembled;
    char *buffer;
    size_t *send_counts;
    size_t *receive_counts;
    size_t *offsets;
    shoal_status status; /* of visits; and its text */
    char text[ERROR_TEXT_BYTES];
};

struct slice {
    const struct save_exchanged *exchanged;
    const struct table_tensor *tensor;
    struct region region;
    uint64_t at; /* in the tensor */
    size_t bytes;
};

static void begin_tensor(struct exchange *exchange, const struct save_exchanged *exchanged)
{
    const struct table_tensor *tensor = &exchange->save->table.tensors[exchanged->tensor];
    struct cutting cutting = {.exchanged = exchanged, .tensor = tensor, .cut = tensor->n_dims - 1};
    size_t index_bytes = dtype_bytes(tensor->dtype);
    while (cutting.cut > 0 && index_bytes * (size_t)tensor->shape[cutting.cut] <= exchange->slice_bytes) {
        index_bytes *= (size_t)tensor->shape[cutting.cut];
        cutting.cut--;
    }
    int64_t most = (int64_t)(exchange->slice_bytes / index_bytes);
    int64_t length = tensor->shape[cutting.cut];
    cutting.chunk = most < length ? most : length;
    exchange->cutting = cutting;
}

/* Goes on to the next slice of the tensor. Returns false if there is none. */
static bool advance(struct cutting *cutting)
{
    const struct table_tensor *tensor = cutting->tensor;
    cutting->indices[cutting->cut] += cutting->chunk;
    for (int i = cutting->cut; i >= 0; i--) {
        if (cutting->indices[i] < tensor->shape[i]) {
            return true;
        }
        cutting->indices[i] = 0;
        if (i > 0) {
            cutting->indices[i - 1]++;
        }
    }
    return false;
}

/* Returns false if there are no more. */
static bool next_slice(struct exchange *exchange, struct slice *slice_out)
{
    struct cutting *cutting = &exchange->cutting;
    if (!cutting->tensor) {
        if (exchange->next == exchange->save->n_exchanged) {
            return false;
        }
        begin_tensor(exchange, &exchange->save->exchanged[exchange->next++]);
    }
    const struct table_tensor *tensor = cutting->tensor;
    *slice_out = (struct slice){.exchanged = cutting->exchanged, .tensor = tensor, .at = cutting->at};
    for (int i = 0; i < tensor->n_dims; i++) {
        int64_t left = tensor->shape[i] - cutting->indices[i];
        int64_t most = i < cutting->cut ? 1 : i == cutting->cut ? cutting->chunk : tensor->shape[i];
        slice_out->region.begin[i] = cutting->indices[i];
        slice_out->region.length[i] = left < most ? left : most;
    }
    slice_out->bytes = (size_t)region_count(&slice_out->region, tensor->n_dims) * dtype_bytes(tensor->dtype);
    cutting->at += slice_out->bytes;
    if (!advance(cutting)) {
        cutting->tensor = NULL;
    }
    return true;
}

/* Parts -------------------------------------------------------------------------------------------------- */

static shoal_status put_bytes(void *context, const void *data, size_t bytes)
{
    char **to = context;
    memcpy(*to, data, bytes);
    *to += bytes;
    return SHOAL_OK;
}

/* Makes the job for a part of `source`. */
static struct save_job narrow(const struct save_job *source, const struct region *whole,
                              const struct region *part)
{
    struct save_job job = *source;
    int64_t offset = 0;
    for (int i = 0; i < job.n_dims; i++) {
        offset += (part->begin[i] - whole->begin[i]) * job.strides[i];
        job.shape[i] = part->length[i];
    }
    job.data += offset * (int64_t)dtype_bytes(job.dtype);
    return job;
}

/* Appends everything that this rank has of the slice to what is sent. */
static shoal_status put_parts(struct exchange *exchange, const struct slice *slice, char **to)
{
    const struct save *save = exchange->save;
    size_t first = slice->exchanged->first_piece;
    for (size_t i = first; i < first + slice->exchanged->n_pieces; i++) {
        const struct split_piece *piece = &save->pieces[i];
        struct region both;
        if (piece->rank != save->rank ||
            !region_intersect(&piece->region, &slice->region, slice->tensor->n_dims, &both)) {
            continue;
        }
        struct save_job job = narrow(&exchange->sources[i], &piece->region, &both);
        TRY(save_walk_job(&job, exchange->buffer, put_bytes, to));
    }
    return SHOAL_OK;
}

static shoal_dtype bits_of(shoal_dtype dtype)
{
    struct box box = {.element_bytes = dtype_bytes(dtype)};
    return box_bits(&box);
}

static void count_parts(struct exchange *exchange, const struct slice *slice)
{
    const struct save *save = exchange->save;
    size_t first = slice->exchanged->first_piece;
    for (size_t i = first; i < first + slice->exchanged->n_pieces; i++) {
        struct region both;
        if (region_intersect(&save->pieces[i].region, &slice->region, slice->tensor->n_dims, &both)) {
            exchange->receive_counts[save->pieces[i].rank] +=
                (size_t)region_count(&both, slice->tensor->n_dims) * dtype_bytes(slice->tensor->dtype);
        }
    }
}

/* Parts come rank by rank, those of one rank in the order of pieces. */
static void assemble(struct exchange *exchange, const struct slice *slice)
{
    const struct save *save = exchange->save;
    int n_dims = slice->tensor->n_dims;
    shoal_dtype bits = bits_of(slice->tensor->dtype);
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t part_strides[SHOAL_MAX_DIMS];
    size_t offset = 0;
    for (int rank = 0; rank < save->n_ranks; rank++) {
        exchange->offsets[rank] = offset;
        offset += exchange->receive_counts[rank];
    }
    layout_fill_strides(n_dims, slice->region.length, strides);
    size_t first = slice->exchanged->first_piece;
    for (size_t i = first; i < first + slice->exchanged->n_pieces; i++) {
        struct region both;
        if (!region_intersect(&save->pieces[i].region, &slice->region, n_dims, &both)) {
            continue;
        }
        int64_t place = 0;
        for (int d = 0; d < n_dims; d++) {
            place += (both.begin[d] - slice->region.begin[d]) * strides[d];
        }
        size_t *from = &exchange->offsets[save->pieces[i].rank];
        size_t element_bytes = dtype_bytes(slice->tensor->dtype);
        layout_fill_strides(n_dims, both.length, part_strides);
        kernel_copy_nd(
            bits,
            (struct kernel_operand){.data = address_of(exchange->assembled + (size_t)place * element_bytes),
                                    .strides = strides},
            bits,
            (struct kernel_operand){.data = address_of(exchange->received + *from), .strides = part_strides},
            n_dims, both.length);
        *from += (size_t)region_count(&both, n_dims) * element_bytes;
    }
}

/* Rounds ------------------------------------------------------------------------------------------------- */

static void visit_slice(struct exchange *exchange, const struct slice *slice)
{
    const struct save_place *place = &slice->exchanged->place;
    assemble(exchange, slice);
    const struct save_job job = {.file = place->file,
                                 .at = place->at + slice->at,
                                 .bytes = slice->bytes,
                                 .data = exchange->assembled,
                                 .dtype = SHOAL_U8,
                                 .n_dims = 1,
                                 .shape = {(int64_t)slice->bytes},
                                 .strides = {1}};
    shoal_status status = exchange->visit(exchange->context, &job);
    if (status != SHOAL_OK) {
        exchange->status = status;
        (void)snprintf(exchange->text, sizeof exchange->text, "%s", shoal_error_text());
    }
}

/* *is_last_out: there is nothing left. */
static shoal_status run_round(struct exchange *exchange, bool *is_last_out)
{
    const struct save *save = exchange->save;
    size_t n_ranks = (size_t)save->n_ranks;
    struct slice own = {0};
    char *end = exchange->sent;
    memset(exchange->send_counts, 0, n_ranks * sizeof(size_t));
    memset(exchange->receive_counts, 0, n_ranks * sizeof(size_t));
    *is_last_out = false;
    for (size_t rank = 0; rank < n_ranks && !*is_last_out; rank++) {
        struct slice slice;
        char *begin = end;
        if (!next_slice(exchange, &slice)) {
            *is_last_out = true;
            break;
        }
        TRY(put_parts(exchange, &slice, &end));
        exchange->send_counts[rank] = (size_t)(end - begin);
        if ((int)rank == save->rank) {
            own = slice;
            count_parts(exchange, &slice);
        }
    }
    TRY(shoal_group_all_to_all_v(save->group, exchange->sent, exchange->send_counts, exchange->received,
                                 exchange->receive_counts, SHOAL_U8));
    if (own.tensor && exchange->status == SHOAL_OK) {
        visit_slice(exchange, &own);
    }
    return SHOAL_OK;
}

static shoal_status find_sources(struct exchange *exchange)
{
    struct save *save = exchange->save;
    for (size_t i = 0; i < save->n_exchanged; i++) {
        const struct save_exchanged *exchanged = &save->exchanged[i];
        for (size_t p = exchanged->first_piece; p < exchanged->first_piece + exchanged->n_pieces; p++) {
            const struct split_piece *piece = &save->pieces[p];
            if (piece->rank == save->rank) {
                TRY(save_find_source(save, piece->tensor, &piece->region, &exchange->sources[p]));
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status prepare(struct exchange *exchange)
{
    size_t n_ranks = (size_t)exchange->save->n_ranks;
    size_t bytes = SENT_BYTES / n_ranks;
    bytes = bytes < LEAST_SLICE_BYTES ? LEAST_SLICE_BYTES : bytes < SLICE_BYTES ? bytes : SLICE_BYTES;
    exchange->slice_bytes = bytes;
    exchange->sources = mem_alloc_zeroed(exchange->save->n_pieces, sizeof(exchange->sources[0]));
    exchange->sent = mem_alloc(bytes * n_ranks);
    exchange->received = mem_alloc(bytes);
    exchange->assembled = mem_alloc(bytes);
    exchange->buffer = mem_alloc(BOX_BUFFER_BYTES);
    exchange->send_counts = mem_alloc_zeroed(n_ranks, sizeof(size_t));
    exchange->receive_counts = mem_alloc_zeroed(n_ranks, sizeof(size_t));
    exchange->offsets = mem_alloc_zeroed(n_ranks, sizeof(size_t));
    if (!exchange->sources || !exchange->sent || !exchange->received || !exchange->assembled ||
        !exchange->buffer || !exchange->send_counts || !exchange->receive_counts || !exchange->offsets) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return find_sources(exchange);
}

static shoal_status run_rounds(struct exchange *exchange)
{
    bool is_last = false;
    TRY(agree(exchange->save->group, "save: memory for slices", prepare(exchange)));
    while (!is_last) {
        TRY(run_round(exchange, &is_last));
    }
    /* Set again, because the collectives of later rounds have cleared the text. */
    return exchange->status == SHOAL_OK ? SHOAL_OK : error_set(exchange->status, "%s", exchange->text);
}

shoal_status save_exchange(struct save *save, save_slice_visit visit, void *context)
{
    struct exchange exchange = {.save = save, .visit = visit, .context = context};
    if (save->n_exchanged == 0) {
        return SHOAL_OK;
    }
    shoal_status status = run_rounds(&exchange);
    mem_free(exchange.sources);
    mem_free(exchange.sent);
    mem_free(exchange.received);
    mem_free(exchange.assembled);
    mem_free(exchange.buffer);
    mem_free(exchange.send_counts);
    mem_free(exchange.receive_counts);
    mem_free(exchange.offsets);
    return status;
}
