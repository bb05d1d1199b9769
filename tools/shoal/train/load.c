/* SPDX-License-Identifier: MIT */
/* The shape of a model that is loaded is that of its files (model/describe.h); options may only repeat it. */
#include "train/load.h"
#include "model/load.h"

#include "base/error.h"
#include "base/text.h"
#include "base/try.h"

#include <inttypes.h>

enum {
    LIST_BYTES = 256
};

/* What options and the model both say. */
struct size {
    const char *name; /* of the option */
    int64_t *option;
    int64_t found; /* 0 if the model does not say */
    bool is_most;  /* the option may be less */
};

static shoal_status compare_sizes(const struct train_options *options, const struct size *sizes,
                                  size_t n_sizes)
{
    char string[LIST_BYTES];
    struct text list = text_begin(string, sizeof string);
    for (size_t i = 0; i < n_sizes; i++) {
        const struct size *size = &sizes[i];
        bool is_known = size->found != 0 && train_options_given(options, size->name);
        bool fits = size->is_most ? *size->option <= size->found : *size->option == size->found;
        if (is_known && !fits) {
            text_add(&list, "%s%s%s %" PRId64 " (not %" PRId64 ")", list.length > 0 ? ", " : "",
                     size->is_most ? "at most " : "", size->name, size->found, *size->option);
        }
    }
    return list.length == 0 ? SHOAL_OK
                            : error_set(SHOAL_ERR_INVALID, "the model in %s has %s", options->load, string);
}

/* Bytes need 256 tokens; files of tokens are checked when they are read. */
static shoal_status settle_vocabulary(struct train_options *options)
{
    int64_t vocabulary = options->loaded->gpt.vocabulary;
    if (options->tokens) {
        options->vocabulary = vocabulary;
    }
    return options->tokens || vocabulary >= MODEL_BYTE_VOCABULARY
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "the model has %" PRId64 " tokens, the data %d", vocabulary,
                           MODEL_BYTE_VOCABULARY);
}

static shoal_status settle(struct train_options *options, struct model_description *loaded)
{
    const shoal_nn_gpt_options *gpt = &loaded->gpt;
    const struct size sizes[] = {{"--layers", &options->n_layers, gpt->n_layers, .is_most = false},
                                 {"--width", &options->width, gpt->width, .is_most = false},
                                 {"--heads", &options->n_heads, gpt->n_heads, .is_most = false},
                                 {"--context", &options->context, gpt->context, .is_most = true},
                                 {"--vocabulary", &options->vocabulary, gpt->vocabulary, .is_most = false}};
    TRY(compare_sizes(options, sizes, sizeof sizes / sizeof sizes[0]));
    TRY(model_settle_heads(loaded, options->load,
                           train_options_given(options, "--heads") ? options->n_heads : 0));
    options->loaded = loaded;
    options->n_layers = gpt->n_layers;
    options->width = gpt->width;
    options->n_heads = gpt->n_heads;
    /* Rows may be shorter than the positions of the model. */
    options->context = options->context < gpt->context ? options->context : gpt->context;
    return settle_vocabulary(options);
}

shoal_status train_load_settle(struct train_options *options, struct model_description *loaded)
{
    shoal_status status = model_describe(options->load, loaded);
    if (status == SHOAL_OK) {
        status = settle(options, loaded);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--load");
}

shoal_status train_load(struct train_job *job)
{
    shoal_status status = model_load(job->group, job->options->load, job->options->loaded, job->module);
    return status == SHOAL_OK ? SHOAL_OK : train_job_agree(job, error_prefix(status, "--load"));
}
