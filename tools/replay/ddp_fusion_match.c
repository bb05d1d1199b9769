/* SPDX-License-Identifier: MIT */
/*
 * An identity is the number of a text. A node is written as a text that has the numbers of its inputs instead of their
 * texts, and equal texts get equal numbers. So texts stay short, and no two nodes are equal because of a hash
 * collision.
 */
#include "ddp_fusion_match.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/tensor.h"

#define NO_PLACE SIZE_MAX

/* Both graphs share the numbers. */
struct numbering {
    struct fusion_case *self;
    json_t *classes; /* a text: which one it is; equal nodes of one graph have the same */
    json_t *numbers; /* class and how many of it came before: the identity */
    char *text;
    size_t n_text;
    size_t capacity;
    bool has_no_memory;
};

struct walk {
    struct numbering *numbering;
    struct fusion_side *side;
    json_t *n_seen;     /* by class */
    size_t *last_write; /* by memory: identity of the last node that wrote it, plus 1; 0 if there is none */
    size_t n_memories;
};

/* Texts ------------------------------------------------------------------------------------------------ */

static void add_text(struct numbering *numbering, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add_text(struct numbering *numbering, const char *format, ...)
{
    for (int round = 0; round < 2 && !numbering->has_no_memory; round++) {
        va_list arguments;
        va_start(arguments, format);
        size_t left = numbering->capacity - numbering->n_text;
        int n =
            vsnprintf(numbering->text ? numbering->text + numbering->n_text : NULL, left, format, arguments);
        va_end(arguments);
        if (n >= 0 && (size_t)n < left) {
            numbering->n_text += (size_t)n;
            return;
        }
        size_t capacity = 2 * (numbering->capacity + (n > 0 ? (size_t)n : 0)) + 256;
        char *text = n >= 0 ? realloc(numbering->text, capacity) : NULL;
        numbering->has_no_memory = text == NULL;
        numbering->text = text ? text : numbering->text;
        numbering->capacity = text ? capacity : numbering->capacity;
    }
}

/* The number of a text, the next one for a new text. */
static size_t number_of(struct numbering *numbering, json_t *table, const char *text)
{
    const json_t *found = json_object_get(table, text);
    size_t number = found ? (size_t)json_integer_value(found) : json_object_size(table);
    if (!found && json_object_set_new(table, text, json_integer((json_int_t)number)) != 0) {
        numbering->has_no_memory = true;
    }
    return number;
}

/* Memory ----------------------------------------------------------------------------------------------- */

static uint32_t flags_of(const shoal_node *node)
{
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    const shoal_op *op = shoal_node_op(node);
    return op && shoal_op_describe(op, &info) == SHOAL_OK ? info.flags : 0;
}

/* The argument whose memory value `index` of the node may be in: the node and which of its values; NULL if there is
   none. */
static const shoal_node *possible_base(const shoal_node *node, size_t index, size_t *value_out)
{
    size_t n_args;
    const shoal_arg *args = shoal_node_args(node, &n_args);
    *value_out = 0;
    if (!shoal_node_op(node) || n_args == 0) {
        return NULL;
    }
    if (args[0].kind == SHOAL_ARG_LIST && index < args[0].as.list.count) {
        const shoal_arg *item = &args[0].as.list.items[index];
        return item->kind == SHOAL_ARG_NODE ? item->as.node : NULL;
    }
    if (args[0].kind != SHOAL_ARG_NODE) {
        return NULL;
    }
    if (shoal_node_is_list(args[0].as.node)) {
        bool is_item =
            strcmp(shoal_node_target(node), "getitem") == 0 && n_args > 1 && args[1].kind == SHOAL_ARG_INT;
        int64_t item = is_item ? args[1].as.integer : (int64_t)index;
        int64_t n_values = (int64_t)shoal_node_n_values(args[0].as.node);
        *value_out = (size_t)(item < 0 ? item + n_values : item);
    }
    return *value_out < shoal_node_n_values(args[0].as.node) ? args[0].as.node : NULL;
}

/* Which memory each value is in: its base's, or one of its own. */
static bool find_memory(struct walk *walk, struct fusion_entry *entry)
{
    size_t n_values = shoal_node_n_values(entry->node);
    entry->memory = fusion_alloc(walk->numbering->self, n_values, sizeof entry->memory[0]);
    for (size_t i = 0; entry->memory && i < n_values; i++) {
        size_t value = 0;
        const shoal_node *base = possible_base(entry->node, i, &value);
        if (base &&
            shoal_tensor_shares_storage(shoal_node_value(entry->node, i), shoal_node_value(base, value))) {
            entry->memory[i] = walk->side->entries[fusion_side_find(walk->side, base)].memory[value];
        } else {
            entry->memory[i] = walk->n_memories++;
        }
    }
    return entry->memory != NULL;
}

static bool is_view(const struct walk *walk, const struct fusion_entry *entry, uint32_t flags)
{
    size_t value = 0;
    if (flags & (SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT) ||
        shoal_node_n_values(entry->node) == 0) {
        return false;
    }
    const shoal_node *base = possible_base(entry->node, 0, &value);
    return (flags & SHOAL_OP_VIEW) != 0 ||
           (base &&
            entry->memory[0] == walk->side->entries[fusion_side_find(walk->side, base)].memory[value]);
}

static enum fusion_role role_of(const struct walk *walk, const struct fusion_entry *entry)
{
    uint32_t flags = flags_of(entry->node);
    if (shoal_node_get_kind(entry->node) != SHOAL_NODE_CALL) {
        return FUSION_ROLE_NONE;
    }
    if (flags & (SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT)) {
        return flags & SHOAL_OP_WAIT ? FUSION_ROLE_WAIT : FUSION_ROLE_START;
    }
    return is_view(walk, entry, flags) ? FUSION_ROLE_NONE : FUSION_ROLE_COMPUTE;
}

/* An in-place call writes what it gives. */
static void note_writes(struct walk *walk, const struct fusion_entry *entry)
{
    if ((flags_of(entry->node) & SHOAL_OP_IN_PLACE) == 0) {
        return;
    }
    for (size_t i = 0; i < shoal_node_n_values(entry->node); i++) {
        walk->last_write[entry->memory[i]] = entry->identity + 1;
    }
}

/* Identities ------------------------------------------------------------------------------------------- */

/* A view does not read: what it shows may be written later, and its readers say what they saw. */
static void write_input(struct walk *walk, const shoal_node *input, bool reads)
{
    const struct fusion_entry *entry = &walk->side->entries[fusion_side_find(walk->side, input)];
    add_text(walk->numbering, "#%zu", entry->identity);
    for (size_t i = 0; reads && i < shoal_node_n_values(input); i++) {
        if (walk->last_write[entry->memory[i]] > 0) {
            add_text(walk->numbering, "!%zu:%zu", i, walk->last_write[entry->memory[i]] - 1);
        }
    }
}

static void write_real(struct numbering *numbering, double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    if (real != real) {
        add_text(numbering, "nan"); /* any: they mean "none" */
    } else {
        add_text(numbering, "f%016" PRIx64, bits);
    }
}

static void write_arg(struct walk *walk, const shoal_arg *arg, bool reads)
{
    struct numbering *numbering = walk->numbering;
    switch (arg->kind) {
    case SHOAL_ARG_NONE:
        add_text(numbering, "none");
        break;
    case SHOAL_ARG_NODE:
        write_input(walk, arg->as.node, reads);
        break;
    case SHOAL_ARG_INT:
        add_text(numbering, "i%" PRId64, arg->as.integer);
        break;
    case SHOAL_ARG_RANK:
        add_text(numbering, "r%zu:%s*%" PRId64 "+%" PRId64, strlen(arg->as.rank.group), arg->as.rank.group,
                 arg->as.rank.factor, arg->as.rank.offset);
        break;
    case SHOAL_ARG_FLOAT:
        write_real(numbering, arg->as.real);
        break;
    case SHOAL_ARG_BOOL:
        add_text(numbering, arg->as.boolean ? "true" : "false");
        break;
    case SHOAL_ARG_DTYPE:
        add_text(numbering, "%s", shoal_dtype_name(arg->as.dtype));
        break;
    case SHOAL_ARG_STRING:
        add_text(numbering, "s%zu:%s", strlen(arg->as.string), arg->as.string);
        break;
    case SHOAL_ARG_GROUP:
        add_text(numbering, "@%zu:%s", strlen(arg->as.string), arg->as.string);
        break;
    case SHOAL_ARG_LIST:
        add_text(numbering, "[");
        for (size_t i = 0; i < arg->as.list.count; i++) {
            write_arg(walk, &arg->as.list.items[i], reads);
            add_text(numbering, ",");
        }
        add_text(numbering, "]");
        break;
    }
}

static void write_values(struct numbering *numbering, const shoal_node *node)
{
    add_text(numbering, shoal_node_is_list(node) ? "->list" : "->");
    for (size_t i = 0; i < shoal_node_n_values(node); i++) {
        const shoal_tensor *value = shoal_node_value(node, i);
        add_text(numbering, " %s", shoal_dtype_name(shoal_tensor_dtype(value)));
        for (int j = 0; j < shoal_tensor_n_dims(value); j++) {
            add_text(numbering, ",%" PRId64, shoal_tensor_shape(value)[j]);
        }
    }
}

static void write_node(struct walk *walk, const shoal_node *node, bool reads)
{
    struct numbering *numbering = walk->numbering;
    bool is_opaque = shoal_node_get_kind(node) == SHOAL_NODE_CALL && !shoal_node_op(node);
    bool is_output = shoal_node_get_kind(node) == SHOAL_NODE_OUTPUT;
    const char *target = is_output ? "" : shoal_node_target(node);
    size_t n_args;
    const shoal_arg *args = shoal_node_args(node, &n_args);
    numbering->n_text = 0;
    add_text(numbering, "%d%s%zu:%s(", (int)shoal_node_get_kind(node), is_opaque ? "opaque" : "",
             strlen(target), target);
    for (size_t i = 0; i < n_args; i++) {
        write_arg(walk, &args[i], reads);
        add_text(numbering, ",");
    }
    add_text(numbering, ")");
    write_values(numbering, node);
}

/* The node's identity: its text, and how many nodes of the same text stand before it. */
static bool identify(struct walk *walk, struct fusion_entry *entry)
{
    struct numbering *numbering = walk->numbering;
    char key[64];
    if (!find_memory(walk, entry)) {
        return false;
    }
    entry->role = role_of(walk, entry);
    write_node(walk, entry->node, !is_view(walk, entry, flags_of(entry->node)));
    if (numbering->has_no_memory) {
        return false;
    }
    size_t class = number_of(numbering, numbering->classes, numbering->text);
    (void)snprintf(key, sizeof key, "%zu", class);
    json_int_t n_seen = json_integer_value(json_object_get(walk->n_seen, key));
    if (json_object_set_new(walk->n_seen, key, json_integer(n_seen + 1)) != 0) {
        return false;
    }
    (void)snprintf(key, sizeof key, "%zu.%" JSON_INTEGER_FORMAT, class, n_seen);
    entry->identity = number_of(numbering, numbering->numbers, key);
    note_writes(walk, entry);
    return !numbering->has_no_memory;
}

/* Graphs ----------------------------------------------------------------------------------------------- */

struct address {
    uintptr_t address;
    size_t place;
};

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t first = ((const struct address *)a)->address;
    uintptr_t second = ((const struct address *)b)->address;
    return (first > second) - (first < second);
}

