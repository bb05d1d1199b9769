/* SPDX-License-Identifier: MIT */
/* The table of calls, and what each does with the words of a name. */
#include "calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal_compat/torch.h"
#include "shoal_nn/nn.h"

/* Words ------------------------------------------------------------------------------------------------ */

static bool find_reduce(const char *word, const shoal_reduce_op *known, size_t n_known,
                        struct replay_call *call)
{
    for (size_t i = 0; i < n_known; i++) {
        if (strcmp(word, shoal_reduce_op_name(known[i])) == 0) {
            call->reduce = known[i];
            return true;
        }
    }
    return false;
}

static bool read_reduce(const char *word, struct replay_call *call)
{
    static const shoal_reduce_op known[] = {SHOAL_SUM, SHOAL_AVG,  SHOAL_PRODUCT, SHOAL_MIN,
                                            SHOAL_MAX, SHOAL_BAND, SHOAL_BOR,     SHOAL_BXOR};
    return find_reduce(word, known, sizeof known / sizeof known[0], call);
}

/* Of torch.distributed itself, which has one more. */
static bool read_reduce_or_premul(const char *word, struct replay_call *call)
{
    static const shoal_reduce_op premul[] = {SHOAL_PREMUL_SUM};
    return read_reduce(word, call) || find_reduce(word, premul, 1, call);
}

/* "dim1" with the prefix "dim" is 1. */
static bool read_number(const char *word, const char *prefix, int64_t *number_out)
{
    size_t length = strlen(prefix);
    if (strncmp(word, prefix, length) != 0 || strspn(word + length, "-0123456789") != strlen(word + length)) {
        return false;
    }
    char *end;
    errno = 0;
    *number_out = strtoll(word + length, &end, 10);
    return end != word + length && *end == '\0' && errno == 0;
}

static bool read_dim(const char *word, struct replay_call *call)
{
    call->n_dims = 1;
    return read_number(word, "dim", &call->dims[0]);
}

/* "dims01": a digit for each tensor of a list. */
static bool read_dims(const char *word, struct replay_call *call)
{
    static const char prefix[] = "dims";
    if (strncmp(word, prefix, strlen(prefix)) != 0) {
        return false;
    }
    const char *digits = word + strlen(prefix);
    size_t n_digits = strlen(digits);
    if (n_digits == 0 || n_digits > REPLAY_MAX_LIST || strspn(digits, "0123456789") != n_digits) {
        return false;
    }
    call->n_dims = n_digits;
    for (size_t i = 0; i < n_digits; i++) {
        call->dims[i] = digits[i] - '0';
    }
    return true;
}

static bool read_gather_dim(const char *word, struct replay_call *call)
{
    call->n_dims = 1;
    return read_number(word, "gather", &call->dims[0]);
}

static bool read_shard_dim(const char *word, struct replay_call *call)
{
    return read_number(word, "shard", &call->shard_dim);
}

static bool read_source(const char *word, struct replay_call *call)
{
    int64_t source;
    if (!read_number(word, "src", &source) || source < 0 || source >= call->n_ranks) {
        return false;
    }
    call->source = (int)source;
    return true;
}

static bool read_splits(const char *word, struct replay_call *call)
{
    static const char *const words[] = {
        [REPLAY_EVEN] = "even", [REPLAY_UNEVEN] = "uneven", [REPLAY_ZEROS] = "zeros"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) == 0) {
            call->splits = (enum replay_splits)i;
            return true;
        }
    }
    return false;
}

static bool read_permutation(const char *word, struct replay_call *call)
{
    call->is_reversed = strcmp(word, "reverse") == 0;
    return call->is_reversed || strcmp(word, "shift1") == 0;
}

static bool read_rows(const char *word, struct replay_call *call)
{
    bool is_rows = strcmp(word, "rows") == 0;
    call->layout = is_rows ? REPLAY_ROWS : call->layout;
    return is_rows;
}

