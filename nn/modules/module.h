/* SPDX-License-Identifier: MIT */
/*
 * What the files of ready-made modules share. The context of such a module is its settings: the numbers that its
 * forward function needs, and the distributions of its own parameters, which shoal_nn_initialize_modules reads again.
 */
#ifndef NN_MODULES_MODULE_H
#define NN_MODULES_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/op.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/random.h"

enum {
    NN_MAX_OWN_PARAMETERS = 2,
    NN_MAX_STREAMS = 2
};

/* Of one dimension; a small multiple of it is a number, too. */
#define NN_MAX_SIZE (INT64_C(1) << 48)

struct nn_settings {
    struct {
        const char *name;
        shoal_nn_distribution distribution;
    } rules[NN_MAX_OWN_PARAMETERS];
    size_t n_rules;
    size_t n_inputs; /* that a call must give; 0 if the forward function looks itself */
    bool is_projection;
    bool is_causal;
    bool is_untied;
    int64_t n_heads;
    int64_t context;
    double eps;
    double dropout;
    uint64_t streams[NN_MAX_STREAMS]; /* of dropout */
};

/* Where the parameters of a module are made. */
struct nn_place {
    shoal_dtype dtype;
    shoal_device device;
};

/* Makes a module with a copy of these settings. If `forward` is NULL, it is a container, which has none. */
shoal_status nn_module_make(const char *type, shoal_module_forward forward,
                            const struct nn_settings *settings, shoal_module **module_out);
/* Of a module that nn_module_make made. */
const struct nn_settings *nn_module_settings(const shoal_module *module);

/* One more parameter, without values, which requires a gradient. Remembers the distribution; the name is a literal. */
shoal_status nn_module_add(shoal_module *module, const char *name, const int64_t *shape, int n_dims,
                           struct nn_place place, const shoal_nn_distribution *distribution);
/* Adds a child and drops the caller's reference, also when it fails. */
shoal_status nn_module_adopt(shoal_module *module, const char *name, shoal_module *child);
/* The end of a creating call: gives the new tree its initial values, or releases it when that fails. */
shoal_status nn_module_finish(shoal_module *module, uint64_t seed, shoal_device device,
                              shoal_module **module_out);

/* Checks of options: `call` is the creating call, `name` the field ------------------------------------- */

/* Copies the caller's options over the defaults in `ours` (common/struct_size.h). */
shoal_status nn_read_options(const char *call, const void *options, void *ours, size_t our_bytes,
                             const void *module_out);
shoal_status nn_check_count(const char *call, const char *name, int64_t value);
/* Call it first: options that were not made with `init`, the name of their macro, have no dtype. */
shoal_status nn_check_place(const char *call, const char *init, struct nn_place place);

/* Trees without values --------------------------------------------------------------------------------- */

/* As the creating calls without checks of options, and with parameters that have no values yet. */
shoal_status nn_make_linear(const shoal_nn_linear_options *options, shoal_module **module_out);
shoal_status nn_make_embedding(const shoal_nn_embedding_options *options, shoal_module **module_out);
shoal_status nn_make_layer_norm(const shoal_nn_norm_options *options, shoal_module **module_out);
shoal_status nn_check_block(const char *call, const shoal_nn_block_options *options);
shoal_status nn_make_block(const shoal_nn_block_options *options, shoal_module **module_out);

/* Inside forward functions: NULL, or an error in the scope, when something fails ----------------------- */

/* What modules with dropout are called with: a first input, which must be there, and a position, which need not. */
struct nn_inputs {
    shoal_tensor *first;
    shoal_tensor *position;
};
shoal_status nn_take_inputs(const shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            struct nn_inputs *inputs_out);
shoal_tensor *nn_call_child(shoal_module *module, const char *name, shoal_tensor *input);
shoal_tensor *nn_call_child_at(shoal_module *module, const char *name, shoal_tensor *input,
                               shoal_tensor *position);
/* The tensor itself where nothing is to be dropped. */
shoal_tensor *nn_drop(shoal_tensor *tensor, shoal_tensor *position, uint64_t stream, double p);

#endif
