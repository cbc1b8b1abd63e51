/* Stands before the C library (LD_PRELOAD): reads of files below FAULT_FOLDER fail with EIO, from the FAULT_AFTER-th on.
 * With FAULT_SHRINK each of them says that the file has ended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_hit(int file) {
    static int number;
    char link[64], path[4096];
    const char *folder = getenv("FAULT_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    return ++number >= atoi(getenv("FAULT_AFTER") ? getenv("FAULT_AFTER") : "1");
}

static ssize_t fail(void) {
    if (getenv("FAULT_SHRINK")) return 0;
    errno = EIO;
    return -1;
}

#define HOOK(name, declared, given)                                                       \
    ssize_t name declared {                                                               \
        static ssize_t(*real) declared;                                                   \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                        \
        return is_hit(file) ? fail() : real given;                                        \
    }
HOOK(read, (int file, void *to, size_t size), (file, to, size))
HOOK(pread, (int file, void *to, size_t size, off_t at), (file, to, size, at))
HOOK(pread64, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
