/* The write buffer of a task, compiled: see store/buffer/buffer.py, whose `WriteBuffer` and `StoreWriter` do the same in Python.
 *
 *     Buffer     rows, changes and their size; store/buffer/buffer.py has what is not done for each record
 *     Writer     puts of one store ──> `enter`: the one place where rows and changes enter, and are counted
 *     encoder    a key or a value ──> its bytes, or an error that names part and store
 *
 * Rules of this file: a put is one step of the interpreter, as long as the buffer is `open`; else it waits for the latch,
 * which a savepoint and a commit's `take` hold. Nothing changes before all memory is there. No code of Python runs in
 * the middle of a step: keys and rows are bytes themselves and none of a subclass, and the collector waits. */
#include "native.h"

#include <stddef.h>
#include <structmember.h>

enum { UNLOGGED, EACH, LATEST, HEADED };
enum { ROW_BYTES = 100, CHANGE_BYTES = 100, STAMP_BYTES = 8, ENTRY_BYTES = ROW_BYTES + CHANGE_BYTES };
#define STAMP_MAX (1LL << 62) /* not with it */

typedef struct {
    PyObject_HEAD
    PyObject *rows, *changes, *delete_times; /* family -> key -> row; store -> key or number -> change; of deletes */
    PyObject *journal;                       /* a list while a savepoint is open: how to undo each change */
    PyObject *latch;
    long long size, stop;
    char open;
} Buffer;

/* How objects become bytes: by a serde, or by `refuse`, which raises. `plain`: of bytes, as they are. */
typedef struct {
    PyObject *serialize, *refuse;
    int plain;
} Encoding;

typedef struct {
    PyObject_HEAD
    Buffer *buffer;
    PyObject *name, *check;
    PyObject *parts; /* of `put` with objects: what putter was given, of which the following are */
    PyObject *family, *times;
    Encoding key, value;
    long long most, least, puts, deletes;
    int mode;
    char stamped;
} Writer;

static PyObject *writer_type;

/* One write. Its rows are `entered`, or the one of `key`. */
typedef struct {
    PyObject *family, *entered, *key, *row, *raw, *stamp;
} Write;

static long long length(PyObject *raw) /* 0 of None, and of none */
{
    return raw == NULL || raw == Py_None ? 0 : (long long)PyBytes_Size(raw);
}

/* The bytes themselves, of a subclass a copy. */
static PyObject *plain(PyObject *given)
{
    if (PyBytes_CheckExact(given))
        return Py_NewRef(given);
    if (PyBytes_Check(given))
        return PyBytes_FromStringAndSize(PyBytes_AsString(given), PyBytes_Size(given));
    PyObject *name = PyType_GetName(Py_TYPE(given));
    if (name != NULL)
        PyErr_Format(PyExc_TypeError, "keys and values of a store are bytes, not %U", name);
    Py_XDECREF(name);
    return NULL;
}

static PyObject *plain_or_none(PyObject *given)
{
    return given == Py_None ? Py_NewRef(given) : plain(given);
}

/* The row of a value. */
static PyObject *row_of(Writer *self, PyObject *raw, long long stamp)
{
    if (!self->stamped || raw == Py_None)
        return Py_NewRef(raw);
    Py_ssize_t size = PyBytes_Size(raw);
    PyObject *row = PyBytes_FromStringAndSize(NULL, size + STAMP_BYTES);
    if (row == NULL)
        return NULL;
    uint64_t swapped = __builtin_bswap64((uint64_t)stamp);
    memcpy(PyBytes_AsString(row), &swapped, STAMP_BYTES);
    memcpy(PyBytes_AsString(row) + STAMP_BYTES, PyBytes_AsString(raw), (size_t)size);
    return row;
}

/* -- one entry ----------------------------------------------------------------------------------------------------- */

/* What undoes the next change of `mapping[key]`: (mapping, key), or the present value behind these. */
static int remember(PyObject *undo, PyObject *mapping, PyObject *key)
{
    PyObject *old = PyDict_GetItemWithError(mapping, key);
    if (old == NULL && PyErr_Occurred())
        return -1;
    PyObject *entry = old == NULL ? PyTuple_Pack(2, mapping, key) : PyTuple_Pack(3, mapping, key, old);
    int failed = entry == NULL || PyList_Append(undo, entry) < 0;
    Py_XDECREF(entry);
    return failed ? -1 : 0;
}

