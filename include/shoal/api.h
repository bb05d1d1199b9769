/* SPDX-License-Identifier: MIT */
/* Attributes of public declarations, and how structs begin. Every public header includes this one. */
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
 * The initial value of a struct whose first member is struct_size: its size, and zeros, which are the defaults. Each
 * such struct has a macro of its own, named after it: shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
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
