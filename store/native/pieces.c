/* Parts: records of one partition in one piece of memory; Python lists of columns are made only when asked for.
 *
 *     rows    offset, timestamp, place and lengths      a fixed size each
 *     arena   key | value | headers, record after record
 *
 * The bytes are copied out of librdkafka's messages, which are freed at once: a part outlives its client, crosses a
 * fork, and has a known size.
 *
 * Rules of this file: a part never changes once it is made, so any thread may read it. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

PyObject *part_type;

void draft_free(Draft *draft)
{
    free(draft->rows);
    free(draft->arena);
    draft->rows = NULL;
    draft->arena = NULL;
}

/* Takes the draft's memory, also if it fails. */
PyObject *part_of_draft(Draft *draft, PyObject *topic)
{
    Part *part = PyObject_New(Part, (PyTypeObject *)part_type);
    if (part == NULL) {
        draft_free(draft);
        return NULL;
    }
    Py_INCREF(topic);
    part->topic = topic;
    part->partition = draft->partition;
    part->count = (Py_ssize_t)draft->count;
    part->payload = draft->payload;
    part->bytes = draft->size + draft->count * sizeof(Row);
    part->rows = draft->rows;
    part->arena = draft->arena;
    part->has_headers = draft->has_headers;
    draft->rows = NULL;
    draft->arena = NULL;
    return (PyObject *)part;
}

static void part_dealloc(Part *part)
{
    PyTypeObject *type = Py_TYPE((PyObject *)part);
    free(part->rows);
    free(part->arena);
    Py_XDECREF(part->topic);
    PyObject_Free(part);
    Py_DECREF(type);
}

static Py_ssize_t part_length(Part *part)
{
    return part->count;
}

/* Bytes of a key or value; None for null. */
static PyObject *cell(const char *at, int32_t length)
{
    if (length < 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(at, length);
}

static PyObject *headers_of(const Part *part, const Row *row)
{
    const char *at = part->arena + row->at + (row->key_len > 0 ? row->key_len : 0) +
                     (row->value_len > 0 ? row->value_len : 0);
    PyObject *found = PyTuple_New((Py_ssize_t)row->headers);
    for (uint32_t i = 0; found != NULL && i < row->headers; i++) {
        int32_t name_len, value_len;
        memcpy(&name_len, at, 4);
        memcpy(&value_len, at + 4, 4);
        PyObject *name = PyUnicode_DecodeUTF8(at + 8, name_len, NULL);
        PyObject *value = cell(at + 8 + name_len, value_len);
        PyObject *pair = name != NULL && value != NULL ? PyTuple_Pack(2, name, value) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (pair == NULL || PyTuple_SetItem(found, (Py_ssize_t)i, pair) < 0) {
            Py_DECREF(found);
            return NULL;
        }
        at += 8 + name_len + (value_len > 0 ? value_len : 0);
    }
    return found;
}

static int span_of(Part *part, PyObject *args, Py_ssize_t *start, Py_ssize_t *stop)
{
    if (!PyArg_ParseTuple(args, "nn", start, stop))
        return -1;
    if (*start < 0 || *stop < *start || *stop > part->count) {
        PyErr_Format(PyExc_IndexError, "records %zd to %zd of a part with %zd", *start, *stop, part->count);
        return -1;
    }
    return 0;
}

static PyObject *offsets_of(const Row *rows, Py_ssize_t count)
{
    if (rows[count - 1].offset - rows[0].offset == count - 1)
        return PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)rows[0].offset,
                                     (long long)rows[count - 1].offset + 1);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *one = PyLong_FromLongLong(rows[i].offset);
        if (one == NULL || PyList_SetItem(list, i, one) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static int fill(const Part *part, Py_ssize_t start, Py_ssize_t count, PyObject *stamps, PyObject *keys,
                PyObject *values, PyObject *headers)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        const Row *row = part->rows + start + i;
        const char *at = part->arena + row->at;
        PyObject *stamp = PyLong_FromLongLong(row->timestamp);
        if (stamp == NULL || PyList_SetItem(stamps, i, stamp) < 0)
            return -1;
        PyObject *key = cell(at, row->key_len);
        if (key == NULL || PyList_SetItem(keys, i, key) < 0)
            return -1;
        PyObject *value = cell(at + (row->key_len > 0 ? row->key_len : 0), row->value_len);
        if (value == NULL || PyList_SetItem(values, i, value) < 0)
            return -1;
        if (headers != NULL) {
            PyObject *own = headers_of(part, row);
            if (own == NULL || PyList_SetItem(headers, i, own) < 0)
                return -1;
        }
    }
    return 0;
}

