/* SPDX-License-Identifier: MIT */
/*
 * Constants as text. Elements are in row-major order, whatever the strides. Numbers are written so that they read back
 * exactly. If numbers cannot express the data (a NaN with other bits, a bool that is neither 0 nor 1), bytes are
 * written.
 */
#include "graph/text/constant_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/text/float_text.h"
#include "graph/ir/graph.h"
#include "kernel/kernel.h"
#include "tensor/tensor.h"

/* Returns a dtype of the same size whose elements are copied without a change of bits. */
static shoal_dtype bits_dtype(shoal_dtype dtype)
{
    return dtype == SHOAL_BOOL ? SHOAL_U8 : dtype;
}

/* Returns the floating dtype of which an element consists, of one or, if it is complex, two; 0 if it is not
   floating. */
static shoal_dtype part_dtype(shoal_dtype dtype)
{
    if (dtype == SHOAL_C64) {
        return SHOAL_F32;
    }
    if (dtype == SHOAL_C128) {
        return SHOAL_F64;
    }
    return dtype_is_real(dtype) ? dtype : (shoal_dtype)0;
}

static size_t n_parts(shoal_dtype dtype)
{
    return dtype == SHOAL_C64 || dtype == SHOAL_C128 ? 2 : 1;
}

/* Printing --------------------------------------------------------------------------------------------- */

static double widen(shoal_dtype part, const void *element)
{
    double value;
    kernel_cast(SHOAL_F64, &value, part, element, 1);
    return value;
}

static bool are_numbers_exact(shoal_dtype dtype, const unsigned char *elements, size_t count)
{
    shoal_dtype part = part_dtype(dtype);
    size_t bytes = dtype_bytes(part ? part : dtype);
    for (size_t i = 0; i < count * n_parts(dtype); i++) {
        const unsigned char *element = elements + i * bytes;
        if (part ? isnan(widen(part, element)) && !float_text_is_plain_nan(part, element)
                 : dtype == SHOAL_BOOL && *element > 1) {
            return false;
        }
    }
    return true;
}

static void print_float(struct writer *writer, shoal_dtype part, const void *element)
{
    char text[FLOAT_TEXT_BYTES];
    writer_add_string(writer, float_text_write(text, part, widen(part, element)));
}

static void print_integer(struct writer *writer, shoal_dtype dtype, const void *element)
{
    int64_t number;
    uint64_t magnitude;
    if (dtype == SHOAL_U64) {
        memcpy(&magnitude, element, sizeof magnitude);
        writer_add_format(writer, "%" PRIu64, magnitude);
        return;
    }
    kernel_cast(SHOAL_I64, &number, dtype, element, 1);
    writer_add_int(writer, number);
}

static void print_element(struct writer *writer, shoal_dtype dtype, const unsigned char *element)
{
    shoal_dtype part = part_dtype(dtype);
    if (n_parts(dtype) == 2) {
        writer_add(writer, "(", 1);
        print_float(writer, part, element);
        writer_add(writer, ", ", 2);
        print_float(writer, part, element + dtype_bytes(part));
        writer_add(writer, ")", 1);
    } else if (part) {
        print_float(writer, part, element);
    } else if (dtype == SHOAL_BOOL) {
        writer_add_string(writer, *element ? "true" : "false");
    } else {
        print_integer(writer, dtype, element);
    }
}

static void print_hex(struct writer *writer, const char *word, const unsigned char *bytes, size_t n_bytes)
{
    static const char digits[] = "0123456789abcdef";
    writer_add_string(writer, word);
    writer_add(writer, "\"", 1);
    for (size_t i = 0; i < n_bytes; i++) {
        writer_add(writer, (char[]){digits[bytes[i] >> 4], digits[bytes[i] & 15]}, 2);
    }
    writer_add(writer, "\"", 1);
}

static void print_elements(struct writer *writer, shoal_dtype dtype, const unsigned char *elements,
                           size_t count)
{
    size_t bytes = dtype_bytes(dtype);
    if (count > CONSTANT_TEXT_MAX_NUMBERS || !are_numbers_exact(dtype, elements, count)) {
        print_hex(writer, " hex ", elements, count * bytes);
        return;
    }
    writer_add_string(writer, " [");
    for (size_t i = 0; i < count; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        print_element(writer, dtype, elements + i * bytes);
    }
    writer_add(writer, "]", 1);
}

