/* SPDX-License-Identifier: MIT */
/* `shoal info --json`: the summary as one object. */
#include "info/info.h"
#include "common/tool.h"

#include "bootstrap/meet/environment.h"
#include "device/device.h"
#include "device/module.h"
#include "kernel/simd.h"
#include "shoal/dtype.h"
#include "shoal/option.h"
#include "shoal/version.h"
#include "shoal_nn/nn.h"
#include "tensor/dtype.h"

#include <stdio.h>

static void print_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte < 0x20) {
            printf("\\u%04x", byte);
        } else {
            printf("%s%c", byte == '"' || byte == '\\' ? "\\" : "", byte);
        }
    }
    putchar('"');
}

/* "key": "text", with a comma before it unless it is the first. */
static void print_member(bool is_first, const char *key, const char *text)
{
    printf("%s\"%s\": ", is_first ? "" : ", ", key);
    print_string(text);
}

static void print_item(size_t index, const char *text)
{
    printf("%s", index > 0 ? ", " : "");
    print_string(text);
}

static void print_names(void)
{
    printf(", \"simd\": ");
    print_string(simd_name());
    printf(", \"simd_variants\": [");
    for (size_t i = 0; simd_variant(i); i++) {
        print_item(i, simd_variant(i)->name);
    }
    printf("], \"devices\": [");
    for (int device = 0; device < DEVICE_COUNT; device++) {
        print_item((size_t)device, shoal_device_name((shoal_device)device));
    }
    printf("], \"dtypes\": [");
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        print_item((size_t)dtype - 1, shoal_dtype_name((shoal_dtype)dtype));
    }
    printf("]");
}

static void print_transport(void *context, const struct info_transport *transport)
{
    bool *is_first = context;
    printf("%s{", *is_first ? "" : ", ");
    print_member(/*is_first=*/true, "name", transport->name);
    if (transport->error) {
        print_member(/*is_first=*/false, "error", transport->error);
    } else {
        print_member(/*is_first=*/false, "doc", transport->doc);
        printf(", \"interface\": %u", transport->interface);
    }
    printf(", \"module\": ");
    if (transport->path) {
        print_string(transport->path);
    } else {
        printf("null");
    }
    printf("}");
    *is_first = false;
}

static shoal_status print_device(void *context, const char *name, const char *path)
{
    shoal_device device = SHOAL_CPU;
    bool *is_first = context;
    shoal_status status = device_find(name, &device);
    printf("%s{", *is_first ? "" : ", ");
    print_member(/*is_first=*/true, "name", name);
    print_member(/*is_first=*/false, status == SHOAL_OK ? "doc" : "error",
                 status == SHOAL_OK ? device_row(device)->doc : shoal_error_text());
    print_member(/*is_first=*/false, "module", path);
    printf("}");
    *is_first = false;
    return SHOAL_OK;
}

static void print_products(void)
{
    shoal_nn_product_row row = SHOAL_NN_PRODUCT_ROW_INIT;
    shoal_nn_products used = SHOAL_NN_PRODUCTS_INIT;
    printf(", \"products\": {\"rows\": [");
    for (size_t i = 0; shoal_nn_product_row_get(i, &row) == SHOAL_OK; i++) {
        printf("%s{", i > 0 ? ", " : "");
        print_member(/*is_first=*/true, "name", row.name);
        print_member(/*is_first=*/false, "doc", row.doc);
        print_member(/*is_first=*/false, row.reason ? "error" : "details",
                     row.reason ? row.reason : row.details);
        if (row.library) {
            print_member(/*is_first=*/false, "library", row.library);
        }
        printf("}");
    }
    printf("]");
    if (shoal_nn_products_info(&used) == SHOAL_OK) {
        print_member(/*is_first=*/false, "f32", used.f32);
        print_member(/*is_first=*/false, "bf16", used.bf16);
        print_member(/*is_first=*/false, "f64", used.f64);
        print_member(/*is_first=*/false, "hint", used.hint);
    } else {
        print_member(/*is_first=*/false, "error", shoal_error_text());
    }
    printf("}");
}

static void print_options(void)
{
    shoal_option_info option = SHOAL_OPTION_INFO_INIT;
    for (size_t i = 0; shoal_option_get(i, &option); i++) {
        printf("%s{", i > 0 ? ", " : "");
        print_member(/*is_first=*/true, "name", option.name);
        print_member(/*is_first=*/false, "value", option.value);
        print_member(/*is_first=*/false, "source", option.source);
        print_member(/*is_first=*/false, "type", option.type);
        print_member(/*is_first=*/false, "default", option.default_value);
        printf("}");
    }
}

int info_json(void)
{
    char launcher[512];
    bool is_first = true;
    environment_describe(launcher, sizeof launcher);
    printf("{");
    print_member(/*is_first=*/true, "version", shoal_version());
    print_member(/*is_first=*/false, "build", TOOL_BUILD_TYPE);
    print_member(/*is_first=*/false, "compiler", TOOL_COMPILER);
    print_names();
    printf(", \"transports\": [");
    int exit_status = info_visit_transports(print_transport, &is_first);
    printf("], \"device_modules\": [");
    is_first = true;
    if (device_module_list(print_device, &is_first) != SHOAL_OK) {
        exit_status = TOOL_FAILED;
    }
    printf("]");
    print_products();
    print_member(/*is_first=*/false, "launcher", launcher);
    printf(", \"options\": [");
    print_options();
    printf("]}\n");
    return exit_status;
}
