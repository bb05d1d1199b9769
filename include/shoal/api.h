/* SPDX-License-Identifier: MIT */
/* What all public headers use: attributes of declarations (SHOAL_API: exported; SHOAL_MUST_CHECK: the compiler warns if
   the result is ignored; others for bindings), and how structs with a struct_size are initialized. */
#ifndef SHOAL_API_H
#define SHOAL_API_H

#if defined(__GNUC__) || defined(__clang__)
#define SHOAL_API __attribute__((visibility("default")))
#define SHOAL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define SHOAL_API
#define SHOAL_MUST_CHECK
#endif

/*
 * What a binding for another language has to know of a function and cannot see in its type. Compilers see nothing of
 * it, unless SHOAL_ANNOTATE is defined for clang: these are then annotations in its syntax tree, from which
 * shoal-api.json is made.
 *
 * SHOAL_COLLECTIVE: all ranks of the group, mesh or world make the call, in the same order. It may wait for others.
 * SHOAL_SOMETIMES_COLLECTIVE: the call is collective if what it works on makes it so: a module that is sharded or
 * wrapped, a backward pass through collectives, a graph or a step with groups.
 * Other calls are made by a rank for itself, also those that every rank has to make (settings, for example). Sends and
 * receives, which two ranks make, are among them.
 *
 * SHOAL_GIVES, before the result or a parameter: the caller owns what the call returns or writes there, and must free,
 * release or close it. Before an array: each element. Other results are borrowed. Tensors belong to the scope.
 * SHOAL_TAKES, before a parameter: the call takes over the object or ends it, and the caller must not release it again.
 * If the call fails, the object stays the caller's, unless the comment says otherwise. Memory that is given together
 * with a function that frees it is not marked.
 */
#if defined(__clang__) && defined(SHOAL_ANNOTATE)
#define SHOAL_COLLECTIVE __attribute__((annotate("shoal:collective")))
#define SHOAL_SOMETIMES_COLLECTIVE __attribute__((annotate("shoal:sometimes_collective")))
#define SHOAL_GIVES __attribute__((annotate("shoal:gives")))
#define SHOAL_TAKES __attribute__((annotate("shoal:takes")))
#else
#define SHOAL_COLLECTIVE
#define SHOAL_SOMETIMES_COLLECTIVE
#define SHOAL_GIVES
#define SHOAL_TAKES
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
