/* sanitized: which sanitizer this program was built with, for the counts of a test that takes long under one. Counts alone:
 * what is asserted stays the same. */
#pragma once

#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#endif

#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif
#define SANITIZED (UNDER_ASAN || UNDER_TSAN)
