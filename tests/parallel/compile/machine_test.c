/* SPDX-License-Identifier: MIT */
/* Ranks compare the machine for which their passes estimate times: one that has another, or none, is told to all. */
#include "fixtures/compiled_pair.h"
#include "fixtures/scratch.h"

#define ROW                                                                                 \
    "{\"transport\": \"shm\", \"ranks\": 2, \"op\": \"all_reduce\", \"latency_ns\": 1000, " \
    "\"bytes_per_ns\": %s}"
#define MACHINE                                                                                  \
    "{\"shoal_machine\": 1, \"name\": \"mine\", \"call_ns\": 30, \"touched_bytes_per_ns\": 40, " \
    "\"operations_per_ns\": 50, \"functions_per_ns\": 0.5, \"start_ns\": 40000, \"hidden\": 0, " \
    "\"collectives\": [" ROW "]}"

static void run(const struct rank *self, const char *machine, shoal_status wanted, const char *text)
{
    struct pair pair;
    shoal_pass_options passes = {.struct_size = sizeof passes, .machine = machine};
    shoal_compile_options options = {.struct_size = sizeof options, .pass_options = &passes};
    if (!pair_begin(&pair, self, WRAP_DDP, &options)) {
        return;
    }
    shoal_tensor *x = net_numbers((uint32_t)self->rank, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
    shoal_tensor *output = NULL;
    CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &output, 1), wanted);
    CHECK((output != NULL) == (wanted == SHOAL_OK));
    if (text) {
        CHECK_ERROR_TEXT(text);
    }
    shoal_tensor_unref(output);
    pair_end(&pair);
}

TEST_RANKS(of_one_rank_alone, 3)
{
    static const enum wrapping wrappings[] = {WRAP_DDP, WRAP_SHARDS};
    for (size_t i = 0; i < 2; i++) {
        struct pair pair;
        shoal_pass_options passes = {.struct_size = sizeof passes,
                                     .machine = self->rank == 1 ? "xeon_16" : "neoverse_v1"};
        shoal_compile_options options = {.struct_size = sizeof options, .pass_options = &passes};
        if (!pair_begin(&pair, self, wrappings[i], &options)) {
            return;
        }
        shoal_tensor *x = net_numbers((uint32_t)self->rank, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
        shoal_tensor *output = NULL;
        CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &output, 1), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 0 has \"machine neoverse_v1 ");
        CHECK_ERROR_TEXT("rank 1 has \"machine xeon_16 ");
        CHECK_ERROR_TEXT("SHOAL_MACHINE");
        (void)net_pass(&pair.eager, 0, self->rank); /* the model can be trained eagerly afterwards */
        pair_end(&pair);
    }
}

static void write_machine(const char *path, const char *bytes_per_ns)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    CHECK(fprintf(file, MACHINE, bytes_per_ns) > 0);
    CHECK(fclose(file) == 0);
}

/* Files of the same numbers are the same machine, wherever they lie; one number makes another. A file that one rank cannot
   read is its error, of which the other hears. */
TEST_RANKS(files, 2)
{
    struct scratch scratch = scratch_make();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/machine.json", scratch.path);
    write_machine(path, "10.5");
    run(self, path, SHOAL_OK, NULL);
    write_machine(path, self->rank == 0 ? "10.5" : "10.25");
    run(self, path, SHOAL_ERR_MISMATCH, "machine mine ");
    write_machine(path, self->rank == 0 ? "10.5" : "0");
    run(self, path, self->rank == 0 ? SHOAL_ERR_PEER : SHOAL_ERR_INVALID,
        "row 1 of \"collectives\": \"bytes_per_ns\" must be a number above 0");
    CHECK(remove(path) == 0);
    CHECK(rmdir(scratch.path) == 0);
}
