/* SPDX-License-Identifier: MIT */
/*
 * What clients say to a rank's server during and after start-up, changed at random. Some clients are on the server's host,
 * some have shown the token over the network, one has not. Whatever they say, the server must read nothing that it may not
 * (the address sanitizer), lose neither memory nor descriptors, and answer a client that comes afterwards.
 *
 * The server's thread is this one: each record is one piece of what a client sends, and the server takes its turns after
 * it. Seeds are what ranks say in start-ups that succeed, and in others (SHOAL_FUZZ_CAPTURE=FOLDER).
 */
#include "bootstrap/server/server.c"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "bootstrap/net/hello.h"
#include "bootstrap/net/request.h"
#include "bootstrap/alive/watch.h"
#include "fuzz/fuzz.h"
#include "fuzz/records.h"
#include "harness/test.h"

#define N_RANKS 4
/* Of what is mixed into a record's `who`. */
#define WHO_MASK 7u
#define WHO_HANGS_UP 0x80u
/* In the place of the library's version, so that seeds outlive a new one. */
#define VERSION 1u
#define TURNS_PER_RECORD 3

enum client_kind {
    CLIENT_HERE,    /* on the server's host */
    CLIENT_REMOTE,  /* over the network, with the token */
    CLIENT_STRANGER /* over the network, without it */
};

static const enum client_kind kinds[] = {CLIENT_HERE,   CLIENT_HERE,   CLIENT_HERE,     CLIENT_REMOTE,
                                         CLIENT_REMOTE, CLIENT_REMOTE, CLIENT_STRANGER, CLIENT_STRANGER};
#define N_CLIENTS (sizeof kinds / sizeof kinds[0])

struct stage {
    struct server *server;
    struct watch *watch;
    int page_fd;
    struct sockaddr_un network; /* a Unix socket in the place of a TCP one, which runs out of ports */
    socklen_t network_bytes;
    int clients[N_CLIENTS]; /* -1: not connected */
};

static unsigned n_heard;

/* What is passed on is two strings. */
static void hear(void *context, const char *name, shoal_status status, const char *text)
{
    (void)context;
    CHECK(strlen(name) > 0 && strlen(name) < CONNECTION_SMALL_BYTES);
    CHECK(strlen(text) > 0 && strlen(text) < ERROR_TEXT_BYTES);
    CHECK(status < SHOAL_OK && status >= SHOAL_ERR_INTERNAL);
    n_heard++;
}

/* The server -------------------------------------------------------------------------------------------- */

static struct card make_card(int rank)
{
    struct card card;
    memset(&card, 0, sizeof card);
    card.magic = CARD_MAGIC;
    card.version = VERSION;
    card.rank = rank;
    card.n_ranks = N_RANKS;
    card.pid = 100 + rank;
    /* Ranks 2 and 3 are on another host. */
    card.claim = 1 + (uint64_t)(rank >= 2);
    card.host = card.claim;
    card.token[0] = 1 + (uint64_t)rank;
    card.address = (struct address){.family = 4, .port = 1, .bytes = {127, 0, 0, 1}};
    card.heartbeat_ms = 10000;
    return card;
}

static void take_turns(struct server *server, int n_turns)
{
    for (int i = 0; i < n_turns; i++) {
        (void)serve_deadlines(server);
        while (close_what_ended(server)) {
        }
        CHECK(wait_for_events(server, /*until_ns=*/0));
    }
    while (close_what_ended(server)) {
    }
}

static int listen_as_network(struct stage *stage)
{
    stage->network = (struct sockaddr_un){.sun_family = AF_UNIX};
    stage->network_bytes = sizeof(sa_family_t); /* the kernel finds a name */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_bound = fd >= 0 && bind(fd, (struct sockaddr *)&stage->network, stage->network_bytes) == 0;
    stage->network_bytes = sizeof stage->network;
    CHECK(is_bound && listen(fd, (int)N_CLIENTS) == 0 &&
          getsockname(fd, (struct sockaddr *)&stage->network, &stage->network_bytes) == 0);
    return fd;
}

static bool open_stage(struct stage *stage)
{
    *stage = (struct stage){.page_fd = -1};
    for (size_t i = 0; i < N_CLIENTS; i++) {
        stage->clients[i] = -1;
    }
    struct card card = make_card(0);
    CHECK(os_random(card.token, sizeof card.token)); /* a name of its own */
    const struct watch_options options = {
        .n_ranks = N_RANKS, .heartbeat_ns = INT64_C(10000000000), .hear = hear};
    stage->page_fd = os_event(); /* a descriptor to pass on, whatever it is */
    if (!CHECK_OK(watch_create(&options, &stage->watch)) || !CHECK_OK(server_create(&card, &stage->server))) {
        return false;
    }
    server_set_hearer(stage->server, hear, NULL);
    CHECK_OK(server_host_meeting(stage->server, NULL, stage->page_fd));
    CHECK_OK(server_open_network(stage->server, listen_as_network(stage), stage->page_fd, stage->watch));
    return true;
}

