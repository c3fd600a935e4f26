/* The last value of each key, without a Python object for a record.
 *
 *     parts ──> add ──> table of hashes ──> entries ──> sort ──> rows in key order, segment by segment
 *                            arena of keys and values; a value that fits takes the old one's place
 *
 * A rule says how records become rows. Without times the row's family is one; with times each record has a time in the
 * last bytes of its key, and its segment is that time divided by the interval. The stream time moves with the largest
 * time of a whole batch, before its records are looked at; records of segments below that of (stream time - retention)
 * are dead. These are the rules of `standfast.store.types`, and tests compare the two, byte for byte.
 *
 * Rules of this file: keys are compared as unsigned bytes; hashes are seeded, since keys may be chosen by a stranger. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

#define CHUNK ((size_t)1 << 20)
#define NONE UINT32_MAX
#define GATHERED 32 /* rows that are fetched into the cache together */
#define AHEAD 16 /* rows whose places in the table are fetched into the cache together */
/* An entry, its places in the growing tables, and sorting. */
#define ENTRY_COST 128
#define LOOK_BYTES ((uint64_t)4 << 20)
#define PIECES_MAX 16 /* files that are written at once */

PyObject *fold_type;

typedef struct Chunk {
    struct Chunk *next;
    size_t used, size;
    char bytes[];
} Chunk;

typedef struct {
    const unsigned char *key;
    char *value;
    uint32_t key_len;
    int32_t value_len; /* -1: a delete */
    uint32_t value_room;
    int64_t segment;
} Entry;

typedef struct {
    uint32_t hash;
    uint32_t entry; /* NONE: free */
} Slot;

typedef struct {
    uint64_t prefix;
    uint32_t entry;
} Place;

/* Sorted rows of one segment. */
typedef struct {
    int64_t segment;
    uint32_t from, to, deletes;
} Group;

typedef struct {
    PyObject_HEAD
    int busy;
    int spoilt; /* memory ran out in the middle: the rows are not those of the records */
    /* the rule */
    int stamped;          /* rows begin with the record's timestamp */
    int suffix;           /* bytes of times at the end of a key; 0: no times */
    int numbered;         /* the last four bytes are a sequence number */
    int64_t retention_ms; /* with times */
    int64_t interval_ms;
    int64_t observed_ms;
    int64_t sequence;
    /* the rows */
    uint64_t seed;
    Chunk *chunks;
    size_t bytes;
    Entry *entries;
    uint32_t count, room, longest; /* longest: bytes of a key */
    Slot *slots;
    uint32_t mask;
    Place *sorted; /* NULL: not sorted since the last record */
    Group *groups;
    uint32_t groups_count;
} Fold;

static int64_t big_endian(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return (int64_t)__builtin_bswap64(value);
}

static int64_t floor_div(int64_t number, int64_t by)
{
    int64_t found = number / by;
    return found - (number % by != 0 && number < 0);
}

static uint32_t hash_of(uint64_t seed, const unsigned char *key, size_t length)
{
    uint64_t hash = seed ^ (length * 0x9E3779B97F4A7C15u), word;
    while (length >= 8) {
        memcpy(&word, key, 8);
        __uint128_t product = (__uint128_t)(hash ^ word) * 0xD6E8FEB86659FD93u;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64) ^ seed;
        key += 8;
        length -= 8;
    }
    word = 0;
    memcpy(&word, key, length);
    __uint128_t product = (__uint128_t)(hash ^ word) * 0xA0761D6478BD642Fu;
    hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    return (uint32_t)(hash ^ hash >> 32);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static char *room_for(Fold *self, size_t size)
{
    Chunk *chunk = self->chunks;
    if (chunk == NULL || chunk->size - chunk->used < size) {
        size_t whole = size > CHUNK / 4 ? size : CHUNK;
        Chunk *fresh = malloc(sizeof(Chunk) + whole);
        if (fresh == NULL)
            return NULL;
        fresh->size = whole;
        fresh->used = 0;
        if (whole != CHUNK && chunk != NULL) { /* a large row has its own; the open chunk stays the first */
            fresh->next = chunk->next;
            chunk->next = fresh;
        } else {
            fresh->next = chunk;
            self->chunks = fresh;
        }
        chunk = fresh;
    }
    char *found = chunk->bytes + chunk->used;
    chunk->used += size;
    self->bytes += size;
    return found;
}

