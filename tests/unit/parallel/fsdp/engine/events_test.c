/* SPDX-License-Identifier: MIT */
/*
 * In which order units are gathered, given up and reduced. Unit 0 is a root: its forward is around those of the layers,
 * which are units 1, 2, ...; its gradients are reduced when the backward pass ends.
 *
 * A list is one text: "R" the root, "0" layer 0, ...; with a letter in front: u gathered, r given up, p reduced.
 */
#include <stdio.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "shoal/fsdp.h"

#define ALL "urp"
#define NO_RESHARDS "up"

struct recorder {
    const char *kinds; /* that are written down */
    char text[512];
    size_t length;
};

struct layers {
    shoal_world *world;
    shoal_fsdp *fsdp;
    int n_layers;
    struct recorder recorder;
};

static void write_down(void *context, enum fsdp_event event, const struct fsdp_unit *unit)
{
    static const char letters[] = {
        [FSDP_EVENT_UNSHARD] = 'u', [FSDP_EVENT_RESHARD] = 'r', [FSDP_EVENT_POST_BACKWARD] = 'p'};
    struct recorder *recorder = context;
    if (strchr(recorder->kinds, letters[event]) && recorder->length + 4 < sizeof recorder->text) {
        recorder->length +=
            (size_t)snprintf(recorder->text + recorder->length, sizeof recorder->text - recorder->length,
                             "%s%c%c", recorder->length > 0 ? " " : "", letters[event],
                             unit->number == 0 ? 'R' : (char)('0' + unit->number - 1));
    }
}

/* The machine behind the raw calls is their first member. */
static struct fsdp_context *machine_of(shoal_fsdp *fsdp)
{
    return fsdp->context;
}

static void begin_list(struct layers *layers, const char *kinds)
{
    layers->recorder = (struct recorder){.kinds = kinds};
}

#define CHECK_LIST(layers, wanted) CHECK_STRING((layers)->recorder.text, wanted)

static bool layers_open(struct rank *self, struct layers *layers, int n_layers, int prefetch,
                        shoal_reshard root, shoal_reshard others)
{
    shoal_fsdp_options options = {
        .struct_size = sizeof options, .forward_prefetch = prefetch, .reshard_ranks = 2};
    *layers = (struct layers){.n_layers = n_layers, .world = rank_world_open(self, 0)};
    if (!layers->world ||
        !CHECK_OK(shoal_fsdp_create(shoal_world_group(layers->world), &options, &layers->fsdp))) {
        return false;
    }
    for (int unit = 0; unit <= n_layers; unit++) {
        const int64_t shape[] = {5 + unit};
        if (!CHECK_OK(shoal_fsdp_add_param(layers->fsdp, unit, "w", SHOAL_F32, 1, shape, NULL, NULL)) ||
            !CHECK_OK(
                shoal_fsdp_set_reshard(shoal_fsdp_unit_of(layers->fsdp, unit), unit == 0 ? root : others))) {
            return false;
        }
    }
    begin_list(layers, ALL);
    machine_of(layers->fsdp)->listener.hear = write_down;
    machine_of(layers->fsdp)->listener.context = &layers->recorder;
    return true;
}

static void layers_close(struct layers *layers)
{
    shoal_fsdp_free(layers->fsdp);
    CHECK_OK(shoal_world_close(layers->world));
}

