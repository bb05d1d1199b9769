/* SPDX-License-Identifier: MIT */
/*
 * Saving tensors: every dtype and layout comes back bit for bit, the files of PyTorch's golden results are written
 * again byte for byte, and a save that is killed or refused anywhere leaves the old file or the new one.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>

#include "base/completion.h"
#include "base/error.h"
#include "fixtures/file_faults.h"
#include "fixtures/scoped.h"
#include "fixtures/scratch.h"
#include "fixtures/tiny_safetensors.h"
#include "shoal/ops.h"
#include "shoal/safetensors.h"
#include "tensor/tensor.h"

#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})
#define PARTIAL ".partial-"

/* Bits ------------------------------------------------------------------------------------------------- */

static shoal_tensor *make_random(struct test_random *random, const int64_t *shape, int n_dims,
                                 shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty(shape, n_dims, dtype);
    unsigned char *bytes = shoal_mutable_data(tensor);
    for (size_t i = 0; bytes && i < tensor_bytes(tensor); i++) {
        bytes[i] = dtype == SHOAL_BOOL ? test_random_u64(random) & 1 : (unsigned char)test_random_u64(random);
    }
    return tensor;
}

static void check_saved(const shoal_safetensors *file, const char *name, shoal_tensor *tensor)
{
    shoal_tensor *found = shoal_safetensors_tensor(file, shoal_safetensors_find(file, name));
    shoal_tensor *expected = shoal_tensor_is_contiguous(tensor) ? tensor : shoal_clone(tensor);
    REQUIRE(found && expected && shoal_tensor_is_contiguous(expected));
    CHECK_INT(shoal_tensor_dtype(found), shoal_tensor_dtype(tensor));
    CHECK_INT(shoal_tensor_n_dims(found), shoal_tensor_n_dims(tensor));
    for (int i = 0; i < shoal_tensor_n_dims(tensor); i++) {
        CHECK_INT(shoal_tensor_shape(found)[i], shoal_tensor_shape(tensor)[i]);
    }
    CHECK_BYTES(shoal_data(found), shoal_data(expected), tensor_bytes(tensor));
}

/* Every dtype of the format, contiguous, transposed, cut out, expanded, empty and without dimensions. */
SCOPED_TEST(every_dtype_and_layout)
{
    enum {
        N_DTYPES = 16,
        N_LAYOUTS = 8
    };
    static const shoal_dtype dtypes[N_DTYPES] = {
        SHOAL_BOOL, SHOAL_U8,  SHOAL_I8,  SHOAL_U16, SHOAL_I16, SHOAL_F16, SHOAL_BF16,      SHOAL_U32,
        SHOAL_I32,  SHOAL_F32, SHOAL_U64, SHOAL_I64, SHOAL_F64, SHOAL_C64, SHOAL_F8_E4M3FN, SHOAL_F8_E5M2};
    struct scratch scratch = scratch_make();
    struct test_random random = test_random_begin(5);
    static char name_texts[N_DTYPES * N_LAYOUTS][16];
    const char *names[N_DTYPES * N_LAYOUTS];
    shoal_tensor *tensors[N_DTYPES * N_LAYOUTS];
    size_t n = 0;
    for (int d = 0; d < N_DTYPES; d++) {
        shoal_tensor *whole = make_random(&random, NUMBERS(7, 5, 3), 3, dtypes[d]);
        tensors[n++] = whole;
        tensors[n++] = shoal_transpose(whole, 0, 2);
        tensors[n++] = shoal_narrow(whole, 1, 1, 3);
        tensors[n++] = shoal_select(shoal_transpose(whole, 0, 1), 2, 1);
        tensors[n++] = shoal_expand(shoal_narrow(whole, 0, 2, 1), NUMBERS(4, 5, 3), 3);
        tensors[n++] = shoal_narrow(whole, 2, 1, 0);
        tensors[n++] = make_random(&random, NULL, 0, dtypes[d]);
        tensors[n++] = make_random(&random, NUMBERS(0, 3), 2, dtypes[d]);
    }
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name_texts[i], sizeof name_texts[i], "t%zu", i);
        names[i] = name_texts[i];
    }
    REQUIRE_OK(shoal_scope_error());
    const char *path = scratch_file(&scratch, "m");
    const char *const metadata[] = {"format", "pt", "empty", "", NULL};
    REQUIRE_OK(shoal_safetensors_save(path, names, tensors, n, metadata));
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    CHECK_INT(shoal_safetensors_count(file), n);
    CHECK_STRING(shoal_safetensors_metadata(file, "format"), "pt");
    CHECK_STRING(shoal_safetensors_metadata(file, "empty"), "");
    for (size_t i = 0; i < n; i++) {
        check_saved(file, names[i], tensors[i]);
    }
    shoal_safetensors_close(file);
    scratch_remove(&scratch);
}

