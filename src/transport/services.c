/* SPDX-License-Identifier: MIT */
/* What the library does for modules, transports that are loaded. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/wait.h"
#include "kernel/kernel.h"
#include "transport/companion.h"
#include "transport/message/endpoint.h"
#include "transport/module.h"

static const char *find_variable(const char *name)
{
    char full[128];
    int length = snprintf(full, sizeof full, "SHOAL_TRANSPORT_%s", name);
    const char *value = length > 0 && (size_t)length < sizeof full ? getenv(full) : NULL;
    return value ? value : "";
}

const struct transport_services transport_services = {
    .struct_size = sizeof(struct transport_services),
    .interface = TRANSPORT_INTERFACE,
    .layout = TRANSPORT_LAYOUT,
    .set_error = error_set,
    .set_error_v = error_set_v,
    .prefix_error = error_prefix,
    .error_text = shoal_error_text,
    .error_clear = error_clear,
    .alloc = mem_alloc,
    .alloc_zeroed = mem_alloc_zeroed,
    .grow = mem_grow,
    .free = mem_free,
    .now_ns = clock_now_ns,
    .deadline_after = clock_deadline_after,
    .wait_while_equal = wait_while_equal,
    .wake_all = wait_wake_all,
    .sleep = wait_sleep,
    .log = log_write,
    .variable = find_variable,
    .reduce = kernel_reduce,
    .copy = kernel_copy,
    .cast = kernel_cast,
    .fingerprint_take = fingerprint_take,
    .fingerprint_take_words = fingerprint_take_words,
    .fingerprint_fail = fingerprint_fail,
    .collective_describe = collective_describe,
    .describe_timeout = transport_describe_timeout,
    .companion_meet = companion_meet,
    .message_transport = message_transport,
};
