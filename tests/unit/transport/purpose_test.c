/* SPDX-License-Identifier: MIT */
/* What is compared of a purpose, and how errors describe it. */
#include "transport/purpose.h"

#include <string.h>

#include "harness/test.h"

static const char *describe(const struct purpose *purpose, bool is_root_told)
{
    static char text[256];
    int64_t details[PURPOSE_DETAILS];
    struct purpose_key key = purpose_take(purpose, details);
    purpose_describe(&key, details, purpose && purpose->words ? purpose->words : "", is_root_told, text,
                     sizeof text);
    return text;
}

TEST(a_raw_call_has_none)
{
    int64_t details[PURPOSE_DETAILS];
    struct purpose_key key = purpose_take(NULL, details);
    CHECK_INT(memcmp(&key, &(struct purpose_key){0}, sizeof key), 0);
    CHECK_STRING(describe(NULL, false), "");
}

TEST(words_and_root)
{
    struct purpose purpose = {.id = PURPOSE_FSDP_GATHER, .root = 2, .unit = 4, .words = "layers.3"};
    CHECK_STRING(describe(&purpose, false), "gather of layers.3");
    CHECK_STRING(describe(&purpose, true), "gather of layers.3 (sharded as number 2 on this group)");
    purpose.id = PURPOSE_DDP_CLIP;
    CHECK_STRING(describe(&purpose, true), "clip_grad_norm of layers.3 (model 2 of this group)");
    purpose.id = PURPOSE_PLAN;
    CHECK_STRING(describe(&purpose, true), "node layers.3 (plan 2 of this group)");
    /* Belongs to nothing that is counted, though the call of another rank may. */
    purpose = (struct purpose){.id = PURPOSE_FUNCTIONAL, .words = "all_reduce"};
    CHECK_STRING(describe(&purpose, true), "all_reduce");
}

TEST(details_are_printed)
{
    double half = 0.5;
    int64_t details[] = {2, 4, 8, DETAIL_NUMBER, -1, DETAIL_REAL, 0, DETAIL_SET, 1, 7, 0};
    memcpy(&details[6], &half, sizeof half);
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL,
                              .words = "all_gather_tensor",
                              .details = details,
                              .n_details = sizeof details / sizeof details[0]};
    CHECK_STRING(describe(&purpose, false), "all_gather_tensor([4,8], -1, 0.5, [])");
    purpose = (struct purpose){
        .id = PURPOSE_PARAM_BROADCAST, .words = "w [4,8] along 0", .details = &details[3], .n_details = 2};
    details[4] = 0;
    CHECK_STRING(describe(&purpose, false), "broadcast of the whole parameter w [4,8] along 0 (root 0)");
}

/* A peer may have written anything. */
TEST(broken_details_end_the_text)
{
    const int64_t details[] = {DETAIL_NUMBER, 1, 100, 1};
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .words = "x", .details = details, .n_details = 4};
    CHECK_STRING(describe(&purpose, false), "x(1)");
    struct purpose_key key = {.id = 999, .n_details = PURPOSE_HASHED - 1};
    char text[64];
    purpose_describe(&key, details, "w", false, text, sizeof text);
    CHECK_STRING(text, "an unknown call w");
    purpose_describe(&key, details, "w", false, text, 4);
    CHECK_STRING(text, "an ");
}

static void take_hash(const int64_t *numbers, size_t n, int64_t *hash)
{
    int64_t details[PURPOSE_DETAILS];
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .details = numbers, .n_details = n};
    struct purpose_key key = purpose_take(&purpose, details);
    CHECK_INT(key.n_details, PURPOSE_HASHED);
    CHECK_INT(purpose_stored_details(&key), 3);
    memcpy(hash, details, 3 * sizeof *hash);
}

/* Beyond what is stored, a change of any number, of order and of length changes both halves of the hash. */
TEST(long_details_are_hashed)
{
    enum {
        N = PURPOSE_DETAILS + 9
    };
    int64_t numbers[N + 1] = {0};
    int64_t hash[3];
    int64_t other[3];
    for (int i = 0; i < N; i++) {
        numbers[i] = i % 3;
    }
    take_hash(numbers, N, hash);
    for (int i = 0; i < N; i++) {
        numbers[i] += 1;
        take_hash(numbers, N, other);
        CHECK(hash[0] != other[0] && hash[1] != other[1]);
        numbers[i] -= 1;
    }
    for (int i = 0; i + 1 < N; i++) {
        int64_t first = numbers[i];
        numbers[i] = numbers[i + 1];
        numbers[i + 1] = first;
        take_hash(numbers, N, other);
        CHECK(hash[0] != other[0] && hash[1] != other[1]);
        numbers[i + 1] = numbers[i];
        numbers[i] = first;
    }
    take_hash(numbers, N + 1, other); /* one more zero */
    CHECK(hash[0] != other[0] && hash[1] != other[1] && hash[2] != other[2]);
}