size_t fusion_side_find(const struct fusion_side *side, const shoal_node *node)
{
    size_t low = 0;
    size_t high = side->n_entries;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)side->entries[side->by_node[middle]].node <= (uintptr_t)node) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return side->by_node[low];
}

static bool list_nodes(struct fusion_case *self, struct fusion_side *side)
{
    size_t n = shoal_graph_n_nodes(side->graph);
    struct address *addresses = fusion_alloc(self, n, sizeof addresses[0]);
    side->entries = fusion_alloc(self, n, sizeof side->entries[0]);
    side->by_node = fusion_alloc(self, n, sizeof side->by_node[0]);
    if (!addresses || !side->entries || !side->by_node) {
        return false;
    }
    for (shoal_node *node = shoal_graph_first(side->graph); node && side->n_entries < n;
         node = shoal_node_next(node)) {
        addresses[side->n_entries] = (struct address){(uintptr_t)node, side->n_entries};
        side->entries[side->n_entries++] = (struct fusion_entry){.node = node, .partner = NO_PLACE};
    }
    qsort(addresses, side->n_entries, sizeof addresses[0], compare_addresses);
    for (size_t i = 0; i < side->n_entries; i++) {
        side->by_node[i] = addresses[i].place;
    }
    return true;
}

static size_t count_values(const struct fusion_side *side)
{
    size_t count = 0;
    for (size_t i = 0; i < side->n_entries; i++) {
        count += shoal_node_n_values(side->entries[i].node);
    }
    return count;
}

