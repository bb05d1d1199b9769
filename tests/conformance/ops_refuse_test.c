/* SPDX-License-Identifier: MIT */
/*
 * What ops must refuse: through the table, every argument of every row made wrong in every way that its type
 * allows; by hand, what is wrong by meaning. A refusal is an error status with the op's name in its text,
 * leaves the result alone, stops the scope, changes no input and loses nothing. Numbers at the edge of int64_t
 * may be good or bad, but never undefined, and the meta device agrees with the CPU.
 */
#include <inttypes.h>
#include <stdio.h>

#include "conformance/ops/cases.h"
#include "harness/test.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"

enum {
    CASES_PER_ROW = 20,
    FUZZ_PER_ROW = 200
};

/* Sizes near 2^63 reach the allocator on purpose; the sanitizer must let it answer NULL. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static struct op_case the_case;

/* One refused call ------------------------------------------------------------------------------------------- */

static void check_inputs_untouched(const struct op_case *c, const struct case_call *call)
{
    for (int i = 0; i < c->n_inputs; i++) {
        void *base;
        if (c->inputs[i].owner == i && storage_host_base(call->tensors[i]->storage, &base) == SHOAL_OK) {
            CHECK_BYTES(base, c->inputs[i].bytes,
                        (size_t)c->inputs[i].storage_elems * dtype_bytes(c->inputs[i].dtype));
        }
    }
}

/* Calls the case with argument `which` replaced. */
static void check_refused(const struct op_case *c, int which, shoal_value bad, const char *what)
{
    struct case_call call;
    shoal_value untouched = {.kind = SHOAL_VALUE_BOOL, .count = 77};
    shoal_value result = untouched;
    size_t blocks = test_live_blocks();
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(case_build(c, SHOAL_CPU, &call));
    call.values[which] = bad;
    shoal_status status = shoal_op_call(c->op, call.values, (size_t)c->n_arguments, &result);
    if (status == SHOAL_OK) {
        test_failed(__FILE__, __LINE__, "%s took %s for %s", c->op->name, what, c->op->params[which].name);
    } else {
        CHECK_ERROR_TEXT(c->op->name);
        CHECK_ERROR_TEXT(c->op->params[which].name);
        CHECK(strncmp(shoal_error_text(), c->op->name, strlen(c->op->name)) == 0);
        CHECK_INT(result.kind, untouched.kind);
        CHECK_INT(result.count, untouched.count);
        /* The scope holds the error: a good call is not made any more. */
        CHECK(!shoal_zeros((int64_t[]){1}, 1, SHOAL_F32));
        check_inputs_untouched(c, &call);
    }
    case_release(&call);
    CHECK_STATUS(shoal_scope_end(), status);
    CHECK_INT(test_live_blocks(), blocks);
}

static bool kind_fits(const struct op_param *param, shoal_value_kind kind)
{
    if (kind == SHOAL_VALUE_NONE) {
        return param->has_default;
    }
    bool is_number = param->type == OP_PARAM_SCALAR && (kind == SHOAL_VALUE_INT || kind == SHOAL_VALUE_FLOAT);
    static const shoal_value_kind kinds[] = {
#define PARAM(NAME, word, kind) [OP_PARAM_##NAME] = kind,
        OP_PARAM_TYPES(PARAM)
#undef PARAM
    };
    return is_number || kinds[param->type] == kind;
}

static void check_wrong_kinds(const struct op_case *c, int which)
{
    const struct op_param *param = &c->op->params[which];
    int64_t number = 0;
    for (int kind = -1; kind <= 11; kind++) {
        shoal_value bad = {.kind = (shoal_value_kind)kind};
        if (kind == SHOAL_VALUE_INTS) {
            bad.as.integers = &number;
            bad.count = 1;
        }
        if (!kind_fits(param, bad.kind)) {
            check_refused(c, which, bad, "a value of another kind");
        }
    }
}

