/* SPDX-License-Identifier: MIT */
/*
 * Gathers and reduce-scatters by objects of the program (shoal/fsdp_comm.h). Nothing is shared then: what is sent is packed
 * into memory that the object gave, rank after rank, and unpacked from it.
 */
#ifndef PARALLEL_FSDP_ENGINE_CUSTOM_H
#define PARALLEL_FSDP_ENGINE_CUSTOM_H

#include "parallel/fsdp/engine/context.h"

/* What a caller gave, checked; NULL is all zeros, which means none. */
shoal_status fsdp_custom_read_gather(const char *call, const shoal_custom_all_gather *given,
                                     shoal_custom_all_gather *custom_out);
shoal_status fsdp_custom_read_scatter(const char *call, const shoal_custom_reduce_scatter *given,
                                      shoal_custom_reduce_scatter *custom_out);

/* Memory of an object, or, without functions, of the library; counted by the unit's context. At least one byte. */
shoal_status fsdp_custom_allocate(const struct fsdp_unit *unit, shoal_custom_allocate function, void *context,
                                  size_t bytes, char **memory_out);
void fsdp_custom_release(const struct fsdp_unit *unit, shoal_custom_release function, void *context,
                         char **memory, size_t bytes);
size_t fsdp_custom_bytes(size_t bytes);

/* What a callback that failed has left behind; the text of its error stays. */
void fsdp_custom_drop_work(shoal_work **work);

/*
 * What a program's own calls exchange cannot be compared. So a barrier with the purpose of the call is in flight beside
 * them, and is waited for before anything that came out is used.
 */
shoal_status fsdp_custom_end_comparison(shoal_work **compared);

#endif
