/* SPDX-License-Identifier: MIT */
/* Loading transports: found by name, asked once, and refused with what was expected and what was found. */
#include "transport/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/harness.h"
#include "harness/test.h"
#include "transport/registry.h"

#define LONG_NAME_50 "a_folder_whose_name_is_longer_than_a_name_may_be_1_"
#define LONG_NAME_250 LONG_NAME_50 LONG_NAME_50 LONG_NAME_50 LONG_NAME_50 LONG_NAME_50

/* Before anything reads the options, which happens once. A folder that is not there is passed over. */
__attribute__((constructor)) static void set_path(void)
{
    (void)setenv("SHOAL_MODULE_PATH",
                 "/nonexistent::" TEST_MODULES ":/" LONG_NAME_250 LONG_NAME_50 ":" TEST_MODULES, 1);
}

TEST(rows_are_complete)
{
    for (size_t i = 0; transport_at(i); i++) {
        CHECK_OK(transport_check(transport_at(i)));
        const struct transport *found = NULL;
        CHECK_OK(transport_find(transport_at(i)->name, &found));
        CHECK(found == transport_at(i));
    }
}

TEST(a_module_is_loaded_once)
{
    const struct transport *first = NULL;
    const struct transport *second = NULL;
    REQUIRE_OK(transport_find("test_post", &first));
    REQUIRE_OK(transport_find("test_post", &second));
    CHECK(first == second);
    CHECK_STRING(first->name, "test_post");
    CHECK(first->has_peers && !first->is_one_host && !first->streams && !first->memory && !first->algorithms);
}

/* In the words of an error: the numbers of the library, and those of the module. */
static void check_numbers(const struct transport *transport, unsigned interface, size_t bytes)
{
    char found[80];
    char expected[80];
    CHECK(transport == NULL);
    (void)snprintf(found, sizeof found, "interface %u and %zu bytes", interface, bytes);
    (void)snprintf(expected, sizeof expected, "this library has interface %d and %zu bytes",
                   TRANSPORT_INTERFACE, sizeof *transport);
    CHECK_ERROR_TEXT(found);
    CHECK_ERROR_TEXT(expected);
}

TEST(another_interface_or_size_is_refused)
{
    const struct transport *transport = NULL;
    CHECK_STATUS(transport_find("test_interface", &transport), SHOAL_ERR_UNSUPPORTED);
    check_numbers(transport, TRANSPORT_INTERFACE + 1, sizeof *transport);
    CHECK_ERROR_TEXT("libshoal_transport_test_interface" TRANSPORT_MODULE_SUFFIX);
    CHECK_STATUS(transport_find("test_size", &transport), SHOAL_ERR_UNSUPPORTED);
    check_numbers(transport, TRANSPORT_INTERFACE, sizeof *transport + 8);
}

TEST(what_is_no_transport_is_refused)
{
    static const struct {
        const char *name;
        const char *text;
    } flaws[] = {
        {"test_entry", "it exports no shoal_transport_module"},
        {"test_null", "no network here"},
        {"test_silent", "no reason"},
        {"test_member", "has no run, which is required"},
        {"test_name", "it holds transport \"another\""},
        {"test_layout", "it was built with other structs than this library"},
    };
    for (size_t i = 0; i < sizeof flaws / sizeof flaws[0]; i++) {
        const struct transport *transport = NULL;
        /* Twice: what was refused is not known afterwards. */
        for (int round = 0; round < 2; round++) {
            CHECK_STATUS(transport_find(flaws[i].name, &transport), SHOAL_ERR_UNSUPPORTED);
            CHECK_ERROR_TEXT(flaws[i].text);
            CHECK(transport == NULL);
        }
    }
}

TEST(what_is_not_there_is_named)
{
    const struct transport *transport = NULL;
    CHECK_STATUS(transport_find("smoke", &transport), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is no transport \"smoke\": built in are: shm fake");
    CHECK_ERROR_TEXT("libshoal_transport_smoke" TRANSPORT_MODULE_SUFFIX);
    CHECK(strstr(shoal_error_text(), "another version") == NULL);
    CHECK_ERROR_TEXT(TEST_MODULES);
    /* A folder that cannot be looked into may have it. */
    CHECK_ERROR_TEXT("; /" LONG_NAME_50);
    CHECK_ERROR_TEXT("File name too long");
    static const char *const bad[] = {"", "../post", "Post", "a b", "shm/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_STATUS(transport_find(bad[i], &transport), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("cannot be the name of a transport");
    }
    CHECK(transport == NULL);
}

struct listing {
    char names[512];
    int n_visits;
    int fails_at;
};

static shoal_status note_module(void *context, const char *name, const char *path)
{
    struct listing *listing = context;
    size_t length = strlen(listing->names);
    char file[128];
    (void)snprintf(listing->names + length, sizeof listing->names - length, " %s", name);
    (void)snprintf(file, sizeof file, "/libshoal_transport_%s" TRANSPORT_MODULE_SUFFIX, name);
    CHECK(strlen(path) > strlen(file) && strcmp(path + strlen(path) - strlen(file), file) == 0);
    return ++listing->n_visits == listing->fails_at ? SHOAL_ERR_STATE : SHOAL_OK;
}