static void close_stage(struct stage *stage)
{
    for (size_t i = 0; i < N_CLIENTS; i++) {
        close_fd(stage->clients[i]);
    }
    server_free(stage->server);
    watch_free(stage->watch);
    close_fd(stage->page_fd);
}

/* Clients ----------------------------------------------------------------------------------------------- */

/* Proves that it knows the token, as hello_perform does. */
static void shake_hands(struct stage *stage, int fd)
{
    struct hello_head greeting;
    struct welcome welcome;
    struct hello hello;
    const struct proof_key key = {{stage->server->card.token[0], stage->server->card.token[1]}};
    take_turns(stage->server, 2);
    memset(&hello, 0, sizeof hello);
    REQUIRE(recv(fd, &greeting, sizeof greeting, 0) == (ssize_t)sizeof greeting);
    memcpy(hello.head.magic, HELLO_MAGIC, sizeof hello.head.magic);
    hello.head.order = HELLO_ORDER;
    hello.head.version = HELLO_VERSION;
    struct nonces nonces;
    memcpy(nonces.server, greeting.nonce, NONCE_BYTES);
    memcpy(nonces.client, hello.head.nonce, NONCE_BYTES);
    proof_make(&key, /*is_server=*/false, &nonces, hello.proof);
    REQUIRE(send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello);
    take_turns(stage->server, 2);
    REQUIRE(recv(fd, &welcome, sizeof welcome, 0) == (ssize_t)sizeof welcome);
    CHECK_INT(welcome.verdict, HELLO_WELCOME);
}

static int connect_client(struct stage *stage, enum client_kind kind)
{
    int pair[2] = {-1, -1};
    if (kind == CLIENT_HERE) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        add_connection(stage->server, pair[0], /*is_remote=*/false);
        return pair[1];
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(fd, (struct sockaddr *)&stage->network, stage->network_bytes) != 0) {
        (void)close(fd); /* the meeting is over: nobody listens */
        return -1;
    }
    if (kind == CLIENT_REMOTE) {
        shake_hands(stage, fd);
    }
    return fd;
}

/* Takes what the server has answered. Descriptors that come along are dropped by the kernel. False: it has hung up. */
static bool drain(int fd)
{
    char bytes[4096];
    ssize_t received;
    do {
        received = recv(fd, bytes, sizeof bytes, 0);
    } while (received > 0);
    return received < 0 && errno == EAGAIN;
}

static void play(struct stage *stage, const struct record *record)
{
    size_t who = record->who & WHO_MASK;
    int *fd = &stage->clients[who];
    if (*fd < 0) {
        *fd = connect_client(stage, kinds[who]);
    }
    if (*fd < 0) {
        return;
    }
    (void)send(*fd, record->bytes, record->n_bytes, MSG_NOSIGNAL);
    if (record->who & WHO_HANGS_UP) {
        close_fd(*fd);
        *fd = -1;
    }
    take_turns(stage->server, TURNS_PER_RECORD);
    if (*fd >= 0 && !drain(*fd)) {
        close_fd(*fd); /* the next record comes over a new connection */
        *fd = -1;
    }
}

