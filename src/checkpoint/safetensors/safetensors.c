/* SPDX-License-Identifier: MIT */
/*
 * Safetensors files: the header is checked once, data is read on request.
 *
 * Files are read and not mapped. A process that truncates a mapped file kills its readers (SIGBUS), and a library must
 * not die because of what others do to a file. A read that gets fewer bytes is an error like any other. Reading also
 * needs only one copy, to aligned memory of the caller's choice.
 */
#include "shoal/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "checkpoint/io/box.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/header.h"
#include "kernel/kernel.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

struct shoal_safetensors {
    struct safetensors_header header;
    int fd;                    /* -1 for a file in memory */
    const unsigned char *data; /* of a file in memory: byte 0 of the data */
    uint64_t data_begin;       /* of a file with a descriptor: where the data begins in it */
};

/* Reading ---------------------------------------------------------------------------------------------- */

/* Bytes of a tensor, from `offset` in it. */
static shoal_status read_data(const shoal_safetensors *file, const struct safetensors_tensor *tensor,
                              uint64_t offset, void *out, size_t bytes)
{
    if (bytes == 0) {
        return SHOAL_OK;
    }
    if (file->fd < 0) {
        memcpy(out, file->data + tensor->begin + offset, bytes);
        return SHOAL_OK;
    }
    shoal_status status = file_read_at(file->fd, file->data_begin + tensor->begin + offset, out, bytes);
    if (status != SHOAL_OK) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_prefix(status, "tensor %s", safetensors_format_name(text, tensor->name));
    }
    return SHOAL_OK;
}

/* Opening ---------------------------------------------------------------------------------------------- */

/* Files are little-endian; on other machines elements would have to be byte-swapped. */
static shoal_status check_byte_order(void)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return error_set(SHOAL_ERR_UNSUPPORTED, "safetensors files are little-endian, this machine is not");
#else
    return SHOAL_OK;
#endif
}

/* `length` and `text` are what the file begins with. */
static shoal_status parse_text(shoal_safetensors *file, const char *text, size_t header_bytes,
                               uint64_t file_bytes)
{
    file->data_begin = SAFETENSORS_LENGTH_BYTES + header_bytes;
    return safetensors_header_parse(text, header_bytes, file_bytes - file->data_begin, &file->header);
}

static shoal_status parse_memory(shoal_safetensors *file, const unsigned char *data, size_t bytes)
{
    size_t header_bytes = 0;
    TRY(check_byte_order());
    TRY(safetensors_header_length(data, bytes, &header_bytes));
    file->data = data + SAFETENSORS_LENGTH_BYTES + header_bytes;
    return parse_text(file, (const char *)data + SAFETENSORS_LENGTH_BYTES, header_bytes, bytes);
}

static shoal_status measure(int fd, uint64_t *bytes_out)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "%s", strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "is not a regular file");
    }
    *bytes_out = (uint64_t)info.st_size;
    return SHOAL_OK;
}

