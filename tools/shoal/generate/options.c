/* SPDX-License-Identifier: MIT */
/* The table of options of `shoal generate`, and what they say together. */
#include "generate/options.h"
#include "common/commands.h"
#include "common/tool.h"
#include "model/sampler.h"
#include "run/rank.h"

#include <stddef.h>
#include <stdio.h>

#define AT(member) offsetof(struct generate_options, member)

static const struct tool_option rows[] = {
    {"DIR", "directory", TOOL_OPTION_TEXT, AT(directory), .missing = "needs the directory of a model",
     .help = "directory of shoal train --checkpoint, or of a GPT-2 of Hugging Face"},
    {"--prompt", "TEXT", TOOL_OPTION_TEXT, AT(prompt),
     .help = "text that the model continues; default: a line break, or the tokenizer's end of text"},
    {"--prompt-tokens", "N,N", TOOL_OPTION_TEXT, AT(prompt_tokens),
     .help = "the prompt as numbers of tokens, 15496,995, instead of text"},
    {"--tokenizer", "PATH", TOOL_OPTION_TEXT, AT(tokenizer),
     .help = "directory with vocab.json and merges.txt, or llm.c's tokenizer.bin; default: in DIR"},
    {"--length", "N", TOOL_OPTION_INT64, AT(length), 0, 1 << 20, .standard = "256",
     .help = "tokens to write"},
    {"--temperature", "T", TOOL_OPTION_REAL, AT(temperature), 0, 1000, .standard = SAMPLER_TEMPERATURE_TEXT,
     .help = "divides the logits; 0: always the likeliest token"},
    {"--top-k", "K", TOOL_OPTION_INT64, AT(top_k), 0, 1 << 30, .standard = SAMPLER_TOP_K_TEXT,
     .help = "draws from the K likeliest tokens; 0: from all"},
    {"--seed", "N", TOOL_OPTION_INT64, AT(seed), 0, 9e15, .standard = "1", .help = "seed of the draws"},
    {"--logits", "FILE", TOOL_OPTION_TEXT, AT(logits),
     .help = "writes the logits after each token of the prompt (safetensors)"},
    {"--heads", "N", TOOL_OPTION_INT64, AT(n_heads), 1, 1 << 20,
     .help = "heads of attention, where the model does not say how many"},
    {"--ranks", "N", TOOL_OPTION_INT64, AT(n_ranks), 1, RUN_MAX_RANKS, .alias = "-n",
     .help = "ranks to start; not under shoal run, mpirun or torchrun"},
    {"--threads", "N", TOOL_OPTION_INT64, AT(n_threads), 1, 4096, .standard = "1",
     .help = "threads that compute, in each rank"},
    {"--transport", "NAME", TOOL_OPTION_TEXT, AT(transport), .name_at = tool_transport_at,
     .help = "transport of the ranks; shoal info lists the names"},
};

const struct tool_options command_generate_options = {
    .about = "Prints a prompt and what a model writes after it.\n",
    TOOL_OPTIONS_ROWS(rows),
};

bool generate_options_read(int argc, char **argv, struct generate_options *options, int *exit_status_out)
{
    *options = (struct generate_options){0};
    if (!tool_options_read(&command_generate_options, argc, argv, options, NULL, exit_status_out)) {
        return false;
    }
    *exit_status_out = TOOL_USAGE;
    if (options->prompt && options->prompt_tokens) {
        (void)tool_refuse("--prompt and --prompt-tokens are two prompts: give one");
        return false;
    }
    return !options->transport || tool_set_transport(options->transport);
}
