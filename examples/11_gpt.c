/* SPDX-License-Identifier: MIT */
/*
 * A small GPT in plain C, trained by several ranks: token and position embeddings, blocks of causal attention and an
 * MLP with GELU, layer norms, and an output layer that uses the token embedding again (a tied embedding). Forward pass,
 * backward pass and AdamW are loops, as in a trainer like llm.c. Each rank has its own sequences, and keeps only its
 * part of every weight, gradient and moment.
 *
 *     shoal run --no-label -n 3 ./11_gpt [STEPS [FROM [TO]]]        STEPS 0, or none: for some seconds
 *
 * FROM and TO are checkpoints (FROM may be "-": none). They hold whole weights and moments, so any number of ranks can
 * continue from one. Afterwards rank 0 repeats the same steps alone, with the parts of all ranks one after the other,
 * and ends with the same bits.
 *
 * The first half of the file, the model, knows nothing of ranks: it gets pointers to weights, and adds to gradients.
 * All calls of the library are in the second half, from shard_model on.
 */
#include <math.h>
#include <shoal/shoal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_BLOCKS 3
#define WIDTH 48 /* of the residual stream */
#define N_HEADS 4
#define HEAD 12 /* WIDTH / N_HEADS */
#define HIDDEN (4 * WIDTH)
#define N_TOKENS 96   /* the printable characters, and the end of a line */
#define LENGTH 32     /* of a sequence */
#define N_SEQUENCES 4 /* in a rank's part of a batch */
#define ROWS (N_SEQUENCES * LENGTH)
#define ROOM (WIDTH * HIDDEN) /* for the largest parameter */
#define SECONDS 2.5
#define REPORT_SECONDS 0.5

static const char text[] =
    "This is the house that Jack built.\n"
    "This is the malt that lay in the house that Jack built.\n"
    "This is the rat that ate the malt that lay in the house that Jack built.\n"
    "This is the cat that killed the rat that ate the malt that lay in the house that Jack built.\n"
    "This is the dog that worried the cat that killed the rat that ate the malt that lay in the house\n"
    "that Jack built. This is the cow with the crumpled horn that tossed the dog that worried the cat\n"
    "that killed the rat that ate the malt that lay in the house that Jack built.\n";

/* Parameters -------------------------------------------------------------------------------------------- */

/*
 * Unit 0 has the parameters that both ends of the model use: the first and the last layer both read the token
 * embedding. Units 1 to N_BLOCKS are the blocks. Parameters are numbered unit by unit.
 */
enum {
    WTE, /* token embedding */
    WPE, /* position embedding */
    LNF_W,
    LNF_B,
    N_OF_ENDS
};

enum {
    LN1_W,
    LN1_B,
    QKV_W,
    QKV_B,
    MIX_W,
    MIX_B,
    LN2_W,
    LN2_B,
    UP_W,
    UP_B,
    DOWN_W,
    DOWN_B,
    N_OF_BLOCK
};

#define ENDS 0
#define N_UNITS (1 + N_BLOCKS)
#define N_PARAMS (N_OF_ENDS + N_BLOCKS * N_OF_BLOCK)

/* Matrices of linear layers are [inputs, outputs]. */
struct param {
    const char *name;
    int rows;
    int columns; /* 0: one dimension */
    float start; /* the value it begins with, */
    float range; /* plus or minus a number up to this */
};

static const struct param params_of_ends[N_OF_ENDS] = {{"wte", N_TOKENS, WIDTH, 0.0F, 0.1F},
                                                       {"wpe", LENGTH, WIDTH, 0.0F, 0.05F},
                                                       {"lnf.w", WIDTH, 0, 1.0F, 0.0F},
                                                       {"lnf.b", WIDTH, 0, 0.0F, 0.0F}};

