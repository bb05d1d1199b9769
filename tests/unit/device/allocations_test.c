/* SPDX-License-Identifier: MIT */
/* Memory runs out, on the device or on the host, at each allocation of work on a device. */
#include <dlpack/dlpack.h>

#include "fixtures/apart.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "shoal_compat/torch.h"

static void ignore(void *context, void *data)
{
}

static shoal_status exchange(shoal_tensor *tensor)
{
    struct DLManagedTensor *managed = NULL;
    shoal_status status = tensor ? shoal_to_dlpack(tensor, &managed) : SHOAL_OK;
    shoal_tensor *imported = status == SHOAL_OK && managed ? shoal_from_dlpack(managed) : NULL;
    if (imported) {
        (void)shoal_add_scalar_(imported, 1); /* the scope has its error */
    } else if (managed) {
        managed->deleter(managed);
    }
    return status;
}

static char text[200]; /* of the last failure of `work` */

/* Copies both ways, ops in one place and another, views, gradients, lent memory. */
static shoal_status work(void *context)
{
    float *values = context;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_to_device(count_up(DIMS(2, 2), 1), apart());
    shoal_tensor *leaf = shoal_detach(x);
    status = leaf ? shoal_set_requires_grad(leaf, true) : SHOAL_OK;
    shoal_tensor *gradient = NULL;
    if (status == SHOAL_OK && leaf) {
        shoal_tensor *y = shoal_add(shoal_transpose(leaf, 0, 1), shoal_mul_scalar(leaf, 2));
        shoal_tensor *parts = shoal_cat((shoal_tensor *[]){y, y}, 2, 0);
        shoal_tensor *sum = shoal_sum(parts, NULL, 0, false);
        status = sum ? shoal_backward(sum, NULL) : SHOAL_OK;
        gradient = status == SHOAL_OK && sum ? shoal_grad(leaf) : NULL;
    }
    if (gradient) {
        shoal_tensor *lent =
            shoal_from_device_memory(apart(), address_in(x), DIMS(2), SHOAL_F32, NULL, ignore, NULL);
        (void)shoal_mul_scalar_(lent, 2);
        status = shoal_read(shoal_transpose(shoal_add(gradient, x), 0, 1), values, 4 * sizeof values[0]);
    }
    shoal_tensor *back = status == SHOAL_OK && gradient ? shoal_to_device(gradient, SHOAL_CPU) : NULL;
    status = status == SHOAL_OK && back ? exchange(shoal_mul_scalar(x, 3)) : status;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status ended = shoal_scope_end();
    if (ended != SHOAL_OK) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    }
    shoal_status done = shoal_device_synchronize(apart());
    CHECK(done == SHOAL_OK || done == SHOAL_ERR_NO_MEMORY);
    return ended != SHOAL_OK ? ended : status;
}

TEST(memory_of_the_device_runs_out)
{
    float values[4];
    struct apart_settings *settings = (apart(), test_apart());
    REQUIRE_OK(work(values));
    const float wanted[] = {values[0], values[1], values[2], values[3]};
    size_t blocks = test_live_blocks();
    uint64_t n_bytes = atomic_load(&settings->n_bytes);
    int64_t n_failed = 0;
    for (int64_t n = 1; atomic_load(&settings->no_memory_at) == 0; n++) {
        atomic_store(&settings->no_memory_at, n);
        shoal_status status = work(values);
        if (atomic_load(&settings->no_memory_at) > 0) {
            CHECK_OK(status); /* there were not so many */
            break;
        }
        CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
        CHECK(strstr(text, "device apart: no memory for "));
        n_failed++;
        CHECK_INT(test_live_blocks(), blocks);
        CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
        CHECK_OK(work(values));
        CHECK_BYTES(values, wanted, sizeof values);
    }
    atomic_store(&settings->no_memory_at, 0);
    CHECK(n_failed >= 8);
}

TEST(memory_of_the_host_runs_out)
{
    float values[4];
    uint64_t n_bytes = (apart(), atomic_load(&test_apart()->n_bytes));
    REQUIRE_OK(work(values));
    CHECK(test_sweep_allocations(work, values) >= 20);
    CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
    CHECK_OK(work(values));
}
