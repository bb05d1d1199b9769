/* SPDX-License-Identifier: MIT */
/*
 * Every row of ops.def against its oracle: random calls, eager and on the meta device, boxed and typed. Each
 * row is one test, made by expanding the table; a row without generator, oracle or typed function does not
 * compile.
 */
#include <inttypes.h>
#include <stdio.h>

#include "conformance/ops/cases.h"
#include "conformance/ops/expects_more.h"
#include "conformance/ops/typed.h"
#include "harness/test.h"
#include "op/op.h"
#include "shoal/op.h"
#include "tensor/storage.h"

enum {
    CASES_PER_ROW = 1000
};
_Static_assert(CASES_PER_ROW *OP_COUNT >= 10000, "the suite promises ten thousand cases");

/* What one case is about, for failures. */
static char case_text[512];

#define FAIL(...) fail_case(__LINE__, __VA_ARGS__)

__attribute__((format(printf, 2, 3))) static void fail_case(int line, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    test_failed(__FILE__, line, "%s: %s", case_text, text);
}

static void describe_case(const struct op_case *c, int number)
{
    char shape[LAYOUT_TEXT_BYTES];
    char strides[LAYOUT_TEXT_BYTES];
    int used = snprintf(case_text, sizeof(case_text), "case %d of %s", number, c->op->name);
    for (int i = 0; i < c->n_inputs && used > 0 && (size_t)used < sizeof(case_text); i++) {
        const struct layout *layout = layout_of(c, i);
        used += snprintf(case_text + used, sizeof(case_text) - (size_t)used, ", %s %s strides %s",
                         shoal_dtype_name(c->inputs[i].dtype),
                         layout_format(shape, layout->n_dims, layout->shape),
                         layout_format(strides, layout->n_dims, layout->strides));
    }
}

/* Outputs ---------------------------------------------------------------------------------------------------- */

static void check_shape(const struct expected_output *expected, const shoal_tensor *tensor, int number)
{
    char a[LAYOUT_TEXT_BYTES];
    char b[LAYOUT_TEXT_BYTES];
    bool is_same = tensor->dtype == expected->dtype && tensor->layout.n_dims == expected->n_dims;
    for (int i = 0; is_same && i < expected->n_dims; i++) {
        is_same = tensor->layout.shape[i] == expected->shape[i];
    }
    if (!is_same) {
        FAIL("output %d is %s %s, expected %s %s", number, shoal_dtype_name(tensor->dtype),
             layout_format(a, tensor->layout.n_dims, tensor->layout.shape), shoal_dtype_name(expected->dtype),
             layout_format(b, expected->n_dims, expected->shape));
    }
}

static void check_new(const struct op_case *c, const struct case_call *call, const shoal_tensor *tensor,
                      int number)
{
    for (int i = 0; i < c->n_inputs; i++) {
        if (tensor->storage == call->tensors[i]->storage) {
            FAIL("output %d shares the storage of input %d", number, i);
        }
    }
    if (!tensor->is_contiguous || tensor->layout.offset != 0) {
        FAIL("output %d is new but not contiguous at 0", number);
    }
}

static void check_places(const struct expected_output *expected, const shoal_tensor *tensor, int number)
{
    FOR_EACH(at, expected->n_dims, expected->shape)
    {
        int64_t place = place_of(&tensor->layout, at.index);
        if (place != expected->places[at.at]) {
            FAIL("output %d, element %" PRId64 " lies at %" PRId64 ", expected %" PRId64, number, at.at,
                 place, expected->places[at.at]);
            return;
        }
    }
}

/* Aliasing and shape; `call` holds the inputs of the same device. */
static void check_relation(const struct op_case *c, const struct case_call *call,
                           const struct expected_output *expected, shoal_tensor *tensor, int number)
{
    bool has_view_flag = (c->op->flags & SHOAL_OP_VIEW) != 0;
    if (!tensor) {
        FAIL("output %d is NULL", number);
        return;
    }
    check_shape(expected, tensor, number);
    if (test_has_failed()) {
        return;
    }
    switch (expected->relation) {
    case RELATION_NEW:
        check_new(c, call, tensor, number);
        if (has_view_flag) {
            FAIL("output %d is new, but the row says view", number);
        }
        break;
    case RELATION_VIEW:
        if (tensor->storage != call->tensors[expected->source]->storage) {
            FAIL("output %d does not look at input %d", number, expected->source);
        }
        check_places(expected, tensor, number);
        break;
    case RELATION_SAME:
        if (tensor != call->tensors[expected->source]) {
            FAIL("output %d is not input %d itself", number, expected->source);
        }
        break;
    }
}

