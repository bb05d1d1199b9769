/* SPDX-License-Identifier: MIT */
/* Prints a plan as text, which docs/graph.md describes. It has no addresses, so it is the same in each run. */
#include <inttypes.h>

#include "base/error.h"
#include "base/map.h"
#include "graph/text/float_text.h"
#include "graph/plan/plan.h"
#include "graph/text/writer.h"
#include "op/op.h"
#include "tensor/dtype.h"

struct print {
    struct writer writer;
    const struct shoal_plan *plan;
    struct map buffers;
};

/* Groups, areas, buffers ------------------------------------------------------------------------------- */

static void print_group(struct print *print, const struct plan_group *group)
{
    struct writer *writer = &print->writer;
    writer_add_string(writer, "    group ");
    writer_add_name(writer, '@', group->name);
    writer_add_string(writer, " = [");
    for (size_t i = 0; i < group->size; i++) {
        writer_add_format(writer, "%s%d", i > 0 ? ", " : "", group->ranks[i]);
    }
    writer_add_format(writer, "], %" PRIu32 " collectives, %zu bytes of comm memory\n", group->n_collectives,
                      group->comm_bytes);
}

static void print_areas(struct print *print)
{
    const struct shoal_plan *plan = print->plan;
    struct writer *writer = &print->writer;
    for (size_t i = 0; i < plan->n_groups; i++) {
        print_group(print, &plan->groups[i]);
    }
    for (size_t i = 0; i < plan->n_windows; i++) {
        writer_add_format(writer, "    window %zu of ", i);
        writer_add_name(writer, '@', plan->groups[plan->windows[i].group].name);
        writer_add_format(writer, ", %zu bytes\n", plan->windows[i].bytes);
    }
    writer_add_format(writer, "    pool %zu bytes, outputs %zu bytes, peak %zu bytes\n", plan->pool_bytes,
                      plan->output_bytes, plan->peak_bytes);
}

static void print_place(struct print *print, const struct plan_buffer *buffer)
{
    struct writer *writer = &print->writer;
    switch (buffer->place) {
    case PLAN_INPUT:
        writer_add_format(writer, "input %" PRIu32, buffer->index);
        return;
    case PLAN_CONSTANT:
        writer_add_string(writer, "constant");
        return;
    case PLAN_POOL:
        writer_add_string(writer, "pool");
        break;
    case PLAN_OUTPUT:
        writer_add_string(writer, "output");
        break;
    case PLAN_COMM:
        writer_add_format(writer, "comm %" PRIu32 " of ", buffer->comm_id);
        writer_add_name(writer, '@', print->plan->groups[buffer->index].name);
        break;
    case PLAN_WINDOW:
        writer_add_format(writer, "window %" PRIu32, buffer->index);
        break;
    case PLAN_SLOT:
        writer_add_format(writer, "slot of b%" PRIu32, buffer->index);
        break;
    }
    writer_add_format(writer, " at %zu", buffer->offset);
}

static void print_buffer(struct print *print, size_t index)
{
    const struct plan_buffer *buffer = &print->plan->buffers[index];
    struct writer *writer = &print->writer;
    writer_add_format(writer, "    b%zu ", index);
    writer_add_name(writer, '%', buffer->name);
    writer_add_string(writer, " = ");
    print_place(print, buffer);
    writer_add_format(writer, ", %zu bytes", buffer->bytes);
    if (buffer->first != PLAN_NONE) {
        writer_add_format(writer, ", %" PRIu32 "..%" PRIu32, buffer->first, buffer->last);
    }
    writer_add(writer, "\n", 1);
}

/* Values ----------------------------------------------------------------------------------------------- */

static void print_tensor(struct print *print, const shoal_tensor *tensor)
{
    struct writer *writer = &print->writer;
    size_t buffer = 0;
    (void)map_get(&print->buffers, map_key(tensor->storage), &buffer);
    writer_add_format(writer, "b%zu", buffer);
    if (tensor->layout.offset != 0) {
        writer_add_format(writer, "+%zu", (size_t)tensor->layout.offset * dtype_bytes(tensor->dtype));
    }
    writer_add(writer, ":", 1);
    writer_add_type(writer, tensor, /*has_strides=*/true);
}

static void print_list(struct print *print, const shoal_value *value)
{
    struct writer *writer = &print->writer;
    writer_add(writer, "[", 1);
    for (size_t i = 0; i < value->count; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        if (value->kind == SHOAL_VALUE_TENSORS) {
            print_tensor(print, value->as.tensors[i]);
        } else {
            writer_add_int(writer, value->as.integers[i]);
        }
    }
    writer_add(writer, "]", 1);
}

static void print_value(struct print *print, const struct plan_step *step, const shoal_value *value)
{
    struct writer *writer = &print->writer;
    char text[FLOAT_TEXT_BYTES];
    switch (value->kind) {
    case SHOAL_VALUE_NONE:
        writer_add_string(writer, "none");
        break;
    case SHOAL_VALUE_TENSOR:
        print_tensor(print, value->as.tensor);
        break;
    case SHOAL_VALUE_TENSORS:
    case SHOAL_VALUE_INTS:
        print_list(print, value);
        break;
    case SHOAL_VALUE_INT:
        writer_add_int(writer, value->as.integer);
        break;
    case SHOAL_VALUE_FLOAT:
        writer_add_string(writer, float_text_write(text, SHOAL_F64, value->as.real));
        break;
    case SHOAL_VALUE_BOOL:
        writer_add_string(writer, value->as.boolean ? "true" : "false");
        break;
    case SHOAL_VALUE_DTYPE:
        writer_add_string(writer, shoal_dtype_name(value->as.dtype));
        break;
    case SHOAL_VALUE_STRING:
        writer_add_quoted(writer, value->as.string);
        break;
    case SHOAL_VALUE_GROUP:
        writer_add_name(writer, '@', print->plan->groups[step->group].name);
        break;
    }
}

