/* SPDX-License-Identifier: MIT */
/*
 * Writes safetensors files. The creator of a file writes its header and sets its size; from then on every writer with
 * the same layout knows where each tensor lies, and writes there. A writer that has failed once cannot finish: the
 * system may have dropped what it could not store, and would not report that a second time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/box.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/path.h"
#include "checkpoint/safetensors/layout.h"
#include "device/device.h"
#include "kernel/kernel.h"
#include "shoal/safetensors.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

struct shoal_safetensors_writer {
    struct file file;
    shoal_safetensors_layout *layout; /* one reference */
    _Atomic bool has_failed;
    bool is_finished;
};

/* Making ----------------------------------------------------------------------------------------------- */

void shoal_safetensors_writer_close(shoal_safetensors_writer *writer)
{
    if (!writer) {
        return;
    }
    file_close(&writer->file);
    shoal_safetensors_layout_free(writer->layout);
    mem_free(writer);
}

static shoal_status begin_file(const char *path, shoal_safetensors_writer *writer)
{
    TRY(file_create(path, &writer->file));
    TRY(file_write(&writer->file, 0, writer->layout->header, writer->layout->header_bytes));
    return file_resize(&writer->file, writer->layout->file_bytes);
}

/* Checks that the file that was joined has the size and the header of this writer's layout. */
static shoal_status compare_header(const shoal_safetensors_writer *writer)
{
    const shoal_safetensors_layout *layout = writer->layout;
    struct stat info;
    char piece[4096];
    if (fstat(writer->file.fd, &info) != 0) {
        return path_fail(writer->file.path, "stat", errno);
    }
    if ((uint64_t)info.st_size != layout->file_bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "%.240s: has %" PRIu64 " bytes, but a file of this layout has %" PRIu64,
                         writer->file.path, (uint64_t)info.st_size, layout->file_bytes);
    }
    for (size_t at = 0; at < layout->header_bytes; at += sizeof piece) {
        size_t left = layout->header_bytes - at;
        size_t bytes = left < sizeof piece ? left : sizeof piece;
        shoal_status status = file_read_at(writer->file.fd, at, piece, bytes);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%.240s", writer->file.path);
        }
        if (memcmp(piece, layout->header + at, bytes) != 0) {
            return error_set(
                SHOAL_ERR_INVALID,
                "%.240s: was created with another layout (bytes %zu to %zu of the header differ)",
                writer->file.path, at, at + bytes);
        }
    }
    return SHOAL_OK;
}

static shoal_status join_file(const char *path, shoal_safetensors_writer *writer)
{
    TRY(file_join(path, &writer->file));
    return compare_header(writer);
}

static shoal_status make_writer(const char *path, shoal_safetensors_layout *layout,
                                shoal_status (*open_file)(const char *path, shoal_safetensors_writer *writer),
                                shoal_safetensors_writer **writer_out)
{
    if (!path || !layout || !writer_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", !path ? "path" : !layout ? "layout" : "writer_out");
    }
    shoal_safetensors_writer *writer = mem_alloc_zeroed(1, sizeof(*writer));
    if (!writer) {
        return SHOAL_ERR_NO_MEMORY;
    }
    writer->file = (struct file){.fd = -1, .directory_fd = -1};
    shoal_status status = safetensors_layout_fix(layout);
    if (status == SHOAL_OK) {
        writer->layout = layout;
        status = open_file(path, writer);
    }
    if (status != SHOAL_OK) {
        shoal_safetensors_writer_close(writer);
        return status;
    }
    *writer_out = writer;
    return SHOAL_OK;
}

shoal_status shoal_safetensors_writer_create(const char *path, shoal_safetensors_layout *layout,
                                             shoal_safetensors_writer **writer_out)
{
    error_clear();
    shoal_status status = make_writer(path, layout, begin_file, writer_out);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_writer_create");
}

shoal_status shoal_safetensors_writer_join(const char *writer_path, shoal_safetensors_layout *layout,
                                           shoal_safetensors_writer **writer_out)
{
    error_clear();
    shoal_status status = make_writer(writer_path, layout, join_file, writer_out);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_writer_join");
}

const char *shoal_safetensors_writer_path(const shoal_safetensors_writer *writer)
{
    return writer ? writer->file.path : NULL;
}

/* Writing ---------------------------------------------------------------------------------------------- */

static shoal_status check_writer(const shoal_safetensors_writer *writer)
{
    if (!writer) {
        return error_set(SHOAL_ERR_INVALID, "writer is NULL");
    }
    if (writer->is_finished) {
        return error_set(SHOAL_ERR_STATE, "%.240s: the writer has finished", writer->file.path);
    }
    return SHOAL_OK;
}

