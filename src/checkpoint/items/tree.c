/* SPDX-License-Identifier: MIT */
#include "checkpoint/items/tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/changes.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"

struct items_tree {
    _Atomic uint32_t references;
    shoal_module *module;
    char *text;      /* a line for each place: kind, which tensor is there, path */
    uint64_t looked; /* the latest change when the tree was like that */
};

/* A walk that writes the text. */
struct writing {
    char *text;
    size_t bytes;
    size_t capacity;
    struct map tensors; /* numbered as they are met: tied places have the same number */
};

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct writing *writing = context;
    (void)next;
    size_t number;
    TRY(map_get_or_add(&writing->tensors, map_key(entry->tensor), writing->tensors.count, &number));
    size_t bytes = strlen(entry->path) + 32;
    TRY(mem_grow((void **)&writing->text, &writing->capacity, writing->bytes + bytes, 1));
    writing->bytes += (size_t)snprintf(writing->text + writing->bytes, bytes, "%c%zu %s\n",
                                       entry->kind == SHOAL_WALK_BUFFERS ? 'b' : 'p', number, entry->path);
    return SHOAL_OK;
}

/* The caller frees the text. */
static shoal_status describe(shoal_module *module, char **text_out)
{
    struct writing writing = {.bytes = 0};
    shoal_status status = mem_grow((void **)&writing.text, &writing.capacity, 1, 1);
    if (status == SHOAL_OK) {
        writing.text[0] = '\0';
        status = shoal_module_walk(module, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS | SHOAL_WALK_DUPLICATES,
                                   visit, &writing);
    }
    map_free(&writing.tensors);
    if (status != SHOAL_OK) {
        mem_free(writing.text);
        return status;
    }
    *text_out = writing.text;
    return SHOAL_OK;
}

shoal_status items_tree_create(shoal_module *module, struct items_tree **tree_out)
{
    uint64_t latest = changes_latest();
    struct items_tree *tree = mem_alloc_zeroed(1, sizeof *tree);
    if (!tree) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = describe(module, &tree->text);
    if (status != SHOAL_OK) {
        mem_free(tree);
        return status;
    }
    atomic_init(&tree->references, 1);
    tree->module = module;
    tree->looked = latest;
    *tree_out = tree;
    return SHOAL_OK;
}

struct items_tree *items_tree_ref(struct items_tree *tree)
{
    refcount_get(&tree->references);
    return tree;
}

void items_tree_unref(struct items_tree *tree)
{
    if (tree && refcount_put(&tree->references)) {
        mem_free(tree->text);
        mem_free(tree);
    }
}

/* The path in the first line that differs; "" if one of them has ended. */
static const char *find_other(const char *was, const char *is, int *length_out)
{
    size_t line = 0;
    for (size_t i = 0; was[i] == is[i]; i++) {
        line = is[i] == '\n' ? i + 1 : line;
    }
    const char *at = is[line] ? is + line : was + line;
    const char *path = strchr(at, ' ');
    path = path ? path + 1 : at;
    *length_out = (int)strcspn(path, "\n");
    return path;
}

shoal_status items_tree_check(struct items_tree *tree)
{
    uint64_t latest = changes_latest();
    char *now;
    if (tree->looked == latest) {
        return SHOAL_OK;
    }
    TRY(describe(tree->module, &now));
    shoal_status status = SHOAL_OK;
    if (strcmp(tree->text, now) == 0) {
        tree->looked = latest;
    } else {
        int length;
        const char *path = find_other(tree->text, now, &length);
        status = error_set(
            SHOAL_ERR_STATE,
            "module %s has other parameters or buffers, or others are tied, than when it was added to the "
            "list (%.*s): make a new list",
            shoal_module_type(tree->module), length < 128 ? length : 128, path);
    }
    mem_free(now);
    return status;
}