/* Steps ------------------------------------------------------------------------------------------------ */

static void print_call(struct print *print, const struct plan_step *step)
{
    struct writer *writer = &print->writer;
    writer_add_format(writer, "%s(", step->op->name);
    for (size_t i = 0; step->arguments && i < step->op->n_params; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        print_value(print, step, &step->arguments[i]);
    }
    writer_add(writer, ")", 1);
    for (size_t i = 0; i < step->n_outputs; i++) {
        writer_add_string(writer, i > 0 ? ", " : " -> ");
        print_tensor(print, step->outputs[i]);
    }
    if (step->workspace_bytes > 0) {
        writer_add_format(writer, ", scratch of %zu bytes at %zu", step->workspace_bytes,
                          step->workspace_offset);
    }
}

static void print_piece(struct print *print, const struct plan_collective *collective, size_t index)
{
    struct writer *writer = &print->writer;
    const shoal_tensor *send = collective->sends[index];
    const shoal_tensor *recv = collective->receives[index];
    writer_add_string(writer, index > 0 ? ", " : " ");
    if (send) {
        print_tensor(print, send);
    }
    if (collective->window != PLAN_NONE) {
        const shoal_window_piece *piece = &collective->call.window_pieces[index];
        writer_add_format(writer, " as %s to %zu", shoal_dtype_name(piece->window_dtype), piece->offset);
    } else if (recv) {
        writer_add_string(writer, send ? " to " : "in place on ");
        print_tensor(print, recv);
    }
}

static void print_collective(struct print *print, const struct plan_collective *collective)
{
    struct writer *writer = &print->writer;
    const struct collective *call = &collective->call;
    writer_add_format(writer, "%s ", collective_rows[call->kind].name);
    if (collective_rows[call->kind].reduces) {
        writer_add_format(writer, "%s ", shoal_reduce_op_name(call->reduce));
    }
    if (collective_rows[call->kind].has_root) {
        writer_add_format(writer, "root %d ", call->root);
    }
    if (collective->window != PLAN_NONE) {
        writer_add_format(writer, "window %" PRIu32 " ", collective->window);
    }
    writer_add_name(writer, '@', print->plan->groups[collective->group].name);
    writer_add_format(writer, " %" PRIu32 ":", collective->ordinal);
    for (size_t i = 0; i < collective->n_pieces; i++) {
        print_piece(print, collective, i);
    }
}

static void print_step(struct print *print, size_t index)
{
    static const char *const words[] = {
        [PLAN_CALL] = "",        [PLAN_START] = "start ",     [PLAN_WAIT] = "wait ",
        [PLAN_BLOCK] = "block ", [PLAN_RELEASE] = "release ", [PLAN_EAGER] = "eager ",
    };
    const struct plan_step *step = &print->plan->steps[index];
    struct writer *writer = &print->writer;
    writer_add_format(writer, "    %zu ", index);
    writer_add_name(writer, '%', step->node);
    writer_add_format(writer, " = %s", words[step->kind]);
    if (step->kind == PLAN_CALL || step->kind == PLAN_EAGER) {
        print_call(print, step);
    } else if (step->kind == PLAN_RELEASE) {
        writer_add_format(writer, "window %" PRIu32, step->window);
    } else if (step->kind == PLAN_WAIT) {
        const struct plan_collective *collective = &print->plan->collectives[step->collective];
        writer_add_name(writer, '@', print->plan->groups[collective->group].name);
        writer_add_format(writer, " %" PRIu32, collective->ordinal);
    } else {
        print_collective(print, &print->plan->collectives[step->collective]);
    }
    writer_add(writer, "\n", 1);
}

static void print_outputs(struct print *print)
{
    const struct shoal_plan *plan = print->plan;
    writer_add_string(&print->writer, "    return [");
    for (size_t i = 0; i < plan->n_outputs; i++) {
        writer_add_string(&print->writer, i > 0 ? ", " : "");
        if (plan->outputs[i].tensor) {
            print_tensor(print, plan->outputs[i].tensor);
        } else {
            writer_add_string(&print->writer, "none");
        }
    }
    writer_add_string(&print->writer, "]\n");
}

static void print_plan(struct print *print)
{
    const struct shoal_plan *plan = print->plan;
    writer_add_string(&print->writer, "plan {\n");
    print_areas(print);
    for (size_t i = 0; i < plan->n_buffers; i++) {
        print_buffer(print, i);
    }
    for (size_t i = 0; i < plan->n_steps; i++) {
        print_step(print, i);
    }
    print_outputs(print);
    writer_add_string(&print->writer, "}\n");
}

/* A slot has the storage of its buffer, so the number of the buffer is used for both. */
static shoal_status number_buffers(struct print *print)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < print->plan->n_buffers && status == SHOAL_OK; i++) {
        const struct plan_buffer *buffer = &print->plan->buffers[i];
        size_t known;
        if (buffer->place != PLAN_SLOT) {
            status = map_get_or_add(&print->buffers, map_key(buffer->storage), i, &known);
        }
    }
    return status;
}

shoal_status shoal_plan_print(const shoal_plan *plan, shoal_graph_write write, void *context)
{
    struct print print = {.plan = plan, .writer = {.write = write, .context = context}};
    error_clear();
    if (!plan || !write) {
        return error_set(SHOAL_ERR_INVALID, "plan_print: %s is NULL", plan ? "write" : "plan");
    }
    shoal_status status = number_buffers(&print);
    if (status == SHOAL_OK) {
        print_plan(&print);
        status = writer_end(&print.writer);
    }
    map_free(&print.buffers);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "plan_print");
}
