/* SPDX-License-Identifier: MIT */
/* The calls of shoal/cuda.h. The driver for tests knows the kernels of the module only, so those are the "kernels of the
   program". */
#include <stdlib.h>

#include "cuda/kernels/move.h"
#include "fixtures/scoped.h"
#include "fixtures/test_device.h"
#include "shoal/shoal.h"

__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    COUNT = 300,
    BYTES = COUNT * sizeof(float)
};

/* An image with a kernel that moves bytes: one of the module's. */
static const char *image(void)
{
    static char text[1 << 20];
    char path[4096];
    const char *root = getenv("SHOAL_TEST_SOURCE_DIR");
    (void)snprintf(path, sizeof path, "%s/src/cuda/ptx/move.ptx", root ? root : ".");
    FILE *file = fopen(path, "rb");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    CHECK(file && length > 0 && fclose(file) == 0);
    return text;
}

static shoal_cuda_grid grid_of(const struct move_table *table)
{
    return (shoal_cuda_grid){.blocks = {table->n_tiles, 1, 1}, .threads = {MOVE_THREADS, 1, 1}};
}

static struct move_table table_of(const void *dst, const void *src)
{
    return (struct move_table){.n_items = 1,
                               .n_tiles = (BYTES + MOVE_TILE_UNITS - 1) / MOVE_TILE_UNITS,
                               .items = {{.dst = (uint64_t)(uintptr_t)dst,
                                          .src = (uint64_t)(uintptr_t)src,
                                          .n_filled = BYTES,
                                          .n_elems = BYTES,
                                          .row_units = BYTES,
                                          .shift = 31}}};
}

