/* Delays what brings data to the disk by the milliseconds that stand in the file SLOW_DISK names (a 32-bit integer).
   Loaded by LD_PRELOAD; the file may be changed while the program runs. Where SLOW_DISK_SYNCED names a file, each sync that
   is through adds what it brought to the disk there: two 64-bit integers, inode and length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile int32_t *delay_ms;
static int synced = -1;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLOW_DISK_SYNCED");
    if (path) synced = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    path = getenv("SLOW_DISK");
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

static int sync_by(int (*real)(int), int file) {
    struct stat before = {0};
    fstat(file, &before); /* what is written from here on may or may not come along */
    wait_for_the_disk();
    int failed = real(file);
    if (synced >= 0 && !failed) {
        int64_t told[2] = {before.st_ino, before.st_size};
        if (write(synced, told, sizeof told) != sizeof told) abort();
    }
    return failed;
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return sync_by(real, file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return sync_by(real, file);
}

int msync(void *start, size_t length, int flags) {
    static int (*real)(void *, size_t, int);
    if (!real) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    wait_for_the_disk();
    return real(start, length, flags);
}
