/* SPDX-License-Identifier: MIT */
/*
 * All ops: the rows of ops.def, then registered ones in the order of registration. Ops are only added, so an op that
 * was found stays valid and readers need no lock. This layer is above all layers that contain functions of rows.
 */
#include "shoal/op.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "collective/rows.h"
#include "device/device.h"
#include "op/rows.h"

/* Registered ops: a list that only grows. ---------------------------------------------------------------- */

struct registered {
    shoal_op op;
    _Atomic(struct registered *) next;
};

static _Atomic(struct registered *) first_registered;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* taken by writers only */

static struct registered *follow(_Atomic(struct registered *) *link)
{
    /* Acquire: pairs with the release store in append, which comes after the op was filled in. */
    return atomic_load_explicit(link, memory_order_acquire);
}

const shoal_op *shoal_op_at(size_t index)
{
    if (index < OP_COUNT) {
        collective_hand_in();
        return op_get((enum op_id)index);
    }
    index -= OP_COUNT;
    struct registered *entry = follow(&first_registered);
    while (entry && index > 0) {
        entry = follow(&entry->next);
        index--;
    }
    return entry ? &entry->op : NULL;
}

static const shoal_op *find_by_name(const char *name)
{
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        if (strcmp(op->name, name) == 0) {
            return op;
        }
    }
    return NULL;
}

shoal_status shoal_op_find(const char *name, const shoal_op **op_out)
{
    error_clear();
    if (!name || !op_out) {
        return error_set(SHOAL_ERR_INVALID, "op_find: %s is NULL", name ? "op_out" : "name");
    }
    const shoal_op *found = find_by_name(name);
    if (found) {
        *op_out = found;
        return SHOAL_OK;
    }
    char words[NEAREST_BYTES];
    struct nearest nearest;
    const shoal_op *op;
    nearest_begin(&nearest, name);
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        nearest_add(&nearest, op->name);
    }
    nearest_describe(&nearest, "ops", words);
    return error_set(SHOAL_ERR_INVALID, "op_find: there is no op \"%.64s\"; %s", name, words);
}

/* Registering ------------------------------------------------------------------------------------------- */

static shoal_status check_name(const char *name)
{
    if (!name || !isalpha((unsigned char)name[0])) {
        return error_set(SHOAL_ERR_INVALID, "op_register: name \"%.64s\" must begin with a letter",
                         name ? name : "(NULL)");
    }
    for (const char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.') {
            return error_set(SHOAL_ERR_INVALID,
                             "op_register: name \"%.64s\" contains '%c'; letters, digits and '_' expected",
                             name, *c);
        }
    }
    return SHOAL_OK;
}

#define KNOWN_FLAGS                                                                                   \
    (SHOAL_OP_VIEW | SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT | \
     SHOAL_OP_COMPUTE | SHOAL_OP_FACTORY | SHOAL_OP_OVERWRITES)

static shoal_status check_definition(const shoal_op_definition *definition)
{
    bool is_view = (definition->flags & SHOAL_OP_VIEW) != 0;
    bool is_in_place = (definition->flags & SHOAL_OP_IN_PLACE) != 0;
    TRY(check_name(definition->name));
    if ((definition->flags & ~(uint32_t)KNOWN_FLAGS) != 0) {
        return error_set(SHOAL_ERR_INVALID, "op_register: %s has unknown flags 0x%x", definition->name,
                         (unsigned)(definition->flags & ~(uint32_t)KNOWN_FLAGS));
    }
    if (!definition->signature) {
        return error_set(SHOAL_ERR_INVALID, "op_register: %s has no signature", definition->name);
    }
    if (is_view && is_in_place) {
        return error_set(SHOAL_ERR_INVALID, "op_register: %s cannot be a view and in place",
                         definition->name);
    }
    if (!definition->meta && !is_in_place) {
        return error_set(SHOAL_ERR_INVALID, "op_register: %s has no meta function", definition->name);
    }
    if (!definition->kernel != is_view) {
        return error_set(SHOAL_ERR_INVALID, "op_register: %s %s", definition->name,
                         is_view ? "is a view but has a kernel" : "has no kernel");
    }
    return SHOAL_OK;
}

static const char *keep_string(const char *string)
{
    return mem_copy_string(string ? string : "");
}

static void free_registered(struct registered *entry)
{
    mem_free((char *)entry->op.name);
    mem_free((char *)entry->op.signature);
    mem_free((char *)entry->op.doc);
    mem_free(entry);
}

