/* SPDX-License-Identifier: MIT */
#include "files.h"

#include <math.h>
#include <stdio.h>

#include "shoal_nn/nn.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

void replay_add_totals(struct fsdp_totals *to, const struct fsdp_totals *from)
{
    to->n_checked += from->n_checked;
    to->n_wrong += from->n_wrong;
    to->worst = fmax(to->worst, from->worst);
}

json_t *replay_read_case(const char *text, struct fsdp_checks *checks)
{
    json_error_t error;
    if (!text) {
        fsdp_checks_add_wrong(checks, "case", "is missing in the metadata");
        return NULL;
    }
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(json)) {
        fsdp_checks_add_wrong(checks, "case", "is no JSON object%s%s", json ? "" : ": ",
                              json ? "" : error.text);
        json_decref(json);
        return NULL;
    }
    return json;
}

int replay_files(const char *program, int argc, char **argv,
                 bool (*replay_file)(const char *path, struct fsdp_totals *totals))
{
    struct fsdp_totals totals = {0};
    bool is_readable = true;
    if (argc < 2 || argv[1][0] == '-') {
        (void)fprintf(stderr, "usage: %s FILE.safetensors...\n", program);
        return EXIT_USAGE;
    }
    /* Ranks are threads here, and products small. */
    if (shoal_nn_set_threads(1) != SHOAL_OK) {
        (void)fprintf(stderr, "%s: %s\n", program, shoal_error_text());
        return EXIT_USAGE;
    }
    for (int i = 1; i < argc; i++) {
        is_readable = replay_file(argv[i], &totals) && is_readable;
    }
    printf("%zu checked, %zu wrong, worst %.3g of its bound\n", totals.n_checked, totals.n_wrong,
           totals.worst);
    return !is_readable ? EXIT_USAGE : totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