static int grow_slots(Fold *self, uint32_t wanted)
{
    uint32_t size = 1024;
    while (size < wanted)
        size *= 2;
    Slot *fresh = malloc(size * sizeof(Slot));
    if (fresh == NULL)
        return -1;
    memset(fresh, 0xFF, size * sizeof(Slot));
    for (uint32_t i = 0; self->slots != NULL && i <= self->mask; i++) {
        Slot one = self->slots[i];
        if (one.entry == NONE)
            continue;
        uint32_t at = one.hash & (size - 1);
        while (fresh[at].entry != NONE)
            at = (at + 1) & (size - 1);
        fresh[at] = one;
    }
    free(self->slots);
    self->slots = fresh;
    self->mask = size - 1;
    return 0;
}

static int grow_entries(Fold *self)
{
    if (self->count < self->room)
        return 0;
    uint32_t room = self->room ? self->room + self->room / 2 : 512;
    if (room >= NONE / 2)
        return -1;
    Entry *fresh = realloc(self->entries, room * sizeof(Entry));
    if (fresh == NULL)
        return -1;
    self->entries = fresh;
    self->room = room;
    return 0;
}

static void unsort(Fold *self)
{
    free(self->sorted);
    free(self->groups);
    self->sorted = NULL;
    self->groups = NULL;
    self->groups_count = 0;
}

