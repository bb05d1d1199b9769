/* SPDX-License-Identifier: MIT */
/* Functions of each element: one set of functions for all, told apart by the op's context. */
#include <string.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "common/try.h"
#include "ops/values.h"

#define ACTIVATION(name, saves_result)                                                              \
    const struct nn_activation nn_##name = {.forward = offsetof(struct nn_loops, name##_forward),   \
                                            .backward = offsetof(struct nn_loops, name##_backward), \
                                            .gradient = NN_OP_##name##_backward,                    \
                                            .has_saved_result = saves_result};
ACTIVATION(tanh, true)
ACTIVATION(relu, true)
ACTIVATION(gelu, false)
ACTIVATION(gelu_tanh, false)
ACTIVATION(exp, true)
ACTIVATION(log, false)
ACTIVATION(sqrt, true)
ACTIVATION(sigmoid, true)
ACTIVATION(silu, false)
ACTIVATION(softmax, true)
ACTIVATION(log_softmax, true)

META(activation)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    NN_TRY(nn_check_floating(self, "self"));
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

/* What a function of an element takes, in operations: those with exponentials are most of them. */
#define ELEMENT_COST 4

/* Elements of 16 bits that are converted at a time: they stay in the cache. */
#define CHUNK 1024

/* Contiguous elements: a tensor's own, of any dtype, or floats or doubles that were copied from it. */
struct operand {
    char *data;
    shoal_dtype dtype;
};

struct elements {
    nn_forward_loop forward;   /* of one argument, */
    nn_backward_loop backward; /* or of two */
    struct operand inputs[2];
    size_t n_inputs;
    struct operand result;
    bool has_halves; /* some are of 16 bits, the others floats */
};

static void call_loop(const struct elements *elements, size_t n, const void *const *inputs, void *result)
{
    if (elements->forward) {
        elements->forward(n, inputs[0], result);
    } else {
        elements->backward(n, inputs[0], inputs[1], result);
    }
}

static void run_chunk(const struct elements *elements, size_t first, size_t n)
{
    float floats[2][CHUNK];
    float values[CHUNK];
    const void *inputs[2] = {NULL, NULL};
    for (size_t i = 0; i < elements->n_inputs; i++) {
        const struct operand *input = &elements->inputs[i];
        nn_read_row(input->data + first * shoal_dtype_bytes(input->dtype), input->dtype, (int64_t)n, 1,
                    floats[i]);
        inputs[i] = floats[i];
    }
    call_loop(elements, n, inputs, values);
    nn_write_row(elements->result.data + first * shoal_dtype_bytes(elements->result.dtype),
                 elements->result.dtype, (int64_t)n, 1, values);
}

static void run_elements(void *context, size_t first, size_t end)
{
    const struct elements *elements = context;
    for (size_t i = first; elements->has_halves && i < end; i += CHUNK) {
        run_chunk(elements, i, end - i < CHUNK ? end - i : CHUNK);
    }
    if (!elements->has_halves) {
        size_t offset = first * shoal_dtype_bytes(elements->result.dtype);
        const void *const inputs[] = {elements->inputs[0].data + offset,
                                      elements->n_inputs > 1 ? elements->inputs[1].data + offset : NULL};
        call_loop(elements, end - first, inputs, elements->result.data + offset);
    }
}

/* Only tensors that do not lie contiguously are copied. */
static size_t elements_bytes(const shoal_value *arguments, size_t n_inputs, const shoal_tensor *result)
{
    size_t bytes = shoal_tensor_is_contiguous(result) ? 0 : nn_values_bytes(result);
    for (size_t i = 0; i < n_inputs; i++) {
        const shoal_tensor *tensor = arguments[i].as.tensor;
        bytes += shoal_tensor_is_contiguous(tensor) ? 0 : nn_values_bytes(tensor);
    }
    return bytes;
}

static shoal_status load_operand(shoal_op_call_context *call, const shoal_tensor *tensor,
                                 struct operand *operand_out)
{
    struct nn_values values = {.data = NULL};
    shoal_dtype dtype = shoal_tensor_dtype(tensor);
    if (!shoal_tensor_is_contiguous(tensor)) {
        NN_TRY(nn_load(call, tensor, &values));
        *operand_out = (struct operand){.data = values.data, .dtype = nn_real(dtype)};
        return SHOAL_OK;
    }
    *operand_out = (struct operand){.data = (char *)(uintptr_t)shoal_data(tensor), .dtype = dtype};
    return operand_out->data ? SHOAL_OK : SHOAL_ERR_STATE; /* the text is there already */
}

static shoal_status run_loop(shoal_op_call_context *call, const shoal_value *arguments, size_t n_inputs,
                             struct elements *elements, shoal_tensor *output)
{
    shoal_dtype dtype = shoal_tensor_dtype(output);
    struct nn_values result = {.data = NULL};
    elements->n_inputs = n_inputs;
    for (size_t i = 0; i < n_inputs; i++) {
        NN_TRY(load_operand(call, arguments[i].as.tensor, &elements->inputs[i]));
        elements->has_halves = elements->has_halves || elements->inputs[i].dtype != nn_real(dtype);
    }
    if (shoal_tensor_is_contiguous(output)) {
        elements->result = (struct operand){.data = shoal_mutable_data(output), .dtype = dtype};
        NN_TRY(elements->result.data ? SHOAL_OK : SHOAL_ERR_STATE);
    } else {
        NN_TRY(nn_open(call, output, /*keeps_values=*/false, &result));
        elements->result = (struct operand){.data = result.data, .dtype = nn_real(dtype)};
    }
    elements->has_halves = elements->has_halves || elements->result.dtype != nn_real(dtype);
    nn_parallel_ranges((size_t)shoal_tensor_count(output), ELEMENT_COST, run_elements, elements);
    nn_store(output, &result);
    return SHOAL_OK;
}

WORKSPACE(activation)
{
    return elements_bytes(arguments, 1, outputs[0]);
}

RUN(activation)
{
    const struct nn_activation *activation = shoal_op_context(call);
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct elements elements = {.forward = NULL};
    memcpy(&elements.forward, (const char *)loops + activation->forward, sizeof(elements.forward));
    return run_loop(call, arguments, 1, &elements, outputs[0]);
}

GRADIENT(activation)
{
    const struct nn_activation *activation = shoal_op_context(call);
    shoal_tensor *saved = activation->has_saved_result ? outputs[0] : arguments[0].as.tensor;
    const shoal_value values[] = {nn_tensor(output_gradients[0]), nn_tensor(saved)};
    input_gradients[0] = nn_call(activation->gradient, values, 2);
    return shoal_scope_error();
}

META(activation_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *saved = arguments[1].as.tensor;
    NN_TRY(nn_check_floating(saved, "saved"));
    NN_TRY(nn_check_dtype(gradient, "gradient", shoal_tensor_dtype(saved), "saved"));
    NN_TRY(nn_check_same_shape(gradient, "gradient", saved, "saved"));
    return shoal_op_output(call, shoal_tensor_shape(saved), shoal_tensor_n_dims(saved),
                           shoal_tensor_dtype(saved));
}

WORKSPACE(activation_backward)
{
    return elements_bytes(arguments, 2, outputs[0]);
}

RUN(activation_backward)
{
    const struct nn_activation *activation = shoal_op_context(call);
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct elements elements = {.forward = NULL};
    memcpy(&elements.backward, (const char *)loops + activation->backward, sizeof(elements.backward));
    return run_loop(call, arguments, 2, &elements, outputs[0]);
}
