/* SPDX-License-Identifier: MIT */
/* `shoal train --graph FILE`: the graph of a compiled step, as text. */
#ifndef TRAIN_GRAPH_H
#define TRAIN_GRAPH_H

#include "train/job.h"

#include "shoal/compile.h"

/* Before the first run of the compiled step `step`: captures it on all ranks, and writes the graph to FILE on the
   first. */
shoal_status train_graph_write_before(struct train_job *job, shoal_step_function step);
/* After it: writes the graph of which the plan was made to FILE.after, on the first rank. */
shoal_status train_graph_write_after(const struct train_job *job);

#endif
