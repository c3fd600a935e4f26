/* One consumer of librdkafka, with its own queue.
 *
 *     load(path)          the functions of the copy that the process has loaded; never a second copy
 *     Client(settings)    pairs of text, given to librdkafka unchanged
 *     consume             a batch without the interpreter's lock: parts, and events in their order
 *
 * Events are tuples: (0, code, text, topic, partition, offset) stands for a message without a record, (1, code, text)
 * for a complaint of the client, (2, level, facility, text) for a line of its log.
 *
 * Rules of this file: librdkafka's threads call `on_log` at any time, so that it takes a lock and no Python object. A
 * client is destroyed by `close` in bounded time, without asking a broker: it never joins a group. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

#define SAID_MAX 64 /* further complaints and lines of one batch are dropped: they repeat themselves */
#define TEXT_MAX 512

Library rd;
PyObject *client_type, *native_error;

typedef struct {
    int is_log;
    int code; /* or the level */
    char facility[32];
    char text[TEXT_MAX];
} Said;

/* Lives as long as the handle; librdkafka has its address. */
typedef struct {
    pthread_mutex_t lock;
    int count;
    Said said[SAID_MAX];
} Ear;

typedef struct {
    PyObject_HEAD
    rd_kafka_t *handle;
    rd_kafka_queue_t *queue;
    Ear *ear;
    pid_t pid;
    int busy;
    int headers; /* 0: records come without them, since librdkafka takes 0.1 us for a look, also if there are none */
    int closing; /* closed while another thread was inside */
    int lost; /* memory ran out between two records: what follows would have a gap */
} Client;

/* -- the library --------------------------------------------------------------------------------------------------- */