static void forget(Fold *self)
{
    for (Chunk *chunk = self->chunks, *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(self->entries);
    free(self->slots);
    unsort(self);
    self->chunks = NULL;
    self->entries = NULL;
    self->slots = NULL;
    self->bytes = self->count = self->room = self->mask = self->longest = 0;
}

/* -- adding -------------------------------------------------------------------------------------------------------- */

/* The entry of a key, made if it is new; NULL: no memory. */
static Entry *entry_of(Fold *self, const unsigned char *key, uint32_t length, uint32_t hash)
{
    uint32_t at = hash & self->mask;
    for (; self->slots[at].entry != NONE; at = (at + 1) & self->mask) {
        if (self->slots[at].hash != hash)
            continue;
        Entry *found = self->entries + self->slots[at].entry;
        if (found->key_len == length && memcmp(found->key, key, length) == 0)
            return found;
    }
    if (grow_entries(self) < 0)
        return NULL;
    unsigned char *own = (unsigned char *)room_for(self, length);
    if (own == NULL)
        return NULL;
    memcpy(own, key, length);
    Entry *made = self->entries + self->count;
    *made = (Entry){.key = own, .key_len = length, .value_len = -1};
    self->slots[at] = (Slot){hash, self->count++};
    self->longest = length > self->longest ? length : self->longest;
    return made;
}

static int put(Fold *self, const Part *part, const Row *row, uint32_t hash, int64_t segment)
{
    const char *at = part->arena + row->at;
    Entry *entry = entry_of(self, (const unsigned char *)at, (uint32_t)row->key_len, hash);
    if (entry == NULL)
        return -1;
    entry->segment = segment;
    if (row->value_len < 0) {
        entry->value_len = -1;
        return 0;
    }
    uint32_t skip = self->stamped ? 8 : 0, length = (uint32_t)row->value_len + skip;
    if (length > INT32_MAX)
        return -1;
    if (length > entry->value_room || entry->value == NULL) {
        entry->value = room_for(self, length);
        if (entry->value == NULL)
            return -1;
        entry->value_room = length;
    }
    if (skip) {
        uint64_t stamp = __builtin_bswap64((uint64_t)row->timestamp);
        memcpy(entry->value, &stamp, 8);
    }
    memcpy(entry->value + skip, at + row->key_len, (size_t)row->value_len);
    entry->value_len = (int32_t)length;
    return 0;
}

/* Move the stream time; the index of a key that no store can have written, or -1. */
static Py_ssize_t observe(Fold *self, const Part *part, Py_ssize_t start, Py_ssize_t stop)
{
    int64_t observed = self->observed_ms, sequence = self->sequence;
    for (Py_ssize_t i = start; i < stop; i++) {
        const Row *row = part->rows + i;
        if (row->key_len < 0)
            continue;
        const unsigned char *end = (const unsigned char *)part->arena + row->at + row->key_len;
        int64_t time = row->key_len < self->suffix ? -1 : big_endian(end - self->suffix);
        if (time < 0)
            return i;
        if (time > observed)
            observed = time;
        if (self->numbered) {
            uint32_t number;
            memcpy(&number, end - 4, 4);
            number = __builtin_bswap32(number);
            if (number > INT32_MAX)
                return i;
            if (number > sequence)
                sequence = number;
        }
    }
    self->observed_ms = observed;
    self->sequence = sequence;
    return -1;
}

typedef struct {
    Py_ssize_t bad, keyless, dead;
} Sums;

static int add(Fold *self, const Part *part, Py_ssize_t start, Py_ssize_t stop, Sums *sums)
{
    sums->bad = self->suffix ? observe(self, part, start, stop) : -1;
    if (sums->bad >= 0)
        return 0;
    uint64_t wanted = ((uint64_t)self->count + (uint64_t)(stop - start)) * 2;
    if (wanted > NONE / 2)
        return -1;
    if ((self->slots == NULL || wanted > self->mask) && grow_slots(self, (uint32_t)wanted) < 0)
        return -1;
    int64_t least = self->suffix ? floor_div(self->observed_ms - self->retention_ms, self->interval_ms) : 0;
    uint32_t hashes[AHEAD];
    for (Py_ssize_t from = start; from < stop; from += AHEAD) {
        Py_ssize_t to = stop - from > AHEAD ? from + AHEAD : stop;
        for (Py_ssize_t i = from; i < to; i++) {
            const Row *row = part->rows + i;
            if (row->key_len < 0)
                continue;
            hashes[i - from] = hash_of(self->seed, (unsigned char *)part->arena + row->at, (size_t)row->key_len);
            __builtin_prefetch(self->slots + (hashes[i - from] & self->mask));
        }
        for (Py_ssize_t i = from; i < to; i++) {
            const Row *row = part->rows + i;
            if (row->key_len < 0) {
                sums->keyless++;
                continue;
            }
            int64_t segment = 0;
            if (self->suffix) {
                segment = big_endian((unsigned char *)part->arena + row->at + row->key_len - self->suffix) /
                          self->interval_ms;
                if (segment < least) {
                    sums->dead++;
                    continue;
                }
            }
            if (put(self, part, row, hashes[i - from], segment) < 0)
                return -1;
        }
    }
    return 0;
}

/* -- sorting ------------------------------------------------------------------------------------------------------- */

static int compare(const Entry *one, const Entry *other)
{
    uint32_t common = one->key_len < other->key_len ? one->key_len : other->key_len;
    int found = memcmp(one->key, other->key, common);
    return found ? found : (one->key_len > other->key_len) - (one->key_len < other->key_len);
}

static int compare_places(const void *one, const void *other, void *entries)
{
    return compare((Entry *)entries + ((const Place *)one)->entry, (Entry *)entries + ((const Place *)other)->entry);
}

static int compare_segments(const void *one, const void *other, void *entries)
{
    int64_t left = ((Entry *)entries)[((const Place *)one)->entry].segment;
    int64_t right = ((Entry *)entries)[((const Place *)other)->entry].segment;
    return (left > right) - (left < right);
}

/* Sort by eight bytes, from the last one to the first; a byte that is the same in all costs a count only. */
static Place *by_prefix(Place *places, Place *spare, uint32_t count)
{
    for (int shift = 0; shift < 64; shift += 8) {
        uint32_t sums[256] = {0}, at = 0;
        for (uint32_t i = 0; i < count; i++)
            sums[places[i].prefix >> shift & 0xFF]++;
        if (sums[places[0].prefix >> shift & 0xFF] == count)
            continue;
        for (int i = 0; i < 256; i++) {
            uint32_t own = sums[i];
            sums[i] = at;
            at += own;
        }
        for (uint32_t i = 0; i < count; i++)
            spare[sums[places[i].prefix >> shift & 0xFF]++] = places[i];
        Place *swap = places;
        places = spare;
        spare = swap;
    }
    return places;
}

/* Sort entries of one segment; the result is in `places`. */
static void sort_segment(Fold *self, Place *places, Place *spare, uint32_t count)
{
    const Entry *first = self->entries + places[0].entry;
    uint32_t common = first->key_len; /* bytes that all keys begin with decide nothing */
    for (uint32_t i = 1; i < count && common; i++) {
        const Entry *one = self->entries + places[i].entry;
        uint32_t same = 0;
        while (same < common && same < one->key_len && one->key[same] == first->key[same])
            same++;
        common = same;
    }
    for (uint32_t i = 0; i < count; i++) {
        const Entry *one = self->entries + places[i].entry;
        unsigned char bytes[8] = {0};
        uint32_t left = one->key_len - common;
        memcpy(bytes, one->key + common, left < 8 ? left : 8);
        places[i].prefix = (uint64_t)big_endian(bytes);
    }
    Place *found = by_prefix(places, spare, count);
    if (found != places)
        memcpy(places, found, count * sizeof(Place));
    for (uint32_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && places[to].prefix == places[from].prefix; to++)
            ;
        if (to - from > 1) /* equal in eight bytes: their whole keys decide */
            qsort_r(places + from, to - from, sizeof(Place), compare_places, self->entries);
    }
}

