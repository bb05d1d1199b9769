/* SPDX-License-Identifier: MIT */
#include "op/basis.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "base/try.h"
#include "shoal/op.h"

/* Sorted by name, and none is empty; guarded by the lock. */
static struct stated {
    char name[OP_BASIS_NAME_BYTES];
    char text[OP_BASIS_TEXT_BYTES];
} all[OP_BASIS_LIBRARIES];
static size_t n_stated;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static shoal_status check_text(const char *what, const char *text, size_t least, size_t most)
{
    if (!text) {
        return error_set(SHOAL_ERR_INVALID, "op_set_basis: %s is NULL", what);
    }
    size_t length = strnlen(text, most + 1);
    return length >= least && length <= most
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "op_set_basis: %s \"%.64s\" has %s bytes, %zu to %zu expected",
                           what, text, length < least ? "no" : "more", least, most);
}

/* The place of a name, or the one where it belongs. */
static size_t find_place(const char *name, bool *is_there_out)
{
    size_t place = 0;
    while (place < n_stated && strcmp(all[place].name, name) < 0) {
        place++;
    }
    *is_there_out = place < n_stated && strcmp(all[place].name, name) == 0;
    return place;
}

static shoal_status state(const char *name, const char *text)
{
    bool is_there;
    size_t place = find_place(name, &is_there);
    if (!text[0] && !is_there) {
        return SHOAL_OK;
    }
    if (!text[0]) {
        n_stated--;
        memmove(&all[place], &all[place + 1], (n_stated - place) * sizeof all[0]);
        return SHOAL_OK;
    }
    if (!is_there && n_stated == OP_BASIS_LIBRARIES) {
        return error_set(SHOAL_ERR_STATE,
                         "op_set_basis: %d libraries have stated theirs, and there is no room for %s",
                         OP_BASIS_LIBRARIES, name);
    }
    if (!is_there) {
        memmove(&all[place + 1], &all[place], (n_stated - place) * sizeof all[0]);
        n_stated++;
    }
    (void)snprintf(all[place].name, sizeof all[place].name, "%s", name);
    (void)snprintf(all[place].text, sizeof all[place].text, "%s", text);
    return SHOAL_OK;
}

shoal_status shoal_op_set_basis(const char *library, const char *basis)
{
    error_clear();
    TRY(check_text("library", library, 1, OP_BASIS_NAME_BYTES - 1));
    TRY(check_text("basis", basis, 0, OP_BASIS_TEXT_BYTES - 1));
    (void)pthread_mutex_lock(&lock);
    shoal_status status = state(library, basis);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

void op_basis_write(char text[OP_BASIS_BYTES])
{
    struct text written = text_begin(text, OP_BASIS_BYTES);
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_stated; i++) {
        text_add(&written, "%s%s: %s", i > 0 ? "; " : "", all[i].name, all[i].text);
    }
    (void)pthread_mutex_unlock(&lock);
}
