/* SPDX-License-Identifier: MIT */
/* Reads what Inductor decided from the steps of its generated code, beside the graph that it lowered. */
#include <stdio.h>
#include <string.h>

#include "lowering.h"

/* The graph ------------------------------------------------------------------------------------------- */

static const json_t *find_node(const json_t *before, const char *name)
{
    for (size_t i = 0; name && i < json_array_size(before); i++) {
        const json_t *node = json_array_get(before, i);
        if (strcmp(json_string_value(json_object_get(node, "name")), name) == 0) {
            return node;
        }
    }
    return NULL;
}

static const char *reference(const json_t *value)
{
    return json_string_value(json_object_get(value, "node"));
}

static bool is_view(const json_t *node)
{
    static const char *const views[] = {"aten.permute.default", "aten.slice.Tensor",
                                        "_c10d_functional.wait_tensor.default",
                                        "<built-in function getitem>"};
    const char *target = json_string_value(json_object_get(node, "target"));
    for (size_t i = 0; target && i < sizeof views / sizeof views[0]; i++) {
        if (strcmp(target, views[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* How often a value names the node. */
static size_t count_references(const json_t *value, const char *name)
{
    const char *text = reference(value);
    size_t count = text && strcmp(text, name) == 0 ? 1 : 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        count += count_references(json_array_get(value, i), name);
    }
    return count;
}

static size_t count_users(const json_t *before, const char *name)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(before); i++) {
        count += count_references(json_object_get(json_array_get(before, i), "args"), name);
    }
    return count;
}

/* Where the value of an argument comes from. Something that is only looked at through a view is copied, too. */
static enum lowering_source find_source(const json_t *before, const char *name)
{
    const json_t *node = find_node(before, name);
    bool is_shared = false;
    bool is_turned = false;
    while (node && is_view(node)) {
        const char *target = json_string_value(json_object_get(node, "target"));
        is_shared = is_shared || count_users(before, name) > 1;
        is_turned = is_turned || strncmp(target, "aten.", strlen("aten.")) == 0;
        name = reference(json_array_get(json_object_get(node, "args"), 0));
        node = find_node(before, name);
    }
    const char *op = node ? json_string_value(json_object_get(node, "op")) : "";
    if (strcmp(op, "placeholder") == 0) {
        return LOWERING_INPUT;
    }
    return is_shared || is_turned || count_users(before, name) > 1 ? LOWERING_COPY : LOWERING_TEMPORARY;
}

/* Steps ------------------------------------------------------------------------------------------------ */

struct started {
    const char *buffers[LOWERING_MAX_COLLECTIVES]; /* that are waited for */
    size_t n_buffers;
    bool is_list;
};

struct reading {
    const json_t *before;
    const json_t *steps;
    size_t at; /* which step */
    struct lowering_decisions *decisions;
    struct started started[LOWERING_MAX_COLLECTIVES];
    size_t n_started;
    bool is_used[512]; /* nodes whose start was found */
};

static bool is_bookkeeping(const char *what)
{
    return strcmp(what, "alloc") == 0 || strcmp(what, "free") == 0 || strcmp(what, "reuse") == 0 ||
           strcmp(what, "return") == 0;
}

/* The next collective of that name in the graph. */
static const json_t *find_collective(struct reading *self, const char *what, size_t length)
{
    for (size_t i = 0; i < json_array_size(self->before) && i < sizeof self->is_used; i++) {
        const json_t *node = json_array_get(self->before, i);
        const char *name = lowering_collective_name(json_string_value(json_object_get(node, "target")));
        if (!self->is_used[i] && name && strlen(name) == length && strncmp(name, what, length) == 0) {
            self->is_used[i] = true;
            return node;
        }
    }
    return NULL;
}

/* Whether a kernel or a collective before this step has the buffer. */
static bool is_written(const struct reading *self, const char *buffer)
{
    for (size_t i = 0; buffer && i < self->at; i++) {
        const json_t *step = json_array_get(self->steps, i);
        const char *what = json_string_value(json_array_get(step, 0));
        const json_t *buffers = json_array_get(step, 1);
        for (size_t k = 0; !is_bookkeeping(what) && k < json_array_size(buffers); k++) {
            const char *other = json_string_value(json_array_get(buffers, k));
            if (other && strcmp(other, buffer) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* What is reduced in place was written before, and is no input of the graph. */
static bool check_in_place(const struct reading *self, const json_t *buffers, struct lowering_text *reason)
{
    for (size_t i = 0; i < json_array_size(buffers); i++) {
        const char *buffer = json_string_value(json_array_get(buffers, i));
        if (!buffer || find_node(self->before, buffer) || !is_written(self, buffer)) {
            lowering_write(reason, "a collective in place on %.40s, which is an input or was not written",
                           buffer ? buffer : "nothing");
            return false;
        }
    }
    return true;
}

/* The step names the buffer: an input is read where it is, or a kernel has copied it. Of a computed value, kernels do not
   say whether they copied it, too: that is found in the graph. */
static enum lowering_source decide_source(const struct reading *self, const char *name, const char *buffer,
                                          bool is_in_place)
{
    enum lowering_source source = find_source(self->before, name);
    if (find_node(self->before, buffer)) {
        return LOWERING_INPUT;
    }
    if (source == LOWERING_INPUT) {
        return LOWERING_COPY;
    }
    return is_in_place ? source : LOWERING_TEMPORARY;
}

/* Returns false if a buffer is neither an input nor written before. */
static bool add_sources(struct reading *self, const json_t *node, const json_t *buffers, bool is_in_place,
                        struct lowering_text *reason)
{
    const json_t *arg = json_array_get(json_object_get(node, "args"), 0);
    size_t count = json_is_array(arg) ? json_array_size(arg) : 1;
    if (json_array_size(buffers) != count) {
        lowering_write(reason, "a collective of %zu tensors names %zu buffers", count,
                       json_array_size(buffers));
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const char *buffer = json_string_value(json_array_get(buffers, i));
        const char *name = reference(json_is_array(arg) ? json_array_get(arg, i) : arg);
        if (!name || !buffer || (!find_node(self->before, buffer) && !is_written(self, buffer))) {
            lowering_write(reason, "a collective reads %.40s, which nothing has written",
                           buffer ? buffer : "nothing");
            return false;
        }
        lowering_add_source(self->decisions, decide_source(self, name, buffer, is_in_place));
    }
    return true;
}

static bool read_start(struct reading *self, const char *what, const json_t *buffers, const json_t *result,
                       struct lowering_text *reason)
{
    size_t length = strlen(what);
    bool is_in_place = length > 0 && what[length - 1] == '_';
    const json_t *node = find_collective(self, what, is_in_place ? length - 1 : length);
    if (!node || self->n_started == LOWERING_MAX_COLLECTIVES - 1) {
        lowering_write(reason, "step %.60s is not in the graph", what);
        return false;
    }
    if (is_in_place && !check_in_place(self, buffers, reason)) {
        return false;
    }
    struct started *started = &self->started[self->n_started++];
    *started = (struct started){.is_list = json_is_array(json_array_get(json_object_get(node, "args"), 0))};
    for (size_t i = 0; is_in_place && i < json_array_size(buffers) && i < LOWERING_MAX_COLLECTIVES; i++) {
        started->buffers[started->n_buffers++] = json_string_value(json_array_get(buffers, i));
    }
    if (!is_in_place) {
        started->buffers[started->n_buffers++] = json_string_value(result);
    }
    char name[80];
    (void)snprintf(name, sizeof name, "%.*s", (int)(is_in_place ? length - 1 : length), what);
    lowering_begin(self->decisions, name, is_in_place);
    return add_sources(self, node, buffers, is_in_place, reason);
}

/* The newest collective with that buffer. Results of a list have buffers that no step names: the newest list. */
static bool read_wait(struct reading *self, const char *buffer, struct lowering_text *reason)
{
    for (size_t i = self->n_started; i > 0; i--) {
        const struct started *started = &self->started[i - 1];
        for (size_t k = 0; buffer && k < started->n_buffers; k++) {
            if (started->buffers[k] && strcmp(started->buffers[k], buffer) == 0) {
                lowering_add_wait(self->decisions, i - 1);
                return true;
            }
        }
    }
    for (size_t i = self->n_started; i > 0; i--) {
        if (self->started[i - 1].is_list) {
            lowering_add_wait(self->decisions, i - 1);
            return true;
        }
    }
    lowering_write(reason, "a wait for %.40s, which nothing started", buffer ? buffer : "nothing");
    return false;
}

bool lowering_read_steps(const json_t *before, const json_t *steps, struct lowering_decisions *decisions,
                         struct lowering_text *reason)
{
    static struct reading self;
    self = (struct reading){.before = before, .steps = steps, .decisions = decisions};
    for (size_t i = 0; i < json_array_size(steps); i++) {
        self.at = i;
        const json_t *step = json_array_get(steps, i);
        const char *what = json_string_value(json_array_get(step, 0));
        const json_t *buffers = json_array_get(step, 1);
        if (!what || !json_is_array(buffers)) {
            lowering_write(reason, "step %zu is not [what, [buffers], result]", i);
            return false;
        }
        if (strncmp(what, "kernel ", strlen("kernel ")) == 0) {
            lowering_add_kernel(decisions);
        } else if (strcmp(what, "wait_tensor") == 0) {
            if (!read_wait(&self, json_string_value(json_array_get(buffers, 0)), reason)) {
                return false;
            }
        } else if (!is_bookkeeping(what) &&
                   !read_start(&self, what, buffers, json_array_get(step, 2), reason)) {
            return false;
        }
    }
    return true;
}
