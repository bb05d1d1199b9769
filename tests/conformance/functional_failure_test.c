/* SPDX-License-Identifier: MIT */
/*
 * Functional collectives that fail: where the error shows, what it says, how long it stays, and what is not touched by
 * it. A wrong argument is the call's error; what goes wrong between ranks is that of the tensor.
 */
#include <signal.h>
#include <stdatomic.h>

#include "fixtures/groups.h"
#include "fixtures/functional_calls.h"
#include "shoal_compat/torch.h"

/* A lane of its own for each failure: it is unusable afterwards. */
static shoal_group *lane(const struct functional *self, const char *tag)
{
    int ranks[FUNCTIONAL_MAX_RANKS];
    for (int i = 0; i < self->n_ranks; i++) {
        ranks[i] = i;
    }
    return group_of_ranks(self->world, ranks, self->n_ranks, tag);
}

/* The text of the last failure has all of these words. */
static void check_words(const char *file, int line, const char *const *words)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    for (; *words; words++) {
        if (!strstr(text, *words)) {
            test_failed(file, line, "\"%s\" does not say \"%s\"", text, *words);
        }
    }
}

/* Every use of the tensor fails, in the same way, again and again. */
static void check_failed(const char *file, int line, shoal_tensor *tensor, shoal_status status,
                         const char *const *words)
{
    if (!tensor) {
        test_failed(file, line, "no tensor: the call failed itself: %s", shoal_error_text());
        return;
    }
    for (int i = 0; i < 2; i++) {
        (void)test_check_status(file, line, "wait", shoal_wait(tensor), status);
        check_words(file, line, words);
        CHECK(!shoal_data(tensor));
        check_words(file, line, words);
        CHECK(!shoal_mutable_data(tensor));
        check_words(file, line, words);
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_wait_tensor(tensor));
        check_words(file, line, words);
        (void)test_check_status(file, line, "wait_tensor", shoal_scope_end(), status);
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_neg(tensor));
        check_words(file, line, words);
        (void)test_check_status(file, line, "neg", shoal_scope_end(), status);
        /* Shapes are still known, views can still be taken. */
        REQUIRE_OK(shoal_scope_begin());
        CHECK(shoal_unsqueeze(tensor, 0) != NULL);
        (void)test_check_status(file, line, "view", shoal_scope_end(), status);
    }
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define CHECK_FAILED(tensor, status, ...) \
    check_failed(__FILE__, __LINE__, (tensor), (status), WORDS(__VA_ARGS__))

/* Ranks that disagree ---------------------------------------------------------------------------------- */

static shoal_tensor *ones(int64_t count, shoal_dtype dtype)
{
    return full_of(SHAPE(count), 1, dtype);
}

#define F32(count) ones((count), SHOAL_F32)

