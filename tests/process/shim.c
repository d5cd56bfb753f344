/* Preloaded into an agent or ingest: makes a disk fail or slow, for files whose path holds FAULTY_PATH.
 *
 * FAULTY_ONCE: a file; the next fsync or fdatasync of such a path removes it and fails with EIO.
 * FAULTY_SYNC_MS: every such sync takes so long before it happens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_faulty(int descriptor)
{
    const char *wanted = getenv("FAULTY_PATH");
    char link[64], path[PATH_MAX];
    ssize_t length;

    if (wanted == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    return strstr(path, wanted) != NULL;
}

static int before_sync(int descriptor)
{
    const char *once = getenv("FAULTY_ONCE"), *slow = getenv("FAULTY_SYNC_MS");

    if (!is_faulty(descriptor))
        return 0;
    if (slow != NULL) {
        long ms = atol(slow);
        struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    if (once != NULL && unlink(once) == 0) {
        errno = EIO;
        return -1;
    }
    return 0;
}

int fsync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return before_sync(descriptor) != 0 ? -1 : real(descriptor);
}

int fdatasync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return before_sync(descriptor) != 0 ? -1 : real(descriptor);
}

/* FAULTY_CLOCK: a file with the seconds that the wall clock is off by. */
static long long shift_s(void)
{
    const char *file = getenv("FAULTY_CLOCK");
    long long shift = 0;
    FILE *stream;

    if (file == NULL)
        return 0;
    stream = fopen(file, "r");
    if (stream == NULL)
        return 0;
    if (fscanf(stream, "%lld", &shift) != 1)
        shift = 0;
    fclose(stream);
    return shift;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) =
        (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);

    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += shift_s();
    return result;
}