/* Computes how many elements a storage needs for the layout, and how many of them are before the first one. */
static shoal_status measure(const struct layout *layout, int64_t *n_before_out, int64_t *n_elements_out)
{
    int64_t first;
    int64_t end;
    TRY(layout_extent(layout->n_dims, layout->shape, layout->strides, 0, &first, &end));
    *n_before_out = -first;
    *n_elements_out = end - first;
    return SHOAL_OK;
}

/* SHOAL_ERR_UNSUPPORTED: strides are so large that a few elements would need much memory. */
static shoal_status check_gaps(shoal_dtype dtype, const struct layout *layout, int64_t n_elements)
{
    int64_t count;
    TRY(layout_count(layout->n_dims, layout->shape, &count));
    int64_t most = (int64_t)(CONSTANT_TEXT_MAX_GAP_BYTES / dtype_bytes(dtype));
    if (n_elements > count && n_elements - count > most) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%" PRId64 " elements with strides that need memory for %" PRId64, count,
                         n_elements);
    }
    return SHOAL_OK;
}

/* Copies the elements in row-major order to memory that the caller frees. */
static shoal_status gather(const shoal_tensor *tensor, const void *data, void **copy_out)
{
    int64_t n_before;
    int64_t n_elements;
    TRY(measure(&tensor->layout, &n_before, &n_elements));
    TRY(check_gaps(tensor->dtype, &tensor->layout, n_elements));
    int64_t strides[SHOAL_MAX_DIMS];
    shoal_dtype dtype = bits_dtype(tensor->dtype);
    void *copy = mem_alloc(tensor_bytes(tensor) ? tensor_bytes(tensor) : 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    layout_fill_strides(tensor->layout.n_dims, tensor->layout.shape, strides);
    kernel_copy_nd(dtype, (struct kernel_operand){address_of(copy), strides}, dtype,
                   (struct kernel_operand){address_of(data), tensor->layout.strides}, tensor->layout.n_dims,
                   tensor->layout.shape);
    *copy_out = copy;
    return SHOAL_OK;
}

static shoal_status print_data(struct writer *writer, const shoal_tensor *tensor)
{
    void *copy = NULL;
    const void *data = shoal_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE;
    }
    if (!tensor->is_contiguous) {
        TRY(gather(tensor, data, &copy));
    }
    print_elements(writer, tensor->dtype, copy ? copy : data, (size_t)tensor->count);
    mem_free(copy);
    return SHOAL_OK;
}

/* Prints the whole storage, and where the tensor begins in it. */
static shoal_status print_storage(struct writer *writer, const shoal_tensor *tensor)
{
    struct storage *storage = tensor->storage;
    void *base;
    if (shoal_tensor_device(tensor) == SHOAL_META) {
        writer_add_format(writer, " storage %zu", storage->bytes);
    } else {
        TRY(storage_wait_readable_in(storage, storage_span(storage)));
        TRY(storage_host_base(storage, &base));
        print_hex(writer, " storage ", base, storage->bytes);
    }
    writer_add_format(writer, " + %" PRId64, tensor->layout.offset);
    return SHOAL_OK;
}

void constant_text_print(struct writer *writer, const shoal_node *node, struct sharers sharers)
{
    const shoal_tensor *tensor = node->values[0];
    shoal_status status = SHOAL_OK;
    if (writer->status != SHOAL_OK) {
        return;
    }
    if (sharers.first != node) {
        writer_add_string(writer, " of ");
        writer_add_name(writer, '%', sharers.first->name);
        writer_add_format(writer, " + %" PRId64, tensor->layout.offset);
    } else if (sharers.count > 1) {
        status = print_storage(writer, tensor);
    } else if (shoal_tensor_device(tensor) != SHOAL_META) {
        status = print_data(writer, tensor);
    }
    if (status != SHOAL_OK) {
        writer->status = error_prefix(status, "constant %%%.64s", node->name);
    }
}

/* Reading ---------------------------------------------------------------------------------------------- */

/* Whether the token may be in a list of numbers. */
static bool is_of_numbers(const struct lexer *lexer)
{
    enum token_kind kind = lexer->token.kind;
    return kind == TOKEN_NUMBER || kind == TOKEN_WORD ||
           (kind == TOKEN_MARK && strchr("(),-", *lexer->token.start) != NULL);
}

