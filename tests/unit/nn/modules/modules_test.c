/* SPDX-License-Identifier: MIT */
/*
 * Ready-made modules: what they compute, what they are named, which options they refuse, and that initial values depend
 * on seed and path alone.
 */
#include <stdio.h>

#include "shoal_nn/attention.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

static shoal_nn_gpt_options tiny(void)
{
    shoal_nn_gpt_options options = SHOAL_NN_GPT_OPTIONS_INIT;
    options.n_layers = 2;
    options.width = 12;
    options.n_heads = 3;
    options.context = 7;
    options.vocabulary = 17;
    options.seed = 5;
    return options;
}

static shoal_module *make_gpt(const shoal_nn_gpt_options *options)
{
    shoal_module *gpt = NULL;
    CHECK_OK(shoal_nn_gpt_create(options, &gpt));
    return gpt;
}

/* tokens [batch, length], any in 0 .. 16 */
static shoal_tensor *make_tokens(int64_t batch, int64_t length)
{
    shoal_tensor *tokens = shoal_empty(INTS(batch, length), 2, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tokens);
    for (int64_t i = 0; data && i < batch * length; i++) {
        data[i] = i * 5 % 17;
    }
    return tokens;
}

static shoal_tensor *call(shoal_module *module, shoal_tensor *first, shoal_tensor *position)
{
    shoal_tensor *inputs[] = {first, position};
    shoal_tensor *output = NULL;
    CHECK_OK(shoal_module_call(module, inputs, 2, &output, 1));
    return output;
}

static bool same(shoal_tensor *a, shoal_tensor *b)
{
    size_t bytes = (size_t)shoal_tensor_count(a) * shoal_dtype_bytes(shoal_tensor_dtype(a));
    return shoal_tensor_count(a) == shoal_tensor_count(b) && memcmp(shoal_data(a), shoal_data(b), bytes) == 0;
}

/* Names ------------------------------------------------------------------------------------------------- */

struct names {
    char text[4096];
};

static shoal_status add_name(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct names *names = context;
    size_t length = strlen(names->text);
    const int64_t *shape = shoal_tensor_shape(entry->tensor);
    (void)next;
    (void)snprintf(names->text + length, sizeof(names->text) - length,
                   shoal_tensor_n_dims(entry->tensor) == 2 ? "%s %d,%d\n" : "%s %d\n", entry->path,
                   (int)shape[0], shoal_tensor_n_dims(entry->tensor) == 2 ? (int)shape[1] : 0);
    CHECK(shoal_requires_grad(entry->tensor));
    return SHOAL_OK;
}

static struct names names_of(shoal_module *module)
{
    struct names names = {{0}};
    CHECK_OK(shoal_module_walk(module, SHOAL_WALK_PARAMETERS, add_name, &names));
    return names;
}

#define BLOCK(i)                                     \
    "transformer.h." i ".ln_1.weight 12\n"           \
    "transformer.h." i ".ln_1.bias 12\n"             \
    "transformer.h." i ".attn.c_attn.weight 12,36\n" \
    "transformer.h." i ".attn.c_attn.bias 36\n"      \
    "transformer.h." i ".attn.c_proj.weight 12,12\n" \
    "transformer.h." i ".attn.c_proj.bias 12\n"      \
    "transformer.h." i ".ln_2.weight 12\n"           \
    "transformer.h." i ".ln_2.bias 12\n"             \
    "transformer.h." i ".mlp.c_fc.weight 12,48\n"    \
    "transformer.h." i ".mlp.c_fc.bias 48\n"         \
    "transformer.h." i ".mlp.c_proj.weight 48,12\n"  \
    "transformer.h." i ".mlp.c_proj.bias 12\n"
#define GPT                                                                              \
    "transformer.wte.weight 17,12\n"                                                     \
    "transformer.wpe.weight 7,12\n" BLOCK("0") BLOCK("1") "transformer.ln_f.weight 12\n" \
                                                          "transformer.ln_f.bias 12\n"

