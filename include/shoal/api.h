/* SPDX-License-Identifier: MIT */
/* Attributes of public declarations. Every public header includes this one; it declares nothing. */
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

#endif