/* Skips a list of numbers; the lexer is at "[". */
static shoal_status skip_numbers(struct lexer *lexer, struct constant_text *text)
{
    bool is_in_pair = false;
    TRY(lexer_next(lexer));
    text->data = CONSTANT_NUMBERS;
    text->start = *lexer;
    text->n_numbers = lexer_is_mark(lexer, ']') ? 0 : 1;
    while (!lexer_is_mark(lexer, ']')) {
        if (!is_of_numbers(lexer)) {
            return lexer_fail_expected(lexer, "',' or ']'");
        }
        is_in_pair = lexer_is_mark(lexer, '(') || (is_in_pair && !lexer_is_mark(lexer, ')'));
        text->n_numbers += !is_in_pair && lexer_is_mark(lexer, ',');
        TRY(lexer_next(lexer));
    }
    return lexer_next(lexer);
}

/* Reads an optional offset, "+ 4". */
static shoal_status skip_offset(struct lexer *lexer, struct constant_text *text)
{
    bool is_there;
    TRY(lexer_accept(lexer, '+', &is_there));
    if (!is_there) {
        return SHOAL_OK;
    }
    if (lexer->token.kind != TOKEN_NUMBER) {
        return lexer_fail_expected(lexer, "an integer");
    }
    TRY(lexer_integer(&lexer->token, INT64_MAX, &text->offset));
    return lexer_next(lexer);
}

/* Skips "hex", "storage" or "of", and what follows. */
static shoal_status skip_word(struct lexer *lexer, enum constant_data data, struct constant_text *text)
{
    TRY(lexer_next(lexer));
    text->start = *lexer;
    text->data = data;
    if (data == CONSTANT_STORAGE && lexer->token.kind == TOKEN_NUMBER) {
        text->data = CONSTANT_STORAGE_SIZE;
        TRY(lexer_integer(&lexer->token, INT64_MAX, &text->n_storage_bytes));
    } else if (lexer->token.kind != (data == CONSTANT_OF ? TOKEN_NODE : TOKEN_STRING)) {
        return lexer_fail_expected(lexer, data == CONSTANT_OF ? "a node" : "a string of hexadecimal digits");
    }
    TRY(lexer_next(lexer));
    return data == CONSTANT_HEX ? SHOAL_OK : skip_offset(lexer, text);
}

shoal_status constant_text_skip(struct lexer *lexer, struct constant_text *text_out)
{
    *text_out = (struct constant_text){.data = CONSTANT_SHAPE, .start = *lexer};
    if (lexer_is_mark(lexer, '[')) {
        return skip_numbers(lexer, text_out);
    }
    if (lexer_is_word(lexer, "hex")) {
        return skip_word(lexer, CONSTANT_HEX, text_out);
    }
    if (lexer_is_word(lexer, "storage")) {
        return skip_word(lexer, CONSTANT_STORAGE, text_out);
    }
    return lexer_is_word(lexer, "of") ? skip_word(lexer, CONSTANT_OF, text_out) : SHOAL_OK;
}

/* Reads inf, nan, or a number, and moves the lexer behind it. */
static shoal_status read_float(struct lexer *lexer, shoal_dtype part, unsigned char *element)
{
    bool is_negative;
    double value;
    TRY(lexer_accept(lexer, '-', &is_negative));
    if (lexer_is_word(lexer, "inf")) {
        if (part == SHOAL_F8_E4M3FN) {
            return lexer_fail(&lexer->token, "%s has no infinity", shoal_dtype_name(part));
        }
        value = (double)INFINITY;
    } else if (lexer_is_word(lexer, "nan") && !is_negative) {
        value = (double)NAN;
    } else if (lexer->token.kind == TOKEN_NUMBER) {
        TRY(lexer_float(&lexer->token, part, &value));
    } else {
        return lexer_fail_expected(lexer, "a number, inf or nan");
    }
    kernel_scalar_store(part, element, (struct kernel_scalar){.real = is_negative ? -value : value});
    return lexer_next(lexer);
}

/* Returns the largest number of an integer dtype. */
static uint64_t largest(shoal_dtype dtype)
{
    uint64_t bits = dtype_bytes(dtype) * 8;
    uint64_t all = UINT64_MAX >> (64 - bits);
    return dtype_kind(dtype) == DTYPE_KIND_SIGNED ? all >> 1 : all;
}

static shoal_status read_integer(struct lexer *lexer, shoal_dtype dtype, unsigned char *element)
{
    bool is_negative;
    uint64_t number;
    bool is_signed = dtype_kind(dtype) == DTYPE_KIND_SIGNED;
    if (lexer_is_mark(lexer, '-') && !is_signed) {
        return lexer_fail(&lexer->token, "a negative number in a constant of %s", shoal_dtype_name(dtype));
    }
    TRY(lexer_accept(lexer, '-', &is_negative));
    if (lexer->token.kind != TOKEN_NUMBER) {
        return lexer_fail_expected(lexer, "an integer");
    }
    TRY(lexer_integer(&lexer->token, largest(dtype) + is_negative, &number));
    /* The lowest bytes of two's complement are the number in every size. */
    number = is_negative ? 0 - number : number;
    kernel_cast(dtype, element, SHOAL_U64, &number, 1);
    return lexer_next(lexer);
}