static const struct param params_of_block[N_OF_BLOCK] = {
    {"ln1.w", WIDTH, 0, 1.0F, 0.0F},         {"ln1.b", WIDTH, 0, 0.0F, 0.0F},
    {"qkv.w", WIDTH, 3 * WIDTH, 0.0F, 0.2F}, {"qkv.b", 3 * WIDTH, 0, 0.0F, 0.0F},
    {"mix.w", WIDTH, WIDTH, 0.0F, 0.1F},     {"mix.b", WIDTH, 0, 0.0F, 0.0F},
    {"ln2.w", WIDTH, 0, 1.0F, 0.0F},         {"ln2.b", WIDTH, 0, 0.0F, 0.0F},
    {"up.w", WIDTH, HIDDEN, 0.0F, 0.2F},     {"up.b", HIDDEN, 0, 0.0F, 0.0F},
    {"down.w", HIDDEN, WIDTH, 0.0F, 0.05F},  {"down.b", WIDTH, 0, 0.0F, 0.0F}};

static int unit_of(int id)
{
    return id < N_OF_ENDS ? ENDS : 1 + (id - N_OF_ENDS) / N_OF_BLOCK;
}

static int first_of(int unit)
{
    return unit == ENDS ? 0 : N_OF_ENDS + (unit - 1) * N_OF_BLOCK;
}

static const struct param *param_of(int id)
{
    return id < N_OF_ENDS ? &params_of_ends[id] : &params_of_block[(id - N_OF_ENDS) % N_OF_BLOCK];
}

static size_t count_of(int id)
{
    const struct param *param = param_of(id);
    return (size_t)param->rows * (size_t)(param->columns > 0 ? param->columns : 1);
}

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / 8388608.0F - 1.0F;
}

static void start(int id, float *values)
{
    uint32_t seed = (uint32_t)id * 7919U + 1U;
    for (size_t i = 0; i < count_of(id); i++) {
        values[i] = param_of(id)->start + param_of(id)->range * draw(&seed);
    }
}

/* Where a unit's weights are, and its gradients, by the numbers above. */
struct unit {
    const float *w[N_OF_BLOCK];
    float *g[N_OF_BLOCK]; /* kernels add to these */
};

/* Kernels ----------------------------------------------------------------------------------------------- */

/* Of all rows: out = x w + b. */
static void linear_forward(float *out, const float *x, const float *w, const float *b, int n_in, int n_out)
{
    for (int row = 0; row < ROWS; row++) {
        float *to = out + row * n_out;
        memcpy(to, b, (size_t)n_out * sizeof *to);
        for (int i = 0; i < n_in; i++) {
            float value = x[row * n_in + i];
            for (int o = 0; o < n_out; o++) {
                to[o] += value * w[i * n_out + o];
            }
        }
    }
}

/* Writes the gradient of x; adds to those of w and b. */
static void linear_backward(float *dx, float *dw, float *db, const float *dout, const float *x,
                            const float *w, int n_in, int n_out)
{
    for (int row = 0; row < ROWS; row++) {
        const float *from = dout + row * n_out;
        for (int o = 0; o < n_out; o++) {
            db[o] += from[o];
        }
        for (int i = 0; i < n_in; i++) {
            float value = x[row * n_in + i];
            float sum = 0.0F;
            for (int o = 0; o < n_out; o++) {
                sum += from[o] * w[i * n_out + o];
                dw[i * n_out + o] += value * from[o];
            }
            dx[row * n_in + i] = sum;
        }
    }
}

/* A layer norm, and what its backward pass needs. */
struct norm {
    float out[ROWS * WIDTH];
    float mean[ROWS];
    float scale[ROWS]; /* one over the standard deviation */
};

static void norm_forward(struct norm *norm, const float *x, const float *w, const float *b)
{
    for (int row = 0; row < ROWS; row++) {
        const float *from = x + row * WIDTH;
        float mean = 0.0F;
        float variance = 0.0F;
        for (int i = 0; i < WIDTH; i++) {
            mean += from[i] / WIDTH;
        }
        for (int i = 0; i < WIDTH; i++) {
            variance += (from[i] - mean) * (from[i] - mean) / WIDTH;
        }
        norm->mean[row] = mean;
        norm->scale[row] = 1.0F / sqrtf(variance + 1e-5F);
        for (int i = 0; i < WIDTH; i++) {
            norm->out[row * WIDTH + i] = (from[i] - mean) * norm->scale[row] * w[i] + b[i];
        }
    }
}

