/* SPDX-License-Identifier: MIT */
/* How the text of an index ends, for its writer and its reader. */
#ifndef CHECKPOINT_INDEX_TEXT_H
#define CHECKPOINT_INDEX_TEXT_H

#define INDEX_SUM_CHARS 16

/* Every text ends like this, in every version. The sum is that of all bytes before INDEX_SUM_BEFORE. */
#define INDEX_SUM_BEFORE "\"sum\": \""
#define INDEX_SUM_BEHIND "\"}\n"
#define INDEX_END_BYTES (sizeof INDEX_SUM_BEFORE - 1 + INDEX_SUM_CHARS + sizeof INDEX_SUM_BEHIND - 1)

#endif
