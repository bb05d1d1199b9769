/* SPDX-License-Identifier: MIT */
/* A recorded training of a small GPT-2: what the metadata key "case" of the file says, and the model's parameters. */
#ifndef REPLAY_GPT2_CASE_H
#define REPLAY_GPT2_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_checks.h"
#include "shoal/module.h"
#include "shoal/tensor.h"

#define GPT2_NAME_BYTES 128
#define GPT2_STEPS 3

struct gpt2_name {
    char text[GPT2_NAME_BYTES];
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
};

struct gpt2_case {
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t vocabulary;
    int64_t context;
    int64_t batch;
    int64_t n_tokens;
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    struct gpt2_name *names; /* parameters, in the order of a walk */
    size_t n_names;
    size_t capacity;
};

/* Returns false if it cannot be run; `checks` has why. Either way it is freed. */
bool gpt2_case_read(const char *text, struct gpt2_case *self, struct fsdp_checks *checks);
void gpt2_case_free(struct gpt2_case *self);

/* The model of the case, without values on the meta device. */
shoal_status gpt2_case_make(const struct gpt2_case *self, shoal_device device, shoal_module **module_out);

#endif
