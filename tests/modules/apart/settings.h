/* SPDX-License-Identifier: MIT */
/* What tests ask of device `apart`. The module exports it as "apart_settings". */
#ifndef MODULES_APART_SETTINGS_H
#define MODULES_APART_SETTINGS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct apart_settings {
    _Atomic uint64_t seed;        /* of delays; 0: there are none */
    _Atomic int64_t fail_at;      /* the call of the device that fails, counted from now; 0: none */
    _Atomic int64_t no_memory_at; /* the allocation for which there is no memory, counted from now; 0: none */
    _Atomic uint32_t is_held;     /* streams do no work while it is set */
    void *_Atomic held_stream;    /* this one does no work while it is set */
    _Atomic uint32_t
        n_inherited;          /* calls of a process that was forked off the one that has loaded the device */
    _Atomic uint64_t n_bytes; /* allocated now */
    _Atomic uint64_t n_calls; /* so far */
    void (*forget_failure)(void); /* the device can be used again */
    /* Where the processor reaches an address of the device. Only when its streams have nothing to do. */
    void *(*reach)(const void *data, size_t bytes);
};

#endif
