/* SPDX-License-Identifier: MIT */
/* How large the buckets of gradients are that shoal_compile makes when nobody says it. */
#include "fixtures/compiled_pair.h"
#include "shoal/collective.h"

#define N_TENSORS 24

/* Averages every input. */
static shoal_status average(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_outputs;
    for (size_t i = 0; i < n_inputs; i++) {
        outputs[i] = shoal_all_reduce(inputs[i], SHOAL_AVG, context);
    }
    return shoal_scope_error();
}

/* The number of buckets of inputs with `width` rows of 1 KiB each. */
static size_t count_buckets(shoal_world *world, int64_t width, const shoal_pass_options *passes)
{
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    shoal_compiled *compiled = NULL;
    shoal_tensor *inputs[N_TENSORS];
    shoal_tensor *outputs[N_TENSORS] = {NULL};
    options.pass_options = passes;
    CHECK_OK(shoal_scope_begin());
    for (int i = 0; i < N_TENSORS; i++) {
        inputs[i] = shoal_full((int64_t[]){width, 256}, 2, 1.0 + i, SHOAL_F32);
    }
    CHECK_OK(shoal_compile(world, average, shoal_world_group(world), N_TENSORS, &options, &compiled));
    CHECK_OK(shoal_compiled_run(compiled, inputs, N_TENSORS, outputs, N_TENSORS));
    CHECK_OK(shoal_compiled_get_report(compiled, &report));
    for (int i = 0; i < N_TENSORS; i++) {
        shoal_tensor_unref(outputs[i]);
    }
    shoal_compiled_free(compiled);
    CHECK_OK(shoal_scope_end());
    return report.n_buckets;
}

/* 24 tensors of 1 MiB: sqrt(24 MiB * start_ns * bytes_per_ns) are 3.5 MiB on the one machine, and 0.7 on the other. Of
   128 KiB each, 1.24 MiB and 0.26. */
TEST_RANKS(buckets_follow_from_gradients_and_machine, 2)
{
    shoal_pass_options small = {.struct_size = sizeof small, .machine = "neoverse_v1"};
    shoal_pass_options large = {.struct_size = sizeof large, .machine = "xeon_16"};
    shoal_pass_options asked = {.struct_size = sizeof asked, .bucket_size_mb = 25};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK_INT(count_buckets(world, 1024, &small), 6);
    CHECK_INT(count_buckets(world, 1024, &large), 24);
    CHECK_INT(count_buckets(world, 1024, &asked), 2);
    CHECK_INT(count_buckets(world, 128, &small), 3);
    CHECK_INT(count_buckets(world, 128, &large), 8);
    CHECK_OK(shoal_world_close(world));
}