/* Rank 1 makes another call than rank 0. Both get tensors, which fail, naming both calls. */
#define DISAGREE(name, even, odd, ...)                                                             \
    FUNCTIONAL(name, 2)                                                                            \
    {                                                                                              \
        shoal_group *g = lane(self, #name);                                                        \
        REQUIRE_OK(shoal_scope_begin());                                                           \
        shoal_tensor *result = self->rank == 0 ? (even) : (odd);                                   \
        CHECK_FAILED(result, SHOAL_ERR_MISMATCH, "on group [0,1] tag \"" #name "\"", __VA_ARGS__); \
        /* Nobody took the error out of the scope: it ends with it. */                             \
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);                                       \
        check_words(__FILE__, __LINE__, WORDS(__VA_ARGS__));                                       \
        /* Other lanes go on. */                                                                   \
        CHECK_FULL(shoal_all_reduce(F32(2), SHOAL_SUM, self->group), SHAPE(2), 2);                 \
    }

DISAGREE(wrong_op, shoal_all_reduce(F32(8), SHOAL_SUM, g), shoal_broadcast(F32(8), 0, g), "all_reduce",
         "broadcast")
DISAGREE(wrong_count, shoal_all_reduce(F32(8), SHOAL_SUM, g), shoal_all_reduce(F32(7), SHOAL_SUM, g),
         "count 8", "count 7", "all_reduce")
DISAGREE(wrong_count_large, shoal_all_reduce(F32(300000), SHOAL_SUM, g),
         shoal_all_reduce(F32(7), SHOAL_SUM, g), "count 300000", "count 7")
DISAGREE(wrong_dtype, shoal_all_gather_into_tensor(F32(8), g),
         shoal_all_gather_into_tensor(ones(8, SHOAL_F64), g), "f32", "f64", "all_gather")
DISAGREE(wrong_reduce, shoal_all_reduce(F32(8), SHOAL_SUM, g), shoal_all_reduce(F32(8), SHOAL_MAX, g), "sum",
         "max")
DISAGREE(wrong_factor, shoal_all_reduce_premul(F32(8), 0.25, g), shoal_all_reduce_premul(F32(8), 0.5, g),
         "0.25", "0.5")
DISAGREE(wrong_root, shoal_broadcast(F32(8), 0, g), shoal_broadcast(F32(8), 1, g), "root 0", "root 1")
DISAGREE(wrong_reduce_root, shoal_reduce(F32(8), SHOAL_SUM, 0, g), shoal_reduce(F32(8), SHOAL_SUM, 1, g),
         "root 0", "root 1")
DISAGREE(wrong_count_to_a_root, shoal_reduce(F32(8), SHOAL_SUM, 0, g), shoal_reduce(F32(9), SHOAL_SUM, 0, g),
         "count 8", "count 9")
DISAGREE(wrong_count_of_columns, shoal_all_gather_tensor(full_of(SHAPE(2, 3), 1, SHOAL_F32), 1, g),
         shoal_all_gather_tensor(full_of(SHAPE(2, 4), 1, SHOAL_F32), 1, g), "count 6", "count 8")
DISAGREE(wrong_count_to_scatter,
         shoal_reduce_scatter_tensor(full_of(SHAPE(3, 2), 1, SHOAL_F32), SHOAL_SUM, 1, g),
         shoal_reduce_scatter_tensor(full_of(SHAPE(5, 2), 1, SHOAL_F32), SHOAL_SUM, 1, g), "count 3",
         "count 5")
DISAGREE(wrong_splits, shoal_all_to_all_single(F32(4), INTS64(2, 3), INTS64(2, 2), 2, g),
         shoal_all_to_all_single(F32(4), INTS64(2, 2), INTS64(2, 2), 2, g), "all_to_all")
DISAGREE(wrong_permutation, shoal_permute_tensor(F32(4), INTS64(1, 0), 2, g),
         shoal_permute_tensor(F32(4), INTS64(0, 1), 2, g), "permute_tensor([4], [1,0])",
         "permute_tensor([4], [0,1])")
DISAGREE(wrong_list, call_last(shoal_all_reduce_coalesced(LIST(F32(3), F32(4)), 2, SHOAL_SUM, g), 2),
         call_last(shoal_all_reduce_coalesced(LIST(F32(4), F32(3)), 2, SHOAL_SUM, g), 2), "all_reduce")
DISAGREE(wrong_length_of_list,
         call_last(shoal_all_reduce_coalesced(LIST(F32(3), F32(4)), 2, SHOAL_SUM, g), 2),
         shoal_all_reduce(F32(7), SHOAL_SUM, g), "all_reduce")

/* A message that is there already is known to be another one when the call is made: it may say so itself. The stream is
   broken, the lane is not. */
static void disagree_about_a_message(struct functional *self, shoal_dtype dtype, const char *const *words)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *result = self->rank == 0 ? shoal_irecv(F32(3), 1, 0, self->group)
                                           : shoal_isend(ones(200000, dtype), 0, 0, self->group);
    if (result) {
        check_failed(__FILE__, __LINE__, result, SHOAL_ERR_MISMATCH, words);
    } else {
        check_words(__FILE__, __LINE__, words);
    }
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    check_words(__FILE__, __LINE__, words);
    CHECK_FULL(shoal_all_reduce(F32(2), SHOAL_SUM, self->group), SHAPE(2), 2);
    shoal_tensor *sent = shoal_isend(F32(2), 1 - self->rank, 1, self->group);
    CHECK_FULL(shoal_irecv(full_of(SHAPE(2), 0, SHOAL_F32), 1 - self->rank, 1, self->group), SHAPE(2), 1);
    CHECK(shoal_wait_tensor(sent));
}

