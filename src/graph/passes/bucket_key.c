/* SPDX-License-Identifier: MIT */
/* Compares the keys of members. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "graph/passes/bucket.h"

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
    if (!a || !b) {
        return a == b;
    }
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

static bool is_same_word(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool bucket_key_is_same(const struct bucket_key *a, const struct bucket_key *b)
{
    return a->op == b->op && a->division == b->division && a->dtype == b->dtype && a->device == b->device &&
           is_same_arg(a->group, b->group) && is_same_arg(a->reduce, b->reduce) &&
           is_same_arg(a->factor, b->factor) && is_same_arg(a->divisor, b->divisor) &&
           is_same_word(a->unit, b->unit);
}

static uint64_t hash_word(uint64_t hash, const shoal_arg *arg)
{
    return arg ? hash_bytes(hash, arg->as.string, strlen(arg->as.string)) : hash;
}

/* Factors and units are not hashed: they seldom differ, and NaN has many representations. */
uint64_t bucket_key_hash(const struct bucket_key *key)
{
    uint32_t op = key->op ? (uint32_t)key->op->index + 1 : 0;
    uint32_t division = key->division ? (uint32_t)key->division->index + 1 : 0;
    uint64_t hash = (uint64_t)op << 40 | (uint64_t)key->dtype << 32 | division;
    double number;
    hash = hash_word(hash_word(hash, key->reduce), key->group);
    if (key->divisor && find_number(key->divisor, &number)) {
        return hash_bytes(hash, &number, sizeof(number));
    }
    if (key->divisor && key->divisor->kind == SHOAL_ARG_NODE) {
        return hash_bytes(hash, &key->divisor->as.node->id, sizeof(uint32_t));
    }
    return hash;
}
