/* SPDX-License-Identifier: MIT */
/* How ranks find out whether all have succeeded and have the same: one fails, one deviates, one has no memory, one dies. */
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "comm/agree/agree.h"
#include "fixtures/rank_world.h"

static shoal_group *open_group(struct rank *self, shoal_world **world_out)
{
    *world_out = rank_world_open(self, 0);
    return *world_out ? shoal_world_group(*world_out) : NULL;
}

/* All is well, and takes as many collectives as it should. */
static void agree_on_everything(struct rank *self)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    const struct agreement agreement = agreement_on(group);
    const struct agree_number number = {"number", 3};
    struct agree_failure failure;
    struct agree_first first;
    size_t at = 99;
    uint64_t sequence = shoal_group_sequence(group);
    CHECK_OK(agree(group, "write", SHOAL_OK));
    CHECK_INT(shoal_group_sequence(group), ++sequence);
    for (int report = AGREE_FIRST_RANK; report <= AGREE_STATUS_ONLY; report++) {
        CHECK_OK(agree_outcome(&agreement, (enum agree_report)report, SHOAL_OK, &failure));
        CHECK(failure.status == SHOAL_OK && failure.rank == -1);
        CHECK_INT(shoal_group_sequence(group), ++sequence);
    }
    CHECK_OK(agree_find_first(&agreement, AGREE_NO_KEY, &first));
    CHECK_INT(first.rank, -1);
    CHECK_OK(agree_find_first(&agreement, -7 - self->rank / 2, &first));
    CHECK_INT(first.key, -7 - (self->n_ranks - 1) / 2);
    CHECK_INT(first.rank, (self->n_ranks - 1) / 2 * 2);
    CHECK_OK(agree_find_first(&agreement, INT32_MAX, &first));
    CHECK(first.key == INT32_MAX && first.rank == 0);
    CHECK_OK(agree_compare(&agreement, "abc", 3, &at));
    CHECK(at == AGREE_SAME);
    CHECK_OK(agree_on(group, "name", "a", 1));
    CHECK_OK(agree_on(group, "nothing", NULL, 0));
    CHECK_OK(agree_on_numbers(group, &number, 1));
    CHECK_OK(agree_on_string(group, "string", "a"));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(alike_on_1, 1)
{
    agree_on_everything(self);
}

TEST_RANKS(alike_on_2, 2)
{
    agree_on_everything(self);
}

TEST_RANKS(alike_on_3, 3)
{
    agree_on_everything(self);
}

/* A rank that is alone, or has no peers, is told of its own failure. */
static void fail_alone(shoal_group *group)
{
    const struct agreement agreement = agreement_on(group);
    struct agree_failure failure;
    CHECK_OK(agree(group, "write", SHOAL_OK));
    CHECK_STATUS(agree(group, "write", error_set(SHOAL_ERR_SYSTEM, "disk is full")), SHOAL_ERR_SYSTEM);
    CHECK_STRING(shoal_error_text(), "disk is full");
    for (int report = AGREE_FIRST_RANK; report <= AGREE_STATUS_ONLY; report++) {
        shoal_status mine = error_set(SHOAL_ERR_STATE, "not now");
        CHECK_STATUS(agree_outcome(&agreement, (enum agree_report)report, mine, &failure), SHOAL_ERR_STATE);
        CHECK_STRING(shoal_error_text(), "not now");
    }
    CHECK_OK(agree_on(group, "name", "a", 1));
}

TEST_RANKS(one_rank_alone, 1)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    fail_alone(group);
    CHECK_OK(shoal_world_close(world));
}