FUNCTIONAL(wrong_count_of_a_message, 2)
{
    disagree_about_a_message(self, SHOAL_F32, WORDS("count 3", "count 200000"));
}

FUNCTIONAL(wrong_dtype_of_a_message, 2)
{
    disagree_about_a_message(self, SHOAL_I32, WORDS("f32", "i32"));
}

/* All outputs of one call fail, and of all later ones on that lane, which may say so at once. */
FUNCTIONAL(a_failure_is_that_of_all_outputs, 2)
{
    shoal_group *g = lane(self, "x");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *const *results =
        shoal_all_gather_into_tensor_coalesced(LIST(F32(3), F32(0), F32(4 + self->rank)), 3, g);
    REQUIRE(results);
    for (int i = 0; i < 3; i++) {
        CHECK_FAILED(results[i], SHOAL_ERR_MISMATCH, "all_gather");
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *later = shoal_all_reduce(F32(3), SHOAL_SUM, g);
    CHECK(!later || !shoal_data(later));
    CHECK_ERROR_TEXT("all_gather");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
}

/* Until it is overwritten ------------------------------------------------------------------------------ */

/* A tensor of [4] whose last write failed. */
static shoal_tensor *break_tensor(struct functional *self, const char *tag)
{
    shoal_tensor *tensor = F32(4);
    shoal_group *g = lane(self, tag);
    CHECK(shoal_all_gather_into_tensor_out(F32(2), g, tensor) == tensor);
    CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_MISMATCH);
    return tensor;
}

/* Rank 1's side of it differs in the dtype. */
static void break_peer(struct functional *self, const char *tag)
{
    REQUIRE_OK(shoal_scope_begin());
    (void)shoal_all_gather_into_tensor(ones(2, SHOAL_I32), lane(self, tag));
    CHECK(shoal_scope_end() != SHOAL_ERR_INVALID);
}

FUNCTIONAL(a_failure_stays_until_it_is_overwritten, 2)
{
    static const char *const tags[] = {"a", "b", "c", "d"};
    if (self->rank == 1) {
        for (int i = 0; i < 4; i++) {
            break_peer(self, tags[i]);
        }
        CHECK_FULL(shoal_all_gather_into_tensor(F32(2), self->group), SHAPE(4), 1);
        return;
    }
    shoal_tensor *broken[4];
    for (int i = 0; i < 4; i++) {
        broken[i] = break_tensor(self, tags[i]);
    }
    /* A part is not all of it. */
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_copy_(shoal_narrow(broken[0], 0, 0, 2), F32(2)));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_add_(broken[0], F32(4)));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    /* Nor is what could not be written. */
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_copy_(broken[0], broken[1]));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_FAILED(broken[0], SHOAL_ERR_MISMATCH, "all_gather");
    /* These are. */
    CHECK(shoal_copy_(broken[0], full_of(SHAPE(4), 7, SHOAL_F32)) == broken[0]);
    CHECK_FULL(broken[0], SHAPE(4), 7);
    CHECK(shoal_copy_(shoal_view(broken[1], INTS64(2, 2), 2), full_of(SHAPE(1), 8, SHOAL_F32)));
    CHECK_FULL(broken[1], SHAPE(4), 8);
    CHECK(shoal_all_gather_into_tensor_out(F32(2), self->group, broken[2]) == broken[2]);
    CHECK_FULL(broken[2], SHAPE(4), 1);
    CHECK_OK(shoal_tensor_rebind_data(broken[3], NULL, NULL, NULL));
    CHECK(shoal_copy_(broken[3], broken[2]));
    CHECK_FULL(broken[3], SHAPE(4), 1);
}

