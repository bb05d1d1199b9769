/* SPDX-License-Identifier: MIT */
/*
 * What rank 0's server answers to a rank at start-up, changed at random: the handshake over the network, the leader of the
 * host with the page of its states, and the cards of all ranks. The rank must return, read nothing that it may not, and
 * lose neither memory nor descriptors; cards that it accepts must be usable.
 *
 * All answers lie in the socket before the rank asks, and the connection ends behind them. The numbers that the rank draws
 * for the handshake are constant, so that a handshake can be recorded.
 */
#include "base/os/os.h"

#include <string.h>

/* In the place of the system's random numbers. */
static bool draw_nonce(void *bytes, size_t n_bytes)
{
    memset(bytes, 7, n_bytes);
    return true;
}
#define os_random draw_nonce
#include "bootstrap/net/hello.c"
#undef os_random
#include "bootstrap/meet/rendezvous.c"

#include <stdlib.h>
#include <sys/socket.h>

#include "bootstrap/net/address.h"
#include "bootstrap/alive/liveness.h"
#include "fuzz/fuzz.h"
#include "fuzz/records.h"
#include "harness/test.h"

#define N_RANKS 3
/* Of what is mixed into a record's `who`: a descriptor comes along. */
#define WHO_PAGE 0x40u  /* of a page */
#define WHO_EVENT 0x20u /* of something else */

enum program {
    PROGRAM_HELLO,
    PROGRAM_MEETING, /* joins, takes the page, and gets the cards */
    PROGRAM_TCP,     /* the same over the network: no page comes along */
    N_PROGRAMS
};

static const struct proof_key key = {{1, 2}};

static struct card make_card(void)
{
    struct card card;
    memset(&card, 0, sizeof card);
    card.magic = CARD_MAGIC;
    card.version = 1;
    card.rank = 1;
    card.n_ranks = N_RANKS;
    card.token[0] = 5;
    return card;
}

/* The answers ------------------------------------------------------------------------------------------- */

static void send_record(int fd, const struct record *record, int passed_fd)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)record->bytes, .iov_len = record->n_bytes};
    size_t sent = 0;
    if (record->n_bytes > 0) {
        (void)socket_write_now(fd, &part, 1, passed_fd, &sent);
    }
}

/* The rank's end of a connection on which all records have been sent. */
static int connect_to_answers(struct records records, int *other_out)
{
    int pair[2] = {-1, -1};
    struct record record;
    struct members *members = NULL;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    while (records_next(&records, &record)) {
        int event = record.who & WHO_EVENT ? os_event() : -1;
        if (record.who & WHO_PAGE && !members) {
            CHECK_OK(members_create(N_RANKS, &members));
        }
        send_record(pair[1], &record, record.who & WHO_PAGE ? members_fd(members) : event);
        if (event >= 0) {
            (void)close(event);
        }
    }
    members_free(members);
    (void)shutdown(pair[1], SHUT_WR);
    *other_out = pair[1];
    return pair[0];
}

/* The rank ---------------------------------------------------------------------------------------------- */

static void use_cards(const struct card *cards)
{
    char text[ADDRESS_TEXT_BYTES];
    struct sockaddr_storage system;
    for (int rank = 0; rank < N_RANKS; rank++) {
        CHECK_INT(cards[rank].rank, rank);
        CHECK(strlen(address_text(&cards[rank].address, text)) < sizeof text);
        CHECK(strlen(address_host(&cards[rank].address, text)) < sizeof text);
        CHECK(address_to_system(&cards[rank].address, &system) <= sizeof system);
    }
    (void)card_has_several_hosts(cards, N_RANKS);
}

static shoal_status join(struct rendezvous *rendezvous, int *page_fd_out)
{
    struct request request = {.op = REQUEST_JOIN};
    request_add_bytes(&request, rendezvous->card, sizeof *rendezvous->card);
    struct card_leader leader;
    struct frame frame;
    TRY(ask_for_leader(rendezvous, &request, &leader, &frame));
    if (leader.rank == 0 && !rendezvous->is_tcp) {
        return take_page(&frame, page_fd_out);
    }
    frame_clear(&frame);
    return find_page(rendezvous, leader, page_fd_out);
}

static shoal_status meet(int fd, bool is_tcp)
{
    struct card card = make_card();
    struct card cards[N_RANKS];
    int page_fd = -1;
    struct rendezvous rendezvous = {.card = &card,
                                    .deadline_ns = clock_now_ns() + INT64_C(10000000000),
                                    .page_fd = os_event(),
                                    .fd = fd,
                                    .is_tcp = is_tcp};
    shoal_status status = join(&rendezvous, &page_fd);
    if (status == SHOAL_OK) {
        struct members *members = NULL;
        int copy = os_duplicate(page_fd);
        struct members *memory = members_allocate();
        if (members_join(memory, copy, N_RANKS, card.rank, &members) == SHOAL_OK) {
            members_free(members);
        }
        status = rendezvous_complete(&rendezvous, NULL, NULL, cards);
    }
    if (status == SHOAL_OK) {
        use_cards(cards);
        (void)rendezvous_complete(&rendezvous, NULL, NULL, NULL);
    } else {
        CHECK(shoal_error_text()[0] != '\0' || status == SHOAL_ERR_NO_MEMORY);
        rendezvous_give_up(&rendezvous, status);
    }
    if (page_fd >= 0) {
        (void)close(page_fd);
    }
    (void)close(rendezvous.page_fd);
    if (rendezvous.fd >= 0) {
        (void)close(rendezvous.fd); /* it has not hung up */
    }
    return status;
}

