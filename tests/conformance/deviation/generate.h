/* SPDX-License-Identifier: MIT */
/*
 * Programs from seeds. A program is built around one compared argument, or around an order:
 *
 *     build models · some blocks · the block with the argument · some blocks · a step of every model, and a look at it
 *
 * so that every deviation is followed by calls in which it must show. Two things can only be told by a deadline and are
 * not generated: a rank that makes no further call on a group, and ranks that wait for each other on two groups that
 * have nothing to do with each other. Programs whose order deviates therefore keep to one family of lanes.
 */
#ifndef TESTS_DEVIATION_GENERATE_H
#define TESTS_DEVIATION_GENERATE_H

#include "conformance/deviation/functional.h"
#include "conformance/deviation/modules.h"

static const struct {
    const struct kind *kinds;
    size_t n;
} tables[N_FAMILIES] = {
    [EXPLICIT] = {explicit_kinds, sizeof explicit_kinds / sizeof explicit_kinds[0]},
    [MODULES] = {modules_kinds, sizeof modules_kinds / sizeof modules_kinds[0]},
    [WRAPPED] = {wrapped_kinds, sizeof wrapped_kinds / sizeof wrapped_kinds[0]},
    [FUNCTIONAL] = {functional_kinds, sizeof functional_kinds / sizeof functional_kinds[0]},
};

static inline const struct kind *kind_named(enum family family, const char *name)
{
    for (size_t i = 0; i < tables[family].n; i++) {
        if (strcmp(tables[family].kinds[i].name, name) == 0) {
            return &tables[family].kinds[i];
        }
    }
    test_failed(__FILE__, __LINE__, "no kind is called %s", name);
    return &tables[family].kinds[0];
}

static inline bool has_row(const struct kind *kind, const struct argument *argument)
{
    return strcmp(kind->name, argument->call) == 0 ||
           (kind->fields && strcmp(kind->fields, argument->call) == 0);
}

/* The kind with an argument; of several one or the other. NULL: none. */
static inline const struct kind *kind_with(struct test_random *random, const struct argument *argument)
{
    const struct kind *found = NULL;
    uint64_t n_found = 0;
    for (int f = 0; f < N_FAMILIES; f++) {
        for (size_t i = 0; i < tables[f].n; i++) {
            if (has_row(&tables[f].kinds[i], argument) && test_random_below(random, ++n_found) == 0) {
                found = &tables[f].kinds[i];
            }
        }
    }
    return found;
}

static inline bool is_one_in(struct program *p, uint64_t n)
{
    return test_random_below(&p->random, n) == 0;
}

/* Building ----------------------------------------------------------------------------------------------- */

/* What the program is built around. */
struct aim {
    const struct argument *argument; /* NULL: an order */
    const struct kind *kind;         /* that has it */
};

static inline bool aims_at(const struct aim *aim, const char *name)
{
    return aim->argument && strcmp(aim->argument->name, name) == 0;
}

static inline bool aims_at_kind(const struct aim *aim, const char *part)
{
    return aim->kind && strstr(aim->kind->name, part);
}

/* What a program must not draw freely. */
static inline void tame(struct program *p, const struct aim *aim, struct call *call)
{
    set_choice(call, "is_replicated", p->layout == LAYOUT_REPLICATED);
    if (call->kind->block == BLOCK_BUILD) {
        set_choice(call, "dtype", 0);
        set_choice(call, "n_ignored", aims_at(aim, "ignored") || is_one_in(p, 4));
        set_choice(call, "n_modules", 1);
    }
    if (aims_at(aim, "reshard_ranks")) {
        set_choice(call, "reshard", 2);
    }
    if (aims_at(aim, "units") || aims_at(aim, "modules")) {
        set_choice(call, "n_units", 1);
        set_choice(call, "n_modules", 1);
    }
    if (aims_at(aim, "n_units") || aims_at(aim, "n_modules")) {
        set_choice(call, "units", 1); /* the next one is gathered ahead anyway */
        set_choice(call, "modules", call->kind->block == BLOCK_SETTING);
    }
    if (has_argument(call, "output_splits")) {
        set_choice(call, "output_splits", choice_of(call, "input_splits"));
        set_choice(call, "n_splits", aims_at(aim, "n_splits") ? choice_of(call, "n_splits") : 1);
    }
    if (has_argument(call, "shard_dim")) {
        set_choice(call, "shard_dim", (choice_of(call, "gather_dim") + 1) % 2);
    }
}

static inline struct call *add_tame(struct program *p, const struct aim *aim, const struct kind *kind,
                                    int model, int unit)
{
    struct call *call = add_call(p, kind, model, unit);
    tame(p, aim, call);
    return call;
}