/* Adds to all three gradients: that of x also comes along the residual stream. */
static void norm_backward(float *dx, float *dw, float *db, const float *dout, const struct norm *norm,
                          const float *x, const float *w)
{
    for (int row = 0; row < ROWS; row++) {
        const float *d = dout + row * WIDTH;
        float mean_d = 0.0F;  /* of the gradient of what was normalized, */
        float mean_dn = 0.0F; /* and of it times that */
        for (int i = 0; i < WIDTH; i++) {
            float normal = (x[row * WIDTH + i] - norm->mean[row]) * norm->scale[row];
            dw[i] += d[i] * normal;
            db[i] += d[i];
            mean_d += d[i] * w[i] / WIDTH;
            mean_dn += d[i] * w[i] * normal / WIDTH;
        }
        for (int i = 0; i < WIDTH; i++) {
            float normal = (x[row * WIDTH + i] - norm->mean[row]) * norm->scale[row];
            dx[row * WIDTH + i] += (d[i] * w[i] - mean_d - normal * mean_dn) * norm->scale[row];
        }
    }
}

/* Turns n numbers into their softmax. */
static void soften(float *values, int n)
{
    float largest = values[0];
    float sum = 0.0F;
    for (int i = 1; i < n; i++) {
        largest = values[i] > largest ? values[i] : largest;
    }
    for (int i = 0; i < n; i++) {
        values[i] = expf(values[i] - largest);
        sum += values[i];
    }
    for (int i = 0; i < n; i++) {
        values[i] /= sum;
    }
}

/* Rows of `qkv` are queries, keys and values of all heads. Position t of a sequence looks at positions 0 to t. */
static void attention_forward(float *out, float *weights, const float *qkv)
{
    for (int at = 0; at < ROWS * N_HEADS; at++) {
        int row = at / N_HEADS;
        int head = at % N_HEADS;
        int first = row / LENGTH * LENGTH; /* row of the sequence */
        int n = row - first + 1;
        const float *q = qkv + row * 3 * WIDTH + head * HEAD;
        float *weight = weights + at * LENGTH;
        float *to = out + row * WIDTH + head * HEAD;
        for (int t = 0; t < n; t++) {
            const float *k = qkv + (first + t) * 3 * WIDTH + WIDTH + head * HEAD;
            float score = 0.0F;
            for (int i = 0; i < HEAD; i++) {
                score += q[i] * k[i];
            }
            weight[t] = score / sqrtf(HEAD);
        }
        soften(weight, n);
        memset(to, 0, HEAD * sizeof *to);
        for (int t = 0; t < n; t++) {
            const float *v = qkv + (first + t) * 3 * WIDTH + 2 * WIDTH + head * HEAD;
            for (int i = 0; i < HEAD; i++) {
                to[i] += weight[t] * v[i];
            }
        }
    }
}

static void attention_backward(float *dqkv, const float *dout, const float *weights, const float *qkv)
{
    memset(dqkv, 0, sizeof(float) * ROWS * 3 * WIDTH);
    for (int at = 0; at < ROWS * N_HEADS; at++) {
        int row = at / N_HEADS;
        int head = at % N_HEADS;
        int first = row / LENGTH * LENGTH;
        int n = row - first + 1;
        const float *weight = weights + at * LENGTH;
        const float *d = dout + row * WIDTH + head * HEAD;
        float dweight[LENGTH];
        float mean = 0.0F;
        for (int t = 0; t < n; t++) {
            size_t v = (size_t)(first + t) * 3 * WIDTH + 2 * WIDTH + (size_t)head * HEAD;
            dweight[t] = 0.0F;
            for (int i = 0; i < HEAD; i++) {
                dweight[t] += d[i] * qkv[v + (size_t)i];
                dqkv[v + (size_t)i] += weight[t] * d[i];
            }
            mean += weight[t] * dweight[t];
        }
        for (int t = 0; t < n; t++) {
            size_t q = (size_t)row * 3 * WIDTH + (size_t)head * HEAD;
            size_t k = (size_t)(first + t) * 3 * WIDTH + WIDTH + (size_t)head * HEAD;
            float dscore = weight[t] * (dweight[t] - mean) / sqrtf(HEAD);
            for (size_t i = 0; i < HEAD; i++) {
                dqkv[q + i] += dscore * qkv[k + i];
                dqkv[k + i] += dscore * qkv[q + i];
            }
        }
    }
}

