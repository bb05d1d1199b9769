/* SPDX-License-Identifier: MIT */
/*
 * The page of a world and the locks on it.
 *
 * Locks of fcntl belong to a process and a file, not to a descriptor, and closing *any* descriptor of the file
 * drops them all. Thread ranks share a process, so every descriptor of a page that comes into this process is
 * kept until the last of its ranks gives the page up: the table below.
 *
 * Memory order of a rank's words:
 * - pid and process are written before the state becomes ALIVE (release); whoever reads the state with acquire and
 *   sees anything but ABSENT may read them.
 * - LEFT is stored before the lock is given up. A rank that finds the lock free reads the state again. The kernel's own
 *   lock on the file orders the two, so a rank that has left is never taken for dead.
 * - DEAD is put in place of ALIVE by compare-and-exchange, so it never hides LEFT.
 * - n_left is counted up (release) after LEFT was stored; the wait for the end reads it first (acquire).
 */
#include "bootstrap/alive/liveness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/rank_list.h"
#include "bootstrap/alive/watch.h"
#include "sharedmem/segment.h"

#define PAGE_MAGIC 0x314d4853u /* "SHM1" */

/* In shared memory. */
struct member {
    _Atomic uint32_t state;
    int32_t pid;      /* as its own process sees it; for texts only */
    uint64_t process; /* the same for thread ranks of one process */
};

struct page_header {
    uint32_t magic;
    int32_t n_ranks;
    _Atomic uint32_t n_left; /* ranks that wait for the end of the others sleep on this */
    uint32_t padding;
    struct member members[];
};

/* What this process knows of a page; under the table's lock. */
struct page {
    dev_t device;
    ino_t inode;
    struct segment *segment;
    int n_users;
    struct members *users; /* all users so far, also those that are gone: their descriptors must stay open */
    /* The descriptor of a maker that is gone, which must stay open too; -1 if there is none. */
    int maker_fd;
    struct page *next;
};

