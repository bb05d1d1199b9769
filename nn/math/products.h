/* SPDX-License-Identifier: MIT */
/*
 * Matrix products. What can compute them are rows of a table (product_rows.def), which are loaded at run time. Another
 * table (product_choices.def) says which row takes a product, by its dtype and size: never by measured times, which
 * would give every run and rank other bits. SHOAL_PRODUCTS forces a row.
 *
 * The bits of a product are a function of the row, the version of its library, the instruction set that it uses, shapes
 * and strides. They do not depend on the number of threads. A product is never joined with another one or cut in two
 * above this interface, because a library may add in another order for another number of rows.
 */
#ifndef NN_MATH_PRODUCTS_H
#define NN_MATH_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/loops.h"
#include "shoal/dtype.h"
#include "shoal/status.h"

/* c = a b, or a b plus a bias in every row, or c + a b. All have one dtype. */
struct nn_product {
    shoal_dtype dtype;
    struct nn_matrix a;
    struct nn_matrix b;
    const void *bias; /* b.cols elements, contiguous; NULL if there is none. Not together with `adds` */
    bool adds;
    void *c; /* [a.rows, b.cols], contiguous */
};

#define NN_PRODUCT_TEXT_BYTES 160

/* What can multiply. All functions but `load` are called after a load that has succeeded. */
struct nn_product_row {
    const char *name;
    /* Finds and loads the library, once. What went wrong the first time goes wrong every time, with the same text.
       SHOAL_ERR_UNSUPPORTED: the library is not there, or is not one that can be used. */
    shoal_status (*load)(void);
    /* Whether a load is worth while on this processor: whether it might be chosen. NULL: always. */
    bool (*is_promising)(void);
    /* Whether it takes matrices of this dtype. */
    bool (*takes)(shoal_dtype dtype);
    /* Whether it is the fastest of the rows that do, on this processor. NULL: always. */
    bool (*is_fast)(shoal_dtype dtype);
    /* `is_alone`: on the calling thread only, because others compute products at the same time. */
    shoal_status (*multiply)(const struct nn_product *product, bool is_alone);
    /* Version and instruction set, which a product's bits depend on: "0.3.21 neoversev1". */
    void (*describe)(shoal_dtype dtype, char text[NN_PRODUCT_TEXT_BYTES]);
    /* The file that was loaded; NULL if there is none. */
    const char *(*library)(void);
};

#define PRODUCT(name, doc) extern const struct nn_product_row product_##name;
#include "math/product_rows.def"
#undef PRODUCT

/* Loads what products need, and states it to Shoal, whose ranks compare it (shoal_op_set_basis). Once, as `load`
   of a row does. */
shoal_status nn_products_load(void);

/* Computes a product of f32 or f64, or one that nn_products_take. It may use all threads. */
shoal_status nn_product_run(const struct nn_product *product);

/* The same on the calling thread only, so that several threads can each compute a product. Call nn_products_load
   first. */
shoal_status nn_product_run_alone(const struct nn_product *product);

/* Whether products of a 16-bit dtype and this size are computed as they are. Otherwise the caller widens to f32. */
bool nn_products_take(shoal_dtype dtype, int64_t n_rows, int64_t n_cols, int64_t n_inner);

/* For rows without biases: a bias is what the rows of c hold before the product is added to them. Returns whether it is
   to be added to what c holds. */
bool nn_product_begin_rows(const struct nn_product *product);

/* True when a library takes the matrix as it lies: one of its strides is 1 and the other large enough. */
bool nn_product_takes_matrix(const struct nn_matrix *matrix);

#endif