static PyObject *part_columns(Part *part, PyObject *args)
{
    Py_ssize_t start, stop;
    if (span_of(part, args, &start, &stop) < 0)
        return NULL;
    Py_ssize_t count = stop - start;
    PyObject *offsets = count ? offsets_of(part->rows + start, count) : PyList_New(0);
    PyObject *stamps = PyList_New(count), *keys = PyList_New(count), *values = PyList_New(count);
    PyObject *headers = part->has_headers ? PyList_New(count) : NULL;
    PyObject *found = NULL;
    if (offsets != NULL && stamps != NULL && keys != NULL && values != NULL &&
        (headers != NULL || !part->has_headers) && fill(part, start, count, stamps, keys, values, headers) == 0)
        found = PyTuple_Pack(5, offsets, stamps, keys, values, headers != NULL ? headers : Py_None);
    Py_XDECREF(offsets);
    Py_XDECREF(stamps);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    Py_XDECREF(headers);
    return found;
}

static PyObject *part_payload(Part *part, PyObject *args)
{
    Py_ssize_t start, stop;
    if (span_of(part, args, &start, &stop) < 0)
        return NULL;
    size_t size = 0;
    for (Py_ssize_t i = start; i < stop; i++)
        size += (size_t)(part->rows[i].key_len > 0 ? part->rows[i].key_len : 0) +
                (size_t)(part->rows[i].value_len > 0 ? part->rows[i].value_len : 0);
    return PyLong_FromSize_t(size);
}

