/* SPDX-License-Identifier: MIT */
/* Choosing an algorithm by the rows of algorithms.def and preferences.def, or by SHOAL_ALGO. */
#include "transport/shm/algorithm.h"

#include <stdint.h>

#include "base/options.h"
#include "transport/shm/oneshot.h"

const struct algorithm_row shm_algorithm_rows[SHM_ALGORITHM_COUNT] = {
#define ALGORITHM(name_, text, min_ranks_, max_ranks_, needs, needs_text_, doc_) \
    [SHM_ALGORITHM_##name_] = {.name = text,                                     \
                               .min_ranks = min_ranks_,                          \
                               .max_ranks = max_ranks_,                          \
                               .needs_text = needs_text_,                        \
                               .doc = doc_},
#include "transport/shm/algorithms.def"
#undef ALGORITHM
};

_Static_assert(SHM_SINGLE_RANKS * 2 * sizeof(uint64_t) <= SHM_SLOT_BYTES, "counts and addresses fit a slot");
_Static_assert(SHM_SLOT_BYTES == 16 * 1024, "algorithms.def says it in words");

bool shm_single_is_wanted(void)
{
    return option_choice(OPTION_SINGLE_COPY) == 0; /* auto */
}

bool shm_single_is_asked_for(void)
{
    bool is_asked = false;
    for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
        is_asked =
            is_asked || algorithm_asked(&shm_algorithms, (enum collective_kind)kind) == SHM_ALGORITHM_SINGLE;
    }
    return is_asked;
}

bool shm_algorithm_can(enum shm_algorithm algorithm, const struct shm_algorithm_query *query)
{
    const struct algorithm_row *row = &shm_algorithm_rows[algorithm];
    if (query->n_ranks < row->min_ranks || (row->max_ranks > 0 && query->n_ranks > row->max_ranks)) {
        return false;
    }
    const struct shm_algorithm_query *q = query;
    switch (algorithm) {
#define ALGORITHM(name, text, min_ranks, max_ranks, needs, needs_text, doc) \
    case SHM_ALGORITHM_##name:                                              \
        return (needs);
#include "transport/shm/algorithms.def"
#undef ALGORITHM
    case SHM_ALGORITHM_COUNT:
        break;
    }
    (void)q;
    return false;
}

static enum shm_algorithm pick_preferred(const struct shm_algorithm_query *q, const char **why_out)
{
#define PREFER(name, condition, why)                                 \
    if ((condition) && shm_algorithm_can(SHM_ALGORITHM_##name, q)) { \
        *why_out = why;                                              \
        return SHM_ALGORITHM_##name;                                 \
    }
#include "transport/shm/preferences.def"
#undef PREFER
    *why_out = "nothing can carry it";
    return SHM_ALGORITHM_COUNT;
}

enum shm_algorithm shm_algorithm_pick(const struct shm_algorithm_query *query, const char **why_out)
{
    const char *why;
    enum shm_algorithm algorithm = (enum shm_algorithm)algorithm_asked(&shm_algorithms, query->kind);
    if (algorithm < SHM_ALGORITHM_COUNT && shm_algorithm_can(algorithm, query)) {
        why = "SHOAL_ALGO asks for it";
    } else if ((algorithm == SHM_ALGORITHM_DIRECT || algorithm == SHM_ALGORITHM_SINGLE) &&
               shm_algorithm_can(SHM_ALGORITHM_STAGED, query)) {
        /* Other ranks may have buffers for it, and pick it. With those only staged can be agreed on (shm_settle). */
        why = algorithm == SHM_ALGORITHM_DIRECT
                  ? "SHOAL_ALGO asks for direct, but the buffers are not symmetric"
                  : "SHOAL_ALGO asks for single, but peers cannot read the buffers";
        algorithm = SHM_ALGORITHM_STAGED;
    } else {
        algorithm = pick_preferred(query, &why);
    }
    if (why_out) {
        *why_out = why;
    }
    return algorithm;
}

/* The table for SHOAL_ALGO and `shoal info --explain` ----------------------------------------------------- */

/* What a rank would put into its slot for a call whose widest buffer has question->bytes. */
static size_t find_slot_bytes(const struct algorithm_question *question)
{
    struct collective call = {
        .kind = question->kind, .dtype = SHOAL_U8, .n_pieces = 1, .single = {.count = 1}};
    call.pieces = &call.single;
    bool has_count = question->kind != COLLECTIVE_BARRIER && question->kind != COLLECTIVE_WINDOW_GATHER;
    call.single.count = has_count ? question->bytes / collective_bytes(&call, question->n_ranks) : 0;
    return shm_oneshot_bytes(&call, question->n_ranks);
}

static struct shm_algorithm_query make_query(const struct algorithm_question *question)
{
    return (struct shm_algorithm_query){.kind = question->kind,
                                        .n_ranks = question->n_ranks,
                                        .slot_bytes = find_slot_bytes(question),
                                        .bytes = question->bytes,
                                        .is_symmetric = question->is_symmetric,
                                        .is_readable = shm_single_is_wanted()};
}

static bool can_carry(int row, const struct algorithm_question *question)
{
    struct shm_algorithm_query query = make_query(question);
    return shm_algorithm_can((enum shm_algorithm)row, &query);
}

static int pick_for(const struct algorithm_question *question, const char **why_out)
{
    struct shm_algorithm_query query = make_query(question);
    return (int)shm_algorithm_pick(&query, why_out);
}

static struct algorithm_wishes wishes;

const struct algorithm_table shm_algorithms = {.rows = shm_algorithm_rows,
                                               .n_rows = SHM_ALGORITHM_COUNT,
                                               .wishes = &wishes,
                                               .can = can_carry,
                                               .pick = pick_for};
