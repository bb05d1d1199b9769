/* SPDX-License-Identifier: MIT */
/* A process that was forked off one with a device cannot use it: each use is an error, and nothing is touched. */
#include <dlpack/dlpack.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixtures/apart.h"
#include "fixtures/scoped.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/shoal.h"

static void run_forked(void (*body)(void))
{
    int status = -1;
    (void)fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        (void)alarm(30);
        body();
        (void)fflush(NULL);
        _exit(test_has_failed() ? 1 : 0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

#define WORDS "is a fork of the process that uses device apart, and cannot use it"

#define CHECK_REFUSED(call)                    \
    do {                                       \
        CHECK_STATUS((call), SHOAL_ERR_STATE); \
        CHECK_ERROR_TEXT(WORDS);               \
    } while (0)

static shoal_device device;
static shoal_tensor *there; /* f32 [2, 3] */
static shoal_tensor *loss;
static struct DLManagedTensor *exported;
static int n_deleted;

static void count(void *context, void *data)
{
    n_deleted++;
}

static void use_what_is_inherited(void)
{
    float values[6];
    int64_t stream = 1;
    struct DLManagedTensor *managed = NULL;
    shoal_device found = SHOAL_META;
    CHECK_REFUSED(shoal_device_find("apart", &found));
    CHECK(found == SHOAL_META && strcmp(shoal_device_name(device), "apart") == 0);
    CHECK_REFUSED(shoal_device_synchronize(device));
    CHECK_REFUSED(shoal_device_stream(device, &stream));
    CHECK_REFUSED(shoal_device_follow(device, stream));
    CHECK_REFUSED(shoal_read(there, values, sizeof values));
    CHECK_REFUSED(shoal_to_dlpack(there, &managed));
    CHECK_REFUSED(shoal_to_dlpack_on(there, -1, &managed));
    CHECK_REFUSED(shoal_tensor_rebind_data(loss, NULL, NULL, NULL));
    CHECK_REFUSED(shoal_backward(loss, NULL));
    CHECK_SCOPE_ERROR(shoal_add_scalar_(there, 1), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_transpose(there, 0, 1), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_to_device(there, SHOAL_CPU), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_to_device(there, device), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_to_device(shoal_zeros(DIMS(2), SHOAL_F32), device), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_empty_on(DIMS(2), SHOAL_F32, device), SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_from_device_memory(device, values, DIMS(2), SHOAL_F32, NULL, NULL, NULL),
                      SHOAL_ERR_STATE, WORDS);
    CHECK_SCOPE_ERROR(shoal_from_dlpack(exported), SHOAL_ERR_STATE, WORDS);
    CHECK_INT(test_apart()->n_inherited, 0);
}

static void drop_what_is_inherited(void)
{
    uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
    shoal_tensor_unref(there);
    exported->deleter(exported);
    if (shoal_scope_end() != SHOAL_OK) {
        /* It had an error. */
    }
    CHECK_INT(n_deleted, 0);
    CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
    CHECK_INT(test_apart()->n_inherited, 0);
}

static void use_another(void)
{
    shoal_device beside = SHOAL_CPU;
    float values[3];
    REQUIRE_OK(shoal_device_find("beside", &beside));
    CHECK(beside != device);
    CHECK_OK(shoal_read(shoal_to_device(count_up(DIMS(3), 1), beside), values, sizeof values));
    CHECK(values[2] == 3.0F);
    CHECK_REFUSED(shoal_device_synchronize(device));
}

SCOPED_TEST(a_child_has_no_device)
{
    device = apart();
    there = shoal_tensor_ref(shoal_to_device(count_up(DIMS(2, 3), 1), device));
    shoal_tensor *leaf = shoal_to_device(count_up(DIMS(3), 1), device);
    CHECK_OK(shoal_set_requires_grad(leaf, true));
    loss = shoal_sum(shoal_mul(leaf, leaf), NULL, 0, false);
    REQUIRE(there && loss);
    REQUIRE_OK(shoal_to_dlpack(there, &exported));
    run_forked(use_what_is_inherited);
    if (!HARNESS_HAS_TSAN) {
        run_forked(use_another); /* its stream is a thread */
    }
    /* The device works, and a deleter waits for it. */
    atomic_store(&test_apart()->is_held, 1);
    void *data = address_in(there);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(
        shoal_add_scalar_(shoal_from_device_memory(device, data, DIMS(3), SHOAL_F32, NULL, count, NULL), 1));
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(shoal_scope_begin());
    CHECK(
        shoal_add_scalar_(shoal_from_device_memory(device, data, DIMS(3), SHOAL_F32, NULL, count, NULL), 1));
    run_forked(drop_what_is_inherited);
    run_forked(use_what_is_inherited);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    atomic_store(&test_apart()->is_held, 0);
    CHECK_OK(shoal_device_synchronize(device));
    CHECK_INT(n_deleted, 2);
    check_values(there, (const float[]){3, 4, 5, 4, 5, 6}, 6);
    exported->deleter(exported);
    shoal_tensor_unref(there);
}