static int sort(Fold *self)
{
    size_t size = ((size_t)self->count + 1) * sizeof(Place);
    Place *places = malloc(size), *spare = malloc(size);
    if (places == NULL || spare == NULL) {
        free(places);
        free(spare);
        return -1;
    }
    int mixed = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        places[i].entry = i;
        mixed |= self->entries[i].segment != self->entries[0].segment;
    }
    if (mixed)
        qsort_r(places, self->count, sizeof(Place), compare_segments, self->entries);
    int failed = 0;
    for (uint32_t from = 0, to; from < self->count && !failed; from = to) {
        Group group = {.segment = self->entries[places[from].entry].segment, .from = from};
        for (to = from; to < self->count && self->entries[places[to].entry].segment == group.segment; to++)
            group.deletes += self->entries[places[to].entry].value_len < 0;
        group.to = to;
        sort_segment(self, places + from, spare, to - from);
        Group *grown = realloc(self->groups, (self->groups_count + 1) * sizeof(Group));
        failed = grown == NULL;
        if (!failed) {
            self->groups = grown;
            self->groups[self->groups_count++] = group;
        }
    }
    free(spare);
    self->sorted = places;
    if (failed)
        unsort(self);
    return -failed;
}

/* -- Python -------------------------------------------------------------------------------------------------------- */

static int enter(Fold *self)
{
    if (self->busy || self->spoilt) {
        PyErr_SetString(PyExc_RuntimeError, self->busy ? "another thread uses this fold: one at a time may"
                                                       : "this fold ran out of memory: its rows are not whole");
        return -1;
    }
    self->busy = 1;
    return 0;
}

static PyObject *fold_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stamped", "suffix", "numbered", "retention_ms", "interval_ms", "observed_ms", NULL};
    int stamped, suffix = 0, numbered = 0;
    long long retention_ms = 0, interval_ms = 1, observed_ms = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "p|ipLLL", names, &stamped, &suffix, &numbered, &retention_ms,
                                     &interval_ms, &observed_ms))
        return NULL;
    if ((suffix != 0 && suffix < 8) || interval_ms < 1 || retention_ms < 0 || observed_ms < -1 ||
        (numbered && suffix < 12)) {
        PyErr_SetString(PyExc_ValueError, "no store has such a rule");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Fold *self = (Fold *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    self->seed = ((uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u) ^ (uint64_t)(uintptr_t)self ^ (uint64_t)now.tv_sec << 32;
    self->stamped = stamped;
    self->suffix = suffix;
    self->numbered = numbered;
    self->retention_ms = retention_ms;
    self->interval_ms = interval_ms;
    self->observed_ms = observed_ms;
    return (PyObject *)self;
}

static void fold_dealloc(Fold *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    forget(self);
    release(self);
    Py_DECREF(type);
}

static PyObject *fold_add(Fold *self, PyObject *args)
{
    Part *part;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "O!nn", (PyTypeObject *)part_type, &part, &start, &stop))
        return NULL;
    if (start < 0 || stop < start || stop > part->count) {
        PyErr_Format(PyExc_IndexError, "records %zd to %zd of a part with %zd", start, stop, part->count);
        return NULL;
    }
    if (enter(self) < 0)
        return NULL;
    Sums sums = {0};
    Py_BEGIN_ALLOW_THREADS
    unsort(self);
    self->spoilt = add(self, part, start, stop, &sums) < 0;
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (self->spoilt)
        return PyErr_NoMemory();
    return Py_BuildValue("(nnn)", sums.bad, sums.keyless, sums.dead);
}

