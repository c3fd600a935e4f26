/* One producer of librdkafka: records by columns, acknowledgements without Python, transactions.
 *
 *     produce      a partition's columns ──> librdkafka's queue, without the interpreter's lock
 *     flush        waits until every record has its answer
 *     delivered    how many records of each `produce` were acknowledged, the last one's offset, the first refusal
 *
 * Columns are tuples, and none of a subclass, whose methods could give cells that the tuple does not hold: nothing can
 * change or free a key or value while the lock is released.
 *
 * Rules of this file: a record's opaque value is its running number and no address, so that a late answer for a call
 * that was given up finds nothing. librdkafka calls `on_delivery` only inside of `poll` and `flush`, in the thread that
 * is inside of the handle, and so that it touches no Python object. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

#define HEAD_BYTES 8 /* of a store's row: its timestamp, big-endian */
#define TURN_MS 50 /* a wait for room in the queue looks at its end so often */

PyObject *producer_type;

typedef struct {
    char *key, *value;
    Py_ssize_t key_len, value_len; /* -1: null */
    int64_t timestamp;
    rd_kafka_headers_t *headers; /* NULL once librdkafka has it */
} Item;

/* -- answers ------------------------------------------------------------------------------------------------------- */

void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque)
{
    (void)handle;
    Sending *sending = &((Ear *)opaque)->sending;
    uintptr_t number = (uintptr_t)message->_private;
    if (!sending->count || number < sending->sent[0].first || number >= sending->next)
        return;
    size_t at = sending->recent < sending->count ? sending->recent : 0;
    while (number < sending->sent[at].first)
        at--;
    while (at + 1 < sending->count && number >= sending->sent[at + 1].first)
        at++;
    sending->recent = at;
    Sent *sent = sending->sent + at;
    if (!message->err) {
        sent->acknowledged++;
        sent->last = message->offset;
    } else if (!sent->code || (sent->code < 0 && message->err > 0)) { /* the brokers' reason, not the client's purge */
        sent->code = message->err;
        sent->refused_bytes = message->key_len + message->len;
    }
}