TEST(a_world_without_peers)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1000, .rank = 3, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    fail_alone(shoal_world_group(world));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_fails, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    shoal_status status = self->rank == 1 ? error_set(SHOAL_ERR_SYSTEM, "disk is full") : SHOAL_OK;
    CHECK_STATUS(agree(group, "write", status), SHOAL_ERR_SYSTEM);
    CHECK_STRING(shoal_error_text(), self->rank == 1 ? "disk is full" : "rank 1: disk is full");
    /* Two fail: each keeps its own reason, the third gets the first one's. */
    status = self->rank == 0   ? error_set(SHOAL_ERR_NO_MEMORY, "none left")
             : self->rank == 2 ? error_set(SHOAL_ERR_SYSTEM, "disk is full")
                               : SHOAL_OK;
    CHECK_STATUS(agree(group, "write", status), self->rank == 2 ? SHOAL_ERR_SYSTEM : SHOAL_ERR_NO_MEMORY);
    CHECK_STRING(shoal_error_text(), self->rank == 0   ? "none left"
                                     : self->rank == 2 ? "disk is full"
                                                       : "rank 0: none left");
    /* The group goes on. A failure without a text gets one. */
    error_clear();
    CHECK_STATUS(agree(group, "move", self->rank == 2 ? SHOAL_ERR_STATE : SHOAL_OK), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("move failed with SHOAL_ERR_STATE");
    CHECK_OK(agree(group, "move", SHOAL_OK));
    CHECK_OK(shoal_world_close(world));
}

/* One rank makes an ordinary call instead, of the same kind and size: neither takes the other's for its own. */
TEST_RANKS(one_rank_calls_something_else, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    int64_t numbers[17] = {0};
    CHECK_STATUS(self->rank == 1 ? shoal_group_all_reduce(group, numbers, numbers, 17, SHOAL_I64, SHOAL_MIN)
                                 : agree(group, "save: write", SHOAL_OK),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("called agreement of ranks on save: write");
    CHECK_ERROR_TEXT("rank 1 called all_reduce i64 min count 17");
    (void)shoal_world_close(world);
}

/* Rank 1 and rank 2 fail, with other statuses; ranks in texts can be those of the world. */
TEST_RANKS(two_ranks_fail, 3)
{
    static const struct {
        enum agree_report report;
        int rank;
        shoal_status status;
        const char *text;
        int n_collectives;
    } rows[] = {{AGREE_FIRST_RANK, 1, SHOAL_ERR_INVALID, "wrong", 2},
                {AGREE_LEAST_STATUS, 2, SHOAL_ERR_SYSTEM, "disk is full", 2},
                {AGREE_STATUS_ONLY, 2, SHOAL_ERR_SYSTEM, "", 1}};
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    struct agreement agreement = agreement_on(group);
    agreement.world_rank += 10;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct agree_failure failure;
        uint64_t sequence = shoal_group_sequence(group);
        shoal_status mine = self->rank == 1   ? error_set(SHOAL_ERR_INVALID, "wrong")
                            : self->rank == 2 ? error_set(SHOAL_ERR_SYSTEM, "disk is full")
                                              : SHOAL_OK;
        CHECK_STATUS(agree_outcome(&agreement, rows[i].report, mine, &failure), mine);
        CHECK_INT(shoal_group_sequence(group), sequence + (uint64_t)rows[i].n_collectives);
        if (self->rank > 0) {
            CHECK_STRING(shoal_error_text(), self->rank == 1 ? "wrong" : "disk is full");
            continue;
        }
        CHECK_INT(failure.rank, rows[i].rank);
        CHECK_INT(failure.status, rows[i].status);
        CHECK_STRING(failure.text, rows[i].text);
        CHECK_INT(failure.world_rank, rows[i].text[0] ? rows[i].rank + 10 : -1);
    }
    CHECK_OK(shoal_world_close(world));
}