bool replay_read_layout(const char *word, struct replay_call *call)
{
    static const char *const words[] = {
        [REPLAY_ZERO_D] = "zero_d", [REPLAY_EMPTY] = "empty", [REPLAY_TRANSPOSED] = "transposed"};
    for (size_t i = REPLAY_ZERO_D; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) == 0) {
            call->layout = (enum replay_layout)i;
            return true;
        }
    }
    return false;
}

/* New tensors ------------------------------------------------------------------------------------------ */

int64_t replay_split_rows(const struct replay_call *call, int from, int to)
{
    return call->splits == REPLAY_UNEVEN ? (from + to) % 3 + 1 : (from + 2 * to) % 3;
}

static void run_all_reduce(struct replay_turn *turn)
{
    turn->outs[0] = shoal_all_reduce(turn->ins[0], turn->call->reduce, turn->group);
}

static void run_all_gather(struct replay_turn *turn)
{
    turn->outs[0] = shoal_all_gather_tensor(turn->ins[0], turn->call->dims[0], turn->group);
}

static void run_reduce_scatter(struct replay_turn *turn)
{
    turn->outs[0] =
        shoal_reduce_scatter_tensor(turn->ins[0], turn->call->reduce, turn->call->dims[0], turn->group);
}

/* Both lists of splits: rows that come from each rank, then rows that go there. NULL: no memory, or even. */
static int64_t *make_splits(const struct replay_turn *turn)
{
    size_t n_ranks = (size_t)turn->call->n_ranks;
    int64_t *splits = turn->call->splits == REPLAY_EVEN ? NULL : calloc(2 * n_ranks, sizeof(*splits));
    for (size_t peer = 0; splits && peer < n_ranks; peer++) {
        splits[peer] = replay_split_rows(turn->call, (int)peer, turn->rank);
        splits[n_ranks + peer] = replay_split_rows(turn->call, turn->rank, (int)peer);
    }
    return splits;
}

/* Into `out`, or into a new tensor where that is NULL. */
static shoal_tensor *exchange(const struct replay_turn *turn, shoal_tensor *out)
{
    size_t n_ranks = (size_t)turn->call->n_ranks;
    int64_t *splits = make_splits(turn);
    shoal_tensor *result = NULL;
    if (splits || turn->call->splits == REPLAY_EVEN) {
        const int64_t *sent = splits ? splits + n_ranks : NULL;
        size_t n_splits = splits ? n_ranks : 0;
        result = out ? shoal_all_to_all_inplace(out, turn->ins[0], splits, sent, n_splits, turn->group)
                     : shoal_all_to_all_single(turn->ins[0], splits, sent, n_splits, turn->group);
    }
    free(splits);
    return result;
}

static void run_all_to_all(struct replay_turn *turn)
{
    turn->outs[0] = exchange(turn, NULL);
}

static void run_broadcast(struct replay_turn *turn)
{
    turn->outs[0] = shoal_broadcast(turn->ins[0], turn->call->source, turn->group);
}

static void run_permute(struct replay_turn *turn)
{
    int n_ranks = turn->call->n_ranks;
    int64_t *destinations = calloc((size_t)n_ranks, sizeof(*destinations));
    for (int i = 0; destinations && i < n_ranks; i++) {
        destinations[i] = turn->call->is_reversed ? n_ranks - 1 - i : (i + 1) % n_ranks;
    }
    turn->outs[0] =
        destinations ? shoal_permute_tensor(turn->ins[0], destinations, (size_t)n_ranks, turn->group) : NULL;
    free(destinations);
}

static void run_shard_dim(struct replay_turn *turn)
{
    turn->outs[0] =
        shoal_shard_dim_alltoall(turn->ins[0], turn->call->dims[0], turn->call->shard_dim, turn->group);
}

/* Lists ------------------------------------------------------------------------------------------------ */

