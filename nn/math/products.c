/* SPDX-License-Identifier: MIT */
/* Which row computes a product, and what programs are told about rows; see products.h. */
#include "math/products.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/struct_size.h"
#include "common/try.h"
#include "math/onednn.h"
#include "math/operand.h"
#include "shoal/op.h"
#include "shoal_nn/nn.h"

static const struct nn_product_row *const rows[] = {
#define PRODUCT(name, doc) &product_##name,
#include "math/product_rows.def"
#undef PRODUCT
};

static const char *const docs[] = {
#define PRODUCT(name, doc) doc,
#include "math/product_rows.def"
#undef PRODUCT
};

enum {
    N_ROWS = sizeof(rows) / sizeof(rows[0])
};

static const struct choice {
    shoal_dtype dtype;
    double least; /* multiplications */
    const struct nn_product_row *row;
} choices[] = {
#define CHOICE(dtype, least, name) {SHOAL_##dtype, least, &product_##name},
#include "math/product_choices.def"
#undef CHOICE
};

#define N_CHOICES (sizeof(choices) / sizeof(choices[0]))

/* Of a description: a name, a space, and what the row says. */
#define TEXT_BYTES (NN_PRODUCT_TEXT_BYTES + 32)

/* Constant once it is loaded. */
static struct {
    const struct nn_product_row *forced; /* NULL if the table chooses */
    uint64_t forced_dtypes;              /* bits by dtype: those that it takes */
    bool can_use[N_CHOICES];
    char f32[TEXT_BYTES];
    char f64[TEXT_BYTES];
    char bf16[TEXT_BYTES];
    char all[4 * TEXT_BYTES];
    shoal_status status;
    char error[512];
} products;

static pthread_once_t is_loaded = PTHREAD_ONCE_INIT;

/* Choosing --------------------------------------------------------------------------------------------- */

static uint64_t bit_of(shoal_dtype dtype)
{
    return UINT64_C(1) << (unsigned)dtype;
}

/* NULL: no row takes it, and it is widened. */
static const struct nn_product_row *choose(shoal_dtype dtype, int64_t n_rows, int64_t n_cols, int64_t n_inner)
{
    const double n_multiplications = (double)n_rows * (double)n_cols * (double)n_inner;
    if (products.forced_dtypes & bit_of(dtype)) {
        return products.forced;
    }
    for (size_t i = 0; i < N_CHOICES; i++) {
        const struct choice *choice = &choices[i];
        if (choice->dtype == dtype && products.can_use[i] && n_multiplications >= choice->least) {
            return choice->row;
        }
    }
    return NULL;
}

bool nn_products_take(shoal_dtype dtype, int64_t n_rows, int64_t n_cols, int64_t n_inner)
{
    return n_rows > 0 && n_cols > 0 && n_inner > 0 && nn_products_load() == SHOAL_OK &&
           choose(dtype, n_rows, n_cols, n_inner) != NULL;
}

bool nn_product_takes_matrix(const struct nn_matrix *matrix)
{
    struct nn_operand operand;
    return nn_operand_of(matrix, &operand);
}

static shoal_status run(const struct nn_product *product, bool is_alone)
{
    const struct nn_matrix *a = &product->a;
    const struct nn_matrix *b = &product->b;
    bool is_empty = a->rows == 0 || a->cols == 0 || b->cols == 0;
    bool is_taken = !is_empty && nn_product_takes_matrix(a) && nn_product_takes_matrix(b);
    const struct nn_product_row *row = is_taken ? choose(product->dtype, a->rows, b->cols, a->cols) : NULL;
    return (row ? row : &product_plain)->multiply(product, is_alone);
}

shoal_status nn_product_run(const struct nn_product *product)
{
    NN_TRY(nn_products_load());
    return run(product, /*is_alone=*/false);
}

shoal_status nn_product_run_alone(const struct nn_product *product)
{
    return run(product, /*is_alone=*/true);
}

/* Loading ---------------------------------------------------------------------------------------------- */

static void keep_error(shoal_status status)
{
    products.status = status;
    (void)snprintf(products.error, sizeof(products.error), "%s", shoal_error_text());
}

/* The row that SHOAL_PRODUCTS names; NULL, with an error, if there is none of that name or it cannot be loaded. */
static const struct nn_product_row *force(const char *name)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i]->name, name) == 0) {
            shoal_status status = rows[i]->load();
            if (status != SHOAL_OK) {
                keep_error(shoal_fail(SHOAL_ERR_SYSTEM, "SHOAL_PRODUCTS=%s: %s", name, shoal_error_text()));
            }
            return rows[i];
        }
    }
    char names[128] = "";
    for (size_t i = 0; i < N_ROWS; i++) {
        size_t used = strlen(names);
        (void)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "", rows[i]->name);
    }
    keep_error(shoal_fail(SHOAL_ERR_INVALID, "SHOAL_PRODUCTS: \"%.64s\" is none of %s", name, names));
    return NULL;
}

/* A row that is not there is left out. Any other failure is one of products: other bits than those of other ranks,
   without a message, would be worse. */