#define GELU_SCALE 0.7978845608F /* sqrt(2 / pi) */

static void gelu_forward(float *out, const float *x)
{
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        float cube = 0.044715F * x[i] * x[i] * x[i];
        out[i] = 0.5F * x[i] * (1.0F + tanhf(GELU_SCALE * (x[i] + cube)));
    }
}

/* In place. */
static void gelu_backward(float *d, const float *x)
{
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        float cube = 0.044715F * x[i] * x[i] * x[i];
        float bent = tanhf(GELU_SCALE * (x[i] + cube));
        float slope = GELU_SCALE * (1.0F + 3.0F * 0.044715F * x[i] * x[i]) * (1.0F - bent * bent);
        d[i] *= 0.5F * (1.0F + bent) + 0.5F * x[i] * slope;
    }
}

static void add(float *to, const float *from)
{
    for (int i = 0; i < ROWS * WIDTH; i++) {
        to[i] += from[i];
    }
}

/* The model --------------------------------------------------------------------------------------------- */

/* Everything that a part computes on its way forward. */
static int tokens[ROWS];
static int targets[ROWS];
static float stream[N_BLOCKS + 1][ROWS * WIDTH]; /* into every block, and out of the last */
static struct {
    struct norm norm1;
    float qkv[ROWS * 3 * WIDTH];
    float weights[ROWS * N_HEADS * LENGTH]; /* of attention */
    float mixed[ROWS * WIDTH];
    float middle[ROWS * WIDTH]; /* of the residual stream */
    struct norm norm2;
    float up[ROWS * HIDDEN];
    float bent[ROWS * HIDDEN];
} blocks[N_BLOCKS];
static struct norm last_norm;
static float chances[ROWS * N_TOKENS];

/* And on its way back. */
static float d_stream[ROWS * WIDTH];
static float d_width[ROWS * WIDTH];
static float d_qkv[ROWS * 3 * WIDTH];
static float d_hidden[ROWS * HIDDEN];

static int token_of(char character)
{
    return character == '\n' ? N_TOKENS - 1 : character - ' ';
}

/* Sequences that depend on the step and the part alone. Each character's target is the next one. */
static void make_batch(int step, int part)
{
    uint32_t seed = (uint32_t)(step * 1009 + part);
    for (int s = 0; s < N_SEQUENCES; s++) {
        float place = 0.5F + 0.5F * draw(&seed);
        const char *from = text + (int)(place * (float)(sizeof text - LENGTH - 2));
        for (int t = 0; t < LENGTH; t++) {
            tokens[s * LENGTH + t] = token_of(from[t]);
            targets[s * LENGTH + t] = token_of(from[t + 1]);
        }
    }
}

static void embed(const struct unit *ends)
{
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < WIDTH; i++) {
            stream[0][row * WIDTH + i] =
                ends->w[WTE][tokens[row] * WIDTH + i] + ends->w[WPE][row % LENGTH * WIDTH + i];
        }
    }
}

static void embed_backward(const struct unit *ends)
{
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < WIDTH; i++) {
            ends->g[WTE][tokens[row] * WIDTH + i] += d_stream[row * WIDTH + i];
            ends->g[WPE][row % LENGTH * WIDTH + i] += d_stream[row * WIDTH + i];
        }
    }
}

static void block_forward(int b, const struct unit *unit)
{
    const float *const *w = unit->w;
    float *out = stream[b + 1];
    norm_forward(&blocks[b].norm1, stream[b], w[LN1_W], w[LN1_B]);
    linear_forward(blocks[b].qkv, blocks[b].norm1.out, w[QKV_W], w[QKV_B], WIDTH, 3 * WIDTH);
    attention_forward(blocks[b].mixed, blocks[b].weights, blocks[b].qkv);
    linear_forward(blocks[b].middle, blocks[b].mixed, w[MIX_W], w[MIX_B], WIDTH, WIDTH);
    add(blocks[b].middle, stream[b]);
    norm_forward(&blocks[b].norm2, blocks[b].middle, w[LN2_W], w[LN2_B]);
    linear_forward(blocks[b].up, blocks[b].norm2.out, w[UP_W], w[UP_B], WIDTH, HIDDEN);
    gelu_forward(blocks[b].bent, blocks[b].up);
    linear_forward(out, blocks[b].bent, w[DOWN_W], w[DOWN_B], HIDDEN, WIDTH);
    add(out, blocks[b].middle);
}

