/* SPDX-License-Identifier: MIT */
/* The store: what its calls mean, waiting, several threads and ranks at once, bad arguments, bad clients. */
#include "shoal/store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/server/answers.h"
#include "bootstrap/server/client.h"
#include "bootstrap/net/requests.h"
#include "comm/group/world.h"
#include "fixtures/world_segment.h"
#include "harness/test.h"
#include "sharedmem/segment.h"

static shoal_world *open_alone(void)
{
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static shoal_world *open_rank(struct rank *self)
{
    char *key = (char *)self->shared + TEST_SHARED_BYTES - 128;
    if (self->rank == 0) {
        (void)snprintf(key, 128, "store_test %" PRIx64 " %p", test_process_number((int)getpid()),
                       (void *)key);
    }
    test_barrier(self);
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = self->n_ranks, .rank = self->rank, .key = key};
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static void check_value(shoal_store *store, const char *key, const char *expected)
{
    char value[256] = "";
    size_t bytes = 0;
    CHECK_OK(shoal_store_get(store, key, value, sizeof value - 1, 0, &bytes));
    value[bytes < sizeof value ? bytes : 0] = '\0';
    CHECK_INT(bytes, strlen(expected));
    CHECK_STRING(value, expected);
}

TEST(set_get_delete_check)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    const char *keys[] = {"a", "b"};
    bool flag = true;
    CHECK_OK(shoal_store_check(store, keys, 2, &flag));
    CHECK(!flag);
    CHECK_OK(shoal_store_set(store, "a", "one", 3));
    check_value(store, "a", "one");
    CHECK_OK(shoal_store_set(store, "a", "three", 5));
    check_value(store, "a", "three");
    CHECK_OK(shoal_store_check(store, keys, 2, &flag));
    CHECK(!flag);
    CHECK_OK(shoal_store_set(store, "b", NULL, 0));
    check_value(store, "b", "");
    CHECK_OK(shoal_store_check(store, keys, 2, &flag));
    CHECK(flag);
    CHECK_OK(shoal_store_check(store, NULL, 0, &flag));
    CHECK(flag);
    CHECK_OK(shoal_store_wait(store, keys, 2, 0));
    CHECK_OK(shoal_store_wait(store, NULL, 0, 0));
    CHECK_OK(shoal_store_delete(store, "a", &flag));
    CHECK(flag);
    CHECK_OK(shoal_store_delete(store, "a", &flag));
    CHECK(!flag);
    CHECK_OK(shoal_store_delete(store, "b", NULL));
    CHECK_OK(shoal_world_close(world));
}

TEST(add_keeps_decimal_text)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    int64_t sum = -1;
    CHECK_OK(shoal_store_add(store, "n", 0, &sum));
    CHECK_INT(sum, 0);
    check_value(store, "n", "0");
    CHECK_OK(shoal_store_add(store, "n", 41, &sum));
    CHECK_OK(shoal_store_add(store, "n", 1, &sum));
    CHECK_INT(sum, 42);
    check_value(store, "n", "42");
    CHECK_OK(shoal_store_add(store, "n", -50, &sum));
    check_value(store, "n", "-8");
    CHECK_OK(shoal_store_set(store, "n", "7", 1));
    CHECK_OK(shoal_store_add(store, "n", 1, &sum));
    CHECK_INT(sum, 8);
    CHECK_OK(shoal_store_set(store, "n", "seven", 5));
    CHECK_STATUS(shoal_store_add(store, "n", 1, &sum), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the value of the key \"n\" is \"seven\", a number expected");
    CHECK_OK(shoal_store_set(store, "n", "7\0", 2));
    CHECK_STATUS(shoal_store_add(store, "n", 1, &sum), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_store_set(store, "n", NULL, 0));
    CHECK_STATUS(shoal_store_add(store, "n", 1, &sum), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_store_delete(store, "n", NULL));
    CHECK_OK(shoal_store_add(store, "n", INT64_MAX, &sum));
    CHECK_STATUS(shoal_store_add(store, "n", 1, &sum), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("does not fit 64 bits");
    CHECK_OK(shoal_store_add(store, "n", INT64_MIN, &sum));
    CHECK_INT(sum, -1);
    CHECK_OK(shoal_world_close(world));
}