static bool has_tensor_first(const shoal_op *op)
{
    return op->n_params > 0 && op->params[0].type <= OP_PARAM_TENSORS;
}

static shoal_status fill_op(shoal_op *op, const shoal_op_definition *definition)
{
    *op = (shoal_op){.name = keep_string(definition->name),
                     .signature = keep_string(definition->signature),
                     .doc = keep_string(definition->doc),
                     .flags = definition->flags,
                     .meta = definition->meta,
                     .kernel = definition->kernel ? definition->kernel : run_view,
                     .gradient = definition->gradient,
                     .context = definition->context,
                     .workspace = definition->workspace};
    if (!op->name || !op->signature || !op->doc) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(op_parse_signature(op, definition->saves));
    if ((op->flags & (SHOAL_OP_VIEW | SHOAL_OP_IN_PLACE)) != 0 && !has_tensor_first(op)) {
        return error_set(SHOAL_ERR_INVALID, "the first parameter of a view or in-place op must be a tensor");
    }
    return SHOAL_OK;
}

/* The lock is held. */
static shoal_status append(struct registered *entry)
{
    if (find_by_name(entry->op.name)) {
        return error_set(SHOAL_ERR_INVALID, "there is an op of that name already");
    }
    int index = OP_COUNT;
    _Atomic(struct registered *) *link = &first_registered;
    for (struct registered *at; (at = follow(link)) != NULL; link = &at->next) {
        index++;
    }
    entry->op.index = index;
    /* Release: pairs with the acquire load in follow. */
    atomic_store_explicit(link, entry, memory_order_release);
    return SHOAL_OK;
}

/* The lock is held. */
static shoal_status add_kernel(shoal_op *op, shoal_device device, shoal_op_kernel kernel)
{
    struct op_device_kernel *first = atomic_load_explicit(&op->device_kernels, memory_order_relaxed);
    for (const struct op_device_kernel *at = first; at; at = at->next) {
        if (at->device == device) {
            return error_set(SHOAL_ERR_INVALID, "it has a kernel for device %s already", device_name(device));
        }
    }
    struct op_device_kernel *added = mem_alloc(sizeof *added);
    if (!added) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *added = (struct op_device_kernel){.device = device, .kernel = kernel, .next = first};
    /* Release: pairs with the acquire in find_kernel of the dispatcher. */
    atomic_store_explicit(&op->device_kernels, added, memory_order_release);
    return SHOAL_OK;
}

shoal_status shoal_op_add_kernel(const shoal_op *op, shoal_device device, shoal_op_kernel kernel)
{
    error_clear();
    if (!op || !kernel) {
        return error_set(SHOAL_ERR_INVALID, "op_add_kernel: %s is NULL", op ? "kernel" : "op");
    }
    shoal_status status = device_check(device, "device");
    if (status == SHOAL_OK && op_is_builtin(op)) {
        status = error_set(SHOAL_ERR_INVALID, "it is an op of the library, which has its kernels");
    } else if (status == SHOAL_OK && (!device_has_data(device) || device_is_host(device))) {
        status = error_set(SHOAL_ERR_INVALID, "device %s %s", device_name(device),
                           device_is_host(device) ? "has the kernel of the definition" : "computes nothing");
    }
    if (status == SHOAL_OK) {
        (void)pthread_mutex_lock(&registry_lock);
        status = add_kernel((shoal_op *)op, device, kernel);
        (void)pthread_mutex_unlock(&registry_lock);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "op_add_kernel: %s", op->name);
}

shoal_status shoal_op_register(const shoal_op_definition *given, const shoal_op **op_out)
{
    shoal_op_definition definition;
    error_clear();
    TRY(struct_size_read("op_register: definition", given, sizeof(size_t), &definition, sizeof(definition)));
    TRY(check_definition(&definition));
    struct registered *entry = mem_alloc_zeroed(1, sizeof(*entry));
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = fill_op(&entry->op, &definition);
    if (status == SHOAL_OK) {
        (void)pthread_mutex_lock(&registry_lock);
        status = append(entry);
        (void)pthread_mutex_unlock(&registry_lock);
    }
    if (status != SHOAL_OK) {
        status = error_prefix(status, "op_register: %.64s", definition.name);
        free_registered(entry);
        return status;
    }
    if (op_out) {
        *op_out = &entry->op;
    }
    return SHOAL_OK;
}