/* The right kind with nothing, or nonsense, in it. */
static void check_bad_contents(const struct op_case *c, int which)
{
    shoal_tensor *const null_list[2] = {NULL, NULL};
    switch (c->op->params[which].type) {
    case OP_PARAM_TENSOR:
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_TENSOR}, "NULL");
        break;
    case OP_PARAM_TENSORS:
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = 2}, "a NULL array");
        check_refused(c, which,
                      (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = 2, .as.tensors = null_list},
                      "an array of NULL");
        break;
    case OP_PARAM_INTS:
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_INTS, .count = 2}, "a NULL array");
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_INTS, .count = SIZE_MAX}, "a NULL array");
        break;
    case OP_PARAM_DTYPE:
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = (shoal_dtype)0},
                      "dtype 0");
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = (shoal_dtype)-7},
                      "dtype -7");
        check_refused(c, which,
                      (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = (shoal_dtype)DTYPE_COUNT},
                      "a dtype past the last");
        break;
    case OP_PARAM_STRING:
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_STRING}, "NULL");
        check_refused(c, which, (shoal_value){.kind = SHOAL_VALUE_STRING, .as.string = "nowhere"}, "nowhere");
        break;
    case OP_PARAM_INT:
    case OP_PARAM_OPTIONAL_TENSOR:
    case OP_PARAM_FLOAT:
    case OP_PARAM_SCALAR:
    case OP_PARAM_BOOL:
    case OP_PARAM_GROUP:
        break;
    }
}

/* Parameters called dim, dim_a, first_dim, dims: numbers that no tensor has. */
static void check_bad_dims(const struct op_case *c, int which)
{
    static const int64_t far[] = {100, -100, INT64_MIN, INT64_MAX, INT64_C(1) << 32, -(INT64_C(1) << 32) - 1};
    const struct op_param *param = &c->op->params[which];
    if (!strstr(param->name, "dim") || (param->type != OP_PARAM_INT && param->type != OP_PARAM_INTS)) {
        return;
    }
    for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
        shoal_value bad = {.kind = SHOAL_VALUE_INT, .as.integer = far[i]};
        if (param->type == OP_PARAM_INTS) {
            bad = (shoal_value){.kind = SHOAL_VALUE_INTS, .count = 1, .as.integers = &far[i]};
        }
        check_refused(c, which, bad, "a dimension that is not there");
    }
}