NN_TEST(a_gpt_has_the_names_of_gpt2)
{
    shoal_nn_gpt_options options = tiny();
    shoal_module *gpt = make_gpt(&options);
    CHECK_STRING(names_of(gpt).text, GPT);
    CHECK(shoal_nn_gpt_block(gpt, 1) == shoal_module_child(gpt, "transformer.h.1"));
    CHECK(shoal_nn_gpt_block(gpt, 2) == NULL);
    CHECK(shoal_nn_gpt_block(gpt, -1) == NULL);
    CHECK(shoal_nn_gpt_block(shoal_nn_gpt_block(gpt, 0), 0) == NULL);
    CHECK(shoal_nn_gpt_block(NULL, 0) == NULL);
    shoal_module_unref(gpt);
    options.is_untied = true;
    gpt = make_gpt(&options);
    CHECK_STRING(names_of(gpt).text, GPT "lm_head.weight 17,12\n");
    shoal_module_unref(gpt);
}

/* Options ----------------------------------------------------------------------------------------------- */

/* Sets a field of options, and expects that creating refuses with that text. */
#define REFUSED(kind, good, field, value, words)                                      \
    do {                                                                              \
        shoal_nn_##good##_options options_ = good();                                  \
        shoal_module *none_ = NULL;                                                   \
        options_.field = (value);                                                     \
        CHECK_STATUS(shoal_nn_##kind##_create(&options_, &none_), SHOAL_ERR_INVALID); \
        CHECK(none_ == NULL);                                                         \
        CHECK_STRING(shoal_error_text(), "nn_" #kind "_create: " words);              \
    } while (0)

static shoal_nn_gpt_options gpt(void)
{
    return tiny();
}

static shoal_nn_block_options block(void)
{
    shoal_nn_block_options options = SHOAL_NN_BLOCK_OPTIONS_INIT;
    options.width = 12;
    options.n_heads = 3;
    return options;
}

static shoal_nn_linear_options linear(void)
{
    shoal_nn_linear_options options = SHOAL_NN_LINEAR_OPTIONS_INIT;
    options.n_in = 3;
    options.n_out = 4;
    return options;
}

static shoal_nn_embedding_options embedding(void)
{
    shoal_nn_embedding_options options = SHOAL_NN_EMBEDDING_OPTIONS_INIT;
    options.n_rows = 3;
    options.width = 4;
    return options;
}

static shoal_nn_norm_options norm(void)
{
    shoal_nn_norm_options options = SHOAL_NN_NORM_OPTIONS_INIT;
    options.width = 4;
    return options;
}

NN_TEST(a_gpt_refuses_wrong_options)
{
    REFUSED(gpt, gpt, n_layers, 0, "n_layers: 0 is not at least 1");
    REFUSED(gpt, gpt, width, -12, "width: -12 is not at least 1");
    REFUSED(gpt, gpt, n_heads, 0, "n_heads: 0 is not at least 1");
    REFUSED(gpt, gpt, n_heads, 5, "n_heads: 5 does not divide the width 12");
    REFUSED(gpt, gpt, context, 0, "context: 0 is not at least 1");
    REFUSED(gpt, gpt, vocabulary, 0, "vocabulary: 0 is not at least 1");
    REFUSED(gpt, gpt, vocabulary, INT64_MAX, "vocabulary: 9223372036854775807 is above 281474976710656");
    REFUSED(gpt, gpt, dropout, 1, "dropout: 1 is not at least 0 and below 1");
    REFUSED(gpt, gpt, dropout, (double)NAN, "dropout: nan is not at least 0 and below 1");
    REFUSED(gpt, gpt, eps, -1, "eps: -1 is not at least 0 and below inf");
    REFUSED(gpt, gpt, dtype, SHOAL_I32, "dtype: 7 (i32) is not f64, f32, f16 or bf16");
    REFUSED(gpt, gpt, dtype, (shoal_dtype)0,
            "dtype is 0, perhaps forgotten; begin with SHOAL_NN_GPT_OPTIONS_INIT (f32)");
    REFUSED(gpt, gpt, device, (shoal_device)9, "device: 9 is not a device");
    CHECK_STATUS(shoal_nn_gpt_create(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "nn_gpt_create: module_out is NULL");
}

NN_TEST(parts_refuse_wrong_options)
{
    shoal_module *none = NULL;
    REFUSED(block, block, n_heads, 5, "n_heads: 5 does not divide the width 12");
    REFUSED(block, block, hidden, -1, "hidden: -1 is not at least 1");
    REFUSED(block, block, eps, -1, "eps: -1 is not at least 0 and below inf");
    REFUSED(block, block, residual_std, -1, "residual_std: -1 is not at least 0 and below inf");
    REFUSED(self_attention, block, n_heads, 0, "n_heads: 0 is not at least 1");
    REFUSED(self_attention, block, dropout, -0.1, "dropout: -0.1 is not at least 0 and below 1");
    REFUSED(mlp, block, width, 0, "width: 0 is not at least 1");
    REFUSED(mlp, block, hidden, -1, "hidden: -1 is not at least 1");
    REFUSED(linear, linear, n_in, 0, "n_in: 0 is not at least 1");
    REFUSED(linear, linear, n_out, 0, "n_out: 0 is not at least 1");
    REFUSED(linear, linear, std, -1, "std: -1 is not at least 0 and below inf");
    REFUSED(linear, linear, struct_size, 8,
            "options: struct_size 8 is not at least 16: it is the sizeof of the struct, which the macro that "
            "ends in "
            "_INIT sets");
    REFUSED(embedding, embedding, n_rows, 0, "n_rows: 0 is not at least 1");
    REFUSED(embedding, embedding, width, 0, "width: 0 is not at least 1");
    REFUSED(layer_norm, norm, width, 0, "width: 0 is not at least 1");
    REFUSED(layer_norm, norm, eps, -1, "eps: -1 is not at least 0 and below inf");
    REFUSED(rms_norm, norm, width, 0, "width: 0 is not at least 1");
    CHECK_STATUS(shoal_nn_linear_create(NULL, &none), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "nn_linear_create: options is NULL");
}

/* Zeros and a size, as for options whose zeros are their defaults. */
#define REFUSED_ZEROS(kind, type, init)                                                                 \
    do {                                                                                                \
        const shoal_nn_##type##_options options_ = {.struct_size = sizeof(options_)};                   \
        shoal_module *none_ = NULL;                                                                     \
        CHECK_STATUS(shoal_nn_##kind##_create(&options_, &none_), SHOAL_ERR_INVALID);                   \
        CHECK(none_ == NULL);                                                                           \
        CHECK_STRING(shoal_error_text(),                                                                \
                     "nn_" #kind "_create: dtype is 0, perhaps forgotten; begin with " #init " (f32)"); \
    } while (0)

NN_TEST(zeroed_options_are_told_how_to_begin)
{
    REFUSED_ZEROS(gpt, gpt, SHOAL_NN_GPT_OPTIONS_INIT);
    REFUSED_ZEROS(block, block, SHOAL_NN_BLOCK_OPTIONS_INIT);
    REFUSED_ZEROS(self_attention, block, SHOAL_NN_BLOCK_OPTIONS_INIT);
    REFUSED_ZEROS(mlp, block, SHOAL_NN_BLOCK_OPTIONS_INIT);
    REFUSED_ZEROS(linear, linear, SHOAL_NN_LINEAR_OPTIONS_INIT);
    REFUSED_ZEROS(embedding, embedding, SHOAL_NN_EMBEDDING_OPTIONS_INIT);
    REFUSED_ZEROS(layer_norm, norm, SHOAL_NN_NORM_OPTIONS_INIT);
    REFUSED_ZEROS(rms_norm, norm, SHOAL_NN_NORM_OPTIONS_INIT);
}

/* Calls ------------------------------------------------------------------------------------------------- */

NN_TEST(a_gpt_gives_logits_and_gradients)
{
    shoal_nn_gpt_options options = tiny();
    shoal_module *model = make_gpt(&options);
    shoal_tensor *tokens = make_tokens(2, 5);
    shoal_tensor *logits = call(model, tokens, NULL);
    CHECK_INT(shoal_tensor_n_dims(logits), 3);
    CHECK_INT(shoal_tensor_shape(logits)[0], 2);
    CHECK_INT(shoal_tensor_shape(logits)[1], 5);
    CHECK_INT(shoal_tensor_shape(logits)[2], 17);
    CHECK(same(logits, shoal_module_call_one(model, tokens)));
    CHECK_OK(shoal_backward(shoal_nn_cross_entropy(logits, tokens), NULL));
    size_t n = 0;
    shoal_tensor *const *parameters = shoal_module_parameters(model, &n);
    CHECK_INT(n, 28);
    for (size_t i = 0; parameters && i < n; i++) {
        CHECK(shoal_grad(parameters[i]) != NULL);
    }
    shoal_module_unref(model);
}

NN_TEST(a_gpt_refuses_wrong_inputs)
{
    shoal_nn_gpt_options options = tiny();
    shoal_module *model = make_gpt(&options);
    const struct {
        shoal_tensor *tokens;
        const char *words;
    } rows[] = {
        {make_tokens(1, 8), "tokens have 8 positions, more than the context of 7"},
        {shoal_reshape(make_tokens(2, 3), INTS(6), 1), "tokens have 1 dimensions, not 2: batch, positions"},
        {NULL, "gpt: input 0 is NULL"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        shoal_tensor *inputs[] = {rows[i].tokens, NULL};
        shoal_tensor *output = NULL;
        REQUIRE_OK(shoal_scope_begin());
        CHECK_STATUS(shoal_module_call(model, inputs, 2, &output, 1), SHOAL_ERR_INVALID);
        CHECK(strstr(shoal_error_text(), rows[i].words) != NULL);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    shoal_module_unref(model);
}

/* What modules compute, said once more in operations: the same bits --------------------------------------- */

static shoal_tensor *position_of(int64_t seed, int64_t step, int64_t sample)
{
    return make_indices(INTS(seed, step, sample), INTS(3), 1, SHOAL_I64);
}

static shoal_tensor *project(shoal_module *module, const char *name, shoal_tensor *x)
{
    char weight[64];
    char bias[64];
    (void)snprintf(weight, sizeof(weight), "%s.weight", name);
    (void)snprintf(bias, sizeof(bias), "%s.bias", name);
    return shoal_nn_projection(x, shoal_module_parameter(module, weight),
                               shoal_module_parameter(module, bias));
}

static shoal_tensor *drop(shoal_tensor *x, shoal_tensor *position, const char *name, double p)
{
    return position ? shoal_nn_dropout(x, position, shoal_nn_stream(name), p) : x;
}

/* x [2, 5, 12] */
static void check_attention(shoal_module *module, shoal_tensor *x, shoal_tensor *position, bool is_causal)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.is_causal = is_causal;
    options.dropout = position ? 0.3 : 0;
    options.position = position;
    options.stream = shoal_nn_stream("m.2.attn_dropout");
    shoal_tensor *qkv = shoal_view(project(module, "c_attn", x), INTS(2, 5, 3, 3, 4), 5);
    shoal_tensor *mixed = shoal_reshape(shoal_nn_attention_packed(qkv, &options), INTS(2, 5, 12), 3);
    shoal_tensor *expected = drop(project(module, "c_proj", mixed), position, "m.2.resid_dropout", 0.3);
    CHECK(same(call(module, x, position), expected));
}

static void check_parts(shoal_dtype dtype, bool is_causal)
{
    struct test_random random = test_random_begin(3);
    shoal_tensor *x = make_random(&random, INTS(2, 5, 12), 3, dtype);
    shoal_tensor *positions[] = {NULL, position_of(4, 5, 6)};
    shoal_nn_block_options options = block();
    shoal_module *attention = NULL;
    shoal_module *mlp = NULL;
    options.dropout = 0.3;
    options.path = "m.2";
    options.is_causal = is_causal;
    options.hidden = 20;
    options.std = 0.5;
    options.dtype = dtype;
    REQUIRE_OK(shoal_nn_self_attention_create(&options, &attention));
    REQUIRE_OK(shoal_nn_mlp_create(&options, &mlp));
    for (size_t i = 0; i < 2; i++) {
        check_attention(attention, x, positions[i], is_causal);
        shoal_tensor *hidden = shoal_nn_gelu_tanh(project(mlp, "c_fc", x));
        shoal_tensor *expected = drop(project(mlp, "c_proj", hidden), positions[i], "m.2.dropout", 0.3);
        CHECK(same(call(mlp, x, positions[i]), expected));
    }
    CHECK_INT(shoal_tensor_shape(shoal_module_parameter(mlp, "c_fc.weight"))[1], 20);
    shoal_module_unref(attention);
    shoal_module_unref(mlp);
}

NN_TEST(attention_and_mlp_are_their_operations)
{
    check_parts(SHOAL_F32, true);
    check_parts(SHOAL_F32, false);
    check_parts(SHOAL_F64, true);
    check_parts(SHOAL_BF16, true);
    check_parts(SHOAL_F16, true);
}

/* A GPT in operations and calls of its parts, whose dropouts have streams by their paths in the whole. */
static shoal_tensor *compute_gpt(shoal_module *model, shoal_tensor *tokens, shoal_tensor *position)
{
    shoal_tensor *wte = shoal_module_parameter(model, "transformer.wte.weight");
    shoal_tensor *wpe = shoal_module_parameter(model, "transformer.wpe.weight");
    shoal_tensor *x = shoal_add(shoal_nn_embedding(tokens, wte), shoal_narrow(wpe, 0, 0, 5));
    x = drop(x, position, "transformer.drop", 0.25);
    for (int64_t i = 0; i < 2; i++) {
        shoal_module *at = shoal_nn_gpt_block(model, i);
        x = shoal_add(x, call(shoal_module_child(at, "attn"),
                              shoal_module_call_one(shoal_module_child(at, "ln_1"), x), position));
        x = shoal_add(x, call(shoal_module_child(at, "mlp"),
                              shoal_module_call_one(shoal_module_child(at, "ln_2"), x), position));
    }
    x = shoal_nn_layer_norm(x, shoal_module_parameter(model, "transformer.ln_f.weight"),
                            shoal_module_parameter(model, "transformer.ln_f.bias"), 1e-5);
    return shoal_nn_linear(x, wte, NULL);
}

NN_TEST(a_gpt_is_its_parts)
{
    shoal_nn_gpt_options options = tiny();
    shoal_nn_block_options alone = block();
    shoal_module *attention = NULL;
    shoal_tensor *position = position_of(1, 2, 3);
    options.dropout = 0.25;
    shoal_module *model = make_gpt(&options);
    shoal_tensor *tokens = make_tokens(2, 5);
    shoal_tensor *dropped = call(model, tokens, position);
    CHECK(same(dropped, compute_gpt(model, tokens, position)));
    CHECK(same(call(model, tokens, NULL), compute_gpt(model, tokens, NULL)));
    CHECK(!same(dropped, call(model, tokens, NULL)));
    /* The same streams as in a module that was told its path. */
    alone.dropout = 0.25;
    alone.path = "transformer.h.1.attn";
    REQUIRE_OK(shoal_nn_self_attention_create(&alone, &attention));
    shoal_module *inner = shoal_module_child(model, "transformer.h.1.attn");
    const char *const names[] = {"c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"};
    for (size_t i = 0; i < 4; i++) {
        CHECK_OK(shoal_module_set_parameter(attention, names[i], shoal_module_parameter(inner, names[i])));
    }
    struct test_random random = test_random_begin(3);
    shoal_tensor *x = make_random(&random, INTS(2, 5, 12), 3, SHOAL_F32);
    CHECK(same(call(attention, x, position), call(inner, x, position)));
    shoal_module_unref(attention);
    shoal_module_unref(model);
}

NN_TEST(the_transformer_alone_and_an_untied_head)
{
    shoal_nn_gpt_options options = tiny();
    options.is_untied = true;
    shoal_module *model = make_gpt(&options);
    shoal_tensor *tokens = make_tokens(2, 5);
    shoal_tensor *hidden = call(shoal_module_child(model, "transformer"), tokens, NULL);
    CHECK_INT(shoal_tensor_shape(hidden)[2], 12);
    CHECK(same(call(model, tokens, NULL),
               shoal_nn_linear(hidden, shoal_module_parameter(model, "lm_head.weight"), NULL)));
    shoal_module_unref(model);
}

NN_TEST(layers_are_their_operations)
{
    struct test_random random = test_random_begin(3);
    shoal_tensor *x = make_random(&random, INTS(2, 4), 2, SHOAL_F32);
    shoal_nn_linear_options wide = linear();
    shoal_nn_norm_options normal = norm();
    const shoal_nn_embedding_options rows = embedding();
    shoal_module *made[5] = {NULL};
    wide.n_in = 4;
    wide.n_out = 6;
    REQUIRE_OK(shoal_nn_linear_create(&wide, &made[0]));
    wide.is_projection = true;
    wide.has_no_bias = true;
    REQUIRE_OK(shoal_nn_linear_create(&wide, &made[1]));
    REQUIRE_OK(shoal_nn_rms_norm_create(&normal, &made[2]));
    normal.has_no_bias = true;
    normal.eps = 0.5;
    REQUIRE_OK(shoal_nn_layer_norm_create(&normal, &made[3]));
    REQUIRE_OK(shoal_nn_embedding_create(&rows, &made[4]));
    CHECK(
        same(shoal_module_call_one(made[0], x), shoal_nn_linear(x, shoal_module_parameter(made[0], "weight"),
                                                                shoal_module_parameter(made[0], "bias"))));
    CHECK(same(shoal_module_call_one(made[1], x),
               shoal_nn_projection(x, shoal_module_parameter(made[1], "weight"), NULL)));
    CHECK(same(shoal_module_call_one(made[2], x),
               shoal_nn_rms_norm(x, shoal_module_parameter(made[2], "weight"), 1e-5)));
    CHECK(same(shoal_module_call_one(made[3], x),
               shoal_nn_layer_norm(x, shoal_module_parameter(made[3], "weight"), NULL, 0.5)));
    shoal_tensor *indices = make_indices(INTS(2, 0, 1), INTS(3), 1, SHOAL_I32);
    CHECK(same(shoal_module_call_one(made[4], indices),
               shoal_nn_embedding(indices, shoal_module_parameter(made[4], "weight"))));
    CHECK_STRING(names_of(made[1]).text, "weight 4,6\n");
    CHECK_STRING(names_of(made[2]).text, "weight 4\n");
    for (size_t i = 0; i < 5; i++) {
        shoal_module_unref(made[i]);
    }
}

/* Initial values ---------------------------------------------------------------------------------------- */

/* What a normal distribution of that path gives. */
static bool is_drawn(shoal_module *module, const char *path, const shoal_nn_distribution *distribution,
                     uint64_t seed)
{
    shoal_tensor *parameter = shoal_module_parameter(module, path);
    shoal_tensor *expected = shoal_empty(shoal_tensor_shape(parameter), shoal_tensor_n_dims(parameter),
                                         shoal_tensor_dtype(parameter));
    const shoal_nn_draws draws = {.seed = seed, .stream = shoal_nn_stream(path)};
    CHECK_OK(shoal_nn_fill(&draws, distribution, expected));
    return same(parameter, expected);
}

NN_TEST(initial_values_are_those_of_paths)
{
    const shoal_nn_distribution weights = SHOAL_NN_NORMAL(0, 0.02);
    const shoal_nn_distribution residual = SHOAL_NN_NORMAL(0, 0.02 / sqrt(4.0));
    const shoal_nn_distribution zeros = SHOAL_NN_UNIFORM(0, 0);
    const shoal_nn_distribution ones = SHOAL_NN_UNIFORM(1, 1);
    shoal_nn_gpt_options options = tiny();
    options.is_untied = true;
    shoal_module *model = make_gpt(&options);
    CHECK(is_drawn(model, "transformer.wte.weight", &weights, 5));
    CHECK(is_drawn(model, "transformer.wpe.weight", &weights, 5));
    CHECK(is_drawn(model, "lm_head.weight", &weights, 5));
    CHECK(is_drawn(model, "transformer.h.1.attn.c_attn.weight", &weights, 5));
    CHECK(is_drawn(model, "transformer.h.1.attn.c_proj.weight", &residual, 5));
    CHECK(is_drawn(model, "transformer.h.0.mlp.c_proj.weight", &residual, 5));
    CHECK(is_drawn(model, "transformer.h.0.mlp.c_proj.bias", &zeros, 5));
    CHECK(is_drawn(model, "transformer.h.0.ln_2.weight", &ones, 5));
    CHECK_OK(shoal_nn_initialize_modules(model, 6));
    CHECK(is_drawn(model, "transformer.wte.weight", &weights, 6));
    shoal_module_unref(model);
}

NN_TEST(linear_layers_begin_as_in_pytorch)
{
    const shoal_nn_distribution uniform = SHOAL_NN_UNIFORM(-1 / sqrt(3.0), 1 / sqrt(3.0));
    shoal_nn_linear_options options = linear();
    shoal_module *layer = NULL;
    options.seed = 9;
    REQUIRE_OK(shoal_nn_linear_create(&options, &layer));
    CHECK(is_drawn(layer, "weight", &uniform, 9));
    CHECK(is_drawn(layer, "bias", &uniform, 9));
    shoal_module_unref(layer);
}

NN_TEST(other_parameters_keep_their_values)
{
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    const shoal_nn_linear_options options = linear();
    shoal_module *root = NULL;
    shoal_module *layer = NULL;
    definition.type = "root";
    REQUIRE_OK(shoal_module_create(&definition, &root));
    CHECK_OK(shoal_module_add_parameter(root, "weight", shoal_full(INTS(2), 1, 3, SHOAL_F32)));
    CHECK_STATUS(shoal_nn_initialize_modules(root, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_initialize_modules(NULL, 1), SHOAL_ERR_INVALID);
    REQUIRE_OK(shoal_nn_linear_create(&options, &layer));
    CHECK_OK(shoal_module_add_child(root, "layer", layer));
    CHECK_OK(shoal_nn_initialize_modules(root, 1));
    CHECK_DOUBLE(doubles_of(shoal_module_parameter(root, "weight"))[1], 3);
    const shoal_nn_distribution uniform = SHOAL_NN_UNIFORM(-1 / sqrt(3.0), 1 / sqrt(3.0));
    CHECK(is_drawn(root, "layer.weight", &uniform, 1));
    shoal_module_unref(layer);
    shoal_module_unref(root);
}

NN_TEST(layers_take_one_input)
{
    const shoal_nn_linear_options options = linear();
    shoal_tensor *input = shoal_full(INTS(2, 3), 2, 1, SHOAL_F32);
    shoal_tensor *inputs[] = {input, input};
    shoal_tensor *output = NULL;
    shoal_module *layer = NULL;
    REQUIRE_OK(shoal_nn_linear_create(&options, &layer));
    for (size_t n_inputs = 0; n_inputs <= 2; n_inputs += 2) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK_STATUS(shoal_module_call(layer, inputs, n_inputs, &output, 1), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("but linear takes 1 inputs");
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    shoal_module_unref(layer);
}

NN_TEST(a_model_on_the_meta_device_has_shapes_only)
{
    shoal_nn_gpt_options options = tiny();
    options.device = SHOAL_META;
    shoal_module *model = make_gpt(&options);
    CHECK_INT(shoal_tensor_device(shoal_module_parameter(model, "transformer.wte.weight")), SHOAL_META);
    CHECK(shoal_nn_initialize_modules(model, 1) != SHOAL_OK);
    shoal_module_unref(model);
}

/* Memory ------------------------------------------------------------------------------------------------ */

static shoal_status make_and_free(void *context)
{
    shoal_module *model = NULL;
    shoal_status status = shoal_nn_gpt_create(context, &model);
    CHECK((model != NULL) == (status == SHOAL_OK));
    shoal_module_unref(model);
    return status;
}

/* In no scope: one keeps blocks for the next tensors. */
TEST(creating_without_memory_leaves_nothing)
{
    begin_nn();
    shoal_nn_gpt_options options = tiny();
    options.n_layers = 1;
    options.is_untied = true;
    CHECK(test_sweep_allocations(make_and_free, &options) > 0);
}
