/* SPDX-License-Identifier: MIT */
/*
 * How others notice that a module has changed. A captured step depends on every module that it has read or called: the
 * graph has only the tensors that were in its slots then, and what its hooks did. So each change of slots or hooks gives
 * the module another version. Wrappers, which know a whole tree, compare base/changes.h first and then look at the tree.
 *
 * FSDP swaps shards and whole parameters in every call (module_put_parameter). That is no change.
 */
#include <stdio.h>

#include "base/callback.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/try.h"
#include "module/module.h"
#include "op/dependence.h"
#include "op/tracer.h"
#include "tensor/scope.h"

void module_note_change(shoal_module *module, const char *what, const char *name, const char *verb)
{
    module->version = changes_note();
    module->change.what = what;
    module->change.name = name;
    module->change.verb = verb;
}

shoal_status module_check_change(const shoal_module *module, const char *what)
{
    const struct op_tracer *tracer = callback_is_capturing() ? op_capture_running() : NULL;
    if (!tracer || module->created > tracer->latest_change) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_STATE,
        "a captured step cannot add or remove %s of a module that was there before it: the graph would not "
        "do it again",
        what);
}

void module_note_removal(shoal_module *module, const char *what)
{
    module_note_change(module, what, NULL, "was removed");
    shoal_status status = module_check_change(module, what);
    if (status != SHOAL_OK) {
        struct op_tracer *tracer = op_capture_running();
        tracer->capture->refuse(tracer, error_prefix(status, "module_hook_remove"));
        error_clear();
    }
}

static uint64_t version_of(const void *owner)
{
    const shoal_module *module = owner;
    return module->version;
}

static void describe(const void *owner, char *text, size_t text_bytes)
{
    const shoal_module *module = owner;
    if (module->change.what) {
        (void)snprintf(text, text_bytes, "%s%s%s of module %s %s", module->change.what,
                       module->change.name ? " " : "", module->change.name ? module->change.name : "",
                       module->type, module->change.verb);
    }
}

static shoal_status depend(shoal_module *module, struct op_tracer *tracer)
{
    static const struct op_dependence_kind kind = {
        .state = version_of, .describe = describe, .never_returns = true};
    if (!module->dependence) {
        TRY(op_dependence_create(&kind, module, &module->dependence));
    }
    TRY(tracer->capture->depend(tracer, module->dependence));
    return module_name_tensors(module, tracer);
}

static void note_in_capture(shoal_module *module)
{
    struct op_tracer *tracer = op_capture_running();
    shoal_status status = tracer ? depend(module, tracer) : SHOAL_OK;
    if (status != SHOAL_OK) {
        tracer->capture->note_failure(tracer, status);
        (void)scope_fail(status);
    }
}

void module_note_read(const shoal_module *module)
{
    if (callback_is_capturing()) {
        note_in_capture(
            (shoal_module *)module); /* only what captures note is written, by the thread that captures */
    }
}

void module_end_version(shoal_module *module)
{
    op_dependence_leave(module->dependence, module->version);
}
