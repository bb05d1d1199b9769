/* SPDX-License-Identifier: MIT */
/*
 * The configuration in a checkpoint of `shoal train`, if somebody has changed it: numbers that no command line could
 * have, and parts that contradict each other, are refused with the name of the checkpoint.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/io/path.h"
#include "config/config.h"
#include "harness/test.h"
#include "shoal/checkpoint.h"
#include "shoal/world.h"

static const char good[] =
    "{\"version\":1,\"run\":\"0123456789abcdef\",\"model\":{\"layers\":1,\"width\":16,\"heads\":2,"
    "\"context\":16,"
    "\"vocabulary\":256,\"eps\":1e-5},\"split\":{\"ranks\":2,\"started\":true,\"replicas\":2,\"parts\":1,"
    "\"passes\":1,\"rows\":2},\"data\":{\"kind\":\"text\",\"path\":\"/text\",\"val\":\"\",\"bytes\":1074,"
    "\"first_hash\":\"317580ff9dfe85de\",\"hash\":\"36520570063ba75e\",\"vocabulary\":256},\"options\":{"
    "\"vocabulary\":0,\"mode\":\"hsdp\",\"replicas\":2,\"layers\":1,\"width\":16,\"heads\":2,\"context\":16,"
    "\"batch\":1,\"accumulate\":\"1\",\"steps\":2,\"lr\":0.001,\"warmup\":0,\"clip\":1.0,\"dropout\":0.0,"
    "\"seed\":1,\"threads\":1,\"every\":0,\"val-every\":0}}";

static const struct {
    const char *from; /* NULL: nothing is changed */
    const char *to;
    const char *error;
} changes[] = {
    {NULL, NULL, NULL},
    {"\"val\":\"\"", "\"val\":null", NULL},
    {"\"run\":\"0123456789abcdef\",", "", NULL}, /* of an older version */
    {"hsdp\",\"replicas\":2", "hsdp\",\"replicas\":0", "no usable \"replicas\" in \"options\""},
    {"hsdp\",\"replicas\":2", "hsdp\",\"replicas\":1", "\"replicas\" differ in \"split\" and \"options\""},
    {"\"passes\":1", "\"passes\":4611686018427387904", "no usable \"passes\" in \"split\""},
    {"\"passes\":1", "\"passes\":3", "\"rows\" in \"split\" is not replicas x parts x passes x batch"},
    {"\"ranks\":2", "\"ranks\":3", "\"ranks\" in \"split\" is not replicas x parts"},
    {"\"rows\":2", "\"rows\":1152921504606846976", "\"rows\" in \"split\" is not"},
    {"\"width\":16,\"heads\":2,\"context\":16,\"vo", "\"width\":16,\"heads\":4,\"context\":16,\"vo",
     "\"heads\" differ in \"model\" and \"options\""},
    {"\"vocabulary\":256,\"eps\"", "\"vocabulary\":10,\"eps\"", "more than that of the model"},
    {"\"eps\":1e-5", "\"eps\":1e300", "no usable \"eps\" in \"model\""},
    {"\"context\":16,\"batch\"", "\"context\":17,\"batch\"", "\"context\" in \"options\" is more"},
    {"\"batch\":1", "\"batch\":-4", "no usable \"batch\" in \"options\""},
    {"\"steps\":2", "\"steps\":4611686018427387904", "no usable \"steps\" in \"options\""},
    {"\"steps\":2", "\"steps\":1", "\"steps\" in \"options\" are fewer than are done"},
    {"\"lr\":0.001", "\"lr\":0", "\"lr\" in \"options\" is not more than 0"},
    {"\"lr\":0.001", "\"lr\":1e308", "no usable \"lr\" in \"options\""},
    {"\"dropout\":0.0", "\"dropout\":2.0", "no usable \"dropout\" in \"options\""},
    {"\"warmup\":0", "\"warmup\":-99", "no usable \"warmup\" in \"options\""},
    {"\"seed\":1", "\"seed\":-1", "no usable \"seed\" in \"options\""},
    {"\"every\":0,", "\"every\":-1,", "no usable \"every\" in \"options\""},
    {"\"threads\":1", "\"threads\":1099511627776", "no usable \"threads\" in \"options\""},
};

static void change(char text[TRAIN_CONFIG_BYTES], const char *from, const char *to)
{
    const char *at = from ? strstr(good, from) : good;
    REQUIRE(at != NULL);
    (void)snprintf(text, TRAIN_CONFIG_BYTES, "%.*s%s%s", (int)(at - good), good, from ? to : "",
                   at + (from ? strlen(from) : 0));
}

static void save(shoal_world *world, const char *directory, char *text)
{
    shoal_items *items = NULL;
    shoal_checkpoint_options how = SHOAL_CHECKPOINT_OPTIONS_INIT;
    how.step = 2;
    how.replaces = true;
    REQUIRE_OK(shoal_items_create(&items));
    REQUIRE_OK(shoal_items_add_string(items, TRAIN_CONFIG_ITEM, text, TRAIN_CONFIG_BYTES));
    CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, items, &how));
    shoal_items_free(items);
}

TEST(changed_configurations)
{
    static struct train_config config;
    static char text[TRAIN_CONFIG_BYTES];
    char directory[] = "/tmp/shoal-config-XXXXXX";
    char place[PATH_MAX];
    bool is_found = false;
    shoal_world *world = NULL;
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    REQUIRE(mkdtemp(directory) != NULL);
    options.n_ranks = 1;
    options.key = directory + 5;
    REQUIRE_OK(shoal_world_open(&options, &world));
    (void)snprintf(place, sizeof place, "%s/step-000000002: its configuration", directory);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        change(text, changes[i].from, changes[i].to);
        save(world, directory, text);
        CHECK_STATUS(train_config_read(directory, &config, &is_found),
                     changes[i].error ? SHOAL_ERR_INVALID : SHOAL_OK);
        CHECK(is_found);
        if (changes[i].error) {
            CHECK_ERROR_TEXT(place);
            CHECK_ERROR_TEXT(changes[i].error);
        } else {
            CHECK_INT(config.n_replicas, 2);
            CHECK(config.has_lost_val == (i == 1));
        }
    }
    CHECK_OK(shoal_world_close(world));
    CHECK_OK(path_remove_tree(directory));
}
