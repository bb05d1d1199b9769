/* SPDX-License-Identifier: MIT */
/* Chooses divide factors. */
#include "parallel/fsdp/engine/state/factors.h"

#include <math.h>

#include "base/fp_mode.h"

double fsdp_factors_before(double factor)
{
    double before = 1.0;
    while (fmod(factor, before) == 0.0 && factor / before > before) {
        before *= 2.0;
    }
    return before;
}

/* Whether sums could overflow or underflow: assumed for every dtype but f32 and bf16, which has the range of f32. */
static bool is_risky(shoal_dtype dtype)
{
    return dtype != SHOAL_F32 && dtype != SHOAL_BF16;
}

static FP_MODE_APART struct fsdp_factors choose(int n_shards, int n_replicas, shoal_dtype reduce_dtype,
                                                double factor, bool forces_sum)
{
    int n_ranks = n_shards * n_replicas;
    double total = factor > 0.0 ? factor : n_ranks;
    struct fsdp_factors factors = {
        .before = 1.0, .after = 1.0, .scatter = SHOAL_SUM, .premul = 1.0, .all_reduce = SHOAL_SUM};
    if (is_risky(reduce_dtype)) {
        factors.before = fsdp_factors_before(total);
        factors.after = total / factors.before;
    } else if (forces_sum) {
        factors.after = total;
    } else if (factor <= 0.0 && n_ranks > 1) {
        factors.scatter = SHOAL_AVG;
        factors.all_reduce = SHOAL_AVG;
    } else if (factor > 0.0 && n_shards > 1 && factor == n_shards) {
        factors.scatter = SHOAL_AVG;
    } else if (factor > 0.0 && n_shards > 1) {
        factors.scatter = SHOAL_PREMUL_SUM;
        factors.premul = 1.0 / factor;
    } else if (factor > 0.0) {
        factors.before = factor; /* there is no reduce-scatter that could multiply */
    }
    return factors;
}

struct fsdp_factors fsdp_factors_choose(int n_shards, int n_replicas, shoal_dtype reduce_dtype, double factor,
                                        bool forces_sum)
{
    uint64_t mode = fp_mode_enter();
    struct fsdp_factors factors = choose(n_shards, n_replicas, reduce_dtype, factor, forces_sum);
    fp_mode_leave(mode);
    return factors;
}
