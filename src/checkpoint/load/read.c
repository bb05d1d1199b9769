/* SPDX-License-Identifier: MIT */
/*
 * Moves bytes from files into parts: see load/read.h.
 *
 * In the file a piece is a tensor of its own, row-major. The wanted part of it is a box (checkpoint/io/box.h), which is
 * read directly if both sides are contiguous, and through the buffer otherwise. load_reader_look has read the bytes
 * before, so they are in the page cache, and reading them again costs one copy.
 */
#include "checkpoint/load/read.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/box.h"
#include "checkpoint/io/checksum.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

_Static_assert(BOX_BUFFER_BYTES >= CHECKSUM_BLOCK_BYTES, "one buffer serves both");

/* Boxes ------------------------------------------------------------------------------------------------ */

/* The box of a move in its piece. If `strides` is NULL, memory is contiguous. */
static shoal_status make_box(const struct load_reader *reader, const struct load_move *move,
                             const int64_t *strides, struct box *box_out)
{
    const struct load_want *want = &reader->wants[move->want];
    int64_t begin[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < want->tensor->n_dims; i++) {
        begin[i] = move->region.begin[i] - move->piece->region.begin[i];
    }
    const struct box_arguments arguments = {.n_dims = want->tensor->n_dims,
                                            .shape = move->piece->region.length,
                                            .dtype = want->tensor->dtype,
                                            .begin = begin,
                                            .length = move->region.length,
                                            .strides = strides};
    TRY(box_make(&arguments, box_out));
    box_plan(box_out, BOX_READ_GAP_BYTES, /*must_buffer=*/want->dtype != want->tensor->dtype);
    return SHOAL_OK;
}

/* Making ----------------------------------------------------------------------------------------------- */

static shoal_status add_moves(struct load_reader *reader, size_t number)
{
    const struct load_want *want = &reader->wants[number];
    const struct index_tensor *tensor = want->tensor;
    for (size_t i = 0; i < tensor->n_pieces; i++) {
        struct load_move move = {.want = number, .piece = &tensor->pieces[i]};
        if (!region_intersect(&want->region, &tensor->pieces[i].region, tensor->n_dims, &move.region)) {
            continue;
        }
        TRY(mem_grow((void **)&reader->moves, &reader->move_capacity, reader->n_moves + 1,
                     sizeof(reader->moves[0])));
        reader->moves[reader->n_moves++] = move;
    }
    return SHOAL_OK;
}

static int compare_moves(const void *a, const void *b)
{
    const struct load_move *first = a;
    const struct load_move *second = b;
    const struct index_piece *one = first->piece;
    const struct index_piece *other = second->piece;
    int order = (one->file > other->file) - (one->file < other->file);
    order = order ? order : (one->at > other->at) - (one->at < other->at);
    return order ? order : (first->want > second->want) - (first->want < second->want);
}

static shoal_status make_files(struct load_reader *reader, const struct load_source *source)
{
    const struct checkpoint_index *index = source->index;
    reader->files = mem_alloc_zeroed(index->n_files + 1, sizeof(reader->files[0]));
    if (!reader->files) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < reader->n_moves; i++) {
        size_t number = reader->moves[i].piece->file;
        if (reader->files[number].path) {
            continue;
        }
        struct load_file file;
        TRY(load_file_make(source->directory, &index->files[number], source->is_foreign ? NULL : index->id,
                           source->skips_sums, &file));
        file.stays_open = reader->n_files++ < LOAD_OPEN_FILES;
        reader->files[number] = file;
    }
    reader->n_files = index->n_files;
    return SHOAL_OK;
}

struct marker {
    struct load_file *file;
    uint64_t at; /* of the piece */
};

static shoal_status mark_piece(void *context, const struct box_piece *piece)
{
    const struct marker *marker = context;
    load_file_mark(marker->file, marker->at + piece->file_offset, piece->file_bytes);
    return SHOAL_OK;
}

static shoal_status mark_moves(struct load_reader *reader)
{
    for (size_t i = 0; i < reader->n_moves; i++) {
        const struct load_move *move = &reader->moves[i];
        struct marker marker = {.file = &reader->files[move->piece->file], .at = move->piece->at};
        struct box box;
        TRY(make_box(reader, move, NULL, &box));
        TRY(box_walk(&box, mark_piece, &marker));
    }
    return SHOAL_OK;
}

