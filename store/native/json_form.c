/* The form of a value that goes into JSON, or came out of it: whether JSON carries it.
 *
 *     json_form(value, key) -> 0    JSON gives back an equal value
 *                              1    it does not: a name that is no text, a number without an end, a tuple in a key
 *                              2    as 0, with a float that is a whole number
 *
 * Rules of this file: it says yes or no and nothing more, so that it costs a small part of the text's making; the
 * reason is found in Python (`standfast.store.serde`), whose function of the same name has the same answers. It looks
 * at a value that the encoder has taken: it is no circle, and no deeper than the interpreter allows. */
#include <math.h>

#include "native.h"

enum { FAULT = 1, WHOLE = 2 };

static int form_of(PyObject *value, int key);

/* The usual types first, by their address: a question about a type's flags is a call. */
static inline int quick_form(PyObject *value, int key)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyUnicode_Type || type == &PyLong_Type || value == Py_None ? 0 : form_of(value, key);
}

static inline int is_text(PyObject *name)
{
    return Py_TYPE(name) == &PyUnicode_Type || PyUnicode_Check(name);
}

static int form_of_dict(PyObject *dict, int key)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    int found = 0;
    while (found >= 0 && !(found & FAULT) && PyDict_Next(dict, &at, &name, &value)) {
        int inner = is_text(name) ? quick_form(value, key) : FAULT;
        found = inner < 0 ? inner : found | inner;
    }
    return found;
}

static int form_of_list(PyObject *list, int key)
{
    int found = 0;
    for (Py_ssize_t i = 0; found >= 0 && !(found & FAULT) && i < PyList_Size(list); i++) {
        int inner = quick_form(PyList_GetItem(list, i), key);
        found = inner < 0 ? inner : found | inner;
    }
    return found;
}

static int form_of_tuple(PyObject *tuple, int key)
{
    int found = 0;
    for (Py_ssize_t i = 0, count = PyTuple_Size(tuple); found >= 0 && !(found & FAULT) && i < count; i++) {
        int inner = quick_form(PyTuple_GetItem(tuple, i), key);
        found = inner < 0 ? inner : found | inner;
    }
    return found;
}

/* A dict of a subclass, whose `items` the encoder writes. */
static int form_of_mapping(PyObject *dict, int key)
{
    PyObject *items = PyMapping_Items(dict);
    int found = items == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; found >= 0 && !(found & FAULT) && i < PyList_Size(items); i++) {
        PyObject *pair = PyList_GetItem(items, i);
        int fine = PyTuple_Check(pair) && PyTuple_Size(pair) == 2 && is_text(PyTuple_GetItem(pair, 0));
        int inner = fine ? quick_form(PyTuple_GetItem(pair, 1), key) : FAULT;
        found = inner < 0 ? inner : found | inner;
    }
    Py_XDECREF(items);
    return found;
}

static int form_of_float(PyObject *value)
{
    double number = PyFloat_AsDouble(value);
    return !isfinite(number) ? FAULT : number == floor(number) ? WHOLE : 0;
}

static int form_of(PyObject *value, int key)
{
    PyTypeObject *type = Py_TYPE(value);
    int found, dict = type == &PyDict_Type, list = type == &PyList_Type;
    if (type == &PyFloat_Type)
        return form_of_float(value);
    if (type == &PyBool_Type)
        return 0;
    if (!dict && !list) {
        unsigned long flags = PyType_GetFlags(type);
        if (flags & (Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_LONG_SUBCLASS))
            return 0;
        if (key && flags & Py_TPFLAGS_TUPLE_SUBCLASS)
            return FAULT;
        if (!(flags & (Py_TPFLAGS_DICT_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS)))
            return PyFloat_Check(value) ? form_of_float(value) : 0; /* another type the encoder refuses */
        list = flags & Py_TPFLAGS_LIST_SUBCLASS ? 1 : 0;
    }
    if (Py_EnterRecursiveCall(" in the look at a value for JSON"))
        return -1;
    if (dict)
        found = form_of_dict(value, key);
    else if (list)
        found = form_of_list(value, key);
    else
        found = PyTuple_Check(value) ? form_of_tuple(value, key) : form_of_mapping(value, key);
    Py_LeaveRecursiveCall();
    return found;
}

PyObject *json_form(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "json_form takes a value, and whether it is a key");
        return NULL;
    }
    int key = args[1] == Py_True, found = quick_form(args[0], key);
    return found < 0 ? NULL : PyLong_FromLong(found & FAULT ? FAULT : found);
}
