/* SPDX-License-Identifier: MIT */
/*
 * Programs of calls that ranks make together. A call has a kind, a row of one of the tables of kinds, and for each of
 * its compared arguments (arguments.def) the number of a choice (domains.def). All ranks have the same list of calls;
 * one of them then deviates: in one argument, or in order.
 *
 * The oracle fills in what each call shows on each rank if nobody deviates (oracle.h).
 */
#ifndef TESTS_DEVIATION_PROGRAM_H
#define TESTS_DEVIATION_PROGRAM_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "shoal/status.h"

enum {
    COUNT = 24, /* elements of each parameter */
    UNIT_PARAMS = 4,
    MAX_UNITS = 3,
    MAX_PARAMS = MAX_UNITS * UNIT_PARAMS,
    MAX_MODELS = 2, /* of a family */
    MAX_RANKS = 4,
    MAX_ARGUMENTS = 20,
    MAX_CALLS = 400
};

/* The tables --------------------------------------------------------------------------------------------- */

enum domain {
#define DOMAIN(name, n_choices, meaning) DOMAIN_##name,
#include "conformance/deviation/domains.def"
#undef DOMAIN
    N_DOMAINS
};

struct argument {
    const char *call;
    const char *name;
    enum domain domain;
};

/* The compared ones. */
static const struct argument arguments[] = {
#define COMPARED(call, argument, domain) {#call, #argument, DOMAIN_##domain},
#define TESTED(call, argument, test)
#define PER_RANK(call, argument, why)
#define FIELDS(call, argument, options)
#define LOCAL(call, why)
#include "conformance/deviation/arguments.def"
#undef COMPARED
#undef TESTED
#undef PER_RANK
#undef FIELDS
#undef LOCAL
};
enum {
    N_ARGUMENTS = sizeof arguments / sizeof arguments[0]
};

enum family {
    EXPLICIT,   /* shoal/fsdp.h */
    MODULES,    /* shoal/fully_shard.h */
    WRAPPED,    /* shoal/ddp.h */
    FUNCTIONAL, /* shoal/collective.h */
    N_FAMILIES
};

/* Where a call can stand (generate.h). */
enum block {
    BLOCK_NONE,    /* only where others put it */
    BLOCK_BUILD,   /* before everything else */
    BLOCK_STEP,    /* in a step */
    BLOCK_EVAL,    /* in forward passes without a backward pass */
    BLOCK_SETTING, /* before a step; the setting is put back before another */
    BLOCK_HAND,    /* around parameters that are gathered by hand */
    BLOCK_PENDING, /* after a step that left its gradients */
    BLOCK_CLIP,    /* after a step */
    BLOCK_ALONE
};

struct call;
struct runner;
struct oracle;

struct kind {
    const char *name;   /* of the public call, or in words */
    const char *fields; /* of the options struct whose fields are arguments too; NULL: none */
    enum family family;
    enum block block;
    shoal_status (*run)(struct runner *runner, const struct call *call);
    void (*predict)(struct oracle *oracle, const struct call *call); /* NULL: shows and changes nothing */
    void (*function)(void);                                          /* for `run`, if rows share it */
    const char *setting; /* BLOCK_SETTING: the argument that is put back, */
    int usual;           /* and to which choice */
};

/* Calls -------------------------------------------------------------------------------------------------- */

struct call {
    const struct kind *kind;
    int id; /* its place in the program that nobody deviates from */
    int model;
    int unit;
    int param;
    int n_choices;
    const struct argument *arguments[MAX_ARGUMENTS];
    int choices[MAX_ARGUMENTS];
};

struct shown {
    float *values;
    size_t n;
};

enum layout {
    LAYOUT_GROUP,
    LAYOUT_MESH,      /* two replicas of two shards */
    LAYOUT_REPLICATED /* every rank keeps everything */
};

enum deviation_kind {
    DEVIATE_ARGUMENT,
    DEVIATE_SWAP,
    DEVIATE_DROP,
    DEVIATE_DOUBLE,
    N_DEVIATIONS
};

struct deviation {
    enum deviation_kind kind;
    int rank;
    int call;
    int argument; /* of the call */
    int choice;
};

