// Notes what a process does to the files below POWER_ROOT, for tests/support/power.py: preloaded into every process of
// a service. A record holds when a call began and ended (CLOCK_MONOTONIC, ns), what it was, where, and the bytes.
//
// While the file POWER_FAULTS has a line "<kind> <errno> <n>", one call of that kind in n fails below POWER_ROOT: a write
// may put the first half there before it does, as a full disk does.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAKE = 1, WRITE, TRUNCATE, SYNC, RENAME, LINK, UNLINK, FOLDER };

struct record {
  uint64_t begun, ended, offset;
  uint32_t kind, path, second, data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root, *traces;
static size_t root_length;
static int trace = -1;
static pid_t owner;

static int fails(int kind) {
  static __thread unsigned seed;
  static const char *faults;
  if (!faults) faults = getenv("POWER_FAULTS") ? getenv("POWER_FAULTS") : "";
  if (!*faults) return 0;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, faults, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char line[64];
  long size = syscall(SYS_read, fd, line, sizeof line - 1);
  syscall(SYS_close, fd);
  int wanted, error, among;
  line[size > 0 ? size : 0] = 0;
  if (sscanf(line, "%d %d %d", &wanted, &error, &among) != 3 || wanted != kind) return 0;
  if (!seed) seed = (unsigned)getpid() * 31 + (unsigned)syscall(SYS_gettid);
  return rand_r(&seed) % among ? 0 : error;
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int inside(const char *path) {
  if (!root) {
    root = getenv("POWER_ROOT");
    traces = getenv("POWER_TRACES");
    root_length = root ? strlen(root) : 0;
  }
  if (!root || !traces || strncmp(path, root, root_length) || (path[root_length] && path[root_length] != '/')) return 0;
  size_t length = strlen(path);
  return length < 4 || strcmp(path + length - 4, "-shm");
}

// The path of a descriptor, when it lies below the root.
static int path_of(int fd, char *path) {
  if (fd == trace) return 0;
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, path, PATH_MAX - 1);
  if (length <= 0 || path[0] != '/') return 0;
  path[length] = 0;
  return inside(path);
}

static void note(uint64_t begun, int kind, const char *path, const char *second, uint64_t offset, const void *data,
                 size_t size) {
  struct record r = {begun, now(), offset, (uint32_t)kind, (uint32_t)strlen(path), (uint32_t)strlen(second), (uint32_t)size};
  struct iovec parts[] = {{&r, sizeof r}, {(void *)path, r.path}, {(void *)second, r.second}, {(void *)data, size}};
  pthread_mutex_lock(&lock);
  if (owner != getpid()) {
    char name[PATH_MAX];
    owner = getpid();
    snprintf(name, sizeof name, "%s/%d", traces, (int)owner);
    trace = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }
  if (trace >= 0 && syscall(SYS_writev, trace, parts, 4) < 0) abort();
  pthread_mutex_unlock(&lock);
}

// A name below a folder's descriptor as a whole path; 0 when it does not lie below the root.
static int whole(int folder, const char *name, char *path) {
  if (name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
  } else {
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      char link[64];
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      ssize_t length = readlink(link, base, sizeof base - 1);
      if (length <= 0) return 0;
      base[length] = 0;
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
  }
  return inside(path);
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  uint64_t begun = now();
  int made = 0;
  struct stat found;
  if ((flags & (O_CREAT | O_TRUNC)) && whole(folder, name, path)) made = fstatat(folder, name, &found, 0) != 0 ? 1 : 2;
  int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
  if (fd >= 0 && made == 1 && (flags & O_CREAT)) note(begun, MAKE, path, "", 0, "", 0);
  if (fd >= 0 && made == 2 && (flags & O_TRUNC)) note(begun, TRUNCATE, path, "", 0, "", 0);
  return fd;
}

static mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) ? (mode_t)va_arg(more, int) : 0;
}