static void take_list(struct replay_turn *turn, shoal_tensor *const *list)
{
    if (list) {
        memcpy(turn->outs, list, turn->n_outs * sizeof(turn->outs[0]));
    }
}

static void run_all_reduce_list(struct replay_turn *turn)
{
    take_list(turn, shoal_all_reduce_coalesced(turn->ins, turn->n_ins, turn->call->reduce, turn->group));
}

static void run_all_gather_list(struct replay_turn *turn)
{
    take_list(turn, shoal_all_gather_into_tensor_coalesced(turn->ins, turn->n_ins, turn->group));
}

static void run_reduce_scatter_list(struct replay_turn *turn)
{
    const int64_t *dims = turn->call->n_dims > 0 ? turn->call->dims : NULL;
    take_list(turn, shoal_reduce_scatter_tensor_coalesced(turn->ins, turn->n_ins, turn->call->reduce, dims,
                                                          turn->group));
}

/* Into memory that is there ---------------------------------------------------------------------------- */

/* The results are these tensors themselves. */
static void check_memory(struct replay_turn *turn, shoal_tensor *const *given, size_t n_given)
{
    for (size_t i = 0; i < n_given; i++) {
        if (turn->outs[i] && shoal_data(turn->outs[i]) != shoal_data(given[i])) {
            turn->wrong = "the result is not in the memory that was given";
        }
    }
}

static void run_all_reduce_(struct replay_turn *turn)
{
    turn->outs[0] = shoal_all_reduce_(turn->ins[0], turn->call->reduce, turn->group);
    check_memory(turn, turn->ins, 1);
}

static void run_all_reduce_inplace(struct replay_turn *turn)
{
    turn->outs[0] = shoal_all_reduce_inplace(turn->ins[0], turn->call->reduce, turn->group);
    check_memory(turn, turn->ins, 1);
}

static void run_all_reduce_list_(struct replay_turn *turn)
{
    take_list(turn, shoal_all_reduce_coalesced_(turn->ins, turn->n_ins, turn->call->reduce, turn->group));
    check_memory(turn, turn->ins, turn->n_outs);
}

static void run_broadcast_(struct replay_turn *turn)
{
    turn->outs[0] = shoal_broadcast_(turn->ins[0], turn->call->source, turn->group);
    check_memory(turn, turn->ins, 1);
}

static shoal_tensor *make_out(const struct replay_turn *turn, size_t i)
{
    const shoal_tensor *shape = turn->shapes[i];
    return shoal_zeros(shoal_tensor_shape(shape), shoal_tensor_n_dims(shape), shoal_tensor_dtype(shape));
}

static void run_all_gather_out(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    turn->outs[0] = shoal_all_gather_into_tensor_out(turn->ins[0], turn->group, out);
    check_memory(turn, &out, 1);
}

static void run_reduce_scatter_out(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    turn->outs[0] = shoal_reduce_scatter_tensor_out(turn->ins[0], turn->call->reduce, turn->group, out);
    check_memory(turn, &out, 1);
}

static void run_all_gather_inplace(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    turn->outs[0] = shoal_all_gather_tensor_inplace(out, turn->ins[0], turn->call->dims[0], turn->group);
    check_memory(turn, &out, 1);
}

static void run_reduce_scatter_inplace(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    turn->outs[0] = shoal_reduce_scatter_tensor_inplace(out, turn->ins[0], turn->call->reduce,
                                                        turn->call->dims[0], turn->group);
    check_memory(turn, &out, 1);
}

static void run_all_to_all_inplace(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    turn->outs[0] = exchange(turn, out);
    check_memory(turn, &out, 1);
}

static void run_gather_list_inplace(struct replay_turn *turn)
{
    shoal_tensor **outs = calloc(turn->n_outs, sizeof(*outs));
    for (size_t i = 0; outs && i < turn->n_outs; i++) {
        outs[i] = make_out(turn, i);
    }
    if (outs) {
        take_list(turn, shoal_all_gather_inplace(outs, turn->n_outs, turn->ins[0], turn->group));
        check_memory(turn, outs, turn->n_outs);
    }
    free(outs);
}

