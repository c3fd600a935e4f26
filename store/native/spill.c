/* Rows of a fold that leave memory before their end.
 *
 *     fold ── spill ──> a file without a name: frames of rows in key order, segment by segment
 *
 *     frame    rows: key length, value length (4 bytes each; -1: a delete), key, value
 *
 * The file has no name from the beginning, so that it ends with the process; it is not synced, and a small one never
 * reaches the disk. The checksums of its frames stay in memory with their first keys: what is read back is what was
 * written, so that the lengths in it are trusted.
 *
 * Rules of this file: an error is -1 with errno where no Python object may be touched. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

#define FRAME_BYTES ((size_t)128 << 10)

PyObject *spill_type;

/* -- errors and looks ---------------------------------------------------------------------------------------------- */

/* The error of a call that failed with `code` (0: a Python error is set). */
PyObject *raise_errno(int code, const char *path)
{
    if (code == ENOMEM)
        return PyErr_NoMemory();
    if (code == 0)
        return NULL;
    errno = code;
    return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
}

const char *path_of(PyObject *text)
{
    Py_ssize_t length;
    const char *path = PyUnicode_AsUTF8AndSize(text, &length);
    if (path != NULL && strlen(path) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "a path has a null character");
        return NULL;
    }
    return path;
}

/* 1: it raised, and its error is set. */
int call_look(PyObject *look)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *answer = PyObject_CallNoArgs(look);
    Py_XDECREF(answer);
    PyGILState_Release(state);
    return answer == NULL;
}

/* -- spilling ------------------------------------------------------------------------------------------------------ */

static unsigned char *copy_of(const unsigned char *key, uint32_t length)
{
    unsigned char *own = malloc(length ? length : 1);
    if (own != NULL && length)
        memcpy(own, key, length);
    return own;
}

typedef struct {
    unsigned char *bytes;
    size_t size, room;
    uint64_t looked; /* bytes written before the last look */
} Pile;

static int write_frame(Spill *self, Pile *pile)
{
    if (write_all(self->fd, pile->bytes, pile->size) < 0)
        return -1;
    Frame *frame = self->frames + self->count - 1;
    frame->size = (uint32_t)pile->size;
    frame->checksum = bytes_checksum(pile->bytes, pile->size);
    self->size += pile->size;
    pile->size = 0;
    return 0;
}

static int begin_frame(Spill *self, const Cell *row)
{
    if (self->count == self->room) {
        uint32_t room = self->room ? self->room * 2 : 64;
        Frame *fresh = realloc(self->frames, room * sizeof(Frame));
        if (fresh == NULL)
            return -1;
        self->frames = fresh;
        self->room = room;
    }
    unsigned char *key = copy_of(row->key, row->key_len);
    if (key == NULL)
        return -1;
    self->frames[self->count++] = (Frame){.at = self->size, .key = key, .key_len = row->key_len};
    return 0;
}

static int spill_row(Spill *self, Pile *pile, const Cell *row)
{
    size_t length = row->value_len < 0 ? 0 : (size_t)row->value_len, own = FRAME_HEAD + row->key_len + length;
    if (pile->size && pile->size + own > FRAME_BYTES && write_frame(self, pile) < 0)
        return -1;
    if (pile->size == 0 && begin_frame(self, row) < 0)
        return -1;
    size_t wanted = pile->size + own;
    if (wanted > UINT32_MAX) {
        errno = EFBIG;
        return -1;
    }
    if (wanted > pile->room) { /* a row that is larger than a frame has its own */
        unsigned char *fresh = realloc(pile->bytes, wanted);
        if (fresh == NULL)
            return -1;
        pile->bytes = fresh;
        pile->room = wanted;
    }
    unsigned char *at = pile->bytes + pile->size;
    memcpy(at, &row->key_len, 4);
    memcpy(at + 4, &row->value_len, 4);
    memcpy(at + FRAME_HEAD, row->key, row->key_len);
    if (length)
        memcpy(at + FRAME_HEAD + row->key_len, row->value, length);
    pile->size = wanted;
    self->frames[self->count - 1].rows++;
    self->longest = row->key_len > self->longest ? row->key_len : self->longest;
    return 0;
}