TEST(compare_set_in_all_four_cases)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    bool was_set = true;
    CHECK_OK(shoal_store_compare_set(store, "k", "x", 1, "y", 1, &was_set));
    CHECK(!was_set);
    CHECK_OK(shoal_store_check(store, (const char *const[]){"k"}, 1, &was_set));
    CHECK(!was_set);
    CHECK_OK(shoal_store_compare_set(store, "k", NULL, 0, "first", 5, &was_set));
    CHECK(was_set);
    check_value(store, "k", "first");
    CHECK_OK(shoal_store_compare_set(store, "k", "other", 5, "second", 6, &was_set));
    CHECK(!was_set);
    check_value(store, "k", "first");
    CHECK_OK(shoal_store_compare_set(store, "k", "first", 5, "second", 6, &was_set));
    CHECK(was_set);
    check_value(store, "k", "second");
    CHECK_OK(shoal_store_compare_set(store, "k", NULL, 0, "third", 5, &was_set));
    CHECK(!was_set);
    CHECK_OK(shoal_world_close(world));
}

TEST(large_values_and_many_keys)
{
    static char value[1024 * 1024];
    static char back[1024 * 1024];
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    struct test_random random = test_random_begin(1);
    for (size_t i = 0; i < sizeof value; i++) {
        value[i] = (char)test_random_u64(&random);
    }
    CHECK_OK(shoal_store_set(store, "large", value, sizeof value));
    size_t bytes = 0;
    CHECK_OK(shoal_store_get(store, "large", back, sizeof back, 0, &bytes));
    CHECK_INT(bytes, sizeof back);
    CHECK_BYTES(back, value, sizeof value);
    bool was_set = false;
    CHECK_OK(shoal_store_compare_set(store, "large", value, sizeof value, back, sizeof back, &was_set));
    CHECK(was_set);
    /* One byte too many, and a place too small. */
    CHECK_STATUS(shoal_store_set(store, "large", value, sizeof value + 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has 1048577 bytes, at most 1048576");
    memset(back, 0, 16);
    CHECK_STATUS(shoal_store_get(store, "large", back, 8, 0, &bytes), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has 1048576 bytes, capacity is 8");
    CHECK_INT(bytes, sizeof value);
    CHECK_BYTES(back, value, 8);
    CHECK_INT(back[8], 0);
    const char *keys[1000];
    static char names[1000][256];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(names[i], sizeof names[i], "%0255d", i);
        keys[i] = names[i];
        CHECK_OK(shoal_store_set(store, names[i], &i, sizeof i));
    }
    bool exist = false;
    CHECK_OK(shoal_store_check(store, keys, 1000, &exist));
    CHECK(exist);
    CHECK_OK(shoal_store_delete(store, names[500], NULL));
    CHECK_STATUS(shoal_store_wait(store, keys, 1000, 0.02), SHOAL_ERR_TIMEOUT);
    for (int i = 0; i < 1000; i += 7) {
        int number = -1;
        CHECK_OK(shoal_store_get(store, names[i], &number, sizeof number, 0, &bytes));
        CHECK_INT(number, i);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(waits_end_by_their_time)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    char value[8];
    size_t bytes = 0;
    int64_t start_ns = clock_now_ns();
    CHECK_STATUS(shoal_store_get(store, "never", value, sizeof value, 0.1, &bytes), SHOAL_ERR_TIMEOUT);
    CHECK(clock_now_ns() - start_ns >= 100000000);
    CHECK_ERROR_TEXT(" s (timeout_s) for the key \"never\"");
    CHECK_STATUS(shoal_store_get(store, "never", value, sizeof value, 0, &bytes), SHOAL_ERR_TIMEOUT);
    CHECK_OK(shoal_store_set(store, "there", "x", 1));
    const char *keys[] = {"there", "first", "second"};
    CHECK_STATUS(shoal_store_wait(store, keys, 3, 0.05), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("for the key \"first\" and 1 more of 3");
    /* After that everything goes on. */
    check_value(store, "there", "x");
    CHECK_OK(shoal_world_close(world));
}

TEST(arguments_are_checked)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    char value[8];
    size_t bytes = 0;
    int64_t sum = 0;
    bool flag = false;
    char long_key[300];
    memset(long_key, 'k', sizeof long_key);
    long_key[256] = '\0';
    CHECK_STATUS(shoal_store_set(NULL, "k", "v", 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_set(store, NULL, "v", 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_set(store, "", "v", 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_set(store, long_key, "v", 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("256 bytes, 1 to 255 expected");
    CHECK_STATUS(shoal_store_set(store, "a\nb", "v", 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is the control character 0x0a");
    CHECK_STATUS(shoal_store_set(store, "shoal/x", "v", 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("keys that begin with \"shoal/\" are reserved");
    CHECK_STATUS(shoal_store_set(store, "k", NULL, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_get(store, "k", NULL, 1, 0, &bytes), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_get(store, "k", value, 1, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_get(store, "k", value, 1, 0.0 / 0.0, &bytes), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_add(store, "k", 1, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_add(store, "", 1, &sum), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_compare_set(store, "k", NULL, 1, "", 0, &flag), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_compare_set(store, "k", "", 0, NULL, 1, &flag), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_compare_set(store, "k", "", 0, "", 0, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_wait(store, NULL, 1, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_wait(store, (const char *const[]){"a", NULL}, 2, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_check(store, NULL, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_store_delete(store, NULL, &flag), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* Ranks ------------------------------------------------------------------------------------------------- */

TEST_RANKS(ranks_share_one_store, 4)
{
    shoal_world *world = open_rank(self);
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    char key[32];
    (void)snprintf(key, sizeof key, "rank %d", self->rank);
    CHECK_OK(shoal_store_set(store, key, &self->rank, sizeof self->rank));
    for (int i = 0; i < self->n_ranks; i++) {
        int rank = -1;
        size_t bytes = 0;
        (void)snprintf(key, sizeof key, "rank %d", i);
        CHECK_OK(shoal_store_get(store, key, &rank, sizeof rank, 20, &bytes));
        CHECK_INT(rank, i);
    }
    int64_t sum = 0;
    for (int i = 0; i < 50; i++) {
        CHECK_OK(shoal_store_add(store, "sum", self->rank + 1, &sum));
    }
    CHECK_OK(shoal_store_add(store, "came", 1, &sum));
    if (sum == self->n_ranks) {
        CHECK_OK(shoal_store_set(store, "all", NULL, 0));
    }
    CHECK_OK(shoal_store_wait(store, (const char *const[]){"all"}, 1, -1));
    CHECK_OK(shoal_store_add(store, "sum", 0, &sum));
    CHECK_INT(sum, 50 * (1 + 2 + 3 + 4));
    /* One of all takes it. */
    bool was_set = false;
    CHECK_OK(shoal_store_compare_set(store, "mine", NULL, 0, &self->rank, sizeof self->rank, &was_set));
    CHECK_OK(shoal_store_add(store, "takers", was_set ? 1 : 0, &sum));
    test_barrier(self);
    CHECK_OK(shoal_store_add(store, "takers", 0, &sum));
    CHECK_INT(sum, 1);
    CHECK_OK(shoal_world_close(world));
}

#define N_THREADS 6

struct waiting_thread {
    shoal_store *store;
    int number;
    pthread_t thread;
};

static void *wait_for_own_key(void *argument)
{
    struct waiting_thread *self = argument;
    char key[32];
    char value[8];
    size_t bytes = 0;
    (void)snprintf(key, sizeof key, "thread %d", self->number);
    CHECK_OK(shoal_store_get(self->store, key, value, sizeof value, 30, &bytes));
    /* The next one is let go by this one. */
    (void)snprintf(key, sizeof key, "thread %d", self->number - 1);
    CHECK_OK(shoal_store_set(self->store, key, "go", 2));
    return NULL;
}

TEST(a_call_that_waits_holds_up_nobody)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    struct waiting_thread threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        threads[i] = (struct waiting_thread){.store = shoal_world_store(world), .number = i + 1};
        REQUIRE(pthread_create(&threads[i].thread, NULL, wait_for_own_key, &threads[i]) == 0);
    }
    CHECK_OK(shoal_store_set(shoal_world_store(world), "other", "x", 1));
    char key[32];
    (void)snprintf(key, sizeof key, "thread %d", N_THREADS);
    CHECK_OK(shoal_store_set(shoal_world_store(world), key, "go", 2));
    char value[8];
    size_t bytes = 0;
    CHECK_OK(shoal_store_get(shoal_world_store(world), "thread 0", value, sizeof value, 30, &bytes));
    for (int i = 0; i < N_THREADS; i++) {
        (void)pthread_join(threads[i].thread, NULL);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Segments ---------------------------------------------------------------------------------------------- */

TEST_RANKS(segments_are_the_same_for_all, 3)
{
    shoal_world *world = open_rank(self);
    REQUIRE(world != NULL);
    for (int holder = 0; holder < self->n_ranks; holder++) {
        char name[32];
        (void)snprintf(name, sizeof name, "segment of %d", holder);
        struct segment *segment = NULL;
        REQUIRE_OK(world_open_segment(world, holder, name, 8192, clock_deadline_after(20), &segment));
        _Atomic int *words = segment_base(segment);
        words[self->rank * 16] = self->rank + 1;
        test_barrier(self);
        for (int i = 0; i < self->n_ranks; i++) {
            CHECK_INT(words[i * 16], i + 1);
        }
        struct segment *other = NULL;
        CHECK_STATUS(world_open_segment(world, holder, name, 4096, clock_deadline_after(20), &other),
                     SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("exists with another size: 4096 bytes are requested, it has 8192");
        test_barrier(self);
        if (self->rank == 0) {
            CHECK_OK(world_drop_segment(world, holder, name, clock_deadline_after(20)));
        }
        test_barrier(self);
        /* A new one under the old name; the old one is still whole. */
        REQUIRE_OK(world_open_segment(world, holder, name, 4096, clock_deadline_after(20), &other));
        CHECK(other != segment);
        CHECK_INT(*(_Atomic int *)segment_base(segment), 1);
        segment_unref(other);
        segment_unref(segment);
    }
    struct segment *huge = NULL;
    CHECK_STATUS(world_open_segment(world, 0, "huge", (size_t)1 << 50, clock_deadline_after(20), &huge),
                 SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("GiB are free");
    CHECK_STATUS(world_open_segment(world, 0, "none", 0, clock_deadline_after(20), &huge), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* Descriptors that the program closes ------------------------------------------------------------------- */

/* The connection of the next request is a descriptor that is closed, or that has become one of the program's files. */
static void use_after_close(shoal_world *world, bool is_reused)
{
    char value[8];
    size_t bytes = 0;
    char text[96];
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    (void)(is_reused ? 0 : close(fd));
    client_keep(world->client, 0, fd);
    CHECK_STATUS(shoal_store_get(shoal_world_store(world), "key", value, sizeof value, 5, &bytes),
                 SHOAL_ERR_SYSTEM);
    (void)snprintf(text, sizeof text, "a request to rank 0: this process has closed descriptor %d", fd);
    CHECK_ERROR_TEXT(text);
    CHECK(strstr(shoal_error_text(), "has ended") == NULL);
    CHECK(!is_reused || close(fd) == 0);                                /* the library has left it alone */
    CHECK_OK(shoal_store_set(shoal_world_store(world), "key", "x", 1)); /* on another connection */
}

TEST(descriptors_that_the_program_has_closed)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    use_after_close(world, /*is_reused=*/false);
    use_after_close(world, /*is_reused=*/true);
    CHECK_OK(shoal_world_close(world));
}

/* Bad clients ------------------------------------------------------------------------------------------- */

static int connect_raw(shoal_world *world)
{
    char name[SOCKET_NAME_BYTES];
    card_server_name(&world->server->card, name);
    int fd = -1;
    CHECK_OK(socket_connect(name, &fd));
    return fd;
}

static void send_raw(int fd, const void *bytes, size_t n_bytes)
{
    (void)send(fd, bytes, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* True once the server has closed the connection; what it says before is read and thrown away. */
static bool is_hung_up(int fd)
{
    char buffer[4096];
    int64_t deadline_ns = clock_deadline_after(20);
    while (clock_now_ns() < deadline_ns) {
        size_t received = 0;
        if (socket_read_now(fd, buffer, sizeof buffer, &received) == SOCKET_GONE) {
            return true;
        }
    }
    return false;
}

TEST(what_is_no_request_ends_its_client_only)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    CHECK_OK(shoal_store_set(store, "k", "v", 1));
    static const struct frame_header headers[] = {
        {.magic = 0, .op = 0, .bytes = 0},
        {.magic = FRAME_MAGIC, .op = 0, .bytes = UINT32_MAX},
        {.magic = FRAME_MAGIC, .op = REQUEST_COUNT, .bytes = 0},
        {.magic = FRAME_MAGIC, .op = UINT32_MAX, .bytes = 0},
        {.magic = FRAME_MAGIC, .op = REQUEST_SET, .bytes = 0},
        {.magic = FRAME_MAGIC, .op = REQUEST_SEGMENT, .bytes = 0},
        {.magic = FRAME_MAGIC, .op = REQUEST_READY, .bytes = 0},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        int fd = connect_raw(world);
        send_raw(fd, &headers[i], sizeof headers[i]);
        CHECK(is_hung_up(fd));
        (void)close(fd);
        check_value(store, "k", "v");
    }
    CHECK_OK(shoal_world_close(world));
}

/* Every op with payloads of all kinds of wrong, cut off anywhere, many at a time. */
TEST(noise_does_no_harm)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    CHECK_OK(shoal_store_set(store, "k", "v", 1));
    struct test_random random = test_random_begin(2);
    int fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    for (int i = 0; i < 2000 && !test_has_failed(); i++) {
        struct {
            struct frame_header header;
            unsigned char payload[240];
        } noise;
        for (size_t byte = 0; byte < sizeof noise.payload; byte++) {
            /* Small lengths are what gets furthest. */
            noise.payload[byte] = (unsigned char)test_random_below(&random, byte % 4 == 0 ? 20 : 2);
        }
        noise.header = (struct frame_header){.magic = FRAME_MAGIC,
                                             .op = (uint32_t)test_random_below(&random, REQUEST_COUNT + 1),
                                             .bytes = (uint32_t)test_random_below(&random, 200)};
        if (noise.header.op == REQUEST_SEGMENT) {
            continue; /* it could ask for gigabytes, and rightly get them */
        }
        size_t slot = test_random_below(&random, 8);
        if (fds[slot] < 0 || test_random_below(&random, 4) == 0) {
            if (fds[slot] >= 0) {
                (void)close(fds[slot]);
            }
            fds[slot] = connect_raw(world);
            REQUIRE(fds[slot] >= 0);
        }
        size_t whole = sizeof noise.header + noise.header.bytes;
        send_raw(fds[slot], &noise,
                 test_random_below(&random, 3) == 0 ? test_random_below(&random, whole) : whole);
        if (i % 100 == 0) {
            check_value(store, "k", "v");
        }
    }
    for (size_t i = 0; i < 8; i++) {
        (void)close(fds[i]);
    }
    check_value(store, "k", "v");
    CHECK_OK(shoal_world_close(world));
}

/* A client that asks and never reads, and one that sends half a request, cost the others nothing. */
TEST(a_client_that_does_not_read_holds_up_nobody)
{
    static char value[1024 * 1024];
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    CHECK_OK(shoal_store_set(store, "large", value, sizeof value));
    int deaf = connect_raw(world);
    struct {
        struct frame_header header;
        int64_t wait_ns;
        uint32_t key_bytes;
        char key[5];
    } __attribute__((packed)) get = {.header = {.magic = FRAME_MAGIC, .op = REQUEST_GET, .bytes = 17},
                                     .key_bytes = 5,
                                     .key = {'l', 'a', 'r', 'g', 'e'}};
    for (int i = 0; i < 8; i++) {
        send_raw(deaf, &get, sizeof get);
    }
    int half = connect_raw(world);
    send_raw(half, &get, 20);
    for (int i = 0; i < 10; i++) {
        CHECK_OK(shoal_store_set(store, "k", "v", 1));
        check_value(store, "k", "v");
    }
    (void)close(deaf);
    (void)close(half);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status use_store(void *context)
{
    shoal_store *store = context;
    int64_t sum = 0;
    char value[64];
    static const char large[4096];
    size_t bytes = 0;
    bool flag = false;
    const char *keys[] = {"swept", "large"};
    shoal_status status = shoal_store_add(store, "swept", 1, &sum);
    status = status == SHOAL_OK ? shoal_store_set(store, "large", large, sizeof large) : status;
    status = status == SHOAL_OK ? shoal_store_wait(store, keys, 2, 1) : status;
    status = status == SHOAL_OK ? shoal_store_get(store, "swept", value, sizeof value, 1, &bytes) : status;
    shoal_status deleted = shoal_store_delete(store, "swept", &flag);
    shoal_status also = shoal_store_delete(store, "large", &flag);
    status = status == SHOAL_OK ? deleted : status;
    return status == SHOAL_OK ? also : status;
}

/* What is allocated for a request is given back; the server's thread fails like any other. */
TEST(requests_without_memory)
{
    shoal_world *world = open_alone();
    REQUIRE(world != NULL);
    shoal_store *store = shoal_world_store(world);
    REQUIRE_OK(use_store(store));
    for (size_t number = 1; number < 100 && !test_has_failed(); number++) {
        test_fail_allocation(number, /*is_lasting=*/false);
        shoal_status status = use_store(store);
        size_t n_allocations = test_count_allocations();
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
        (void)use_store(store);
        if (n_allocations < number) {
            CHECK(number > 5);
            break;
        }
    }
    CHECK_OK(shoal_world_close(world));
}