/* d_stream is the gradient of what comes out of the block, and afterwards of what went in. */
static void block_backward(int b, const struct unit *unit)
{
    const float *const *w = unit->w;
    float *const *g = unit->g;
    linear_backward(d_hidden, g[DOWN_W], g[DOWN_B], d_stream, blocks[b].bent, w[DOWN_W], HIDDEN, WIDTH);
    gelu_backward(d_hidden, blocks[b].up);
    linear_backward(d_width, g[UP_W], g[UP_B], d_hidden, blocks[b].norm2.out, w[UP_W], WIDTH, HIDDEN);
    norm_backward(d_stream, g[LN2_W], g[LN2_B], d_width, &blocks[b].norm2, blocks[b].middle, w[LN2_W]);
    linear_backward(d_width, g[MIX_W], g[MIX_B], d_stream, blocks[b].mixed, w[MIX_W], WIDTH, WIDTH);
    attention_backward(d_qkv, d_width, blocks[b].weights, blocks[b].qkv);
    linear_backward(d_width, g[QKV_W], g[QKV_B], d_qkv, blocks[b].norm1.out, w[QKV_W], WIDTH, 3 * WIDTH);
    norm_backward(d_stream, g[LN1_W], g[LN1_B], d_width, &blocks[b].norm1, stream[b], w[LN1_W]);
}

/* The output layer: the score of a token is the product with its embedding. Returns the mean cross entropy. */
static float measure_loss(const struct unit *ends)
{
    float loss = 0.0F;
    norm_forward(&last_norm, stream[N_BLOCKS], ends->w[LNF_W], ends->w[LNF_B]);
    for (int row = 0; row < ROWS; row++) {
        float *chance = chances + row * N_TOKENS;
        for (int token = 0; token < N_TOKENS; token++) {
            chance[token] = 0.0F;
            for (int i = 0; i < WIDTH; i++) {
                chance[token] += last_norm.out[row * WIDTH + i] * ends->w[WTE][token * WIDTH + i];
            }
        }
        soften(chance, N_TOKENS);
        loss -= logf(chance[targets[row]]) / ROWS;
    }
    return loss;
}

static void measure_loss_backward(const struct unit *ends)
{
    memset(d_width, 0, sizeof d_width);
    memset(d_stream, 0, sizeof d_stream);
    for (int row = 0; row < ROWS; row++) {
        for (int token = 0; token < N_TOKENS; token++) {
            float d = (chances[row * N_TOKENS + token] - (token == targets[row] ? 1.0F : 0.0F)) / ROWS;
            for (int i = 0; i < WIDTH; i++) {
                d_width[row * WIDTH + i] += d * ends->w[WTE][token * WIDTH + i];
                ends->g[WTE][token * WIDTH + i] += d * last_norm.out[row * WIDTH + i];
            }
        }
    }
    norm_backward(d_stream, ends->g[LNF_W], ends->g[LNF_B], d_width, &last_norm, stream[N_BLOCKS],
                  ends->w[LNF_W]);
}

/* Each element is updated by itself, so a shard is updated as that part of the whole would be. `t` counts from 1. */
static void adamw(float *w, const float *g, float *m, float *v, size_t count, int t)
{
    const float rate = 3e-3F;
    const float correction1 = (float)(1.0 - pow(0.9, t));
    const float correction2 = (float)(1.0 - pow(0.99, t));
    for (size_t i = 0; i < count; i++) {
        m[i] = 0.9F * m[i] + 0.1F * g[i];
        v[i] = 0.99F * v[i] + 0.01F * g[i] * g[i];
        w[i] -= rate * (m[i] / correction1 / (sqrtf(v[i] / correction2) + 1e-8F) + 0.01F * w[i]);
    }
}

/* Ranks ------------------------------------------------------------------------------------------------- */

static shoal_fsdp *f;
static float *moments[2][N_PARAMS]; /* of this rank's shards */