static shoal_status play(const unsigned char *bytes, size_t n_bytes)
{
    int program;
    int other = -1;
    struct records records = records_begin(bytes, n_bytes, &program);
    int fd = connect_to_answers(records, &other);
    shoal_status status;
    if (program % N_PROGRAMS == PROGRAM_HELLO) {
        const struct socket_wait wait = {.deadline_ns = clock_now_ns() + INT64_C(10000000000), .what = "it"};
        status = hello_perform(fd, &key, "there", &wait);
        (void)close(fd);
    } else {
        status = meet(fd, program % N_PROGRAMS == PROGRAM_TCP);
    }
    (void)close(other);
    return status;
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    (void)play(bytes, n_bytes);
    error_clear();
}

/* Otherwise the seeds have to be made again. */
TEST(what_was_recorded_is_a_start_up)
{
    static const struct {
        const char *name;
        shoal_status status;
    } rows[] = {{"hello", SHOAL_OK},
                {"meeting", SHOAL_OK},
                {"elsewhere", SHOAL_OK},
                {"refused", SHOAL_ERR_MISMATCH},
                {"regression-no-reason", SHOAL_ERR_MISMATCH}};
    static struct fuzz_input input;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        REQUIRE(fuzz_read_seed("client", rows[i].name, &input));
        CHECK_STATUS(play(input.bytes, input.n_bytes), rows[i].status);
    }
}

/* Seeds: SHOAL_FUZZ_CAPTURE=FOLDER ------------------------------------------------------------------------ */

static void add_answer(struct fuzz_input *seed, unsigned who, uint32_t op, shoal_status status,
                       const void *payload, size_t n_payload)
{
    unsigned char frame[4096];
    const struct frame_header header = {
        .magic = FRAME_MAGIC, .op = op, .status = status, .bytes = (uint32_t)n_payload};
    memcpy(frame, &header, sizeof header);
    memcpy(frame + sizeof header, payload, n_payload);
    records_add(seed, who, frame, sizeof header + n_payload);
}

static struct fuzz_input make_hello(void)
{
    struct fuzz_input seed = {.bytes = {PROGRAM_HELLO}, .n_bytes = 1};
    struct hello_head greeting;
    CHECK(fill_head(&greeting));
    struct hello hello;
    CHECK(fill_head(&hello.head));
    struct nonces nonces = take_nonces(&greeting, &hello.head);
    proof_make(&key, /*is_server=*/false, &nonces, hello.proof);
    struct welcome welcome = hello_judge(&greeting, &hello, &key);
    CHECK_INT(welcome.verdict, HELLO_WELCOME);
    records_add(&seed, 0, &greeting, sizeof greeting);
    records_add(&seed, 0, &welcome, sizeof welcome);
    return seed;
}

static void fill_cards(struct card_short cards[N_RANKS])
{
    memset(cards, 0, N_RANKS * sizeof *cards);
    for (int rank = 0; rank < N_RANKS; rank++) {
        cards[rank].rank = rank;
        cards[rank].pid = 100 + rank;
        cards[rank].token[0] = rank == 1 ? 5 : 9;
        cards[rank].address = (struct address){.family = 4, .port = 1, .bytes = {127, 0, 0, 1}};
        cards[rank].leader = rank == 2 ? 2 : 0;
    }
}

TEST(capture)
{
    if (!fuzz_capture_folder()) {
        return;
    }
    struct card_short cards[N_RANKS];
    struct card_leader leader = {.token = {9, 0}};
    struct card_leader itself = {.token = {5, 0}, .rank = 1};
    fill_cards(cards);
    struct fuzz_input seed = make_hello();
    fuzz_write_seed("hello", &seed);
    seed = (struct fuzz_input){.bytes = {PROGRAM_MEETING}, .n_bytes = 1};
    add_answer(&seed, WHO_PAGE, REQUEST_JOIN, SHOAL_OK, &leader, sizeof leader);
    add_answer(&seed, 0, REQUEST_READY, SHOAL_OK, cards, sizeof cards);
    add_answer(&seed, 0, REQUEST_READY, SHOAL_OK, "", 0);
    fuzz_write_seed("meeting", &seed);
    seed = (struct fuzz_input){.bytes = {PROGRAM_TCP}, .n_bytes = 1};
    add_answer(&seed, 0, REQUEST_JOIN, SHOAL_OK, &leader, sizeof leader);
    add_answer(&seed, 0, REQUEST_ELSEWHERE, SHOAL_OK, &itself, sizeof itself);
    add_answer(&seed, 0, REQUEST_READY, SHOAL_OK, cards, sizeof cards);
    fuzz_write_seed("elsewhere", &seed);
    seed = (struct fuzz_input){.bytes = {PROGRAM_MEETING}, .n_bytes = 1};
    add_answer(&seed, WHO_EVENT, REQUEST_JOIN, SHOAL_ERR_MISMATCH, "start-up: ranks differ", 22);
    fuzz_write_seed("refused", &seed);
}

const struct fuzz_target fuzz_target = {
    .name = "client", .try_input = try_bytes, .has_records = true, .n_rounds = 4000};
