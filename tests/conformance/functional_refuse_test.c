/* SPDX-License-Identifier: MIT */
/*
 * What functional collectives must refuse, on three ranks: every argument of every row spoilt in every way that its
 * kind allows (functional/spoil.h), and what is wrong with one row only (functional/bad_calls.h). A refusal says what was
 * wrong with its values, at once and without asking anybody; the group has not counted the call, whether all ranks made
 * it or one alone, and their next good call works; nothing is lost.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fixtures/groups.h"
#include "conformance/functional/bad_calls.h"
#include "conformance/functional/spoil.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"

enum {
    N_RANKS = 3
};

/* A world of three ---------------------------------------------------------------------------------------- */

struct place {
    struct rank *rank;
    shoal_world *world;
    shoal_group *group;
    shoal_symmetric *symmetric;
    int n_calls;
};

static bool open_place(struct place *place, struct rank *self)
{
    *place = (struct place){.rank = self, .world = rank_world_open(self, 0)};
    if (!place->world) {
        return false;
    }
    place->group = shoal_world_group(place->world);
    return CHECK_OK(shoal_symmetric_create(place->group, ROW_SYMMETRIC_BYTES, &place->symmetric));
}

static void close_place(struct place *place)
{
    shoal_symmetric_free(place->symmetric);
    CHECK_OK(shoal_world_close(place->world));
}

/* Each bad call is made by all ranks, or by one of them alone. */
static bool is_mine(const struct place *place)
{
    int who = place->n_calls % (N_RANKS + 1);
    return who == N_RANKS || who == place->rank->rank;
}

/* A good call, by all. */
static void check_usable(struct place *place)
{
    REQUIRE_OK(shoal_scope_begin());
    float value = (float)(place->rank->rank + 1 + place->n_calls % 7);
    shoal_tensor *sum =
        shoal_all_reduce(shoal_full((int64_t[]){2}, 1, (double)value, SHOAL_F32), SHOAL_SUM, place->group);
    const float *data = shoal_data(sum);
    if (!data || data[1] != (float)(6 + N_RANKS * (place->n_calls % 7))) {
        test_failed(__FILE__, __LINE__, "after bad call %d: %s", place->n_calls, shoal_error_text());
    }
    CHECK_OK(shoal_scope_end());
}

static bool has_words(const char *text, const char *words)
{
    while (*words) {
        char word[96];
        size_t length = strcspn(words, "|");
        (void)snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (!strstr(text, word)) {
            return false;
        }
        words += length + (words[length] == '|');
    }
    return true;
}

/* A refusal speaks of the call's own arguments, not of what it is made of. */
static bool has_strange_names(const char *text)
{
    static const char *const names[] = {"reduce_op_find", "from_memory",  "_list: ",
                                        "_start",         "_v: ",         "send and recv",
                                        "all_gather: ",   "all_to_all: ", "reduce_scatter: "};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strstr(text, names[i])) {
            return true;
        }
    }
    return false;
}

/* After a call in a scope of its own, which must have been refused; ends the scope. */
static void check_refusal(struct place *place, bool was_done, const char *op, const char *what,
                          shoal_status status, const char *words, uint64_t sequence)
{
    shoal_status error = shoal_scope_error();
    const char *text = shoal_error_text();
    bool is_clear = strncmp(text, op, strlen(op)) == 0 && has_words(text, words) && !has_strange_names(text);
    if (was_done || error != status || !is_clear) {
        test_failed(__FILE__, __LINE__, "%s (%s): %s, %s \"%s\"; expected %s with \"%s\"", op, what,
                    was_done ? "done" : "refused", shoal_status_name(error), text, shoal_status_name(status),
                    words);
    }
    CHECK_INT(shoal_group_sequence(place->group), sequence);
    CHECK_STATUS(shoal_scope_end(), status);
}

/* Every argument of every row --------------------------------------------------------------------------- */

