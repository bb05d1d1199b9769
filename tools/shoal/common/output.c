/* SPDX-License-Identifier: MIT */
/* A stream into a file that appears when it is whole (checkpoint/io/file.h). */
#include "common/output.h"

#include "base/error.h"
#include "base/try.h"
#include "base/write.h"
#include "checkpoint/io/path.h"

#include <errno.h>

static ssize_t put(void *cookie, const char *bytes, size_t n_bytes)
{
    struct tool_output *output = cookie;
    int code = write_all(output->file.fd, bytes, n_bytes);
    if (code == 0) {
        return (ssize_t)n_bytes;
    }
    output->code = output->code != 0 ? output->code : code;
    errno = code;
    return 0; /* what a stream takes for an error */
}

shoal_status tool_output_open(const char *path, struct tool_output *output_out)
{
    const cookie_io_functions_t calls = {.write = put};
    *output_out = (struct tool_output){.stream = NULL};
    TRY(file_create(path, &output_out->file));
    output_out->stream = fopencookie(output_out, "w", calls);
    if (!output_out->stream) {
        shoal_status status = path_fail(path, "open", errno);
        file_close(&output_out->file);
        return status;
    }
    return SHOAL_OK;
}

shoal_status tool_output_commit(struct tool_output *output)
{
    bool is_written = fclose(output->stream) == 0 && output->code == 0;
    shoal_status status = is_written
                              ? file_commit(&output->file)
                              : path_fail(output->file.target, "write", output->code ? output->code : errno);
    file_close(&output->file);
    return status;
}

void tool_output_drop(struct tool_output *output)
{
    (void)fclose(output->stream);
    file_close(&output->file);
}

shoal_status tool_output_check(const char *path)
{
    struct file file;
    TRY(file_create(path, &file));
    file_close(&file);
    return SHOAL_OK;
}
