/* SPDX-License-Identifier: MIT */
/* `shoal info`: what was built, what was found, every option with its value and where that came from. */
#include "tool.h"

#include "comm/environment.h"
#include "kernel/simd.h"
#include "shoal/dtype.h"
#include "shoal/op.h"
#include "shoal/option.h"
#include "shoal/version.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

static void print_options(void)
{
    shoal_option_info option;
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

static void print_transports(void)
{
    for (size_t i = 0; transport_at(i); i++) {
        printf("%-9s %-5s %s\n", i == 0 ? "transport" : "", transport_at(i)->name, transport_at(i)->doc);
    }
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
    print_transports();
    print_launcher();
    printf("options\n");
    print_options();
    return TOOL_DONE;
}

/* "narrow(tensor self, int dim) -> tensor": the signature ends in what the op gives. */
static void print_op_call(const shoal_op *op)
{
    const char *signature = shoal_op_signature(op);
    const char *arrow = strstr(signature, "->");
    size_t chars = arrow ? (size_t)(arrow - signature) : strlen(signature);
    while (chars > 0 && signature[chars - 1] == ' ') {
        chars--;
    }
    printf("%s(%.*s)%s%s", shoal_op_name(op), (int)chars, signature, arrow ? " " : "", arrow ? arrow : "");
}

static int print_ops(int argc, char **argv)
{
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        print_op_call(op);
        printf("\n    %s\n", shoal_op_doc(op));
    }
    return TOOL_DONE;
}

static int print_ops_page(int argc, char **argv)
{
    printf("# Operations\n\nPrinted by `shoal info --ops-md`.\n\n| op | what it does |\n|---|---|\n");
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        printf("| `");
        print_op_call(op);
        printf("` | %s |\n", shoal_op_doc(op));
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
    shoal_option_info option;
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
     .summary = "OP --ranks N --bytes B [--symmetric]: which algorithm is taken, and why"},
    {.name = "--ops", .run = print_ops, .summary = "the operations, with signature"},
    {.name = "--ops-md", .run = print_ops_page, .summary = "the same as a page of the manual"},
    {.name = "--options-md", .run = print_options_page, .summary = "the options as a page of the manual"},
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
        return tool_choice_unknown("option of info", argv[1], pages, N_PAGES);
    }
    if (argc > 2 && page->run != info_explain) {
        fprintf(stderr, "shoal: %s takes no argument, but got '%s'\n", argv[1], argv[2]);
        return TOOL_USAGE;
    }
    return page->run(argc - 1, argv + 1);
}