/* -1: an error with errno; 1: `look` raised. */
static int spill_group(Spill *self, PyObject *fold, const Group *group, Pile *pile, PyObject *look)
{
    Cell cells[CELLS_MAX];
    uint32_t first = self->count;
    for (uint32_t from = group->from, to; from < group->to; from = to) {
        to = fold_cells(fold, from, group->to, cells);
        for (uint32_t i = 0; i < to - from; i++)
            if (spill_row(self, pile, cells + i) < 0)
                return -1;
        if (self->size - pile->looked < LOOK_BYTES)
            continue;
        pile->looked = self->size;
        if (call_look(look))
            return 1;
    }
    Stretch *fresh = realloc(self->stretches, (self->stretches_count + 1) * sizeof(Stretch));
    if (fresh == NULL)
        return -1;
    self->stretches = fresh;
    fold_cells(fold, group->to - 1, group->to, cells);
    unsigned char *last = write_frame(self, pile) < 0 ? NULL : copy_of(cells->key, cells->key_len);
    if (last == NULL)
        return -1;
    uint64_t rows = group->to - group->from;
    fresh[self->stretches_count++] =
        (Stretch){group->segment, first, self->count, rows, group->deletes, last, cells->key_len};
    return 0;
}

static int spill_all(Spill *self, PyObject *fold, const char *path, int64_t least, PyObject *look)
{
    Pile pile = {.bytes = malloc(FRAME_BYTES), .room = FRAME_BYTES};
    if (pile.bytes == NULL)
        return -1;
    self->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int failed = self->fd < 0 || unlink(path) < 0 ? -1 : 0;
    const Group *group;
    for (uint32_t i = 0; !failed && (group = fold_group(fold, i)) != NULL; i++)
        if (group->segment >= least)
            failed = spill_group(self, fold, group, &pile, look);
    int code = errno;
    free(pile.bytes);
    errno = code;
    return failed;
}

static void spill_dealloc(Spill *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    if (self->fd >= 0)
        close(self->fd);
    for (uint32_t i = 0; i < self->count; i++)
        free(self->frames[i].key);
    for (uint32_t i = 0; i < self->stretches_count; i++)
        free(self->stretches[i].last);
    free(self->frames);
    free(self->stretches);
    release(self);
    Py_DECREF(type);
}

static PyObject *spill_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *fold, *text, *look;
    long long least;
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "a spill takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!LO", (PyTypeObject *)fold_type, &fold, &PyUnicode_Type, &text, &least, &look))
        return NULL;
    const char *path = path_of(text);
    if (path == NULL || fold_enter(fold) < 0)
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Spill *self = (Spill *)allocate(type, 0);
    if (self != NULL) {
        int failed, code;
        self->fd = -1;
        Py_BEGIN_ALLOW_THREADS
        failed = spill_all(self, fold, path, least, look);
        code = failed < 0 ? errno : 0;
        Py_END_ALLOW_THREADS
        if (failed) {
            raise_errno(code, path);
            Py_CLEAR(self);
        }
    }
    fold_leave(fold);
    return (PyObject *)self;
}

static PyObject *spill_segments(Spill *self, void *unused)
{
    (void)unused;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < self->stretches_count; i++) {
        const Stretch *one = self->stretches + i;
        PyObject *row = Py_BuildValue("(LKK)", (long long)one->segment, (unsigned long long)one->rows,
                                      (unsigned long long)one->deletes);
        if (row == NULL || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

static PyObject *spill_get(Spill *self, void *what)
{
    return what == NULL ? PyLong_FromUnsignedLongLong(self->size) : PyBool_FromLong(self->longest <= TABLE_KEY_MAX);
}

static PyGetSetDef spill_fields[] = {
    {"segments", (getter)spill_segments, NULL, "[(segment, rows, deletes among them)], ascending", NULL},
    {"size", (getter)spill_get, NULL, "bytes of the file", NULL},
    {"short_keys", (getter)spill_get, NULL, "whether `merge` takes the keys of all rows", (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot spill_slots[] = {
    {Py_tp_new, spill_new},
    {Py_tp_dealloc, spill_dealloc},
    {Py_tp_getset, spill_fields},
    {Py_tp_doc, "Spill(fold, path, least, look)\n\nThe rows of a sorted fold, those of segments below `least` left out, "
                "in a file without a name in the folder of `path`. `look()` is called every few megabytes and may "
                "raise. Raises OSError and MemoryError."},
    {0, NULL},
};

static PyType_Spec spill_spec = {
    "standfast.store._native.Spill", sizeof(Spill), 0, Py_TPFLAGS_DEFAULT, spill_slots,
};

int init_spill(PyObject *module)
{
    spill_type = PyType_FromSpec(&spill_spec);
    return spill_type == NULL ? -1 : PyModule_AddObjectRef(module, "Spill", spill_type);
}
