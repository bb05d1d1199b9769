/* SPDX-License-Identifier: MIT */
/*
 * Joins pairs in the order of their ranks, and those of one rank from left to right. The tokens of a piece are a linked
 * list, and the pairs that can be joined are in a heap, so that a long piece without spaces takes little more time per
 * byte than a short one.
 */
#include "text/bpe.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

static uint64_t make_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

shoal_status bpe_add(struct bpe *bpe, int32_t left, int32_t right, struct bpe_merge merge, bool *is_new_out)
{
    size_t index = bpe->n_merges;
    TRY(mem_grow((void **)&bpe->merges, &bpe->merge_capacity, bpe->n_merges + 1, sizeof(bpe->merges[0])));
    TRY(map_get_or_add(&bpe->pairs, make_key(left, right), bpe->n_merges, &index));
    *is_new_out = index == bpe->n_merges;
    if (*is_new_out) {
        bpe->merges[bpe->n_merges++] = merge;
    }
    return SHOAL_OK;
}

void bpe_free(struct bpe *bpe)
{
    map_free(&bpe->pairs);
    mem_free(bpe->merges);
    mem_free(bpe->heap);
    mem_free(bpe->symbols);
    *bpe = (struct bpe){0};
}

/* The heap --------------------------------------------------------------------------------------------- */

static bool is_before(const struct bpe_candidate *left, const struct bpe_candidate *right)
{
    return left->rank != right->rank ? left->rank < right->rank : left->at < right->at;
}

static void swap(struct bpe_candidate *left, struct bpe_candidate *right)
{
    struct bpe_candidate other = *left;
    *left = *right;
    *right = other;
}

static shoal_status push(struct bpe *bpe, struct bpe_candidate candidate)
{
    TRY(mem_grow((void **)&bpe->heap, &bpe->heap_capacity, bpe->n_heap + 1, sizeof(bpe->heap[0])));
    size_t at = bpe->n_heap++;
    bpe->heap[at] = candidate;
    while (at > 0 && is_before(&bpe->heap[at], &bpe->heap[(at - 1) / 2])) {
        swap(&bpe->heap[at], &bpe->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    return SHOAL_OK;
}

/* Of a heap that is not empty. */
static struct bpe_candidate pop(struct bpe *bpe)
{
    struct bpe_candidate first = bpe->heap[0];
    size_t at = 0;
    bpe->heap[0] = bpe->heap[--bpe->n_heap];
    for (size_t child = 1; child < bpe->n_heap; child = 2 * at + 1) {
        if (child + 1 < bpe->n_heap && is_before(&bpe->heap[child + 1], &bpe->heap[child])) {
            child++;
        }
        if (!is_before(&bpe->heap[child], &bpe->heap[at])) {
            break;
        }
        swap(&bpe->heap[child], &bpe->heap[at]);
        at = child;
    }
    return first;
}

/* A piece ---------------------------------------------------------------------------------------------- */

/* The pair whose left symbol is `at` goes into the heap, if there is one and it can be joined. */
static shoal_status offer(struct bpe *bpe, int32_t at)
{
    size_t index = 0;
    int32_t behind = at >= 0 ? bpe->symbols[at].behind : -1;
    if (behind < 0) {
        return SHOAL_OK;
    }
    struct bpe_candidate candidate = {
        .at = at, .left = bpe->symbols[at].token, .right = bpe->symbols[behind].token};
    if (!map_get(&bpe->pairs, make_key(candidate.left, candidate.right), &index)) {
        return SHOAL_OK;
    }
    candidate.rank = bpe->merges[index].rank;
    candidate.token = bpe->merges[index].token;
    return push(bpe, candidate);
}

static bool is_still_there(const struct bpe *bpe, const struct bpe_candidate *candidate)
{
    const struct bpe_symbol *left = &bpe->symbols[candidate->at];
    return left->token == candidate->left && left->behind >= 0 &&
           bpe->symbols[left->behind].token == candidate->right;
}

static shoal_status join_pair(struct bpe *bpe, const struct bpe_candidate *candidate)
{
    struct bpe_symbol *left = &bpe->symbols[candidate->at];
    struct bpe_symbol *right = &bpe->symbols[left->behind];
    left->token = candidate->token;
    left->behind = right->behind;
    right->token = -1;
    if (left->behind >= 0) {
        bpe->symbols[left->behind].before = candidate->at;
    }
    TRY(offer(bpe, left->before));
    return offer(bpe, candidate->at);
}

static shoal_status join_all(struct bpe *bpe)
{
    while (bpe->n_heap > 0) {
        struct bpe_candidate candidate = pop(bpe);
        if (is_still_there(bpe, &candidate)) {
            TRY(join_pair(bpe, &candidate));
        }
    }
    return SHOAL_OK;
}

shoal_status bpe_join(struct bpe *bpe, int32_t *tokens, size_t *count)
{
    size_t n_symbols = *count;
    if (n_symbols > INT32_MAX) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "a piece of text has %zu bytes, more than %d", n_symbols,
                         INT32_MAX);
    }
    TRY(mem_grow((void **)&bpe->symbols, &bpe->symbol_capacity, n_symbols, sizeof(bpe->symbols[0])));
    for (size_t i = 0; i < n_symbols; i++) {
        int32_t behind = i + 1 < n_symbols ? (int32_t)i + 1 : -1;
        bpe->symbols[i] = (struct bpe_symbol){tokens[i], (int32_t)i - 1, behind};
    }
    bpe->n_heap = 0;
    for (size_t i = 0; i < n_symbols; i++) {
        TRY(offer(bpe, (int32_t)i));
    }
    TRY(join_all(bpe));
    *count = 0;
    for (int32_t i = 0; n_symbols > 0 && i >= 0; i = bpe->symbols[i].behind) {
        tokens[(*count)++] = bpe->symbols[i].token;
    }
    return SHOAL_OK;
}