/* The names of the format, and every code as it is. */
SCOPED_TEST(floats_of_8_bits)
{
    struct scratch scratch = scratch_make();
    unsigned char codes[256];
    for (int i = 0; i < 256; i++) {
        codes[i] = (unsigned char)i;
    }
    const char *names[] = {"fn", "e5"};
    shoal_tensor *tensors[] = {shoal_from_memory(codes, NUMBERS(256), 1, SHOAL_F8_E4M3FN, NULL, NULL, NULL),
                               shoal_from_memory(codes, NUMBERS(2, 128), 2, SHOAL_F8_E5M2, NULL, NULL, NULL)};
    REQUIRE_OK(shoal_safetensors_save(scratch_file(&scratch, "m"), names, tensors, 2, NULL));
    size_t n_bytes;
    char *file = scratch_read(scratch_file(&scratch, "m"), &n_bytes);
    REQUIRE(file);
    const char *fn = tiny_find(file, "fn", "F8_E4M3", "[256]");
    const char *e5 = tiny_find(file, "e5", "F8_E5M2", "[2,128]");
    CHECK(fn && memcmp(fn, codes, sizeof codes) == 0);
    CHECK(e5 && memcmp(e5, codes, sizeof codes) == 0);
    free(file);
    shoal_safetensors *opened;
    REQUIRE_OK(shoal_safetensors_open(scratch_file(&scratch, "m"), &opened));
    check_saved(opened, "fn", tensors[0]);
    check_saved(opened, "e5", tensors[1]);
    shoal_safetensors_close(opened);
    scratch_remove(&scratch);
}

/* More than the buffer has room for. */
SCOPED_TEST(large_tensors_with_strides)
{
    struct scratch scratch = scratch_make();
    struct test_random random = test_random_begin(6);
    const char *names[] = {"turned", "cut", "plain", "flags"};
    shoal_tensor *large = make_random(&random, NUMBERS(1100, 700), 2, SHOAL_F32);
    shoal_tensor *flags = make_random(&random, NUMBERS(1500, 900), 2, SHOAL_BOOL);
    shoal_tensor *tensors[] = {shoal_transpose(large, 0, 1), shoal_narrow(large, 1, 13, 401), large,
                               shoal_transpose(flags, 0, 1)};
    REQUIRE_OK(shoal_safetensors_save(scratch_file(&scratch, "m"), names, tensors, 4, NULL));
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open(scratch_file(&scratch, "m"), &file));
    for (int i = 0; i < 4; i++) {
        check_saved(file, names[i], tensors[i]);
    }
    CHECK(!shoal_safetensors_metadata_key(file, 0));
    shoal_safetensors_close(file);
    scratch_remove(&scratch);
}

/* Memory of the caller's may hold any byte; a file that the reader takes holds 0 and 1. */
SCOPED_TEST(booleans_become_0_or_1)
{
    struct scratch scratch = scratch_make();
    unsigned char bytes[4] = {0, 2, 255, 1};
    shoal_tensor *tensor = shoal_from_memory(bytes, NUMBERS(4), 1, SHOAL_BOOL, NULL, NULL, NULL);
    const char *name = "flags";
    REQUIRE_OK(shoal_safetensors_save(scratch_file(&scratch, "m"), &name, &tensor, 1, NULL));
    size_t n_bytes;
    char *file = scratch_read(scratch_file(&scratch, "m"), &n_bytes);
    REQUIRE(file);
    const char *flags = tiny_find(file, "flags", "BOOL", "[4]");
    CHECK(flags && memcmp(flags, "\0\1\1\1", 4) == 0);
    free(file);
    scratch_remove(&scratch);
}

