/* SPDX-License-Identifier: MIT */
/* The version of the library that is loaded, from the numbers of the public header. */
#include "shoal/version.h"

#define TEXT_OF(number) #number
#define EXPANDED_TEXT_OF(number) TEXT_OF(number)

const char *shoal_version(void)
{
    return EXPANDED_TEXT_OF(SHOAL_VERSION_MAJOR) "." EXPANDED_TEXT_OF(
        SHOAL_VERSION_MINOR) "." EXPANDED_TEXT_OF(SHOAL_VERSION_PATCH);
}
