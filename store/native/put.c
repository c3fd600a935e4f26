/* A put into a store whose rows are timestamp and value, in one call: `KeyValueState.put` for nearly every record.
 *
 *     put(key, value[, timestamp])    a key that the buffer does not have yet, with room: one entry, counted
 *     another key, no room, ...       `put_raw`, with the bytes
 *     anything else                   the Python method, with the same arguments
 *
 * Rules of this file: it decides nothing but that a call is one of the usual ones; each refusal and each error is that
 * of the Python method. So it changes nothing before it is sure, and a serde runs before anything is looked up: it may
 * be the user's, and use the store. It runs once, since it may cost much, such as a request to a registry. */
#include <string.h>

#include "native.h"

/* Attributes of slots, read through their descriptors: a third of the time of a look-up by name. */
typedef struct {
    PyObject *descriptor;
    descrgetfunc get;
    descrsetfunc set;
} Slot;

enum { HOT, SIZE, STOP, CLOSED, NOW, ANY, LEAST, PUTS, SLOTS };

typedef struct {
    PyObject_HEAD
    PyObject *slowly, *put_raw, *encode; /* methods of the store: `put`, and parts of it */
    PyObject *rows, *buffer, *limits, *counters, *name, *key, *value, *plain; /* plain: the serde of bytes */
    long long beside, most_ms;
    Slot slots[SLOTS];
} Put;

static PyObject *put_type;

static PyObject **parts_of(Put *self, int at)
{
    PyObject **parts[] = {&self->slowly, &self->put_raw, &self->encode, &self->rows, &self->buffer, &self->limits,
                          &self->counters, &self->name, &self->key, &self->value, &self->plain};
    int count = sizeof parts / sizeof *parts;
    return at < count ? parts[at] : at < count + SLOTS ? &self->slots[at - count].descriptor : NULL;
}

static int put_traverse(Put *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; parts_of(self, i) != NULL; i++)
        Py_VISIT(*parts_of(self, i));
    return 0;
}

static int put_clear(Put *self)
{
    for (int i = 0; parts_of(self, i) != NULL; i++)
        Py_CLEAR(*parts_of(self, i));
    return 0;
}

