// Functions of glibc by their first versions, so that the library loads wherever glibc is 2.27 or newer.
//
// A linker takes the newest version that it knows. Newer versions of these functions changed nothing that matters here:
// pthread_create moved from libpthread to libc, and pow and log no longer set errno.
#pragma once
#include <math.h>

#if defined(__linux__) && defined(__GLIBC__)
#if defined(__x86_64__)
#define HW_FIRST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define HW_FIRST "GLIBC_2.17"
#endif
#endif

#ifdef HW_FIRST
__asm__(".symver pow, pow@" HW_FIRST);
__asm__(".symver log, log@" HW_FIRST);
__asm__(".symver pthread_create, pthread_create@" HW_FIRST);
__asm__(".symver pthread_join, pthread_join@" HW_FIRST);
#endif
