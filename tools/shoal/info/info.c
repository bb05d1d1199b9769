/* SPDX-License-Identifier: MIT */
/* `shoal info`: what was built, what was found, every option with its value and where that came from. */
#include "common/commands.h"
#include "info/info.h"
#include "common/tool.h"

#include "bootstrap/meet/environment.h"
#include "kernel/simd.h"
#include "shoal/dtype.h"
#include "shoal/op.h"
#include "shoal/option.h"
#include "shoal/version.h"
#include "device/device.h"
#include "tensor/dtype.h"
#include "transport/module.h"
#include "transport/registry.h"

#include <stdio.h>
#include <string.h>

static void print_options(void)
{
    shoal_option_info option = SHOAL_OPTION_INFO_INIT;
    for (size_t i = 0; shoal_option_get(i, &option); i++) {
        printf("  %-20s %-10s %s\n", option.name, option.value, option.source);
        printf("  %-20s %s (%s: %s)\n", "", option.doc, option.type, option.range);
    }
}

/* What shoal_world_open would find. */
static void print_launcher(void)
{
    char text[512];
    environment_describe(text, sizeof text);
    printf("launcher  %s\n", text);
}

struct shown {
    bool has_row;
    bool has_module;
};

static void print_transport(void *context, const struct info_transport *transport)
{
    struct shown *shown = context;
    bool is_first = transport->path ? !shown->has_module : !shown->has_row;
    printf("%-9s %-8s ", !is_first ? "" : transport->path ? "module" : "transport", transport->name);
    if (transport->error) {
        printf("cannot be used: %s\n%-18s %s\n", transport->error, "", transport->path);
    } else if (transport->path) {
        printf("%s\n%-18s interface %u, %s\n", transport->doc, "", transport->interface, transport->path);
    } else {
        printf("%s\n", transport->doc);
    }
    shown->has_row = shown->has_row || !transport->path;
    shown->has_module = shown->has_module || transport->path;
}

static int print_transports(void)
{
    struct shown shown = {.has_row = false};
    int exit_status = info_visit_transports(print_transport, &shown);
    if (!shown.has_module) {
        printf("%-9s none found\n", "module");
    }
    return exit_status;
}

static int print_summary(int argc, char **argv)
{
    printf("version   %s\n", shoal_version());
    printf("build     %s, %s\n", TOOL_BUILD_TYPE, TOOL_COMPILER);
    printf("simd      %s of", simd_name());
    for (size_t i = 0; simd_variant(i); i++) {
        printf(" %s", simd_variant(i)->name);
    }
    printf("\ndevices  ");
    for (int device = 0; device < DEVICE_COUNT; device++) {
        printf(" %s", device_rows[device].name);
    }
    printf("\ndtypes   ");
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        printf(" %s", shoal_dtype_name((shoal_dtype)dtype));
    }
    printf("\n");
    int exit_status = print_transports();
    print_launcher();
    printf("options\n");
    print_options();
    return exit_status;
}

/* "narrow(tensor self, int dim) -> tensor": the signature ends in what the op gives. */
static void print_op_call(const shoal_op_info *op)
{
    const char *signature = op->signature;
    const char *arrow = strstr(signature, "->");
    size_t chars = arrow ? (size_t)(arrow - signature) : strlen(signature);
    while (chars > 0 && signature[chars - 1] == ' ') {
        chars--;
    }
    printf("%s(%.*s)%s%s", op->name, (int)chars, signature, arrow ? " " : "", arrow ? arrow : "");
}

static int print_ops(int argc, char **argv)
{
    const shoal_op *op;
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL && shoal_op_describe(op, &info) == SHOAL_OK; i++) {
        print_op_call(&info);
        printf("\n    %s\n", info.doc);
    }
    return TOOL_DONE;
}

static int print_ops_page(int argc, char **argv)
{
    printf("# Operations\n\nPrinted by `shoal info --ops-md`.\n\n| op | what it does |\n|---|---|\n");
    const shoal_op *op;
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL && shoal_op_describe(op, &info) == SHOAL_OK; i++) {
        printf("| `");
        print_op_call(&info);
        printf("` | %s |\n", info.doc);
    }
    return TOOL_DONE;
}

/* A bar inside a cell would end it. */
static void print_cell(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            putchar('\\');
        }
        putchar(*text);
    }
    printf(" | ");
}

static int print_options_page(int argc, char **argv)
{
    printf("# Options\n\nEnvironment variables, read once. Printed by `shoal info --options-md`.\n\n"
           "| variable | type | accepted | default | what it does |\n|---|---|---|---|---|\n");
    shoal_option_info option = SHOAL_OPTION_INFO_INIT;
    for (size_t i = 0; shoal_option_get(i, &option); i++) {
        printf("| `%s` | %s | ", option.name, option.type);
        print_cell(option.range);
        printf("`%s` | %s |\n", option.default_value, option.doc);
    }
    return TOOL_DONE;
}

static int print_usage(int argc, char **argv);

static const struct tool_choice pages[] = {
    {.name = "--explain",
     .run = info_explain,
     .summary =
         "OP --ranks N --bytes B [--symmetric] [--transport T]: which algorithm a collective uses, and why"},
    {.name = "--json", .run = info_json, .summary = "the summary as one JSON object"},
    {.name = "--ops", .run = print_ops, .summary = "all operations, with their signatures"},
    {.name = "--ops-md", .run = print_ops_page, .summary = "all operations, as a Markdown table"},
    {.name = "--options-md", .run = print_options_page, .summary = "all options, as a Markdown table"},
    {.name = "--help", .run = print_usage, .summary = "this list"},
};

#define N_PAGES (sizeof pages / sizeof pages[0])

static int print_usage(int argc, char **argv)
{
    puts("usage: shoal info [OPTION]");
    for (size_t i = 0; i < N_PAGES; i++) {
        printf("  %-14s %s\n", pages[i].name, pages[i].summary);
    }
    return TOOL_DONE;
}

int command_info(int argc, char **argv)
{
    tool_report_options();
    if (argc < 2) {
        return print_summary(argc, argv);
    }
    const struct tool_choice *page = tool_choice_find(pages, N_PAGES, argv[1]);
    if (!page) {
        return tool_choice_unknown("option", argv[1], pages, N_PAGES);
    }
    if (argc > 2 && page->run != info_explain) {
        fprintf(stderr, "shoal info: %s takes no argument, but got '%s'\n", argv[1], argv[2]);
        return TOOL_USAGE;
    }
    return page->run(argc - 1, argv + 1);
}
