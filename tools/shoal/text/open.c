/* SPDX-License-Identifier: MIT */
/* Opens a tokenizer by what its path is: a directory of Hugging Face, or a file of llm.c. */
#include "text/build.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    N_BYTES = 256
};

bool tokenizer_is_there(const char *directory)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/" TOKENIZER_VOCABULARY_NAME, directory) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

static shoal_status read_directory(struct tokenizer *tokenizer, const char *directory)
{
    return tokenizer_is_there(directory)
               ? tokenizer_read_directory(tokenizer, directory)
               : error_set(SHOAL_ERR_STATE,
                           "%s has no tokenizer: no " TOKENIZER_VOCABULARY_NAME " and " TOKENIZER_MERGES_NAME,
                           directory);
}

shoal_status tokenizer_open(const char *path, struct tokenizer **tokenizer_out)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
    }
    struct tokenizer *tokenizer = mem_alloc_zeroed(1, sizeof *tokenizer);
    TRY(tokenizer ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    tokenizer->end_of_text = -1;
    for (int i = 0; i < N_BYTES; i++) {
        tokenizer->of_bytes[i] = -1;
    }
    shoal_status status =
        S_ISDIR(about.st_mode) ? read_directory(tokenizer, path) : tokenizer_read_llmc(tokenizer, path);
    if (status != SHOAL_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    *tokenizer_out = tokenizer;
    return SHOAL_OK;
}