static shoal_status get_tensor(const shoal_safetensors_writer *writer, int64_t index,
                               const struct safetensors_tensor **tensor_out)
{
    TRY(check_writer(writer));
    if (index < 0 || index >= (int64_t)writer->layout->n_tensors) {
        return error_set(SHOAL_ERR_INVALID, "index: %" PRId64 " is not within the %zu tensors of the layout",
                         index, writer->layout->n_tensors);
    }
    *tensor_out = &writer->layout->tensors[index];
    return SHOAL_OK;
}

static shoal_status write_data(shoal_safetensors_writer *writer, const struct safetensors_tensor *tensor,
                               uint64_t offset, const void *data, size_t bytes)
{
    shoal_status status =
        file_write(&writer->file, writer->layout->header_bytes + tensor->begin + offset, data, bytes);
    if (status != SHOAL_OK) {
        char text[SAFETENSORS_NAME_BYTES];
        atomic_store(&writer->has_failed, true);
        return error_prefix(status, "tensor %s", safetensors_format_name(text, tensor->name));
    }
    return SHOAL_OK;
}

static shoal_status write_range(shoal_safetensors_writer *writer, int64_t index, uint64_t offset,
                                const void *data, size_t bytes)
{
    const struct safetensors_tensor *tensor = NULL;
    TRY(get_tensor(writer, index, &tensor));
    TRY(safetensors_check_range(tensor, offset, bytes));
    if (!data && bytes > 0) {
        return error_set(SHOAL_ERR_INVALID, "data is NULL");
    }
    return write_data(writer, tensor, offset, data, bytes);
}

shoal_status shoal_safetensors_write(shoal_safetensors_writer *writer, int64_t index, uint64_t offset,
                                     const void *data, size_t bytes)
{
    error_clear();
    shoal_status status = write_range(writer, index, offset, data, bytes);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_write");
}

/* Boxes ------------------------------------------------------------------------------------------------ */

struct box_writer {
    shoal_safetensors_writer *writer;
    const struct safetensors_tensor *tensor;
    const struct box *box;
    const char *memory;
    char *buffer;
    shoal_dtype dtype; /* that elements are moved as */
};

static shoal_status write_piece(void *context, const struct box_piece *piece)
{
    const struct box_writer *box_writer = context;
    const char *memory = box_writer->memory + piece->memory_offset;
    if (!box_writer->box->is_direct) {
        kernel_copy_nd(
            box_writer->dtype,
            (struct kernel_operand){.data = address_of(box_writer->buffer), .strides = piece->file_strides},
            box_writer->dtype,
            (struct kernel_operand){.data = address_of(memory), .strides = piece->memory_strides},
            piece->n_dims, piece->shape);
        memory = box_writer->buffer;
    }
    return write_data(box_writer->writer, box_writer->tensor, piece->file_offset, memory, piece->file_bytes);
}