static shoal_status parse_file(shoal_safetensors *file)
{
    unsigned char length[SAFETENSORS_LENGTH_BYTES] = {0};
    uint64_t file_bytes = 0;
    size_t header_bytes = 0;
    TRY(check_byte_order());
    TRY(measure(file->fd, &file_bytes));
    if (file_bytes >= SAFETENSORS_LENGTH_BYTES) {
        TRY(file_read_at(file->fd, 0, length, sizeof(length)));
    }
    TRY(safetensors_header_length(length, file_bytes, &header_bytes));
    char *text = mem_alloc(header_bytes);
    if (!text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = file_read_at(file->fd, SAFETENSORS_LENGTH_BYTES, text, header_bytes);
    if (status == SHOAL_OK) {
        status = parse_text(file, text, header_bytes, file_bytes);
    }
    mem_free(text);
    return status;
}

static shoal_safetensors *create(int fd)
{
    shoal_safetensors *file = mem_alloc_zeroed(1, sizeof(*file));
    if (file) {
        file->fd = fd;
    }
    return file;
}

shoal_status shoal_safetensors_open_memory(const void *data, size_t bytes, shoal_safetensors **file_out)
{
    error_clear();
    if (!file_out || (!data && bytes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "safetensors_open_memory: %s is NULL",
                         file_out ? "data" : "file_out");
    }
    shoal_safetensors *file = create(-1);
    if (!file) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = parse_memory(file, data, bytes);
    if (status != SHOAL_OK) {
        shoal_safetensors_close(file);
        return error_prefix(status, "safetensors_open_memory");
    }
    *file_out = file;
    return SHOAL_OK;
}

shoal_status shoal_safetensors_open(const char *path, shoal_safetensors **file_out)
{
    error_clear();
    if (!file_out || !path) {
        return error_set(SHOAL_ERR_INVALID, "safetensors_open: %s is NULL", path ? "file_out" : "path");
    }
    /* Without O_NONBLOCK, opening a pipe would wait for its writer. Regular files ignore it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "safetensors_open: %s: %s", path, error_errno_text(errno));
    }
    shoal_safetensors *file = create(fd);
    if (!file) {
        (void)close(fd);
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = parse_file(file);
    if (status != SHOAL_OK) {
        shoal_safetensors_close(file);
        return error_prefix(status, "safetensors_open: %s", path);
    }
    *file_out = file;
    return SHOAL_OK;
}

void shoal_safetensors_close(shoal_safetensors *file)
{
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    safetensors_header_free(&file->header);
    mem_free(file);
}

/* What is in it ---------------------------------------------------------------------------------------- */

int64_t shoal_safetensors_count(const shoal_safetensors *file)
{
    return file ? (int64_t)file->header.n_tensors : 0;
}

static const struct safetensors_tensor *tensor_at(const shoal_safetensors *file, int64_t index)
{
    bool is_there = index >= 0 && index < shoal_safetensors_count(file);
    return is_there ? &file->header.tensors[index] : NULL;
}

/* Gives tensor number `index`, or an error that says why there is none. */
static shoal_status get_tensor(const shoal_safetensors *file, int64_t index,
                               const struct safetensors_tensor **tensor_out)
{
    if (!file) {
        return error_set(SHOAL_ERR_INVALID, "file is NULL");
    }
    *tensor_out = tensor_at(file, index);
    if (!*tensor_out) {
        return error_set(SHOAL_ERR_INVALID,
                         "index: %" PRId64 " is not within the %" PRId64 " tensors of the file", index,
                         shoal_safetensors_count(file));
    }
    return SHOAL_OK;
}

int64_t shoal_safetensors_find(const shoal_safetensors *file, const char *name)
{
    if (!file || !name) {
        return -1;
    }
    const struct safetensors_tensor *tensor = safetensors_header_find(&file->header, name);
    return tensor ? tensor - file->header.tensors : -1;
}

shoal_status shoal_safetensors_get(const shoal_safetensors *file, int64_t index,
                                   shoal_safetensors_info *info_out)
{
    const struct safetensors_tensor *tensor = NULL;
    error_clear();
    shoal_status status = get_tensor(file, index, &tensor);
    if (status != SHOAL_OK) {
        return error_prefix(status, "safetensors_get");
    }
    const shoal_safetensors_info info = {.name = tensor->name,
                                         .dtype = tensor->dtype,
                                         .n_dims = tensor->n_dims,
                                         .shape = tensor->shape,
                                         .bytes = (size_t)(tensor->end - tensor->begin),
                                         .file_offset = file->data_begin + tensor->begin};
    return struct_size_write("safetensors_get: info_out", info_out, sizeof(size_t), &info, sizeof(info));
}

const char *shoal_safetensors_metadata(const shoal_safetensors *file, const char *key)
{
    for (size_t i = 0; file && key && i < file->header.n_pairs; i++) {
        if (strcmp(file->header.pairs[i].key, key) == 0) {
            return file->header.pairs[i].value;
        }
    }
    return NULL;
}

const char *shoal_safetensors_metadata_key(const shoal_safetensors *file, int64_t index)
{
    bool is_there = file && index >= 0 && (size_t)index < file->header.n_pairs;
    return is_there ? file->header.pairs[index].key : NULL;
}

/* Data ------------------------------------------------------------------------------------------------- */

static shoal_status read_range(const shoal_safetensors *file, int64_t index, uint64_t offset, void *data_out,
                               size_t bytes)
{
    const struct safetensors_tensor *tensor = NULL;
    TRY(get_tensor(file, index, &tensor));
    TRY(safetensors_check_range(tensor, offset, bytes));
    if (!data_out && bytes > 0) {
        return error_set(SHOAL_ERR_INVALID, "data_out is NULL");
    }
    return read_data(file, tensor, offset, data_out, bytes);
}

shoal_status shoal_safetensors_read_range(const shoal_safetensors *file, int64_t index, uint64_t offset,
                                          void *data_out, size_t bytes)
{
    error_clear();
    shoal_status status = read_range(file, index, offset, data_out, bytes);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_read_range");
}

/* Boxes ------------------------------------------------------------------------------------------------ */

/*
 * The kernel reads nothing ahead for requests with holes between them, so each would wait for the disk. So it is told
 * about small pieces some time before they are read, and the disk always has several requests.
 */
#define AHEAD_PIECES 64
#define AHEAD_BYTES ((size_t)256 << 10)

struct box_reader {
    const shoal_safetensors *file;
    const struct safetensors_tensor *tensor;
    const struct box *box;
    char *memory;
    char *buffer;
    struct box_piece ahead[AHEAD_PIECES]; /* a ring of those that the kernel was told about */
    size_t n_told;
    size_t n_read;
};

static shoal_status read_piece(const struct box_reader *reader, const struct box_piece *piece)
{
    char *memory = reader->memory + piece->memory_offset;
    if (reader->box->is_direct) {
        return read_data(reader->file, reader->tensor, piece->file_offset, memory, piece->file_bytes);
    }
    TRY(read_data(reader->file, reader->tensor, piece->file_offset, reader->buffer, piece->file_bytes));
    shoal_dtype dtype = box_bits(reader->box);
    kernel_copy_nd(
        dtype, (struct kernel_operand){.data = address_of(memory), .strides = piece->memory_strides}, dtype,
        (struct kernel_operand){.data = address_of(reader->buffer), .strides = piece->file_strides},
        piece->n_dims, piece->shape);
    return SHOAL_OK;
}

/* Reads the oldest piece of the ring. */
static shoal_status read_oldest(struct box_reader *reader)
{
    return read_piece(reader, &reader->ahead[reader->n_read++ % AHEAD_PIECES]);
}

static shoal_status visit_piece(void *context, const struct box_piece *piece)
{
    struct box_reader *reader = context;
    if (reader->file->fd < 0 || piece->file_bytes > AHEAD_BYTES) {
        return read_piece(reader, piece);
    }
    if (reader->n_told - reader->n_read == AHEAD_PIECES) {
        TRY(read_oldest(reader));
    }
    off_t offset = (off_t)(reader->file->data_begin + reader->tensor->begin + piece->file_offset);
    (void)posix_fadvise(reader->file->fd, offset, (off_t)piece->file_bytes, POSIX_FADV_WILLNEED); /* a hint */
    reader->ahead[reader->n_told++ % AHEAD_PIECES] = *piece;
    return SHOAL_OK;
}

static shoal_status walk_pieces(struct box_reader *reader)
{
    TRY(box_walk(reader->box, visit_piece, reader));
    while (reader->n_read < reader->n_told) {
        TRY(read_oldest(reader));
    }
    return SHOAL_OK;
}

static shoal_status read_pieces(struct box_reader *reader)
{
    if (reader->box->buffer_bytes > 0) {
        reader->buffer = mem_alloc(reader->box->buffer_bytes);
        if (!reader->buffer) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = walk_pieces(reader);
    mem_free(reader->buffer);
    return status;
}

static shoal_status read_box(const shoal_safetensors *file, int64_t index, struct box_arguments *arguments,
                             void *data_out)
{
    const struct safetensors_tensor *tensor = NULL;
    struct box box;
    TRY(get_tensor(file, index, &tensor));
    arguments->n_dims = tensor->n_dims;
    arguments->shape = tensor->shape;
    arguments->dtype = tensor->dtype;
    TRY(box_make(arguments, &box));
    if (!data_out && !box.is_empty) {
        return error_set(SHOAL_ERR_INVALID, "data_out is NULL");
    }
    if (arguments->strides && layout_may_self_overlap(box.n_dims, box.length, box.memory_strides)) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "strides: %s may give two elements the same place",
                         layout_format(text, tensor->n_dims, arguments->strides));
    }
    box_plan(&box, BOX_READ_GAP_BYTES, /*must_buffer=*/false);
    struct box_reader reader = {.file = file, .tensor = tensor, .box = &box, .memory = data_out};
    return read_pieces(&reader);
}

shoal_status shoal_safetensors_read_box(const shoal_safetensors *file, int64_t index, const int64_t *begin,
                                        const int64_t *length, void *data_out, const int64_t *strides)
{
    struct box_arguments arguments = {.begin = begin, .length = length, .strides = strides};
    error_clear();
    shoal_status status = read_box(file, index, &arguments, data_out);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_read_box");
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static shoal_status check_booleans(const struct safetensors_tensor *source, const unsigned char *bytes)
{
    for (size_t i = 0; source->dtype == SHOAL_BOOL && i < source->end - source->begin; i++) {
        if (bytes[i] > 1) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, "tensor %s: element %zu of bool is %d, neither 0 nor 1",
                             safetensors_format_name(text, source->name), i, bytes[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status fill(const shoal_safetensors *file, const struct safetensors_tensor *source,
                         shoal_tensor *tensor)
{
    void *address;
    TRY(tensor_host_address(tensor, &address));
    TRY(read_data(file, source, 0, address, (size_t)(source->end - source->begin)));
    TRY(check_booleans(source, address));
    return storage_set_name(tensor->storage, source->name);
}

static shoal_status make_tensor(const shoal_safetensors *file, int64_t index, shoal_tensor **tensor_out)
{
    const struct safetensors_tensor *source = NULL;
    shoal_tensor *tensor;
    TRY(get_tensor(file, index, &source));
    TRY(tensor_create_empty(SHOAL_CPU, source->dtype, source->n_dims, source->shape, &tensor));
    shoal_status status = fill(file, source, tensor);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(tensor);
        return status;
    }
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_tensor *shoal_safetensors_tensor(const shoal_safetensors *file, int64_t index)
{
    shoal_tensor *tensor;
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = make_tensor(file, index, &tensor);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "safetensors_tensor"));
        return NULL;
    }
    return scope_adopt(tensor);
}

static shoal_status find_named(const shoal_safetensors *file, const char *name, int64_t *index_out)
{
    char text[SAFETENSORS_NAME_BYTES];
    char words[NEAREST_BYTES];
    struct nearest nearest;
    if (!file || !name) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", file ? "name" : "file");
    }
    *index_out = shoal_safetensors_find(file, name);
    if (*index_out >= 0) {
        return SHOAL_OK;
    }
    nearest_begin(&nearest, name);
    for (int64_t i = 0; i < shoal_safetensors_count(file); i++) {
        nearest_add(&nearest, file->header.tensors[i].name);
    }
    nearest_describe(&nearest, "tensors", words);
    return error_set(SHOAL_ERR_INVALID, "there is no tensor %s in the file; %s",
                     safetensors_format_name(text, name), words);
}

shoal_tensor *shoal_safetensors_tensor_by_name(const shoal_safetensors *file, const char *name)
{
    int64_t index;
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = find_named(file, name, &index);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "safetensors_tensor_by_name"));
        return NULL;
    }
    return shoal_safetensors_tensor(file, index);
}