static void forward(struct layers *layers)
{
    CHECK_OK(shoal_fsdp_pre_forward(layers->fsdp, 0));
    for (int unit = 1; unit <= layers->n_layers; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(layers->fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(layers->fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_post_forward(layers->fsdp, 0));
}

/* The layers' part of a backward pass. */
static void backward_layers(struct layers *layers)
{
    for (int unit = layers->n_layers; unit >= 1; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(layers->fsdp, unit));
        CHECK_OK(shoal_fsdp_post_backward(layers->fsdp, unit));
    }
}

static void backward(struct layers *layers)
{
    CHECK_OK(shoal_fsdp_pre_backward(layers->fsdp, 0));
    backward_layers(layers);
    CHECK_OK(shoal_fsdp_end_backward(layers->fsdp));
}

/* Three layers ------------------------------------------------------------------------------------------- */

/* The same in every step, with and without prefetching in forward: gathers are in the order of use. */
static void check_steps(struct rank *self, shoal_reshard root, shoal_reshard others, const char *forward_list,
                        const char *backward_list)
{
    static const int prefetches[] = {-1, 1, 2};
    for (size_t k = 0; k < sizeof prefetches / sizeof prefetches[0]; k++) {
        struct layers layers;
        REQUIRE(layers_open(self, &layers, 3, prefetches[k], root, others));
        for (int step = 0; step < 3; step++) {
            begin_list(&layers, NO_RESHARDS);
            forward(&layers);
            CHECK_LIST(&layers, forward_list);
            begin_list(&layers, NO_RESHARDS);
            backward(&layers);
            CHECK_LIST(&layers, backward_list);
        }
        layers_close(&layers);
    }
}

TEST_RANKS(all_are_given_up_after_forward, 2)
{
    check_steps(self, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2", "uR u2 u1 p2 u0 p1 p0 pR");
}

TEST_RANKS(the_root_stays, 3)
{
    check_steps(self, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2", "u2 u1 p2 u0 p1 p0 pR");
}

TEST_RANKS(all_stay, 2)
{
    check_steps(self, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_NEVER, "uR u0 u1 u2", "p2 p1 p0 pR");
}

TEST_RANKS(all_stay_over_neighbours, 4)
{
    check_steps(self, SHOAL_RESHARD_PARTLY, SHOAL_RESHARD_PARTLY, "uR u0 u1 u2", "uR u2 u1 p2 u0 p1 p0 pR");
}

TEST_RANKS(alone_the_order_is_the_same, 1)
{
    check_steps(self, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2", "uR u2 u1 p2 u0 p1 p0 pR");
}

/* Two forwards, one backward pass ------------------------------------------------------------------------ */

static void check_two_forwards(struct rank *self, shoal_reshard root, shoal_reshard others,
                               const char *forward_list, const char *backward_list)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 3, -1, root, others));
    for (int step = 0; step < 3; step++) {
        begin_list(&layers, NO_RESHARDS);
        forward(&layers);
        forward(&layers);
        CHECK_LIST(&layers, forward_list);
        begin_list(&layers, NO_RESHARDS);
        CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 0));
        backward_layers(&layers);
        backward_layers(&layers);
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, backward_list);
    }
    layers_close(&layers);
}

TEST_RANKS(two_forwards_all_given_up, 2)
{
    check_two_forwards(self, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2 uR u0 u1 u2",
                       "uR u2 u1 p2 u0 p1 p0 u2 u1 p2 u0 p1 p0 pR");
}

TEST_RANKS(two_forwards_the_root_stays, 2)
{
    check_two_forwards(self, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2 u0 u1 u2",
                       "u2 u1 p2 u0 p1 p0 u2 u1 p2 u0 p1 p0 pR");
}

TEST_RANKS(two_forwards_all_stay, 2)
{
    check_two_forwards(self, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_NEVER, "uR u0 u1 u2",
                       "p2 p1 p0 u2 u1 p2 u0 p1 p0 pR");
}

/* Four layers, prefetching in forward -------------------------------------------------------------------- */

/* The first step has no order to go by. */
static void check_prefetch(struct rank *self, int prefetch, const char *first_list, const char *later_list)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 4, prefetch, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 3; step++) {
        begin_list(&layers, ALL);
        forward(&layers);
        CHECK_LIST(&layers, step == 0 ? first_list : later_list);
        begin_list(&layers, NO_RESHARDS);
        backward(&layers);
        CHECK_LIST(&layers, "uR u3 u2 p3 u1 p2 u0 p1 p0 pR");
    }
    layers_close(&layers);
}