static void print_element(char text[80], shoal_dtype dtype, const void *element)
{
    struct scalar value = scalar_load(dtype, element);
    (void)snprintf(text, 80, "%.17g %.17gi / %" PRId64, value.re, value.im, (int64_t)value.bits);
}

static void check_values(const struct expected_output *expected, const shoal_tensor *tensor, int number)
{
    size_t bytes = dtype_bytes(expected->dtype);
    char *data = malloc(tensor_bytes(tensor) + 1);
    if (shoal_read(tensor, data, tensor_bytes(tensor)) != SHOAL_OK) {
        FAIL("output %d has no data: %s", number, shoal_error_text());
        free(data);
        return;
    }
    for (int64_t i = 0; i < tensor->count && expected->values; i++) {
        _Alignas(16) char element[16];
        scalar_store(expected->dtype, element, expected->values[i]);
        if (!scalar_is_same(expected->dtype, data + (size_t)i * bytes, element)) {
            char actual_text[80];
            char expected_text[80];
            print_element(actual_text, expected->dtype, data + (size_t)i * bytes);
            print_element(expected_text, expected->dtype, element);
            FAIL("output %d, element %" PRId64 " is %s, expected %s", number, i, actual_text, expected_text);
            break;
        }
    }
    free(data);
}

/* Every byte of every input's storage: written as expected, or not at all. */
static void check_storages(const struct op_case *c, const struct expectation *e, const struct case_call *call)
{
    for (int i = 0; i < c->n_inputs; i++) {
        shoal_dtype dtype = c->inputs[i].dtype;
        size_t bytes = dtype_bytes(dtype);
        const char *base = c->inputs[i].owner == i ? test_storage_bytes(call->tensors[i]->storage) : NULL;
        if (!base) {
            continue;
        }
        for (int64_t k = 0; k < c->inputs[i].storage_elems; k++) {
            const char *actual = base + (size_t)k * bytes;
            const unsigned char *expected = &e->bytes[i][(size_t)k * bytes];
            bool is_same = e->is_written[i][k] ? scalar_is_same(dtype, actual, expected)
                                               : memcmp(actual, expected, bytes) == 0;
            if (!is_same) {
                char actual_text[80];
                char expected_text[80];
                print_element(actual_text, dtype, actual);
                print_element(expected_text, dtype, expected);
                FAIL("input %d, element %" PRId64 " of the storage is %s, expected %s (%s)", i, k,
                     actual_text, expected_text, e->is_written[i][k] ? "written" : "not to be touched");
                return;
            }
        }
    }
}

/* Versions: moved on for what an in-place op writes, unchanged for everything else. */
static void check_versions(const struct op_case *c, const struct case_call *call)
{
    bool is_in_place = (c->op->flags & SHOAL_OP_IN_PLACE) != 0;
    const struct case_argument *target = &c->arguments[0];
    for (int i = 0; i < c->n_inputs; i++) {
        bool is_written = false;
        for (int k = 0; is_in_place && k < target->n_inputs; k++) {
            is_written = is_written || c->inputs[target->first_input + k].owner == c->inputs[i].owner;
        }
        uint64_t version = shoal_tensor_version(call->tensors[i]);
        if (is_written ? version == 0 : version != 0) {
            FAIL("the version of input %d is %" PRIu64 " after a call that %s it", i, version,
                 is_written ? "writes" : "only reads");
        }
    }
}

/* Running ---------------------------------------------------------------------------------------------------- */

/* Arguments at the end that equal the defaults may be left out. */
static size_t count_needed(const struct op_case *c)
{
    int n = c->n_arguments;
    while (n > 0) {
        const struct op_param *param = &c->op->params[n - 1];
        const struct case_argument *argument = &c->arguments[n - 1];
        const shoal_value *value = &param->default_value;
        bool is_default = param->has_default && value->kind == argument->kind &&
                          ((argument->kind == SHOAL_VALUE_INT && argument->integer == value->as.integer) ||
                           (argument->kind == SHOAL_VALUE_INTS && argument->n_ints == 0) ||
                           (argument->kind == SHOAL_VALUE_BOOL && argument->boolean == value->as.boolean));
        if (!is_default) {
            break;
        }
        n--;
    }
    return (size_t)n;
}