static PyObject *part_find(Part *part, PyObject *given)
{
    long long offset = PyLong_AsLongLong(given);
    if (offset == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t low = 0, high = part->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (part->rows[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return PyLong_FromSsize_t(low);
}

static PyObject *part_offset(Part *part, PyObject *given)
{
    Py_ssize_t at = PyLong_AsSsize_t(given);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (at < 0 || at >= part->count) {
        PyErr_Format(PyExc_IndexError, "record %zd of a part with %zd", at, part->count);
        return NULL;
    }
    return PyLong_FromLongLong(part->rows[at].offset);
}

static PyObject *part_get(Part *part, void *what)
{
    switch ((intptr_t)what) {
    case 0:
        Py_INCREF(part->topic);
        return part->topic;
    case 1:
        return PyLong_FromLong(part->partition);
    case 2:
        return PyLong_FromSize_t(part->payload);
    default:
        return PyLong_FromSize_t(part->bytes);
    }
}

/* -- a part of Python's columns ------------------------------------------------------------------------------------ */

/* A list or a tuple, of which no method is its class's own: what it gives is what it holds. */
int is_column(PyObject *given)
{
    return PyList_CheckExact(given) || PyTuple_CheckExact(given);
}

/* Length of a cell and its bytes, which the column holds; -1 for None, -2 with an error set. No Python code runs here:
 * the cell stays where it is until the caller runs some. */
Py_ssize_t cell_of(PyObject *column, Py_ssize_t at, char **bytes)
{
    PyObject *one = PyList_CheckExact(column) ? PyList_GetItem(column, at) : PyTuple_GetItem(column, at);
    Py_ssize_t length = -1;
    *bytes = NULL;
    if (one == NULL || (one != Py_None && PyBytes_AsStringAndSize(one, bytes, &length) < 0))
        return -2;
    if (length > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a key or value has more than 2 GiB");
        return -2;
    }
    return length;
}

/* The numbers of any sequence, whose methods may be Python's. */
static int read_numbers(Draft *draft, PyObject *offsets, PyObject *stamps)
{
    for (size_t i = 0; i < draft->count; i++) {
        PyObject *columns[2] = {offsets, stamps};
        int64_t *into[2] = {&draft->rows[i].offset, &draft->rows[i].timestamp};
        for (int side = 0; side < 2; side++) {
            PyObject *one = PySequence_GetItem(columns[side], (Py_ssize_t)i);
            if (one == NULL)
                return -1;
            *into[side] = PyLong_AsLongLong(one);
            Py_DECREF(one);
            if (*into[side] == -1 && PyErr_Occurred())
                return -1;
        }
    }
    return 0;
}

/* Lengths of the cells, and the room that all of them take. */
static int measure(Draft *draft, PyObject *keys, PyObject *values)
{
    char *bytes;
    for (size_t i = 0; i < draft->count; i++) {
        Py_ssize_t key = cell_of(keys, (Py_ssize_t)i, &bytes), value = cell_of(values, (Py_ssize_t)i, &bytes);
        if (key < -1 || value < -1)
            return -1;
        Row *row = draft->rows + i;
        row->at = draft->size;
        row->key_len = (int32_t)key;
        row->value_len = (int32_t)value;
        row->headers = 0;
        draft->size += (size_t)(key > 0 ? key : 0) + (size_t)(value > 0 ? value : 0);
    }
    draft->payload = draft->size;
    draft->arena = malloc(draft->size ? draft->size : 1);
    if (draft->arena != NULL)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static void copy(Draft *draft, PyObject *keys, PyObject *values)
{
    char *bytes;
    for (size_t i = 0; i < draft->count; i++) {
        char *at = draft->arena + draft->rows[i].at;
        Py_ssize_t key = cell_of(keys, (Py_ssize_t)i, &bytes);
        if (key > 0)
            memcpy(at, bytes, (size_t)key);
        Py_ssize_t value = cell_of(values, (Py_ssize_t)i, &bytes);
        if (value > 0)
            memcpy(at + (key > 0 ? key : 0), bytes, (size_t)value);
    }
}

PyObject *part_of_columns(PyObject *module, PyObject *args)
{
    PyObject *topic, *offsets, *stamps, *keys, *values;
    int partition;
    (void)module;
    if (!PyArg_ParseTuple(args, "UiOOOO", &topic, &partition, &offsets, &stamps, &keys, &values))
        return NULL;
    if (!is_column(keys) || !is_column(values)) {
        PyErr_SetString(PyExc_TypeError, "keys and values must be lists or tuples, and none of a subclass");
        return NULL;
    }
    Py_ssize_t count = PySequence_Size(keys);
    Draft draft = {.partition = partition, .count = (size_t)count};
    draft.rows = malloc((draft.count ? draft.count : 1) * sizeof(Row));
    if (draft.rows == NULL)
        return PyErr_NoMemory();
    /* Numbers first: they may run Python code, which may change the lists. From the last comparison on none runs. */
    int fits = PySequence_Size(offsets) == count && PySequence_Size(stamps) == count;
    if (fits && read_numbers(&draft, offsets, stamps) == 0)
        fits = PySequence_Size(keys) == count && PySequence_Size(values) == count;
    if (!fits && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the columns of a part must have one length");
    if (PyErr_Occurred() || measure(&draft, keys, values) < 0) {
        draft_free(&draft);
        return NULL;
    }
    copy(&draft, keys, values);
    return part_of_draft(&draft, topic);
}

static PyMethodDef part_methods[] = {
    {"columns", (PyCFunction)part_columns, METH_VARARGS,
     "columns(start, stop) -> (offsets, timestamps, keys, values, headers)\n\nHeaders are None if no record has any."},
    {"payload", (PyCFunction)part_payload, METH_VARARGS, "payload(start, stop) -> bytes of keys and values"},
    {"find", (PyCFunction)part_find, METH_O, "find(offset) -> index of the first record at or after this offset"},
    {"offset", (PyCFunction)part_offset, METH_O, "offset(index) -> offset of a record"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef part_fields[] = {
    {"topic", (getter)part_get, NULL, "name of the topic", (void *)0},
    {"partition", (getter)part_get, NULL, "number of the partition", (void *)1},
    {"payload_bytes", (getter)part_get, NULL, "bytes of keys and values", (void *)2},
    {"memory_bytes", (getter)part_get, NULL, "bytes of memory", (void *)3},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot part_slots[] = {
    {Py_tp_dealloc, part_dealloc},
    {Py_tp_methods, part_methods},
    {Py_tp_getset, part_fields},
    {Py_sq_length, part_length},
    {Py_tp_doc, "Records of one partition, in offset order. Any thread may read it."},
    {0, NULL},
};

static PyType_Spec part_spec = {
    "standfast.store._native.Part", sizeof(Part), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, part_slots,
};

int init_pieces(PyObject *module)
{
    part_type = PyType_FromSpec(&part_spec);
    return part_type == NULL ? -1 : PyModule_AddObjectRef(module, "Part", part_type);
}