/* Every rank makes the whole parameter, one after the other, and keeps its part. */
static void shard_model(shoal_group *group)
{
    static float values[ROOM];
    DO(shoal_fsdp_create(group, NULL, &f));
    for (int id = 0; id < N_PARAMS; id++) {
        const struct param *param = param_of(id);
        const int64_t shape[] = {param->rows, param->columns};
        char name[32];
        (void)snprintf(name, sizeof name, "%d.%s", unit_of(id), param->name);
        start(id, values);
        DO(shoal_fsdp_add_param(f, unit_of(id), name, SHOAL_F32, param->columns > 0 ? 2 : 1, shape, values,
                                NULL));
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        DO(shoal_fsdp_update_shard(f, id, &shard));
        moments[0][id] = calloc(shard.count + 1, sizeof(float));
        moments[1][id] = calloc(shard.count + 1, sizeof(float));
        DO(moments[0][id] && moments[1][id] ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    }
    /* The backward pass begins with the unit that the forward pass ends with: it need not be gathered again. */
    DO(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(f, ENDS), SHOAL_RESHARD_NEVER));
    DO(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(f, ENDS), "embeddings"));
}

/* Pointers into what has been gathered: valid until post_forward or post_backward of the unit. */
static const struct unit *find_unit(int unit, bool is_backward)
{
    static struct unit units[N_UNITS];
    struct unit *found = &units[unit];
    for (int id = first_of(unit); id < first_of(unit + 1); id++) {
        int k = id - first_of(unit);
        found->w[k] = shoal_fsdp_full_param(f, id);
        found->g[k] = is_backward ? shoal_fsdp_grad(f, id) : NULL;
        DO(found->w[k] && (found->g[k] || !is_backward) ? SHOAL_OK : SHOAL_ERR_STATE);
    }
    return found;
}

/*
 * Units nest: the unit of the embeddings is open from the first layer to the last. So it is gathered once, and in the
 * backward pass both uses of the token embedding add to one gradient, which is reduced once. (Opening the unit twice in
 * a backward pass would reduce it twice: the same gradient but for rounding.)
 */
static float forward_part(void)
{
    DO(shoal_fsdp_pre_forward(f, ENDS));
    const struct unit *ends = find_unit(ENDS, false);
    embed(ends);
    for (int b = 0; b < N_BLOCKS; b++) {
        DO(shoal_fsdp_pre_forward(f, 1 + b));
        block_forward(b, find_unit(1 + b, false));
        DO(shoal_fsdp_post_forward(f, 1 + b));
    }
    float loss = measure_loss(ends);
    DO(shoal_fsdp_post_forward(f, ENDS));
    return loss;
}

static float train_part(int step, int part)
{
    make_batch(step, part);
    float loss = forward_part();
    DO(shoal_fsdp_pre_backward(f, ENDS));
    const struct unit *ends = find_unit(ENDS, true);
    measure_loss_backward(ends);
    for (int b = N_BLOCKS - 1; b >= 0; b--) {
        DO(shoal_fsdp_pre_backward(f, 1 + b));
        block_backward(b, find_unit(1 + b, true));
        DO(shoal_fsdp_post_backward(f, 1 + b)); /* its gradients are reduced while the next block computes */
    }
    embed_backward(ends);
    DO(shoal_fsdp_post_backward(f, ENDS));
    DO(shoal_fsdp_end_backward(f));
    return loss;
}

/* A forward pass without a backward pass. All ranks take part, each with sequences of its own. */
static float evaluate_part(int step, int part)
{
    make_batch(step, part);
    float loss = forward_part();
    DO(shoal_fsdp_end_forward(f));
    return loss;
}

/* The gradients are the mean of all ranks' gradients by now. */
static void update_shards(int t)
{
    for (int id = 0; id < N_PARAMS; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        DO(shoal_fsdp_update_shard(f, id, &shard));
        adamw(shard.data, shard.grad, moments[0][id], moments[1][id], shard.count, t);
    }
    DO(shoal_fsdp_zero_grad(f));
}

/* Whole arrays ------------------------------------------------------------------------------------------ */

/* The weights of a parameter, and its two moments. */
#define N_ARRAYS 3