static void put_back(PyObject *undo) /* with an error, which stays */
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    for (Py_ssize_t at = PyList_Size(undo) - 1; at >= 0; at--) {
        PyObject *entry = PyList_GetItem(undo, at), *mapping = PyTuple_GetItem(entry, 0);
        if (PyTuple_Size(entry) == 3)
            PyDict_SetItem(mapping, PyTuple_GetItem(entry, 1), PyTuple_GetItem(entry, 2));
        else
            PyDict_DelItem(mapping, PyTuple_GetItem(entry, 1));
        PyErr_Clear(); /* a key that was not there yet */
    }
    PyErr_Restore(type, error, traceback);
}

/* Bytes that a row in the place of the present one of its key adds. */
static long long row_bytes(PyObject *rows, PyObject *key, PyObject *row)
{
    PyObject *old = PyDict_GetItemWithError(rows, key);
    return length(row) - length(old) + (old == NULL ? ROW_BYTES + length(key) : 0);
}

/* Bytes that a change adds in the place of the present one, which is the row in `changes` of a headed store. */
static long long change_bytes(PyObject *changes, PyObject *slot, int headed, const Write *write)
{
    PyObject *old = PyDict_GetItemWithError(changes, slot);
    if (old == NULL)
        return length(write->raw) + CHANGE_BYTES + length(write->key);
    if (headed)
        return length(write->raw) - (old == Py_None ? 0 : length(old) - STAMP_BYTES);
    return length(write->raw) - length(PyTuple_GetItem(old, 1));
}

/* The whole of it: any rows, any change, with a savepoint or without. -1 with an error, and nothing has changed. */
static int enter_all(Writer *self, PyObject *rows, PyObject *changes, const Write *write)
{
    Buffer *buffer = self->buffer;
    int headed = changes == rows, failed = -1;
    long long added = 0, puts = 0, deletes = 0;
    PyObject *undo = PyList_New(0), *none = PyTuple_New(0), *key, *row, *times = NULL, *slot = NULL, *change = NULL;
    PyObject *entered = write->entered == NULL ? PyDict_New() : Py_NewRef(write->entered);
    if (undo == NULL || none == NULL || entered == NULL ||
        (write->entered == NULL && PyDict_SetItem(entered, write->key, write->row) < 0))
        goto done;
    if (headed && (times = PyDict_GetItemWithError(buffer->delete_times, self->name)) == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "a store whose rows are its changes has no times of deletes");
        goto done;
    }
    for (Py_ssize_t at = 0; PyDict_Next(entered, &at, &key, &row);) {
        added += row_bytes(rows, key, row);
        *(row == Py_None ? &deletes : &puts) += 1;
        if (remember(undo, rows, key) < 0)
            goto done;
    }
    if (changes != NULL) {
        slot = self->mode == EACH ? PyLong_FromSsize_t(PyDict_Size(changes)) : Py_NewRef(write->key);
        change = headed ? NULL : PyTuple_Pack(4, write->key, write->raw, write->stamp, none);
        if (slot == NULL || (!headed && change == NULL) || (!headed && remember(undo, changes, slot) < 0) ||
            (headed && write->raw == Py_None && remember(undo, times, slot) < 0))
            goto done;
        added += change_bytes(changes, slot, headed, write);
    }
    if (PyErr_Occurred() || (buffer->journal != Py_None &&
                             PyList_SetSlice(buffer->journal, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, undo) < 0))
        goto done;
    /* The time of a delete first, without which it cannot be logged. */
    if ((headed && write->raw == Py_None && PyDict_SetItem(times, slot, write->stamp) < 0) ||
        PyDict_Update(rows, entered) < 0 || (change != NULL && PyDict_SetItem(changes, slot, change) < 0)) {
        put_back(undo);
        goto done;
    }
    buffer->size += added;
    self->puts += puts;
    self->deletes += deletes;
    failed = 0;
done:;
    PyObject *held[] = {undo, none, entered, slot, change};
    for (size_t at = 0; at < sizeof held / sizeof *held; at++)
        Py_XDECREF(held[at]);
    return failed;
}

