/* What the files of this module share.
 *
 *     handle.c   librdkafka, and a handle of it: settings, closing, complaints and errors
 *     client.c   one consumer of librdkafka: consume ──> parts and events
 *     producer.c one producer: columns ──> records, acknowledged offsets; transactions
 *     pieces.c   a part: records of one partition in one piece of memory, as columns only when asked for
 *     fold.c     the last value of each key, out of parts; sorted rows
 *     spill.c    rows that left a fold's memory
 *     merge.c    rows of spills and of a fold, the newest of each key, to files or to Python
 *     sst.c      sorted rows as a file of RocksDB
 *     buffer.c   the write buffer of a task: rows, changes, their size
 *     json_form.c  whether JSON carries a value
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
#include <string.h>

#include "rdkafka.h"

/* Files of RocksDB, hashes and prefixes of keys are made of the machine's own words. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "this module is for little-endian machines");

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

/* -- rows and files: no Python object ------------------------------------------------------------------------------ */

/* A row, in the memory of a fold or of a frame of a spill. */
typedef struct {
    const unsigned char *key;
    const char *value;
    uint32_t key_len;
    int32_t value_len; /* -1: a delete */
} Cell;

/* The sorted rows of one segment of a fold, by their places; deletes are among them. */
typedef struct {
    int64_t segment;
    uint32_t from, to, deletes;
} Group;

static inline int compare_keys(const unsigned char *one, uint32_t one_len, const unsigned char *other,
                               uint32_t other_len)
{
    uint32_t common = one_len < other_len ? one_len : other_len;
    int found = common ? memcmp(one, other, common) : 0;
    return found ? found : (one_len > other_len) - (one_len < other_len);
}

static inline int compare_cells(const Cell *one, const Cell *other)
{
    return compare_keys(one->key, one->key_len, other->key, other->key_len);
}

static inline uint64_t load64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

/* Bytes that both begin with, at most `most`. */
static inline size_t alike(const unsigned char *one, const unsigned char *other, size_t most)
{
    size_t at = 0;
    for (uint64_t differ; at + 8 <= most; at += 8)
        if ((differ = load64(one + at) ^ load64(other + at)) != 0)
            return at + (size_t)__builtin_ctzll(differ) / 8;
    while (at < most && one[at] == other[at])
        at++;
    return at;
}

/* The first eight bytes of so many, as a number that sorts like them. */
static inline uint64_t prefix_of(const unsigned char *at, uint32_t left)
{
    unsigned char bytes[8] = {0};
    memcpy(bytes, at, left < 8 ? left : 8);
    return __builtin_bswap64(load64(bytes));
}

#define CELLS_MAX 32
#define LOOK_BYTES ((uint64_t)4 << 20)
#define TABLE_KEY_MAX 240

/* The rows of a sorted file; deletes are among them. `live`: key of the first row that is none, where there is one. */
typedef struct {
    uint64_t rows, deletes;
    uint32_t first_len, last_len, live_len;
    unsigned char first[TABLE_KEY_MAX], last[TABLE_KEY_MAX], live[TABLE_KEY_MAX];
} Summary;

/* A sorted file under way: sst.c. -1 is an error with errno. `rows` is the most that it may get, at least 1. */
typedef struct Table Table;
Table *table_new(int fd, uint64_t rows, uint32_t block_bytes);
int table_add(Table *table, const Cell *row);
int table_finish(Table *table, Summary *made);
uint64_t table_size(const Table *table);
void table_free(Table *table);
int file_digest(const char *path, uint64_t *digest);
uint64_t bytes_checksum(const unsigned char *at, size_t size);
int write_all(int fd, const unsigned char *bytes, size_t size);

/* Rows of a spill that were written together; their memory is `key`'s and the file's. */
typedef struct {
    uint64_t at, checksum;
    uint32_t size, rows, key_len;
    unsigned char *key; /* of its first row */
} Frame;

/* Rows of one segment in a spill. */
typedef struct {
    int64_t segment;
    uint32_t from, to; /* its frames */
    uint64_t rows, deletes;
    unsigned char *last;
    uint32_t last_len;
} Stretch;

/* It never changes once it is made, so any thread may read it. */
typedef struct {
    PyObject_HEAD
    int fd;
    uint64_t size;
    uint32_t longest; /* bytes of a key */
    Frame *frames;
    uint32_t count, room;
    Stretch *stretches;
    uint32_t stretches_count;
} Spill;

#define FRAME_HEAD 8 /* before a row: the lengths of its key and its value, 4 bytes each */

/* -- handles ------------------------------------------------------------------------------------------------------- */

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
extern PyObject *part_type, *fold_type, *spill_type, *client_type, *producer_type;

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
int init_spill(PyObject *module);
int init_buffer(PyObject *module);

PyObject *load_library(PyObject *module, PyObject *path);
PyObject *digest_of(PyObject *module, PyObject *path);
PyObject *merge_files(PyObject *module, PyObject *args);
PyObject *merge_rows(PyObject *module, PyObject *args);
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
int is_column(PyObject *given);
Py_ssize_t cell_of(PyObject *column, Py_ssize_t at, char **bytes);
PyObject *columns_of(PyObject *module, PyObject *args);
PyObject *headed_rows(PyObject *module, PyObject *args);
PyObject *json_form(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *encoder(PyObject *module, PyObject *args);
PyObject *putter(PyObject *module, PyObject *args);
PyObject *part_of_columns(PyObject *module, PyObject *args);
PyObject *part_of_draft(Draft *draft, PyObject *topic);
void draft_free(Draft *draft);

/* A sorted fold for reading, by as many threads as want to: no other call of it is allowed meanwhile. */
int fold_enter(PyObject *fold); /* -1 with an error: another thread uses it, or its rows are not sorted */
void fold_leave(PyObject *fold);
const Group *fold_group(PyObject *fold, uint32_t index); /* NULL: there is none */
uint32_t fold_cells(PyObject *fold, uint32_t from, uint32_t to, Cell *into); /* up to CELLS_MAX; the end of these */

/* Errors and words of the owner, for work without the interpreter's lock. */
PyObject *raise_errno(int code, const char *path);
const char *path_of(PyObject *text);
int call_look(PyObject *look);

#endif
