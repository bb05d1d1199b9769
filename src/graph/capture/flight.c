/* SPDX-License-Identifier: MIT */
/*
 * Keeps track of starts of a captured step that have not been waited for. Eager code waits when data is used, and so
 * does the graph: a call that reads or writes memory in flight gets a wait_tensor before it, and the rest is waited for
 * at the end. (With a wait directly after each irecv, two ranks that both receive before they send would wait for each
 * other for ever.)
 *
 * Invariant: n_flights of a storage is the number of flights on it, including sends, which only read it.
 */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/capture/capture.h"

/* Whether the spans of the flight and the tensor overlap. */
static bool is_touched(const struct capture_flight *flight, const shoal_tensor *tensor)
{
    struct span span = tensor_span(tensor);
    return flight->span.first < span.end && span.first < flight->span.end;
}

/* Whether a wait for the tensor waits for the flight: their spans overlap, or, if one is empty, begin at the same
   place. */
static bool is_met(const struct capture_flight *flight, const shoal_tensor *tensor)
{
    struct span span = tensor_span(tensor);
    bool is_empty = span.first == span.end || flight->span.first == flight->span.end;
    return is_empty ? span.first == flight->span.first : is_touched(flight, tensor);
}

static shoal_status add_flight(struct capture *capture, const shoal_tensor *tensor,
                               struct capture_given start, bool is_read)
{
    struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    TRY(mem_grow((void **)&capture->flights, &capture->flight_capacity, capture->n_flights + 1,
                 sizeof(capture->flights[0])));
    capture->flights[capture->n_flights++] =
        (struct capture_flight){.start = start,
                                .value = capture_value_of(storage, tensor),
                                .span = tensor_span(tensor),
                                .is_read = is_read};
    storage->n_flights++;
    return SHOAL_OK;
}

/* The second argument is a list of words of equal length. */
bool capture_is_received(const shoal_value *arguments, size_t index)
{
    const size_t word = sizeof "isend";
    return strncmp(arguments[1].as.string + index * word, "irecv", word - 1) == 0;
}

/* Adds a flight for each tensor of a start: the one that it sends, or else the one that it gives. */
static shoal_status add_flights(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                struct shoal_node *node, const shoal_value *result)
{
    bool is_list = result->kind == SHOAL_VALUE_TENSORS;
    for (size_t i = 0; i < (is_list ? result->count : 1); i++) {
        struct capture_given start = {.node = node, .index = i};
        bool is_send =
            op->index == OP_isend || (op->index == OP_batch_p2p_ops && !capture_is_received(arguments, i));
        const shoal_tensor *given = is_list ? result->as.tensors[i] : result->as.tensor;
        const shoal_tensor *sent = is_list ? arguments[0].as.tensors[i] : arguments[0].as.tensor;
        TRY(add_flight(capture, is_send ? sent : given, start, is_send));
    }
    return SHOAL_OK;
}

shoal_status capture_note_start(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                struct shoal_node *node, const shoal_value *result)
{
    bool is_start = (op->flags & SHOAL_OP_COLLECTIVE) != 0 && op_is_builtin(op);
    return is_start ? add_flights(capture, op, arguments, node, result) : SHOAL_OK;
}

/* Ends ------------------------------------------------------------------------------------------------- */

/* Adds a wait for a flight, which the caller has removed from the list. */
static shoal_status end_flight(struct capture *capture, struct capture_flight *flight)
{
    struct shoal_node *node = NULL;
    capture_storage_of(capture, &flight->value)->n_flights--;
    TRY(capture_take_out(capture, &flight->start));
    const shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = flight->start.node};
    TRY(shoal_graph_call(capture->graph, op_get(OP_wait_tensor), &arg, 1, NULL, &node));
    struct capture_storage *storage = capture_storage_of(capture, &flight->value);
    bool is_current = !flight->is_read && storage->epoch == flight->value.epoch;
    return is_current
               ? capture_set_result(capture, storage, &flight->value, (struct capture_given){.node = node})
               : SHOAL_OK;
}

/* Ends the flights that overlap a tensor; all flights, if `tensor` is NULL. */
static shoal_status end_flights(struct capture *capture, const shoal_tensor *tensor, bool is_written)
{
    size_t n_flights = capture->n_flights;
    uint64_t id = tensor ? storage_trace_id(tensor->storage) : 0;
    shoal_status status = SHOAL_OK;
    capture->n_flights = 0;
    for (size_t i = 0; i < n_flights; i++) {
        struct capture_flight flight = capture->flights[i];
        bool is_in_the_way = !tensor || (flight.value.id == id && is_touched(&flight, tensor) &&
                                         (is_written || !flight.is_read));
        if (is_in_the_way && status == SHOAL_OK) {
            status = end_flight(capture, &flight);
        } else {
            capture->flights[capture->n_flights++] = flight;
        }
    }
    return status;
}