static void put_dealloc(Put *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    put_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *get(Put *self, int slot, PyObject *of)
{
    return self->slots[slot].get(self->slots[slot].descriptor, of, (PyObject *)Py_TYPE(of));
}

/* The whole number in a slot; `*fine` becomes 0 where there is none. Leaves no error set. */
static long long number(Put *self, int slot, PyObject *of, int *fine)
{
    int overflow = 0;
    PyObject *found = get(self, slot, of);
    long long value = found != NULL && PyLong_Check(found) ? PyLong_AsLongLongAndOverflow(found, &overflow) : -1;
    if (found == NULL || !PyLong_Check(found) || overflow)
        *fine = 0;
    Py_XDECREF(found);
    PyErr_Clear();
    return value;
}

static int set(Put *self, int slot, PyObject *of, PyObject *value)
{
    return self->slots[slot].set(self->slots[slot].descriptor, of, value);
}

/* Bytes of a key or a value; NULL with an error. A serde that is wrong may give another object. */
static PyObject *raw_of(Put *self, const char *part, PyObject *serde, PyObject *given)
{
    PyObject *type = NULL, *error = NULL, *traceback = NULL;
    if (serde == self->plain && PyBytes_CheckExact(given))
        return Py_NewRef(given);
    PyObject *raw = PyObject_CallFunctionObjArgs(serde, given, NULL);
    if (raw != NULL || !PyErr_ExceptionMatches(PyExc_Exception))
        return raw;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    /* Raises the error with part and store in its words, or makes bytes of another object such as a bytearray. */
    raw = PyObject_CallFunction(self->encode, "sOO", part, given, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return raw;
}

static PyObject *row_of(long long stamp, PyObject *raw)
{
    Py_ssize_t size = PyBytes_Size(raw);
    PyObject *row = PyBytes_FromStringAndSize(NULL, size + 8);
    if (row == NULL)
        return NULL;
    char *at = PyBytes_AsString(row);
    for (int i = 0; i < 8; i++)
        at[i] = (char)((uint64_t)stamp >> (56 - 8 * i));
    memcpy(at + 8, PyBytes_AsString(raw), (size_t)size);
    return row;
}

/* 1: entered; 0: not a usual case, and nothing has changed; -1 with an error, and nothing has changed. */
static int enter(Put *self, PyObject *key, PyObject *raw, long long stamp)
{
    int fine = 1, entered = -1;
    long long size = (long long)PyBytes_Size(key) + PyBytes_Size(raw), puts = number(self, PUTS, self->counters, &fine);
    long long total = number(self, SIZE, self->buffer, &fine) + 2 * size + self->beside;
    if (!fine || total > number(self, STOP, self->buffer, &fine) || size > number(self, ANY, self->limits, &fine) ||
        stamp < number(self, LEAST, self->limits, &fine) || !fine)
        return 0;
    PyObject *closed = get(self, CLOSED, self->rows), *hot = closed == Py_False ? get(self, HOT, self->buffer) : NULL;
    PyObject *rows = hot == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(hot, self->name));
    PyObject *row = NULL, *sized = NULL, *counted = NULL; /* made before the first change, since memory may run out */
    if (rows == NULL || PyDict_Contains(rows, key))
        entered = PyErr_Occurred() ? -1 : 0;
    else if ((row = row_of(stamp, raw)) != NULL && (sized = PyLong_FromLongLong(total)) != NULL &&
             (counted = PyLong_FromLongLong(puts + 1)) != NULL && PyDict_SetItem(rows, key, row) == 0 &&
             set(self, SIZE, self->buffer, sized) == 0 && set(self, PUTS, self->counters, counted) == 0)
        entered = 1;
    PyObject *held[] = {closed, hot, rows, row, sized, counted};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_XDECREF(held[i]);
    return entered;
}

/* The time of the record in hand. */
static PyObject *now(Put *self)
{
    PyObject *ask = get(self, NOW, self->rows), *moment = ask == NULL ? NULL : PyObject_CallNoArgs(ask);
    Py_XDECREF(ask);
    return moment;
}

/* The Python method. */
static PyObject *slowly(Put *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *all = PyTuple_New(count), *named = NULL, *answer = NULL;
    for (Py_ssize_t i = 0; all != NULL && i < count; i++)
        PyTuple_SetItem(all, i, Py_NewRef(args[i]));
    if (all != NULL && names != NULL) {
        named = PyDict_New();
        for (Py_ssize_t i = 0; named != NULL && i < PyTuple_Size(names); i++)
            if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[count + i]) < 0)
                Py_CLEAR(named);
    }
    if (all != NULL && (names == NULL || named != NULL))
        answer = PyObject_Call(self->slowly, all, named);
    Py_XDECREF(all);
    Py_XDECREF(named);
    return answer;
}

static PyObject *put_call(PyObject *given, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Put *self = (Put *)given;
    int overflow = 0, entered = 0;
    long long stamp = -1;
    PyObject *moment = NULL, *key = NULL, *raw = NULL, *answer = NULL;
    if ((count == 2 || count == 3) && (names == NULL || !PyTuple_Size(names)) && args[0] != Py_None &&
        args[1] != Py_None && (moment = count == 3 && args[2] != Py_None ? Py_NewRef(args[2]) : now(self)) == NULL)
        return NULL;
    if (moment != NULL && PyLong_CheckExact(moment))
        stamp = PyLong_AsLongLongAndOverflow(moment, &overflow); /* -1: overflow */
    if (stamp >= 0 && stamp <= self->most_ms && (key = raw_of(self, "key", self->key, args[0])) != NULL)
        raw = raw_of(self, "value", self->value, args[1]);
    if (raw != NULL && PyBytes_CheckExact(key) && PyBytes_CheckExact(raw)) {
        entered = enter(self, key, raw, stamp);
        if (entered > 0)
            answer = Py_NewRef(Py_None);
        else if (entered == 0)
            answer = PyObject_CallFunctionObjArgs(self->put_raw, key, raw, moment, NULL);
    } else if (!PyErr_Occurred()) {
        answer = slowly(self, args, count, names);
    }
    Py_XDECREF(moment);
    Py_XDECREF(key);
    Py_XDECREF(raw);
    return answer;
}

