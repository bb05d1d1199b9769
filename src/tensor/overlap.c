/* SPDX-License-Identifier: MIT */
/*
 * Finds out whether two tensors have a byte in common: exactly, where that is cheap.
 *
 * The address of each byte of a tensor is that of its first byte plus a number of steps along each dimension; the
 * bytes of an element count as one more dimension. Two tensors overlap if such sums are equal. If the steps of the
 * second are counted from its last byte instead of its first, all terms have the same sign:
 *
 *     steps of a * strides of a + steps of b * strides of b == last byte of b - first byte of a
 *
 * Steps along equal strides are combined into one term. The search goes from the largest stride down: the number of
 * steps must leave a rest that the smaller strides can make up. If strides are nested, as those of slices are, one or
 * two numbers need to be tried. In general this is a knapsack problem, so the search gives up after some steps and
 * says that the tensors may overlap.
 */
#include <stdlib.h>

#include "tensor/tensor.h"

enum {
    MAX_TERMS = 2 * (SHOAL_MAX_DIMS + 1),
    MAX_SEARCH = 4096
};

struct term {
    int64_t stride; /* > 0 */
    int64_t n_steps;
};

struct terms {
    struct term items[MAX_TERMS];   /* by falling strides, all different */
    int64_t reaches[MAX_TERMS + 1]; /* the largest sum of this term and those after it */
    int64_t divisors[MAX_TERMS];    /* the greatest common divisor of the strides from this one on */
    int n_terms;
    int n_left; /* how many steps of the search are left */
};

static void add_term(struct terms *terms, int64_t stride, int64_t n_steps)
{
    int at = terms->n_terms;
    if (stride == 0 || n_steps == 0) {
        return;
    }
    while (at > 0 && terms->items[at - 1].stride < stride) {
        at--;
    }
    if (at > 0 && terms->items[at - 1].stride == stride) {
        terms->items[at - 1].n_steps += n_steps;
        return;
    }
    for (int i = terms->n_terms; i > at; i--) {
        terms->items[i] = terms->items[i - 1];
    }
    terms->items[at] = (struct term){.stride = stride, .n_steps = n_steps};
    terms->n_terms++;
}

static void add_terms(struct terms *terms, const shoal_tensor *tensor)
{
    const struct layout *layout = &tensor->layout;
    int64_t element_bytes = (int64_t)dtype_bytes(tensor->dtype);
    for (int i = 0; i < layout->n_dims; i++) {
        if (layout->shape[i] > 1) { /* other strides are never used, and may be anything */
            add_term(terms, llabs(layout->strides[i]) * element_bytes, layout->shape[i] - 1);
        }
    }
    add_term(terms, 1, element_bytes - 1);
}

static int64_t find_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void sum_up(struct terms *terms)
{
    int64_t divisor = 0;
    terms->reaches[terms->n_terms] = 0;
    for (int i = terms->n_terms - 1; i >= 0; i--) {
        const struct term *term = &terms->items[i];
        terms->reaches[i] = terms->reaches[i + 1] + term->stride * term->n_steps;
        terms->divisors[i] = divisor = find_divisor(term->stride, divisor);
    }
}

/* Whether the terms from `at` on can sum to `rest`; also true if the search gives up. */
static bool may_make(struct terms *terms, int at, int64_t rest)
{
    if (rest < 0 || rest > terms->reaches[at]) {
        return false;
    }
    if (at == terms->n_terms || rest % terms->divisors[at] != 0) {
        return at == terms->n_terms; /* with nothing left to make */
    }
    const struct term *term = &terms->items[at];
    int64_t missing = rest - terms->reaches[at + 1];
    int64_t low = missing > 0 ? (missing + term->stride - 1) / term->stride : 0;
    int64_t high = rest / term->stride < term->n_steps ? rest / term->stride : term->n_steps;
    for (int64_t n = high; n >= low; n--) {
        if (terms->n_left-- <= 0 || may_make(terms, at + 1, rest - n * term->stride)) {
            return true;
        }
    }
    return false;
}

bool tensor_overlaps(const shoal_tensor *a, const shoal_tensor *b)
{
    struct terms terms = {.n_left = MAX_SEARCH};
    if (!tensor_may_overlap(a, b)) {
        return false;
    }
    struct span x = tensor_span(a);
    struct span y = tensor_span(b);
    if (x.is_dense && y.is_dense) {
        return true;
    }
    int64_t distance = 0; /* between the two storages */
    if (a->storage != b->storage) {
        distance =
            (int64_t)(address_number(b->storage->memory->base) - address_number(a->storage->memory->base));
    }
    add_terms(&terms, a);
    add_terms(&terms, b);
    sum_up(&terms);
    return may_make(&terms, 0, distance + (int64_t)y.end - 1 - (int64_t)x.first);
}