PyObject *load_library(PyObject *module, PyObject *path)
{
    (void)module;
    PyObject *encoded = NULL;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    const char *name = PyBytes_AsString(encoded);
    void *found = name == NULL ? NULL : dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (found == NULL) {
        PyErr_Format(PyExc_OSError, "%s is not a library that this process has loaded", name);
        Py_DECREF(encoded);
        return NULL;
    }
    Library library;
    const char *absent = NULL;
#define X(result, member, arguments)                                                                                   \
    if ((*(void **)&library.member = dlsym(found, "rd_kafka_" #member)) == NULL)                                       \
        absent = "rd_kafka_" #member;
    RD_FUNCTIONS(X)
#undef X
    PyObject *answer = NULL;
    if (absent != NULL)
        PyErr_Format(PyExc_OSError, "%s has no function %s", name, absent);
    else if (library.version() < RD_OLDEST || library.version() >= RD_NEWEST)
        PyErr_Format(PyExc_OSError, "librdkafka %s is not one of those that standfast was tried with, 2.13 to 2.x",
                     library.version_str());
    else {
        rd = library;
        answer = PyUnicode_FromString(rd.version_str());
    }
    if (answer == NULL)
        dlclose(found); /* else it stays: a handle may be in use until the process ends */
    Py_DECREF(encoded);
    return answer;
}

/* -- complaints and lines ------------------------------------------------------------------------------------------ */

static void hear(Ear *ear, int is_log, int code, const char *facility, const char *text)
{
    if (ear == NULL)
        return;
    pthread_mutex_lock(&ear->lock);
    if (ear->count < SAID_MAX) {
        Said *one = ear->said + ear->count++;
        one->is_log = is_log;
        one->code = code;
        strncpy(one->facility, facility, sizeof one->facility - 1);
        one->facility[sizeof one->facility - 1] = 0;
        strncpy(one->text, text, TEXT_MAX - 1);
        one->text[TEXT_MAX - 1] = 0;
    }
    pthread_mutex_unlock(&ear->lock);
}

static void on_error(rd_kafka_t *handle, int code, const char *reason, void *opaque)
{
    (void)handle;
    hear(opaque, 0, code, "", reason);
}

static void on_log(const rd_kafka_t *handle, int level, const char *facility, const char *text)
{
    hear(rd.opaque(handle), 1, level, facility, text);
}

static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Move what was heard to the end of a list. */
static int report(Ear *ear, PyObject *into)
{
    for (int i = 0;; i++) {
        Said one;
        pthread_mutex_lock(&ear->lock);
        int there = i < ear->count;
        if (there)
            one = ear->said[i];
        else
            ear->count = 0;
        pthread_mutex_unlock(&ear->lock);
        if (!there)
            return 0;
        PyObject *text = text_of(one.text);
        PyObject *item = text == NULL ? NULL
                         : one.is_log ? Py_BuildValue("(iisO)", 2, one.code, one.facility, text)
                                      : Py_BuildValue("(iiO)", 1, one.code, text);
        Py_XDECREF(text);
        int failed = item == NULL || PyList_Append(into, item) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
}

static PyObject *raise_code(int code, const char *text)
{
    PyObject *shown = text_of(text != NULL ? text : rd.err2str(code));
    PyObject *value = shown == NULL ? NULL : Py_BuildValue("(iO)", code, shown);
    if (value != NULL)
        PyErr_SetObject(native_error, value);
    Py_XDECREF(shown);
    Py_XDECREF(value);
    return NULL;
}

/* -- opening and closing ------------------------------------------------------------------------------------------- */

static int enter(Client *self)
{
    const char *why = self->handle == NULL || self->closing ? "this client of Kafka was closed: open another one"
                      : self->pid != getpid()      ? "this client of Kafka belongs to the process that forked this one"
                      : self->busy                 ? "another thread uses this client of Kafka: one at a time may"
                      : self->lost                 ? "this client of Kafka ran out of memory and lost records: close it"
                                                   : NULL;
    if (why != NULL) {
        PyErr_SetString(PyExc_RuntimeError, why);
        return -1;
    }
    self->busy = 1;
    return 0;
}

static int configure(rd_kafka_conf_t *conf, PyObject *settings)
{
    Py_ssize_t count = PySequence_Size(settings);
    for (Py_ssize_t i = 0; i < count; i++) {
        char problem[TEXT_MAX];
        PyObject *pair = PySequence_GetItem(settings, i);
        PyObject *name = pair == NULL ? NULL : PySequence_GetItem(pair, 0);
        PyObject *value = name == NULL ? NULL : PySequence_GetItem(pair, 1);
        const char *key = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
        const char *text = value == NULL || key == NULL ? NULL : PyUnicode_AsUTF8AndSize(value, NULL);
        int failed = text == NULL;
        if (!failed && rd.conf_set(conf, key, text, problem, sizeof problem) != RD_CONF_OK) {
            raise_code(-186, problem); /* _INVALID_ARG; librdkafka's text names the setting */
            failed = 1;
        }
        Py_XDECREF(pair);
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (failed)
            return -1;
    }
    return count < 0 ? -1 : 0;
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"settings", "headers", NULL};
    PyObject *settings;
    int headers = 1;
    char problem[TEXT_MAX] = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", names, &settings, &headers))
        return NULL;
    if (rd.version == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no librdkafka: call load first");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Client *self = (Client *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->headers = headers;
    self->ear = calloc(1, sizeof(Ear));
    rd_kafka_conf_t *conf = self->ear == NULL ? NULL : rd.conf_new();
    if (conf == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    pthread_mutex_init(&self->ear->lock, NULL);
    if (configure(conf, settings) < 0) {
        rd.conf_destroy(conf);
        Py_DECREF(self);
        return NULL;
    }
    rd.conf_set_opaque(conf, self->ear);
    rd.conf_set_error_cb(conf, on_error);
    rd.conf_set_log_cb(conf, on_log);
    Py_BEGIN_ALLOW_THREADS
    self->handle = rd.new(RD_CONSUMER, conf, problem, sizeof problem);
    if (self->handle != NULL) {
        rd.poll_set_consumer(self->handle);
        self->queue = rd.queue_get_consumer(self->handle);
    }
    Py_END_ALLOW_THREADS
    self->pid = getpid();
    if (self->handle == NULL) {
        rd.conf_destroy(conf); /* a handle that was made has taken it */
        raise_code(-196, problem); /* _FAIL */
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void destroy(Client *self)
{
    rd_kafka_t *handle = self->handle;
    Ear *ear = self->ear;
    self->ear = NULL;
    self->handle = NULL;
    if (handle != NULL && self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        rd.queue_destroy(self->queue);
        rd.destroy_flags(handle, RD_DESTROY_NO_CONSUMER_CLOSE);
        Py_END_ALLOW_THREADS
    } else if (handle != NULL)
        return; /* its threads are in the other process: not even its memory can be freed here */
    free(ear);
}

static void client_dealloc(Client *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    destroy(self);
    release(self);
    Py_DECREF(type);
}

static void leave(Client *self)
{
    self->busy = 0;
    if (self->closing)
        destroy(self);
}

static PyObject *client_close(Client *self, PyObject *unused)
{
    (void)unused;
    if (self->busy)
        self->closing = 1; /* `leave` destroys it: the thread inside still uses the handle */
    else
        destroy(self);
    Py_RETURN_NONE;
}

/* -- consuming ----------------------------------------------------------------------------------------------------- */

typedef struct {
    rd_kafka_message_t **messages;
    int headers;
    size_t *draft_of; /* by message; of an event SIZE_MAX */
    Draft *drafts;
    size_t count, drafts_count;
} Batch;

static size_t header_bytes(const rd_kafka_message_t *message, uint32_t *count)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t size = 0, length;
    *count = 0;
    if (rd.message_headers(message, &headers) != 0)
        return 0;
    while (rd.header_get_all(headers, *count, &name, &value, &length) == 0) {
        size += 8 + strlen(name) + (value != NULL ? length : 0);
        ++*count;
    }
    return size;
}

static void copy_headers(const rd_kafka_message_t *message, char *at)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t length;
    if (rd.message_headers(message, &headers) != 0)
        return;
    for (size_t i = 0; rd.header_get_all(headers, i, &name, &value, &length) == 0; i++) {
        int32_t name_len = (int32_t)strlen(name), value_len = value != NULL ? (int32_t)length : -1;
        memcpy(at, &name_len, 4);
        memcpy(at + 4, &value_len, 4);
        memcpy(at + 8, name, (size_t)name_len);
        if (value_len > 0)
            memcpy(at + 8 + name_len, value, (size_t)value_len);
        at += 8 + name_len + (value_len > 0 ? value_len : 0);
    }
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
        draft->size += payload + (batch->headers ? header_bytes(one, &headers) : 0);
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
        size_t header_size = draft->has_headers ? header_bytes(one, &headers) : 0;
        row->offset = one->offset;
        row->timestamp = rd.message_timestamp(one, NULL);
        row->at = draft->size;
        row->key_len = one->key != NULL ? (int32_t)one->key_len : -1;
        row->value_len = one->payload != NULL ? (int32_t)one->len : -1;
        row->headers = headers;
        if (row->key_len > 0)
            memcpy(draft->arena + draft->size, one->key, one->key_len), draft->size += one->key_len;
        if (row->value_len > 0)
            memcpy(draft->arena + draft->size, one->payload, one->len), draft->size += one->len;
        if (headers)
            copy_headers(one, draft->arena + draft->size);
        draft->size += header_size;
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
    if (enter(self) < 0)
        return NULL;
    Batch batch = {
        .headers = self->headers,
        .messages = malloc((size_t)wanted * sizeof *batch.messages),
        .draft_of = malloc((size_t)wanted * sizeof *batch.draft_of),
    };
    if (batch.messages == NULL || batch.draft_of == NULL) {
        free(batch.messages);
        free(batch.draft_of);
        leave(self);
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
    leave(self);
    if (found != NULL && code != 0) {
        Py_DECREF(found);
        return raise_code(code, NULL);
    }
    return found;
}

/* -- assignment ---------------------------------------------------------------------------------------------------- */

static rd_kafka_topic_partition_list_t *list_of(PyObject *given)
{
    Py_ssize_t count = PySequence_Size(given);
    rd_kafka_topic_partition_list_t *list = count < 0 ? NULL : rd.topic_partition_list_new((int)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PySequence_GetItem(given, i);
        const char *topic;
        int partition;
        long long offset;
        if (one == NULL || !PyArg_ParseTuple(one, "siL", &topic, &partition, &offset)) {
            Py_XDECREF(one);
            rd.topic_partition_list_destroy(list);
            return NULL;
        }
        rd.topic_partition_list_add(list, topic, partition)->offset = offset;
        Py_DECREF(one);
    }
    return list;
}

/* Apply a change of the assignment: 0 assign, 1 unassign, 2 pause, 3 resume. */
static PyObject *change(Client *self, PyObject *given, int what)
{
    rd_kafka_topic_partition_list_t *list = list_of(given);
    rd_kafka_error_t *error = NULL;
    int code = 0;
    if (list == NULL || enter(self) < 0) {
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
    leave(self);
    rd.topic_partition_list_destroy(list);
    if (error != NULL) {
        raise_code(rd.error_code(error), rd.error_string(error));
        rd.error_destroy(error);
        return NULL;
    }
    if (code != 0)
        return raise_code(code, NULL);
    Py_RETURN_NONE;
}

static PyObject *client_assign(Client *self, PyObject *given)
{
    return change(self, given, 0);
}

static PyObject *client_unassign(Client *self, PyObject *given)
{
    return change(self, given, 1);
}

static PyObject *client_pause(Client *self, PyObject *given)
{
    return change(self, given, 2);
}

static PyObject *client_resume(Client *self, PyObject *given)
{
    return change(self, given, 3);
}

static PyObject *client_end(Client *self, PyObject *args)
{
    const char *topic;
    int partition;
    int64_t low = 0, high = 0;
    if (!PyArg_ParseTuple(args, "si", &topic, &partition) || enter(self) < 0)
        return NULL;
    int code = rd.get_watermark_offsets(self->handle, topic, partition, &low, &high);
    leave(self);
    return PyLong_FromLongLong(code == 0 ? high : -1);
}

static PyObject *client_learn(Client *self, PyObject *args)
{
    const char *name;
    int timeout_ms, code;
    const struct rd_kafka_metadata *found = NULL;
    if (!PyArg_ParseTuple(args, "si", &name, &timeout_ms) || enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rd_kafka_topic_t *topic = rd.topic_new(self->handle, name, NULL);
    code = topic == NULL ? rd.last_error() : rd.metadata(self->handle, 0, topic, &found, timeout_ms);
    if (found != NULL)
        rd.metadata_destroy(found);
    if (topic != NULL)
        rd.topic_destroy(topic);
    Py_END_ALLOW_THREADS
    leave(self);
    if (code != 0)
        return raise_code(code, NULL);
    Py_RETURN_NONE;
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
    {"close", (PyCFunction)client_close, METH_NOARGS, "Destroy the client, asking no broker; while another thread is inside, once it leaves. Twice is fine."},
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
    "standfast.replication.kafka._native.Client", sizeof(Client), 0, Py_TPFLAGS_DEFAULT, client_slots,
};

int init_client(PyObject *module)
{
    native_error = PyErr_NewException("standfast.replication.kafka._native.Error", NULL, NULL);
    client_type = PyType_FromSpec(&client_spec);
    if (native_error == NULL || client_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Error", native_error) < 0 ? -1
                                                                    : PyModule_AddObjectRef(module, "Client", client_type);
}