static const char *const no_prefetch = "uR u0 r0 u1 r1 u2 r2 u3 r3 rR";

TEST_RANKS(forward_without_prefetch, 2)
{
    check_prefetch(self, -1, no_prefetch, no_prefetch);
}

TEST_RANKS(forward_prefetch_1, 2)
{
    check_prefetch(self, 1, no_prefetch, "uR u0 u1 r0 u2 r1 u3 r2 r3 rR");
}

TEST_RANKS(forward_prefetch_is_1_by_default, 2)
{
    check_prefetch(self, 0, no_prefetch, "uR u0 u1 r0 u2 r1 u3 r2 r3 rR");
}

TEST_RANKS(forward_prefetch_2, 3)
{
    check_prefetch(self, 2, no_prefetch, "uR u0 u1 u2 r0 u3 r1 r2 r3 rR");
}

TEST_RANKS(forward_prefetch_of_more_than_there_are, 2)
{
    check_prefetch(self, 9, no_prefetch, "uR u0 u1 u2 u3 r0 r1 r2 r3 rR");
}

/* Lists of one's own --------------------------------------------------------------------------------------- */

static struct fsdp_unit *unit_of(struct layers *layers, int number)
{
    return machine_of(layers->fsdp)->units[number];
}

/* Layer k prefetches the layers before it: two, as far as there are so many. Given to the machine: the raw calls
   have no such lists. */
TEST_RANKS(backward_prefetch_2, 2)
{
    struct layers layers;
    struct fsdp_unit *lists[5][2];
    REQUIRE(layers_open(self, &layers, 4, -1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    for (int unit = 2; unit <= 4; unit++) {
        size_t n = 0;
        for (int before = unit - 1; before >= 1 && before >= unit - 2; before--) {
            lists[unit][n++] = unit_of(&layers, before);
        }
        unit_of(&layers, unit)->prefetch.backward = lists[unit];
        unit_of(&layers, unit)->prefetch.n_backward = n;
    }
    for (int step = 0; step < 3; step++) {
        forward(&layers);
        begin_list(&layers, NO_RESHARDS);
        backward(&layers);
        CHECK_LIST(&layers, "uR u3 u2 u1 p3 u0 p2 p1 p0 pR");
    }
    for (int unit = 2; unit <= 4; unit++) {
        unit_of(&layers, unit)->prefetch.backward = NULL;
        unit_of(&layers, unit)->prefetch.n_backward = 0;
    }
    layers_close(&layers);
}

/* Other orders --------------------------------------------------------------------------------------------- */

/* As many gathers, backward passes and reductions as forwards. */
TEST_RANKS(a_layer_that_is_used_twice, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 2, -1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 2; step++) {
        static const int order[] = {1, 2, 1};
        begin_list(&layers, ALL);
        CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, 0));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, order[i]));
            CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, order[i]));
        }
        CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, 0));
        CHECK_LIST(&layers, "uR u0 r0 u1 r1 u0 r0 rR");
        begin_list(&layers, NO_RESHARDS);
        CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 0));
        for (int i = 2; i >= 0; i--) {
            CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, order[i]));
            CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, order[i]));
        }
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, "uR u0 u1 p0 u0 p1 p0 pR");
    }
    layers_close(&layers);
}

/* Outputs of a unit have their gradients one by one. */
TEST_RANKS(pre_backward_again_is_nothing, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 1, -1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    forward(&layers);
    begin_list(&layers, ALL);
    CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 1));
    CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 1));
    CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, 1));
    CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
    CHECK_LIST(&layers, "u0 p0 r0");
    layers_close(&layers);
}

