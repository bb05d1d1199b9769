/* SPDX-License-Identifier: MIT */
/* Functions of each element: one set of functions for all, told apart by the op's context. */
#include <string.h>

#include "functions.h"
#include "pool.h"
#include "try.h"
#include "values.h"

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

struct elements {
    nn_forward_loop forward;   /* of one argument, */
    nn_backward_loop backward; /* or of two */
    const char *first;
    const char *second;
    char *result;
    size_t bytes; /* of an element */
};

static void run_elements(void *context, size_t first, size_t end)
{
    const struct elements *elements = context;
    size_t offset = first * elements->bytes;
    if (elements->forward) {
        elements->forward(end - first, elements->first + offset, elements->result + offset);
    } else {
        elements->backward(end - first, elements->first + offset, elements->second + offset,
                           elements->result + offset);
    }
}

RUN(activation)
{
    const struct nn_activation *activation = shoal_op_context(call);
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values self = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &self));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    struct elements elements = {.first = self.data,
                                .result = result.data,
                                .bytes = shoal_dtype_bytes(nn_real(shoal_tensor_dtype(outputs[0])))};
    memcpy(&elements.forward, (const char *)loops + activation->forward, sizeof(elements.forward));
    nn_parallel_ranges(result.count, ELEMENT_COST, run_elements, &elements);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
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

RUN(activation_backward)
{
    const struct nn_activation *activation = shoal_op_context(call);
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values gradient = {.data = NULL};
    struct nn_values saved = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load(call, arguments[1].as.tensor, &saved));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    struct elements elements = {.first = gradient.data,
                                .second = saved.data,
                                .result = result.data,
                                .bytes = shoal_dtype_bytes(nn_real(shoal_tensor_dtype(outputs[0])))};
    memcpy(&elements.backward, (const char *)loops + activation->backward, sizeof(elements.backward));
    nn_parallel_ranges(result.count, ELEMENT_COST, run_elements, &elements);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
