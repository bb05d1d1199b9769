/* SPDX-License-Identifier: MIT */
/* Rows of point to point: isend, irecv, and many of them at once. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "collective/launch.h"
#include "collective/rows.h"
#include "op/operand.h"
#include "shoal/group.h"

static shoal_status check_peer(const char *name, int64_t peer, int64_t tag, shoal_group *group)
{
    int n_ranks = shoal_group_n_ranks(group);
    if (peer == SHOAL_ANY_RANK) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: SHOAL_ANY_RANK: an op receives from one rank, the same whenever a plan repeats "
                         "it; shoal_group_recv_any receives from any, outside of captured steps",
                         name);
    }
    if (peer < 0 || peer >= n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "%s: rank %" PRId64 " is outside of the group of %d ranks", name,
                         peer, n_ranks);
    }
    if (tag < 0 || tag > INT32_MAX) {
        return error_set(SHOAL_ERR_INVALID, "tag: %" PRId64 " is not in 0 ... %d", tag, INT32_MAX);
    }
    return SHOAL_OK;
}

/* The result of a send: a tensor without elements, on which a program can wait. */
static shoal_status declare_placeholder(shoal_op_call_context *call, shoal_dtype dtype)
{
    const int64_t nothing = 0;
    return shoal_op_output(call, &nothing, 1, dtype);
}

shoal_status meta_isend(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_peer("destination", arguments[1].as.integer, arguments[2].as.integer, arguments[3].as.group));
    return declare_placeholder(call, arguments[0].as.tensor->dtype);
}

shoal_status meta_irecv(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_peer("source", arguments[1].as.integer, arguments[2].as.integer, arguments[3].as.group));
    TRY(op_check_writable("self", arguments[0].as.tensor));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

static shoal_status launch_send(struct launch *launch, const shoal_value *arguments,
                                shoal_tensor *placeholder)
{
    const void *data;
    shoal_tensor *self = arguments[0].as.tensor;
    TRY(launch_input(launch, self, &data));
    TRY(launch_mark(launch, placeholder));
    return shoal_group_send_start(launch->group, data, (size_t)self->count, self->dtype,
                                  (int)arguments[1].as.integer, (int)arguments[2].as.integer, &launch->work);
}

shoal_status run_isend(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[3].as.group);
    launch.is_transfer = true;
    return launch_end(&launch, launch_send(&launch, arguments, outputs[0]));
}

static shoal_status launch_recv(struct launch *launch, const shoal_value *arguments)
{
    void *data;
    shoal_tensor *self = arguments[0].as.tensor;
    TRY(launch_output(launch, self, &data));
    return shoal_group_recv_start(launch->group, data, (size_t)self->count, self->dtype,
                                  (int)arguments[1].as.integer, (int)arguments[2].as.integer, &launch->work);
}

shoal_status run_irecv(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[3].as.group);
    launch.is_transfer = true;
    return launch_end(&launch, launch_recv(&launch, arguments));
}

/* Batches ---------------------------------------------------------------------------------------------- */

static const char *const direction_words[] = {[SHOAL_SEND] = "isend", [SHOAL_RECV] = "irecv"};

/* Reads the next word of "isend irecv ...". False at the end. *direction_out is -1 for another word. */
static bool next_direction(const char **words, int *direction_out, int *length_out)
{
    *words += strspn(*words, " ");
    size_t length = strcspn(*words, " ");
    *direction_out = -1;
    for (int i = 0; i < 2; i++) {
        if (strlen(direction_words[i]) == length && strncmp(*words, direction_words[i], length) == 0) {
            *direction_out = i;
        }
    }
    *length_out = (int)length;
    return length > 0;
}

static shoal_status check_receiver(const shoal_op_call_context *call, const shoal_tensor *tensor)
{
    if (tensor->history && shoal_scope_has_grad()) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "this tensor requires a gradient, and receiving into it has none");
    }
    return op_check_writable("the receiver", tensor);
}

static shoal_status declare_transfer(shoal_op_call_context *call, const shoal_value *arguments, size_t index,
                                     int direction)
{
    shoal_tensor *tensor = arguments[0].as.tensors[index];
    TRY(check_peer("peers", arguments[2].as.integers[index], arguments[3].as.integers[index],
                   arguments[4].as.group));
    if (direction == SHOAL_SEND) {
        return declare_placeholder(call, tensor->dtype);
    }
    TRY(check_receiver(call, tensor));
    return shoal_op_output_alias(call, tensor);
}

/* Transfers have no order, so what one receives no other may touch. A send with gaps does not count: it is copied at
   the call. */