static bool try_row(const struct nn_product_row *row)
{
    if (row->is_promising && !row->is_promising()) {
        return false;
    }
    shoal_status status = row->load();
    if (status != SHOAL_OK && status != SHOAL_ERR_UNSUPPORTED) {
        keep_error(status);
    }
    return status == SHOAL_OK;
}

/* A forced row has no row of the table beside it, except for dtypes that it cannot be made to take by widening. */
static bool is_allowed(const struct choice *choice)
{
    return !products.forced || (choice->dtype == SHOAL_F64 && !(products.forced_dtypes & bit_of(SHOAL_F64)));
}

static void describe_row(const struct nn_product_row *row, shoal_dtype dtype, char text[TEXT_BYTES])
{
    char details[NN_PRODUCT_TEXT_BYTES];
    row->describe(dtype, details);
    (void)snprintf(text, TEXT_BYTES, "%s%s%s", row->name, details[0] ? " " : "", details);
}

/* What large products are computed by. */
static void describe_choice(shoal_dtype dtype, char text[TEXT_BYTES])
{
    const int64_t large = (int64_t)1 << 20;
    const struct nn_product_row *row = choose(dtype, large, large, large);
    if (row) {
        describe_row(row, dtype, text);
    } else {
        (void)snprintf(text, TEXT_BYTES, "%.*s, widened to f32", TEXT_BYTES - 32, products.f32);
    }
}

/* All rows that a product may be computed by: small ones by another row than large ones. */
static void describe_all(void)
{
    size_t used = (size_t)snprintf(products.all, sizeof(products.all), "f32 %s; bf16 %s; f64 %s",
                                   products.f32, products.bf16, products.f64);
    const struct nn_product_row *small = choose(SHOAL_F32, 1, 1, 1);
    const int64_t large = (int64_t)1 << 20;
    if (small && small != choose(SHOAL_F32, large, large, large) && used < sizeof(products.all)) {
        char text[TEXT_BYTES];
        describe_row(small, SHOAL_F32, text);
        (void)snprintf(products.all + used, sizeof(products.all) - used, "; small f32 %s", text);
    }
}

/* Which dtypes the forced row takes is asked once: a row may have to look. */
static void find_forced(const char *name)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16};
    products.forced = force(name);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && products.status == SHOAL_OK; i++) {
        products.forced_dtypes |= products.forced->takes(dtypes[i]) ? bit_of(dtypes[i]) : 0;
    }
}

static void load(void)
{
    const char *asked = getenv("SHOAL_PRODUCTS");
    if (asked && asked[0] != '\0') {
        find_forced(asked);
    }
    for (size_t i = 0; i < N_CHOICES && products.status == SHOAL_OK; i++) {
        const struct nn_product_row *row = choices[i].row;
        products.can_use[i] = is_allowed(&choices[i]) && try_row(row) && row->takes(choices[i].dtype) &&
                              (!row->is_fast || row->is_fast(choices[i].dtype));
    }
    if (products.status != SHOAL_OK) {
        return;
    }
    describe_choice(SHOAL_F32, products.f32);
    describe_choice(SHOAL_F64, products.f64);
    describe_choice(SHOAL_BF16, products.bf16);
    describe_all();
    shoal_status status = shoal_op_set_basis("shoal_nn", products.all);
    if (status != SHOAL_OK) {
        keep_error(status);
    }
}

shoal_status nn_products_load(void)
{
    (void)pthread_once(&is_loaded, load);
    return products.status == SHOAL_OK ? SHOAL_OK : shoal_fail(products.status, "%s", products.error);
}

/* What programs are told ------------------------------------------------------------------------------- */

shoal_status shoal_nn_products_info(shoal_nn_products *info_out)
{
    static const char call[] = "nn_products_info";
    NN_TRY(nn_struct_check(call, "info_out", info_out));
    NN_TRY(nn_products_load());
    const shoal_nn_products info = {.struct_size = sizeof(info),
                                    .f32 = products.f32,
                                    .bf16 = products.bf16,
                                    .f64 = products.f64,
                                    .all = products.all,
                                    .hint = nn_onednn_hint(products.bf16)};
    return nn_struct_write(call, "info_out", info_out, &info, sizeof(info));
}

shoal_status shoal_nn_product_row_get(size_t index, shoal_nn_product_row *info_out)
{
    static const char call[] = "nn_product_row_get";
    static _Thread_local char details[NN_PRODUCT_TEXT_BYTES];
    static _Thread_local char reason[512];
    NN_TRY(nn_struct_check(call, "info_out", info_out));
    if (index >= N_ROWS) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: index: %zu is not below %d", call, index, N_ROWS);
    }
    const struct nn_product_row *row = rows[index];
    shoal_nn_product_row info = {.struct_size = sizeof(info), .name = row->name, .doc = docs[index]};
    if (row->load() == SHOAL_OK) {
        row->describe(row->takes(SHOAL_BF16) ? SHOAL_BF16 : SHOAL_F32, details);
        info.details = details;
        info.library = row->library();
    } else {
        (void)snprintf(reason, sizeof(reason), "%s", shoal_error_text());
        info.reason = reason;
    }
    return nn_struct_write(call, "info_out", info_out, &info, sizeof(info));
}
