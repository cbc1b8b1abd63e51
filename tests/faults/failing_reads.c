/* Stands before the C library (LD_PRELOAD) and makes the machine fail, as variables of the environment say.
 *
 * FAULT_FOLDER    reads of files below it fail with EIO, from the FAULT_AFTER-th on; with FAULT_SHRINK they say that the file has ended
 * FAULT_SWAP      "A:B": at the FAULT_AFTER-th read, A is renamed to B, and no read fails
 * FAULT_READONLY  nothing can be created or opened for writing below it (EROFS)
 * FAULT_MISSING   it does not exist, and nothing below it does (ENOENT)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int is_below(const char *path, const char *variable) {
    const char *folder = getenv(variable);
    size_t length = folder ? strlen(folder) : 0;
    return length && path && !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static int is_hit(int file) {
    static int number;
    char link[64], path[4096], *swap = getenv("FAULT_SWAP"), *behind;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!is_below(path, "FAULT_FOLDER")) return 0;
    ++number;
    if (number < atoi(getenv("FAULT_AFTER") ? getenv("FAULT_AFTER") : "1")) return 0;
    if (!swap) return 1;
    snprintf(path, sizeof path, "%s", swap);
    if ((behind = strchr(path, ':'))) {
        *behind = 0;
        rename(path, behind + 1); /* the second time there is nothing left to rename */
    }
    return 0;
}

static ssize_t fail(void) {
    if (getenv("FAULT_SHRINK")) return 0;
    errno = EIO;
    return -1;
}

#define REAL(name, declared) \
    static __typeof__(name) *real; \
    if (!real) real = dlsym(RTLD_NEXT, #name);

#define READS(name, declared, given)          \
    ssize_t name declared {                   \
        REAL(name, declared)                  \
        return is_hit(file) ? fail() : real given; \
    }
READS(read, (int file, void *to, size_t size), (file, to, size))
READS(pread, (int file, void *to, size_t size, off_t at), (file, to, size, at))
READS(pread64, (int file, void *to, size_t size, off64_t at), (file, to, size, at))

static int refuse(const char *path, int is_writing) {
    if (is_below(path, "FAULT_MISSING")) return errno = ENOENT;
    if (is_writing && is_below(path, "FAULT_READONLY")) return errno = EROFS;
    return 0;
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE                                   \
    va_list rest;                              \
    va_start(rest, flags);                     \
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0; \
    va_end(rest);
#define OPENS(name)                                               \
    int name(const char *path, int flags, ...) {                  \
        REAL(name, )                                              \
        MODE return refuse(path, WRITES(flags)) ? -1 : real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name)                                            \
    int name(int at, const char *path, int flags, ...) {          \
        REAL(name, )                                              \
        MODE return refuse(path, WRITES(flags)) ? -1 : real(at, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define PATHS(name, declared, given, is_writing)                  \
    int name declared {                                           \
        REAL(name, declared)                                      \
        return refuse(path, is_writing) ? -1 : real given;        \
    }
PATHS(mkdir, (const char *path, mode_t mode), (path, mode), 1)
PATHS(unlink, (const char *path), (path), 1)
PATHS(rename, (const char *path, const char *to), (path, to), 1)
PATHS(access, (const char *path, int mode), (path, mode), mode & W_OK)
PATHS(stat, (const char *path, struct stat *to), (path, to), 0)
PATHS(stat64, (const char *path, struct stat64 *to), (path, to), 0)
PATHS(lstat, (const char *path, struct stat *to), (path, to), 0)
PATHS(statvfs, (const char *path, struct statvfs *to), (path, to), 0)
PATHS(statvfs64, (const char *path, struct statvfs64 *to), (path, to), 0)
