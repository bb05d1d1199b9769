/* SPDX-License-Identifier: MIT */
/*
 * What peers say on the connections of the socket module (transport/socket), changed at random: the hello and the welcome
 * of the meeting, the address that a rank publishes, and, behind a handshake that went well, the messages of a group's
 * lanes in a rank that makes calls. The rank must return, read nothing that it may not, and lose neither memory nor
 * descriptors.
 *
 * All bytes of a peer lie in its connection before the rank reads, and the connection ends behind them. Seeds of lanes are
 * those of frames_fuzz.c with the head of a message in front of each (SHOAL_FUZZ_CAPTURE=FOLDER, with the seeds of frames
 * in tests/fuzz/seeds).
 */
#define socket_meet meet_script
#include "transport/socket/endpoint.c"
#undef socket_meet
shoal_status socket_meet(struct endpoint *endpoint, int64_t deadline_ns);
#include "transport/socket/meet.c"
#include "transport/socket/services.c"

#include "fuzz/lanes.h"

#define WHO_MASK 3u
/* The byte that chooses the program: what the lanes run, or one of these. */
#define PROGRAM_MEETING 0xf0 /* records are pieces of what strangers say */
#define PROGRAM_ADDRESS 0xf1 /* the first record is an address, the second what answers there */

/* What the module's entry does. */
__attribute__((constructor)) static void begin(void)
{
    socket_services = &transport_services;
}

/* Lanes ------------------------------------------------------------------------------------------------- */

static struct records script;
static int peer_ends[LANES_RANKS]; /* of the one world that there is at a time */

/* In the place of the meeting: connections on which the peers have said everything. */
shoal_status meet_script(struct endpoint *endpoint, int64_t deadline_ns)
{
    (void)deadline_ns;
    for (int rank = 1; rank < LANES_RANKS; rank++) {
        int pair[2] = {-1, -1};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        struct records records = script;
        struct record record;
        while (records_next(&records, &record)) {
            if ((int)(record.who & WHO_MASK) == rank) {
                (void)send(pair[1], record.bytes, record.n_bytes, MSG_NOSIGNAL);
            }
        }
        (void)shutdown(pair[1], SHUT_WR);
        endpoint->connections[rank].fd = pair[0];
        peer_ends[rank] = pair[1];
    }
    return SHOAL_OK;
}

/* Peers take what the rank sends, so that it never waits for them. */
static void drain_progress(struct endpoint *endpoint)
{
    char bytes[4096];
    for (int rank = 1; rank < LANES_RANKS; rank++) {
        while (recv(peer_ends[rank], bytes, sizeof bytes, 0) > 0) {
        }
    }
    socket_kind.progress(endpoint);
}

static void run_lanes(int program, bool must_succeed)
{
    static struct endpoint_kind kind;
    struct lanes lanes;
    kind = socket_kind;
    kind.name = "script";
    kind.progress = drain_progress;
    if (lanes_open(&lanes, &kind, 0, /*is_alone=*/true)) {
        lanes_take_all(&lanes);
        lanes_run(&lanes, program, must_succeed);
        lanes_close(&lanes);
    }
    for (int rank = 1; rank < LANES_RANKS; rank++) {
        (void)close(peer_ends[rank]);
    }
}

/* The meeting ------------------------------------------------------------------------------------------- */

static const unsigned char token[TOKEN_BYTES] = {1, 2, 3};

#define N_STRANGERS ((int)WHO_MASK + 1)

static shoal_status script_get(void *context, const char *key, void *value, size_t capacity,
                               int64_t deadline_ns, size_t *bytes_out)
{
    const struct record *record = context;
    (void)key;
    (void)deadline_ns;
    *bytes_out = record->n_bytes < capacity ? record->n_bytes : capacity;
    memcpy(value, record->bytes, *bytes_out);
    return SHOAL_OK;
}

static shoal_status script_check(void *context, int rank)
{
    (void)context;
    return error_set(SHOAL_ERR_PEER, "rank %d (process 1) has closed its world", rank);
}

/* What strangers say to a rank that listens. One that says the right thing is a peer. */
static void meet_strangers(struct records records)
{
    struct connection connections[LANES_RANKS] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
    const struct transport_world world = {.rank = 0, .n_ranks = LANES_RANKS, .check_rank = script_check};
    struct endpoint endpoint = {.world = &world, .connections = connections};
    struct listener listener = {.fd = -1};
    struct stranger strangers[N_STRANGERS];
    int ends[N_STRANGERS];
    struct record record;
    memcpy(listener.token, token, sizeof token);
    for (int i = 0; i < N_STRANGERS; i++) {
        int pair[2] = {-1, -1};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        strangers[i] = (struct stranger){.fd = pair[0]};
        ends[i] = pair[1];
    }
    while (records_next(&records, &record)) {
        int i = (int)(record.who & WHO_MASK);
        (void)send(ends[i], record.bytes, record.n_bytes, MSG_NOSIGNAL);
        if (strangers[i].fd >= 0) {
            hear_stranger(&endpoint, &listener, &strangers[i]);
        }
    }
    for (int i = 0; i < N_STRANGERS; i++) {
        if (strangers[i].fd >= 0) {
            (void)close(strangers[i].fd);
        }
        (void)close(ends[i]);
    }
    for (int rank = 0; rank < LANES_RANKS; rank++) {
        if (connections[rank].fd >= 0) {
            (void)close(connections[rank].fd);
        }
    }
}