/* A forward again inside the backward pass (activations computed twice): nothing is given up or written down. */
TEST_RANKS(forward_inside_backward, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 2, -1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 3; step++) {
        forward(&layers);
        begin_list(&layers, ALL);
        CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 0));
        for (int unit = 2; unit >= 1; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, unit));
            CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, unit));
            CHECK(shoal_fsdp_full_param(layers.fsdp, unit) != NULL);
            CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, unit));
            CHECK(shoal_fsdp_full_param(layers.fsdp, unit) != NULL);
            CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, "uR u1 u0 p1 r1 p0 r0 pR rR");
    }
    layers_close(&layers);
}

/* Layer 0, then branch 1 (layer 1) and branch 2 (layer 2); backward of branch 2 alone, then of branch 1. */
TEST_RANKS(two_branches_two_backwards, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 3, -1, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 3; step++) {
        for (int unit = 1; unit <= 3; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, unit));
            CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, unit));
        }
        begin_list(&layers, NO_RESHARDS);
        machine_of(layers.fsdp)->backward.is_not_last = true;
        for (int unit = 3; unit >= 1; unit -= 2) {
            CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, unit));
            CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, "u2 u1 p2 u0 p0"); /* layer 1 is not wanted yet */
        begin_list(&layers, NO_RESHARDS);
        machine_of(layers.fsdp)->backward.is_not_last = false;
        for (int unit = 2; unit >= 1; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, unit));
            CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, "u0 p1 p0");
    }
    layers_close(&layers);
}

/* Gathered in advance, then not used: nothing stays behind, and the next step is as ever. */
TEST_RANKS(a_forward_that_goes_another_way, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 3, 1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    forward(&layers);
    backward(&layers);
    begin_list(&layers, ALL);
    CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, 0)); /* and layer 0, which is left out */
    CHECK_OK(shoal_fsdp_pre_forward(layers.fsdp, 3));
    CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, 3));
    CHECK_OK(shoal_fsdp_post_forward(layers.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(layers.fsdp, 3));
    CHECK_OK(shoal_fsdp_post_backward(layers.fsdp, 3));
    CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
    CHECK_LIST(&layers, "uR u0 u2 r2 rR u2 p2 r2 r0");
    begin_list(&layers, NO_RESHARDS);
    forward(&layers);
    backward(&layers);
    CHECK_LIST(&layers, "uR u2 u0 u1 uR u2 u1 p2 u0 p1 p0 pR"); /* as if it were that way again */
    begin_list(&layers, NO_RESHARDS);
    forward(&layers);
    backward(&layers);
    CHECK_LIST(&layers, "uR u0 u1 u2 uR u2 u1 p2 u0 p1 p0 pR");
    layers_close(&layers);
}

/* Forwards without backward: the list of the next backward pass is that of its own forward. */
TEST_RANKS(forwards_without_backward_do_not_matter, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 3, -1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    forward(&layers);
    CHECK_OK(shoal_fsdp_reset(layers.fsdp));
    forward(&layers);
    begin_list(&layers, NO_RESHARDS);
    backward(&layers);
    CHECK_LIST(&layers, "uR u2 u1 p2 u0 p1 p0 pR");
    layers_close(&layers);
}

/* An evaluation ends as a step does; the next one knows its order, and nothing grows. */
TEST_RANKS(forwards_that_end_without_backward, 2)
{
    struct layers layers;
    REQUIRE(layers_open(self, &layers, 3, 1, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 40; step++) {
        begin_list(&layers, ALL);
        forward(&layers);
        CHECK_OK(shoal_fsdp_end_backward(layers.fsdp));
        CHECK_LIST(&layers, step == 0 ? "uR u0 r0 u1 r1 u2 r2 rR" : "uR u0 u1 r0 u2 r1 r2 rR");
    }
    CHECK(machine_of(layers.fsdp)->passes.forwards.capacity < 20);
    CHECK(machine_of(layers.fsdp)->passes.order.capacity < 20);
    begin_list(&layers, NO_RESHARDS);
    forward(&layers);
    backward(&layers);
    CHECK_LIST(&layers, "uR u0 u1 u2 uR u2 u1 p2 u0 p1 p0 pR");
    layers_close(&layers);
}