TEST(no_tensors_at_all)
{
    struct scratch scratch = scratch_make();
    size_t n_bytes = 0;
    CHECK_OK(shoal_safetensors_save(scratch_file(&scratch, "m"), NULL, NULL, 0, NULL));
    char *file = scratch_read(scratch_file(&scratch, "m"), &n_bytes);
    REQUIRE(file);
    CHECK_INT(n_bytes, 16);
    CHECK_BYTES(file, "\x08\0\0\0\0\0\0\0{}      ", 16);
    free(file);
    scratch_remove(&scratch);
}

/* Golden files ------------------------------------------------------------------------------------------- */

/* The file as tensors, saved in another order, is the file: the reference implementation wrote it. Files of the second
   recording ("more_") were joined by a script, which also pads a header that needs no padding. */
static void rewrite(const struct scratch *scratch, const char *source)
{
    shoal_safetensors *file;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_safetensors_open(source, &file));
    size_t n = (size_t)shoal_safetensors_count(file);
    const char **names = calloc(n + 1, sizeof *names);
    shoal_tensor **tensors = calloc(n + 1, sizeof(shoal_tensor *));
    const char *metadata[17] = {NULL};
    for (int64_t i = 0; i < 8 && shoal_safetensors_metadata_key(file, i); i++) {
        metadata[2 * i] = shoal_safetensors_metadata_key(file, i);
        metadata[2 * i + 1] = shoal_safetensors_metadata(file, metadata[2 * i]);
    }
    for (size_t i = 0; i < n; i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        CHECK_OK(shoal_safetensors_get(file, (int64_t)i, &info));
        names[n - 1 - i] = info.name;
        tensors[n - 1 - i] = shoal_safetensors_tensor(file, (int64_t)i);
    }
    const char *path = scratch_file(scratch, "m");
    CHECK_OK(shoal_safetensors_save(path, names, tensors, n, metadata));
    size_t old_bytes = 0;
    size_t new_bytes = 0;
    char *old_file = scratch_read(source, &old_bytes);
    char *new_file = scratch_read(path, &new_bytes);
    CHECK(old_file && new_file && old_bytes == new_bytes && memcmp(old_file, new_file, old_bytes) == 0);
    free(old_file);
    free(new_file);
    free(names);
    free(tensors);
    shoal_safetensors_close(file);
    CHECK_OK(shoal_scope_end());
}

TEST(golden_files_are_written_again_byte_for_byte)
{
    const char *source_dir = getenv("SHOAL_TEST_SOURCE_DIR");
    if (!source_dir) {
        test_skip("SHOAL_TEST_SOURCE_DIR is not set");
        return;
    }
    struct scratch scratch = scratch_make();
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/tests/golden", source_dir);
    DIR *directory = opendir(path);
    int n_files = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (strstr(entry->d_name, ".safetensors") && strncmp(entry->d_name, "more_", 5) != 0) {
            (void)snprintf(path, sizeof path, "%s/tests/golden/%.200s", source_dir, entry->d_name);
            rewrite(&scratch, path);
            n_files++;
        }
    }
    CHECK(directory && closedir(directory) == 0);
    CHECK(n_files >= 10);
    scratch_remove(&scratch);
}

/* In flight ---------------------------------------------------------------------------------------------- */

struct flight {
    struct completion *completion;
    float *numbers;
};

static void *land(void *context)
{
    struct flight *flight = context;
    test_pause(0.02);
    flight->numbers[1] = 2;
    completion_finish(flight->completion, SHOAL_OK);
    return NULL;
}

SCOPED_TEST(waits_for_tensors_in_flight)
{
    struct scratch scratch = scratch_make();
    float numbers[2] = {1, 0};
    shoal_tensor *tensor = shoal_from_memory(numbers, NUMBERS(2), 1, SHOAL_F32, NULL, NULL, NULL);
    struct flight flight = {.completion = completion_create(), .numbers = numbers};
    const char *name = "t";
    pthread_t thread;
    REQUIRE(flight.completion);
    CHECK_OK(storage_add_write(tensor->storage, flight.completion));
    REQUIRE(pthread_create(&thread, NULL, land, &flight) == 0);
    CHECK_OK(shoal_safetensors_save(scratch_file(&scratch, "m"), &name, &tensor, 1, NULL));
    CHECK_INT(pthread_join(thread, NULL), 0);
    completion_unref(flight.completion);
    size_t n_bytes;
    char *file = scratch_read(scratch_file(&scratch, "m"), &n_bytes);
    REQUIRE(file);
    const char *found = tiny_find(file, "t", "F32", "[2]");
    CHECK(found && memcmp(found, (const float[]){1, 2}, 8) == 0);
    free(file);
    scratch_remove(&scratch);
}

