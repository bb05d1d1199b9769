/* SPDX-License-Identifier: MIT */
/*
 * Which ranks share a host is found by trying, not by what they believe: a boot id that is the same on two machines (both
 * namespaces of one, or copies) does not make them one, and one that differs makes them two.
 */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/net/card.h"
#include "bootstrap/alive/liveness.h"
#include "bootstrap/net/request.h"
#include "bootstrap/server/server.h"
#include "harness/test.h"

enum {
    N_RANKS = 5,
    PORT = 9
};

struct stage {
    struct server *server;
    struct members *page;
    struct card cards[N_RANKS];
    int fds[N_RANKS];
};

/* A card as a rank would make it; its server does not exist, so that nobody is ever found there. */
static void make_card(struct stage *stage, int rank, uint64_t claim)
{
    REQUIRE_OK(card_create(rank, N_RANKS, "", &stage->cards[rank]));
    stage->cards[rank].claim = claim;
    stage->cards[rank].address = (struct address){.family = 4, .bytes = {127, 0, 0, 1}, .port = PORT};
}

static shoal_status ask(struct stage *stage, int rank, struct request *request, struct card_leader *leader)
{
    const struct socket_wait wait = {.deadline_ns = clock_deadline_after(20), .what = "a test"};
    struct frame frame;
    shoal_status status = request_perform(stage->fds[rank], request, &wait, &frame);
    if (status == SHOAL_OK) {
        CHECK_INT(frame.header.bytes, sizeof *leader);
        memcpy(leader, frame.payload, sizeof *leader);
        CHECK((frame.fd >= 0) == (leader->rank == 0));
        frame_clear(&frame);
    }
    return status;
}

static int join(struct stage *stage, int rank)
{
    char name[SOCKET_NAME_BYTES];
    card_server_name(&stage->cards[0], name);
    struct request request = {.op = REQUEST_JOIN};
    struct card_leader leader = {.rank = -1};
    (void)CHECK_OK(socket_connect(name, &stage->fds[rank]));
    request_add_bytes(&request, &stage->cards[rank], sizeof stage->cards[rank]);
    (void)CHECK_OK(ask(stage, rank, &request, &leader));
    CHECK(leader.rank < 0 || memcmp(leader.token, stage->cards[leader.rank].token, sizeof leader.token) == 0);
    return leader.rank;
}

static int go_elsewhere(struct stage *stage, int rank, int tried)
{
    struct request request = {.op = REQUEST_ELSEWHERE};
    struct card_leader leader = {.rank = -1};
    request_add_number(&request, tried);
    (void)CHECK_OK(ask(stage, rank, &request, &leader));
    return leader.rank;
}

static void begin(struct stage *stage)
{
    *stage = (struct stage){.fds = {-1, -1, -1, -1, -1}};
    make_card(stage, 0, 1);
    REQUIRE_OK(server_create(&stage->cards[0], &stage->server));
    REQUIRE_OK(members_create(N_RANKS, &stage->page));
    REQUIRE_OK(server_host_meeting(stage->server, NULL, members_fd(stage->page)));
    REQUIRE_OK(server_start(stage->server));
}

static void end(struct stage *stage)
{
    for (int rank = 0; rank < N_RANKS; rank++) {
        if (stage->fds[rank] >= 0) {
            (void)close(stage->fds[rank]);
        }
    }
    server_free(stage->server);
    members_free(stage->page);
}

TEST(one_boot_id_on_three_machines)
{
    struct stage stage;
    begin(&stage);
    for (int rank = 1; rank < N_RANKS; rank++) {
        make_card(&stage, rank, 1);
    }
    /* Ranks 1 and 2 are on one other machine, 3 and 4 on a third; none finds rank 0. */
    CHECK_INT(join(&stage, 1), 0);
    CHECK_INT(go_elsewhere(&stage, 1, 0), 1);
    CHECK_INT(join(&stage, 3), 0);
    CHECK_INT(go_elsewhere(&stage, 3, 0), 1);
    CHECK_INT(go_elsewhere(&stage, 3, 1), 3);
    CHECK_INT(join(&stage, 2), 0);
    CHECK_INT(go_elsewhere(&stage, 2, 0), 1);
    CHECK_INT(join(&stage, 4), 0);
    CHECK_INT(go_elsewhere(&stage, 4, 0), 1);
    CHECK_INT(go_elsewhere(&stage, 4, 1), 3);
    end(&stage);
}

/* Only of the leader that it was told, and not of itself: otherwise the list of leaders would grow with every word. */
TEST(a_rank_cannot_be_elsewhere_than_itself)
{
    static const int tried[] = {1, 2, -1, 99, 0};
    struct stage stage;
    for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
        begin(&stage);
        make_card(&stage, 1, 1);
        CHECK_INT(join(&stage, 1), 0);
        CHECK_INT(go_elsewhere(&stage, 1, 0), 1);
        struct request request = {.op = REQUEST_ELSEWHERE};
        struct card_leader leader = {.rank = -1};
        request_add_number(&request, tried[i]);
        CHECK_STATUS(ask(&stage, 1, &request, &leader), SHOAL_ERR_PEER);
        end(&stage);
    }
}

TEST(five_boot_ids_on_one_machine)
{
    struct stage stage;
    begin(&stage);
    for (int rank = 1; rank < N_RANKS; rank++) {
        make_card(&stage, rank, (uint64_t)rank + 1);
        CHECK_INT(join(&stage, rank), rank);
    }
    end(&stage);
}

/* Who has no address cannot be on another host: everybody is told what to set. */
TEST(a_host_without_a_network_is_told)
{
    struct stage stage;
    begin(&stage);
    make_card(&stage, 1, 2);
    stage.cards[1].address = (struct address){.family = 0};
    char name[SOCKET_NAME_BYTES];
    card_server_name(&stage.cards[0], name);
    REQUIRE_OK(socket_connect(name, &stage.fds[1]));
    struct request request = {.op = REQUEST_JOIN};
    struct card_leader leader;
    request_add_bytes(&request, &stage.cards[1], sizeof stage.cards[1]);
    CHECK_STATUS(ask(&stage, 1, &request, &leader), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("several hosts (rank 1 is on another host than rank 0): set SHOAL_ADDRESS=host:port");
    end(&stage);
}