/* False: the spoiler does not apply, or has no such variant. */
static bool check_spoilt(struct place *place, enum op_id id, int which, size_t at, int variant)
{
    static _Thread_local struct row_case c; /* large */
    const struct row_wanted wanted = {.group = place->group,
                                      .device = SHOAL_CPU,
                                      .symmetric = place->symmetric,
                                      .dtype = SHOAL_F32,
                                      .is_small = true};
    struct spoilt spoilt = {.c = &c, .at = at, .variant = variant};
    shoal_value result = {.kind = SHOAL_VALUE_NONE, .count = 77};
    char what[80];
    if (!CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    row_build(&c, id, &wanted, (uint64_t)place->n_calls);
    if (at >= c.n_values || !spoilers[which](&spoilt)) {
        CHECK_OK(shoal_scope_end());
        return false;
    }
    uint64_t sequence = shoal_group_sequence(place->group);
    if (!is_mine(place) || spoilt.status == SHOAL_OK) {
        CHECK_OK(shoal_scope_end());
    } else {
        (void)snprintf(what, sizeof what, "argument %zu, spoiler %d, variant %d", at, which, variant);
        bool was_done = shoal_op_call(c.op, c.values, c.n_values, &result) == SHOAL_OK;
        CHECK_INT(result.kind, SHOAL_VALUE_NONE);
        CHECK_INT(result.count, 77);
        check_refusal(place, was_done, c.op->name, what, spoilt.status, spoilt.words, sequence);
    }
    check_usable(place);
    place->n_calls++;
    return true;
}

static void check_row(struct place *place, enum op_id id)
{
    const shoal_op *op = shoal_op_at(id);
    for (int which = 0; which < N_SPOILERS; which++) {
        for (size_t at = 0; at < op->n_params; at++) {
            int variant = 0;
            while (!test_has_failed() && check_spoilt(place, id, which, at, variant)) {
                variant++;
            }
        }
    }
}

#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) OP_##name,
static const enum op_id rows_of_ranks[] = {
#include "op/ops.def"
};
#undef OP

enum {
    N_ROWS = sizeof rows_of_ranks / sizeof rows_of_ranks[0]
};

TEST_RANKS(every_argument_of_every_row, N_RANKS)
{
    struct place place;
    REQUIRE(open_place(&place, self));
    for (int i = 0; i < N_ROWS && !test_has_failed(); i++) {
        check_row(&place, rows_of_ranks[i]);
    }
    CHECK(place.n_calls > 5 * N_ROWS);
    close_place(&place);
}

/* One row's own mistakes --------------------------------------------------------------------------------- */

struct bad_call {
    const char *op;
    shoal_status status;
    const char *words;
    const void *result;
};

/* Makes the `number`-th; false past the last. With `is_mine` false only the description is filled in. */
static bool make_bad_call(const struct bad_tensors *tensors, shoal_group *g, int number, bool is_mine,
                          struct bad_call *call)
{
    shoal_tensor *f = tensors->f;
    shoal_tensor *h = tensors->h;
    shoal_tensor *n = tensors->n;
    shoal_tensor *i = tensors->i;
    shoal_tensor *s = tensors->s;
    shoal_tensor *x = tensors->x;
    shoal_tensor *v = tensors->v;
    shoal_tensor *o = tensors->o;
    shoal_tensor *q = tensors->q;
    shoal_tensor *w = tensors->w;
    shoal_tensor *p = tensors->p;
    shoal_tensor *t = tensors->t;
    shoal_tensor *y = tensors->y;
    shoal_tensor *z = tensors->z;
    shoal_symmetric *m = tensors->m;
    int at = 0;
#define BAD(op_, status_, words_, call_)                                    \
    if (at++ == number) {                                                   \
        *call = (struct bad_call){#op_, SHOAL_ERR_##status_, words_, NULL}; \
        if (is_mine) {                                                      \
            call->result = (const void *)(call_);                           \
        }                                                                   \
        return true;                                                        \
    }
    BAD_CALLS(BAD)
#undef BAD
    return false;
}

static bool make_tensors(struct bad_tensors *t, struct place *place)
{
    *t = (struct bad_tensors){.f = shoal_full(INTS(6, 3), 2, 1.5, SHOAL_F32),
                              .h = shoal_full(INTS(6, 3), 2, 2.5, SHOAL_F32),
                              .n = shoal_full(INTS(4), 1, 1, SHOAL_F32),
                              .i = shoal_full(INTS(6), 1, 3, SHOAL_I32),
                              .s = shoal_full(NULL, 0, 3.5, SHOAL_F32),
                              .o = shoal_full(INTS(18, 3), 2, 4.5, SHOAL_F32),
                              .q = shoal_full(INTS(2, 3), 2, 5.5, SHOAL_F32),
                              .y = shoal_symmetric_tensor(place->symmetric, 0, INTS(6, 3), 2, SHOAL_F32),
                              .m = place->symmetric};
    t->x = shoal_expand(t->s, INTS(6, 3), 2);
    t->v = shoal_transpose(t->f, 0, 1);
    t->w = shoal_narrow(t->o, 0, 0, 6);
    t->p = shoal_narrow(t->o, 0, 1, 6);
    t->t = shoal_narrow(t->f, 0, 1, 2);
    t->z = shoal_transpose(t->y, 0, 1);
    return shoal_scope_error() == SHOAL_OK;
}

TEST_RANKS(wrong_meanings, N_RANKS)
{
    struct place place;
    struct bad_tensors tensors;
    struct bad_call call;
    REQUIRE(open_place(&place, self));
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE(make_tensors(&tensors, &place));
    while (!test_has_failed()) {
        uint64_t sequence = shoal_group_sequence(place.group);
        bool makes_call = is_mine(&place);
        REQUIRE_OK(shoal_scope_begin());
        bool is_call = make_bad_call(&tensors, place.group, place.n_calls, makes_call, &call);
        if (is_call && makes_call) {
            check_refusal(&place, call.result != NULL, call.op, "typed", call.status, call.words, sequence);
        } else {
            CHECK_OK(shoal_scope_end());
        }
        if (!is_call) {
            break;
        }
        check_usable(&place);
        place.n_calls++;
    }
    /* Nothing was written. */
    const float *f = shoal_data(tensors.f);
    const float *o = shoal_data(tensors.o);
    const float *y = shoal_data(tensors.y);
    for (int k = 0; k < 18 && !test_has_failed(); k++) {
        CHECK(f && f[k] == 1.5f && o && o[k] == 4.5f && y && y[k] == 0);
    }
    CHECK_OK(shoal_scope_end());
    close_place(&place);
}

TEST(every_row_has_a_bad_call)
{
    static const char *const covered[] = {
#define BAD(op, status, words, call) #op,
        BAD_CALLS(BAD)
#undef BAD
    };
    for (int i = 0; i < N_ROWS; i++) {
        bool is_found = false;
        for (size_t k = 0; k < sizeof covered / sizeof covered[0]; k++) {
            is_found = is_found || strcmp(covered[k], shoal_op_at(rows_of_ranks[i])->name) == 0;
        }
        if (!is_found) {
            test_failed(__FILE__, __LINE__, "row %s has no bad call", shoal_op_at(rows_of_ranks[i])->name);
        }
    }
}

/* More ------------------------------------------------------------------------------------------------- */

/* Symmetric memory of two of three ranks is none for the three. */
TEST_RANKS(symmetric_memory_of_another_group, N_RANKS)
{
    struct place place;
    shoal_symmetric *symmetric = NULL;
    REQUIRE(open_place(&place, self));
    REQUIRE_OK(shoal_scope_begin());
    if (self->rank < 2) {
        shoal_group *two = group_of_ranks(place.world, (int[]){0, 1}, 2, NULL);
        REQUIRE_OK(shoal_symmetric_create(two, 4096, &symmetric));
        shoal_tensor *block = shoal_symmetric_tensor(symmetric, 0, INTS(4), 1, SHOAL_F32);
        CHECK(shoal_data(shoal_one_shot_all_reduce(block, SHOAL_SUM, two)));
        uint64_t sequence = shoal_group_sequence(place.group);
        REQUIRE_OK(shoal_scope_begin());
        bool was_done = shoal_one_shot_all_reduce(block, SHOAL_SUM, place.group) != NULL;
        check_refusal(&place, was_done, "one_shot_all_reduce", "typed", SHOAL_ERR_INVALID,
                      "is not in symmetric memory of group", sequence);
        /* What belongs to more ranks will do for fewer. */
        shoal_tensor *wide = shoal_symmetric_tensor(place.symmetric, 0, INTS(4), 1, SHOAL_F32);
        CHECK(shoal_data(shoal_two_shot_all_reduce_(wide, SHOAL_MAX, two)));
        CHECK_OK(shoal_group_barrier(two));
    }
    check_usable(&place);
    CHECK_OK(shoal_scope_end());
    shoal_symmetric_free(symmetric);
    close_place(&place);
}

/* What lies between each other without sharing anything is not refused: the columns of a matrix. */
TEST_RANKS(columns_are_no_overlap, N_RANKS)
{
    struct place place;
    REQUIRE(open_place(&place, self));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *matrix = shoal_zeros(INTS(4, N_RANKS), 2, SHOAL_F32);
    shoal_tensor *columns[N_RANKS];
    for (int i = 0; i < N_RANKS; i++) {
        columns[i] = shoal_select(matrix, 1, i);
    }
    shoal_tensor *mine = shoal_full(INTS(4), 1, self->rank + 1, SHOAL_F32);
    CHECK(shoal_all_gather_inplace(columns, N_RANKS, mine, place.group));
    CHECK(shoal_all_reduce_coalesced_(columns, N_RANKS, SHOAL_SUM, place.group));
    const float *data = shoal_data(matrix);
    for (int i = 0; i < 4 * N_RANKS; i++) {
        CHECK(data && data[i] == (float)(N_RANKS * (i % N_RANKS + 1)));
    }
    CHECK_OK(shoal_scope_end());
    close_place(&place);
}

/* Without a scope there is nobody to own the result. */
TEST_RANKS(calls_need_a_scope, N_RANKS)
{
    struct place place;
    REQUIRE(open_place(&place, self));
    uint64_t sequence = shoal_group_sequence(place.group);
    CHECK(!shoal_all_reduce(NULL, SHOAL_SUM, place.group));
    CHECK_ERROR_TEXT("no scope");
    CHECK(!shoal_reduce_scatter_tensor_coalesced(NULL, 0, SHOAL_SUM, NULL, place.group));
    CHECK_ERROR_TEXT("no scope");
    CHECK(!shoal_batch_p2p_ops(NULL, 0, place.group));
    CHECK_ERROR_TEXT("no scope");
    CHECK(!shoal_all_to_all_single(NULL, INTS(1), NULL, 0, place.group));
    CHECK_ERROR_TEXT("no scope");
    CHECK(!shoal_symmetric_tensor(place.symmetric, 0, INTS(1), 1, SHOAL_F32));
    CHECK_ERROR_TEXT("no scope");
    CHECK_INT(shoal_group_sequence(place.group), sequence);
    check_usable(&place);
    close_place(&place);
}

/* A scope that has failed makes no more calls: the ranks agree on what was made because none was. */
TEST_RANKS(a_failed_scope_makes_no_calls, N_RANKS)
{
    struct place place;
    REQUIRE(open_place(&place, self));
    uint64_t sequence = shoal_group_sequence(place.group);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *good = shoal_zeros(INTS(3), 1, SHOAL_F32);
    CHECK(!shoal_broadcast(good, 17, place.group));
    CHECK(!shoal_all_reduce(good, SHOAL_SUM, place.group));
    CHECK(!shoal_isend(good, 0, 0, place.group));
    CHECK(!shoal_batch_p2p_ops(NULL, 0, place.group));
    CHECK(!shoal_reduce_scatter_tensor_coalesced(&good, 1, SHOAL_SUM, NULL, place.group));
    CHECK_INT(shoal_group_sequence(place.group), sequence);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("broadcast: root: invalid root rank 17 in a group of 3 ranks");
    check_usable(&place);
    close_place(&place);
}