/* Whatever was said before, a client that comes now is answered. */
static void check_server(struct stage *stage)
{
    static const struct {
        struct frame_header header;
        uint32_t key_bytes;
        char key[4];
        uint32_t value_bytes;
        char value[4];
    } __attribute__((packed)) request = {{FRAME_MAGIC, REQUEST_SET, 0, 16}, 4, "key", 4, "yes"};
    struct frame_header answer = {0};
    int fd = connect_client(stage, CLIENT_HERE);
    CHECK(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    take_turns(stage->server, 1);
    CHECK(recv(fd, &answer, sizeof answer, 0) == (ssize_t)sizeof answer);
    CHECK(answer.magic == FRAME_MAGIC && answer.op == REQUEST_SET && answer.status == SHOAL_OK);
    (void)close(fd);
}

/* Seeds ------------------------------------------------------------------------------------------------- */

static struct fuzz_input script;

static void say(unsigned who, uint32_t op, const struct request *request)
{
    unsigned char frame[FUZZ_MAX_BYTES];
    size_t at = sizeof(struct frame_header);
    for (size_t i = 0; i < request->n_parts; i++) {
        memcpy(frame + at, request->parts[i].iov_base, request->parts[i].iov_len);
        at += request->parts[i].iov_len;
    }
    const struct frame_header header = {
        .magic = FRAME_MAGIC, .op = op, .bytes = (uint32_t)(at - sizeof header)};
    memcpy(frame, &header, sizeof header);
    records_add(&script, who, frame, at);
}

static void say_join(unsigned who, int rank)
{
    struct request request = {.op = REQUEST_JOIN};
    struct card card = make_card(rank);
    request_add_bytes(&request, &card, sizeof card);
    say(who, REQUEST_JOIN, &request);
}

/* One request of two texts and numbers at most: "" and 0 for what the row of requests.def does not have. */
static void say_fields(unsigned who, uint32_t op, const char *kinds_of_fields, int64_t number,
                       const char *first, const char *second)
{
    struct request request = {.op = (enum request_number)op};
    const char *texts[] = {first, second, first};
    int n_texts = 0;
    for (const char *kind = kinds_of_fields; *kind; kind++) {
        if (*kind == 'n') {
            request_add_number(&request, number);
        } else if (*kind == 's') {
            const char *text = texts[n_texts++];
            request_add_bytes(&request, text, strlen(text));
        }
    }
    say(who, op, &request);
}

static void say_ready_all(const char *crossing)
{
    static const unsigned who[N_RANKS] = {0, 1, 3, 4};
    for (int rank = 0; rank < N_RANKS; rank++) {
        say_fields(who[rank], REQUEST_READY, "ss", 0, crossing, "");
    }
}

/* All ranks meet, on two hosts, and use the store. */
static void write_meeting(void)
{
    say_join(0, 0);
    say_join(1, 1);
    say_join(3, 2);
    say_join(4, 3);
    say_fields(1, REQUEST_PAGE, "", 0, "", "");
    say_fields(4, REQUEST_ELSEWHERE, "n", 2, "", "");
    say_ready_all("");
    say_ready_all("socket");
    say_fields(5, REQUEST_WATCH, "n", 2, "", "");
}

static void write_store(void)
{
#define REQUEST(name, function, fields, doc) say_fields(2, REQUEST_##name, fields, 8, "name 1", "value");
#include "bootstrap/net/requests.def"
#undef REQUEST
    say_fields(0, REQUEST_GET, "ns", INT64_MAX, "later", "");
    say_fields(1, REQUEST_WAIT, "nss", 1000000, "later", "never");
    say_fields(2, REQUEST_SET, "ss", 0, "later", "now");
    say_fields(2, REQUEST_ADD, "sn", 3, "number", "");
    say_fields(2, REQUEST_FAILED, "nss", SHOAL_ERR_PEER, "group", "rank 1 died");
    say_fields(0, REQUEST_SEGMENT, "sn", 4096, "memory 7", "");
    say_fields(0, REQUEST_DROP_ALL, "s", 0, " 7", "");
}

/* Ranks that do not agree, and one that gives up. */
static void write_failure(void)
{
    say_join(0, 0);
    say_join(3, 2);
    say_fields(0, REQUEST_READY, "ss", 0, "", "");
    say_fields(3, REQUEST_GIVE_UP, "ns", SHOAL_ERR_TIMEOUT, "waited 1.0 s", "");
    say_join(1, 1);
}

static void write_no_reason(void)
{
    say_fields(2, REQUEST_FAILED, "nss", SHOAL_ERR_PEER, "group", "");
}

static void write_stranger(void)
{
    struct hello hello;
    memset(&hello, 0, sizeof hello);
    memcpy(hello.head.magic, HELLO_MAGIC, sizeof hello.head.magic);
    hello.head.order = HELLO_ORDER;
    hello.head.version = HELLO_VERSION;
    records_add(&script, 6, &hello, sizeof hello);
    records_add(&script, 7, "GET / ", 6);
}

static void write_seed(const char *name, void (*write_script)(void))
{
    script.n_bytes = 1;
    write_script();
    fuzz_write_seed(name, &script);
}

TEST(capture)
{
    if (fuzz_capture_folder()) {
        write_seed("meeting", write_meeting);
        write_seed("store", write_store);
        write_seed("failure", write_failure);
        write_seed("stranger", write_stranger);
        write_seed("regression-no-reason", write_no_reason);
    }
}

/* ---------------------------------------------------------------------------------------------------------- */

/* Whether all ranks have met, and know what they cross hosts with. */
static bool has_met(const struct server *server)
{
    return server->meeting->failure == SHOAL_OK && server->meeting->is_second_round &&
           meeting_is_complete(server->meeting);
}

static bool play_all(const unsigned char *bytes, size_t n_bytes)
{
    int program;
    struct record record;
    struct stage stage;
    struct records records = records_begin(bytes, n_bytes, &program);
    /* Segments of any size are asked for. */
    const struct rlimit most = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    const struct rlimit any = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    bool is_met = false;
    (void)setrlimit(RLIMIT_FSIZE, &most);
    if (open_stage(&stage)) {
        while (records_next(&records, &record)) {
            play(&stage, &record);
        }
        check_server(&stage);
        is_met = has_met(stage.server);
    }
    close_stage(&stage);
    (void)setrlimit(RLIMIT_FSIZE, &any);
    error_clear();
    return is_met;
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    (void)play_all(bytes, n_bytes);
}

/* Otherwise the seeds have to be made again. */
TEST(what_was_recorded_is_a_start_up)
{
    static struct fuzz_input input;
    REQUIRE(fuzz_read_seed("server", "meeting", &input));
    CHECK(play_all(input.bytes, input.n_bytes));
    REQUIRE(fuzz_read_seed("server", "store", &input));
    n_heard = 0;
    CHECK(!play_all(input.bytes, input.n_bytes));
    CHECK_INT(n_heard, 1);
}

const struct fuzz_target fuzz_target = {
    .name = "server", .try_input = try_bytes, .has_records = true, .n_rounds = 3000};
