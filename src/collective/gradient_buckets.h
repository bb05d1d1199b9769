/* SPDX-License-Identifier: MIT */
/*
 * How large buckets of gradients are where the program does not say: those of DDP (shoal/ddp.h), and at most those of
 * the passes that fuse the gradients of a compiled step (shoal/compile.h). In MiB.
 */
#ifndef COLLECTIVE_GRADIENT_BUCKETS_H
#define COLLECTIVE_GRADIENT_BUCKETS_H

#define GRADIENT_BUCKETS_MB 25
/* The first bucket is smaller, so that communication starts early. No bucket needs to be smaller than this: below it a
   call costs more than its bytes. */
#define GRADIENT_BUCKETS_FIRST_MB 1

#endif