static PyMethodDef put_method = {"put", (PyCFunction)(void (*)(void))put_call, METH_FASTCALL | METH_KEYWORDS,
                                 "put(key, value, timestamp=None)\n--\n\nSee KeyValueState.put."};

static int slot_of(Slot *slot, PyObject *of, const char *name)
{
    slot->descriptor = PyObject_GetAttrString((PyObject *)Py_TYPE(of), name);
    if (slot->descriptor == NULL)
        return -1;
    slot->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(slot->descriptor), Py_tp_descr_get);
    slot->set = (descrsetfunc)PyType_GetSlot(Py_TYPE(slot->descriptor), Py_tp_descr_set);
    if (slot->get != NULL && slot->set != NULL)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is no attribute with a slot", name);
    return -1;
}

PyObject *putter(PyObject *module, PyObject *args)
{
    PyObject *slowly, *put_raw, *encode, *rows, *name, *key, *value, *plain, *made = NULL;
    long long beside, most_ms;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOUOOOLL", &slowly, &put_raw, &encode, &rows, &name, &key, &value, &plain, &beside,
                          &most_ms))
        return NULL;
    Put *self = PyObject_GC_New(Put, (PyTypeObject *)put_type);
    if (self == NULL)
        return NULL;
    for (int i = 0; parts_of(self, i) != NULL; i++)
        *parts_of(self, i) = NULL;
    self->slowly = Py_NewRef(slowly);
    self->put_raw = Py_NewRef(put_raw);
    self->encode = Py_NewRef(encode);
    self->rows = Py_NewRef(rows);
    self->name = Py_NewRef(name);
    self->key = Py_NewRef(key);
    self->value = Py_NewRef(value);
    self->plain = Py_NewRef(plain);
    self->beside = beside;
    self->most_ms = most_ms;
    self->buffer = PyObject_GetAttrString(rows, "buffer");
    self->limits = PyObject_GetAttrString(rows, "limits");
    self->counters = PyObject_GetAttrString(rows, "counters");
    if (self->buffer != NULL && self->limits != NULL && self->counters != NULL &&
        slot_of(self->slots + HOT, self->buffer, "hot") == 0 &&
        slot_of(self->slots + SIZE, self->buffer, "size_bytes") == 0 &&
        slot_of(self->slots + STOP, self->buffer, "stop_bytes") == 0 &&
        slot_of(self->slots + CLOSED, rows, "closed") == 0 && slot_of(self->slots + NOW, rows, "now_ms") == 0 &&
        slot_of(self->slots + ANY, self->limits, "any_bytes") == 0 &&
        slot_of(self->slots + LEAST, self->limits, "least_timestamp_ms") == 0 &&
        slot_of(self->slots + PUTS, self->counters, "put") == 0)
        made = PyCFunction_NewEx(&put_method, (PyObject *)self, NULL);
    PyObject_GC_Track(self);
    Py_DECREF(self);
    return made;
}

static PyType_Slot put_slots[] = {
    {Py_tp_dealloc, put_dealloc},
    {Py_tp_traverse, put_traverse},
    {Py_tp_clear, put_clear},
    {0, NULL},
};

static PyType_Spec put_spec = {
    "standfast.store.native._native.Put", sizeof(Put), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, put_slots,
};

int init_put(void)
{
    put_type = PyType_FromSpec(&put_spec);
    return put_type == NULL ? -1 : 0;
}