static shoal_status write_pieces(struct box_writer *box_writer)
{
    if (box_writer->box->buffer_bytes > 0) {
        box_writer->buffer = mem_alloc(box_writer->box->buffer_bytes);
        if (!box_writer->buffer) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = box_walk(box_writer->box, write_piece, box_writer);
    mem_free(box_writer->buffer);
    return status;
}

static shoal_status write_box(shoal_safetensors_writer *writer, int64_t index,
                              struct box_arguments *arguments, const void *data, bool makes_booleans)
{
    const struct safetensors_tensor *tensor = NULL;
    struct box box;
    TRY(get_tensor(writer, index, &tensor));
    arguments->n_dims = tensor->n_dims;
    arguments->shape = tensor->shape;
    arguments->dtype = tensor->dtype;
    TRY(box_make(arguments, &box));
    if (!data && !box.is_empty) {
        return error_set(SHOAL_ERR_INVALID, "data is NULL");
    }
    bool is_boolean = makes_booleans && tensor->dtype == SHOAL_BOOL;
    shoal_dtype dtype = is_boolean ? SHOAL_BOOL : box_bits(&box);
    box_plan(&box, 0, is_boolean);
    struct box_writer box_writer = {
        .writer = writer, .tensor = tensor, .box = &box, .memory = data, .dtype = dtype};
    return write_pieces(&box_writer);
}

shoal_status shoal_safetensors_write_box(shoal_safetensors_writer *writer, int64_t index,
                                         const int64_t *begin, const int64_t *length, const void *data,
                                         const int64_t *strides)
{
    struct box_arguments arguments = {.begin = begin, .length = length, .strides = strides};
    error_clear();
    shoal_status status = write_box(writer, index, &arguments, data, /*makes_booleans=*/false);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_write_box");
}

/* Finishing -------------------------------------------------------------------------------------------- */

static shoal_status finish(shoal_safetensors_writer *writer)
{
    TRY(check_writer(writer));
    if (atomic_load(&writer->has_failed)) {
        return error_set(SHOAL_ERR_STATE, "%.240s: not all of it could be written", writer->file.path);
    }
    shoal_status status = writer->file.target ? file_commit(&writer->file) : file_sync(&writer->file);
    if (status != SHOAL_OK) {
        atomic_store(&writer->has_failed, true);
        return status;
    }
    writer->is_finished = true;
    return SHOAL_OK;
}

shoal_status shoal_safetensors_writer_finish(shoal_safetensors_writer *writer)
{
    error_clear();
    shoal_status status = finish(writer);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_writer_finish");
}

/* Saving ----------------------------------------------------------------------------------------------- */

struct saved {
    const char *path;
    const char *const *names;
    shoal_tensor *const *tensors;
    size_t n_tensors;
    const char *const *metadata;
};

static shoal_status check_saved(const struct saved *saved)
{
    if (!saved->path) {
        return error_set(SHOAL_ERR_INVALID, "path is NULL");
    }
    if (saved->n_tensors > 0 && (!saved->names || !saved->tensors)) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", saved->names ? "tensors" : "names");
    }
    for (size_t i = 0; i < saved->n_tensors; i++) {
        if (!saved->tensors[i]) {
            return error_set(SHOAL_ERR_INVALID, "tensors[%zu] is NULL", i);
        }
    }
    TRY(handle_check_list("tensor", saved->tensors, saved->n_tensors));
    for (size_t i = 0; i < saved->n_tensors; i++) {
        shoal_device device = shoal_tensor_device(saved->tensors[i]);
        if (!device_has_data(device)) {
            return error_set(SHOAL_ERR_INVALID, "tensors[%zu]: is on the device %s and has no data", i,
                             device_name(device));
        }
        if (!device_is_host(device)) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "tensors[%zu]: is on device %s, not in memory of the host", i,
                             device_name(device));
        }
    }
    return SHOAL_OK;
}

static shoal_status describe(const struct saved *saved, shoal_safetensors_layout *layout)
{
    for (size_t i = 0; i < saved->n_tensors; i++) {
        const shoal_tensor *tensor = saved->tensors[i];
        TRY(shoal_safetensors_layout_add(layout, saved->names[i], tensor->layout.shape, tensor->layout.n_dims,
                                         tensor->dtype));
    }
    for (const char *const *pair = saved->metadata; pair && pair[0]; pair += 2) {
        TRY(shoal_safetensors_layout_add_metadata(layout, pair[0], pair[1]));
    }
    return SHOAL_OK;
}

static shoal_status write_tensors(const struct saved *saved, shoal_safetensors_writer *writer)
{
    for (size_t i = 0; i < saved->n_tensors; i++) {
        const shoal_tensor *tensor = saved->tensors[i];
        struct box_arguments arguments = {.strides = tensor->layout.strides};
        void *address;
        shoal_status status = tensor_wait_readable(tensor);
        if (status == SHOAL_OK) {
            status = tensor_host_address(tensor, &address);
        }
        if (status == SHOAL_OK) {
            status = write_box(writer, (int64_t)i, &arguments, address, /*makes_booleans=*/true);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "tensors[%zu]", i);
        }
    }
    return SHOAL_OK;
}

static shoal_status save_with(const struct saved *saved, shoal_safetensors_layout *layout)
{
    shoal_safetensors_writer *writer;
    TRY(describe(saved, layout));
    TRY(make_writer(saved->path, layout, begin_file, &writer));
    shoal_status status = write_tensors(saved, writer);
    if (status == SHOAL_OK) {
        status = finish(writer);
    }
    shoal_safetensors_writer_close(writer);
    return status;
}

static shoal_status save(const struct saved *saved)
{
    shoal_safetensors_layout *layout;
    TRY(check_saved(saved));
    TRY(shoal_safetensors_layout_create(&layout));
    shoal_status status = save_with(saved, layout);
    shoal_safetensors_layout_free(layout);
    return status;
}

shoal_status shoal_safetensors_save(const char *path, const char *const *names, shoal_tensor *const *tensors,
                                    size_t n_tensors, const char *const *metadata)
{
    const struct saved saved = {
        .path = path, .names = names, .tensors = tensors, .n_tensors = n_tensors, .metadata = metadata};
    error_clear();
    shoal_status status = save(&saved);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_save");
}