struct members {
    struct page *page;
    struct page_header *header;
    int n_ranks;
    int rank; /* -1 if this process has made the page, and is none of its ranks */
    int fd;
    bool has_left;
    struct watch *watch;  /* of ranks on other hosts; NULL if there are none */
    struct members *next; /* in the page's list of users */
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct page *table;

__attribute__((constructor)) static void hold_in_forks(void)
{
    fork_hold(FORK_MEMBERS, &table_lock);
}

/* A number that no other process has, not even the parent: made again after a fork. Under the table's lock. */
static uint64_t process_number(void)
{
    static pid_t pid_known;
    static uint64_t number;
    if (pid_known != getpid()) {
        pid_known = getpid();
        if (!os_random(&number, sizeof number)) {
            number = (uint64_t)pid_known << 32 ^ (uint64_t)clock_now_ns();
        }
    }
    return number;
}

static size_t page_bytes(int n_ranks)
{
    return sizeof(struct page_header) + (size_t)n_ranks * sizeof(struct member);
}

/* The table of pages ------------------------------------------------------------------------------------ */

static struct page *find_page(const struct stat *stat)
{
    for (struct page *page = table; page; page = page->next) {
        if (page->device == stat->st_dev && page->inode == stat->st_ino) {
            return page;
        }
    }
    return NULL;
}

static shoal_status add_page(int fd, const struct stat *stat, int n_ranks, struct page **page_out)
{
    struct page *page = mem_alloc(sizeof(*page));
    if (!page) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *page = (struct page){.device = stat->st_dev, .inode = stat->st_ino, .maker_fd = -1, .next = table};
    shoal_status status = segment_map(fd, page_bytes(n_ranks), &page->segment);
    if (status != SHOAL_OK) {
        mem_free(page);
        return status;
    }
    table = page;
    *page_out = page;
    return SHOAL_OK;
}

/* Called when the last user is gone, and no rank of this process has a lock any more. */
static void remove_page(struct page *page)
{
    struct page **link = &table;
    while (*link != page) {
        link = &(*link)->next;
    }
    *link = page->next;
    struct members *next;
    for (struct members *user = page->users; user; user = next) {
        next = user->next;
        (void)close(user->fd);
        mem_free(user);
    }
    if (page->maker_fd >= 0) {
        (void)close(page->maker_fd);
    }
    segment_unref(page->segment);
    mem_free(page);
}

/* Makes the members a user of the page that their descriptor refers to. Under the table's lock. */
static shoal_status enter_page(struct members *members)
{
    struct stat stat;
    if (fstat(members->fd, &stat) != 0) {
        return error_set(SHOAL_ERR_INVALID, "the shared memory with the states of the ranks: %s",
                         strerror(errno));
    }
    struct page *page = find_page(&stat);
    if (!page) {
        TRY(add_page(members->fd, &stat, members->n_ranks, &page));
    }
    page->n_users++;
    members->page = page;
    members->header = segment_base(page->segment);
    members->next = page->users;
    page->users = members;
    return SHOAL_OK;
}

/* Frees a maker. Its descriptor stays with the page. */
static void forget_maker(struct page *page, struct members *maker)
{
    struct members **link = &page->users;
    while (*link != maker) {
        link = &(*link)->next;
    }
    *link = maker->next;
    page->maker_fd = maker->fd;
    mem_free(maker);
}

/* Under the table's lock. Afterwards the members are freed, or kept by the page until its end. */
static void exit_page(struct members *members)
{
    struct page *page = members->page;
    page->n_users--;
    if (page->n_users == 0) {
        remove_page(page);
    } else if (members->rank < 0) {
        forget_maker(page, members);
    }
}

/* Locks ------------------------------------------------------------------------------------------------- */

static shoal_status take_lock(const struct members *members)
{
    if (os_lock_byte(members->fd, members->rank) == 0) {
        return SHOAL_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        return error_set(SHOAL_ERR_STATE, "another process is rank %d already", members->rank);
    }
    return error_set(SHOAL_ERR_SYSTEM, "the file lock of rank %d could not be taken: %s", members->rank,
                     strerror(errno));
}

static void give_up_lock(const struct members *members)
{
    os_unlock_byte(members->fd, members->rank);
}

/* Whether the kernel still holds a rank's lock for another process. */
static bool is_locked_elsewhere(const struct members *members, int rank)
{
    /* Asking cannot fail on a valid descriptor. If it did, the lock would count as held, so that no rank is declared
       dead. */
    return os_is_byte_locked(members->fd, rank);
}

/* Coming and going -------------------------------------------------------------------------------------- */

struct members *members_allocate(void)
{
    return mem_alloc_zeroed(1, sizeof(struct members));
}

shoal_status members_create(int n_ranks, struct members **members_out)
{
    int fd;
    TRY(segment_create_fd("world", page_bytes(n_ranks), &fd));
    struct members *members = members_allocate();
    if (!members) {
        (void)close(fd);
        return SHOAL_ERR_NO_MEMORY;
    }
    *members = (struct members){.n_ranks = n_ranks, .rank = -1, .fd = fd};
    (void)pthread_mutex_lock(&table_lock);
    shoal_status status = enter_page(members);
    if (status == SHOAL_OK) {
        members->header->n_ranks = n_ranks;
        members->header->magic = PAGE_MAGIC;
    }
    (void)pthread_mutex_unlock(&table_lock);
    if (status != SHOAL_OK) {
        (void)close(fd);
        mem_free(members);
        return status;
    }
    *members_out = members;
    return SHOAL_OK;
}

int members_fd(const struct members *members)
{
    return members->fd;
}

/* Under the table's lock: file locks do not exclude threads of one process, and two thread ranks must not both
   become the same rank. */
static shoal_status become_alive(struct members *members)
{
    struct page_header *header = members->header;
    if (header->magic != PAGE_MAGIC || header->n_ranks != members->n_ranks) {
        return error_set(SHOAL_ERR_INVALID,
                         "the shared memory with the states of the ranks is for %d ranks, %d expected",
                         header->n_ranks, members->n_ranks);
    }
    struct member *self = &header->members[members->rank];
    /* Acquire: pairs with the release below, by somebody who has become this rank before. */
    if (atomic_load_explicit(&self->state, memory_order_acquire) != MEMBER_ABSENT) {
        return error_set(SHOAL_ERR_STATE, "process %d is rank %d already", self->pid, members->rank);
    }
    TRY(take_lock(members));
    FAIL_POINT("members locked");
    self->pid = (int32_t)getpid();
    self->process = process_number();
    /* Release: pairs with the acquire of everybody who reads a state. The lock was taken before. */
    atomic_store_explicit(&self->state, MEMBER_ALIVE, memory_order_release);
    return SHOAL_OK;
}

void members_discard(struct members *members)
{
    mem_free(members);
}

shoal_status members_join(struct members *members, int fd, int n_ranks, int rank,
                          struct members **members_out)
{
    *members = (struct members){.n_ranks = n_ranks, .rank = rank, .fd = fd};
    (void)pthread_mutex_lock(&table_lock);
    shoal_status status = enter_page(members);
    if (status != SHOAL_OK) {
        /* The page was not known here, so no rank of this process has a lock that closing could drop. */
        (void)close(fd);
        mem_free(members);
    } else {
        status = become_alive(members);
        if (status != SHOAL_OK) {
            members->has_left = true; /* somebody else is this rank */
            exit_page(members);
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
    if (status == SHOAL_OK) {
        *members_out = members;
    }
    return status;
}

void members_leave(struct members *members)
{
    if (members->rank < 0 || members->has_left) {
        return;
    }
    members->has_left = true;
    struct page_header *header = members->header;
    /* Release: whoever reads the state with acquire sees all that this rank wrote into shared memory. */
    atomic_store_explicit(&header->members[members->rank].state, MEMBER_LEFT, memory_order_release);
    /* Release: pairs with the acquire in members_wait_for_end. */
    atomic_fetch_add_explicit(&header->n_left, 1, memory_order_acq_rel);
    wait_wake_all(&header->n_left, /*is_shared=*/true);
    if (members->watch) {
        watch_leave(members->watch);
    }
}

/* Wakes ranks that wait for the end. They sleep on the number, so it has to change; the states say which ranks have
   left. */
static void wake_waiting(void *context)
{
    struct members *members = context;
    /* Release: pairs with the acquire in members_wait_for_end; the watch has changed the state before. */
    atomic_fetch_add_explicit(&members->header->n_left, 1, memory_order_acq_rel);
    wait_wake_all(&members->header->n_left, /*is_shared=*/true);
}

void members_set_watch(struct members *members, struct watch *watch)
{
    members->watch = watch;
    watch_set_change(watch, wake_waiting, members);
}

void members_free(struct members *members)
{
    if (!members) {
        return;
    }
    members_leave(members);
    (void)pthread_mutex_lock(&table_lock);
    if (members->rank >= 0) {
        give_up_lock(members);
    }
    exit_page(members);
    (void)pthread_mutex_unlock(&table_lock);
}

/* Asking ------------------------------------------------------------------------------------------------ */

static bool is_of_this_process(const struct member *member)
{
    (void)pthread_mutex_lock(&table_lock);
    bool is_same = member->process == process_number();
    (void)pthread_mutex_unlock(&table_lock);
    return is_same;
}

enum member_state members_state(struct members *members, int rank)
{
    if (watch_has(members->watch, rank)) {
        return watch_state(members->watch, rank);
    }
    struct member *member = &members->header->members[rank];
    /* Acquire: pairs with the release that made it alive, or let it leave. */
    uint32_t state = atomic_load_explicit(&member->state, memory_order_acquire);
    /* The kernel does not show a process its own locks. Thread ranks of this process cannot die alone. */
    if (state != MEMBER_ALIVE || is_of_this_process(member) || is_locked_elsewhere(members, rank)) {
        return (enum member_state)state;
    }
    uint32_t expected = MEMBER_ALIVE;
    /* Acquire on failure: the rank has left after the state was read above. */
    if (atomic_compare_exchange_strong_explicit(&member->state, &expected, MEMBER_DEAD, memory_order_acq_rel,
                                                memory_order_acquire)) {
        LOG(SHOAL_LOG_WARN, "rank %d (process %d) died or exited without closing its world", rank,
            member->pid);
        return MEMBER_DEAD;
    }
    return (enum member_state)expected;
}

/* Returns 0 if it is not known. */
static int find_pid(struct members *members, int rank)
{
    if (watch_has(members->watch, rank)) {
        return watch_pid(members->watch, rank);
    }
    struct member *member = &members->header->members[rank];
    /* Acquire: pairs with the release that made it alive. */
    bool is_known = atomic_load_explicit(&member->state, memory_order_acquire) != MEMBER_ABSENT;
    return is_known ? member->pid : 0;
}

static shoal_status fail_dead(struct members *members, int rank)
{
    /* Other processes cannot ask the kernel how a process ended. */
    char how[160] = "died or exited without closing its world";
    if (watch_has(members->watch, rank)) {
        watch_explain(members->watch, rank, how, sizeof how);
    }
    return error_set(SHOAL_ERR_PEER, "rank %d (process %d) %s", rank, find_pid(members, rank), how);
}

shoal_status members_check(struct members *members, int rank)
{
    switch (members_state(members, rank)) {
    case MEMBER_LEFT:
        return error_set(SHOAL_ERR_PEER, "rank %d (process %d) has closed its world", rank,
                         find_pid(members, rank));
    case MEMBER_DEAD:
        return fail_dead(members, rank);
    case MEMBER_ABSENT:
    case MEMBER_ALIVE:
    default:
        return SHOAL_OK;
    }
}

void members_keep(struct members *members)
{
    if (members->watch) {
        watch_keep(members->watch);
    }
}

/* Whether the process of a rank has ended. Asks for its lock, which a rank that has left keeps until members_free. */
static bool has_process_ended(void *context, int rank)
{
    struct members *members = context;
    if (watch_has(members->watch, rank)) {
        return watch_is_gone(members->watch, rank);
    }
    return !is_of_this_process(&members->header->members[rank]) && !is_locked_elsewhere(members, rank);
}

shoal_status members_check_processes(struct members *members)
{
    char ended[RANK_LIST_BYTES];
    int n_ended = rank_list_write(ended, members->n_ranks, has_process_ended, members);
    return n_ended == 0 ? SHOAL_OK
                        : error_set(SHOAL_ERR_PEER, "%s died, exited or cannot be reached any more", ended);
}

/* The end ----------------------------------------------------------------------------------------------- */

static bool is_staying(void *context, int rank)
{
    struct members *members = context;
    return members_state(members, rank) == MEMBER_ALIVE;
}

shoal_status members_wait_for_end(struct members *members, int64_t deadline_ns)
{
    struct page_header *header = members->header;
    for (;;) {
        /* Acquire: pairs with the release in members_leave. It is read before the states: a rank that leaves after the
           look at its state changes it, and the wait below returns. */
        uint32_t n_left = atomic_load_explicit(&header->n_left, memory_order_acquire);
        char staying[RANK_LIST_BYTES];
        if (rank_list_write(staying, members->n_ranks, is_staying, members) == 0) {
            return SHOAL_OK;
        }
        int64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns) {
            return error_set(
                SHOAL_ERR_TIMEOUT,
                "closing the world: %s did not close it in time (close_timeout_s of shoal_world_options)",
                staying);
        }
        int64_t turn_ns = now_ns + WAIT_LIVENESS_NS;
        struct wait_options options = {.deadline_ns = turn_ns < deadline_ns ? turn_ns : deadline_ns,
                                       .is_shared = true,
                                       .what = "the other ranks"};
        shoal_status status = wait_while_equal(&header->n_left, n_left, &options);
        if (status != SHOAL_OK && status != SHOAL_ERR_TIMEOUT) {
            return status;
        }
        error_clear();
    }
}
