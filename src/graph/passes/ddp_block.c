/* SPDX-License-Identifier: MIT */
#include "graph/passes/ddp_block.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "tensor/tensor.h"

enum { /* arguments of the all_reduce ops */
    ARG_SELF,
    ARG_REDUCE,
    ARG_GROUP,
    ARG_FACTOR,
    N_ARGS
};

/* The form ----------------------------------------------------------------------------------------------- */

static const shoal_tensor *value_of(const struct shoal_node *node)
{
    return node->values[0];
}

static bool is_in_place(const struct ddp_block *block)
{
    return node_calls(block->start, OP_all_reduce_);
}

/* The result must be an output, or be copied into a gradient that exists already. */
static bool match_user(struct ddp_block *block)
{
    struct shoal_node *wait = block->wait;
    if (wait->n_users != 1) {
        return false;
    }
    block->user = wait->first_use->user;
    if (block->user->kind == SHOAL_NODE_OUTPUT) {
        return true;
    }
    const shoal_arg *args = block->user->args;
    return node_calls(block->user, OP_copy_) && args[1].kind == SHOAL_ARG_NODE && args[1].as.node == wait &&
           args[0].kind == SHOAL_ARG_NODE && args[0].as.node != wait;
}

/* Whether the node divides all elements by one number, so that several gradients can be divided together. */
static bool is_division(const struct shoal_node *node)
{
    if (!node_calls(node, OP_div) && !node_calls(node, OP_div_scalar)) {
        return false;
    }
    if (node->args[0].kind != SHOAL_ARG_NODE || node->args[0].as.node->n_values != 1) {
        return false;
    }
    const shoal_tensor *from = value_of(node->args[0].as.node);
    const shoal_tensor *to = value_of(node);
    if (from->dtype != to->dtype || from->layout.n_dims != to->layout.n_dims ||
        memcmp(from->layout.shape, to->layout.shape,
               (size_t)to->layout.n_dims * sizeof(to->layout.shape[0])) != 0) {
        return false;
    }
    if (node_calls(node, OP_div_scalar)) {
        return true;
    }
    const shoal_arg *divisor = &node->args[1];
    return divisor->kind == SHOAL_ARG_NODE && divisor->as.node->n_values == 1 &&
           value_of(divisor->as.node)->count == 1 && value_of(divisor->as.node)->layout.n_dims <= 1;
}

static bool match_input(struct ddp_block *block)
{
    const shoal_arg *args = block->start->args;
    if (block->start->n_args != N_ARGS || args[ARG_SELF].kind != SHOAL_ARG_NODE ||
        args[ARG_SELF].as.node->n_values != 1 || args[ARG_REDUCE].kind != SHOAL_ARG_STRING ||
        args[ARG_GROUP].kind != SHOAL_ARG_GROUP) {
        return false;
    }
    struct shoal_node *input = args[ARG_SELF].as.node;
    block->gradient = input;
    block->value = value_of(input);
    block->reader = block->start;
    if (is_division(input)) {
        block->division = input;
        block->gradient = input->args[0].as.node;
        block->value = value_of(block->gradient);
        block->reader = input;
        return true;
    }
    return strcmp(args[ARG_REDUCE].as.string, "avg") == 0;
}

/* Memory ------------------------------------------------------------------------------------------------- */

static bool is_own(const struct ddp_block *block, const struct shoal_node *node)
{
    return node == block->start || node == block->wait || node == block->user ||
           node == block->start->args[ARG_SELF].as.node;
}

/* Returns the first storage that a node writes or creates; ACCESSES_NONE: none. */
static uint32_t find_written(const struct accesses *accesses, const struct shoal_node *node)
{
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(accesses->effects, node, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        if (accesses_is_write(&found[i])) {
            return found[i].storage;
        }
    }
    return ACCESSES_NONE;
}

/* Whether only nodes of the block use the memory that is reduced in place, so that it can be reduced elsewhere. */
static bool is_private(const struct accesses *accesses, const struct ddp_block *block)
{
    const struct shoal_node *input = block->start->args[ARG_SELF].as.node;
    uint32_t storage = find_written(accesses, block->start);
    if (input->kind != SHOAL_NODE_CALL || input->n_users != 1 || storage == ACCESSES_NONE) {
        return false;
    }
    for (uint32_t i = accesses->first[storage]; i < accesses->first[storage + 1]; i++) {
        if (!is_own(block, accesses->entries[i].node)) {
            return false;
        }
    }
    return true;
}

/* Whether nobody writes to the result of the division, so that it can be computed at another place. */
static bool is_constant(const struct accesses *accesses, const struct ddp_block *block)
{
    if (!accesses->effects) {
        return true;
    }
    uint32_t storage = find_written(accesses, block->division);
    if (storage == ACCESSES_NONE) {
        return false;
    }
    const struct access *entry = &accesses->entries[accesses->first[storage]];
    return entry->node == block->division && entry->next_write == ACCESSES_NONE;
}

/* Returns the first position at which something that the reader reads is overwritten. The block's own copy_ does not
   count: it uses the block's result, so it stays behind it, and so do the nodes that follow it. */