static bool identify_all(struct numbering *numbering, struct fusion_side *side)
{
    struct walk walk = {.numbering = numbering, .side = side, .n_seen = json_object()};
    bool has_memory = walk.n_seen && list_nodes(numbering->self, side);
    if (has_memory) {
        walk.last_write = fusion_alloc(numbering->self, count_values(side), sizeof walk.last_write[0]);
        has_memory = walk.last_write != NULL;
    }
    for (size_t i = 0; has_memory && i < side->n_entries; i++) {
        has_memory = identify(&walk, &side->entries[i]);
    }
    json_decref(walk.n_seen);
    return has_memory;
}

/* Partners --------------------------------------------------------------------------------------------- */

static const struct fusion_entry *first_alone(const struct fusion_side *side)
{
    for (size_t i = 0; i < side->n_entries; i++) {
        if (side->entries[i].partner == NO_PLACE) {
            return &side->entries[i];
        }
    }
    return NULL;
}

static enum fusion_verdict find_partners(struct fusion_case *self, size_t n_identities,
                                         struct fusion_match *match)
{
    size_t *places = fusion_alloc(self, n_identities, sizeof places[0]); /* in theirs, plus 1 */
    if (!places) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; i < match->theirs.n_entries; i++) {
        places[match->theirs.entries[i].identity] = i + 1;
    }
    for (size_t i = 0; i < match->ours.n_entries; i++) {
        size_t place = places[match->ours.entries[i].identity];
        if (place > 0) {
            match->ours.entries[i].partner = place - 1;
            match->theirs.entries[place - 1].partner = i;
        }
    }
    const struct fusion_entry *ours = first_alone(&match->ours);
    const struct fusion_entry *theirs = first_alone(&match->theirs);
    if (!ours && !theirs) {
        return FUSION_RIGHT;
    }
    return fusion_say(self, FUSION_WRONG, "%s%.80s%s%.80s%s%s%.80s%s%.80s%s", ours ? "our node " : "",
                      ours ? shoal_node_name(ours->node) : "", ours ? " (" : "",
                      ours ? shoal_node_target(ours->node) : "", ours ? ") is not in the file" : "",
                      ours && theirs ? "; the file's node "
                      : theirs       ? "the file's node "
                                     : "",
                      theirs ? shoal_node_name(theirs->node) : "", theirs ? " (" : "",
                      theirs ? shoal_node_target(theirs->node) : "", theirs ? ") is not in our graph" : "");
}

enum fusion_verdict fusion_match(struct fusion_case *self, const shoal_graph *ours, const shoal_graph *theirs,
                                 struct fusion_match *match_out)
{
    struct numbering numbering = {.self = self, .classes = json_object(), .numbers = json_object()};
    enum fusion_verdict verdict = FUSION_RIGHT;
    *match_out = (struct fusion_match){.ours = {.graph = ours}, .theirs = {.graph = theirs}};
    if (!numbering.classes || !numbering.numbers || !identify_all(&numbering, &match_out->ours) ||
        !identify_all(&numbering, &match_out->theirs)) {
        verdict = fusion_no_memory(self);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = find_partners(self, json_object_size(numbering.numbers), match_out);
    }
    json_decref(numbering.classes);
    json_decref(numbering.numbers);
    free(numbering.text);
    return verdict;
}