/* A tensor that failed is no input, and the call is not made: the lane goes on on both ranks. */
FUNCTIONAL(a_failed_tensor_is_no_input, 2)
{
    shoal_group *g = lane(self, "x");
    uint64_t sequence = shoal_group_sequence(self->group);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *broken = shoal_all_reduce(F32(3 + self->rank), SHOAL_SUM, g);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_all_reduce(broken, SHOAL_SUM, self->group));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_INT(shoal_group_sequence(self->group), sequence);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_FULL(shoal_all_reduce(F32(3), SHOAL_SUM, self->group), SHAPE(3), 2);
}

/* What is not written ---------------------------------------------------------------------------------- */

static void check_memory(const float *memory, int count, float expected)
{
    for (int i = 0; i < count; i++) {
        if (memory[i] != expected) {
            test_failed(__FILE__, __LINE__, "float %d is %g, expected %g", i, (double)memory[i],
                        (double)expected);
            return;
        }
    }
}

/* The copies that follow the data do not follow a failure, into any layout. */
FUNCTIONAL(targets_of_a_failure_are_as_they_were, 2)
{
    float memory[3][48];
    shoal_tensor *tensors[3];
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 48; k++) {
            memory[i][k] = 5;
        }
        tensors[i] = shoal_from_memory(memory[i], INTS64(4, 12), 2, SHOAL_F32, NULL, NULL, NULL);
    }
    REQUIRE_OK(shoal_scope_begin());
    int64_t rows = 4 - self->rank;
    shoal_tensor *columns = shoal_slice(tensors[0], 1, 0, 12, 2);
    shoal_tensor *turned = shoal_transpose(tensors[1], 0, 1);
    shoal_tensor *a = shoal_all_gather_tensor_inplace(
        shoal_narrow(columns, 0, 0, rows), full_of(SHAPE(rows, 3), 1, SHOAL_F32), 1, lane(self, "a"));
    shoal_tensor *b =
        shoal_all_reduce_(shoal_narrow(turned, 0, 0, 8 + self->rank), SHOAL_SUM, lane(self, "b"));
    shoal_tensor *half = shoal_narrow(tensors[2], 0, 0, rows);
    shoal_tensor *const *c = shoal_all_gather_inplace(
        LIST(shoal_clone(half), half), 2, full_of(SHAPE(rows, 12), 1, SHOAL_F32), lane(self, "c"));
    CHECK_FAILED(a, SHOAL_ERR_MISMATCH, "count 12", "count 9");
    CHECK_FAILED(b, SHOAL_ERR_MISMATCH, "count 32", "count 36");
    REQUIRE(c);
    CHECK_FAILED(c[0], SHOAL_ERR_MISMATCH, "all_gather");
    CHECK_FAILED(c[1], SHOAL_ERR_MISMATCH, "all_gather");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    for (int i = 0; i < 3; i++) {
        check_memory(memory[i], 48, 5);
        CHECK_OK(shoal_tensor_rebind_data(tensors[i], memory[i], NULL, NULL));
    }
}

/* Scopes ----------------------------------------------------------------------------------------------- */

/* Somebody else has seen it; the scope that owns the tensor, and has not, still ends with it. */
FUNCTIONAL(a_scope_ends_with_a_failure_nobody_looked_at, 2)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *broken = shoal_all_reduce(F32(3 + self->rank), SHOAL_SUM, lane(self, "x"));
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK_STATUS(shoal_wait(broken), SHOAL_ERR_MISMATCH);
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK(F32(1) != NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("all_reduce");
    CHECK_OK(shoal_scope_error());
}

/* Wrong arguments -------------------------------------------------------------------------------------- */

