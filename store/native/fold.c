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
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "native.h"

#define CHUNK ((size_t)1 << 20)
#define NONE UINT32_MAX
#define AHEAD 16 /* rows whose places in the table are fetched into the cache together */
/* An entry, its places in the growing tables, and sorting. */
#define ENTRY_COST 128

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
    uint32_t count, room;
    uint32_t longest; /* bytes of a key */
    uint32_t common;  /* bytes that all keys begin with, which decide no order */
    Slot *slots;
    uint32_t mask;
    Place *sorted; /* NULL: not sorted since the last record */
    Group *groups;
    uint32_t groups_count;
} Fold;

static int64_t big_endian(const unsigned char *at)
{
    return (int64_t)prefix_of(at, 8);
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
            self->bytes += chunk != NULL ? chunk->size - chunk->used : 0; /* no row comes there any more */
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
    self->bytes = self->count = self->room = self->mask = self->longest = self->common = 0;
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
    uint32_t most = self->count == 1 || length < self->common ? length : self->common;
    self->common = (uint32_t)alike(own, self->entries->key, most);
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

static int compare_places(const void *one, const void *other, void *entries)
{
    const Entry *left = (Entry *)entries + ((const Place *)one)->entry;
    const Entry *right = (Entry *)entries + ((const Place *)other)->entry;
    return compare_keys(left->key, left->key_len, right->key, right->key_len);
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
    for (uint32_t i = 0; i < count; i++) {
        const Entry *one = self->entries + places[i].entry;
        places[i].prefix = prefix_of(one->key + self->common, one->key_len - self->common);
    }
    if (by_prefix(places, spare, count) != places)
        memcpy(places, spare, count * sizeof(Place));
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
    PyObject *found = failed ? PyErr_NoMemory() : PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < self->groups_count; i++) {
        const Group *group = self->groups + i;
        PyObject *one = Py_BuildValue("(LIII)", (long long)group->segment, group->from, group->to, group->deletes);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    self->busy = 0; /* only now: a new object may start a collection, and with it any code that knows this fold */
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

/* -- for spill.c and merge.c --------------------------------------------------------------------------------------- */

int fold_enter(PyObject *fold)
{
    Fold *self = (Fold *)fold;
    if (enter(self) < 0)
        return -1;
    if (self->sorted != NULL || self->count == 0)
        return 0;
    self->busy = 0;
    PyErr_SetString(PyExc_RuntimeError, "the rows are not sorted: sort first");
    return -1;
}

void fold_leave(PyObject *fold)
{
    ((Fold *)fold)->busy = 0;
}

const Group *fold_group(PyObject *fold, uint32_t index)
{
    const Fold *self = (Fold *)fold;
    return index < self->groups_count ? self->groups + index : NULL;
}

/* In key order each row lies somewhere else: bring some into the cache together, and where the next ones are. */
uint32_t fold_cells(PyObject *fold, uint32_t from, uint32_t to, Cell *into)
{
    const Fold *self = (Fold *)fold;
    uint32_t end = to - from > CELLS_MAX ? from + CELLS_MAX : to;
    for (uint32_t i = end; i < to && i < end + CELLS_MAX; i++)
        __builtin_prefetch(self->entries + self->sorted[i].entry);
    for (uint32_t i = from; i < end; i++) {
        const Entry *one = self->entries + self->sorted[i].entry;
        into[i - from] = (Cell){one->key, one->value, one->key_len, one->value_len};
        __builtin_prefetch(one->key);
        for (int32_t at = 0; at < one->value_len && at < 256; at += 64)
            __builtin_prefetch(one->value + at);
    }
    return end;
}

/* -- the type ------------------------------------------------------------------------------------------------------ */

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
    {"clear", (PyCFunction)fold_clear, METH_NOARGS, "Forget all rows; the stream time stays."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef fold_fields[] = {
    {"used_bytes", (getter)fold_get, NULL, "bytes of memory that the rows take, with sorting", (void *)0},
    {"observed_ms", (getter)fold_get, NULL, "stream time, -1 if there is none", (void *)1},
    {"sequence", (getter)fold_get, NULL, "largest sequence number of a key", (void *)2},
    {"short_keys", (getter)fold_get, NULL, "whether `merge` takes the keys of all rows", (void *)3},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fold_slots[] = {
    {Py_tp_new, fold_new},
    {Py_tp_dealloc, fold_dealloc},
    {Py_tp_methods, fold_methods},
    {Py_tp_getset, fold_fields},
    {Py_tp_doc, "Fold(stamped, suffix, numbered, retention_ms, interval_ms, observed_ms): see fold.c."},
    {0, NULL},
};

static PyType_Spec fold_spec = {
    "standfast.store._native.Fold", sizeof(Fold), 0, Py_TPFLAGS_DEFAULT, fold_slots,
};

int init_fold(PyObject *module)
{
    fold_type = PyType_FromSpec(&fold_spec);
    return fold_type == NULL ? -1 : PyModule_AddObjectRef(module, "Fold", fold_type);
}