struct program {
    uint64_t seed;
    struct test_random random;
    int n_ranks;
    enum layout layout;
    int n_units;
    bool is_listed; /* modules: all children are one unit */
    int n_models[N_FAMILIES];
    int n_calls;
    int n_body; /* those before the steps and looks that end every program */
    struct call calls[MAX_CALLS];
    struct shown shown[MAX_CALLS][MAX_RANKS];
    struct shown asked; /* the call that deviates in an argument: what all would be shown if all did */
    struct deviation deviation;
};

/* The choice of an argument, by name; every kind knows what its arguments are called. */
static inline int choice_of(const struct call *call, const char *name)
{
    for (int i = 0; i < call->n_choices; i++) {
        if (strcmp(call->arguments[i]->name, name) == 0) {
            return call->choices[i];
        }
    }
    test_failed(__FILE__, __LINE__, "%s has no argument %s", call->kind->name, name);
    return 0;
}

static inline int find_domain(const struct call *call, enum domain domain)
{
    for (int i = 0; i < call->n_choices; i++) {
        if (call->arguments[i]->domain == domain) {
            return i;
        }
    }
    return -1;
}

static inline int program_n_reshards(const struct program *p, const struct call *c)
{
    return p->n_ranks == 4 && p->layout == LAYOUT_GROUP && c->kind->fields ? 3 : 2;
}

static inline int n_choices_of(const struct program *p, const struct call *c, enum domain domain)
{
    switch (domain) {
#define DOMAIN(name, n_choices, meaning) \
    case DOMAIN_##name:                  \
        return (n_choices);
#include "conformance/deviation/domains.def"
#undef DOMAIN
    case N_DOMAINS:
    default:
        return 0;
    }
}

/* Which model, unit and parameter a call is about: what its arguments say, or else where it was put. */
static inline int model_of(const struct program *p, const struct call *call)
{
    int at = find_domain(call, DOMAIN_MODEL);
    int module = find_domain(call, DOMAIN_MODULE);
    int units = find_domain(call, DOMAIN_UNITS);
    int param = find_domain(call, DOMAIN_MODEL_PARAM);
    if (units >= 0) {
        return call->choices[units] / (p->n_units + 1);
    }
    if (param >= 0) {
        return call->choices[param] / (2 * p->n_units);
    }
    return at >= 0 ? call->choices[at] : module >= 0 ? call->choices[module] / p->n_units : call->model;
}

/* One that is no unit stands for all of them. */
static inline int unit_of(const struct program *p, const struct call *call)
{
    int at = find_domain(call, DOMAIN_UNIT);
    int module = find_domain(call, DOMAIN_MODULE);
    int units = find_domain(call, DOMAIN_UNITS);
    if (units >= 0) {
        return call->choices[units] % (p->n_units + 1);
    }
    return at >= 0 ? call->choices[at] : module >= 0 ? call->choices[module] % p->n_units : call->unit;
}

/* The number of the parameter in its model. */
static inline int param_of(const struct program *p, const struct call *call)
{
    int at = find_domain(call, DOMAIN_PARAM);
    at = at >= 0 ? at : find_domain(call, DOMAIN_MODEL_PARAM);
    if (at < 0) {
        return call->param;
    }
    int choice = call->choices[at] % (2 * p->n_units);
    return choice / 2 * UNIT_PARAMS + choice % 2;
}

/* Values --------------------------------------------------------------------------------------------------- */

/* Small whole numbers, different for everything that could be mixed up: sums are exact, in bf16 too. */
static inline float small_number(int a, int b, int c, int bound)
{
    uint32_t hash = (uint32_t)a * 2654435761U + (uint32_t)b * 2246822519U + (uint32_t)c * 3266489917U;
    hash = (hash ^ hash >> 15) * 2654435761U;
    return (float)(1 + (hash >> 16) % (uint32_t)bound);
}

static inline float first_value(int model, int param, int k)
{
    return small_number(model + 1, param, k, 6);
}

static inline float sent_value(int id, int param, int k)
{
    return small_number(id + 1000, param, k, 6);
}

