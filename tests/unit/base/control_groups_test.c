/* SPDX-License-Identifier: MIT */
/* Which groups a process is in, by texts of both versions of control groups. */
#include "base/control_groups.h"

#include <string.h>

#include "harness/test.h"

struct seen {
    char directories[512]; /* each with a space behind it */
};

static void note(void *context, const char *directory)
{
    struct seen *seen = context;
    size_t length = strlen(seen->directories);
    size_t bytes = strlen(directory);
    REQUIRE(length + bytes + 2 <= sizeof seen->directories);
    memcpy(seen->directories + length, directory, bytes);
    memcpy(seen->directories + length + bytes, " ", 2);
}

static void check(const char *text, const char *controller, const char *wanted)
{
    struct seen seen = {.directories = ""};
    control_groups_walk_text(text, controller, note, &seen);
    (void)CHECK_STRING(seen.directories, wanted);
}

/* The tree of a controller is tried, too: a container may have mounted that. */
TEST(version_two_has_one_tree)
{
    check("0::/a/b\n", "cpu",
          "/sys/fs/cgroup/cpu/a/b /sys/fs/cgroup/cpu/a /sys/fs/cgroup/cpu "
          "/sys/fs/cgroup/a/b /sys/fs/cgroup/a /sys/fs/cgroup ");
    check("0::/", "memory", "/sys/fs/cgroup/memory /sys/fs/cgroup ");
    check("0::/a/\n", "memory",
          "/sys/fs/cgroup/memory/a /sys/fs/cgroup/memory /sys/fs/cgroup/a /sys/fs/cgroup ");
}

/* And here the tree of version 2. */
TEST(version_one_has_a_tree_for_each_controller)
{
    static const char text[] = "9:name=systemd:/\n4:memory:/m\n3:cpuset:/s\n2:cpu,cpuacct:/c\n";
    check(text, "memory", "/sys/fs/cgroup/memory/m /sys/fs/cgroup/memory /sys/fs/cgroup/m /sys/fs/cgroup ");
    check(text, "cpu",
          "/sys/fs/cgroup/cpu/c /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct/c "
          "/sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/c /sys/fs/cgroup ");
    check(text, "cpuset", "/sys/fs/cgroup/cpuset/s /sys/fs/cgroup/cpuset /sys/fs/cgroup/s /sys/fs/cgroup ");
    check(text, "pids", "");
}

TEST(both_versions_at_once)
{
    check("1:cpu:/c\n0::/\n", "cpu",
          "/sys/fs/cgroup/cpu/c /sys/fs/cgroup/cpu /sys/fs/cgroup/c /sys/fs/cgroup "
          "/sys/fs/cgroup/cpu /sys/fs/cgroup ");
}

TEST(what_is_no_list_of_groups)
{
    static const char *const texts[] = {"", "\n", "::", "0:", "0::", "0::a/b", "cpu", ":cpu\n:/a", "0\n::\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        check(texts[i], "cpu", "");
    }
}

TEST(a_path_that_is_too_long_is_left_out)
{
    static char text[8192];
    memset(text, 'a', sizeof text - 1);
    memcpy(text, "0::/", 4);
    check(text, "cpu", "");
}

TEST(files)
{
    char text[8];
    CHECK(control_groups_read("/proc/self", "comm", text, sizeof text));
    CHECK(strlen(text) > 0 && strlen(text) < sizeof text);
    CHECK(!control_groups_read("/proc/self", "nothing", text, sizeof text));
}