/* What is refused ---------------------------------------------------------------------------------------- */

TEST(refuses_wrong_arguments)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensors[2] = {shoal_zeros(NUMBERS(2), 1, SHOAL_F32), shoal_zeros(NUMBERS(2), 1, SHOAL_F32)};
    const char *names[2] = {"a", "a"};
    const char *const odd[] = {"key", NULL};
    CHECK_STATUS(shoal_safetensors_save(NULL, names, tensors, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_save: path is NULL");
    CHECK_STATUS(shoal_safetensors_save(path, NULL, tensors, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("names is NULL");
    CHECK_STATUS(shoal_safetensors_save(path, names, NULL, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensors is NULL");
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is a tensor 'a' already");
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 1, odd), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("value is NULL");
    names[1] = NULL;
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("name is NULL");
    names[1] = "b";
    tensors[1] = NULL;
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensors[1] is NULL");
    tensors[1] = shoal_zeros(NUMBERS(1), 1, SHOAL_C128);
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("tensor 'b': dtype: safetensors files do not support c128");
    tensors[1] = shoal_empty_on(NUMBERS(1), 1, SHOAL_F32, SHOAL_META);
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensors[1]: is on the device meta and has no data");
    /* These are found when a file is there already; it goes away again. */
    tensors[1] = shoal_zeros(NUMBERS(1), 1, SHOAL_F32);
    CHECK_OK(shoal_tensor_release_data(tensors[1]));
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("safetensors_save: tensors[1]: ");
    CHECK_OK(shoal_tensor_rebind_data(tensors[1], NULL, NULL, NULL));
    struct completion *write = completion_create();
    REQUIRE(write);
    CHECK_OK(storage_add_write(tensors[1]->storage, write));
    completion_finish(write, error_set(SHOAL_ERR_PEER, "rank 1 left"));
    completion_unref(write);
    CHECK_STATUS(shoal_safetensors_save(path, names, tensors, 2, NULL), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("tensors[1]: ");
    CHECK_ERROR_TEXT("rank 1 left");
    CHECK_INT(scratch_count(&scratch, ""), 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    scratch_remove(&scratch);
}

/* Faults ----------------------------------------------------------------------------------------------- */

struct old_and_new {
    struct scratch scratch;
    shoal_tensor *old_tensors[2];
    shoal_tensor *new_tensors[2];
};

static const char *const two_names[] = {"a", "b"};

static struct old_and_new make_old_and_new(void)
{
    struct old_and_new both = {.scratch = scratch_make()};
    for (int i = 0; i < 2; i++) {
        both.old_tensors[i] = shoal_full(NUMBERS(2, 3), 2, 1, SHOAL_F32);
        both.new_tensors[i] = shoal_full(NUMBERS(300, 400), 2, 2, SHOAL_F32);
    }
    /* Written by pieces. */
    both.new_tensors[1] =
        shoal_narrow(shoal_transpose(shoal_full(NUMBERS(700, 500), 2, 2, SHOAL_F64), 0, 1), 1, 0, 600);
    return both;
}

static shoal_status save_new(void *context)
{
    struct old_and_new *both = context;
    return shoal_safetensors_save(scratch_file(&both->scratch, "m"), two_names, both->new_tensors, 2, NULL);
}

static void put_old(void *context)
{
    struct old_and_new *both = context;
    CHECK_OK(
        shoal_safetensors_save(scratch_file(&both->scratch, "m"), two_names, both->old_tensors, 2, NULL));
}

/* Which of the two it is, whole. */
static bool is_file_of(const char *path, shoal_tensor *const *tensors)
{
    shoal_safetensors *file;
    bool is_same = true;
    if (shoal_safetensors_open(path, &file) != SHOAL_OK) {
        return false;
    }
    CHECK_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        shoal_tensor *found = shoal_safetensors_tensor(file, shoal_safetensors_find(file, two_names[i]));
        shoal_tensor *whole = shoal_clone(tensors[i]);
        is_same = is_same && found && whole && tensor_bytes(found) == tensor_bytes(whole) &&
                  memcmp(shoal_data(found), shoal_data(whole), tensor_bytes(whole)) == 0;
    }
    CHECK_OK(shoal_scope_end());
    shoal_safetensors_close(file);
    return is_same;
}

static void check_old_or_new(void *context, bool is_done)
{
    struct old_and_new *both = context;
    const char *path = scratch_file(&both->scratch, "m");
    CHECK(is_file_of(path, both->new_tensors) || (!is_done && is_file_of(path, both->old_tensors)));
    CHECK_OK(save_new(context));
    CHECK(is_file_of(path, both->new_tensors));
    CHECK_INT(scratch_count(&both->scratch, ""), 1);
}

SCOPED_TEST(disturbed_at_every_request)
{
#ifdef SHOAL_FAIL_POINTS
    struct old_and_new both = make_old_and_new();
    struct file_faults faults = {
        .prepare = put_old, .body = save_new, .check = check_old_or_new, .context = &both};
    /* create, header, size, a, b in three pieces, fsync, rename, fsync of the directory */
    CHECK_INT(file_faults_kill(&faults), 10);
    CHECK_INT(file_faults_refuse(&faults, ENOSPC), 10);
    scratch_remove(&both.scratch);
#else
    (void)check_old_or_new;
    (void)put_old;
    test_skip("this build has no fail points");
#endif
}

SCOPED_TEST(survives_failing_allocations)
{
    struct old_and_new both = make_old_and_new();
    CHECK(test_sweep_allocations(save_new, &both) >= 10);
    CHECK_INT(scratch_count(&both.scratch, ""), 1);
    scratch_remove(&both.scratch);
}

/* A disk that is full: a file system of 256 KiB, where this process may mount one. */
static void save_to_a_small_disk(void *context)
{
    const struct scratch *scratch = context;
    const char *path = scratch_file(scratch, "m");
    const char *name = "t";
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", scratch->path, "tmpfs", 0, "size=256k") != 0) {
        (void)printf("no file system of the test's own: %s\n", strerror(errno));
        return;
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *fits = shoal_full(NUMBERS(20000), 1, 1, SHOAL_F32);
    shoal_tensor *does_not = shoal_full(NUMBERS(100000), 1, 2, SHOAL_F32);
    CHECK_OK(shoal_safetensors_save(path, &name, &fits, 1, NULL));
    CHECK_STATUS(shoal_safetensors_save(path, &name, &does_not, 1, NULL), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("safetensors_save: tensors[0]: tensor 't': ");
    CHECK_ERROR_TEXT("write of 400000 bytes at byte ");
    CHECK_ERROR_TEXT("No space left on device");
    CHECK_INT(scratch_count(scratch, ""), 1);
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    check_saved(file, "t", fits);
    shoal_safetensors_close(file);
    /* The temporary file is gone, and so there is room again. */
    CHECK_OK(shoal_safetensors_save(path, &name, &fits, 1, NULL));
    CHECK_OK(shoal_scope_end());
}

TEST(a_disk_that_is_full)
{
    struct scratch scratch = scratch_make();
    test_in_child(save_to_a_small_disk, &scratch);
    scratch_remove(&scratch);
}

/* Jobs that save to one path at a time: each file that anybody sees is one of theirs. */
TEST_RANKS(several_save_to_one_path, 3)
{
    char *path = self->shared;
    struct scratch scratch;
    if (self->rank == 0) {
        scratch = scratch_make();
        (void)snprintf(path, 256, "%.200s/m", scratch.path);
    }
    test_barrier(self);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_full(NUMBERS(500), 1, self->rank + 1, SHOAL_I64);
    const char *name = "t";
    for (int i = 0; i < 10 && !test_has_failed(); i++) {
        shoal_safetensors *file;
        int64_t numbers[500] = {0};
        CHECK_OK(shoal_safetensors_save(path, &name, &tensor, 1, NULL));
        REQUIRE_OK(shoal_safetensors_open(path, &file));
        CHECK_OK(shoal_safetensors_read_range(file, 0, 0, numbers, sizeof numbers));
        CHECK(numbers[0] >= 1 && numbers[0] <= self->n_ranks);
        for (int k = 0; k < 500; k++) {
            CHECK_INT(numbers[k], numbers[0]);
        }
        shoal_safetensors_close(file);
    }
    CHECK_OK(shoal_scope_end());
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_INT(scratch_count(&scratch, ""), 1);
        scratch_remove(&scratch);
    }
}
