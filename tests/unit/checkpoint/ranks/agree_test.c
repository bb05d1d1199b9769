/* SPDX-License-Identifier: MIT */
/* How ranks of a save or load end a phase together: one that fails, one that does something else, one that dies. */
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "checkpoint/ranks/agree.h"
#include "fixtures/rank_world.h"

static shoal_group *open_group(struct rank *self, shoal_world **world_out)
{
    *world_out = rank_world_open(self, 0);
    return *world_out ? shoal_world_group(*world_out) : NULL;
}

TEST_RANKS(all_is_well, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    CHECK_OK(agree(group, "write", SHOAL_OK));
    CHECK_OK(agree_on(group, "name", "a", 1));
    CHECK_OK(agree_on(group, "nothing", NULL, 0));
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
    memset(path, 'x', sizeof path); /* its end is told */
    (void)snprintf(path + 390, 10, "/run%d", self->rank);
    CHECK_STATUS(agree_on_string(group, "directory", path), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("directory is \"...xxx");
    CHECK_ERROR_TEXT("x/run0\" on rank 0, but \"...xx");
    CHECK_ERROR_TEXT("x/run1\" on rank 1");
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