static void read_address(struct records records)
{
    struct record record = {.bytes = (const unsigned char *)""};
    struct transport_world world = {
        .rank = 1, .n_ranks = LANES_RANKS, .context = &record, .check_rank = script_check, .get = script_get};
    struct listener listener = {.fd = -1};
    (void)records_next(&records, &record);
    int64_t deadline_ns = clock_deadline_after(20);
    if (look_up(&world, 0, deadline_ns, &listener) == SHOAL_OK) {
        struct addrinfo *address = NULL;
        CHECK(strlen(listener.host) < sizeof listener.host);
        if (resolve(listener.host, listener.port, &address) == SHOAL_OK) {
            freeaddrinfo(address);
        }
    }
    int pair[2] = {-1, -1};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    while (records_next(&records, &record)) {
        (void)send(pair[1], record.bytes, record.n_bytes, MSG_NOSIGNAL);
    }
    (void)close(pair[1]);
    (void)await_welcome(&world, 0, pair[0], deadline_ns);
    (void)close(pair[0]);
}

/* ---------------------------------------------------------------------------------------------------------- */

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    int program;
    script = records_begin(bytes, n_bytes, &program);
    switch (program) {
    case PROGRAM_MEETING:
        meet_strangers(script);
        break;
    case PROGRAM_ADDRESS:
        read_address(script);
        break;
    default:
        run_lanes(program, /*must_succeed=*/false);
        break;
    }
    error_clear();
}

/* Otherwise the seeds have to be made again. */
TEST(calls_succeed_with_what_was_recorded)
{
    static struct fuzz_input input;
    for (int i = 0; i < LANES_PROGRAMS; i++) {
        int program;
        char name[32];
        (void)snprintf(name, sizeof name, "program-%d", i);
        REQUIRE(fuzz_read_seed("lane", name, &input));
        script = records_begin(input.bytes, input.n_bytes, &program);
        run_lanes(program, /*must_succeed=*/true);
    }
}

/* Seeds ------------------------------------------------------------------------------------------------- */

/* The messages of a seed of frames, as the module sends them. */
static void convert_frames(int program)
{
    char name[32];
    static struct fuzz_input frames;
    static struct fuzz_input seed;
    struct record record;
    (void)snprintf(name, sizeof name, "program-%d", program);
    REQUIRE(fuzz_read_seed("frames", name, &frames));
    struct records records = records_begin(frames.bytes, frames.n_bytes, &program);
    seed = (struct fuzz_input){.bytes = {(unsigned char)program}, .n_bytes = 1};
    while (records_next(&records, &record)) {
        const struct wire_head head = {.magic = MAGIC, .bytes = (uint32_t)record.n_bytes};
        records_add(&seed, record.who & WHO_MASK, &head, sizeof head);
        records_add(&seed, record.who & WHO_MASK, record.bytes, record.n_bytes);
    }
    fuzz_write_seed(name, &seed);
}

TEST(capture)
{
    static const char address[] = "127.0.0.1 40123 01020300000000000000000000000000";
    struct hello hello = {.rank = 1, .n_ranks = LANES_RANKS};
    if (!fuzz_capture_folder()) {
        return;
    }
    for (int program = 0; program < LANES_PROGRAMS; program++) {
        convert_frames(program);
    }
    static struct fuzz_input seed;
    seed = (struct fuzz_input){.bytes = {PROGRAM_MEETING}, .n_bytes = 1};
    memcpy(hello.magic, hello_magic, sizeof hello.magic);
    memcpy(hello.token, token, sizeof token);
    records_add(&seed, 0, &hello, 10);
    records_add(&seed, 0, (const char *)&hello + 10, sizeof hello - 10);
    records_add(&seed, 1, &hello, sizeof hello);
    hello.rank = 2;
    records_add(&seed, 2, &hello, sizeof hello);
    fuzz_write_seed("meeting", &seed);
    seed = (struct fuzz_input){.bytes = {PROGRAM_ADDRESS}, .n_bytes = 1};
    records_add(&seed, 0, address, sizeof address - 1);
    records_add(&seed, 0, welcome, sizeof welcome);
    fuzz_write_seed("address", &seed);
    seed = (struct fuzz_input){.bytes = {PROGRAM_ADDRESS}, .n_bytes = 1};
    records_add(&seed, 0, "!no descriptors", 15);
    fuzz_write_seed("failed", &seed);
}

const struct fuzz_target fuzz_target = {
    .name = "lane", .try_input = try_bytes, .has_records = true, .n_rounds = 1000};
