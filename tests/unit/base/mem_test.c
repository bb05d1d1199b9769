/* SPDX-License-Identifier: MIT */
/*
 * Memory under the harness' allocator, and, in children that leave the library its own (hidden cases), the
 * default table and the installing of another one.
 */
#include "base/mem.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "harness/test.h"
#include "shoal/memory.h"

TEST(alignment_is_kept)
{
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        for (size_t bytes = 0; bytes < 200; bytes += 67) {
            unsigned char *memory = mem_alloc_aligned(bytes, alignment);
            REQUIRE(memory != NULL);
            CHECK_INT((uintptr_t)memory % alignment, 0);
            memset(memory, 1, bytes);
            mem_free(memory);
        }
    }
    void *memory = mem_alloc(1);
    CHECK_INT((uintptr_t)memory % alignof(max_align_t), 0);
    mem_free(memory);
    mem_free(NULL);
}

TEST(large_memory_begins_at_a_large_page)
{
    const size_t sizes[] = {1, MEM_LARGE_BYTES - 1, MEM_LARGE_BYTES, MEM_LARGE_BYTES + 1,
                            3 * MEM_LARGE_BYTES};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned char *memory = mem_alloc_large(sizes[i]);
        REQUIRE(memory != NULL);
        CHECK(sizes[i] < MEM_LARGE_BYTES || (uintptr_t)memory % MEM_LARGE_BYTES == 0);
        memset(memory, 1, sizes[i]);
        mem_free(memory);
        unsigned char *zeroed = mem_alloc_zeroed(sizes[i], 1);
        REQUIRE(zeroed != NULL);
        CHECK(zeroed[0] == 0 && zeroed[sizes[i] / 2] == 0 && zeroed[sizes[i] - 1] == 0);
        mem_free(zeroed);
    }
}

TEST(refused_sizes_are_told)
{
    test_fail_allocation(1, /*is_lasting=*/false);
    CHECK(mem_alloc(12345) == NULL);
    CHECK_ERROR_TEXT("12345 bytes");
    /* More than half of the address space never gets as far as the allocator. */
    size_t n_asked = test_count_allocations();
    CHECK(mem_alloc((size_t)PTRDIFF_MAX + 1) == NULL);
    CHECK_ERROR_TEXT("9223372036854775808 bytes");
    CHECK(mem_alloc_aligned(SIZE_MAX, 64) == NULL);
    CHECK(mem_alloc_zeroed(SIZE_MAX / 2, 3) == NULL);
    CHECK_ERROR_TEXT("elements of 3 bytes");
    CHECK_INT(test_count_allocations(), n_asked);
}

TEST(zeroed_memory_is_zero)
{
    /* The harness fills fresh memory, so zeroes are no accident. */
    unsigned char *memory = mem_alloc_zeroed(33, 3);
    REQUIRE(memory != NULL);
    for (size_t i = 0; i < 99; i++) {
        CHECK_INT(memory[i], 0);
    }
    mem_free(memory);
    memory = mem_alloc_zeroed(0, 8);
    CHECK(memory != NULL);
    mem_free(memory);
}

TEST(strings_are_copied)
{
    char *copy = mem_copy_string("");
    CHECK_STRING(copy, "");
    mem_free(copy);
    const char *original = "shoal";
    copy = mem_copy_string(original);
    CHECK(copy != original);
    CHECK_STRING(copy, original);
    mem_free(copy);
}