/* Collective: on rank 0 the whole array; on others `whole` is NULL. */
static void gather(int id, int k, float *whole)
{
    if (k == 0) {
        DO(shoal_fsdp_gather(shoal_fsdp_param_of(f, id), whole, 0));
    } else {
        DO(shoal_fsdp_gather_array(shoal_fsdp_param_of(f, id), SHOAL_F32, moments[k - 1][id], whole, 0));
    }
}

/* Collective: the parts of the whole array that rank 0 has. */
static void scatter(int id, int k, const float *whole)
{
    if (k == 0) {
        DO(shoal_fsdp_broadcast(shoal_fsdp_param_of(f, id), whole, 0));
    } else {
        DO(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(f, id), SHOAL_F32, whole, moments[k - 1][id], 0));
    }
}

static void check_file(bool is_right, const char *path)
{
    if (!is_right) {
        perror(path);
        exit(1);
    }
}

/* Room for one of them, on rank 0. */
static float whole[ROOM];

/* The file has the number of steps, then all arrays. */
static void save(const char *path, int rank, int n_steps)
{
    FILE *file = rank == 0 ? fopen(path, "wb") : NULL;
    check_file(rank != 0 || (file && fwrite(&n_steps, sizeof n_steps, 1, file) == 1), path);
    for (int at = 0; at < N_PARAMS * N_ARRAYS; at++) {
        size_t count = count_of(at / N_ARRAYS);
        gather(at / N_ARRAYS, at % N_ARRAYS, file ? whole : NULL);
        check_file(!file || fwrite(whole, sizeof whole[0], count, file) == count, path);
    }
    check_file(!file || fclose(file) == 0, path);
}

/* Returns the number of steps. */
static int load(const char *path, shoal_group *group)
{
    int rank = shoal_group_rank(group);
    int n_steps = 0;
    FILE *file = rank == 0 ? fopen(path, "rb") : NULL;
    check_file(rank != 0 || (file && fread(&n_steps, sizeof n_steps, 1, file) == 1), path);
    DO(shoal_group_broadcast(group, &n_steps, 1, SHOAL_I32, 0));
    for (int at = 0; at < N_PARAMS * N_ARRAYS; at++) {
        size_t count = count_of(at / N_ARRAYS);
        check_file(!file || fread(whole, sizeof whole[0], count, file) == count, path);
        scatter(at / N_ARRAYS, at % N_ARRAYS, file ? whole : NULL);
    }
    check_file(!file || fclose(file) == 0, path);
    return n_steps;
}

/* One process ------------------------------------------------------------------------------------------- */

/* The whole model, on rank 0. Each part of a batch has a gradient buffer of its own. If kernels added to the sum of the
   earlier parts, additions would have another order, and their results other bits. */
static float arrays[N_ARRAYS][N_PARAMS][ROOM];
static float part_gradients[N_PARAMS][ROOM];
static float gradients[N_PARAMS][ROOM];

static void train_part_alone(int step, int part)
{
    struct unit units[N_UNITS];
    memset(part_gradients, 0, sizeof part_gradients);
    for (int id = 0; id < N_PARAMS; id++) {
        units[unit_of(id)].w[id - first_of(unit_of(id))] = arrays[0][id];
        units[unit_of(id)].g[id - first_of(unit_of(id))] = part_gradients[id];
    }
    make_batch(step, part);
    embed(&units[ENDS]);
    for (int b = 0; b < N_BLOCKS; b++) {
        block_forward(b, &units[1 + b]);
    }
    (void)measure_loss(&units[ENDS]);
    measure_loss_backward(&units[ENDS]);
    for (int b = N_BLOCKS - 1; b >= 0; b--) {
        block_backward(b, &units[1 + b]);
    }
    embed_backward(&units[ENDS]);
}

