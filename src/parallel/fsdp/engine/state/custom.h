/* SPDX-License-Identifier: MIT */
/*
 * Gathers and reduce-scatters by objects of the program (shoal/fsdp_comm.h). They share no memory with other ranks:
 * what is sent is packed, rank after rank, into memory that the object gave, and what arrives is unpacked from it.
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_CUSTOM_H
#define PARALLEL_FSDP_ENGINE_STATE_CUSTOM_H

#include "parallel/fsdp/engine/state/context.h"

/* Checks what a caller gave and copies it. NULL gives all zeros, which means none. */
shoal_status fsdp_custom_read_gather(const char *call, const shoal_custom_all_gather *given,
                                     shoal_custom_all_gather *custom_out);
shoal_status fsdp_custom_read_scatter(const char *call, const shoal_custom_reduce_scatter *given,
                                      shoal_custom_reduce_scatter *custom_out);

/* Allocates by the object's function, or by the library if it has none. The unit's context counts the memory. */
shoal_status fsdp_custom_allocate(const struct fsdp_unit *unit, shoal_custom_allocate function, void *context,
                                  size_t bytes, struct address *memory_out);
void fsdp_custom_release(const struct fsdp_unit *unit, shoal_custom_release function, void *context,
                         struct address *memory, size_t bytes);
/* At least 1, so that nobody is asked for no memory. */
size_t fsdp_custom_bytes(size_t bytes);

/* Frees what a callback that failed has left behind. The text of its error stays. */
void fsdp_custom_drop_work(shoal_work **work);

/* The library cannot compare what a program's own calls exchange. So a barrier with the purpose of the call is
   in flight beside them. This waits for it; call it before using anything that was received. */
shoal_status fsdp_custom_end_comparison(shoal_work **compared);

#endif
