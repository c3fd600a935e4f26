/* One consumer of librdkafka, with its own queue.
 *
 *     consume             a batch without the interpreter's lock: parts, and events in their order
 *
 * Events are tuples: (0, code, text, topic, partition, offset) stands for a message without a record, and what the
 * handle said (handle.c) comes behind them. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

PyObject *client_type;

/* -- consuming ----------------------------------------------------------------------------------------------------- */

typedef struct {
    rd_kafka_message_t **messages;
    int headers;
    size_t *draft_of; /* by message; of an event SIZE_MAX */
    Draft *drafts;
    size_t count, drafts_count;
} Batch;

/* Bytes of a message's headers, and their number; they are copied to `at`, unless that is NULL. */
static size_t take_headers(const rd_kafka_message_t *message, char *at, uint32_t *count)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t size = 0, length;
    *count = 0;
    if (rd.message_headers(message, &headers) != 0)
        return 0;
    for (; rd.header_get_all(headers, *count, &name, &value, &length) == 0; ++*count) {
        int32_t name_len = (int32_t)strlen(name), value_len = value != NULL ? (int32_t)length : -1;
        size_t used = value_len > 0 ? (size_t)value_len : 0;
        if (at != NULL) {
            memcpy(at + size, &name_len, 4);
            memcpy(at + size + 4, &value_len, 4);
            memcpy(at + size + 8, name, (size_t)name_len);
            if (used)
                memcpy(at + size + 8 + name_len, value, used);
        }
        size += 8 + (size_t)name_len + used;
    }
    return size;
}

/* Sort messages to drafts, one for each partition between two events. No Python here. */
static void plan(Batch *batch)
{
    size_t first = 0; /* the first draft since the last event */
    for (size_t i = 0; i < batch->count; i++) {
        rd_kafka_message_t *one = batch->messages[i];
        if (one->err) {
            batch->draft_of[i] = SIZE_MAX;
            first = batch->drafts_count;
            continue;
        }
        size_t at = batch->drafts_count;
        while (at > first && (batch->drafts[at - 1].rkt != one->rkt || batch->drafts[at - 1].partition != one->partition))
            at--;
        if (at-- == first) {
            at = batch->drafts_count++;
            batch->drafts[at] = (Draft){.rkt = one->rkt, .partition = one->partition};
        }
        Draft *draft = batch->drafts + at;
        uint32_t headers = 0;
        size_t payload = (one->key != NULL ? one->key_len : 0) + (one->payload != NULL ? one->len : 0);
        draft->size += payload + (batch->headers ? take_headers(one, NULL, &headers) : 0);
        draft->payload += payload;
        draft->has_headers |= headers > 0;
        draft->count++;
        batch->draft_of[i] = at;
    }
}

/* Copy the messages to their drafts. -1: no memory. No Python here. */
static int copy(Batch *batch)
{
    for (size_t i = 0; i < batch->drafts_count; i++) {
        Draft *draft = batch->drafts + i;
        draft->rows = malloc(draft->count * sizeof(Row));
        draft->arena = malloc(draft->size ? draft->size : 1);
        if (draft->rows == NULL || draft->arena == NULL)
            return -1;
        draft->count = draft->size = 0;
    }
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->draft_of[i] == SIZE_MAX)
            continue;
        const rd_kafka_message_t *one = batch->messages[i];
        Draft *draft = batch->drafts + batch->draft_of[i];
        Row *row = draft->rows + draft->count++;
        uint32_t headers = 0;
        row->offset = one->offset;
        row->timestamp = rd.message_timestamp(one, NULL);
        row->at = draft->size;
        row->key_len = one->key != NULL ? (int32_t)one->key_len : -1;
        row->value_len = one->payload != NULL ? (int32_t)one->len : -1;
        if (row->key_len > 0)
            memcpy(draft->arena + draft->size, one->key, one->key_len), draft->size += one->key_len;
        if (row->value_len > 0)
            memcpy(draft->arena + draft->size, one->payload, one->len), draft->size += one->len;
        if (draft->has_headers)
            draft->size += take_headers(one, draft->arena + draft->size, &headers);
        row->headers = headers;
    }
    return 0;
}

