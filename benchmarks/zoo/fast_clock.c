/*
 * Runs the clocks of a whole group of processes faster than the machine's (loaded by LD_PRELOAD).
 *
 * FAST_CLOCK names a file that the group shares: the number of the anchor that counts (32 bits), and
 * from byte 64 on the anchors, each a moment at which our clocks and the machine's are known, and
 * how many times as fast ours run from there. All who read it read the same time, whoever was started when.
 *
 * What is waited for lasts by these clocks too: a time-out of 30 s is 30 s of theirs. A long wait is
 * made of short ones, so that it notices a new anchor. Processor time is left as it is.
 *
 * A processor counts its own ticks, which nothing here can change. Valkey times its periodic work
 * by them where /proc/cpuinfo says that they are regular; so that file is empty.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE 100000000LL /* of the machine's time: how late a wait may notice a new anchor */

struct anchor {
    double factor;
    int64_t machine_realtime, our_realtime, machine_monotonic, our_monotonic;
};
struct shared {
    volatile uint32_t current;
    char room[60];
    struct anchor anchors[64];
};

static struct shared *shared;
static int (*machine_clock)(clockid_t, struct timespec *);

static int asked_of_the_kernel(clockid_t id, struct timespec *now) {
    return (int)syscall(SYS_clock_gettime, id, now);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAST_CLOCK");
    *(void **)&machine_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof(struct shared), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shared = mapped;
    close(file);
}

static int64_t ns_of(const struct timespec *time) { return (int64_t)time->tv_sec * SECOND + time->tv_nsec; }

static struct timespec time_of(int64_t ns) {
    struct timespec time = {ns / SECOND, ns % SECOND};
    if (time.tv_nsec < 0) time.tv_nsec += SECOND, time.tv_sec -= 1;
    return time;
}

static int is_realtime(clockid_t id) {
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI;
}

static int is_ours(clockid_t id) {
    return shared && (is_realtime(id) || id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE ||
                      id == CLOCK_MONOTONIC_RAW || id == CLOCK_BOOTTIME);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (machine_clock ? machine_clock : asked_of_the_kernel)(id, now);
    if (failed || !is_ours(id)) return failed;
    const struct anchor *at = &shared->anchors[shared->current];
    int64_t machine = is_realtime(id) ? at->machine_realtime : at->machine_monotonic;
    int64_t ours = is_realtime(id) ? at->our_realtime : at->our_monotonic;
    *now = time_of(ours + (int64_t)((double)(ns_of(now) - machine) * at->factor));
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec, now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

static int64_t our_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return ns_of(&now);
}

/* How long of the machine's time it is until our clock says so, a slice at most; 0: it does already. */
static int64_t slice_until(clockid_t id, int64_t moment) {
    int64_t left = moment - our_ns(id);
    if (left <= 0) return 0;
    if (!shared) return left;
    left = (int64_t)((double)left / shared->anchors[shared->current].factor) + 1;
    return left < SLICE ? left : SLICE;
}

static int64_t machine_ns(clockid_t id) {
    struct timespec now;
    (machine_clock ? machine_clock : asked_of_the_kernel)(id, &now);
    return ns_of(&now);
}

/* What becomes of a call with a time-out: asked again and again, until something happened or the time is over. */
#define UNTIL(wait_ns, nothing_happened, call) \
    int64_t moment = our_ns(CLOCK_MONOTONIC) + (wait_ns); \
    for (;;) { \
        int64_t slice = slice_until(CLOCK_MONOTONIC, moment); \
        struct timespec machine = time_of(slice); \
        int found = (call); \
        if (!(nothing_happened) || slice == 0) return found; \
    }

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *wait, const sigset_t *mask) {
    if (!wait) return (int)syscall(SYS_ppoll, files, count, NULL, mask, sizeof(uint64_t));
    UNTIL(ns_of(wait), found == 0, (int)syscall(SYS_ppoll, files, count, &machine, mask, sizeof(uint64_t)))
}

int poll(struct pollfd *files, nfds_t count, int wait_ms) {
    struct timespec wait = time_of(wait_ms * 1000000LL);
    return ppoll(files, count, wait_ms < 0 ? NULL : &wait, NULL);
}

/* By the kernel's newer call, whose time-out is not in whole milliseconds. */
int epoll_pwait(int epoll, struct epoll_event *events, int most, int wait_ms, const sigset_t *mask) {
    if (wait_ms <= 0) return (int)syscall(SYS_epoll_pwait, epoll, events, most, wait_ms, mask, sizeof(uint64_t));
    UNTIL(wait_ms * 1000000LL, found == 0,
          (int)syscall(SYS_epoll_pwait2, epoll, events, most, &machine, mask, sizeof(uint64_t)))
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int wait_ms) {
    return epoll_pwait(epoll, events, most, wait_ms, NULL);
}