/* Adds up in rank order and divides once, as the reduction does. */
static void train_alone(int step, int n_parts)
{
    for (int part = 0; part < n_parts; part++) {
        train_part_alone(step, part);
        for (int id = 0; id < N_PARAMS; id++) {
            for (size_t i = 0; i < count_of(id); i++) {
                gradients[id][i] =
                    part == 0 ? part_gradients[id][i] : gradients[id][i] + part_gradients[id][i];
            }
        }
    }
    for (int id = 0; id < N_PARAMS; id++) {
        for (size_t i = 0; i < count_of(id); i++) {
            gradients[id][i] /= (float)n_parts;
        }
        adamw(arrays[0][id], gradients[id], arrays[1][id], arrays[2][id], count_of(id), step + 1);
    }
}

/* Collective: the model that the ranks have now, on rank 0. */
static void copy_model(int rank)
{
    for (int at = 0; at < N_PARAMS * N_ARRAYS; at++) {
        gather(at / N_ARRAYS, at % N_ARRAYS, rank == 0 ? arrays[at % N_ARRAYS][at / N_ARRAYS] : NULL);
    }
}

/* Collective: whether the ranks have the same weights and moments as the model on rank 0. Always true on others. */
static bool compare_model(int rank)
{
    bool is_same = true;
    for (int at = 0; at < N_PARAMS * N_ARRAYS; at++) {
        size_t bytes = count_of(at / N_ARRAYS) * sizeof(float);
        gather(at / N_ARRAYS, at % N_ARRAYS, rank == 0 ? whole : NULL);
        is_same = is_same && (rank != 0 || memcmp(whole, arrays[at % N_ARRAYS][at / N_ARRAYS], bytes) == 0);
    }
    return is_same;
}

/* All together ------------------------------------------------------------------------------------------ */

/* From step `first` on; returns the step after the last. Rank 0 has the clock, and tells the others when to stop. */
static int train(shoal_group *group, int first, int n_wanted)
{
    int rank = shoal_group_rank(group);
    double begin_s = shoal_seconds();
    double reported_s = begin_s;
    int step = first;
    for (bool is_last = false; !is_last;) {
        double loss = (double)train_part(step, rank);
        update_shards(++step);
        bool is_over = n_wanted > 0 ? step - first == n_wanted : shoal_seconds() - begin_s >= SECONDS;
        double sums[] = {loss / shoal_group_n_ranks(group), rank == 0 && is_over};
        DO(shoal_group_all_reduce(group, sums, sums, 2, SHOAL_F64, SHOAL_SUM));
        is_last = sums[1] > 0.0;
        if (rank == 0 && (is_last || step == first + 1 || shoal_seconds() - reported_s >= REPORT_SECONDS)) {
            printf("step %3d  loss %.4f  %.1f steps/s\n", step, sums[0],
                   (step - first) / (shoal_seconds() - begin_s));
            (void)fflush(stdout);
            reported_s = shoal_seconds();
        }
    }
    return step;
}

int main(int n_arguments, char **arguments)
{
    int n_wanted = n_arguments > 1 ? (int)strtol(arguments[1], NULL, 10) : 0;
    const char *from = n_arguments > 2 && strcmp(arguments[2], "-") != 0 ? arguments[2] : NULL;
    const char *to = n_arguments > 3 ? arguments[3] : NULL;
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    shoal_group *group = shoal_world_group(world);
    int rank = shoal_world_rank(world);
    int n_ranks = shoal_world_n_ranks(world);
    shard_model(group);
    int first = from ? load(from, group) : 0;
    copy_model(rank);
    int end = train(group, first, n_wanted);
    double loss = (double)evaluate_part(-1, rank) / n_ranks;
    DO(shoal_group_all_reduce(group, &loss, &loss, 1, SHOAL_F64, SHOAL_SUM));
    if (to) {
        save(to, rank, end);
    }
    for (int step = first; rank == 0 && step < end; step++) {
        train_alone(step, n_ranks);
    }
    bool is_same = compare_model(rank);
    if (rank == 0) {
        printf("other sequences: loss %.4f\n", loss);
        printf("%d rank%s and one process, steps %d to %d, ended in %s.\n", n_ranks, n_ranks == 1 ? "" : "s",
               first + 1, end, is_same ? "the same bits" : "DIFFERENT bits");
    }
    for (int id = 0; id < N_PARAMS; id++) {
        free(moments[0][id]);
        free(moments[1][id]);
    }
    shoal_fsdp_free(f);
    DO(shoal_world_close(world));
    return is_same ? 0 : 1;
}