static PyObject *fold_sort(Fold *self, PyObject *unused)
{
    int failed = 0;
    (void)unused;
    if (enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (self->sorted == NULL && self->count)
        failed = sort(self) < 0;
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (failed)
        return PyErr_NoMemory();
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < self->groups_count; i++) {
        const Group *group = self->groups + i;
        PyObject *one = Py_BuildValue("(LIII)", (long long)group->segment, group->from, group->to, group->deletes);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

/* Bring the next rows in key order into the cache together, as each lies somewhere else; the end of these. */
static uint32_t gather(const Fold *self, uint32_t from, uint32_t to, Entry *into)
{
    uint32_t end = to - from > GATHERED ? from + GATHERED : to;
    for (uint32_t i = end; i < to && i < end + GATHERED; i++)
        __builtin_prefetch(self->entries + self->sorted[i].entry);
    for (uint32_t i = from; i < end; i++) {
        const Entry *one = into + (i - from);
        into[i - from] = self->entries[self->sorted[i].entry];
        __builtin_prefetch(one->key);
        for (int32_t at = 0; at < one->value_len && at < 256; at += 64)
            __builtin_prefetch(one->value + at);
    }
    return end;
}

static int hand_out(const Fold *self, uint32_t from, uint32_t to, int deletes, PyObject *keys, PyObject *values)
{
    Entry rows[GATHERED];
    for (uint32_t i = from, end = from, first = from; i < to; i++) {
        if (i == end)
            end = gather(self, first = i, to, rows);
        const Entry *one = rows + (i - first);
        if (one->value_len < 0 && !deletes)
            continue;
        PyObject *key = PyBytes_FromStringAndSize((const char *)one->key, one->key_len);
        PyObject *value = one->value_len < 0 ? (Py_INCREF(Py_None), Py_None)
                                             : PyBytes_FromStringAndSize(one->value, one->value_len);
        int failed = key == NULL || value == NULL || PyList_Append(keys, key) < 0 || PyList_Append(values, value) < 0;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (failed)
            return -1;
    }
    return 0;
}

static PyObject *fold_rows(Fold *self, PyObject *args)
{
    unsigned int from, to;
    int deletes;
    if (!PyArg_ParseTuple(args, "IIp", &from, &to, &deletes))
        return NULL;
    if (self->busy || self->sorted == NULL || from > to || to > self->count) {
        PyErr_SetString(PyExc_RuntimeError, "there are no such rows: sort first, and use a fold in one thread");
        return NULL;
    }
    PyObject *keys = PyList_New(0), *values = PyList_New(0), *found = NULL;
    if (keys != NULL && values != NULL && hand_out(self, from, to, deletes, keys, values) == 0)
        found = PyTuple_Pack(2, keys, values);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return found;
}

/* One file: rows at these places. */
typedef struct {
    Fold *fold;
    const char *path;
    uint32_t from, to, block_bytes;
    int deletes;    /* whether they are written */
    PyObject *look; /* of the calling thread's piece; NULL in the others */
    int *stop;      /* set by the calling thread: the others end */
    uint64_t rows, removed; /* written ones, deletes among them */
    const Entry *first, *last;
    int failed; /* -1: an error with `code`; 1: `look` raised, and its error is set */
    int code;
    pthread_t thread;
    int started;
} Piece;

static int look_up(const Piece *piece)
{
    if (piece->look == NULL) {
        errno = ECANCELED;
        return __atomic_load_n(piece->stop, __ATOMIC_RELAXED) ? -1 : 0;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *answer = PyObject_CallNoArgs(piece->look);
    Py_XDECREF(answer);
    PyGILState_Release(state);
    return answer == NULL;
}

static int fill(Piece *piece, Table *table)
{
    const Fold *fold = piece->fold;
    uint64_t looked = 0;
    Entry rows[GATHERED];
    for (uint32_t i = piece->from, end = i, first = i; i < piece->to; i++) {
        if (i == end)
            end = gather(fold, first = i, piece->to, rows);
        const Entry *one = rows + (i - first);
        if (one->value_len < 0 && !piece->deletes)
            continue;
        if (table_add(table, one->key, one->key_len, one->value, one->value_len) < 0)
            return -1;
        piece->last = fold->entries + fold->sorted[i].entry;
        piece->first = piece->first == NULL ? piece->last : piece->first;
        piece->removed += one->value_len < 0;
        if (table_size(table) - looked < LOOK_BYTES)
            continue;
        looked = table_size(table);
        int failed = look_up(piece);
        if (failed)
            return failed;
    }
    return table_finish(table);
}

static void *write_piece(void *given)
{
    Piece *piece = given;
    const Fold *fold = piece->fold;
    piece->rows = piece->to - piece->from;
    for (uint32_t i = piece->from; i < piece->to && !piece->deletes; i++)
        piece->rows -= fold->entries[fold->sorted[i].entry].value_len < 0;
    if (piece->rows == 0)
        return NULL;
    int fd = open(piece->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    Table *table = fd < 0 ? NULL : table_new(fd, piece->rows, piece->block_bytes);
    piece->failed = table == NULL ? -1 : fill(piece, table);
    piece->code = errno;
    if (table != NULL)
        table_free(table);
    if (fd >= 0 && close(fd) < 0 && !piece->failed) {
        piece->code = errno;
        piece->failed = -1;
    }
    return NULL;
}

/* Write the pieces, the first one in this thread and each other in its own; the piece that failed, or NULL. */
static const Piece *write_pieces(Piece *pieces, Py_ssize_t count, int *stop)
{
    const Piece *failed = NULL;
    for (Py_ssize_t i = 1; i < count; i++)
        pieces[i].started = pthread_create(&pieces[i].thread, NULL, write_piece, pieces + i) == 0;
    write_piece(pieces);
    __atomic_store_n(stop, pieces[0].failed, __ATOMIC_RELAXED);
    for (Py_ssize_t i = 1; i < count; i++) {
        if (pieces[i].started)
            pthread_join(pieces[i].thread, NULL);
        else if (!pieces[0].failed) /* the machine allows no more threads */
            write_piece(pieces + i);
    }
    for (Py_ssize_t i = 0; i < count && failed == NULL; i++)
        failed = pieces[i].failed ? pieces + i : NULL;
    return failed;
}

static PyObject *files_of(const Piece *pieces, Py_ssize_t count)
{
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        const Piece *one = pieces + i;
        PyObject *file = one->rows == 0
                             ? Py_NewRef(Py_None)
                             : Py_BuildValue("(KKy#y#)", one->rows, one->removed, (const char *)one->first->key,
                                             (Py_ssize_t)one->first->key_len, (const char *)one->last->key,
                                             (Py_ssize_t)one->last->key_len);
        if (file == NULL || PyList_SetItem(found, i, file) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *fold_write(Fold *self, PyObject *args)
{
    PyObject *paths, *look, *found = NULL;
    Piece pieces[PIECES_MAX];
    unsigned int index, block_bytes;
    int deletes, stop = 0;
    if (!PyArg_ParseTuple(args, "O!IpIO", &PyTuple_Type, &paths, &index, &deletes, &block_bytes, &look))
        return NULL;
    Py_ssize_t count = PyTuple_Size(paths);
    if (count < 1 || count > PIECES_MAX) {
        PyErr_Format(PyExc_ValueError, "a segment is written as 1 to %d files", PIECES_MAX);
        return NULL;
    }
    if (enter(self) < 0)
        return NULL;
    if (self->sorted == NULL || index >= self->groups_count) {
        PyErr_SetString(PyExc_RuntimeError, "there are no such rows: sort first");
        goto out;
    }
    const Group *group = self->groups + index;
    uint64_t rows = group->to - group->from;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint32_t from = group->from + (uint32_t)(rows * (uint64_t)i / (uint64_t)count);
        uint32_t to = group->from + (uint32_t)(rows * (uint64_t)(i + 1) / (uint64_t)count);
        pieces[i] = (Piece){.fold = self, .from = from, .to = to, .block_bytes = block_bytes, .deletes = deletes};
        pieces[i].stop = &stop;
        Py_ssize_t length;
        pieces[i].path = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(paths, i), &length);
        if (pieces[i].path != NULL && strlen(pieces[i].path) != (size_t)length)
            PyErr_SetString(PyExc_ValueError, "a path has a null character");
        if (PyErr_Occurred())
            goto out;
    }
    pieces[0].look = look;
    const Piece *failed;
    Py_BEGIN_ALLOW_THREADS
    failed = write_pieces(pieces, count, &stop);
    Py_END_ALLOW_THREADS
    if (failed == NULL)
        found = files_of(pieces, count);
    else if (failed->failed < 0 && failed->code == ENOMEM)
        PyErr_NoMemory();
    else if (failed->failed < 0) {
        errno = failed->code;
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, failed->path);
    }
out:
    self->busy = 0;
    return found;
}

PyObject *digest_of(PyObject *module, PyObject *path)
{
    PyObject *encoded = NULL;
    uint64_t digest;
    int failed;
    (void)module;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    const char *name = PyBytes_AsString(encoded);
    Py_BEGIN_ALLOW_THREADS
    failed = file_digest(name, &digest);
    Py_END_ALLOW_THREADS
    PyObject *found = failed ? PyErr_SetFromErrnoWithFilename(PyExc_OSError, name) : PyLong_FromUnsignedLongLong(digest);
    Py_DECREF(encoded);
    return found;
}

static PyObject *fold_clear(Fold *self, PyObject *unused)
{
    (void)unused;
    if (enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    forget(self);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    Py_RETURN_NONE;
}

static Py_ssize_t fold_length(Fold *self)
{
    return (Py_ssize_t)self->count;
}

static PyObject *fold_get(Fold *self, void *what)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread uses this fold: one at a time may");
        return NULL;
    }
    switch ((intptr_t)what) {
    case 0:
        return PyLong_FromSize_t(self->bytes + (size_t)self->count * ENTRY_COST);
    case 1:
        return PyLong_FromLongLong(self->observed_ms);
    case 2:
        return PyLong_FromLongLong(self->sequence);
    default:
        return PyBool_FromLong(self->longest <= TABLE_KEY_MAX);
    }
}

static PyMethodDef fold_methods[] = {
    {"add", (PyCFunction)fold_add, METH_VARARGS,
     "add(part, start, stop) -> (bad, keyless, dead)\n\nFold these records, in offset order. `bad` is the index of a "
     "key that no store can have written, and then nothing was folded; -1: all are fine. Raises MemoryError."},
    {"sort", (PyCFunction)fold_sort, METH_NOARGS,
     "sort() -> [(segment, from, to, deletes)]\n\nSort the rows; places of each segment, ascending."},
    {"rows", (PyCFunction)fold_rows, METH_VARARGS,
     "rows(from, to, deletes) -> (keys, values)\n\nRows at these places in key order; a delete is None, or left out."},
    {"write", (PyCFunction)fold_write, METH_VARARGS,
     "write(paths, index, deletes, block_bytes, look) -> [(entries, deletes, first key, last key) or None]\n\nWrite the "
     "rows of one segment, by its place in the result of `sort`, as files that RocksDB ingests, one for each path of the "
     "tuple, in as many threads; None stands for a file that would be empty. `look()` is called every few megabytes and "
     "may raise. Raises OSError and MemoryError; files may be there in part then."},
    {"clear", (PyCFunction)fold_clear, METH_NOARGS, "Forget all rows; the stream time stays."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef fold_fields[] = {
    {"used_bytes", (getter)fold_get, NULL, "bytes of memory that the rows take, with sorting", (void *)0},
    {"observed_ms", (getter)fold_get, NULL, "stream time, -1 if there is none", (void *)1},
    {"sequence", (getter)fold_get, NULL, "largest sequence number of a key", (void *)2},
    {"short_keys", (getter)fold_get, NULL, "whether `write` takes the keys of all rows", (void *)3},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fold_slots[] = {
    {Py_tp_new, fold_new},
    {Py_tp_dealloc, fold_dealloc},
    {Py_tp_methods, fold_methods},
    {Py_tp_getset, fold_fields},
    {Py_sq_length, fold_length},
    {Py_tp_doc, "Fold(stamped, suffix, numbered, retention_ms, interval_ms, observed_ms): see fold.c."},
    {0, NULL},
};

static PyType_Spec fold_spec = {
    "standfast.replication.kafka._native.Fold", sizeof(Fold), 0, Py_TPFLAGS_DEFAULT, fold_slots,
};

int init_fold(PyObject *module)
{
    fold_type = PyType_FromSpec(&fold_spec);
    return fold_type == NULL ? -1 : PyModule_AddObjectRef(module, "Fold", fold_type);
}