static PyObject *event_of(const rd_kafka_message_t *message)
{
    PyObject *text = text_of(rd.message_errstr(message) != NULL ? rd.message_errstr(message) : rd.err2str(message->err));
    PyObject *topic = message->rkt != NULL ? text_of(rd.topic_name(message->rkt)) : PyUnicode_FromString("");
    PyObject *found = text == NULL || topic == NULL
                          ? NULL
                          : Py_BuildValue("(iiOOiL)", 0, message->err, text, topic, (int)message->partition,
                                          (long long)message->offset);
    Py_XDECREF(text);
    Py_XDECREF(topic);
    return found;
}

/* The batch as Python objects: an event, or a part where its first record stood. */
static int hand_over(Batch *batch, PyObject *into)
{
    size_t next = 0;
    for (size_t i = 0; i < batch->count; i++) {
        PyObject *item;
        if (batch->draft_of[i] == SIZE_MAX)
            item = event_of(batch->messages[i]);
        else if (batch->draft_of[i] == next) {
            Draft *draft = batch->drafts + next++;
            PyObject *topic = text_of(rd.topic_name(draft->rkt));
            item = topic == NULL ? NULL : part_of_draft(draft, topic);
            Py_XDECREF(topic);
        } else
            continue;
        int failed = item == NULL || PyList_Append(into, item) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    return 0;
}

static PyObject *finish(Client *self, Batch *batch, int failed)
{
    PyObject *found = NULL;
    if (failed)
        PyErr_NoMemory();
    else if ((found = PyList_New(0)) != NULL && (hand_over(batch, found) < 0 || report(self->ear, found) < 0))
        Py_CLEAR(found);
    self->lost = found == NULL;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < batch->count; i++)
        rd.message_destroy(batch->messages[i]);
    for (size_t i = 0; i < batch->drafts_count; i++)
        draft_free(batch->drafts + i);
    free(batch->messages);
    free(batch->draft_of);
    free(batch->drafts);
    Py_END_ALLOW_THREADS
    return found;
}

static PyObject *client_consume(Client *self, PyObject *args)
{
    Py_ssize_t wanted;
    int timeout_ms, failed = 0, code = 0;
    if (!PyArg_ParseTuple(args, "ni", &wanted, &timeout_ms))
        return NULL;
    if (wanted < 1 || wanted > 1000000) {
        PyErr_SetString(PyExc_ValueError, "consume takes 1 to 1,000,000 messages at once");
        return NULL;
    }
    if (client_enter(self) < 0)
        return NULL;
    Batch batch = {
        .headers = self->headers,
        .messages = malloc((size_t)wanted * sizeof *batch.messages),
        .draft_of = malloc((size_t)wanted * sizeof *batch.draft_of),
    };
    if (batch.messages == NULL || batch.draft_of == NULL) {
        free(batch.messages);
        free(batch.draft_of);
        client_leave(self);
        return PyErr_NoMemory(); /* before a message was taken: nothing is lost */
    }
    Py_BEGIN_ALLOW_THREADS
    ssize_t count = rd.consume_batch_queue(self->queue, timeout_ms, batch.messages, (size_t)wanted);
    if (count < 0)
        code = rd.last_error();
    batch.count = count > 0 ? (size_t)count : 0;
    if (batch.count) {
        batch.drafts = malloc(batch.count * sizeof *batch.drafts);
        failed = batch.drafts == NULL;
        if (!failed) {
            plan(&batch);
            failed = copy(&batch) < 0;
        }
    }
    Py_END_ALLOW_THREADS
    PyObject *found = finish(self, &batch, failed);
    client_leave(self);
    if (found != NULL && code != 0) {
        Py_DECREF(found);
        return raise_code(code, NULL);
    }
    return found;
}