/* Typed functions take numbers as double: an int that is one means the same, except to `full`, which casts. */
static bool fits_typed(const struct op_case *c)
{
    if ((c->op->flags & SHOAL_OP_FACTORY) != 0 && test_device() != SHOAL_CPU) {
        return false; /* they make tensors on the CPU */
    }
    const int64_t exact = INT64_C(1) << 53;
    for (int i = 0; i < c->n_arguments; i++) {
        int64_t integer = c->arguments[i].integer;
        if (c->op->params[i].type == OP_PARAM_SCALAR && c->arguments[i].kind == SHOAL_VALUE_INT &&
            (c->op->index == OP_full || integer < -exact || integer > exact)) {
            return false;
        }
    }
    return true;
}

static bool call_eager(const struct op_case *c, struct test_random *random, const struct case_call *call,
                       shoal_value *result)
{
    if (fits_typed(c) && chance(random, 2)) {
        return typed_functions[c->op->index](call->values, result);
    }
    size_t n = chance(random, 2) ? count_needed(c) : (size_t)c->n_arguments;
    return shoal_op_call(c->op, call->values, n, result) == SHOAL_OK;
}

static shoal_tensor *get_output(const shoal_value *result, int index)
{
    return result->kind == SHOAL_VALUE_TENSORS ? result->as.tensors[index] : result->as.tensor;
}

static bool check_result_kind(const struct op_case *c, const struct expectation *e, const shoal_value *result)
{
    shoal_value_kind kind = c->op->returns_list ? SHOAL_VALUE_TENSORS : SHOAL_VALUE_TENSOR;
    if (result->kind != kind || (kind == SHOAL_VALUE_TENSORS && result->count != (size_t)e->n_outputs)) {
        FAIL("the result is of kind %d with %zu outputs, expected %d with %d", (int)result->kind,
             result->count, (int)kind, e->n_outputs);
        return false;
    }
    return true;
}

/* The meta result has the shapes, strides and offsets of the eager one, and looks at the same inputs. */
static void check_meta(const struct op_case *c, const struct expectation *e, const shoal_value *eager)
{
    struct case_call call;
    shoal_value result;
    CHECK_OK(case_build(c, SHOAL_META, &call));
    shoal_status status = shoal_op_call(c->op, call.values, (size_t)c->n_arguments, &result);
    if (status != SHOAL_OK) {
        FAIL("on the meta device: %s", shoal_error_text());
    } else if (check_result_kind(c, e, &result)) {
        for (int i = 0; i < e->n_outputs && !test_has_failed(); i++) {
            shoal_tensor *tensor = get_output(&result, i);
            const shoal_tensor *other = get_output(eager, i);
            check_relation(c, &call, &e->outputs[i], tensor, i);
            size_t bytes = (size_t)e->outputs[i].n_dims * sizeof(int64_t);
            if (!test_has_failed() && (memcmp(tensor->layout.strides, other->layout.strides, bytes) != 0 ||
                                       tensor->layout.offset != other->layout.offset)) {
                FAIL("output %d: strides or offset on the meta device are others", i);
            }
            CHECK_INT(tensor->storage->device, SHOAL_META);
        }
        check_versions(c, &call);
    }
    case_release(&call);
}

static void check_case(const struct op_case *c, struct expectation *e, struct test_random *random)
{
    struct case_call call;
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(case_build(c, test_device(), &call));
    expect_call(c, e);
    if (!call_eager(c, random, &call, &result)) {
        FAIL("%s", shoal_error_text());
    } else if (check_result_kind(c, e, &result)) {
        for (int i = 0; i < e->n_outputs && !test_has_failed(); i++) {
            shoal_tensor *tensor = get_output(&result, i);
            check_relation(c, &call, &e->outputs[i], tensor, i);
            if (!test_has_failed() && e->outputs[i].relation == RELATION_NEW) {
                check_values(&e->outputs[i], tensor, i);
            }
        }
        check_storages(c, e, &call);
        check_versions(c, &call);
        check_meta(c, e, &result);
    }
    case_release(&call);
    CHECK_STATUS(shoal_scope_end(), SHOAL_OK);
}

static void run_row(enum op_id id)
{
    static struct op_case c;
    static struct expectation e;
    for (int number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        struct test_random random = test_random_begin((uint64_t)id * 1000003 + (uint64_t)number);
        size_t blocks = test_live_blocks();
        case_describe(&c, id, &random);
        describe_case(&c, number);
        check_case(&c, &e, &random);
        CHECK_INT(test_live_blocks(), blocks);
    }
}

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(op_##name)                                                    \
    {                                                                  \
        run_row(OP_##name);                                            \
    }
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