static shoal_status read_bool(struct lexer *lexer, unsigned char *element)
{
    if (!lexer_is_word(lexer, "true") && !lexer_is_word(lexer, "false")) {
        return lexer_fail_expected(lexer, "true or false");
    }
    *element = lexer_is_word(lexer, "true");
    return lexer_next(lexer);
}

static shoal_status read_element(struct lexer *lexer, shoal_dtype dtype, unsigned char *element)
{
    shoal_dtype part = part_dtype(dtype);
    if (n_parts(dtype) == 2) {
        TRY(lexer_expect(lexer, '('));
        TRY(read_float(lexer, part, element));
        TRY(lexer_expect(lexer, ','));
        TRY(read_float(lexer, part, element + dtype_bytes(part)));
        return lexer_expect(lexer, ')');
    }
    if (part) {
        return read_float(lexer, part, element);
    }
    return dtype == SHOAL_BOOL ? read_bool(lexer, element) : read_integer(lexer, dtype, element);
}

static shoal_status read_numbers(const struct constant_text *text, shoal_dtype dtype, unsigned char *elements)
{
    struct lexer lexer = text->start;
    for (size_t i = 0; i < text->n_numbers; i++) {
        if (i > 0) {
            TRY(lexer_expect(&lexer, ','));
        }
        TRY(read_element(&lexer, dtype, elements + i * dtype_bytes(dtype)));
    }
    return lexer_is_mark(&lexer, ']') ? SHOAL_OK : lexer_fail_expected(&lexer, "',' or ']'");
}

/* Checks that there is as much data as the type needs, before memory is allocated for it. */
static shoal_status check_amount(const struct constant_text *text, const struct text_type *type, size_t count)
{
    const struct token *token = &text->start.token;
    if (text->data == CONSTANT_NUMBERS && text->n_numbers != count) {
        return lexer_fail(token, "%zu elements in the list, %zu in the type", text->n_numbers, count);
    }
    size_t n_digits = token->length - 2;
    if (text->data == CONSTANT_HEX &&
        (n_digits % 2 != 0 || n_digits / 2 / dtype_bytes(type->dtype) != count ||
         n_digits / 2 % dtype_bytes(type->dtype) != 0)) {
        return lexer_fail(token, "%zu hexadecimal digits, but the type has %zu elements of %zu bytes",
                          n_digits, count, dtype_bytes(type->dtype));
    }
    return SHOAL_OK;
}

/* Reads the elements, in row-major order, into memory that the caller frees. */
static shoal_status read_elements(const struct constant_text *text, const struct text_type *type,
                                  size_t count, void **elements_out)
{
    TRY(check_amount(text, type, count));
    unsigned char *elements = mem_alloc_zeroed(count ? count : 1, dtype_bytes(type->dtype));
    if (!elements) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = text->data == CONSTANT_HEX ? lexer_hex(&text->start.token, elements)
                                                     : read_numbers(text, type->dtype, elements);
    if (status != SHOAL_OK) {
        mem_free(elements);
        return status;
    }
    *elements_out = elements;
    return SHOAL_OK;
}

/* Makes a tensor with strides. Bytes of its storage that belong to no element are 0. */
static shoal_status make_strided(const struct text_type *type, shoal_device device, shoal_tensor **tensor_out)
{
    struct layout layout = type->layout;
    shoal_tensor *base;
    int64_t n_elements;
    TRY(measure(&type->layout, &layout.offset, &n_elements));
    if (device == SHOAL_CPU) {
        TRY(check_gaps(type->dtype, &type->layout, n_elements));
    }
    TRY(tensor_create_empty(device, type->dtype, 1, &n_elements, &base));
    void *address;
    shoal_status status = SHOAL_OK;
    if (device == SHOAL_CPU && n_elements > 0) {
        status = tensor_host_address(base, &address);
        if (status == SHOAL_OK) {
            memset(address, 0, tensor_bytes(base));
        }
    }
    if (status == SHOAL_OK) {
        status = tensor_create_view(base, &layout, tensor_out);
    }
    shoal_tensor_unref(base);
    return status;
}