TEST(grow_doubles_and_keeps_contents)
{
    uint32_t *array = NULL;
    size_t capacity = 0;
    test_fail_allocation(0, false);
    for (uint32_t i = 0; i < 1000; i++) {
        void *erased = array;
        REQUIRE_OK(mem_grow(&erased, &capacity, i + 1u, sizeof *array));
        array = erased;
        array[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK_INT(array[i], i);
    }
    CHECK(capacity >= 1000);
    CHECK(test_count_allocations() <= 8);
    mem_free(array);
}

TEST(grow_makes_room_for_what_was_asked)
{
    void *array = NULL;
    size_t capacity = 0;
    REQUIRE_OK(mem_grow(&array, &capacity, 0, 8));
    CHECK(array == NULL);
    REQUIRE_OK(mem_grow(&array, &capacity, 777, 1));
    CHECK_INT(capacity, 777);
    void *before = array;
    REQUIRE_OK(mem_grow(&array, &capacity, 777, 1));
    CHECK(array == before);
    mem_free(array);
}

TEST(grow_that_fails_changes_nothing)
{
    void *array = NULL;
    size_t capacity = 0;
    REQUIRE_OK(mem_grow(&array, &capacity, 4, 4));
    memcpy(array, "abc", 4);
    void *before = array;
    size_t capacity_before = capacity;
    test_fail_allocation(1, /*is_lasting=*/true);
    CHECK_STATUS(mem_grow(&array, &capacity, capacity + 1, 4), SHOAL_ERR_NO_MEMORY);
    test_fail_allocation(0, false);
    CHECK_STATUS(mem_grow(&array, &capacity, SIZE_MAX, 4), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("elements of 4 bytes");
    CHECK_STATUS(mem_grow(&array, &capacity, SIZE_MAX / 4, 4), SHOAL_ERR_NO_MEMORY);
    CHECK(array == before);
    CHECK_INT(capacity, capacity_before);
    CHECK_STRING(array, "abc");
    mem_free(array);
}

TEST(multiply_finds_overflow)
{
    size_t product = 7;
    CHECK(mem_multiply(SIZE_MAX / 3, 3, &product));
    CHECK(product == SIZE_MAX / 3 * 3);
    CHECK(!mem_multiply(SIZE_MAX / 2 + 1, 2, &product));
    CHECK(mem_multiply(0, SIZE_MAX, &product));
    CHECK_INT(product, 0);
}

/* The table --------------------------------------------------------------------------------------------- */

static void *allocate_from_heap(void *context, size_t bytes, size_t alignment)
{
    ++*(int *)context;
    return malloc(bytes);
}

static void release_to_heap(void *context, void *memory)
{
    --*(int *)context;
    free(memory);
}

static int n_custom_blocks;
static const shoal_allocator custom = {.struct_size = sizeof(shoal_allocator),
                                       .context = &n_custom_blocks,
                                       .allocate = allocate_from_heap,
                                       .release = release_to_heap};

TEST(bad_tables_are_refused)
{
    CHECK_STATUS(shoal_allocator_set(NULL), SHOAL_ERR_INVALID);
    shoal_allocator table = custom;
    table.struct_size = sizeof table - 1;
    CHECK_STATUS(shoal_allocator_set(&table), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size");
    table = custom;
    table.allocate = NULL;
    CHECK_STATUS(shoal_allocator_set(&table), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("allocate is NULL");
    table = custom;
    table.release = NULL;
    CHECK_STATUS(shoal_allocator_set(&table), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("release is NULL");
}

TEST(tables_of_a_later_version_must_be_empty_behind_what_we_know)
{
    struct {
        shoal_allocator known;
        void *later;
    } table = {.known = custom};
    table.known.struct_size = sizeof table;
    /* Good, but too late: the harness has installed its own. */
    CHECK_STATUS(shoal_allocator_set(&table.known), SHOAL_ERR_STATE);
    table.later = &table;
    CHECK_STATUS(shoal_allocator_set(&table.known), SHOAL_ERR_UNSUPPORTED);
    char words[96];
    (void)snprintf(words, sizeof words, "struct_size is %zu and byte ", sizeof table);
    CHECK_ERROR_TEXT(words);
    CHECK_ERROR_TEXT("newer than the library, or was not zeroed");
}

TEST(planted_default_table)
{
    alignment_is_kept();
    zeroed_memory_is_zero();
    /* The block above was an allocation. */
    CHECK_STATUS(shoal_allocator_set(&custom), SHOAL_ERR_STATE);
    CHECK_INT(n_custom_blocks, 0);
}

/* Under the address sanitizer nothing is kept: it could not see that a freed block is used. */
#if defined(__SANITIZE_ADDRESS__)
#define KEPT_BYTES(bytes) ((void)(bytes), (size_t)0)
#else
#define KEPT_BYTES(bytes) ((size_t)(bytes))
#endif

static void use_block(size_t bytes, size_t kept_bytes)
{
    size_t before = mem_spare_bytes();
    unsigned char *block = mem_alloc_block(bytes);
    REQUIRE(block != NULL);
    CHECK_INT((uintptr_t)block % MEM_DATA_ALIGNMENT, 0);
    memset(block, 1, bytes);
    mem_free_block(block, bytes);
    CHECK_INT(mem_spare_bytes(), before + kept_bytes);
}

TEST(planted_kept_blocks)
{
    use_block(1 << 16, KEPT_BYTES(1 << 16));
    use_block(1 << 16, 0); /* the same again */
    use_block(1 << 17, KEPT_BYTES(1 << 17));
    use_block(MEM_LARGE_BYTES, KEPT_BYTES(MEM_LARGE_BYTES));
    /* Other sizes are not kept. */
    use_block(1 << 15, 0);
    use_block((1 << 17) + 64, 0);
    use_block(2 * MEM_LARGE_BYTES, 0);
    mem_free_block(NULL, 1 << 16);
}

TEST(planted_bound_of_kept_blocks)
{
    enum {
        N_BLOCKS = 2 * MEM_SPARE_BYTES / MEM_LARGE_BYTES
    };
    void *blocks[N_BLOCKS];
    for (size_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < N_BLOCKS; i++) {
            blocks[i] = mem_alloc_block(MEM_LARGE_BYTES);
            CHECK(blocks[i] != NULL);
        }
        CHECK_INT(mem_spare_bytes(), 0);
        for (size_t i = 0; i < N_BLOCKS; i++) {
            mem_free_block(blocks[i], MEM_LARGE_BYTES);
        }
        CHECK_INT(mem_spare_bytes(), KEPT_BYTES(MEM_SPARE_BYTES));
    }
}

TEST(planted_custom_table)
{
    REQUIRE_OK(shoal_allocator_set(&custom));
    /* Two tables could not tell whose a block is, so a second one must not even be copied. */
    int n_other_blocks = 0;
    shoal_allocator other = custom;
    other.context = &n_other_blocks;
    CHECK_STATUS(shoal_allocator_set(&other), SHOAL_ERR_STATE);
    void *memory = mem_alloc(5);
    CHECK_INT(n_custom_blocks, 1);
    CHECK_STATUS(shoal_allocator_set(&other), SHOAL_ERR_STATE);
    CHECK_INT(n_other_blocks, 0);
    mem_free(memory);
    CHECK_INT(n_custom_blocks, 0);
}

static void run_with_own_memory(const char *name)
{
    static char output[16384];
    const char *const arguments[] = {test_program(), name, NULL};
    const char *const environment[] = {"SHOAL_TEST_PLAIN_MEMORY=1", NULL};
    int code = test_run_program(arguments, environment, output, sizeof output);
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "%s ended with %d:\n%s", name, code, output);
    }
}

TEST(freed_blocks_are_kept)
{
    run_with_own_memory("planted_kept_blocks");
    run_with_own_memory("planted_bound_of_kept_blocks");
}

/* A table of somebody else's, the harness' for instance, gets back all that it gave. */
TEST(other_tables_keep_no_blocks)
{
    use_block(1 << 16, 0);
    use_block(MEM_LARGE_BYTES, 0);
}

TEST(default_table_works)
{
    run_with_own_memory("planted_default_table");
}

TEST(table_can_be_set_once_before_first_use)
{
    run_with_own_memory("planted_custom_table");
}