/* Rank 0 alone makes calls that are wrong: nothing of them reaches the lane. */
FUNCTIONAL(an_error_at_issue_leaves_the_lane_usable, 2)
{
    shoal_group *g = self->group;
    for (int i = 0; self->rank == 0 && i < 12; i++) {
        uint64_t sequence = shoal_group_sequence(g);
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *odd = F32(3);
        const bool was_refused =
            i == 0    ? !shoal_all_reduce(odd, SHOAL_BAND, g)
            : i == 1  ? !shoal_all_reduce(odd, SHOAL_PREMUL_SUM, g)
            : i == 2  ? !shoal_broadcast(odd, 2, g)
            : i == 3  ? !shoal_reduce_scatter_tensor(odd, SHOAL_SUM, 0, g)
            : i == 4  ? !shoal_all_to_all_single(odd, NULL, NULL, 0, g)
            : i == 5  ? !shoal_all_to_all_single(odd, INTS64(1, 2), INTS64(1, 1), 2, g)
            : i == 6  ? !shoal_all_gather_tensor(odd, 1, g)
            : i == 7  ? !shoal_permute_tensor(odd, INTS64(1, 1), 2, g)
            : i == 8  ? !shoal_all_gather_into_tensor_out(odd, g, odd)
            : i == 9  ? !shoal_all_reduce_(shoal_expand(F32(1), INTS64(3), 1), SHOAL_SUM, g)
            : i == 10 ? !shoal_all_reduce_coalesced(LIST(odd, ones(3, SHOAL_F64)), 2, SHOAL_SUM, g)
                      : !shoal_one_shot_all_reduce(odd, SHOAL_SUM, g);
        if (!was_refused) {
            test_failed(__FILE__, __LINE__, "wrong call %d was not refused", i);
        }
        CHECK_INT(shoal_status_reach(shoal_scope_error()), SHOAL_REACH_CALL);
        CHECK(shoal_scope_end() != SHOAL_OK);
        CHECK_INT(shoal_group_sequence(g), sequence);
    }
    CHECK_FULL(shoal_all_reduce(F32(3), SHOAL_SUM, g), SHAPE(3), 2);
}

/* Ranks that do not come ------------------------------------------------------------------------------- */

FUNCTIONAL(a_timeout_names_op_group_and_ranks, 3)
{
    shoal_group *g = lane(self, "nobody");
    CHECK_OK(shoal_group_set_timeout(g, 0.2));
    REQUIRE_OK(shoal_scope_begin());
    if (self->rank != 1) {
        shoal_tensor *direct = shoal_all_reduce(F32(5), SHOAL_SUM, g);
        shoal_tensor *staged = shoal_all_gather_tensor(full_of(SHAPE(2, 2), 1, SHOAL_F32), 1, g);
        CHECK_FAILED(direct, SHOAL_ERR_TIMEOUT, "all_reduce", "nobody", "rank 1");
        CHECK_FAILED(staged, SHOAL_ERR_TIMEOUT, "nobody", "rank 1");
    }
    CHECK_STATUS(shoal_scope_end(), self->rank == 1 ? SHOAL_OK : SHOAL_ERR_TIMEOUT);
    test_barrier(self->harness);
    CHECK_FULL(shoal_all_reduce(F32(3), SHOAL_SUM, self->group), SHAPE(3), 3);
}

FUNCTIONAL(a_receive_that_times_out_names_its_source, 2)
{
    shoal_group *g = lane(self, "quiet");
    CHECK_OK(shoal_group_set_timeout(g, 0.2));
    REQUIRE_OK(shoal_scope_begin());
    if (self->rank == 0) {
        shoal_tensor *tensor = shoal_irecv(F32(5), 1, 6, g);
        CHECK_FAILED(tensor, SHOAL_ERR_TIMEOUT, "receives", "rank 1", "tag 6");
    }
    CHECK_STATUS(shoal_scope_end(), self->rank == 1 ? SHOAL_OK : SHOAL_ERR_TIMEOUT);
    test_barrier(self->harness);
}

/* Every op in flight ----------------------------------------------------------------------------------- */

struct flights {
    shoal_symmetric *memory;
    shoal_tensor *results[N_CALL_ROWS];
};

