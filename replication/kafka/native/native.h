/* What the files of this module share.
 *
 *     client.c   one consumer of librdkafka: consume ──> parts and events
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

extern PyObject *native_error; /* Error(code, text) of librdkafka */
extern PyObject *part_type, *fold_type, *client_type;

/* The functions of librdkafka; NULL before `load`. */
#define X(result, name, arguments) result (*name) arguments;
typedef struct {
    RD_FUNCTIONS(X)
} Library;
#undef X
extern Library rd;

int init_client(PyObject *module);
int init_pieces(PyObject *module);
int init_fold(PyObject *module);

PyObject *load_library(PyObject *module, PyObject *path);
PyObject *digest_of(PyObject *module, PyObject *path);
PyObject *part_of_columns(PyObject *module, PyObject *args);
PyObject *part_of_draft(Draft *draft, PyObject *topic);
void draft_free(Draft *draft);

#endif