/* Raw memory ------------------------------------------------------------------------------------------- */

static void run_raw(struct replay_turn *turn, shoal_collective_kind kind, shoal_tensor *out)
{
    shoal_collective call = SHOAL_COLLECTIVE_INIT;
    call.kind = kind;
    call.dtype = shoal_tensor_dtype(out);
    call.reduce = turn->call->reduce;
    call.send = shoal_data(turn->ins[0]);
    call.recv = shoal_mutable_data(out);
    call.count = (size_t)shoal_tensor_count(out);
    call.factor = call.reduce == SHOAL_PREMUL_SUM ? REPLAY_PREMUL_FACTOR : 0;
    turn->status = shoal_group_collective(turn->group, &call);
    turn->outs[0] = out;
}

static void run_raw_all_reduce(struct replay_turn *turn)
{
    run_raw(turn, SHOAL_KIND_ALL_REDUCE, turn->ins[0]);
}

static void run_raw_reduce_scatter(struct replay_turn *turn)
{
    shoal_tensor *out = make_out(turn, 0);
    if (out) {
        run_raw(turn, SHOAL_KIND_REDUCE_SCATTER, out);
    }
}

/* torch.distributed.nn.functional, and calls behind each other ------------------------------------------- */

/* A tensor of every rank, as a list. */
static void run_gather_list(struct replay_turn *turn)
{
    shoal_tensor *all = shoal_all_gather_tensor(turn->ins[0], 0, turn->group);
    int64_t n_rows = all ? shoal_tensor_shape(all)[0] / (int64_t)turn->n_outs : 0;
    for (size_t i = 0; i < turn->n_outs; i++) {
        turn->outs[i] = all ? shoal_narrow(all, 0, (int64_t)i * n_rows, n_rows) : NULL;
    }
}

static void run_scatter_list(struct replay_turn *turn)
{
    shoal_tensor *all = shoal_cat(turn->ins, turn->n_ins, 0);
    turn->outs[0] = shoal_reduce_scatter_tensor(all, turn->call->reduce, 0, turn->group);
}

static void run_chain(struct replay_turn *turn)
{
    shoal_tensor *all = shoal_nn_tanh(shoal_all_gather_tensor_autograd(turn->ins[0], 0, turn->group));
    turn->outs[0] = shoal_reduce_scatter_tensor_autograd(all, SHOAL_SUM, 0, turn->group);
}

/* The table -------------------------------------------------------------------------------------------- */