static inline void build_explicit(struct program *p, const struct aim *aim)
{
    bool is_along =
        aims_at_kind(aim, "add_param_along") || (!aims_at_kind(aim, "add_param") && is_one_in(p, 3));
    const struct kind *add =
        kind_named(EXPLICIT, is_along ? "shoal_fsdp_add_param_along" : "shoal_fsdp_add_param");
    for (int m = 0; m < p->n_models[EXPLICIT]; m++) {
        (void)add_tame(p, aim, kind_named(EXPLICIT, "shoal_fsdp_create"), m, 0);
    }
    for (int i = 0; i < p->n_units * UNIT_PARAMS; i++) {
        for (int m = 0; m < p->n_models[EXPLICIT]; m++) {
            add_tame(p, aim, add, m, i / UNIT_PARAMS)->param = i;
        }
    }
}

static inline void build_modules(struct program *p, const struct aim *aim)
{
    const struct kind *shard = kind_named(MODULES, "shoal_fully_shard");
    for (int m = 0; m < p->n_models[MODULES]; m++) {
        (void)add_tame(p, aim, kind_named(MODULES, "make_net"), m, 0);
    }
    for (int m = 0; m < p->n_models[MODULES]; m++) {
        for (int u = 1; u < p->n_units; u++) {
            (void)add_tame(p, aim, p->is_listed ? kind_named(MODULES, "shoal_fully_shard_list") : shard, m,
                           u);
        }
        (void)add_tame(p, aim, shard, m, 0);
    }
}

static inline void build_wrapped(struct program *p, const struct aim *aim)
{
    for (int m = 0; m < p->n_models[WRAPPED]; m++) {
        (void)add_tame(p, aim, kind_named(WRAPPED, "make_net"), m, 0);
    }
    for (int m = 0; m < p->n_models[WRAPPED]; m++) {
        (void)add_tame(p, aim, kind_named(WRAPPED, "shoal_ddp"), m, 0);
    }
}

/* Steps -------------------------------------------------------------------------------------------------- */

static inline void add_forward(struct program *p, enum family family, int model)
{
    for (int u = 0; family == EXPLICIT && u < p->n_units; u++) {
        (void)add_call(p, kind_named(EXPLICIT, "shoal_fsdp_pre_forward"), model, u);
        (void)add_call(p, kind_named(EXPLICIT, "shoal_fsdp_post_forward"), model, u);
    }
    if (family != EXPLICIT) {
        (void)add_call(p, kind_named(family, "forward"), model, 0);
    }
}

static inline void add_backward(struct program *p, enum family family, int model)
{
    for (int u = p->n_units - 1; family == EXPLICIT && u >= 0; u--) {
        (void)add_call(p, kind_named(EXPLICIT, "shoal_fsdp_pre_backward"), model, u);
        (void)add_call(p, kind_named(EXPLICIT, "shoal_fsdp_post_backward"), model, u);
    }
    if (family == EXPLICIT) {
        (void)add_call(p, kind_named(EXPLICIT, "shoal_fsdp_end_backward"), model, 0);
    } else {
        (void)add_call(p, kind_named(family, "backward"), model, 0);
    }
}

/* Of all models of a family: one after the other, or all forwards first. */
static inline void add_steps(struct program *p, enum family family)
{
    bool is_apart = is_one_in(p, 2);
    for (int m = 0; m < p->n_models[family]; m++) {
        add_forward(p, family, m);
        if (is_apart) {
            add_backward(p, family, m);
        }
    }
    for (int m = 0; !is_apart && m < p->n_models[family]; m++) {
        add_backward(p, family, m);
    }
}

/* Blocks ------------------------------------------------------------------------------------------------- */

static inline void add_setting(struct program *p, const struct aim *aim, const struct kind *kind, int model,
                               int unit)
{
    struct call set = *add_tame(p, aim, kind, model, unit);
    if (is_one_in(p, 2)) { /* otherwise perhaps nothing changes */
        set_choice(&p->calls[p->n_calls - 1], kind->setting, 1 - kind->usual);
    }
    add_steps(p, kind->family);
    struct call *back = add_call(p, kind, model, set.unit);
    for (int i = 0; i < back->n_choices; i++) {
        back->choices[i] = set.choices[i];
    }
    set_choice(back, kind->setting, kind->usual);
    add_steps(p, kind->family);
}

static inline void add_by_hand(struct program *p, enum family family, int model, int unit)
{
    static const char *const names[] = {"shoal_fsdp_unshard", "shoal_fsdp_wait", "shoal_fsdp_reshard"};
    if (p->is_listed) {
        add_steps(p, family); /* a unit of several modules cannot be the root: that is called first */
    }
    for (int i = 0; i < 3; i++) {
        (void)add_call(p, kind_named(family, names[i]), model, unit);
    }
}

static inline void add_sync(struct program *p, enum family family, int model, int choice)
{
    struct call *call = add_call(p, kind_named(family, "shoal_fsdp_set_sync"), model, p->n_units);
    set_choice(call, "is_on", choice);
}