static shoal_status check_apart(const shoal_value *tensors, const char *words, struct tensor_use *uses)
{
    size_t n_uses = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const shoal_tensor *tensor = tensors->as.tensors[i];
        int direction;
        int length;
        (void)next_direction(&words, &direction, &length);
        words += length;
        if (direction == SHOAL_RECV || tensor->is_contiguous) {
            uses[n_uses++] =
                (struct tensor_use){.tensor = tensor, .index = i, .is_written = direction == SHOAL_RECV};
        }
    }
    return arguments_apart("tensors", uses, n_uses);
}

static shoal_status check_batch(const shoal_value *arguments)
{
    if (!arguments_have_gaps(&arguments[0])) {
        return SHOAL_OK;
    }
    struct tensor_use *uses = mem_alloc_zeroed(arguments[0].count, sizeof *uses);
    if (!uses) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = check_apart(&arguments[0], arguments[1].as.string, uses);
    mem_free(uses);
    return status;
}

shoal_status meta_batch_p2p_ops(shoal_op_call_context *call, const shoal_value *arguments)
{
    size_t n_ops = arguments[0].count;
    const char *words = arguments[1].as.string;
    int direction;
    int length;
    size_t n_words = 0;
    if (arguments[2].count != n_ops || arguments[3].count != n_ops) {
        return error_set(SHOAL_ERR_INVALID, "%zu tensors, but %zu peers and %zu tags", n_ops,
                         arguments[2].count, arguments[3].count);
    }
    while (next_direction(&words, &direction, &length)) {
        if (direction < 0) {
            return error_set(SHOAL_ERR_INVALID, "directions: \"%.*s\" is neither isend nor irecv",
                             length > 32 ? 32 : length, words);
        }
        words += length;
        if (n_words < n_ops) {
            shoal_status status = declare_transfer(call, arguments, n_words, direction);
            if (status != SHOAL_OK) {
                return error_prefix(status, "tensors[%zu]", n_words);
            }
        }
        n_words++;
    }
    return n_words == n_ops ? check_batch(arguments)
                            : error_set(SHOAL_ERR_INVALID, "%zu tensors, but %zu directions", n_ops, n_words);
}

/* Waits for the tensor, as the dispatcher does for other ops. Here only the kernel knows what is read and what is
   written. */
static shoal_status launch_sender(struct launch *launch, const char *name, shoal_tensor *tensor,
                                  const void **data_out)
{
    TRY(arguments_wait_readable(name, tensor));
    return launch_input(launch, tensor, data_out);
}

static shoal_status launch_receiver(struct launch *launch, const char *name, shoal_tensor *tensor,
                                    void **data_out)
{
    TRY(arguments_wait_writable(name, tensor));
    return launch_output(launch, tensor, data_out);
}

static shoal_status launch_transfers(struct launch *launch, const shoal_value *arguments,
                                     shoal_tensor *const *outputs, size_t n_outputs)
{
    const char *words = arguments[1].as.string;
    shoal_transfer *transfers = launch_alloc(launch, n_outputs, sizeof *transfers);
    if (!transfers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        shoal_tensor *tensor = arguments[0].as.tensors[i];
        int direction;
        int length;
        (void)next_direction(&words, &direction, &length);
        words += length;
        transfers[i] = (shoal_transfer){.direction = (shoal_direction)direction,
                                        .count = (size_t)tensor->count,
                                        .dtype = tensor->dtype,
                                        .peer = (int)arguments[2].as.integers[i],
                                        .tag = (int)arguments[3].as.integers[i]};
        struct arguments_name buffer;
        const char *name = arguments_of_list("tensors", i, &buffer);
        if (direction == SHOAL_SEND) {
            const void *data;
            TRY(launch_sender(launch, name, tensor, &data));
            transfers[i].buffer = (void *)(uintptr_t)data; /* a send only reads it */
            TRY(launch_mark(launch, outputs[i]));
        } else {
            TRY(launch_receiver(launch, name, tensor, &transfers[i].buffer));
        }
    }
    return shoal_group_transfer_start(launch->group, transfers, n_outputs, &launch->work);
}

shoal_status run_batch_p2p_ops(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    if (n_outputs == 0) {
        return SHOAL_OK;
    }
    launch_begin(&launch, arguments[4].as.group);
    launch.is_transfer = true;
    TRY(launch_end(&launch, launch_transfers(&launch, arguments, outputs, n_outputs)));
    for (size_t i = 0; i < n_outputs; i++) {
        if (outputs[i] == arguments[0].as.tensors[i]) {
            storage_bump_version(outputs[i]->storage);
        }
    }
    return SHOAL_OK;
}