static inline float input_value(int rank, int id, int tensor, int k)
{
    return small_number(rank * 64 + id, tensor, k, 16);
}

static inline float gradient_value(int rank, int id, int param, int k)
{
    return small_number(rank * 1024 + id, param, k, 8);
}

/* Making ------------------------------------------------------------------------------------------------- */

static inline void add_arguments(struct call *call, const char *key)
{
    for (int i = 0; key && i < N_ARGUMENTS; i++) {
        if (strcmp(arguments[i].call, key) == 0 && call->n_choices < MAX_ARGUMENTS) {
            call->arguments[call->n_choices++] = &arguments[i];
        }
    }
}

/* What a call is about is where its arguments are drawn first. */
static inline int about_choice(const struct program *p, const struct call *call, enum domain domain)
{
    if (domain == DOMAIN_MODEL) {
        return call->model;
    }
    if (domain == DOMAIN_UNIT) {
        return call->unit;
    }
    if (domain == DOMAIN_UNITS) {
        return call->model * (p->n_units + 1) + call->unit;
    }
    return domain == DOMAIN_MODULE ? call->model * p->n_units + call->unit : -1;
}

static inline struct call *add_call(struct program *p, const struct kind *kind, int model, int unit)
{
    if (p->n_calls == MAX_CALLS) {
        test_failed(__FILE__, __LINE__, "the program is too long");
        p->n_calls--;
    }
    struct call *call = &p->calls[p->n_calls];
    *call = (struct call){.kind = kind, .id = p->n_calls++, .model = model, .unit = unit};
    add_arguments(call, kind->name);
    add_arguments(call, kind->fields);
    for (int i = 0; i < call->n_choices; i++) {
        int choice = about_choice(p, call, call->arguments[i]->domain);
        int n = n_choices_of(p, call, call->arguments[i]->domain);
        call->choices[i] = choice >= 0 ? choice : (int)test_random_below(&p->random, (uint64_t)n);
    }
    return call;
}

static inline void set_choice(struct call *call, const char *name, int choice)
{
    for (int i = 0; i < call->n_choices; i++) {
        if (strcmp(call->arguments[i]->name, name) == 0) {
            call->choices[i] = choice;
        }
    }
}

/* Printing ------------------------------------------------------------------------------------------------- */

static inline void print_call(const char *before, const struct call *call)
{
    (void)fprintf(stderr, "  %s#%d %s(", before, call->id, call->kind->name);
    for (int i = 0; i < call->n_choices; i++) {
        (void)fprintf(stderr, "%s%s=%d", i > 0 ? ", " : "", call->arguments[i]->name, call->choices[i]);
    }
    (void)fprintf(stderr, ")   model %d unit %d\n", call->model, call->unit);
}

static inline void program_print(const struct program *p)
{
    static const char *const layouts[] = {"group", "mesh 2x2", "replicated"};
    static const char *const words[] = {"deviates in an argument of", "swaps with the next", "leaves out",
                                        "calls twice"};
    const struct deviation *deviation = &p->deviation;
    (void)fprintf(stderr, "program %llu: %d ranks, %s, %d units%s\n", (unsigned long long)p->seed, p->n_ranks,
                  layouts[p->layout], p->n_units, p->is_listed ? ", children listed" : "");
    for (int i = 0; i < p->n_calls; i++) {
        print_call("", &p->calls[i]);
        if (i == deviation->call) {
            const struct call *call = &p->calls[i];
            (void)fprintf(stderr, "      rank %d %s this call", deviation->rank, words[deviation->kind]);
            if (deviation->kind == DEVIATE_ARGUMENT) {
                (void)fprintf(stderr, ": %s=%d", call->arguments[deviation->argument]->name,
                              deviation->choice);
            }
            (void)fprintf(stderr, "\n");
        }
    }
}

static inline void program_free(struct program *p)
{
    for (int i = 0; i < p->n_calls; i++) {
        for (int r = 0; r < p->n_ranks; r++) {
            free(p->shown[i][r].values);
        }
    }
    free(p->asked.values);
    free(p);
}

#endif