static inline void add_pending(struct program *p, const struct kind *kind)
{
    for (int m = 0; m < p->n_models[kind->family]; m++) {
        add_sync(p, kind->family, m, 0);
    }
    add_steps(p, kind->family);
    for (int m = 0; m < p->n_models[kind->family]; m++) {
        (void)add_call(p, kind, m, 0);
    }
    for (int m = 0; m < p->n_models[kind->family]; m++) {
        add_sync(p, kind->family, m, 1);
    }
}

static inline void add_block(struct program *p, const struct aim *aim, const struct kind *kind)
{
    int n_models = p->n_models[kind->family];
    int model = n_models > 0 ? (int)test_random_below(&p->random, (uint64_t)n_models) : 0;
    int unit = (int)test_random_below(&p->random, (uint64_t)p->n_units);
    switch (kind->block) {
    case BLOCK_STEP:
        add_steps(p, kind->family);
        break;
    case BLOCK_EVAL:
        add_forward(p, kind->family, model);
        (void)add_tame(p, aim, kind, model, unit);
        break;
    case BLOCK_SETTING:
        add_setting(p, aim, kind, model, unit);
        break;
    case BLOCK_HAND:
        add_by_hand(p, kind->family, model, unit);
        break;
    case BLOCK_PENDING:
        add_pending(p, kind);
        break;
    case BLOCK_CLIP:
        add_steps(p, kind->family);
        (void)add_tame(p, aim, kind, model, unit);
        break;
    case BLOCK_ALONE:
        (void)add_tame(p, aim, kind, model, unit);
        break;
    case BLOCK_NONE:
    case BLOCK_BUILD:
    default:
        break;
    }
}

static inline void add_some_blocks(struct program *p, const struct aim *aim, const bool *families)
{
    for (uint64_t n = test_random_below(&p->random, 3); n > 0; n--) {
        enum family family = (enum family)test_random_below(&p->random, N_FAMILIES);
        if (families[family]) {
            const struct kind *kind = &tables[family].kinds[test_random_below(&p->random, tables[family].n)];
            add_block(p, aim, kind);
        }
    }
}

static inline void add_end(struct program *p, const struct aim *aim, const bool *families)
{
    for (int f = 0; f < FUNCTIONAL; f++) {
        add_steps(p, (enum family)f);
        for (int m = 0; m < p->n_models[f]; m++) {
            (void)add_call(p, kind_named((enum family)f, "look"), m, 0);
        }
    }
    for (int i = 0; families[FUNCTIONAL] && i < 2; i++) {
        (void)add_tame(p, aim,
                       kind_named(FUNCTIONAL, i == 0 ? "shoal_all_gather_tensor" : "shoal_all_reduce"), 0, 0);
    }
}

/* Programs ----------------------------------------------------------------------------------------------- */

static inline void draw_shape(struct program *p, const struct aim *aim)
{
    bool needs_four = aims_at(aim, "reshard_ranks") || aims_at_kind(aim, "set_all_reduce");
    p->n_ranks = needs_four ? 4 : 2 + (int)test_random_below(&p->random, 3);
    p->layout = LAYOUT_GROUP;
    if (!aims_at(aim, "reshard_ranks")) {
        p->layout = is_one_in(p, 5) ? LAYOUT_REPLICATED : LAYOUT_GROUP;
    }
    if (p->n_ranks == 4 && !aims_at(aim, "reshard_ranks") && !aims_at(aim, "is_replicated") &&
        is_one_in(p, 2)) {
        p->layout = LAYOUT_MESH;
    }
    bool needs_three = aims_at(aim, "units") || aims_at(aim, "modules");
    p->is_listed = aims_at_kind(aim, "shard_list") || (!needs_three && is_one_in(p, 5));
    p->n_units = p->is_listed ? 2 : 2 + (int)test_random_below(&p->random, 2);
    p->n_units = needs_three && !p->is_listed ? 3 : p->n_units;
}

/* Choices that name a model and something in it. */
static inline bool is_of_model(enum domain domain)
{
    return domain == DOMAIN_MODULE || domain == DOMAIN_UNITS || domain == DOMAIN_MODEL_PARAM;
}