int pselect(int most, fd_set *reads, fd_set *writes, fd_set *faults, const struct timespec *wait, const sigset_t *mask) {
    struct {
        const sigset_t *mask;
        size_t bytes;
    } masked = {mask, sizeof(uint64_t)};
    if (!wait) return (int)syscall(SYS_pselect6, most, reads, writes, faults, NULL, &masked);
    fd_set kept[3];
    if (reads) kept[0] = *reads;
    if (writes) kept[1] = *writes;
    if (faults) kept[2] = *faults;
    UNTIL(ns_of(wait), found == 0,
          (reads ? (void)(*reads = kept[0]) : (void)0, writes ? (void)(*writes = kept[1]) : (void)0,
           faults ? (void)(*faults = kept[2]) : (void)0,
           (int)syscall(SYS_pselect6, most, reads, writes, faults, &machine, &masked)))
}

int select(int most, fd_set *reads, fd_set *writes, fd_set *faults, struct timeval *wait) {
    struct timespec long_wait;
    if (wait) long_wait = (struct timespec){wait->tv_sec, wait->tv_usec * 1000L};
    return pselect(most, reads, writes, faults, wait ? &long_wait : NULL, NULL);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *wait, struct timespec *left) {
    int64_t moment = ns_of(wait) + (flags & TIMER_ABSTIME ? 0 : our_ns(id)), slice;
    while ((slice = slice_until(id, moment)) > 0) {
        struct timespec machine = time_of(slice);
        if (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &machine, NULL)) {
            if (left && !(flags & TIMER_ABSTIME)) *left = time_of(moment - our_ns(id));
            return errno;
        }
    }
    return 0;
}

int nanosleep(const struct timespec *wait, struct timespec *left) {
    int failed = clock_nanosleep(CLOCK_MONOTONIC, 0, wait, left);
    if (failed) errno = failed;
    return failed ? -1 : 0;
}

int usleep(useconds_t wait_us) {
    struct timespec wait = time_of(wait_us * 1000LL);
    return nanosleep(&wait, NULL);
}

unsigned sleep(unsigned seconds) {
    struct timespec wait = {seconds, 0}, left = {0, 0};
    return nanosleep(&wait, &left) ? (unsigned)left.tv_sec + 1 : 0;
}

/* The function of this name beneath ours; those of conditions have an older namesake that knows no clocks. */
#define BENEATH(name, version) \
    static __typeof__(name) *beneath; \
    if (!beneath) *(void **)&beneath = dlvsym(RTLD_NEXT, #name, version);

int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *until) {
    BENEATH(sem_clockwait, "GLIBC_2.30")
    for (;;) {
        int64_t slice = slice_until(id, ns_of(until));
        struct timespec machine = time_of(machine_ns(id) + slice);
        int failed = beneath(semaphore, id, &machine);
        if (!failed || errno != ETIMEDOUT || slice == 0) return failed;
    }
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    return sem_clockwait(semaphore, CLOCK_REALTIME, until);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t id, const struct timespec *until) {
    BENEATH(pthread_cond_clockwait, "GLIBC_2.30")
    for (;;) {
        int64_t slice = slice_until(id, ns_of(until));
        struct timespec machine = time_of(machine_ns(id) + slice);
        int failed = beneath(condition, mutex, id, &machine);
        if (failed != ETIMEDOUT || slice == 0) return failed;
    }
}

/* By which clock it waits is in its attributes alone; the two are decades apart. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    BENEATH(pthread_cond_timedwait, "GLIBC_2.3.2")
    clockid_t id = ns_of(until) > our_ns(CLOCK_REALTIME) / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    for (;;) {
        int64_t slice = slice_until(id, ns_of(until));
        struct timespec machine = time_of(machine_ns(id) + slice);
        int failed = beneath(condition, mutex, &machine);
        if (failed != ETIMEDOUT || slice == 0) return failed;
    }
}

static FILE *opened(const char *next, const char *path, const char *mode) {
    FILE *(*machine_open)(const char *, const char *);
    *(void **)&machine_open = dlsym(RTLD_NEXT, next);
    return machine_open(strcmp(path, "/proc/cpuinfo") ? path : "/dev/null", mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) {
    return opened("fopen", path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode) {
    return opened("fopen64", path, mode);
}