/* 1: entered; 0: `place` must make room for the family or the store first; -1 with an error. */
static int enter(Writer *self, const Write *write)
{
    Buffer *buffer = self->buffer;
    PyObject *rows = PyDict_GetItemWithError(buffer->rows, write->family), *changes = NULL;
    if (rows == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (self->mode != UNLOGGED && (changes = PyDict_GetItemWithError(buffer->changes, self->name)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (self->mode == HEADED && changes != rows) { /* with rows in two families it has a list of changes */
        int alone = PyDict_Contains(buffer->delete_times, self->name);
        if (alone)
            return alone < 0 ? -1 : 0;
    }
    if (changes != rows || buffer->journal != Py_None || write->entered != NULL || write->raw == Py_None) {
        int collects = PyGC_Disable(), failed = enter_all(self, rows, changes, write);
        if (collects)
            PyGC_Enable();
        return failed ? -1 : 1;
    }
    long long size = 2 * length(write->row);
    PyObject *old = PyDict_GetItemWithError(rows, write->key);
    if (old == NULL)
        size += ENTRY_BYTES + 2 * length(write->key) - STAMP_BYTES;
    else
        size -= old == Py_None ? STAMP_BYTES : 2 * length(old);
    if (PyErr_Occurred() || PyDict_SetItem(rows, write->key, write->row) < 0)
        return -1;
    buffer->size += size;
    self->puts++;
    return 1;
}

static int hold(Buffer *buffer, const char *how) /* "acquire" or "release"; an error that is set stays */
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = buffer->latch == NULL ? NULL : PyObject_CallMethod(buffer->latch, how, NULL);
    if (done == NULL && buffer->latch == NULL)
        PyErr_SetString(PyExc_AttributeError, "a buffer without a latch");
    Py_XDECREF(done);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    return done == NULL ? -1 : 0;
}

/* `enter`, with the latch where it takes more than one step; -1 with an error. */
static int enter_held(Writer *self, const Write *write, int held)
{
    Buffer *buffer = self->buffer;
    int mine = 0, entered = 0;
    if (buffer->rows == NULL || buffer->changes == NULL || buffer->delete_times == NULL || buffer->journal == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a buffer without its parts");
        return -1;
    }
    for (int turn = 0; entered == 0; turn++) {
        if ((buffer->open || held || mine) && (entered = enter(self, write)) != 0)
            break;
        if (!held && !mine) {
            if (hold(buffer, "acquire") < 0)
                return -1;
            mine = 1;
            continue;
        }
        PyObject *placed = PyObject_CallMethod((PyObject *)buffer, "place", "OOi", self->name, write->family, self->mode);
        if (placed == NULL || turn > 9) {
            if (placed != NULL)
                PyErr_SetString(PyExc_RuntimeError, "a buffer that makes no room for a family");
            entered = -1;
        }
        Py_XDECREF(placed);
    }
    if (mine && hold(buffer, "release") < 0)
        entered = -1;
    return entered < 0 ? -1 : 0;
}

/* -- puts ---------------------------------------------------------------------------------------------------------- */

/* The time of a write that is within all limits. Else `check` raises, or finds room and lets it pass. */
static int checked(Writer *self, PyObject *key, PyObject *raw, PyObject *given, long long *stamp)
{
    int overflow = 0;
    long long size = length(key) + length(raw);
    *stamp = PyLong_Check(given) ? PyLong_AsLongLongAndOverflow(given, &overflow) : -1;
    if (PyLong_CheckExact(given) && !overflow && *stamp >= self->least && *stamp < STAMP_MAX && size <= self->most &&
        self->buffer->size + 2 * size + ENTRY_BYTES + STAMP_BYTES <= self->buffer->stop)
        return 0;
    PyObject *passed = PyObject_CallFunctionObjArgs(self->check, key, raw, given, NULL);
    Py_XDECREF(passed);
    if (passed == NULL)
        return -1;
    *stamp = PyLong_AsLongLong(given);
    return *stamp == -1 && PyErr_Occurred() ? -1 : 0;
}

static int put_one(Writer *self, PyObject *family, PyObject *key, PyObject *raw, PyObject *stamp, long long ms, int held)
{
    Write write = {family, NULL, key, row_of(self, raw, ms), raw, stamp};
    int failed = write.row == NULL ? -1 : enter_held(self, &write, held);
    Py_XDECREF(write.row);
    return failed;
}

static PyObject *writer_put(PyObject *given, PyObject *const *args, Py_ssize_t count)
{
    Writer *self = (Writer *)given;
    long long ms;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "put() takes a family, a key, a value and a timestamp");
        return NULL;
    }
    PyObject *key = plain(args[1]), *raw = key == NULL ? NULL : plain_or_none(args[2]);
    int failed = raw == NULL || checked(self, key, raw, args[3], &ms) < 0 ||
                 put_one(self, args[0], key, raw, args[3], ms, 0) < 0;
    Py_XDECREF(key);
    Py_XDECREF(raw);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *writer_enter(PyObject *given, PyObject *args)
{
    Writer *self = (Writer *)given;
    PyObject *key, *raw = NULL, *bare = NULL, *one, *row;
    Write write;
    int failed = 1;
    if (!PyArg_ParseTuple(args, "OO!OOO", &write.family, &PyDict_Type, &write.entered, &key, &raw, &write.stamp))
        return NULL;
    for (Py_ssize_t at = 0; PyDict_Next(write.entered, &at, &one, &row);)
        if (!PyBytes_CheckExact(one) || (row != Py_None && !PyBytes_CheckExact(row))) {
            PyErr_SetString(PyExc_TypeError, "rows are bytes, by bytes");
            return NULL;
        }
    if ((write.key = plain(key)) != NULL && (write.raw = bare = plain_or_none(raw)) != NULL)
        failed = enter_held(self, &write, 0) < 0;
    Py_XDECREF(write.key);
    Py_XDECREF(bare);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* A list of these pairs, as plain bytes; NULL with an error. */
static PyObject *pairs_of(PyObject *given)
{
    PyObject *pairs = PySequence_List(given);
    for (Py_ssize_t at = 0; pairs != NULL && at < PyList_Size(pairs); at++) {
        PyObject *pair = PyList_GetItem(pairs, at), *key = NULL, *raw = NULL, *bare = NULL;
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2)
            PyErr_SetString(PyExc_TypeError, "a pair is a key and a value");
        else if ((key = plain(PyTuple_GetItem(pair, 0))) != NULL && (raw = plain_or_none(PyTuple_GetItem(pair, 1))) != NULL)
            bare = PyTuple_Pack(2, key, raw);
        Py_XDECREF(key);
        Py_XDECREF(raw);
        if (bare == NULL || PyList_SetItem(pairs, at, bare) < 0)
            Py_CLEAR(pairs);
    }
    return pairs;
}

/* Each is within limits, and there is room for all. */
static int checked_all(Writer *self, PyObject *pairs, PyObject *stamp, long long *ms)
{
    long long most = 0;
    int deletes = 1;
    for (Py_ssize_t at = 0; at < PyList_Size(pairs); at++) {
        PyObject *key = PyTuple_GetItem(PyList_GetItem(pairs, at), 0), *raw = PyTuple_GetItem(PyList_GetItem(pairs, at), 1);
        if (checked(self, key, raw, stamp, ms) < 0)
            return -1;
        most += 2 * (length(key) + length(raw)) + ENTRY_BYTES + STAMP_BYTES;
        deletes = deletes && raw == Py_None;
    }
    if (self->buffer->size + most <= self->buffer->stop)
        return 0;
    PyObject *room = PyObject_CallMethod((PyObject *)self->buffer, "check_room", "LO", most, deletes ? Py_True : Py_False);
    Py_XDECREF(room);
    return room == NULL ? -1 : 0;
}

static PyObject *writer_put_all(PyObject *given, PyObject *args)
{
    Writer *self = (Writer *)given;
    PyObject *family, *pairs, *stamp;
    long long ms = 0;
    if (!PyArg_ParseTuple(args, "OOO", &family, &pairs, &stamp) || (pairs = pairs_of(pairs)) == NULL)
        return NULL;
    int held = hold(self->buffer, "acquire") == 0, failed = !held || checked_all(self, pairs, stamp, &ms) < 0;
    for (Py_ssize_t at = 0; !failed && at < PyList_Size(pairs); at++) {
        PyObject *pair = PyList_GetItem(pairs, at);
        failed = put_one(self, family, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), stamp, ms, 1) < 0;
    }
    if (held && hold(self->buffer, "release") < 0)
        failed = 1;
    Py_DECREF(pairs);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* -- keys and values ----------------------------------------------------------------------------------------------- */

static PyObject *encoded(const Encoding *how, PyObject *given)
{
    if (how->plain && PyBytes_CheckExact(given))
        return Py_NewRef(given);
    PyObject *raw = given == Py_None ? NULL : PyObject_CallFunctionObjArgs(how->serialize, given, NULL);
    if (raw != NULL || (given != Py_None && !PyErr_ExceptionMatches(PyExc_Exception)))
        return raw;
    PyObject *type = NULL, *error = NULL, *traceback = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    if (type != NULL)
        PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    raw = PyObject_CallFunctionObjArgs(how->refuse, error == NULL ? Py_None : error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return raw;
}

/* The parts of an encoder, which hold its own references. */
static Encoding encoding_of(PyObject *parts)
{
    Encoding how = {PyTuple_GetItem(parts, 0), PyTuple_GetItem(parts, 1), PyTuple_GetItem(parts, 2) == Py_True};
    return how;
}

static PyObject *encode(PyObject *parts, PyObject *given)
{
    Encoding how = encoding_of(parts);
    return encoded(&how, given);
}

static PyMethodDef encode_method = {"encode", encode, METH_O, "encode(given) -> bytes"};

PyObject *encoder(PyObject *module, PyObject *args)
{
    PyObject *serialize, *refuse;
    int bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOp", &serialize, &refuse, &bytes))
        return NULL;
    PyObject *parts = PyTuple_Pack(3, serialize, refuse, bytes ? Py_True : Py_False);
    PyObject *made = parts == NULL ? NULL : PyCFunction_NewEx(&encode_method, parts, NULL);
    Py_XDECREF(parts);
    return made;
}

static PyObject *put(PyObject *given, PyObject *const *args, Py_ssize_t count)
{
    Writer *self = (Writer *)given;
    int overflow = 0, failed = 1;
    long long ms = -1;
    PyObject *time = NULL, *raw = NULL, *bare_key = NULL, *bare = NULL;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "put() takes a key, a value and a timestamp");
        return NULL;
    }
    PyObject *parts = Py_NewRef(self->parts); /* a serde may give the writer others */
    PyObject *key = encoded(&self->key, args[0]);
    if (key != NULL)
        raw = args[1] == Py_None ? Py_NewRef(args[1]) : encoded(&self->value, args[1]);
    if (raw != NULL && PyLong_CheckExact(args[2]))
        ms = PyLong_AsLongLongAndOverflow(args[2], &overflow);
    if (raw != NULL)
        time = ms >= 0 ? Py_NewRef(args[2]) : PyObject_CallFunctionObjArgs(self->times, args[2], NULL);
    if (time != NULL && (bare_key = plain(key)) != NULL && (bare = plain_or_none(raw)) != NULL)
        failed = checked(self, bare_key, bare, time, &ms) < 0 ||
                 put_one(self, self->family, bare_key, bare, time, ms, 0) < 0;
    Py_DECREF(parts);
    Py_XDECREF(time);
    Py_XDECREF(key);
    Py_XDECREF(raw);
    Py_XDECREF(bare_key);
    Py_XDECREF(bare);
    return failed ? NULL : Py_NewRef(Py_None);
}

