/* SPDX-License-Identifier: MIT */
/* What all public headers use: attributes of declarations (SHOAL_API: exported; SHOAL_MUST_CHECK: the compiler warns if
   the result is ignored), and how structs with a struct_size are initialized. */
#ifndef SHOAL_API_H
#define SHOAL_API_H

#if defined(__GNUC__) || defined(__clang__)
#define SHOAL_API __attribute__((visibility("default")))
#define SHOAL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define SHOAL_API
#define SHOAL_MUST_CHECK
#endif

#ifdef __cplusplus
#define SHOAL_BEGIN_DECLS extern "C" {
#define SHOAL_END_DECLS }
#else
#define SHOAL_BEGIN_DECLS
#define SHOAL_END_DECLS
#endif

/*
 * Structs that begin with struct_size may get further fields at their end in later versions. The size says which of
 * them a program knows; the others have their defaults. Initialize such a struct with the macro that is named after it,
 * which sets the size and the defaults (mostly zeros):
 *
 *     shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
 *
 * SHOAL_ERR_INVALID: struct_size is too small, 0 for example. SHOAL_ERR_UNSUPPORTED: the struct is newer than the
 * library, and a field that the library does not know is not 0. (libshoal_nn accepts only the size that it was built
 * with; any other one is SHOAL_ERR_INVALID.)
 */
#ifdef __cplusplus
extern "C++" {
template <typename Struct> inline Struct shoal_sized(void)
{
    Struct value = Struct();
    value.struct_size = sizeof(Struct);
    return value;
}
}
#define SHOAL_SIZED(type) shoal_sized<type>()
#else
#define SHOAL_SIZED(type)           \
    {                               \
        .struct_size = sizeof(type) \
    }
#endif

#endif