/* Rank 0 has started one of each, and rank 1 has not come. */
static bool start_all(struct functional *self, struct flights *flights, int64_t n_rows)
{
    if (!CHECK_OK(shoal_symmetric_create(self->group, 4 << 20, &flights->memory))) {
        return false;
    }
    for (size_t i = 0; self->rank == 0 && i < N_CALL_ROWS; i++) {
        struct call call = call_prepare(self, flights->memory, i * (size_t)n_rows * 16, n_rows);
        flights->results[i] = call_rows[i].start(&call);
        if (!flights->results[i]) {
            test_failed(__FILE__, __LINE__, "%s: %s", call_rows[i].name, shoal_error_text());
        }
    }
    test_barrier(self->harness);
    return true;
}

static void check_all_failed(const struct flights *flights, shoal_status status, const char *words,
                             bool is_small)
{
    for (size_t i = 0; i < N_CALL_ROWS; i++) {
        bool may_be_gone = call_rows[i].is_sent && is_small;
        if (may_be_gone && shoal_wait(flights->results[i]) == SHOAL_OK) {
            continue;
        }
        if (shoal_wait(flights->results[i]) != status || !strstr(shoal_error_text(), words)) {
            test_failed(__FILE__, __LINE__, "%s: %s", call_rows[i].name, shoal_error_text());
        }
        CHECK_FAILED(flights->results[i], status, words);
    }
}

static void abort_all(struct functional *self, int64_t n_rows)
{
    struct flights flights = {.memory = NULL};
    REQUIRE_OK(shoal_scope_begin());
    if (!start_all(self, &flights, n_rows)) {
        return;
    }
    if (self->rank == 1) {
        CHECK_OK(shoal_group_abort(self->group, "that is enough"));
        CHECK_OK(shoal_scope_end());
    } else {
        check_all_failed(&flights, SHOAL_ERR_CANCELLED, "that is enough", n_rows < 1000);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_CANCELLED);
    }
    test_barrier(self->harness);
    shoal_symmetric_free(flights.memory);
    shoal_group *other = lane(self, "other");
    CHECK_FULL(shoal_all_reduce(F32(3), SHOAL_SUM, other), SHAPE(3), 2);
}

FUNCTIONAL(an_abort_ends_all_that_is_in_flight, 2)
{
    abort_all(self, 16);
}

FUNCTIONAL(an_abort_ends_large_ones_too, 2)
{
    abort_all(self, 8000);
}

/* Rank 1 dies while rank 0 waits for it. */
static void die_in_all(struct functional *self, int64_t n_rows)
{
    struct flights flights = {.memory = NULL};
    REQUIRE_OK(shoal_scope_begin());
    if (!start_all(self, &flights, n_rows)) {
        return;
    }
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
        test_pause(0.02);
        (void)raise(SIGKILL);
    }
    check_all_failed(&flights, SHOAL_ERR_PEER, "rank 1", n_rows < 1000);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    shoal_symmetric_free(flights.memory);
    /* Calls that come later hear it too, at once or when they are looked at. */
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *later = shoal_all_reduce(F32(3), SHOAL_SUM, lane(self, "later"));
    CHECK(!later || !shoal_data(later));
    CHECK_ERROR_TEXT("rank 1");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    (void)shoal_world_close(self->world);
    self->world = NULL;
}

static void die_in_small_ones(struct functional *self)
{
    die_in_all(self, 16);
}

static void die_in_large_ones(struct functional *self)
{
    die_in_all(self, 8000);
}

TEST_PROCESSES(a_death_ends_all_that_is_in_flight, 2)
{
    functional_run(self, die_in_small_ones);
}

TEST_PROCESSES(a_death_ends_large_ones_too, 2)
{
    functional_run(self, die_in_large_ones);
}

/* A call that was refused has changed nothing, and is no change for those who look at versions. */
FUNCTIONAL(a_refused_call_is_no_change, 2)
{
    CASE_BEGIN();
    shoal_tensor *out = full_of(SHAPE(8), 1, SHOAL_F32);
    uint64_t version = shoal_tensor_version(out);
    shoal_tensor *inside = shoal_narrow(out, 0, 1, 4);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_all_gather_into_tensor_out(inside, self->group, out));
    CHECK_ERROR_TEXT("overlap");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK(shoal_tensor_version(out) == version);
    CASE_END();
}
