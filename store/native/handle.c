/* What a consumer and a producer share: librdkafka itself, a handle of it, and what the handle says.
 *
 *     load(path)       the functions of the copy that the process has loaded; never a second copy
 *     open_client      a handle with settings: pairs of text, given to librdkafka unchanged
 *     said             complaints and lines of its log since the last look, in their order
 *
 * Items of `said` are tuples: (1, code, text) for a complaint of the client, (2, level, facility, text) for a line.
 *
 * Rules of this file: librdkafka's threads call `on_log` at any time, so that it takes a lock and no Python object. A
 * handle is destroyed in bounded time, without asking a broker: a consumer never joins a group, and a producer's unsent
 * records are dropped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

Library rd;
PyObject *native_error;

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
        PyErr_Format(PyExc_OSError, "librdkafka %s is not one of those that standfast was tried with, 2.16 to 2.x",
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
    if (code != RD_FATAL) /* that is raised by the next wait of a producer, with its reason: see none_or_fatal */
        hear(opaque, 0, code, "", reason);
}

static void on_log(const rd_kafka_t *handle, int level, const char *facility, const char *text)
{
    hear(rd.opaque(handle), 1, level, facility, text);
}

PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Move what was heard to the end of a list. */
int report(Ear *ear, PyObject *into)
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

/* Raise Error(code, text) and librdkafka's flags: fatal, retriable, the transaction must be aborted. */
static PyObject *raise_flags(int code, const char *text, int fatal, int retriable, int aborts)
{
    PyObject *shown = text_of(text != NULL ? text : rd.err2str(code));
    PyObject *value = shown == NULL ? NULL : Py_BuildValue("(iOiii)", code, shown, fatal, retriable, aborts);
    if (value != NULL)
        PyErr_SetObject(native_error, value);
    Py_XDECREF(shown);
    Py_XDECREF(value);
    return NULL;
}

PyObject *raise_code(int code, const char *text)
{
    return raise_flags(code, text, 0, 0, 0);
}

/* Takes the error; None without one. */
PyObject *none_or_raise(rd_kafka_error_t *error)
{
    if (error == NULL)
        Py_RETURN_NONE;
    raise_flags(rd.error_code(error), rd.error_string(error), rd.error_is_fatal(error), rd.error_is_retriable(error),
                rd.error_txn_requires_abort(error));
    rd.error_destroy(error);
    return NULL;
}

/* The error after which a producer takes nothing more; None without one. */
PyObject *none_or_fatal(Client *self)
{
    char why[TEXT_MAX];
    int code = rd.fatal_error(self->handle, why, sizeof why);
    if (code != 0)
        return raise_flags(code, why, 1, 0, 0);
    Py_RETURN_NONE;
}

/* -- opening and closing ------------------------------------------------------------------------------------------- */

int client_enter(Client *self)
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

PyObject *open_client(PyTypeObject *type, PyObject *settings, int kind)
{
    char problem[TEXT_MAX] = "";
    if (rd.version == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no librdkafka: call load first");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Client *self = (Client *)allocate(type, 0);
    if (self == NULL)
        return NULL;
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
    if (kind == RD_PRODUCER)
        rd.conf_set_dr_msg_cb(conf, on_delivery);
    Py_BEGIN_ALLOW_THREADS
    self->handle = rd.new(kind, conf, problem, sizeof problem);
    if (self->handle != NULL && kind == RD_CONSUMER) {
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
        if (self->queue != NULL)
            rd.queue_destroy(self->queue);
        else
            rd.purge(handle, RD_PURGE_ALL); /* else it would wait for records that are on their way */
        rd.destroy_flags(handle, RD_DESTROY_NO_CONSUMER_CLOSE);
        Py_END_ALLOW_THREADS
    } else if (handle != NULL)
        return; /* its threads are in the other process: not even its memory can be freed here */
    if (ear != NULL)
        free(ear->sending.sent);
    free(ear);
}

void client_dealloc(Client *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    destroy(self);
    release(self);
    Py_DECREF(type);
}

void client_leave(Client *self)
{
    self->busy = 0;
    if (self->closing)
        destroy(self);
}

PyObject *client_close(Client *self, PyObject *unused)
{
    (void)unused;
    if (self->busy)
        self->closing = 1; /* `client_leave` destroys it: the thread inside still uses the handle */
    else
        destroy(self);
    Py_RETURN_NONE;
}
PyObject *client_learn(Client *self, PyObject *args)
{
    const char *name;
    int timeout_ms, code;
    const struct rd_kafka_metadata *found = NULL;
    if (!PyArg_ParseTuple(args, "si", &name, &timeout_ms) || client_enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rd_kafka_topic_t *topic = rd.topic_new(self->handle, name, NULL);
    code = topic == NULL ? rd.last_error() : rd.metadata(self->handle, 0, topic, &found, timeout_ms);
    if (found != NULL)
        rd.metadata_destroy(found);
    if (topic != NULL)
        rd.topic_destroy(topic);
    Py_END_ALLOW_THREADS
    client_leave(self);
    if (code != 0)
        return raise_code(code, NULL);
    Py_RETURN_NONE;
}

PyObject *client_said(Client *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyList_New(0);
    if (found == NULL || self->handle == NULL || self->pid != getpid())
        return found; /* after the end too: a call may have been the last one */
    int inside = client_enter(self) == 0, failed = !inside || report(self->ear, found) < 0;
    if (inside)
        client_leave(self);
    if (failed)
        Py_CLEAR(found);
    return found;
}

/* A tuple in a sequence, as a reference of the caller's own; NULL with an error set. */
PyObject *tuple_at(PyObject *given, Py_ssize_t at)
{
    PyObject *one = PySequence_GetItem(given, at);
    if (one != NULL && !PyTuple_Check(one)) {
        PyErr_Format(PyExc_TypeError, "item %zd must be a tuple", at);
        Py_CLEAR(one);
    }
    return one;
}

/* Partitions with offsets, out of tuples (topic, partition, offset) or (topic, partition, offset, metadata). */
rd_kafka_topic_partition_list_t *list_of(PyObject *given)
{
    Py_ssize_t count = is_column(given) ? PySequence_Size(given) : -1;
    if (count < 0 || count > INT32_MAX) { /* librdkafka ends the process where there is no memory for so many */
        PyErr_SetString(PyExc_TypeError, "partitions must be a list or a tuple, and none of a subclass");
        return NULL;
    }
    rd_kafka_topic_partition_list_t *list = rd.topic_partition_list_new((int)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = tuple_at(given, i);
        const char *topic, *metadata = NULL;
        int partition;
        long long offset;
        if (one == NULL || !PyArg_ParseTuple(one, "siL|z", &topic, &partition, &offset, &metadata)) {
            Py_XDECREF(one);
            rd.topic_partition_list_destroy(list);
            return NULL;
        }
        rd_kafka_topic_partition_t *at = rd.topic_partition_list_add(list, topic, partition);
        at->offset = offset;
        /* With its zero, as the client of confluent_kafka writes it, and reads it: librdkafka frees it. */
        if (metadata != NULL && (at->metadata = strdup(metadata)) != NULL)
            at->metadata_size = strlen(metadata) + 1;
        Py_DECREF(one);
    }
    return list;
}