static void check_counts(const struct op_case *c)
{
    for (size_t n = 0; n <= c->op->n_params + 2; n++) {
        struct case_call call;
        shoal_value values[OP_MAX_PARAMS + 2];
        shoal_value result = {.kind = SHOAL_VALUE_NONE};
        bool is_enough = n >= c->op->n_params || c->op->params[n].has_default;
        if (is_enough && n <= c->op->n_params) {
            continue;
        }
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(case_build(c, SHOAL_CPU, &call));
        for (size_t i = 0; i < n; i++) {
            values[i] = i < c->op->n_params ? call.values[i] : (shoal_value){.kind = SHOAL_VALUE_NONE};
        }
        CHECK_STATUS(shoal_op_call(c->op, values, n, &result), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(c->op->name);
        CHECK_INT(result.kind, SHOAL_VALUE_NONE);
        case_release(&call);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
}

static void refuse_row(enum op_id id)
{
    for (int number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        struct test_random random = test_random_begin((uint64_t)id * 7001 + (uint64_t)number);
        case_describe(&the_case, id, &random);
        check_counts(&the_case);
        for (int which = 0; which < the_case.n_arguments && !test_has_failed(); which++) {
            check_wrong_kinds(&the_case, which);
            check_bad_contents(&the_case, which);
            check_bad_dims(&the_case, which);
        }
    }
}

/* Numbers at the edge ------------------------------------------------------------------------------------------ */

static int64_t pick_edge(struct test_random *random)
{
    static const int64_t edges[] = {INT64_MIN,
                                    INT64_MIN + 1,
                                    INT64_MAX,
                                    INT64_MAX - 1,
                                    INT64_C(1) << 62,
                                    -(INT64_C(1) << 62),
                                    INT64_C(1) << 53,
                                    -1,
                                    0,
                                    1,
                                    2,
                                    3};
    return edges[test_random_below(random, sizeof(edges) / sizeof(edges[0]))];
}

/* Replaces some of the integers; true if any. */
static bool put_edges(struct op_case *c, struct test_random *random)
{
    bool has_any = false;
    for (int i = 0; i < c->n_arguments; i++) {
        struct case_argument *argument = &c->arguments[i];
        bool is_scalar = c->op->params[i].type == OP_PARAM_SCALAR;
        if (argument->kind == SHOAL_VALUE_INT && !is_scalar && chance(random, 2)) {
            argument->integer = pick_edge(random);
            has_any = true;
        }
        if (argument->kind == SHOAL_VALUE_INTS) {
            argument->n_ints = chance(random, 4) ? (int)pick(random, 0, 10) : argument->n_ints;
            for (int k = 0; k < argument->n_ints; k++) {
                argument->ints[k] = chance(random, 2) ? pick_edge(random) : argument->ints[k];
            }
            has_any = true;
        }
    }
    return has_any;
}

static shoal_status call_on(const struct op_case *c, shoal_device device, bool *has_unsettling_size)
{
    struct case_call call;
    shoal_value result;
    size_t blocks = test_live_blocks();
    if (shoal_scope_begin() != SHOAL_OK || case_build(c, device, &call) != SHOAL_OK) {
        test_failed(__FILE__, __LINE__, "the case cannot be built");
        return SHOAL_ERR_INTERNAL;
    }
    shoal_status status = shoal_op_call(c->op, call.values, (size_t)c->n_arguments, &result);
    if (status != SHOAL_OK) {
        CHECK_ERROR_TEXT(c->op->name);
    } else {
        for (size_t i = 0; i < (result.kind == SHOAL_VALUE_TENSORS ? result.count : 1); i++) {
            const shoal_tensor *t =
                result.kind == SHOAL_VALUE_TENSORS ? result.as.tensors[i] : result.as.tensor;
            int64_t count;
            CHECK_OK(layout_count(t->layout.n_dims, t->layout.shape, &count));
            CHECK_INT(count, t->count);
            CHECK_OK(tensor_check_bounds(t->storage->bytes, t->dtype, &t->layout));
            *has_unsettling_size = *has_unsettling_size || (!t->is_view && t->count > 100000);
        }
    }
    case_release(&call);
    CHECK_STATUS(shoal_scope_end(), status);
    CHECK_INT(test_live_blocks(), blocks);
    return status;
}

static void fuzz_row(enum op_id id)
{
    for (int number = 0; number < FUZZ_PER_ROW && !test_has_failed(); number++) {
        struct test_random random = test_random_begin((uint64_t)id * 9001 + (uint64_t)number);
        bool is_large = false;
        case_describe(&the_case, id, &random);
        if (!put_edges(&the_case, &random)) {
            return;
        }
        shoal_status meta = call_on(&the_case, SHOAL_META, &is_large);
        CHECK(meta == SHOAL_OK || meta == SHOAL_ERR_INVALID || meta == SHOAL_ERR_UNSUPPORTED);
        /* Where the result would really need the memory only the shapes are tried. */
        shoal_status cpu = is_large ? meta : call_on(&the_case, SHOAL_CPU, &is_large);
        if (cpu != meta) {
            test_failed(__FILE__, __LINE__, "case %d of %s: %s on the CPU, %s on the meta device: %s", number,
                        the_case.op->name, shoal_status_name(cpu), shoal_status_name(meta),
                        shoal_error_text());
        }
    }
}

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(refuse_##name)                                                \
    {                                                                  \
        refuse_row(OP_##name);                                         \
    }                                                                  \
    TEST(edges_##name)                                                 \
    {                                                                  \
        fuzz_row(OP_##name);                                           \
    }
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP

/* Views of tensors that are almost as large as an address: only shapes exist, so only arithmetic can fail. */
TEST(views_of_huge_strides)
{
    const int64_t far = INT64_C(1) << 62;
    size_t n;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *base = shoal_empty_on((int64_t[]){far + 1}, 1, SHOAL_U8, SHOAL_META);
    shoal_tensor *wide = shoal_as_strided(base, (int64_t[]){2, 1}, (int64_t[]){far, far}, 2, 0);
    shoal_tensor *back = shoal_as_strided(base, (int64_t[]){2}, (int64_t[]){-far}, 1, far);
    REQUIRE(wide && back);
    CHECK(shoal_narrow(wide, 0, 2, 0));
    CHECK(shoal_narrow(back, 0, 2, 0));
    CHECK(shoal_slice(wide, 0, 2, 2, 1));
    CHECK(shoal_slice(wide, 0, 0, 2, INT64_MAX));
    CHECK(shoal_unsqueeze(wide, 0));
    CHECK(shoal_unsqueeze(back, 0));
    CHECK(shoal_view(wide, (int64_t[]){2}, 1));
    CHECK(shoal_reshape(wide, (int64_t[]){1, 2, 1}, 3));
    CHECK(shoal_flatten(back, 0, -1));
    CHECK(shoal_split(wide, 1, 0, &n));
    CHECK(shoal_chunk_with_empty(wide, 4, 0, &n));
    CHECK(shoal_expand(wide, (int64_t[]){2, 3}, 2));
    CHECK(shoal_neg_(wide) == wide);
    CHECK_OK(shoal_scope_end());
}
