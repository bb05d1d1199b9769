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
#include "shoal_nn/nn.h"
#include "device/device.h"
#include "device/module.h"
#include "tensor/dtype.h"
#include "transport/module.h"
#include "transport/registry.h"

#include <math.h>
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

/* Modules of devices are loaded, to hear what they say of the device. */
static shoal_status print_device(void *context, const char *name, const char *path)
{
    shoal_device device = SHOAL_CPU;
    bool *is_first = context;
    printf("%-9s %-8s ", *is_first ? "device" : "", name);
    if (device_find(name, &device) == SHOAL_OK) {
        printf("%s\n", device_row(device)->doc);
    } else {
        printf("cannot be used: %s\n", shoal_error_text());
    }
    printf("%-18s %s\n", "", path);
    *is_first = false;
    return SHOAL_OK;
}

static int print_devices(void)
{
    bool is_first = true;
    if (device_module_list(print_device, &is_first) != SHOAL_OK) {
        fprintf(stderr, "shoal info: listing devices: %s\n", shoal_error_text());
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}

static void print_products(void)
{
    shoal_nn_product_row row = SHOAL_NN_PRODUCT_ROW_INIT;
    shoal_nn_products used = SHOAL_NN_PRODUCTS_INIT;
    for (size_t i = 0; shoal_nn_product_row_get(i, &row) == SHOAL_OK; i++) {
        printf("%-9s %-8s %s\n", i == 0 ? "products" : "", row.name, row.doc);
        if (row.reason) {
            printf("%-18s cannot be used: %s\n", "", row.reason);
        } else if (row.library) {
            printf("%-18s %s, %s\n", "", row.details, row.library);
        }
    }
    if (shoal_nn_products_info(&used) != SHOAL_OK) {
        printf("%-9s cannot be computed: %s\n", "", shoal_error_text());
        return;
    }
    printf("%-9s f32 by %s\n%-9s bf16 by %s\n%-9s f64 by %s\n", "", used.f32, "", used.bf16, "", used.f64);
    if (used.hint[0]) {
        printf("%-9s %s\n", "", used.hint);
    }
}

static int print_summary(void)
{
    printf("version   %s\n", shoal_version());
    printf("build     %s, %s\n", TOOL_BUILD_TYPE, TOOL_COMPILER);
    printf("simd      %s of", simd_name());
    for (size_t i = 0; simd_variant(i); i++) {
        printf(" %s", simd_variant(i)->name);
    }
    printf("\ndevices  ");
    for (int device = 0; device < DEVICE_COUNT; device++) {
        printf(" %s", shoal_device_name((shoal_device)device));
    }
    printf("\ndtypes   ");
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        printf(" %s", shoal_dtype_name((shoal_dtype)dtype));
    }
    printf("\n");
    int exit_status = print_devices();
    print_products();
    exit_status = exit_status == TOOL_DONE ? print_transports() : exit_status;
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

static int print_ops(void)
{
    const shoal_op *op;
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL && shoal_op_describe(op, &info) == SHOAL_OK; i++) {
        print_op_call(&info);
        printf("\n    %s\n", info.doc);
    }
    return TOOL_DONE;
}

static int print_ops_page(void)
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

static int print_options_page(void)
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

/* The command line ------------------------------------------------------------------------------------- */

/* What is printed. */
struct pages {
    struct info_question question; /* of --explain */
    bool is_json;
    bool is_ops;
    bool is_ops_page;
    bool is_options_page;
};

static const char *collective_at(size_t index)
{
    return index < COLLECTIVE_COUNT ? collective_rows[index].name : NULL;
}

static int take_transport(void *arguments, const char *value)
{
    struct pages *pages = arguments;
    if (transport_find(value, &pages->question.transport) != SHOAL_OK) {
        fprintf(stderr, "shoal info: --transport: %s\n", shoal_error_text());
        return TOOL_USAGE;
    }
    return TOOL_DONE;
}

#define AT(field) offsetof(struct pages, field)

static const struct tool_option rows[] = {
    {"--explain", "OP", TOOL_OPTION_NAME, AT(question.op), .name_at = collective_at, .noun = "collective",
     .help = "which algorithm a collective uses, and why; with --ranks and --bytes"},
    {"--ranks", "N", TOOL_OPTION_INT64, AT(question.n_ranks), 1, INFO_MAX_RANKS, .alias = "-n",
     .help = "for --explain: ranks of the group"},
    {"--bytes", "B", TOOL_OPTION_BYTES, AT(question.bytes), 0, HUGE_VAL,
     .help = "for --explain: bytes of the whole buffer on one rank, 64K or 4M for example; not of a barrier"},
    {"--symmetric", NULL, TOOL_OPTION_FLAG, AT(question.is_symmetric),
     .help = "for --explain: buffers are in symmetric memory"},
    {"--transport", "T", TOOL_OPTION_OTHER, .take = take_transport, .name_at = tool_transport_at,
     .help = "for --explain: the transport; default shm"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(is_json), .help = "the summary as one JSON object"},
    {"--ops", NULL, TOOL_OPTION_FLAG, AT(is_ops), .help = "all operations, with their signatures"},
    {"--ops-md", NULL, TOOL_OPTION_FLAG, AT(is_ops_page), .help = "all operations, as a Markdown table"},
    {"--options-md", NULL, TOOL_OPTION_FLAG, AT(is_options_page), .help = "all options, as a Markdown table"},
};

const struct tool_options command_info_options = {
    .synopsis = "shoal info [--json | --ops | --ops-md | --options-md]\n"
                "       shoal info --explain OP --ranks N --bytes B [--symmetric] [--transport T]",
    TOOL_OPTIONS_ROWS(rows),
};

/* Returns what is wrong with the options together; NULL if nothing is. */
static const char *find_contradiction(const struct pages *pages, const struct tool_given *given)
{
    const struct tool_options *options = &command_info_options;
    bool explains = pages->question.op;
    bool has_detail = tool_option_is_given(options, given, "--ranks") ||
                      tool_option_is_given(options, given, "--bytes") ||
                      tool_option_is_given(options, given, "--symmetric") ||
                      tool_option_is_given(options, given, "--transport");
    int n_pages = explains + pages->is_json + pages->is_ops + pages->is_ops_page + pages->is_options_page;
    bool is_barrier = explains && strcmp(pages->question.op, "barrier") == 0;
    return n_pages > 1               ? "one thing at a time can be printed"
           : has_detail && !explains ? "--ranks, --bytes, --symmetric and --transport are for --explain OP"
           : explains && pages->question.n_ranks == 0 ? "--ranks is missing"
           : explains && !is_barrier && !tool_option_is_given(options, given, "--bytes")
               ? "--bytes is missing"
               : NULL;
}

static int print_page(const struct pages *pages)
{
    if (pages->question.op) {
        return info_explain(&pages->question);
    }
    return pages->is_json           ? info_json()
           : pages->is_ops          ? print_ops()
           : pages->is_ops_page     ? print_ops_page()
           : pages->is_options_page ? print_options_page()
                                    : print_summary();
}

int command_info(int argc, char **argv)
{
    struct pages pages = {.question = {.transport = transport_at(0)}};
    struct tool_given given;
    int exit_status;
    tool_report_options();
    if (!tool_options_read(&command_info_options, argc, argv, &pages, &given, &exit_status)) {
        return exit_status;
    }
    const char *wrong = find_contradiction(&pages, &given);
    return wrong ? tool_options_refuse(&command_info_options, wrong) : print_page(&pages);
}
