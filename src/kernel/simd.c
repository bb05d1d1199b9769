/* SPDX-License-Identifier: MIT */
/*
 * Picks the table: the last row of simd.def that this machine can run, or the row that SHOAL_SIMD names. The
 * choice is made once.
 */
#include "kernel/simd.h"

#include "base/log.h"
#include "base/options.h"

#include <stdatomic.h>
#include <stdint.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define ON_ANY(something) something
#if defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)
#define ON_AARCH64(something) something
#else
#define ON_AARCH64(something) NULL
#endif
#if defined(__x86_64__)
#define ON_X86_64(something) something
#else
#define ON_X86_64(something) NULL
#endif

struct variant {
    const char *name;
    bool (*is_usable)(void); /* NULL if it is made for another architecture */
    const struct simd_table *table;
};

static bool can_run_plain(void)
{
    return true;
}

#if defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)

/* Part of the architecture's base. */
static bool can_run_neon(void)
{
    return true;
}

static bool can_run_neon_bf16(void)
{
#if defined(__linux__)
    const unsigned long hwcap2_bf16 = 1ul << 14;
    return (getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
#else
    return false;
#endif
}

#endif

#if defined(__x86_64__)

/* The builtins look at XCR0 too, so that the system saves the registers. clang 14 has none for F16C. */
static bool can_run_avx2(void)
{
    unsigned int eax;
    unsigned int ebx;
    unsigned int ecx;
    unsigned int edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}

static bool can_run_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

#endif

static const struct variant variants[] = {
#define SIMD(name_, architecture, is_usable_) \
    {.name = #name_, .is_usable = ON_##architecture(is_usable_), .table = ON_##architecture(&simd_##name_)},
#include "kernel/simd.def"
#undef SIMD
};

enum {
    VARIANT_COUNT = sizeof(variants) / sizeof(variants[0])
};

static bool is_usable(const struct variant *variant)
{
    return variant->is_usable && variant->is_usable();
}

const struct simd_table *simd_variant(size_t index)
{
    for (size_t i = 0; i < VARIANT_COUNT; i++) {
        if (is_usable(&variants[i]) && index-- == 0) {
            return variants[i].table;
        }
    }
    return NULL;
}

static const struct simd_table *find_best(void)
{
    const struct simd_table *best = &simd_plain;
    for (size_t i = 0; i < VARIANT_COUNT; i++) {
        if (is_usable(&variants[i])) {
            best = variants[i].table;
        }
    }
    return best;
}

static const struct simd_table *pick(void)
{
    int choice = option_choice(OPTION_SIMD);
    const struct simd_table *best = find_best();
    if (choice == 0) {
        return best;
    }
    const struct variant *wanted = &variants[choice - 1];
    if (is_usable(wanted)) {
        return wanted->table;
    }
    LOG(SHOAL_LOG_WARN, "SHOAL_SIMD is %s, which this machine does not support; using %s", wanted->name,
        best->name);
    return best;
}

static _Atomic(const struct simd_table *) picked;

const struct simd_table *simd_table(void)
{
    /* Only the address of a constant is published, and two threads that race pick the same one, so nothing
       needs to be ordered. Pairs with the two stores below. */
    const struct simd_table *table = atomic_load_explicit(&picked, memory_order_relaxed);
    if (!table) {
        table = pick();
        /* Pairs with the load above. */
        atomic_store_explicit(&picked, table, memory_order_relaxed);
    }
    return table;
}

void simd_table_set(const struct simd_table *table)
{
    /* Pairs with the load in simd_table. */
    atomic_store_explicit(&picked, table, memory_order_relaxed);
}

const char *simd_name(void)
{
    return simd_table()->name;
}

/* SHOAL_STREAM_BYTES, once it was read; until then more than the option's largest value. */
static _Atomic(uint64_t) stream_bytes = UINT64_MAX;

bool simd_is_streaming(size_t output_bytes)
{
    /* Every call asks, so the option is not looked up again. All threads find the same value, so nothing needs to be
       ordered. Pairs with the store below. */
    uint64_t bytes = atomic_load_explicit(&stream_bytes, memory_order_relaxed);
    if (bytes == UINT64_MAX) {
        bytes = (uint64_t)option_int(OPTION_STREAM_BYTES);
        /* Pairs with the load above. */
        atomic_store_explicit(&stream_bytes, bytes, memory_order_relaxed);
    }
    return output_bytes >= bytes;
}