/* A failure counts more than phases that differ. */
TEST_RANKS(one_rank_fails_and_another_deviates, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    shoal_status status = self->rank == 1 ? error_set(SHOAL_ERR_SYSTEM, "disk is full") : SHOAL_OK;
    CHECK_STATUS(agree(group, self->rank == 2 ? "load" : "save", status), SHOAL_ERR_SYSTEM);
    CHECK_STRING(shoal_error_text(), self->rank == 1 ? "disk is full" : "rank 1: disk is full");
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_deviates, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    CHECK_STATUS(agree(group, self->rank == 2 ? "load" : "save", SHOAL_OK), SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(),
                 "ranks made different calls: rank 0 does \"save\", but rank 2 does \"load\"");
    CHECK_STATUS(agree_on(group, "directory", self->rank == 1 ? "run8" : "run7", 4), SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(), "directory: rank 1 has another one than rank 0");
    CHECK_STATUS(agree_on(group, "directory", "run7", self->rank == 0 ? 4 : 3), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("directory: rank 1 has");
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(values_are_named, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    struct agree_number numbers[] = {{"options.keep", 3}, {"options.step", 1000}};
    char path[400];
    CHECK_OK(agree_on_numbers(group, numbers, 2));
    numbers[0].value += self->rank == 2;
    numbers[1].value += self->rank == 1 ? INT64_MIN : 0;
    CHECK_STATUS(agree_on_numbers(group, numbers, 2), SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(), "options.step is 1000 on rank 0, but -9223372036854774808 on rank 1");
    CHECK_STATUS(agree_on_numbers(group, numbers, 1), SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(), "options.keep is 3 on rank 0, but 4 on rank 2");
    CHECK_OK(agree_on_string(group, "options.section", NULL));
    CHECK_OK(agree_on_string(group, "options.section", "model"));
    CHECK_STATUS(agree_on_string(group, "options.section", self->rank == 2 ? "model" : NULL),
                 SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(), "options.section is NULL on rank 0, but \"model\" on rank 2");
    CHECK_STATUS(agree_on_string(group, "options.section", self->rank == 1 ? NULL : ""), SHOAL_ERR_MISMATCH);
    CHECK_STRING(shoal_error_text(), "options.section is \"\" on rank 0, but NULL on rank 1");
    memset(path, 'z', sizeof path); /* its end is told */
    (void)snprintf(path + 390, 10, "/run%d", self->rank);
    CHECK_STATUS(agree_on_string(group, "directory", path), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("directory is \"...zz");
    CHECK_ERROR_TEXT("z/run0\" on rank 0, but \"...zz");
    CHECK_ERROR_TEXT("z/run1\" on rank 1");
    CHECK_OK(shoal_world_close(world));
}

/* Every byte counts, of the first and of the last portion. */
TEST_RANKS(every_byte_is_compared, 3)
{
    static const size_t sizes[] = {0, 1, 8191, 8192, 8193, 20000};
    char bytes[20001] = "";
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *group = shoal_world_group(world);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_OK(agree_on(group, "bytes", bytes, sizes[i]));
        CHECK_STATUS(agree_on(group, "bytes", bytes, sizes[i] + (self->rank == 2)), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("bytes: rank 2 has another one than rank 0");
        CHECK_STATUS(agree_on(group, "bytes", bytes, sizes[i] + (self->rank == 0)), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("bytes: rank 1 has another one than rank 0");
        const size_t places[] = {0, sizes[i] / 2, sizes[i] - 1};
        for (size_t k = 0; k < 3 && sizes[i] > 0; k++) {
            bytes[places[k]] = self->rank == 1;
            CHECK_STATUS(agree_on(group, "bytes", bytes, sizes[i]), SHOAL_ERR_MISMATCH);
            CHECK_ERROR_TEXT("bytes: rank 1 has another one than rank 0");
            bytes[places[k]] = 0;
        }
    }
    CHECK_OK(shoal_world_close(world));
}

/* The place of the first difference is known where it is, before all are told. */
TEST_RANKS(places_of_differences, 3)
{
    static const struct {
        size_t bytes[3];
        size_t changed; /* on rank 1; AGREE_SAME: nothing */
        size_t at[3];
    } rows[] = {{{3, 3, 3}, 2, {AGREE_SAME, 2, AGREE_SAME}},
                {{3, 2, 4}, AGREE_SAME, {AGREE_SAME, 2, 3}},
                {{0, 1, 0}, AGREE_SAME, {AGREE_SAME, 0, AGREE_SAME}},
                {{9000, 0, 8192}, AGREE_SAME, {AGREE_SAME, 0, 8192}},
                {{9000, 9000, 9001}, 8193, {AGREE_SAME, 8193, 9000}},
                {{9000, 9000, 100}, 8191, {AGREE_SAME, 8191, 100}}};
    char bytes[9001] = "";
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    const struct agreement agreement = agreement_on(group);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t at = 0;
        size_t own = rows[i].bytes[self->rank];
        bool is_changed = self->rank == 1 && rows[i].changed != AGREE_SAME;
        memset(bytes, 0, sizeof bytes);
        if (is_changed) {
            bytes[rows[i].changed] = 1;
        }
        CHECK_OK(agree_compare(&agreement, own > 0 ? bytes : NULL, own, &at));
        CHECK(at == rows[i].at[self->rank]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Texts that a rank may not have. Every character counts, also the last one of the longest text. */
TEST_RANKS(known_texts, 3)
{
    static const struct {
        const char *texts[3];
        const char *words; /* NULL: they agree */
    } rows[] = {{{"", "", ""}, NULL},
                {{"a", "", "a"}, NULL},
                {{"", "", "a"}, NULL},
                {{"a", "b", "a"}, "ranks differ in colours: rank 0 has \"a\", rank 1 has \"b\""},
                {{"", "b", "a"}, "ranks differ in colours: rank 1 has \"b\", rank 2 has \"a\""},
                {{"ab", "", "a"}, "ranks differ in colours: rank 0 has \"ab\", rank 2 has \"a\""}};
    char text[AGREE_KNOWN_BYTES];
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    const struct agreement agreement = agreement_on(group);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        shoal_status status = agree_on_known(&agreement, "colours", rows[i].texts[self->rank]);
        CHECK_STATUS(status, rows[i].words ? SHOAL_ERR_MISMATCH : SHOAL_OK);
        if (rows[i].words) {
            CHECK_STRING(shoal_error_text(), rows[i].words);
        }
    }
    memset(text, 'z', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    CHECK_OK(agree_on_known(&agreement, "colours", text));
    text[sizeof text - 2] = self->rank == 2 ? 'y' : 'z';
    CHECK_STATUS(agree_on_known(&agreement, "colours", text), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("zz\", rank 2 has \"zz");
    CHECK_ERROR_TEXT("zzy\"");
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(bytes_of_the_first_rank, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    void *data = NULL;
    size_t bytes = 99;
    CHECK_OK(agree_receive(group, self->rank == 0 ? "hello" : NULL, self->rank == 0 ? 6 : 0, &data, &bytes));
    CHECK_INT(bytes, 6);
    CHECK_STRING(data, "hello");
    mem_free(data);
    CHECK_OK(agree_receive(group, NULL, 0, &data, &bytes));
    CHECK_INT(bytes, 0);
    mem_free(data);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(bytes_of_all_ranks, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    static const char *const words[] = {"one", "", "three"};
    for (int only_first = 0; only_first < 2; only_first++) {
        char *data = NULL;
        uint64_t *offsets = NULL;
        CHECK_OK(agree_collect(group, words[self->rank], strlen(words[self->rank]), only_first != 0, &data,
                               &offsets));
        if (only_first && self->rank > 0) {
            CHECK(!data && !offsets);
            continue;
        }
        REQUIRE(data && offsets);
        CHECK(offsets[0] == 0 && offsets[1] == 3 && offsets[2] == 3 && offsets[3] == 8);
        CHECK_BYTES(data, "onethree", 8);
        mem_free(data);
        mem_free(offsets);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Rank 1 differs in numbers 2 and 3, rank 2 in number 1: what comes first is a matter of the search. */
TEST_RANKS(records_of_all_ranks, 3)
{
    uint64_t room[3][4];
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    struct agreement agreement = agreement_on(group);
    const uint64_t mine[4] = {7, self->rank == 2, self->rank == 1, self->rank == 1};
    for (int i = 0; i < 3; i++) { /* a room of the right size, of one byte less, and none */
        struct agree_records records;
        uint64_t sequence = shoal_group_sequence(group);
        struct agree_room own = {i == 2 ? NULL : room, i == 2 ? 0 : sizeof room - (i == 1)};
        REQUIRE_OK(agree_gather(&agreement, mine, sizeof mine, own, &records));
        CHECK_INT(shoal_group_sequence(group), sequence + (i == 0 ? 1 : 2));
        CHECK(i == 0 ? records.all == room : records.all != room);
        for (int rank = 0; rank < 3; rank++) {
            const uint64_t *theirs = agree_record(&records, rank);
            CHECK(theirs[0] == 7 && theirs[1] == (rank == 2) && theirs[3] == (rank == 1));
        }
        struct agree_difference other = agree_find_difference(&records, mine, AGREE_BY_RANK, 0, 4);
        CHECK_INT(other.rank, self->rank == 0 ? 1 : 0);
        CHECK_INT(other.number, self->rank == 2 ? 1 : 2);
        other = agree_find_difference(&records, mine, AGREE_BY_NUMBER, 0, 4);
        CHECK_INT(other.rank, self->rank == 2 ? 0 : 2);
        CHECK_INT(other.number, 1);
        other = agree_find_difference(&records, mine, AGREE_BY_NUMBER, 3, 4);
        CHECK_INT(other.rank, self->rank == 1 ? 0 : 1);
        CHECK_INT(other.number, 3);
        CHECK_INT(agree_find_difference(&records, mine, AGREE_BY_RANK, 0, 1).rank, -1);
        CHECK_INT(agree_find_difference(&records, mine, AGREE_BY_NUMBER, 4, 4).rank, -1);
        agree_free_records(&records);
        REQUIRE_OK(agree_gather(&agreement, NULL, 0, own, &records)); /* nothing */
        CHECK_INT(agree_find_difference(&records, NULL, AGREE_BY_RANK, 0, 0).rank, -1);
        agree_free_records(&records);
    }
    CHECK_OK(shoal_world_close(world));
}

static shoal_status receive(shoal_group *group)
{
    void *data = NULL;
    size_t bytes = 0;
    shoal_status status = agree_receive(group, "hello", 6, &data, &bytes);
    CHECK(status == SHOAL_OK || !data);
    mem_free(data);
    return status;
}

static shoal_status collect(shoal_group *group)
{
    char *data = NULL;
    uint64_t *offsets = NULL;
    shoal_status status = agree_collect(group, "hello", 6, /*only_first=*/false, &data, &offsets);
    CHECK(status == SHOAL_OK || (!data && !offsets));
    mem_free(data);
    mem_free(offsets);
    return status;
}

static shoal_status gather(shoal_group *group)
{
    struct agreement agreement = agreement_on(group);
    struct agree_records records;
    shoal_status status = agree_gather(&agreement, "hello", 6, (struct agree_room){.data = NULL}, &records);
    agree_free_records(&records);
    return status;
}

/* Rank 1 had no memory for its own record, and says so. */
TEST_RANKS(one_rank_has_no_record, 3)
{
    const uint64_t number = 7;
    shoal_world *world;
    struct agree_records records;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    const struct agreement agreement = agreement_on(group);
    for (int i = 0; i < 2; i++) {
        const uint64_t *mine = i == 0 && self->rank == 1 ? NULL : &number;
        shoal_status status =
            agree_gather(&agreement, mine, sizeof number, (struct agree_room){.data = NULL}, &records);
        CHECK_INT(status, i == 0 ? SHOAL_ERR_NO_MEMORY : SHOAL_OK);
        if (i == 0) {
            CHECK_ERROR_TEXT("rank 1: no memory for 24 bytes to compare");
        }
        agree_free_records(&records);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Each allocation of one rank fails: all ranks are told, and none waits. Threads share the allocator. */
TEST_PROCESSES(one_rank_has_no_memory, 3)
{
    static shoal_status (*const calls[])(shoal_group * group) = {receive, collect, gather};
    static const int n_allocations[] = {1, 3, 1};
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    for (int i = 0; i < 3; i++) {
        for (int k = 1; k <= n_allocations[i] + 1; k++) {
            test_fail_allocation(self->rank == 1 ? (size_t)k : 0, false);
            shoal_status status = calls[i](group);
            test_fail_allocation(0, false);
            CHECK_INT(status, k <= n_allocations[i] ? SHOAL_ERR_NO_MEMORY : SHOAL_OK);
            if (k <= n_allocations[i] && self->rank != 1) {
                CHECK_ERROR_TEXT("rank 1: ");
            }
        }
        CHECK_OK(calls[i](group));
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(one_rank_dies, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    CHECK_OK(agree(group, "begin", SHOAL_OK));
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)raise(SIGKILL);
    }
    shoal_status status = self->rank == 1 ? error_set(SHOAL_ERR_SYSTEM, "disk is full") : SHOAL_OK;
    CHECK_STATUS(agree(group, "write", status), self->rank == 1 ? SHOAL_ERR_SYSTEM : SHOAL_ERR_PEER);
    if (self->rank == 0) {
        CHECK_ERROR_TEXT("write: ");
    }
    (void)shoal_world_close(world);
}