static int is_encoder(PyObject *given)
{
    return PyCFunction_Check(given) && PyCFunction_GetFunction(given) == encode;
}

static PyMethodDef put_method = {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, "put(key, value, timestamp)"};

/* A writer has one `put` at a time, of which this keeps the parts. */
PyObject *putter(PyObject *module, PyObject *args)
{
    PyObject *writer, *family, *key, *value, *times;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!UOOO", (PyTypeObject *)writer_type, &writer, &family, &key, &value, &times))
        return NULL;
    if (!is_encoder(key) || !is_encoder(value)) {
        PyErr_SetString(PyExc_TypeError, "keys and values need an encoder");
        return NULL;
    }
    PyObject *made = PyCFunction_NewEx(&put_method, writer, NULL);
    if (made == NULL)
        return NULL;
    Writer *self = (Writer *)writer;
    PyObject *parts = self->parts;
    self->key = encoding_of(PyCFunction_GetSelf(key));
    self->value = encoding_of(PyCFunction_GetSelf(value));
    self->family = family;
    self->times = times;
    self->parts = Py_NewRef(args);
    Py_XDECREF(parts);
    return made;
}

/* -- types --------------------------------------------------------------------------------------------------------- */

static int buffer_traverse(Buffer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->rows);
    Py_VISIT(self->changes);
    Py_VISIT(self->delete_times);
    Py_VISIT(self->journal);
    Py_VISIT(self->latch);
    return 0;
}

