/* SPDX-License-Identifier: MIT */
#include "base/control_groups.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/os/os.h"

#define MOUNTED "/sys/fs/cgroup"
#define TEXT_BYTES 8192

bool control_groups_read(const char *directory, const char *name, char *text, size_t bytes)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path && os_read_text(path, text, bytes);
}

/* A part of a line. */
struct span {
    const char *chars;
    size_t length;
};

static bool is_in_list(struct span list, const char *controller)
{
    size_t length = strlen(controller);
    for (const char *at = list.chars; at < list.chars + list.length;) {
        size_t n = strcspn(at, ",:");
        if (n == length && strncmp(at, controller, n) == 0) {
            return true;
        }
        at += n + 1;
    }
    return false;
}

/* Visits a group and those that it lies in, up to the directory `tree` in which they are mounted. */
static void walk_up(struct span tree, struct span path, control_groups_visitor visit, void *context)
{
    char directory[PATH_MAX];
    const char *slash = tree.length > 0 ? "/" : "";
    int root =
        snprintf(directory, sizeof directory, "%s%s%.*s", MOUNTED, slash, (int)tree.length, tree.chars);
    if (root < 0 || (size_t)root + path.length >= sizeof directory) {
        return;
    }
    size_t length = (size_t)root + path.length;
    memcpy(directory + root, path.chars, path.length);
    directory[length] = '\0';
    if (directory[length - 1] == '/') {
        directory[length - 1] = '\0';
    }
    visit(context, directory);
    while (strlen(directory) > (size_t)root) { /* there is a slash behind the root: paths begin with one */
        *strrchr(directory, '/') = '\0';
        visit(context, directory);
    }
}

/*
 * Groups of version 2 are mounted at the root, those of version 1 under the name of their controller, and a list of
 * several controllers under the names of all, of one, or both ways. A container may have mounted them otherwise than the
 * line says, so the other places are tried, too.
 */
static void walk_line(struct span list, struct span path, const char *controller,
                      control_groups_visitor visit, void *context)
{
    struct span one = {.chars = controller, .length = strlen(controller)};
    struct span none = {.chars = "", .length = 0};
    if (list.length == 0 || is_in_list(list, controller)) {
        walk_up(one, path, visit, context);
        if (list.length > 0 && list.length != one.length) {
            walk_up(list, path, visit, context);
        }
        walk_up(none, path, visit, context);
    }
}

void control_groups_walk_text(const char *text, const char *controller, control_groups_visitor visit,
                              void *context)
{
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        const char *list = memchr(line, ':', length);
        const char *path = list ? memchr(list + 1, ':', (size_t)(line + length - list - 1)) : NULL;
        if (path && path[1] == '/') {
            walk_line((struct span){.chars = list + 1, .length = (size_t)(path - list - 1)},
                      (struct span){.chars = path + 1, .length = (size_t)(line + length - path - 1)},
                      controller, visit, context);
        }
        line += length + (line[length] == '\n');
    }
}

void control_groups_walk(const char *controller, control_groups_visitor visit, void *context)
{
    char text[TEXT_BYTES];
    if (os_read_text("/proc/self/cgroup", text, sizeof text)) {
        control_groups_walk_text(text, controller, visit, context);
    }
}
