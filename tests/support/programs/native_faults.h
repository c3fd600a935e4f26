/* Faults of memory, files, threads and Python objects for a build of the compiled module: see native_faults_child.py
 * and native_buffers_child.py.
 *
 * The compiler includes this before each file of the module. The call number `fault_at` of those that `fault_mask`
 * names fails; a bit that is not counted holds for all calls. `fault_live` counts pieces of memory in use. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MEMORY = 1, FULL = 2, MUTE = 4, CUT = 8, CLOSE = 16, THREAD = 32, OPEN = 64, UNLINK = 128, SHORT = 256,
       OBJECT = 512 };

__attribute__((weak)) int fault_mask, fault_at, fault_seen, fault_live, fault_turns;

static inline int fault_due(int kind)
{
    return (fault_mask & kind) && __atomic_add_fetch(&fault_seen, 1, __ATOMIC_SEQ_CST) == fault_at;
}

static inline void *fault_counted(void *found)
{
    __atomic_add_fetch(&fault_live, found != NULL, __ATOMIC_SEQ_CST);
    return found;
}

static inline void *fault_none(void)
{
    errno = ENOMEM;
    return NULL;
}

static inline void *fault_malloc(size_t size)
{
    return fault_due(MEMORY) ? fault_none() : fault_counted(malloc(size));
}

static inline void *fault_calloc(size_t count, size_t size)
{
    return fault_due(MEMORY) ? fault_none() : fault_counted(calloc(count, size));
}

static inline void *fault_realloc(void *old, size_t size)
{
    if (fault_due(MEMORY))
        return fault_none();
    return old == NULL ? fault_counted(malloc(size)) : realloc(old, size);
}

static inline void fault_free(void *old)
{
    __atomic_sub_fetch(&fault_live, old != NULL, __ATOMIC_SEQ_CST);
    free(old);
}

/* A signal at every second call, and a part of the bytes. */
static inline int fault_interrupted(size_t *size)
{
    if (!(fault_mask & SHORT))
        return 0;
    *size = *size > 4093 ? 4093 : (*size + 1) / 2;
    errno = EINTR;
    return __atomic_add_fetch(&fault_turns, 1, __ATOMIC_SEQ_CST) % 2;
}

static inline ssize_t fault_write(int fd, const void *bytes, size_t size)
{
    if (fault_interrupted(&size))
        return -1;
    if (fault_due(FULL)) {
        errno = ENOSPC;
        return -1;
    }
    return fault_due(MUTE) ? 0 : write(fd, bytes, size);
}

static inline ssize_t fault_read(int fd, void *bytes, size_t size)
{
    if (fault_interrupted(&size))
        return -1;
    return read(fd, bytes, size);
}

static inline ssize_t fault_pread(int fd, void *bytes, size_t size, off_t at)
{
    if (fault_interrupted(&size))
        return -1;
    return fault_due(CUT) ? 0 : pread(fd, bytes, size, at);
}

static inline int fault_close(int fd)
{
    int failed = close(fd);
    if (!fault_due(CLOSE))
        return failed;
    errno = EIO;
    return -1;
}

static inline int fault_thread(pthread_t *into, const pthread_attr_t *with, void *(*work)(void *), void *given)
{
    return fault_due(THREAD) ? EAGAIN : pthread_create(into, with, work, given);
}

static inline int fault_open(const char *path, int flags, mode_t mode)
{
    if (fault_due(OPEN)) {
        errno = EMFILE;
        return -1;
    }
    return open(path, flags, mode);
}

static inline int fault_unlink(const char *path)
{
    if (fault_due(UNLINK)) {
        errno = EACCES;
        return -1;
    }
    return unlink(path);
}

/* The identity of a file is drawn: here all have the same one, so that files can be compared. */
static inline ssize_t fault_random(void *into, size_t size, unsigned int flags)
{
    (void)flags;
    memset(into, 7, size);
    return (ssize_t)size;
}

/* The interpreter has no memory for an object. */
static inline int fault_object(void)
{
    if (!fault_due(OBJECT))
        return 0;
    PyErr_NoMemory();
    return 1;
}

#undef PyCFunction_NewEx
#define _PyObject_GC_New(type) (fault_object() ? NULL : _PyObject_GC_New(type))
#define PyBytes_FromStringAndSize(at, size) (fault_object() ? NULL : PyBytes_FromStringAndSize(at, size))
#define PyCFunction_NewEx(method, self, module) (fault_object() ? NULL : PyCFunction_NewEx(method, self, module))
#define PyDict_Contains(dict, key) (fault_object() ? -1 : PyDict_Contains(dict, key))
#define PyDict_GetItemWithError(dict, key) (fault_object() ? NULL : PyDict_GetItemWithError(dict, key))
#define PyDict_New() (fault_object() ? NULL : PyDict_New())
#define PyDict_SetItem(dict, key, value) (fault_object() ? -1 : PyDict_SetItem(dict, key, value))
#define PyDict_Update(dict, other) (fault_object() ? -1 : PyDict_Update(dict, other))
#define PyList_Append(list, one) (fault_object() ? -1 : PyList_Append(list, one))
#define PyList_New(size) (fault_object() ? NULL : PyList_New(size))
#define PyList_SetSlice(list, low, high, other) (fault_object() ? -1 : PyList_SetSlice(list, low, high, other))
#define PyLong_FromSsize_t(value) (fault_object() ? NULL : PyLong_FromSsize_t(value))
#define PyTuple_New(size) (fault_object() ? NULL : PyTuple_New(size))
#define PyTuple_Pack(...) (fault_object() ? NULL : PyTuple_Pack(__VA_ARGS__))
#define malloc fault_malloc
#define calloc fault_calloc
#define realloc fault_realloc
#define free fault_free
#define write fault_write
#define read fault_read
#define pread fault_pread
#define close fault_close
#define pthread_create fault_thread
#define open(path, flags, ...) fault_open(path, flags, 0 __VA_OPT__(+) __VA_ARGS__)
#define unlink fault_unlink
#define getrandom fault_random
