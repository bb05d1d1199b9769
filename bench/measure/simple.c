/* SPDX-License-Identifier: MIT */
/* The wrapper that bench/peers/gloo_collectives.py loads. */
#include "measure/simple.h"

#include "measure/measure.h"

#include <stdlib.h>

struct measure_simple {
    struct measure_request request;
    struct measure_page *page;
    measure_simple_call prepare;
    measure_simple_call call;
};

static bool parse(struct measure_request *request, int argc, char **argv)
{
    measure_request_init(request);
    if (argc < 1 || !measure_op_find(argv[0], &request->op)) {
        return false;
    }
    for (int i = 1; i < argc;) {
        int n_words = measure_parse(request, argc - i, argv + i);
        if (n_words <= 0) {
            return false;
        }
        i += n_words;
    }
    /* What the caller's library does: sums from rank 0, of one dtype, from buffer to buffer. */
    return request->dtype && request->redop == MEASURE_REDOP_sum && request->root == 0;
}

struct measure_simple *measure_simple_open(int argc, char **argv)
{
    struct measure_simple *simple = calloc(1, sizeof(*simple));
    if (!simple) {
        return NULL;
    }
    if (!parse(&simple->request, argc, argv)) {
        fprintf(stderr, "bad arguments; there are:\n%s", measure_usage);
        free(simple);
        return NULL;
    }
    simple->page = measure_page_map(&simple->request, NULL);
    if (!simple->page) {
        perror("shared memory");
        free(simple);
        return NULL;
    }
    return simple;
}

int measure_simple_ranks(const struct measure_simple *simple)
{
    return simple->request.n_ranks;
}

const char *measure_simple_dtype(const struct measure_simple *simple)
{
    return simple->request.dtype->name;
}

void measure_simple_fail(struct measure_simple *simple)
{
    measure_page_fail(simple->page);
}

static bool pass_on(const struct measure_simple *simple, measure_simple_call function,
                    const struct measure_call *call)
{
    const struct measure_op_row *op = &measure_ops[call->op];
    size_t count_bytes = call->count * simple->request.dtype->bytes;
    size_t n_ranks = (size_t)simple->request.n_ranks;
    bool is_cut = op->send_is_share || op->recv_is_share || call->op == MEASURE_all_to_all;
    size_t whole_bytes = is_cut ? n_ranks * count_bytes : count_bytes;
    return function(op->name, call->send, op->send_is_share ? count_bytes : whole_bytes, call->recv,
                    op->recv_is_share ? count_bytes : whole_bytes);
}

static bool prepare_call(void *context, const struct measure_call *call)
{
    const struct measure_simple *simple = context;
    return pass_on(simple, simple->prepare, call);
}

static bool run(void *context, const struct measure_call *call)
{
    const struct measure_simple *simple = context;
    return pass_on(simple, simple->call, call);
}

bool measure_simple_run(struct measure_simple *simple, int rank, const char *transport,
                        measure_simple_call prepare, measure_simple_call call)
{
    simple->prepare = prepare;
    simple->call = call;
    const struct measure_library library = {
        .transport = transport, .buffers = "heap", .context = simple, .prepare = prepare_call, .run = run};
    return measure_run(&simple->request, simple->page, rank, &library);
}