static const struct replay_row rows[] = {
#define ROW(name, function, ...)                 \
    {                                            \
        .op = name, .run = function, __VA_ARGS__ \
    }
#define WORDS(...) .words = {__VA_ARGS__}
    ROW("all_reduce", run_all_reduce, WORDS(read_reduce), .is_reduce = true, .gradient = REPLAY_SUMMED),
    ROW("all_reduce_coalesced", run_all_reduce_list, WORDS(read_reduce), .ins = REPLAY_LIST,
        .outs = REPLAY_LIST, .is_reduce = true, .gradient = REPLAY_SUMMED),
    ROW("all_gather_tensor", run_all_gather, WORDS(read_dim), .gradient = REPLAY_SUMMED_BLOCK),
    ROW("all_gather_into_tensor_coalesced", run_all_gather_list, .ins = REPLAY_LIST, .outs = REPLAY_LIST,
        .gradient = REPLAY_SUMMED_BLOCK),
    ROW("reduce_scatter_tensor", run_reduce_scatter, WORDS(read_reduce, read_dim), .is_reduce = true,
        .is_scatter = true, .gradient = REPLAY_MOVED),
    ROW("reduce_scatter_tensor_coalesced", run_reduce_scatter_list, WORDS(read_reduce, read_dims),
        .n_optional = 1, .ins = REPLAY_LIST, .outs = REPLAY_LIST, .is_reduce = true, .is_scatter = true,
        .gradient = REPLAY_MOVED),
    ROW("all_to_all_single", run_all_to_all, WORDS(read_splits), .gradient = REPLAY_MOVED),
    ROW("broadcast", run_broadcast, WORDS(read_source), .gradient = REPLAY_SUMMED_ROOT, .is_handed_on = true),
    ROW("permute_tensor", run_permute, WORDS(read_permutation, read_rows), .n_optional = 1,
        .gradient = REPLAY_MOVED),
    ROW("shard_dim_alltoall", run_shard_dim, WORDS(read_gather_dim, read_shard_dim)),
    ROW("shard_dim_alltoall_mesh", run_shard_dim, WORDS(read_gather_dim, read_shard_dim)),
    ROW("all_reduce_", run_all_reduce_, WORDS(read_reduce), .is_reduce = true),
    ROW("all_reduce_inplace", run_all_reduce_inplace, WORDS(read_reduce), .is_reduce = true),
    ROW("all_reduce_coalesced_", run_all_reduce_list_, WORDS(read_reduce), .ins = REPLAY_LIST,
        .outs = REPLAY_LIST, .is_reduce = true),
    ROW("broadcast_", run_broadcast_, WORDS(read_source)),
    ROW("all_gather_into_tensor_out", run_all_gather_out, ),
    ROW("reduce_scatter_tensor_out", run_reduce_scatter_out, WORDS(read_reduce), .is_reduce = true,
        .is_scatter = true),
    ROW("all_gather_tensor_inplace", run_all_gather_inplace, WORDS(read_dim)),
    ROW("reduce_scatter_tensor_inplace", run_reduce_scatter_inplace, WORDS(read_reduce, read_dim),
        .is_reduce = true, .is_scatter = true),
    ROW("all_to_all_inplace", run_all_to_all_inplace, WORDS(read_splits)),
    ROW("all_gather_inplace", run_gather_list_inplace, .outs = REPLAY_RANKS),
    ROW("c10d_all_reduce", run_raw_all_reduce, WORDS(read_reduce_or_premul), .is_reduce = true),
    ROW("c10d_reduce_scatter_tensor", run_raw_reduce_scatter, WORDS(read_reduce_or_premul), .is_reduce = true,
        .is_scatter = true),
    ROW("all_gather_tensor_autograd", run_all_gather, WORDS(read_dim), .gradient = REPLAY_SUMMED_BLOCK),
    ROW("reduce_scatter_tensor_autograd", run_reduce_scatter, WORDS(read_reduce, read_dim), .is_reduce = true,
        .is_scatter = true, .gradient = REPLAY_MOVED),
    ROW("all_to_all_single_autograd", run_all_to_all, WORDS(read_splits), .gradient = REPLAY_MOVED),
    ROW("nn_all_reduce", run_all_reduce, WORDS(read_reduce), .is_reduce = true, .gradient = REPLAY_SUMMED),
    ROW("nn_all_gather", run_gather_list, .outs = REPLAY_RANKS, .gradient = REPLAY_SUMMED_OWN),
    ROW("nn_reduce_scatter", run_scatter_list, WORDS(read_reduce), .ins = REPLAY_RANKS, .is_reduce = true,
        .gradient = REPLAY_MOVED),
    ROW("nn_all_to_all_single", run_all_to_all, WORDS(read_splits), .gradient = REPLAY_MOVED),
    ROW("nn_broadcast", run_broadcast, WORDS(read_source), .gradient = REPLAY_SUMMED_ROOT),
    ROW("chain", run_chain, .is_reduce = true, .gradient = REPLAY_CHAINED),
#undef ROW
#undef WORDS
};

const struct replay_row *replay_row_find(const char *op)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(op, rows[i].op) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}
