/* SPDX-License-Identifier: MIT */
/* How far a long run has come: one line in the file that SHOAL_TEST_PROGRESS names, which scripts/progress.sh shows. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness/harness.h"
#include "harness/test.h"

#define LEAST_NS 500000000 /* between two lines */

static int n_cases;
static int n_cases_begun;
static char case_name[128];
static _Atomic int64_t last_ns;

/* "3 12 4000 1000000 name": the third of 12 cases has done 4000 of 1000000. */
static void write_line(uint64_t done, uint64_t total)
{
    const char *path = getenv("SHOAL_TEST_PROGRESS");
    char line[256];
    int bytes = snprintf(line, sizeof line, "%d %d %llu %llu %s\n", n_cases_begun, n_cases,
                         (unsigned long long)done, (unsigned long long)total, case_name);
    int fd = path && bytes > 0 ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        if (write(fd, line, (size_t)bytes) != bytes) {
            (void)unlink(path);
        }
        (void)close(fd);
    }
}

void test_progress(uint64_t done, uint64_t total)
{
    int64_t now_ns = harness_now_ns();
    int64_t seen_ns = atomic_load(&last_ns);
    if (now_ns - seen_ns >= LEAST_NS && atomic_compare_exchange_strong(&last_ns, &seen_ns, now_ns)) {
        write_line(done, total);
    }
}

void harness_progress_count(void)
{
    n_cases++;
}

void harness_progress_begin(const char *name)
{
    n_cases_begun++;
    (void)snprintf(case_name, sizeof case_name, "%s", name);
    write_line(0, 0);
}