/* Families that the program uses, and how many models of each. */
static inline void draw_models(struct program *p, const struct aim *aim, bool *families)
{
    enum family family =
        aim->kind ? aim->kind->family : (enum family)test_random_below(&p->random, N_FAMILIES);
    bool needs_two = aim->argument && (aim->argument->domain == DOMAIN_MODEL ||
                                       (is_of_model(aim->argument->domain) && is_one_in(p, 2)));
    families[family] = true;
    if (aim->kind) {
        families[FUNCTIONAL] = families[FUNCTIONAL] || is_one_in(p, 2);
        families[test_random_below(&p->random, N_FAMILIES)] = true;
    } else if (family == EXPLICIT || family == MODULES) { /* on the same lanes */
        families[EXPLICIT] = families[EXPLICIT] || is_one_in(p, 3);
        families[MODULES] = families[MODULES] || is_one_in(p, 3);
    }
    for (int f = 0; f < FUNCTIONAL; f++) {
        p->n_models[f] = families[f] ? 1 + (f != WRAPPED && is_one_in(p, 3)) : 0;
    }
    p->n_models[family] = family == FUNCTIONAL ? 0 : needs_two ? 2 : p->n_models[family];
}

static inline bool is_together(const struct call *call)
{
    return call->kind->block != BLOCK_NONE;
}

/* A dimension counted from the end is the same one. */
static inline int meaning_of(const struct call *call, int i)
{
    return call->arguments[i]->domain == DOMAIN_TENSOR_DIM ? call->choices[i] % 2 : call->choices[i];
}

/* Nobody can tell them from each other. Functional calls have no model and no unit, whatever was drawn for them, and forms
   of one operation may be mixed. */
static inline bool are_alike(const struct call *a, const struct call *b)
{
    bool is_functional = a->kind->family == FUNCTIONAL && b->kind->family == FUNCTIONAL;
    if (is_functional && a->kind != b->kind) {
        return a->kind->predict == b->kind->predict;
    }
    bool is_alike = a->kind == b->kind && (is_functional || (a->model == b->model && a->unit == b->unit));
    for (int i = 0; is_alike && i < a->n_choices; i++) {
        is_alike = meaning_of(a, i) == meaning_of(b, i);
    }
    return is_alike;
}

static inline bool can_deviate(const struct program *p, const struct aim *aim, enum deviation_kind how,
                               int at)
{
    const struct call *call = &p->calls[at];
    if (how == DEVIATE_ARGUMENT) {
        return has_row(call->kind, aim->argument) && n_choices_of(p, call, aim->argument->domain) > 1;
    }
    if (how == DEVIATE_SWAP) {
        return at + 1 < p->n_body && is_together(call) && is_together(call + 1) && !are_alike(call, call + 1);
    }
    /* Who does not wrap its module makes no further call on the group, and forwards need not be walked back. */
    bool is_free = how == DEVIATE_DROP && call->kind->family == WRAPPED &&
                   (call->kind->run == wrapped_wrap || call->kind->run == modules_backward);
    /* The next call takes the place of one that is left out, and the second of two that of the next. */
    is_free = is_free || (at + 1 < p->n_calls && are_alike(call, call + 1));
    return is_together(call) && !is_free;
}

static inline bool draw_deviation(struct program *p, const struct aim *aim, enum deviation_kind how)
{
    uint64_t n_found = 0;
    p->deviation =
        (struct deviation){.kind = how, .rank = (int)test_random_below(&p->random, (uint64_t)p->n_ranks)};
    for (int i = 0; i < (how == DEVIATE_ARGUMENT ? p->n_calls : p->n_body); i++) {
        if (can_deviate(p, aim, how, i) && test_random_below(&p->random, ++n_found) == 0) {
            p->deviation.call = i;
        }
    }
    const struct call *call = &p->calls[p->deviation.call];
    for (int i = 0; how == DEVIATE_ARGUMENT && n_found > 0 && i < call->n_choices; i++) {
        if (call->arguments[i] == aim->argument) {
            int n = n_choices_of(p, call, aim->argument->domain);
            p->deviation.argument = i;
            p->deviation.choice =
                (call->choices[i] + 1 + (int)test_random_below(&p->random, (uint64_t)(n - 1))) % n;
        }
    }
    return n_found > 0;
}

/* Around an argument, or with NULL around an order. NULL: there is nothing to deviate in. */
static inline struct program *program_make(uint64_t seed, const struct argument *argument,
                                           enum deviation_kind how)
{
    struct program *p = calloc(1, sizeof *p);
    bool families[N_FAMILIES] = {false};
    if (!p) {
        return NULL;
    }
    p->seed = seed;
    p->random = (struct test_random){.state = seed + 1}; /* the same program whenever it is asked for */
    struct aim aim = {.argument = argument, .kind = argument ? kind_with(&p->random, argument) : NULL};
    draw_shape(p, &aim);
    draw_models(p, &aim, families);
    build_explicit(p, &aim);
    build_modules(p, &aim);
    build_wrapped(p, &aim);
    add_some_blocks(p, &aim, families);
    if (aim.kind) {
        add_block(p, &aim, aim.kind);
    }
    add_some_blocks(p, &aim, families);
    p->n_body = p->n_calls;
    add_end(p, &aim, families);
    if (!draw_deviation(p, &aim, how)) {
        program_free(p);
        return NULL;
    }
    oracle_run(p);
    return p;
}

#endif