static PyObject *producer_delivered(Client *self, PyObject *unused)
{
    (void)unused;
    if (client_enter(self) < 0)
        return NULL;
    Sending *sending = &self->ear->sending;
    PyObject *found = PyList_New((Py_ssize_t)sending->count);
    for (size_t i = 0; found != NULL && i < sending->count; i++) {
        const Sent *one = sending->sent + i;
        PyObject *item = Py_BuildValue("(nLisn)", (Py_ssize_t)one->acknowledged, (long long)one->last, one->code,
                                       one->code ? rd.err2str(one->code) : "", (Py_ssize_t)one->refused_bytes);
        if (item == NULL || PyList_SetItem(found, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(found);
    }
    if (found != NULL)
        sending->count = 0;
    client_leave(self);
    return found;
}

/* -- columns ------------------------------------------------------------------------------------------------------- */

/* Whether a row (key, value, timestamp[, headers]) needs no other check and no copy. */
static int row_fits(PyObject *row, long long least, long long most)
{
    Py_ssize_t size = PyTuple_Check(row) ? PyTuple_Size(row) : 0;
    if (size != 3 && size != 4)
        return 0;
    for (Py_ssize_t i = 0; i < 2; i++) {
        PyObject *one = PyTuple_GetItem(row, i);
        if (one != Py_None && !PyBytes_CheckExact(one))
            return 0;
    }
    PyObject *stamp = PyTuple_GetItem(row, 2), *headers = size == 4 ? PyTuple_GetItem(row, 3) : NULL;
    int overflow = 0;
    long long value = PyLong_CheckExact(stamp) ? PyLong_AsLongLongAndOverflow(stamp, &overflow) : least - 1;
    return !overflow && value >= least && value <= most &&
           (headers == NULL || headers == Py_None || (PyTuple_CheckExact(headers) && PyTuple_Size(headers) == 0));
}

PyObject *columns_of(PyObject *module, PyObject *args)
{
    PyObject *rows, *columns[3] = {NULL, NULL, NULL}, *found = NULL;
    long long least, most;
    (void)module;
    if (!PyArg_ParseTuple(args, "OLL", &rows, &least, &most))
        return NULL;
    if (!PyList_CheckExact(rows))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_Size(rows), at = 0;
    for (int i = 0; i < 3; i++)
        if ((columns[i] = PyTuple_New(count)) == NULL)
            goto end;
    /* No Python code runs in this loop. It may have run before: a new tuple may start a collection. */
    for (; at < count; at++) {
        PyObject *row = PyList_GetItem(rows, at);
        if (row == NULL)
            goto end;
        if (!row_fits(row, least, most))
            break;
        for (int i = 0; i < 3; i++)
            if (PyTuple_SetItem(columns[i], at, Py_NewRef(PyTuple_GetItem(row, i))) < 0)
                goto end;
    }
    found = at < count ? Py_NewRef(Py_None) : PyTuple_Pack(3, columns[0], columns[1], columns[2]);
end:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(columns[i]);
    return found;
}

/* The timestamp in the first 8 bytes of a row of a store. */
static int64_t head_of(const char *row)
{
    uint64_t found = 0;
    for (int i = 0; i < HEAD_BYTES; i++)
        found = found << 8 | (unsigned char)row[i];
    return (int64_t)found;
}

PyObject *headed_rows(PyObject *module, PyObject *args)
{
    PyObject *keys, *rows;
    long long least, most;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!LL", &PyTuple_Type, &keys, &PyTuple_Type, &rows, &least, &most))
        return NULL;
    Py_ssize_t count = PyTuple_Size(rows), at = 0;
    for (; at < count && PyTuple_Size(keys) == count; at++) {
        PyObject *key = PyTuple_GetItem(keys, at), *row = PyTuple_GetItem(rows, at);
        if (!PyBytes_CheckExact(key) || !PyBytes_CheckExact(row) || PyBytes_Size(row) < HEAD_BYTES)
            break;
        int64_t stamp = head_of(PyBytes_AsString(row));
        if (stamp < least || stamp > most)
            break;
    }
    return PyBool_FromLong(at == count);
}

/* -- records ------------------------------------------------------------------------------------------------------- */

/* NULL with an error set. */
static rd_kafka_headers_t *headers_of(PyObject *given)
{
    if (!is_column(given)) { /* librdkafka ends the process where a length that is a lie asks for too much memory */
        PyErr_SetString(PyExc_TypeError, "headers of a record must be a list or a tuple, and none of a subclass");
        return NULL;
    }
    Py_ssize_t count = PySequence_Size(given);
    rd_kafka_headers_t *headers = rd.headers_new((size_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = tuple_at(given, i);
        const char *name, *value;
        Py_ssize_t name_len, value_len;
        int failed = pair == NULL || !PyArg_ParseTuple(pair, "s#z#", &name, &name_len, &value, &value_len);
        if (!failed && rd.header_add(headers, name, name_len, value, value == NULL ? 0 : value_len) != 0) {
            PyErr_NoMemory();
            failed = 1;
        }
        Py_XDECREF(pair);
        if (failed) {
            rd.headers_destroy(headers);
            return NULL;
        }
    }
    return headers;
}

static void items_free(Item *items, size_t count)
{
    for (size_t i = 0; items != NULL && i < count; i++)
        if (items[i].headers != NULL)
            rd.headers_destroy(items[i].headers);
    free(items);
}

/* The timestamp of a record whose value is there: of its own column, or from before the value. -1 with an error set. */
static int stamp_of(PyObject *stamps, Py_ssize_t at, Item *item)
{
    if (stamps == Py_None) {
        if (item->value_len < HEAD_BYTES) {
            PyErr_SetString(PyExc_ValueError, "a value is too short for the timestamp before it");
            return -1;
        }
        item->timestamp = head_of(item->value);
        item->value += HEAD_BYTES;
        item->value_len -= HEAD_BYTES;
        return 0;
    }
    PyObject *stamp = PyTuple_GetItem(stamps, at);
    item->timestamp = stamp == NULL ? -1 : PyLong_AsLongLong(stamp);
    return stamp == NULL || (item->timestamp == -1 && PyErr_Occurred()) ? -1 : 0;
}

/* The records from `start` on; NULL with an error set. */
static Item *items_of(PyObject *columns[4], size_t start, size_t count)
{
    Item *items = calloc(count ? count : 1, sizeof *items);
    if (items == NULL)
        return (Item *)PyErr_NoMemory();
    for (size_t i = 0; i < count; i++) {
        Item *item = items + i;
        Py_ssize_t at = (Py_ssize_t)(start + i);
        int failed = (item->key_len = cell_of(columns[0], at, &item->key)) < -1 ||
                     (item->value_len = cell_of(columns[1], at, &item->value)) < -1 ||
                     stamp_of(columns[2], at, item) < 0;
        if (!failed && columns[3] != Py_None) {
            PyObject *own = PyTuple_GetItem(columns[3], at);
            int some = own == NULL ? -1 : PyObject_IsTrue(own);
            failed = some < 0 || (some && (item->headers = headers_of(own)) == NULL);
        }
        if (failed) {
            items_free(items, count);
            return NULL;
        }
    }
    return items;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Give records to librdkafka, until one is refused or the queue stays full; returns the refusal. No Python here. */
static int give(Client *self, rd_kafka_topic_t *topic, int32_t partition, Item *items, size_t count, int wait_ms)
{
    Sending *sending = &self->ear->sending;
    Sent *sent = sending->sent + sending->count++;
    int64_t end_ms = now_ms() + wait_ms;
    *sent = (Sent){.first = sending->next, .last = -1};
    while (sent->given < count) {
        Item *item = items + sent->given;
        void *number = (void *)sending->next; /* NOLINT: a number, see the head of this file */
        int code;
        sending->next++; /* before, since the answer may come inside of a `poll` below */
        code = rd.producev(self->handle, RD_TOPIC, topic, RD_PARTITION, partition, RD_FLAGS, RD_COPY, RD_OPAQUE, number,
                           RD_KEY, item->key, item->key == NULL ? (size_t)0 : (size_t)item->key_len, RD_VALUE,
                           item->value, item->value == NULL ? (size_t)0 : (size_t)item->value_len, RD_TIMESTAMP,
                           item->timestamp, item->headers != NULL ? RD_HEADERS : RD_END, item->headers, RD_END);
        if (code == 0) {
            item->headers = NULL;
            sent->given++;
            continue;
        }
        sending->next--;
        int64_t left_ms = end_ms - now_ms();
        if (code != RD_QUEUE_FULL || left_ms <= 0)
            return code == RD_QUEUE_FULL ? 0 : code;
        rd.poll(self->handle, left_ms < TURN_MS ? (int)left_ms : TURN_MS);
    }
    return 0;
}

static PyObject *producer_produce(Client *self, PyObject *args)
{
    const char *name;
    PyObject *columns[4];
    Py_ssize_t start, count;
    int partition, wait_ms, code;
    if (!PyArg_ParseTuple(args, "siOOOOni", &name, &partition, columns, columns + 1, columns + 2, columns + 3, &start,
                          &wait_ms))
        return NULL;
    for (int i = 0; i < 4; i++)
        if (!PyTuple_CheckExact(columns[i]) && (i < 2 || columns[i] != Py_None)) {
            PyErr_SetString(PyExc_TypeError, "columns must be tuples, and none of a subclass");
            return NULL;
        }
    count = PyTuple_Size(columns[0]);
    if (PyTuple_Size(columns[1]) != count || start < 0 || start > count ||
        (columns[2] != Py_None && PyTuple_Size(columns[2]) != count) ||
        (columns[3] != Py_None && PyTuple_Size(columns[3]) != count)) {
        PyErr_SetString(PyExc_ValueError, "columns must have one length, and the start must be in them");
        return NULL;
    }
    if (client_enter(self) < 0)
        return NULL;
    Sending *sending = &self->ear->sending;
    size_t left = (size_t)(count - start), given = 0;
    Item *items = items_of(columns, (size_t)start, left);
    if (items != NULL && sending->count == sending->room) {
        size_t room = sending->room ? 2 * sending->room : 16;
        Sent *larger = realloc(sending->sent, room * sizeof *larger);
        if (larger == NULL) {
            items_free(items, left);
            items = (Item *)PyErr_NoMemory();
        } else {
            sending->sent = larger;
            sending->room = room;
        }
    }
    if (items == NULL) {
        client_leave(self);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    rd_kafka_topic_t *topic = rd.topic_new(self->handle, name, NULL);
    code = topic == NULL ? rd.last_error() : give(self, topic, partition, items, left, wait_ms);
    if (topic != NULL) {
        given = sending->sent[sending->count - 1].given;
        rd.topic_destroy(topic);
        if (!given)
            sending->count--;
    }
    items_free(items, left);
    Py_END_ALLOW_THREADS
    client_leave(self);
    return code != 0 && !given ? raise_code(code, NULL) : PyLong_FromSsize_t(start + (Py_ssize_t)given);
}

/* Serve callbacks, or also wait for answers; the number of records without one. */
static PyObject *serve(Client *self, PyObject *args, int flush)
{
    int timeout_ms, left;
    if (!PyArg_ParseTuple(args, "i", &timeout_ms) || client_enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (flush)
        rd.flush(self->handle, timeout_ms);
    else
        rd.poll(self->handle, timeout_ms);
    left = rd.outq_len(self->handle);
    Py_END_ALLOW_THREADS
    PyObject *fine = none_or_fatal(self);
    Py_XDECREF(fine);
    client_leave(self);
    return fine == NULL ? NULL : PyLong_FromLong(left);
}

static PyObject *producer_flush(Client *self, PyObject *args)
{
    return serve(self, args, 1);
}

static PyObject *producer_poll(Client *self, PyObject *args)
{
    return serve(self, args, 0);
}

static PyObject *producer_purge(Client *self, PyObject *unused)
{
    (void)unused;
    if (client_enter(self) < 0)
        return NULL;
    int code = rd.purge(self->handle, RD_PURGE_ALL);
    client_leave(self);
    return code != 0 ? raise_code(code, NULL) : Py_NewRef(Py_None);
}

/* The end of a partition as its leader knows it, in one request on this producer's own connection. */
static PyObject *producer_end(Client *self, PyObject *args)
{
    const char *topic;
    int partition, timeout_ms, code;
    if (!PyArg_ParseTuple(args, "sii", &topic, &partition, &timeout_ms) || client_enter(self) < 0)
        return NULL;
    rd_kafka_topic_partition_list_t *list = rd.topic_partition_list_new(1);
    rd_kafka_topic_partition_t *at = rd.topic_partition_list_add(list, topic, partition);
    at->offset = RD_OFFSET_END;
    Py_BEGIN_ALLOW_THREADS
    code = rd.offsets_for_times(self->handle, list, timeout_ms);
    Py_END_ALLOW_THREADS
    int64_t end = at->offset;
    code = code != 0 ? code : at->err;
    rd.topic_partition_list_destroy(list);
    client_leave(self);
    return code != 0 ? raise_code(code, NULL) : PyLong_FromLongLong(end);
}

/* Any thread may ask, also while another one is inside. */
static Py_ssize_t producer_length(Client *self)
{
    return self->handle == NULL || self->pid != getpid() ? 0 : rd.outq_len(self->handle);
}

/* -- transactions -------------------------------------------------------------------------------------------------- */

/* A method that takes one step, with the time that it may take unless `format` is empty. */
#define STEP(name, format, call)                                                                                       \
    static PyObject *name(Client *self, PyObject *args)                                                                \
    {                                                                                                                  \
        int timeout_ms = 0;                                                                                            \
        rd_kafka_error_t *error;                                                                                       \
        if (!PyArg_ParseTuple(args, format, &timeout_ms) || client_enter(self) < 0)                                    \
            return NULL;                                                                                               \
        Py_BEGIN_ALLOW_THREADS error = call;                                                                           \
        Py_END_ALLOW_THREADS client_leave(self);                                                                       \
        return none_or_raise(error);                                                                                   \
    }

STEP(producer_init, "i", rd.init_transactions(self->handle, timeout_ms))
STEP(producer_begin, "", rd.begin_transaction(self->handle))
STEP(producer_commit, "i", rd.commit_transaction(self->handle, timeout_ms))
STEP(producer_abort, "i", rd.abort_transaction(self->handle, timeout_ms))

static PyObject *producer_offsets(Client *self, PyObject *args)
{
    PyObject *offsets;
    const char *group;
    Py_ssize_t size;
    int timeout_ms;
    if (!PyArg_ParseTuple(args, "Oy#i", &offsets, &group, &size, &timeout_ms))
        return NULL;
    rd_kafka_topic_partition_list_t *list = list_of(offsets);
    if (list == NULL || client_enter(self) < 0) {
        if (list != NULL)
            rd.topic_partition_list_destroy(list);
        return NULL;
    }
    rd_kafka_consumer_group_metadata_t *metadata = NULL;
    rd_kafka_error_t *error;
    Py_BEGIN_ALLOW_THREADS
    error = rd.consumer_group_metadata_read(&metadata, group, (size_t)size);
    if (error == NULL)
        error = rd.send_offsets_to_transaction(self->handle, list, metadata, timeout_ms);
    if (metadata != NULL)
        rd.consumer_group_metadata_destroy(metadata);
    rd.topic_partition_list_destroy(list);
    Py_END_ALLOW_THREADS
    client_leave(self);
    return none_or_raise(error);
}

static PyObject *producer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *settings;
    (void)kwargs;
    return PyArg_ParseTuple(args, "O", &settings) ? open_client(type, settings, RD_PRODUCER) : NULL;
}

static PyMethodDef producer_methods[] = {
    {"produce", (PyCFunction)producer_produce, METH_VARARGS,
     "produce(topic, partition, keys, values, timestamps, headers, start, wait_ms) -> index of the first record not "
     "taken\n\nColumns are tuples; headers may be None. So may timestamps: each value then has its own before it, 8 bytes "
     "as a store's row has it. Waits so long for room in the queue. A refusal raises Error if it is that of the first "
     "record; else it ends the call, and the next one raises it."},
    {"flush", (PyCFunction)producer_flush, METH_VARARGS, "flush(timeout_ms) -> records without an answer; raises a fatal error"},
    {"poll", (PyCFunction)producer_poll, METH_VARARGS, "poll(timeout_ms) -> records without an answer; raises a fatal error"},
    {"delivered", (PyCFunction)producer_delivered, METH_NOARGS,
     "delivered() -> [(acknowledged, last offset or -1, code, text, bytes of the record)] of each `produce` since the "
     "last look; code, text and bytes are of the first refusal, by a broker if there is one"},
    {"purge", (PyCFunction)producer_purge, METH_NOARGS, "purge(): drop records that have no answer"},
    {"init_transactions", (PyCFunction)producer_init, METH_VARARGS, "init_transactions(timeout_ms)"},
    {"begin", (PyCFunction)producer_begin, METH_VARARGS, "begin(): a transaction"},
    {"offsets", (PyCFunction)producer_offsets, METH_VARARGS,
     "offsets([(topic, partition, offset, metadata)], group, timeout_ms): into the transaction; `group` as "
     "rd_kafka_consumer_group_metadata_write makes it"},
    {"commit", (PyCFunction)producer_commit, METH_VARARGS, "commit(timeout_ms)"},
    {"abort", (PyCFunction)producer_abort, METH_VARARGS, "abort(timeout_ms)"},
    {"end", (PyCFunction)producer_end, METH_VARARGS,
     "end(topic, partition, timeout_ms) -> the offset after its last committed record"},
    {"learn", (PyCFunction)client_learn, METH_VARARGS, "learn(topic, timeout_ms): ask for the leaders of a topic"},
    {"said", (PyCFunction)client_said, METH_NOARGS, "said() -> complaints and lines since the last look; see handle.c"},
    {"close", (PyCFunction)client_close, METH_NOARGS,
     "Destroy the client, asking no broker; unsent records are dropped, an open transaction is left to the brokers."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, client_dealloc},
    {Py_tp_methods, producer_methods},
    {Py_sq_length, producer_length},
    {Py_tp_doc, "Producer(settings): settings are pairs of text. One thread at a time may use it."},
    {0, NULL},
};

static PyType_Spec producer_spec = {
    "standfast.store._native.Producer", sizeof(Client), 0, Py_TPFLAGS_DEFAULT, producer_slots,
};

int init_producer(PyObject *module)
{
    producer_type = PyType_FromSpec(&producer_spec);
    return producer_type == NULL ? -1 : PyModule_AddObjectRef(module, "Producer", producer_type);
}