static shoal_status fill_reader(struct load_reader *reader, const struct load_source *source, size_t n_wants)
{
    reader->buffer = mem_alloc(BOX_BUFFER_BYTES);
    if (!reader->buffer) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_wants; i++) {
        TRY(add_moves(reader, i));
    }
    if (reader->n_moves > 0) {
        qsort(reader->moves, reader->n_moves, sizeof(reader->moves[0]), compare_moves);
    }
    TRY(make_files(reader, source));
    return mark_moves(reader);
}

shoal_status load_reader_make(const struct load_source *source, struct load_want *wants, size_t n_wants,
                              struct load_reader *reader_out)
{
    struct load_reader reader = {.wants = wants};
    shoal_status status = fill_reader(&reader, source, n_wants);
    if (status != SHOAL_OK) {
        reader.n_files = reader.files ? source->index->n_files : 0;
        load_reader_free(&reader);
        return status;
    }
    *reader_out = reader;
    return SHOAL_OK;
}

void load_reader_free(struct load_reader *reader)
{
    for (size_t i = 0; i < reader->n_files; i++) {
        load_file_free(&reader->files[i]);
    }
    mem_free(reader->files);
    mem_free(reader->moves);
    mem_free(reader->buffer);
    *reader = (struct load_reader){0};
}

/* Looking ---------------------------------------------------------------------------------------------- */

shoal_status load_reader_look(struct load_reader *reader)
{
    for (size_t i = 0; i < reader->n_files; i++) {
        if (reader->files[i].is_used) {
            TRY(load_file_look(&reader->files[i], reader->buffer));
        }
    }
    return SHOAL_OK;
}

/* Reading ---------------------------------------------------------------------------------------------- */

struct mover {
    const struct load_reader *reader;
    const struct load_want *want;
    const struct box *box;
    struct load_file *file;
    uint64_t at;  /* of the piece */
    char *memory; /* of the box's first element */
};

static shoal_status move_piece(void *context, const struct box_piece *piece)
{
    const struct mover *mover = context;
    const struct box *box = mover->box;
    uint64_t at = mover->at + piece->file_offset;
    if (box->is_direct) {
        return load_file_read(mover->file, at, mover->memory + piece->memory_offset, piece->file_bytes);
    }
    shoal_dtype from = mover->want->tensor->dtype;
    shoal_dtype to = mover->want->dtype;
    /* The offsets of boxes count bytes of elements of the file's dtype. */
    int64_t offset = piece->memory_offset / (int64_t)dtype_bytes(from) * (int64_t)dtype_bytes(to);
    TRY(load_file_read(mover->file, at, mover->reader->buffer, piece->file_bytes));
    if (from == to) {
        from = to = box_bits(box);
    }
    kernel_copy_nd(
        to,
        (struct kernel_operand){.data = address_of(mover->memory + offset), .strides = piece->memory_strides},
        from,
        (struct kernel_operand){.data = address_of(mover->reader->buffer), .strides = piece->file_strides},
        piece->n_dims, piece->shape);
    return SHOAL_OK;
}

static shoal_status read_move(struct load_reader *reader, const struct load_move *move)
{
    const struct load_want *want = &reader->wants[move->want];
    struct box box;
    int64_t offset = 0;
    for (int i = 0; i < want->tensor->n_dims; i++) {
        offset += (move->region.begin[i] - want->region.begin[i]) * want->part.strides[i];
    }
    TRY(make_box(reader, move, want->part.strides, &box));
    struct mover mover = {.reader = reader,
                          .want = want,
                          .box = &box,
                          .file = &reader->files[move->piece->file],
                          .at = move->piece->at,
                          .memory = (char *)want->part.data + offset * (int64_t)dtype_bytes(want->dtype)};
    return box_walk(&box, move_piece, &mover);
}

shoal_status load_reader_read(struct load_reader *reader)
{
    for (size_t i = 0; i < reader->n_moves; i++) {
        size_t file = reader->moves[i].piece->file;
        TRY(read_move(reader, &reader->moves[i]));
        if (i + 1 == reader->n_moves || reader->moves[i + 1].piece->file != file) {
            load_file_done(&reader->files[file]);
        }
    }
    return SHOAL_OK;
}
