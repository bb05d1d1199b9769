/* SPDX-License-Identifier: MIT */
/* Counting system calls, and failing one of them or all of a kind (test builds only). Arm only while no thread makes such calls. */
#include "base/os/fault.h"

#ifdef SHOAL_FAIL_POINTS

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static _Atomic uint64_t n_calls;
static _Atomic uint64_t armed_number;
static _Atomic int armed_code;
static const char *_Atomic failed_name;
static const char *_Atomic armed_kind;
static _Atomic int kind_code;

void os_fault_arm(uint64_t number, int code)
{
    atomic_store(&armed_number, 0);
    atomic_store(&failed_name, NULL);
    atomic_store(&n_calls, 0);
    atomic_store(&armed_code, code);
    atomic_store(&armed_number, number);
}

void os_fault_arm_kind(const char *name, int code)
{
    atomic_store(&armed_kind, NULL);
    atomic_store(&kind_code, code);
    atomic_store(&armed_kind, name);
}

uint64_t os_fault_count(void)
{
    return atomic_load(&n_calls);
}

const char *os_fault_name(void)
{
    const char *name = atomic_load(&failed_name);
    return name ? name : "";
}

bool os_fault(const char *name)
{
    const char *kind = atomic_load(&armed_kind);
    bool is_kind = kind && strcmp(kind, name) == 0;
    if (atomic_fetch_add(&n_calls, 1) + 1 != atomic_load(&armed_number) && !is_kind) {
        return false;
    }
    atomic_store(&failed_name, name);
    errno = atomic_load(is_kind ? &kind_code : &armed_code);
    return true;
}

#endif