/* -- assignment ---------------------------------------------------------------------------------------------------- */

/* Apply a change of the assignment: 0 assign, 1 unassign, 2 pause, 3 resume. */
static PyObject *change(Client *self, PyObject *given, int what)
{
    rd_kafka_topic_partition_list_t *list = list_of(given);
    rd_kafka_error_t *error = NULL;
    int code = 0;
    if (list == NULL || client_enter(self) < 0) {
        if (list != NULL)
            rd.topic_partition_list_destroy(list);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (what == 0)
        error = rd.incremental_assign(self->handle, list);
    else if (what == 1)
        error = rd.incremental_unassign(self->handle, list);
    else
        code = what == 2 ? rd.pause_partitions(self->handle, list) : rd.resume_partitions(self->handle, list);
    Py_END_ALLOW_THREADS
    client_leave(self);
    rd.topic_partition_list_destroy(list);
    return code != 0 ? raise_code(code, NULL) : none_or_raise(error);
}

#define CHANGE(name, what)                                                                                             \
    static PyObject *name(Client *self, PyObject *given)                                                               \
    {                                                                                                                  \
        return change(self, given, what);                                                                              \
    }

CHANGE(client_assign, 0)
CHANGE(client_unassign, 1)
CHANGE(client_pause, 2)
CHANGE(client_resume, 3)

static PyObject *client_end(Client *self, PyObject *args)
{
    const char *topic;
    int partition;
    int64_t low = 0, high = 0;
    if (!PyArg_ParseTuple(args, "si", &topic, &partition) || client_enter(self) < 0)
        return NULL;
    int code = rd.get_watermark_offsets(self->handle, topic, partition, &low, &high);
    client_leave(self);
    return PyLong_FromLongLong(code == 0 ? high : -1);
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"settings", "headers", NULL};
    PyObject *settings;
    int headers = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", names, &settings, &headers))
        return NULL;
    PyObject *self = open_client(type, settings, RD_CONSUMER);
    if (self != NULL)
        ((Client *)self)->headers = headers;
    return self;
}

static PyMethodDef client_methods[] = {
    {"consume", (PyCFunction)client_consume, METH_VARARGS,
     "consume(count, timeout_ms) -> list of parts and events\n\nReturns as soon as the wanted number of messages is "
     "here, at the latest after the time. Raises MemoryError; the client is of no more use then."},
    {"assign", (PyCFunction)client_assign, METH_O, "assign([(topic, partition, offset)]): also these partitions"},
    {"unassign", (PyCFunction)client_unassign, METH_O, "unassign([(topic, partition, offset)]): not these any more"},
    {"pause", (PyCFunction)client_pause, METH_O, "pause([(topic, partition, offset)]): drops prefetched records"},
    {"resume", (PyCFunction)client_resume, METH_O, "resume([(topic, partition, offset)])"},
    {"end", (PyCFunction)client_end, METH_VARARGS,
     "end(topic, partition) -> end that the last fetch reported, -1 if there is none"},
    {"learn", (PyCFunction)client_learn, METH_VARARGS, "learn(topic, timeout_ms): ask for the leaders of a topic"},
    {"close", (PyCFunction)client_close, METH_NOARGS,
     "Destroy the client, asking no broker; while another thread is inside, once it leaves. Twice is fine."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot client_slots[] = {
    {Py_tp_new, client_new},
    {Py_tp_dealloc, client_dealloc},
    {Py_tp_methods, client_methods},
    {Py_tp_doc, "Client(settings, headers=True): a consumer; settings are pairs of text. One thread at a time may use it."},
    {0, NULL},
};

static PyType_Spec client_spec = {
    "standfast.store._native.Client", sizeof(Client), 0, Py_TPFLAGS_DEFAULT, client_slots,
};

int init_client(PyObject *module)
{
    client_type = PyType_FromSpec(&client_spec);
    return client_type == NULL ? -1 : PyModule_AddObjectRef(module, "Client", client_type);
}