TEST(modules_are_listed_by_name)
{
    struct listing listing = {.fails_at = -1};
    CHECK_OK(transport_module_list(note_module, &listing));
    /* What else is there, of other tests, comes before or between. */
    static const char *const names[] = {" test_entry",  " test_interface", " test_layout",
                                        " test_member", " test_name",      " test_null",
                                        " test_post",   " test_silent",    " test_size"};
    const char *at = listing.names;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        at = strstr(at, names[i]);
        REQUIRE(at != NULL);
        CHECK(strstr(at + 1, names[i]) == NULL);
    }
    /* A failure ends it. */
    struct listing other = {.fails_at = 2};
    CHECK_STATUS(transport_module_list(note_module, &other), SHOAL_ERR_STATE);
    CHECK_INT(other.n_visits, 2);
}

TEST(services_of_another_version_are_told)
{
    struct transport_services services = transport_services;
    CHECK(transport_services_fit(&services));
    services.interface = TRANSPORT_INTERFACE + 1;
    CHECK(!transport_services_fit(&services));
    CHECK_ERROR_TEXT("the library has interface 2");
    services = transport_services;
    services.layout++;
    CHECK(!transport_services_fit(&services));
    services = transport_services;
    services.struct_size -= 8;
    CHECK(!transport_services_fit(&services));
    /* More services than it knows are no harm. */
    services.struct_size += 16;
    CHECK(transport_services_fit(&services));
}

TEST(services_read_variables)
{
    CHECK_STRING(transport_services.variable("TEST_NO_SUCH_VARIABLE"), "");
    REQUIRE(setenv("SHOAL_TRANSPORT_TEST_A_VARIABLE", "value", 1) == 0);
    CHECK_STRING(transport_services.variable("TEST_A_VARIABLE"), "value");
    CHECK(unsetenv("SHOAL_TRANSPORT_TEST_A_VARIABLE") == 0);
}

/* Modules for other versions of the library may lie in the same folder: they are neither listed nor loaded, and the error says
   that they are there. */
TEST(modules_for_another_interface_are_named_and_not_loaded)
{
    static const char *const files[] = {"libshoal_transport_elder-7.so", "libshoal_transport_eldest.so"};
    static const char *const names[] = {"elder", "eldest", "eld"};
    const struct transport *transport = NULL;
    for (size_t i = 0; i < 2; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", TEST_MODULES, files[i]);
        FILE *file = fopen(path, "w");
        REQUIRE(file != NULL);
        CHECK(fclose(file) == 0);
    }
    for (size_t i = 0; i < 3; i++) {
        CHECK_STATUS(transport_find(names[i], &transport), SHOAL_ERR_INVALID);
        CHECK(!transport_module_is_there(names[i]));
        const char *words = strstr(shoal_error_text(), " has libshoal_transport_");
        CHECK_INT(words != NULL, i < 2);
        CHECK(!words || strstr(words, files[i]));
    }
    struct listing listing = {.fails_at = -1};
    CHECK_OK(transport_module_list(note_module, &listing));
    CHECK(strstr(listing.names, "elde") == NULL);
    for (size_t i = 0; i < 2; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", TEST_MODULES, files[i]);
        CHECK(unlink(path) == 0);
    }
}

/* Run by the next test, as a program of another user. */
TEST(planted_look_for_a_module)
{
    const struct transport *transport = NULL;
    shoal_status status = transport_find("test_post", &transport);
    (void)printf("secure %d, found %d: %s\n", getauxval(AT_SECURE) != 0, status == SHOAL_OK,
                 shoal_error_text());
}

/* A copy of this program that belongs to another user, and runs as that one whoever starts it. */
static bool make_set_uid(char *path)
{
    static char bytes[65536];
    int fd = mkstemp(path);
    FILE *from = fopen("/proc/self/exe", "rb");
    FILE *to = fd >= 0 ? fdopen(fd, "wb") : NULL;
    bool is_made = from && to;
    for (size_t n = 1; is_made && n > 0;) {
        n = fread(bytes, 1, sizeof bytes, from);
        is_made = fwrite(bytes, 1, n, to) == n;
    }
    is_made = is_made && fflush(to) == 0 && fchown(fd, 65534, 65534) == 0 && fchmod(fd, 04755) == 0;
    if (from) {
        (void)fclose(from);
    }
    if (to) {
        (void)fclose(to);
    }
    return is_made;
}

TEST(who_starts_a_set_uid_program_does_not_choose_what_it_loads)
{
    if (geteuid() != 0) {
        test_skip("only root can give a program to another user");
        return;
    }
    if (HARNESS_HAS_TSAN) {
        /* It starts the program again without random addresses, which the kernel gives a set-uid program each time. */
        test_skip("the thread sanitizer starts set-uid programs for ever");
        return;
    }
    char path[] = "/tmp/shoal_module_test_XXXXXX";
    static char output[4096];
    bool is_made = make_set_uid(path);
    (void)test_run_program((const char *const[]){path, "planted_look_for_a_module", NULL}, NULL, output,
                           sizeof output);
    (void)unlink(path);
    REQUIRE(is_made);
    if (strstr(output, "secure 0")) {
        test_skip("/tmp runs programs as whoever starts them");
        return;
    }
    CHECK(strstr(output, "secure 1, found 0: there is no transport \"test_post\""));
    CHECK(strstr(output, "SHOAL_MODULE_PATH (not used: the program is set-uid"));
}