static uint32_t find_limit(const struct accesses *accesses, const struct ddp_block *block)
{
    uint32_t position = accesses_position(accesses, block->reader);
    uint32_t limit = UINT32_MAX;
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(accesses->effects, block->reader, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        if (accesses_is_write(&found[i])) {
            continue;
        }
        uint32_t own = accesses_behind(accesses, found[i].storage, position - 1);
        uint32_t write = accesses->entries[own].next_write;
        if (write != ACCESSES_NONE && accesses->entries[write].node != block->user &&
            accesses->entries[write].position < limit) {
            limit = accesses->entries[write].position;
        }
    }
    return limit;
}

static bool match_memory(const struct accesses *accesses, struct ddp_block *block)
{
    if (is_in_place(block) ? !is_private(accesses, block)
                           : block->division && !is_constant(accesses, block)) {
        return false;
    }
    block->limit = find_limit(accesses, block);
    return block->limit > accesses_position(accesses, block->start);
}

bool ddp_block_match(const struct accesses *accesses, struct shoal_node *start, struct ddp_block *block_out)
{
    struct ddp_block block = {.start = start};
    if ((!node_calls(start, OP_all_reduce) && !node_calls(start, OP_all_reduce_)) || start->n_users != 1) {
        return false;
    }
    block.wait = start->first_use->user;
    if (!node_calls(block.wait, OP_wait_tensor) || !match_user(&block) || !match_input(&block) ||
        !match_memory(accesses, &block)) {
        return false;
    }
    block.bytes = tensor_bytes(block.value);
    *block_out = block;
    return true;
}

/* Keys --------------------------------------------------------------------------------------------------- */

/* Reads a number, so that 8 and 8.0 are equal. False for integers that a double cannot hold exactly. */
static bool find_number(const shoal_arg *arg, double *number_out)
{
    if (arg->kind == SHOAL_ARG_FLOAT) {
        *number_out = arg->as.real;
        return true;
    }
    if (arg->kind == SHOAL_ARG_INT && arg->as.integer <= (INT64_C(1) << 53) &&
        arg->as.integer >= -(INT64_C(1) << 53)) {
        *number_out = (double)arg->as.integer;
        return true;
    }
    return false;
}

/* Compares the bits, because 0 and -0 must differ: division by them gives different infinities. */
static bool has_same_bits(double a, double b)
{
    uint64_t bits[2];
    memcpy(&bits[0], &a, sizeof(a));
    memcpy(&bits[1], &b, sizeof(b));
    return bits[0] == bits[1];
}

static bool is_same_arg(const shoal_arg *a, const shoal_arg *b)
{
    double left;
    double right;
    if (a->kind == SHOAL_ARG_STRING || a->kind == SHOAL_ARG_GROUP) {
        return a->kind == b->kind && strcmp(a->as.string, b->as.string) == 0;
    }
    if (find_number(a, &left) && find_number(b, &right)) {
        return has_same_bits(left, right) || (isnan(left) && isnan(right));
    }
    if (a->kind != b->kind) {
        return false;
    }
    switch (a->kind) {
    case SHOAL_ARG_NODE:
        return a->as.node == b->as.node;
    case SHOAL_ARG_INT:
        return a->as.integer == b->as.integer;
    case SHOAL_ARG_RANK:
        return strcmp(a->as.rank.group, b->as.rank.group) == 0 && a->as.rank.factor == b->as.rank.factor &&
               a->as.rank.offset == b->as.rank.offset;
    case SHOAL_ARG_NONE:
        return true;
    case SHOAL_ARG_STRING:
    case SHOAL_ARG_GROUP:
    case SHOAL_ARG_FLOAT:
    case SHOAL_ARG_BOOL:
    case SHOAL_ARG_DTYPE:
    case SHOAL_ARG_LIST:
        break;
    }
    return false;
}

bool ddp_block_has_key_of(const struct ddp_block *a, const struct ddp_block *b)
{
    if (a->start->op != b->start->op || a->value->dtype != b->value->dtype || !a->division != !b->division) {
        return false;
    }
    for (size_t i = ARG_REDUCE; i < N_ARGS; i++) {
        if (!is_same_arg(&a->start->args[i], &b->start->args[i])) {
            return false;
        }
    }
    return !a->division ||
           (a->division->op == b->division->op && is_same_arg(&a->division->args[1], &b->division->args[1]));
}

uint64_t ddp_block_hash(const struct ddp_block *block)
{
    const shoal_arg *args = block->start->args;
    uint32_t division = block->division ? (uint32_t)block->division->op->index + 1 : 0;
    uint64_t hash = (uint64_t)block->start->op->index << 40 | (uint64_t)block->value->dtype << 32 | division;
    hash = hash_bytes(hash, args[ARG_REDUCE].as.string, strlen(args[ARG_REDUCE].as.string));
    hash = hash_bytes(hash, args[ARG_GROUP].as.string, strlen(args[ARG_GROUP].as.string));
    double number;
    if (block->division && find_number(&block->division->args[1], &number)) {
        hash = hash_bytes(hash, &number, sizeof(number));
    } else if (block->division && block->division->args[1].kind == SHOAL_ARG_NODE) {
        hash = hash_bytes(hash, &block->division->args[1].as.node->id, sizeof(uint32_t));
    }
    /* Factors are not hashed: they seldom differ, and NaN has many representations. */
    return hash;
}