static int buffer_clear(Buffer *self)
{
    Py_CLEAR(self->rows);
    Py_CLEAR(self->changes);
    Py_CLEAR(self->delete_times);
    Py_CLEAR(self->journal);
    Py_CLEAR(self->latch);
    return 0;
}

static void buffer_dealloc(Buffer *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    buffer_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef buffer_members[] = {
    {"rows", T_OBJECT_EX, offsetof(Buffer, rows), 0, NULL},
    {"changes", T_OBJECT_EX, offsetof(Buffer, changes), 0, NULL},
    {"delete_times", T_OBJECT_EX, offsetof(Buffer, delete_times), 0, NULL},
    {"journal", T_OBJECT_EX, offsetof(Buffer, journal), 0, NULL},
    {"latch", T_OBJECT_EX, offsetof(Buffer, latch), 0, NULL},
    {"size_bytes", T_LONGLONG, offsetof(Buffer, size), 0, NULL},
    {"stop_bytes", T_LONGLONG, offsetof(Buffer, stop), 0, NULL},
    {"open", T_BOOL, offsetof(Buffer, open), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, buffer_dealloc}, {Py_tp_traverse, buffer_traverse}, {Py_tp_clear, buffer_clear},
    {Py_tp_members, buffer_members}, {Py_tp_new, PyType_GenericNew},    {0, NULL},
};

static PyType_Spec buffer_spec = {
    "standfast.store._native.Buffer", sizeof(Buffer), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, buffer_slots,
};

static PyObject *buffer_type;

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *buffer, *name, *check;
    if (named != NULL && PyDict_Size(named)) {
        PyErr_SetString(PyExc_TypeError, "Writer() takes no keyword");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!UO", (PyTypeObject *)buffer_type, &buffer, &name, &check))
        return NULL;
    Writer *self = (Writer *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->buffer = (Buffer *)Py_NewRef(buffer);
    self->name = Py_NewRef(name);
    self->check = Py_NewRef(check);
    self->most = -1;
    return (PyObject *)self;
}

static int writer_traverse(Writer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->buffer);
    Py_VISIT(self->check);
    Py_VISIT(self->parts);
    return 0;
}

/* The buffer and the name stay: a put may be in the middle of a step. */
static int writer_clear(Writer *self)
{
    PyObject *check = self->check;
    self->check = Py_NewRef(Py_None);
    Py_XDECREF(check);
    return 0;
}

static void writer_dealloc(Writer *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->buffer);
    Py_XDECREF(self->name);
    Py_XDECREF(self->check);
    Py_XDECREF(self->parts);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef writer_members[] = {
    {"mode", T_INT, offsetof(Writer, mode), 0, NULL},
    {"stamped", T_BOOL, offsetof(Writer, stamped), 0, NULL},
    {"most_bytes", T_LONGLONG, offsetof(Writer, most), 0, NULL},
    {"least_ms", T_LONGLONG, offsetof(Writer, least), 0, NULL},
    {"puts", T_LONGLONG, offsetof(Writer, puts), 0, NULL},
    {"deletes", T_LONGLONG, offsetof(Writer, deletes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef writer_methods[] = {
    {"put", (PyCFunction)(void (*)(void))writer_put, METH_FASTCALL, "put(family, key, value, timestamp)"},
    {"put_all", writer_put_all, METH_VARARGS, "put_all(family, pairs, timestamp)"},
    {"enter", writer_enter, METH_VARARGS, "enter(family, rows, key, value, timestamp)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_new, writer_new},           {Py_tp_dealloc, writer_dealloc}, {Py_tp_traverse, writer_traverse},
    {Py_tp_clear, writer_clear},       {Py_tp_members, writer_members}, {Py_tp_methods, writer_methods},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    "standfast.store._native.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, writer_slots,
};

int init_buffer(PyObject *module)
{
    buffer_type = PyType_FromSpec(&buffer_spec);
    writer_type = PyType_FromSpec(&writer_spec);
    return buffer_type == NULL || writer_type == NULL || PyModule_AddObjectRef(module, "Buffer", buffer_type) < 0 ||
                   PyModule_AddObjectRef(module, "Writer", writer_type) < 0
               ? -1
               : 0;
}