shoal_status text_type_make(const struct text_type *type, shoal_device device, shoal_tensor **tensor_out)
{
    const struct layout *layout = &type->layout;
    shoal_status status = type->has_strides ? make_strided(type, device, tensor_out)
                                            : tensor_create_empty(device, type->dtype, layout->n_dims,
                                                                  layout->shape, tensor_out);
    return status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(&type->token, status);
}

/* Writes elements, which are in row-major order, into the tensor. */
static shoal_status scatter(shoal_tensor *tensor, const void *elements)
{
    int64_t strides[SHOAL_MAX_DIMS];
    void *address;
    shoal_dtype dtype = bits_dtype(tensor->dtype);
    const struct layout *layout = &tensor->layout;
    if (tensor->count == 0) {
        return SHOAL_OK;
    }
    TRY(tensor_host_address(tensor, &address));
    layout_fill_strides(layout->n_dims, layout->shape, strides);
    kernel_copy_nd(dtype, (struct kernel_operand){address_of(address), layout->strides}, dtype,
                   (struct kernel_operand){address_of(elements), strides}, layout->n_dims, layout->shape);
    return SHOAL_OK;
}

/* Makes a tensor with a storage of its own, from numbers or hexadecimal digits. */
static shoal_status read_alone(const struct constant_text *text, const struct text_type *type,
                               shoal_tensor **tensor_out)
{
    shoal_tensor *tensor;
    void *elements = NULL;
    int64_t count;
    TRY(layout_count(type->layout.n_dims, type->layout.shape, &count));
    TRY(read_elements(text, type, (size_t)count, &elements));
    shoal_status status = text_type_make(type, SHOAL_CPU, &tensor);
    if (status == SHOAL_OK) {
        status = scatter(tensor, elements);
        if (status != SHOAL_OK) {
            shoal_tensor_unref(tensor);
        }
    }
    mem_free(elements);
    if (status == SHOAL_OK) {
        *tensor_out = tensor;
    }
    return status;
}

/* Makes a view of the storage of `base`. */
static shoal_status view(const struct constant_text *text, shoal_tensor *base, const struct text_type *type,
                         shoal_tensor **tensor_out)
{
    struct layout layout = type->layout;
    layout.offset = (int64_t)text->offset;
    shoal_status status = tensor_create_view_as(base, type->dtype, &layout, tensor_out);
    return status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(&type->token, status);
}

/* Makes a tensor of bytes that covers the storage, with its data or, for CONSTANT_STORAGE_SIZE, without. */
static shoal_status read_storage(const struct constant_text *text, shoal_tensor **base_out)
{
    const struct token *token = &text->start.token;
    shoal_device device = text->data == CONSTANT_STORAGE ? SHOAL_CPU : SHOAL_META;
    int64_t n_bytes = device == SHOAL_CPU ? (int64_t)(token->length / 2 - 1) : (int64_t)text->n_storage_bytes;
    void *address;
    shoal_tensor *base;
    if (device == SHOAL_CPU && token->length % 2 != 0) {
        return lexer_fail(token, "an odd number of hexadecimal digits");
    }
    shoal_status status = tensor_create_empty(device, SHOAL_U8, 1, &n_bytes, &base);
    if (status != SHOAL_OK) {
        return lexer_fail_at(token, status);
    }
    if (n_bytes > 0 && device == SHOAL_CPU) {
        status = tensor_host_address(base, &address);
        status = status == SHOAL_OK ? lexer_hex(token, address) : lexer_fail_at(token, status);
    }
    if (status != SHOAL_OK) {
        shoal_tensor_unref(base);
        return status;
    }
    *base_out = base;
    return SHOAL_OK;
}

shoal_status constant_text_read(const struct constant_text *text, shoal_tensor *of,
                                const struct text_type *type, shoal_tensor **tensor_out)
{
    shoal_tensor *base = NULL;
    switch (text->data) {
    case CONSTANT_SHAPE:
        return text_type_make(type, SHOAL_META, tensor_out);
    case CONSTANT_NUMBERS:
    case CONSTANT_HEX:
        return read_alone(text, type, tensor_out);
    case CONSTANT_OF:
        return view(text, of, type, tensor_out);
    case CONSTANT_STORAGE:
    case CONSTANT_STORAGE_SIZE:
        break;
    }
    TRY(read_storage(text, &base));
    shoal_status status = view(text, base, type, tensor_out);
    shoal_tensor_unref(base);
    return status;
}
