/* Preloaded into processes of a fault test (disk.py): sees what they do to the files of one store.
 *
 * SHIM_STORE  the database's path; its -wal and -journal belong to it. Locks and the shared -shm are no durable state.
 * SHIM_LOG    append one record for each write, truncation, removal and sync of these files, in the order they happened.
 *             A write is logged once it is done, a sync before it begins and again when it is done: what it covers is
 *             what was logged before it began.
 * SHIM_FAULT  "what error first count": fail that many calls from the first-th on, in each process. `what` is write, sync
 *             or read; `error` a number, or 0 for a write that is cut short.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 65536
enum { OTHER, DATABASE, WAL, JOURNAL };

struct record {
    char op; /* w write, t truncate, u unlink, b sync begins, s synced, f made to fail; disk.py adds a: said */
    char file;
    char padding[2];
    uint32_t length;
    uint64_t offset;
} __attribute__((packed));

static char files[FDS];
static const char *store;
static size_t store_length;
static int log_fd = -1;
static pid_t self;
static char fault_op;
static int fault_error;
static long fault_first, fault_count;
static atomic_long seen;

#define REAL(result, name, ...)                              \
    static result (*real)(__VA_ARGS__);                      \
    if (!real)                                               \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void after_fork(void) { self = getpid(); }

__attribute__((constructor)) static void begin(void) {
    store = getenv("SHIM_STORE");
    store_length = store ? strlen(store) : 0;
    self = getpid();
    pthread_atfork(NULL, NULL, after_fork);
    const char *path = getenv("SHIM_LOG"), *fault = getenv("SHIM_FAULT");
    if (path) {
        REAL(int, "open", const char *, int, ...);
        log_fd = real(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    }
    char what[16];
    if (fault && sscanf(fault, "%15s %d %ld %ld", what, &fault_error, &fault_first, &fault_count) == 4)
        fault_op = what[0];
}

static char kind_of(const char *path) {
    if (!store || !path || strncmp(path, store, store_length))
        return OTHER;
    path += store_length;
    return !*path ? DATABASE : !strcmp(path, "-wal") ? WAL : !strcmp(path, "-journal") ? JOURNAL : OTHER;
}

static char file_of(int fd) { return fd >= 0 && fd < FDS ? files[fd] : OTHER; }

static void put(char op, char file, uint64_t offset, const void *data, uint32_t length) {
    if (log_fd < 0)
        return;
    int kept = errno;
    struct record record = {.op = op, .file = file, .length = length, .offset = offset};
    struct iovec parts[] = {{&record, sizeof record}, {(void *)data, length}};
    if (writev(log_fd, parts, data ? 2 : 1) < 0)
        abort(); /* a log with gaps would prove nothing */
    errno = kept;
}

static int fails(char op) {
    if (op != fault_op)
        return 0;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (number < fault_first || number >= fault_first + fault_count)
        return 0;
    put('f', OTHER, 0, NULL, 0);
    return 1;
}

static int opened(int fd, const char *path) {
    if (fd >= 0 && fd < FDS && self == getpid()) /* a child of vfork shares this memory, but not our descriptors */
        files[fd] = kind_of(path);
    return fd;
}

#define MODE                                                 \
    mode_t mode = 0;                                         \
    if (flags & (O_CREAT | O_TMPFILE)) {                     \
        va_list rest;                                        \
        va_start(rest, flags);                               \
        mode = va_arg(rest, mode_t);                         \
        va_end(rest);                                        \
    }

int open(const char *path, int flags, ...) {
    MODE;
    REAL(int, "open", const char *, int, ...);
    return opened(real(path, flags, mode), path);
}

int open64(const char *path, int flags, ...) {
    MODE;
    REAL(int, "open64", const char *, int, ...);
    return opened(real(path, flags, mode), path);
}

int close(int fd) {
    REAL(int, "close", int);
    if (fd >= 0 && fd < FDS && self == getpid())
        files[fd] = OTHER;
    return real(fd);
}

static ssize_t write_at(ssize_t (*real)(int, const void *, size_t, off_t), int fd, const void *data, size_t length,
                        off_t offset) {
    char file = file_of(fd);
    if (file == OTHER)
        return real(fd, data, length, offset);
    if (fails('w')) {
        if (fault_error) {
            errno = fault_error;
            return -1;
        }
        length = (length + 1) / 2;
    }
    ssize_t done = real(fd, data, length, offset);
    if (done > 0)
        put('w', file, offset, data, done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return write_at(real, fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    return write_at(real, fd, data, length, offset);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (file_of(fd) != OTHER)
        abort(); /* SQLite is built to use pwrite; where it isn't, this shim misses where a write goes */
    return real(fd, data, length);
}

ssize_t pread(int fd, void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    if (file_of(fd) != OTHER && fails('r')) {
        errno = fault_error;
        return -1;
    }
    return real(fd, data, length, offset);
}

ssize_t pread64(int fd, void *data, size_t length, off64_t offset) {
    REAL(ssize_t, "pread64", int, void *, size_t, off_t);
    if (file_of(fd) != OTHER && fails('r')) {
        errno = fault_error;
        return -1;
    }
    return real(fd, data, length, offset);
}

static int sync_file(int (*real)(int), int fd) {
    char file = file_of(fd);
    if (file == OTHER)
        return real(fd);
    if (fails('s')) {
        errno = fault_error;
        return -1;
    }
    put('b', file, gettid(), NULL, 0);
    int result = real(fd);
    if (!result)
        put('s', file, gettid(), NULL, 0);
    return result;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return sync_file(real, fd);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return sync_file(real, fd);
}

int ftruncate(int fd, off_t length) {
    REAL(int, "ftruncate", int, off_t);
    int result = real(fd, length);
    if (!result && file_of(fd) != OTHER)
        put('t', file_of(fd), length, NULL, 0);
    return result;
}

int ftruncate64(int fd, off64_t length) {
    REAL(int, "ftruncate64", int, off_t);
    int result = real(fd, length);
    if (!result && file_of(fd) != OTHER)
        put('t', file_of(fd), length, NULL, 0);
    return result;
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int result = real(path);
    if (!result && kind_of(path) != OTHER)
        put('u', kind_of(path), 0, NULL, 0);
    return result;
}
