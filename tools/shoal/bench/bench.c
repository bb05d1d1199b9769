/* SPDX-License-Identifier: MIT */
/* `shoal bench WHAT ...`: finds WHAT among the rows of benches.def and runs it. "all" runs every row. */
#include "common/commands.h"
#include "bench/benches.h"
#include "common/tool.h"

#include <stdio.h>
#include <string.h>

static const struct tool_choice benches[] = {
#define BENCH(name_, function, summary_) {.name = #name_, .run = function, .summary = summary_},
#include "bench/benches.def"
#undef BENCH
    {.name = "all", .run = NULL, .summary = "all of these"},
};

#define N_BENCHES (sizeof benches / sizeof benches[0])

static int run_all(int argc, char **argv)
{
    int worst = TOOL_DONE;
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (!benches[i].run) {
            continue;
        }
        argv[0] = (char *)benches[i].name;
        int exit_status = benches[i].run(argc, argv);
        worst = exit_status > worst ? exit_status : worst;
    }
    return worst;
}

int command_bench(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        FILE *out = argc < 2 ? stderr : stdout;
        fprintf(out, "usage: shoal bench WHAT ...\n\n");
        for (size_t i = 0; i < N_BENCHES; i++) {
            fprintf(out, "  %-15s %s\n", benches[i].name, benches[i].summary);
        }
        return argc < 2 ? TOOL_USAGE : TOOL_DONE;
    }
    const struct tool_choice *bench = tool_choice_find(benches, N_BENCHES, argv[1]);
    if (!bench) {
        return tool_choice_unknown("benchmark", argv[1], benches, N_BENCHES);
    }
    return bench->run ? bench->run(argc - 1, argv + 1) : run_all(argc - 1, argv + 1);
}