#define OPEN(name, head, folder, path)                    \
  int name head {                                         \
    va_list more;                                         \
    va_start(more, flags);                                \
    mode_t mode = mode_of(flags, more);                   \
    va_end(more);                                         \
    return opened(folder, path, flags, mode);             \
  }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(openat, (int folder, const char *path, int flags, ...), folder, path)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, path)

static ssize_t wrote(int fd, const void *data, ssize_t done, uint64_t begun, off_t offset) {
  char path[PATH_MAX];
  if (done > 0 && path_of(fd, path)) {
    if (offset < 0) offset = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - done;
    note(begun, WRITE, path, "", (uint64_t)offset, data, (size_t)done);
  }
  return done;
}

// How much of a write is to be done before it fails: nothing or half of it; -1 when it does not fail.
static ssize_t half(int fd, size_t size) {
  char path[PATH_MAX];
  int error = path_of(fd, path) ? fails(WRITE) : 0;
  if (!error) return -1;
  errno = error;
  return size % 1024 ? 0 : (ssize_t)(size / 2);
}

ssize_t write(int fd, const void *data, size_t size) {
  uint64_t begun = now();
  ssize_t done = half(fd, size);
  if (done >= 0) {
    int error = errno;
    if (done) wrote(fd, data, syscall(SYS_write, fd, data, done), begun, -1);
    errno = error;
    return -1;
  }
  return wrote(fd, data, syscall(SYS_write, fd, data, size), begun, -1);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
  uint64_t begun = now();
  ssize_t done = half(fd, size);
  if (done >= 0) {
    int error = errno;
    if (done) wrote(fd, data, syscall(SYS_pwrite64, fd, data, done, offset), begun, offset);
    errno = error;
    return -1;
  }
  return wrote(fd, data, syscall(SYS_pwrite64, fd, data, size, offset), begun, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return pwrite(fd, data, size, offset); }

static int failed(int fd, int kind) {
  char path[PATH_MAX];
  int error = path_of(fd, path) ? fails(kind) : 0;
  if (error) errno = error;
  return error;
}

static int cut(int fd, off_t size) {
  char path[PATH_MAX];
  uint64_t begun = now();
  if (failed(fd, TRUNCATE)) return -1;
  int done = (int)syscall(SYS_ftruncate, fd, size);
  if (!done && path_of(fd, path)) note(begun, TRUNCATE, path, "", (uint64_t)size, "", 0);
  return done;
}
int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

static int synced(int fd, long call) {
  char path[PATH_MAX];
  uint64_t begun = now();
  if (failed(fd, SYNC)) return -1;
  int done = (int)syscall(call, fd);
  if (!done && path_of(fd, path)) note(begun, SYNC, path, "", 0, "", 0);
  return done;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int two(int done, uint64_t begun, int kind, int from_folder, const char *from, int to_folder, const char *to) {
  char first[PATH_MAX], second[PATH_MAX];
  if (!done && whole(from_folder, from, first) && whole(to_folder, to, second))
    note(begun, kind, first, second, 0, "", 0);
  return done;
}
int renameat(int a, const char *from, int b, const char *to) {
  uint64_t begun = now();
  return two((int)syscall(SYS_renameat2, a, from, b, to, 0), begun, RENAME, a, from, b, to);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  uint64_t begun = now();
  return two((int)syscall(SYS_linkat, a, from, b, to, flags), begun, LINK, a, from, b, to);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int one(int done, uint64_t begun, int kind, int folder, const char *name) {
  char path[PATH_MAX];
  if (!done && whole(folder, name, path)) note(begun, kind, path, "", 0, "", 0);
  return done;
}
int unlinkat(int folder, const char *name, int flags) {
  uint64_t begun = now();
  return one((int)syscall(SYS_unlinkat, folder, name, flags), begun, UNLINK, folder, name);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int mkdirat(int folder, const char *name, mode_t mode) {
  uint64_t begun = now();
  return one((int)syscall(SYS_mkdirat, folder, name, mode), begun, FOLDER, folder, name);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
