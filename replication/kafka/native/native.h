/* What the files of this module share.
 *
 *     handle.c   librdkafka, and a handle of it: settings, closing, complaints and errors
 *     client.c   one consumer of librdkafka: consume ──> parts and events
 *     producer.c one producer: columns ──> records, acknowledged offsets; transactions
 *     pieces.c   a part: records of one partition in one piece of memory, as columns only when asked for
 *     fold.c     the last value of each key, out of parts; sorted rows
 *     sst.c      sorted rows as a file of RocksDB
 *     module.c   the module's table
 *
 * Rules of this module: everything that takes long runs without the interpreter's lock, so that no Python object is
 * touched there; an object refuses a second thread and, if it has a handle, another process; memory that cannot be had
 * is a MemoryError. No record may crash the interpreter. */
#ifndef STANDFAST_NATIVE_H
#define STANDFAST_NATIVE_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdint.h>

#include "rdkafka.h"

/* One record. Its key, its value and its headers lie one after the other at `at` of the part's arena. */
typedef struct {
    int64_t offset;
    int64_t timestamp;
    size_t at;
    int32_t key_len;   /* -1: null */
    int32_t value_len; /* -1: null */
    uint32_t headers;
} Row;

typedef struct {
    PyObject_HEAD
    PyObject *topic; /* str */
    int32_t partition;
    Py_ssize_t count;
    size_t payload; /* bytes of keys and values */
    size_t bytes;   /* of memory */
    Row *rows;
    char *arena;
    int has_headers;
} Part;

/* Memory of a part that has no Python object yet. */
typedef struct {
    rd_kafka_topic_t *rkt;
    int32_t partition;
    size_t count;
    size_t size;
    size_t payload;
    Row *rows;
    char *arena;
    int has_headers;
} Draft;

/* A sorted file under way: sst.c. Keys must stay where they are until the end; -1 is an error with errno. */
#define TABLE_KEY_MAX 240
typedef struct Table Table;
Table *table_new(int fd, uint64_t rows, uint32_t block_bytes);
int table_add(Table *table, const unsigned char *key, uint32_t key_len, const char *value, int32_t value_len);
int table_finish(Table *table);
uint64_t table_size(const Table *table);
void table_free(Table *table);
int file_digest(const char *path, uint64_t *digest);

#define SAID_MAX 64 /* further complaints and lines of one look are dropped: they repeat themselves */
#define TEXT_MAX 512

typedef struct {
    int is_log;
    int code; /* or the level */
    char facility[32];
    char text[TEXT_MAX];
} Said;

/* Records that a producer took for one partition in one call, by their running numbers. */
typedef struct {
    uintptr_t first;
    size_t given;
    size_t acknowledged;
    int64_t last; /* offset of the last acknowledged one */
    int code;     /* of the first refused one; 0 without */
    size_t refused_bytes;
} Sent;

/* Only the thread inside of a handle touches it. */
typedef struct {
    Sent *sent;
    size_t count, room;
    size_t recent; /* reports come partition by partition */
    uintptr_t next;
} Sending;

/* Lives as long as the handle; librdkafka has its address. */
typedef struct {
    pthread_mutex_t lock; /* of what was heard */
    int count;
    Said said[SAID_MAX];
    Sending sending;
} Ear;

typedef struct {
    PyObject_HEAD
    rd_kafka_t *handle;
    rd_kafka_queue_t *queue; /* NULL of a producer */
    Ear *ear;
    pid_t pid;
    int busy;
    int headers; /* 0: records come without them, since librdkafka takes 0.1 us for a look, also if there are none */
    int closing; /* closed while another thread was inside */
    int lost; /* memory ran out between two records: what follows would have a gap */
} Client;

extern PyObject *native_error; /* Error(code, text, fatal, retriable, transaction must be aborted) */
extern PyObject *part_type, *fold_type, *client_type, *producer_type;

/* The functions of librdkafka; NULL before `load`. */
#define X(result, name, arguments) result (*name) arguments;
typedef struct {
    RD_FUNCTIONS(X)
} Library;
#undef X
extern Library rd;

int init_client(PyObject *module);
int init_producer(PyObject *module);
int init_pieces(PyObject *module);
int init_fold(PyObject *module);

PyObject *load_library(PyObject *module, PyObject *path);
PyObject *digest_of(PyObject *module, PyObject *path);
PyObject *text_of(const char *text);
PyObject *raise_code(int code, const char *text);
PyObject *none_or_raise(rd_kafka_error_t *error);
PyObject *none_or_fatal(Client *self);
PyObject *tuple_at(PyObject *given, Py_ssize_t at);
rd_kafka_topic_partition_list_t *list_of(PyObject *given);
int report(Ear *ear, PyObject *into);
int client_enter(Client *self); /* -1 with an error: closed, another process, another thread inside */
void client_leave(Client *self);
PyObject *open_client(PyTypeObject *type, PyObject *settings, int kind);
void client_dealloc(Client *self);
PyObject *client_close(Client *self, PyObject *unused);
PyObject *client_learn(Client *self, PyObject *args);
PyObject *client_said(Client *self, PyObject *unused);
void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque);
Py_ssize_t cell_of(PyObject *column, Py_ssize_t at, char **bytes);
PyObject *columns_of(PyObject *module, PyObject *args);
PyObject *part_of_columns(PyObject *module, PyObject *args);
PyObject *part_of_draft(Draft *draft, PyObject *topic);
void draft_free(Draft *draft);

#endif