SCOPED_TEST(a_kernel_of_the_program_lies_between_two_ops)
{
    static float found[COUNT];
    shoal_cuda_program *program = NULL;
    const void *src = NULL;
    void *dst = NULL;
    REQUIRE_OK(shoal_cuda_load(image(), &program));
    shoal_tensor *from = test_full((int64_t[]){COUNT}, 1, 2, SHOAL_F32);
    shoal_tensor *to = test_empty((int64_t[]){COUNT}, 1, SHOAL_F32);
    CHECK(shoal_add_scalar_(from, 3));
    REQUIRE_OK(shoal_device_data(from, &src));
    REQUIRE_OK(shoal_device_mutable_data(to, &dst));
    struct move_table table = table_of(dst, src);
    shoal_cuda_grid grid = grid_of(&table);
    CHECK_OK(shoal_cuda_launch(program, "move_bytes", &grid, (void *[]){&table}));
    CHECK(shoal_add_scalar_(from, 100)); /* after the kernel has read it */
    CHECK(shoal_mul_scalar_(to, 2));
    CHECK_OK(shoal_read(to, found, sizeof found));
    CHECK_DOUBLE((double)found[0], 10);
    CHECK_DOUBLE((double)found[COUNT - 1], 10);
    CHECK_STATUS(shoal_cuda_launch(program, "no_such", &grid, (void *[]){&table}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_launch: no_such: CUDA_ERROR_NOT_FOUND");
    grid.threads[0] = 2000;
    CHECK_STATUS(shoal_cuda_launch(program, "move_bytes", &grid, (void *[]){&table}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_launch: move_bytes: CUDA_ERROR_INVALID_VALUE");
    grid = grid_of(&table);
    grid.shared_bytes = 100000;
    CHECK_OK(shoal_cuda_launch(program, "move_bytes", &grid, (void *[]){&table}));
    grid.shared_bytes = 1 << 20;
    CHECK_STATUS(shoal_cuda_launch(program, "move_bytes", &grid, (void *[]){&table}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_launch: move_bytes: CUDA_ERROR_INVALID_VALUE");
    shoal_cuda_unload(program);
    CHECK_OK(shoal_read(to, found, sizeof found)); /* the device has not failed */
}

SCOPED_TEST(what_is_refused)
{
    shoal_cuda_program *program = NULL;
    const shoal_cuda_grid grid = {.blocks = {1, 1, 1}, .threads = {1, 1, 1}};
    CHECK_STATUS(shoal_cuda_load("no image", &program), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_load: image: ");
    CHECK(!program);
    CHECK_STATUS(shoal_cuda_load(".version 7.4\n", &program), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed: ptxas : it is wrong");
    CHECK(strstr(shoal_error_text(), "and more") == NULL);
    CHECK_STATUS(shoal_cuda_load(NULL, &program), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_load: image is NULL");
    CHECK_STATUS(shoal_cuda_load(image(), NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_cuda_launch(NULL, "x", &grid, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_launch: program is NULL");
    shoal_cuda_unload(NULL);
    CHECK_STATUS(shoal_cuda_get_memory(NULL, false), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cuda_get_memory: memory is NULL");
    shoal_cuda_memory memory = {.struct_size = 0};
    CHECK_STATUS(shoal_cuda_get_memory(&memory, false), SHOAL_ERR_INVALID);
}

SCOPED_TEST(memory_is_reported_with_its_most)
{
    shoal_cuda_memory before = SHOAL_CUDA_MEMORY_INIT;
    shoal_cuda_memory now = SHOAL_CUDA_MEMORY_INIT;
    struct address buffer;
    REQUIRE_OK(shoal_cuda_get_memory(&before, true));
    REQUIRE_OK(shoal_scope_begin());
    (void)shoal_empty_on((int64_t[]){1 << 18}, 1, SHOAL_F32, test_device());
    REQUIRE_OK(device_memory_allocate(test_device(), 1 << 16, &buffer));
    CHECK_OK(shoal_cuda_get_memory(&now, false));
    CHECK(now.tensors.now >= before.tensors.now + (1 << 20));
    CHECK(now.buffers.now >= before.buffers.now + (1 << 16));
    CHECK(now.reserved.now >= now.tensors.now && now.total_bytes > now.free_bytes / 2);
    CHECK_OK(shoal_scope_end());
    device_memory_free(test_device(), buffer);
    CHECK_OK(shoal_device_synchronize(test_device()));
    CHECK_OK(shoal_cuda_get_memory(&now, true));
    CHECK(now.tensors.now == before.tensors.now && now.buffers.now == before.buffers.now);
    CHECK(now.tensors.most >= before.tensors.now + (1 << 20));
    CHECK_OK(shoal_cuda_get_memory(&now, false));
    CHECK(now.tensors.most == now.tensors.now);
}

SCOPED_TEST(more_than_the_device_has)
{
    const int64_t shape[] = {INT64_C(1) << 50};
    float found[4];
    CHECK_SCOPE_ERROR(shoal_empty_on(shape, 1, SHOAL_F64, test_device()), SHOAL_ERR_NO_MEMORY,
                      "device cuda: no memory for 9007199254740992 bytes");
    CHECK_OK(shoal_read(test_full((int64_t[]){4}, 1, 1, SHOAL_F32), found, sizeof found));
    CHECK_DOUBLE((double)found[3], 1);
}

SCOPED_TEST(memory_that_cannot_be_shared)
{
    const struct device_row *row = device_row(test_device());
    char descriptor[DEVICE_SHARE_BYTES];
    float found[4];
    void *shared = NULL;
    uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
    (void)setenv("FAKECUDA_SHARING", "off", 1);
    CHECK_STATUS(row->share_create(1000, descriptor, &shared), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("device cuda: memory cannot be shared here: cuMemExportToShareableHandle: "
                     "CUDA_ERROR_NOT_SUPPORTED (801): operation not supported");
    (void)unsetenv("FAKECUDA_SHARING");
    CHECK(!shared);
    CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
    CHECK_OK(shoal_read(test_full((int64_t[]){4}, 1, 1, SHOAL_F32), found, sizeof found));
    CHECK_OK(row->share_create(1000, descriptor, &shared));
    row->share_drop(shared);
}

/* The legacy stream, one of the program's, and the library's own again. */
SCOPED_TEST(the_stream_is_the_programs)
{
    int64_t number = 0;
    float found[4];
    void *ours = NULL;
    shoal_tensor *x = test_full((int64_t[]){4}, 1, 1, SHOAL_F32);
    REQUIRE_OK(device_row(test_device())->streams->create(&ours));
    CHECK_OK(shoal_cuda_set_stream(NULL));
    CHECK_OK(shoal_device_stream(test_device(), &number));
    CHECK_INT(number, 1);
    CHECK(shoal_add_scalar_(x, 1));
    CHECK_OK(shoal_cuda_set_stream(ours));
    CHECK(shoal_mul_scalar_(x, 3));
    CHECK_OK(shoal_device_use_stream(test_device(), 0));
    CHECK(shoal_add_scalar_(x, 4));
    CHECK_OK(shoal_read(x, found, sizeof found));
    CHECK_DOUBLE((double)found[3], 10);
    device_row(test_device())->streams->destroy(ours);
}

/* Each call of the driver fails once: a reason that names the call, and no memory is lost. */
static shoal_status step(void)
{
    float found[64];
    shoal_status status = shoal_scope_begin();
    shoal_tensor *x = shoal_to_device(shoal_full((int64_t[]){64}, 1, 2, SHOAL_F32), test_device());
    shoal_tensor *y = x ? shoal_mul(x, x) : NULL;
    shoal_tensor *sum = y ? shoal_sum(y, NULL, 0, false) : NULL;
    status = status == SHOAL_OK && sum ? shoal_read(sum, found, sizeof found[0]) : status;
    if (status == SHOAL_OK && !sum) {
        status = shoal_scope_error();
    }
    char text[400];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status ended = shoal_scope_end();
    (void)error_set(SHOAL_OK, "%s", text);
    return status == SHOAL_OK ? ended : status;
}

TEST(the_nth_call_of_the_driver_fails)
{
    bool has_failed = true;
    REQUIRE_OK(step());
    TEST_NEEDS_CONTROLS();
    for (int n = 1; has_failed && !test_has_failed(); n++) {
        uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
        atomic_store(&test_apart()->fail_at, n);
        shoal_status status = step();
        has_failed = atomic_exchange(&test_apart()->fail_at, 0) == 0;
        if (has_failed) {
            CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
            CHECK_ERROR_TEXT("device cuda has failed: cu");
        }
        test_forget_failure();
        CHECK_OK(step());
        CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
        REQUIRE(n < 200);
    }
}
