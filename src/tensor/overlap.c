/* SPDX-License-Identifier: MIT */
/*
 * Whether two tensors touch a common byte: exactly, where that is cheap.
 *
 * A byte of a tensor is its first one and a number of steps along each dimension, of which the bytes of an element are
 * one more. Two tensors meet where such sums are equal. Counting the steps of the second from its last byte instead of
 * its first turns all terms to one side:
 *
 *     steps of a * strides of a + steps of b * strides of b == last byte of b - first byte of a
 *
 * Steps along equal strides add up to one term. From the largest stride down, the number of steps must leave a rest that
 * the smaller ones can make: where strides are nested, as those of slices are, one or two numbers do. In general this
 * is as hard as packing a knapsack, so the search gives up after some steps and says that they may meet.
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
    int64_t reaches[MAX_TERMS + 1]; /* what this one and those behind it can make at most */
    int64_t divisors[MAX_TERMS];    /* of all strides from this one on */
    int n_terms;
    int n_left; /* steps of the search */
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
        if (layout->shape[i] > 1) { /* other strides are never walked, and may be anything */
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

/* Whether the terms from `at` on can make `rest`, or nobody knows. */
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
        distance = (int64_t)((uintptr_t)b->storage->memory->base - (uintptr_t)a->storage->memory->base);
    }
    add_terms(&terms, a);
    add_terms(&terms, b);
    sum_up(&terms);
    return may_make(&terms, 0, distance + (int64_t)y.end - 1 - (int64_t)x.first);
}
