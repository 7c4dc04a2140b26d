/* Delays what brings data to the disk by the milliseconds that stand in the file SLOW_DISK names (a 32-bit integer).
   Loaded by LD_PRELOAD; the file may be changed while the program runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int32_t *delay_ms;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLOW_DISK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof(int32_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) delay_ms = mapped;
    close(file);
}

static void wait_for_the_disk(void) {
    if (!delay_ms || *delay_ms <= 0) return;
    struct timespec left = {*delay_ms / 1000, (*delay_ms % 1000) * 1000000L};
    while (nanosleep(&left, &left)) {}
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_the_disk();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_the_disk();
    return real(file);
}

int msync(void *start, size_t length, int flags) {
    static int (*real)(void *, size_t, int);
    if (!real) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    wait_for_the_disk();
    return real(start, length, flags);
}
