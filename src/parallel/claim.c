/* SPDX-License-Identifier: MIT */
#include "parallel/claim.h"

#include "base/error.h"

/* The addresses of these are the keys of extras. */
struct claim_keys {
    char claim;
    char cover;
};

static const struct claim_keys keys[CLAIMANT_COUNT];

static const struct {
    const char *what;
    const char *why; /* why the other claimant cannot have the module as well; "" if the text says enough */
} words[CLAIMANT_COUNT] = {
    [CLAIMANT_FSDP] = {.what = "fully sharded", .why = ""},
    [CLAIMANT_DDP] = {.what = "wrapped by shoal_ddp", .why = ", which keeps whole parameters"},
};

shoal_status claim_take(shoal_module *module, enum claimant claimant, void *value,
                        void (*release)(void *value))
{
    return shoal_module_set_extra(module, &keys[claimant].claim, value, release);
}

void claim_drop(shoal_module *module, enum claimant claimant)
{
    (void)!shoal_module_set_extra(module, &keys[claimant].claim, NULL, NULL); /* removing cannot fail */
}

void *claim_value(const shoal_module *module, enum claimant claimant)
{
    return shoal_module_extra(module, &keys[claimant].claim);
}

bool claim_is_taken(const shoal_module *module)
{
    for (unsigned i = 0; i < CLAIMANT_COUNT; i++) {
        if (claim_value(module, (enum claimant)i)) {
            return true;
        }
    }
    return false;
}

shoal_status claim_cover(shoal_module *module, enum claimant claimant, void *outer)
{
    return shoal_module_set_extra(module, &keys[claimant].cover, outer, NULL);
}

void claim_uncover(shoal_module *module, enum claimant claimant)
{
    (void)!shoal_module_set_extra(module, &keys[claimant].cover, NULL, NULL); /* removing cannot fail */
}

bool claim_is_by(const shoal_module *module, enum claimant claimant, const void *value)
{
    return claim_value(module, claimant) == value ||
           shoal_module_extra(module, &keys[claimant].cover) == value;
}

shoal_status claim_check(const shoal_module *module, const char *path, enum claimant claimant)
{
    bool is_covered = shoal_module_extra(module, &keys[claimant].cover);
    if (!is_covered && !claim_value(module, claimant)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE, "module %s%s%s is %s%s already%s", shoal_module_type(module),
                     path[0] != '\0' ? " at " : "", path, is_covered ? "inside of one that is " : "",
                     words[claimant].what, words[claimant].why);
}