shoal_status capture_settle(struct capture *capture, const shoal_tensor *tensor, bool is_written)
{
    const struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    return storage && storage->n_flights > 0 ? end_flights(capture, tensor, is_written) : SHOAL_OK;
}

shoal_status capture_settle_all(struct capture *capture)
{
    return end_flights(capture, NULL, /*is_written=*/false);
}

static shoal_status settle_value(struct capture *capture, const shoal_value *value, bool is_written)
{
    size_t count = value->kind == SHOAL_VALUE_TENSORS  ? value->count
                   : value->kind == SHOAL_VALUE_TENSOR ? (value->as.tensor ? 1 : 0)
                                                       : 0;
    for (size_t i = 0; i < count; i++) {
        const shoal_tensor *tensor =
            value->kind == SHOAL_VALUE_TENSORS ? value->as.tensors[i] : value->as.tensor;
        TRY(capture_settle(capture, tensor, is_written));
    }
    return SHOAL_OK;
}

shoal_status capture_settle_arguments(struct capture *capture, const shoal_op *op,
                                      const shoal_value *arguments)
{
    if (capture->n_flights == 0 || (op->flags & (SHOAL_OP_VIEW | SHOAL_OP_WAIT)) != 0) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < op->n_params; i++) {
        bool is_written = i == 0 && (op_is_in_place(op) || op->index == OP_batch_p2p_ops);
        TRY(settle_value(capture, &arguments[i], is_written));
    }
    return SHOAL_OK;
}

/* Whether the tensor overlaps the result of a start, but is not exactly its bytes: a part of it, for example. */
static bool is_other(const struct capture *capture, const shoal_tensor *tensor)
{
    uint64_t id = storage_trace_id(tensor->storage);
    struct span span = tensor_span(tensor);
    for (size_t i = 0; i < capture->n_flights; i++) {
        const struct capture_flight *flight = &capture->flights[i];
        if (!flight->is_read && flight->value.id == id && is_touched(flight, tensor) &&
            (flight->span.first != span.first || flight->span.end != span.end)) {
            return true;
        }
    }
    return false;
}

shoal_status capture_wait_whole(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                bool *is_done_out)
{
    bool is_list = arguments[0].kind == SHOAL_VALUE_TENSORS;
    size_t count = is_list ? arguments[0].count : 1;
    *is_done_out = false;
    for (size_t i = 0; capture->n_flights > 0 && (op->flags & SHOAL_OP_WAIT) != 0 && i < count; i++) {
        const shoal_tensor *tensor = is_list ? arguments[0].as.tensors[i] : arguments[0].as.tensor;
        *is_done_out = *is_done_out || is_other(capture, tensor);
    }
    return *is_done_out ? settle_value(capture, &arguments[0], /*is_written=*/false) : SHOAL_OK;
}

/* Removes the flights that a wait of the step ends. If `node` is a start's result or a view of one, only flights of
   this start; otherwise all that deliver data to the tensor's bytes. */
static void end_waited(struct capture *capture, const shoal_tensor *tensor, const struct shoal_node *node)
{
    while (node->op && (node->op->flags & SHOAL_OP_VIEW) != 0 && node->n_inputs > 0) {
        node = node->inputs[0];
    }
    uint64_t id = storage_trace_id(tensor->storage);
    bool is_start = node->op && (node->op->flags & SHOAL_OP_COLLECTIVE) != 0;
    size_t n_flights = capture->n_flights;
    capture->n_flights = 0;
    for (size_t i = 0; i < n_flights; i++) {
        struct capture_flight flight = capture->flights[i];
        bool is_sent = flight.is_read && flight.start.node == node;
        bool has_come = !flight.is_read && flight.value.id == id && is_met(&flight, tensor) &&
                        (!is_start || flight.start.node == node);
        if (is_sent || has_come) {
            capture_storage_of(capture, &flight.value)->n_flights--;
        } else {
            capture->flights[capture->n_flights++] = flight;
        }
    }
}

void capture_note_wait(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                       const shoal_arg *args)
{
    if (capture->n_flights == 0 || (op->flags & SHOAL_OP_WAIT) == 0) {
        return;
    }
    if (arguments[0].kind == SHOAL_VALUE_TENSOR) {
        end_waited(capture, arguments[0].as.tensor, args[0].as.node);
    }
    for (size_t i = 0; arguments[0].kind == SHOAL_VALUE_TENSORS && i < arguments[0].count; i++) {
        end_waited(capture, arguments[0].as.tensors[i], args[0].as.list.items[i].as.node);
    }
}
