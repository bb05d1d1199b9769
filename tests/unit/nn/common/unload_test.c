/* SPDX-License-Identifier: MIT */
/*
 * Programs that load libshoal_nn while they run, and close it again: the libraries stay where they are, because ops that
 * were registered point into them. So a hundred rounds cost as much as one.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "shoal/graph.h"

enum {
    N_ROUNDS = 100,
    MOST_BYTES = 16384 /* what the loader itself may keep */
};

static size_t count_threads(void)
{
    size_t n_threads = 0;
    DIR *directory = opendir("/proc/self/task");
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        n_threads += entry->d_name[0] != '.';
    }
    (void)(directory ? closedir(directory) : 0);
    return n_threads;
}

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    return symbol;
}

static void load_and_close(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        test_failed(__FILE__, __LINE__, "%s", dlerror());
        return;
    }
    shoal_status (*init)(void);
    *(void **)&init = find(library, "shoal_nn_init");
    CHECK_OK(init ? init() : SHOAL_OK);
    CHECK_INT(dlclose(library), 0);
}

static const char *find_path(char *path, size_t bytes, const char *name)
{
    const char *build = getenv("SHOAL_TEST_BUILD_DIR");
    (void)snprintf(path, bytes, "%s/lib/%s", build ? build : ".", name);
    return path;
}

TEST(a_hundred_rounds_cost_as_much_as_one)
{
    char path[4096];
    (void)find_path(path, sizeof path, "libshoal_nn.so");
    load_and_close(path);
    load_and_close(path);
    size_t n_threads = count_threads(); /* OpenBLAS has its own, from its first load to the end */
    size_t bytes = mallinfo2().uordblks;
    for (int i = 2; i < N_ROUNDS && !test_has_failed(); i++) {
        load_and_close(path);
    }
    CHECK_INT(count_threads(), n_threads);
    if (!HARNESS_HAS_ASAN && !HARNESS_HAS_TSAN) { /* these count nothing */
        CHECK(mallinfo2().uordblks < bytes + MOST_BYTES);
    }
}

/* The registry of libshoal, which the program holds, has ops of libshoal_nn: reading a graph calls one. */
TEST(ops_outlive_the_close)
{
    static const char text[] = "graph { %x = placeholder : f32[2] %y = nn.tanh(%x) return %y }";
    char path[4096];
    void *library = dlopen(find_path(path, sizeof path, "libshoal.so"), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != NULL);
    load_and_close(find_path(path, sizeof path, "libshoal_nn.so"));
    shoal_status (*parse)(const char *text, size_t bytes, shoal_graph **graph_out);
    void (*free_graph)(shoal_graph * graph);
    *(void **)&parse = find(library, "shoal_graph_parse");
    *(void **)&free_graph = find(library, "shoal_graph_free");
    REQUIRE(parse && free_graph);
    shoal_graph *graph = NULL;
    CHECK_INT(parse(text, strlen(text), &graph), SHOAL_OK);
    free_graph(graph);
    (void)dlclose(library);
}
