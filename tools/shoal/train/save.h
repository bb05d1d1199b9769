/* SPDX-License-Identifier: MIT */
/* Checkpoints of a training: saving in the background, and going on from the newest one. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "train/job.h"

/* Collective: whether checkpoints can be saved there, and none of another run would be mixed with those of this one. Other
   runs cannot save there until the job is freed. */
shoal_status train_save_check(struct train_job *job);
/* Lists what a checkpoint has; nothing without --checkpoint. After train_model_make. */
shoal_status train_save_prepare(struct train_job *job);
/* Collective: --resume. job->schedule.step is where the run goes on. */
shoal_status train_resume(struct train_job *job);
/* Collective: begins to save, once the save before it has ended. */
shoal_status train_save(struct train_job *job);
/* Waits for the end of what was begun. */
shoal_status train_save_finish(struct train_job *job);

#endif
